"""First pass over the raw files: every used column in one plain form, checked and counted.

Ids become their 64-bit hashes (see ``edorec.data.hashing``), numbers float64 with NaN for null,
labels 0, 1 or NaN. The staged copy of a split is one Parquet file in the order of the input, whose
columns are called c0, c1, ... after the uses they hold; later passes read nothing else.

Rules: a null scalar id, or one listed under ``missing``, is an id of its own; such items of a list
are dropped; a null list is empty; ``max_length`` keeps the first ids that are left. A dense value
that is null, NaN or infinite is bad: it is filled later. NaN labels count as null. All are counted.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from edorec.cpus import num_cpus
from edorec.data.numbers import Moments
from edorec.data.source import SourceFile
from edorec.data.stage_columns import Column, IdColumn, NumberColumn, Place

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
    texts = _TextWriter(folder, name, keep=keep_texts)
    with (
        pq.ParquetWriter(staged.path, schema, **WRITE_OPTIONS) as writer,
        ThreadPoolExecutor(num_cpus()) as pool,
    ):
        for place, chunk in _chunks(files, columns):
            stages = [pool.submit(c.stage, a, place) for c, a in zip(columns, chunk, strict=True)]
            arrays = [stage.result() for stage in stages]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
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

    def __init__(self, folder: Path, split: str, *, keep: bool) -> None:
        self._keep = keep
        self._folder = folder
        self._split = split
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._paths: dict[str, Path] = {}

    def write(self, columns: Sequence[Column]) -> None:
        for index, column in enumerate(columns):
            if not isinstance(column, IdColumn):
                continue
            texts = column.hasher.take_texts()  # taken in any case, or they would pile up
            if not texts or not self._keep or column.use.kind == "group":
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
