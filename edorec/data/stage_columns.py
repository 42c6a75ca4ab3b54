"""How one column is staged: hashes of ids, plain numbers, checked labels and weights.

See ``edorec.data.stage`` for the rules. A stage sees the chunks of its column in order and counts
what it meets.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from edorec.data.columns import ColumnUse
from edorec.data.hashing import NULL_HASH, IdHasher, hash_integer, hash_text
from edorec.data.numbers import Moments, signed_log1p, to_float64
from edorec.data.schema import FeaturesConfig
from edorec.errors import InputError


@dataclass(frozen=True)
class Place:
    """Where a chunk lies, for messages."""

    file: Path
    row_group: int
    first_row: int

    def error(self, use: ColumnUse, row: int, what: str) -> InputError:
        """The error of one value."""
        return InputError(
            f"{self.file}: row {self.first_row + row} (from 0, in row group {self.row_group}): "
            f"column {use.column} {what} ({use.key})"
        )


class IdColumn:
    """Stages an id column."""

    def __init__(
        self, use: ColumnUse, *, missing: Sequence[int | str], max_length: int | None, is_list: bool
    ) -> None:
        hashes = [hash_integer(v) if isinstance(v, int) else hash_text(v) for v in missing]
        self.use = use
        self.hasher = IdHasher()
        self.counts: Counter[str] = Counter()
        self._missing = np.array([*hashes, NULL_HASH], dtype=np.uint64)
        self._max_length = max_length
        self._is_list = is_list
        self.type = pa.list_(pa.uint64()) if is_list else pa.uint64()

    def stage(self, array: pa.Array, place: Place) -> pa.Array:
        """Hashes of a chunk."""
        if self._is_list:
            return self._lists(array)
        hashes = self._hash(array)
        self.counts["null_ids"] += int(np.count_nonzero(hashes == NULL_HASH))
        return pa.array(hashes)

    def _hash(self, ids: pa.Array) -> npt.NDArray[np.uint64]:
        hashes = self.hasher(ids)
        if len(self._missing) > 1:
            hashes[np.isin(hashes, self._missing)] = NULL_HASH
        return hashes

    def _lists(self, array: pa.Array) -> pa.Array:
        if pa.types.is_null(array.type):
            self.counts["null_lists"] += len(array)
            return pa.array([[]] * len(array), self.type)
        self.counts["null_lists"] += array.null_count
        lengths = pc.fill_null(pc.cast(pc.list_value_length(array), pa.int64()), 0).to_numpy()
        hashes = self._hash(array.flatten())
        keep = hashes != NULL_HASH
        self.counts["dropped_items"] += int(len(keep) - np.count_nonzero(keep))
        ends = np.cumsum(lengths)
        kept = np.concatenate([[0], np.cumsum(keep)])
        if self._max_length is not None:
            place = kept[:-1] - np.repeat(kept[ends - lengths], lengths)
            too_far = keep & (place >= self._max_length)
            self.counts["cut_items"] += int(np.count_nonzero(too_far))
            keep &= ~too_far
            kept = np.concatenate([[0], np.cumsum(keep)])
        offsets = np.concatenate([[0], kept[ends]]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(hashes[keep]))


class NumberColumn:
    """Stages a dense column (transformed) or one that will be binned (as it is)."""

    type = pa.float64()

    def __init__(self, use: ColumnUse, *, transform: str, missing: Sequence[int | str]) -> None:
        self.use = use
        self.counts: Counter[str] = Counter()
        self.moments = Moments()
        self._log = transform == "log1p"
        self._missing = [float(value) for value in missing]

    def stage(self, array: pa.Array, place: Place) -> pa.Array:
        """Values of a chunk, NaN where bad."""
        values = to_float64(array)
        if self.use.kind == "bins":
            if self._missing:
                values[np.isin(values, self._missing)] = np.nan
            self.counts["null_ids"] += int(np.count_nonzero(np.isnan(values)))
            return pa.array(values)
        finite = np.isfinite(values)
        if bad := len(values) - int(np.count_nonzero(finite)):
            self.counts["bad_dense"] += bad
            values[~finite] = np.nan
        if self._log:
            values = signed_log1p(values)
        self.moments.add(values[finite] if bad else values)
        return pa.array(values)


class TargetColumn:
    """Stages a label or weight column."""

    type = pa.float32()

    def __init__(self, use: ColumnUse) -> None:
        self.use = use
        self.counts: Counter[str] = Counter()

    def stage(self, array: pa.Array, place: Place) -> pa.Array:
        """Values of a chunk.

        Raises:
            InputError: at a label other than 0, 1 and null, or a weight that is no number >= 0.
        """
        values = to_float64(array)
        is_null = np.isnan(values)
        if self.use.kind == "label":
            self.counts["null_labels"] += int(np.count_nonzero(is_null))
            bad, wanted = ~is_null & (values != 0) & (values != 1), "0, 1 or null"
        else:
            bad, wanted = ~(np.isfinite(values) & (values >= 0)), "a number of at least 0"
        if bad.any():
            row = int(np.argmax(bad))
            raise place.error(self.use, row, f"is {array[row].as_py()}, and must be {wanted}")
        return pa.array(values.astype(np.float32))


Column = IdColumn | NumberColumn | TargetColumn


def build_columns(
    uses: Sequence[ColumnUse], features: FeaturesConfig, lists: frozenset[str]
) -> list[Column]:
    """A fresh stage of each use."""
    return [_build_column(use, features, use.name in lists) for use in uses]


def _build_column(use: ColumnUse, features: FeaturesConfig, is_list: bool) -> Column:
    if use.kind == "id":
        feature = features.sparse[use.name]
        return IdColumn(
            use, missing=feature.missing, max_length=feature.max_length, is_list=is_list
        )
    if use.kind == "group":
        return IdColumn(use, missing=[], max_length=None, is_list=False)
    if use.kind == "bins":
        return NumberColumn(use, transform="none", missing=features.sparse[use.name].missing)
    if use.kind == "dense":
        return NumberColumn(use, transform=features.dense[use.name].transform, missing=[])
    return TargetColumn(use)
