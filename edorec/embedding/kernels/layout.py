"""What kernels are told: where tables are, and what a batch looks up.

Arrays of int64, one row an entry, whose columns are named here; the same for every kernel.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

# Bands: consecutive rows of a table in one format and one memory. ``ON_HOST``: whether a device
# reads and writes them in the host's memory.
FIRST_ROW, NUM_ROWS, ADDRESS, ROW_STRIDE, ROW_BYTES, FORMAT, STATE, ON_HOST = range(8)
BAND_COLUMNS = 8
# Tables: their bands are consecutive. ``QAT`` is the format read through, -1 for none. ``SHARD`` is
# the address of the number of buckets held here and then the buckets (see ``shards``), 0 for all.
# ``TRAFFIC`` is that of the counters below, 0 for a table without rows in the host's memory.
FIRST_BAND, END_BAND, DIM, QAT, TABLE_ROWS, SHARD, TRAFFIC = range(7)
TABLE_COLUMNS = 7
# ``FORMAT`` and ``QAT`` number a format in the low bits; above are the float32 bits of its step.
FORMAT_BITS = 8
FORMAT_MASK = (1 << FORMAT_BITS) - 1
# Traffic, int64: look-ups, those of rows in the host's memory, those among them whose row had been
# staged, bytes read from and written to the host's memory.
LOOKUPS, HOST_LOOKUPS, STAGED_LOOKUPS, READ_BYTES, WRITTEN_BYTES = range(5)
TRAFFIC_COLUMNS = 5
# No row's key; larger than any.
NO_KEY = (1 << 63) - 1
# Features: bag b of a feature has the look-ups offsets[FIRST_OFFSET + b] to
# offsets[FIRST_OFFSET + b + 1], and its result starts at out[OUT + b * OUT_STRIDE].
TABLE, FIRST_OFFSET, NUM_BAGS, OUT, OUT_STRIDE, IS_MEAN = range(6)
FEATURE_COLUMNS = 6
# Snapshots copy the memory of bands in pages; small, because a step changes rows all over the
# tables and each takes its page along. Divides the pages of the operating system, so the last page
# of a band may be read whole.
PAGE_BYTES = 1024


@dataclass(frozen=True)
class Lookups:
    """What a batch looks up.

    Attributes:
        features: int64 (F, 6), see the columns above; features of a table are consecutive.
        values: int64 rows of the tables.
        offsets: int64 starts of bags in ``values``.
        weights: float32, one a value, or None.
        out_size: float32 numbers of the result.
    """

    features: np.ndarray
    values: torch.Tensor
    offsets: torch.Tensor
    weights: torch.Tensor | None
    out_size: int


@dataclass(frozen=True)
class StagedRows:
    """Copies, on the device, of the rows in the host's memory that a batch looks up.

    A row is a key, table << 32 | row, as in the update. Tensors have room for as many rows as the
    batch has look-ups, L; how many there are the device alone knows.

    Attributes:
        values: of the batch.
        firsts: int64 (F), look-up i of a feature, by its place in ``values``, is number
            ``firsts`` + i of L.
        lookup_keys: int64 (L), the row of a look-up, ``NO_KEY`` where it is not staged.
        lookup_addresses: int64 (L), of the row's copy.
        keys: int64 (L), rows that are staged, each once, ascending; behind them ``NO_KEY``.
        addresses: int64 (L), of their copies.
        copies: uint8, of each row its bytes and its state.
    """

    values: torch.Tensor
    firsts: torch.Tensor
    lookup_keys: torch.Tensor
    lookup_addresses: torch.Tensor
    keys: torch.Tensor
    addresses: torch.Tensor
    copies: torch.Tensor


@dataclass(frozen=True)
class UpdateWatch:
    """What snapshots want to know of updates; see ``edorec.embedding.snapshot``.

    Attributes:
        before_update: called before rows are updated, with bands, tables and what was looked up.
            ``first_band`` is how many bands of other kernels come before these (default none).
        page_flags: int64, by band, the address of uint8 flags of its pages, of ``PAGE_BYTES`` each.
            An update sets those of the rows that it stores.
    """

    before_update: Callable[..., None]
    page_flags: np.ndarray


def table_slots(features: np.ndarray, offsets: np.ndarray, num_tables: int) -> np.ndarray:
    """Where each table's look-ups begin when they are sorted by table; int64 (tables + 1)."""
    ends = features[:, FIRST_OFFSET] + features[:, NUM_BAGS]
    num_values = offsets[ends] - offsets[features[:, FIRST_OFFSET]]
    per_table = np.zeros(num_tables + 1, np.int64)
    np.add.at(per_table, features[:, TABLE] + 1, num_values)
    return np.cumsum(per_table)


def first_outside(lookups: Lookups, table_rows: Sequence[int]) -> tuple[int, int]:
    """The first feature with a value that is no row of its table: its position, and the value.

    Raises:
        ValueError: if there is none.
    """
    for position, feature in enumerate(lookups.features.tolist()):
        first, num_bags = feature[FIRST_OFFSET], feature[NUM_BAGS]
        low, high = lookups.offsets[first], lookups.offsets[first + num_bags]
        values = lookups.values[low:high]
        outside = (values < 0) | (values >= table_rows[feature[TABLE]])
        if outside.any():
            return position, int(values[outside][0])
    raise ValueError("all values are rows of their tables")


def index_of(names: Sequence[str], name: str) -> int:
    """Position of a format's name in the order of the explicit dict, as kernels know it."""
    return list(names).index(name)
