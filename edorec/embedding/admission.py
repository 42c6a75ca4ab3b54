"""Which row of its table an id takes: a cut in the vocabulary's order of frequency.

An encoded id is an int64: the low 32 bits are its rank + 1 (0: never seen in training), the high 32
bits come from a hash of the raw id. Ids of rank below ``num_own_rows`` have a row of their own, row
= rank; all others share ``num_buckets`` rows behind them, picked by the hash. So that bucket rows
learn what an unknown id means, ids seen once or twice take their bucket's row with probability
``oov_rate`` while training.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
MIN_COUNT, BUCKETS = 1, 0.01  # where neither settings nor a plan say
RANK_MASK = np.int64(0xFFFFFFFF)


@dataclass(frozen=True)
class RowMap:
    """Maps encoded ids to rows.

    Attributes:
        num_own_rows: ids of rank below this have a row of their own.
        num_buckets: rows shared by the others; they follow the own rows.
        rare_from: first rank of the ids seen at most twice.
        oov_rate: probability that a rare id takes its bucket's row while training.
    """

    num_own_rows: int
    num_buckets: int
    rare_from: int
    oov_rate: float

    def __post_init__(self) -> None:
        if self.num_own_rows < 0:
            raise ValueError(f"num_own_rows must be at least 0, got {self.num_own_rows}")
        if self.num_buckets < 1:
            raise ValueError(f"num_buckets must be at least 1, got {self.num_buckets}")

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return self.num_own_rows + self.num_buckets

    @property
    def draws_matter(self) -> bool:
        """Whether ``rows`` can depend on its draws."""
        return self.oov_rate > 0 and self.rare_from < self.num_own_rows

    def rows(self, encoded: I64, *, draws: npt.NDArray[np.uint32] | None) -> I64:
        """Rows of encoded ids.

        Args:
            encoded: int64 ids of any shape.
            draws: uniform uint32 numbers of the same shape while training, else None.

        Returns:
            int64 rows in [0, num_rows).
        """
        rows = encoded & RANK_MASK
        rows -= 1
        # Seen as unsigned, rank -1 (never seen) is larger than any number of rows.
        is_shared = rows.view(np.uint64) >= np.uint64(self.num_own_rows)
        if draws is not None and self.draws_matter:
            limit = min(int(self.oov_rate * 2**32), 2**32 - 1)
            is_rare = rows >= self.rare_from
            is_shared |= is_rare & (draws < np.uint32(limit))
            if self.oov_rate >= 1:
                is_shared |= is_rare
        if is_shared.any():
            hashes = encoded[is_shared].view(np.uint64) >> np.uint64(32)
            buckets = hashes % np.uint64(self.num_buckets)
            rows[is_shared] = buckets.view(np.int64) + self.num_own_rows
        return rows


def build_row_map(
    vocabulary_counts: I64,
    *,
    min_count: int | None,
    max_rows: int | None,
    buckets: float | None,
    oov_rate: float,
    bucket_ids: int | None = None,
) -> RowMap:
    """The row map of a vocabulary's settings.

    Args:
        vocabulary_counts: training look-ups of each id, descending.
        min_count: look-ups that earn an id its own row; None: ``MIN_COUNT``.
        max_rows: most ids with a row of their own.
        buckets: below 1 a share of the ids seen, else a number of rows; at least one row; None:
            ``BUCKETS``.
        oov_rate: see ``RowMap``.
        bucket_ids: ids that a share of buckets is a share of; default all.
    """
    min_count = MIN_COUNT if min_count is None else min_count
    buckets = BUCKETS if buckets is None else buckets
    own = int(np.searchsorted(-vocabulary_counts, -min_count, side="right"))
    if max_rows is not None:
        own = min(own, max_rows)
    num_ids = len(vocabulary_counts) if bucket_ids is None else bucket_ids
    num_buckets = math.ceil(buckets * num_ids) if buckets < 1 else int(buckets)
    return RowMap(
        num_own_rows=own,
        num_buckets=max(num_buckets, 1),
        rare_from=int(np.searchsorted(-vocabulary_counts, -2, side="left")),
        oov_rate=oov_rate,
    )
