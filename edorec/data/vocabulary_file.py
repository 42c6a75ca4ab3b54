"""Vocabularies made elsewhere: taken as they are, once they are found sound.

A file, or a folder of parts in the order of their names, with the columns ``id`` (integers or
strings, at most one null) and ``count`` (positive integers, descending). The order is that of
ranks; ids in the data that are not in it count as never seen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from edorec.data.hashing import IdHasher
from edorec.data.source import SourceFile, find_files, open_file
from edorec.data.vocabulary import I64, MAX_IDS, U64
from edorec.errors import InputError

CHUNK_ROWS = 1 << 17
COLUMNS = ("id", "count")
T = pa.types


@dataclass(frozen=True)
class VocabularyFile:
    """Where a vocabulary is.

    Attributes:
        key: configuration key, for messages.
        parts: in order, with the right columns and types.
    """

    key: str
    parts: Sequence[SourceFile]

    @property
    def id_type(self) -> pa.DataType:
        """int64 where all ids are, else string."""
        types = [part.types[part.names.index("id")] for part in self.parts]
        are_int64 = all(T.is_integer(kind) and not T.is_uint64(kind) for kind in types)
        return pa.int64() if are_int64 else pa.string()


def open_vocabulary(path: str, *, folder: str, key: str) -> VocabularyFile:
    """Finds a vocabulary's file and checks its columns; reads no rows.

    Args:
        path: a file or a folder of parts.
        folder: where a relative path starts.
        key: configuration key, for messages.

    Raises:
        InputError: if there is none, or a column is missing or of another type.
    """
    parts = [open_file(file) for file in find_files(path, folder=folder, key=key)]
    for part in parts:
        for column in COLUMNS:
            if part.names.count(column) != 1:
                raise InputError(
                    f"{key}: {part.path} has {part.names.count(column)} columns called {column}; a "
                    f"vocabulary has the columns id and count, each once"
                )
        id_type, count_type = (part.types[part.names.index(column)] for column in COLUMNS)
        if not (T.is_integer(id_type) or T.is_string(id_type) or T.is_large_string(id_type)):
            raise InputError(
                f"{key}: column id of {part.path} is {id_type}; ids are integers or strings"
            )
        if not T.is_integer(count_type):
            raise InputError(
                f"{key}: column count of {part.path} is {count_type}; counts are integers"
            )
    return VocabularyFile(key, parts)


def take_vocabulary(source: VocabularyFile, target: Path) -> U64:
    """Copies a vocabulary to ``target`` and returns the hashes of its ids by rank.

    Raises:
        InputError: if a count is null, not positive or larger than the one before it, or an id
            comes twice; the first fault is named with file and row.
    """
    schema = pa.schema([("id", source.id_type), ("count", pa.int64())])
    hashes = []
    with pq.ParquetWriter(target, schema) as writer:
        for ids, counts, found in _chunks(source, source.id_type):
            writer.write_table(pa.Table.from_arrays([ids, pa.array(counts)], schema=schema))
            hashes.append(found)
    joined = np.concatenate(hashes) if hashes else np.empty(0, np.uint64)
    if len(joined) > MAX_IDS:
        raise InputError(f"{source.key} has {len(joined)} ids; more than {MAX_IDS} do not work")
    _check_unique(source, joined)
    return joined


def _chunks(source: VocabularyFile, id_type: pa.DataType) -> Iterator[tuple[pa.Array, I64, U64]]:
    """Ids, counts and hashes, some rows at a time; checks the counts."""
    hasher, last = IdHasher(), None
    for part in source.parts:
        columns, row = [part.names.index(column) for column in COLUMNS], 0
        for group in range(len(part.row_groups)):
            for ids, raw in part.read(group, columns, batch_rows=CHUNK_ROWS):
                where = f"{source.key}: {part.path}, row"
                if raw.null_count:
                    at = row + pc.is_null(raw).index(True).as_py()
                    raise InputError(f"{where} {at}: the count is null")
                counts: I64 = pc.cast(raw, pa.int64()).to_numpy()
                _check_counts(counts, last, where=where, row=row)
                yield pc.cast(ids, id_type), counts, hasher(ids)
                hasher.take_texts()  # not needed, and would pile up
                row, last = row + len(ids), counts[-1] if len(counts) else last


def _check_counts(counts: I64, last: int | None, *, where: str, row: int) -> None:
    if not len(counts):
        return
    before = np.concatenate([counts[:1] if last is None else [last], counts[:-1]])
    wrong = np.flatnonzero((counts < 1) | (counts > before))
    if len(wrong):
        at = int(wrong[0])
        fault = f"the count is {counts[at]}; counts are positive"
        if counts[at] > before[at]:
            fault = f"the count {counts[at]} is larger than {before[at]} before it; sort by count"
        raise InputError(f"{where} {row + at}: {fault}")


def _check_unique(source: VocabularyFile, hashes: U64) -> None:
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    if len(same):
        first, second = min((int(order[k]), int(order[k + 1])) for k in same)
        part, row = _locate(source, second)
        raise InputError(
            f"{source.key}: {part.path}, row {row}: id {_id_at(part, row)} is also in row "
            f"{_locate(source, first)[1]} of {_locate(source, first)[0].path}; an id comes once"
        )


def _locate(source: VocabularyFile, rank: int) -> tuple[SourceFile, int]:
    for part in source.parts:
        if rank < part.num_rows:
            return part, rank
        rank -= part.num_rows
    raise ValueError(f"there is no rank {rank}")


def _id_at(part: SourceFile, row: int) -> object:
    ids = pq.read_table(part.path, columns=["id"])["id"]
    return ids[row].as_py()
