"""First pass over the raw files: every used column in one plain form, checked and counted.

Ids become their 64-bit hashes (see ``edorec.data.hashing``), numbers float64 with NaN for null,
labels 0, 1 or NaN. The staged copy of a split is one Parquet file in the order of the input, whose
columns are called c0, c1, ... after the uses they hold; later passes read nothing else.

Rules: a null scalar id, or one listed under ``missing``, is an id of its own; such items of a list
are dropped; a null list is empty; ``max_length`` keeps the first ids that are left. A dense value
that is null, NaN or infinite is bad: it is filled later. NaN labels count as null. All are counted.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from edorec.data.columns import ColumnUse
from edorec.data.hashing import NULL_HASH, IdHasher, hash_integer, hash_text
from edorec.data.numbers import Moments, signed_log1p, to_float64
from edorec.data.schema import FeaturesConfig
from edorec.data.source import SourceFile
from edorec.errors import InputError

CHUNK_ROWS = 131_072
# Hashes have no use for dictionaries or statistics; without them writing takes half the time.
WRITE_OPTIONS: dict[str, Any] = {
    "compression": "lz4",
    "use_dictionary": False,
    "write_statistics": False,
}
Progress = Callable[[str, int, int], None]
Counts = dict[str, Counter[str]]


@dataclass
class Staged:
    """A staged split.

    Attributes:
        path: Parquet file with columns c0, c1, ...
        rows: its rows.
        counts: by kind of event, by feature or task.
        moments: by dense feature, of the transformed values.
        texts: by sparse feature, Parquet file (hash, id) of ids that are not plain int64, if any.
    """

    path: Path
    rows: int = 0
    counts: Counts = field(default_factory=dict)
    moments: dict[str, Moments] = field(default_factory=dict)
    texts: dict[str, Path] = field(default_factory=dict)


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


def stage_split(
    name: str,
    files: Sequence[SourceFile],
    columns: Sequence[Column],
    *,
    folder: Path,
    keep_texts: bool,
    on_progress: Progress | None = None,
) -> Staged:
    """Stages one split.

    Args:
        name: of the split, for file names and progress.
        files: checked against the columns.
        columns: fresh stages, from ``build_columns``.
        folder: where the staged files go.
        keep_texts: whether to write the ids that hashes do not give back.
        on_progress: called with (what, rows done, rows in all).

    Raises:
        InputError: if a file is damaged or a value is not allowed.
    """
    staged = Staged(path=folder / f"{name}.staged.parquet")
    schema = pa.schema([(f"c{index}", column.type) for index, column in enumerate(columns)])
    total = sum(file.num_rows for file in files)
    texts = _TextWriter(folder, name)
    with (
        pq.ParquetWriter(staged.path, schema, **WRITE_OPTIONS) as writer,
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
    ):
        for place, chunk in _chunks(files, columns):
            stages = [pool.submit(c.stage, a, place) for c, a in zip(columns, chunk, strict=True)]
            arrays = [stage.result() for stage in stages]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            if keep_texts:
                texts.write(columns)
            staged.rows += len(arrays[0])
            if on_progress:
                on_progress(f"read {name}", staged.rows, total)
    staged.texts = texts.close()
    _summarize(staged, files, columns)
    return staged


def _chunks(
    files: Sequence[SourceFile], columns: Sequence[Column]
) -> Iterator[tuple[Place, list[pa.Array]]]:
    """Chunks of all files: one Arrow array a column, all null where the file lacks it."""
    for file in files:
        first_row = 0
        positions = [
            file.names.index(c.use.column) if c.use.column in file.names else None for c in columns
        ]
        wanted = sorted({position for position in positions if position is not None})
        for row_group, num_rows in enumerate(file.row_groups):
            if num_rows == 0:
                continue
            for arrays in file.read(row_group, wanted, batch_rows=CHUNK_ROWS):
                rows = len(arrays[0])
                found = dict(zip(wanted, arrays, strict=True))
                place = Place(file.path, row_group, first_row)
                yield place, [pa.nulls(rows) if p is None else found[p] for p in positions]
                first_row += rows


def _summarize(staged: Staged, files: Sequence[SourceFile], columns: Sequence[Column]) -> None:
    """Gathers what the columns counted."""
    for column in columns:
        use = column.use
        counts = Counter(column.counts)
        counts["missing_column_rows"] = sum(
            file.num_rows for file in files if use.column not in file.names
        )
        for event, count in counts.items():
            if count:
                event = "null_groups" if use.kind == "group" else event
                staged.counts.setdefault(event, Counter())[use.name] = count
        if isinstance(column, NumberColumn) and use.kind == "dense":
            staged.moments[use.name] = column.moments


class _TextWriter:
    """Writes the ids that hashes do not give back, one file a feature that has any."""

    SCHEMA = pa.schema([("hash", pa.uint64()), ("id", pa.string())])

    def __init__(self, folder: Path, split: str) -> None:
        self._folder = folder
        self._split = split
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._paths: dict[str, Path] = {}

    def write(self, columns: Sequence[Column]) -> None:
        for index, column in enumerate(columns):
            if not isinstance(column, IdColumn) or column.use.kind == "group":
                continue
            texts = column.hasher.take_texts()
            if not texts:
                continue
            name = column.use.name
            if name not in self._writers:
                self._paths[name] = self._folder / f"{self._split}.texts{index}.parquet"
                self._writers[name] = pq.ParquetWriter(self._paths[name], self.SCHEMA)
            hashes = pa.array(list(texts), pa.uint64())
            table = pa.Table.from_arrays([hashes, pa.array(texts.values())], schema=self.SCHEMA)
            self._writers[name].write_table(table)

    def close(self) -> dict[str, Path]:
        for writer in self._writers.values():
            writer.close()
        return self._paths
