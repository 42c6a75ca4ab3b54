"""Parquet files of rows to score, read in their order."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from edorec.data.source import SourceFile, find_files, open_file
from edorec.data.stage_columns import Place

CHUNK_ROWS = 65_536


def open_files(files: str | Sequence[str], *, folder: str = ".", key: str) -> list[SourceFile]:
    """Opens Parquet files: a file, a folder, a glob, or a list of them.

    Raises:
        InputError: if there are none, or one is not sound.
    """
    names = files if isinstance(files, str) else list(files)
    return [open_file(path) for path in find_files(names, folder=folder, key=key)]


def chunks(files: Sequence[SourceFile], columns: Sequence[str]) -> Iterator[tuple[Place, pa.Table]]:
    """Rows of files in their order, some columns; a file without one of them has no such column."""
    for file in files:
        first_row = 0
        names = [name for name in dict.fromkeys(columns) if name in file.names]
        names = names or [file.names[0]]  # tells how many rows there are
        positions = [file.names.index(name) for name in names]
        for row_group, num_rows in enumerate(file.row_groups):
            if not num_rows:
                continue
            for arrays in file.read(row_group, positions, batch_rows=CHUNK_ROWS):
                yield Place(file.path, row_group, first_row), pa.table(arrays, names=names)
                first_row += len(arrays[0])
