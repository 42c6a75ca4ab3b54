"""Raw Parquet files: which there are, and reading them by column position.

Columns are addressed by their position in the file, never by a path, so any name works: with dots
or spaces, not ASCII, twins that differ in case, and names that occur twice but are not used. Every
footer is read before any data, so a damaged file stops a run at its start and by name.
"""

import glob
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from edorec.data.schema import Files
from edorec.errors import InputError

SUFFIXES = (".parquet", ".pq", ".parq")
BEST_AUC_FILE = "best_auc.json"


def expand(text: str, key: str) -> str:
    """``text`` with ${NAME} replaced by the environment variable and ~ by the home folder.

    Raises:
        InputError: if a variable is not set.
    """

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            raise InputError(f"{key} is {text}, but the environment variable {name} is not set")
        return os.environ[name]

    return os.path.expanduser(re.sub(r"\$\{(\w+)\}", value, text))


def find_files(files: Files, *, folder: str, key: str) -> list[Path]:
    """The Parquet files that a configuration key names, sorted within each folder or glob.

    Args:
        files: a file, a folder (searched with its subfolders), a glob, or a list of them.
        folder: where relative paths start; may hold ${NAME}.
        key: key path for messages.

    Raises:
        InputError: if an entry finds nothing, or a file is found twice.
    """
    base = Path(expand(folder, "data.folder"))
    found: list[Path] = []
    for entry in [files] if isinstance(files, str) else files:
        found += _find(base / expand(entry, key), key)
    if not found:
        raise InputError(f"{key} names no files")
    path, times = Counter(found).most_common(1)[0]
    if times > 1:
        raise InputError(f"{key} names {path} {times} times")
    return found


def _find(path: Path, key: str) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file()]
        # Spark and others leave half-written files and logs under names like these.
        found = [p for p in found if not any(s[0] in "_." for s in p.relative_to(path).parts)]
        what = "the folder holds no Parquet files"
    else:
        found = [Path(name) for name in glob.glob(str(path), recursive=True)]
        found = [p for p in found if p.is_file()]
        what = "no such file or folder" if not glob.has_magic(str(path)) else "no file matches"
    if not found:
        raise InputError(f"{key}: {path}: {what}")
    return sorted(found)


@dataclass(frozen=True)
class SourceFile:
    """An open file whose footer is sound.

    Attributes:
        path: where it is.
        names: top-level column names, in order; may repeat.
        types: their Arrow types.
        num_rows: rows of the file.
        row_groups: rows of each row group.
        fingerprint: path, size, time of change and hash of the footer.
    """

    path: Path
    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    num_rows: int
    row_groups: tuple[int, ...]
    fingerprint: tuple[str, int, int, str]

    def read(
        self, row_group: int, columns: list[int], *, batch_rows: int
    ) -> Iterator[list[pa.Array]]:
        """Chunks of at most ``batch_rows`` rows of the columns at these top-level positions.

        Raises:
            InputError: if the row group is damaged.
        """
        starts = [0]
        for kind in self.types:
            starts.append(starts[-1] + _num_leaves(kind))
        leaves = [leaf for c in sorted(columns) for leaf in range(starts[c], starts[c + 1])]
        order = [sorted(columns).index(c) for c in columns]
        rows = 0
        try:
            with pq.ParquetFile(self.path, page_checksum_verification=True) as file:
                for batch in file.reader.iter_batches(
                    batch_rows, row_groups=[row_group], column_indices=leaves, use_threads=True
                ):
                    rows += len(batch)
                    yield [_stored(batch.column(index)) for index in order]
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{self.path}: row group {row_group} is damaged: {_first_line(error)}"
            ) from error
        if rows != self.row_groups[row_group]:
            raise InputError(
                f"{self.path}: row group {row_group} is damaged: it holds {rows} of "
                f"{self.row_groups[row_group]} rows"
            )


def open_file(path: Path) -> SourceFile:
    """Reads a file's footer.

    Raises:
        InputError: if it is no Parquet file, or damaged.
    """
    try:
        status = path.stat()
        footer = _footer_hash(path, status.st_size)
        with pq.ParquetFile(path) as file:
            metadata, schema = file.metadata, file.schema_arrow
            row_groups = tuple(
                metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)
            )
            types = tuple(_storage(field.type) for field in schema)
            leaves = metadata.num_columns
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path} is not a sound Parquet file: {_first_line(error)}") from error
    if sum(map(_num_leaves, types)) != leaves:
        raise InputError(f"{path}: the Parquet columns do not fit the Arrow schema in the footer")
    return SourceFile(
        path=path,
        names=tuple(schema.names),
        types=types,
        num_rows=sum(row_groups),
        row_groups=row_groups,
        fingerprint=(str(path.resolve()), status.st_size, status.st_mtime_ns, footer),
    )


def read_best_auc(folder: str) -> dict[str, float]:
    """Best reachable AUC by task, which a generator of synthetic logs leaves beside its files."""
    path = Path(expand(folder, "data.folder")) / BEST_AUC_FILE
    if not path.exists():
        return {}
    values: dict[str, float] = json.loads(path.read_text())
    return values


def _footer_hash(path: Path, size: int) -> str:
    with path.open("rb") as file:
        file.seek(max(size - 8, 0))
        length = int.from_bytes(file.read(8)[:4], "little")
        file.seek(max(size - 8 - length, 0))
        return hashlib.sha256(file.read()).hexdigest()


def _stored(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _num_leaves(kind: Any) -> int:
    """Parquet columns that an Arrow type takes."""
    if isinstance(kind, pa.BaseExtensionType):
        return _num_leaves(kind.storage_type)
    if kind.num_fields == 0 or pa.types.is_dictionary(kind):
        return 1
    return sum(_num_leaves(kind.field(index).type) for index in range(kind.num_fields))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
