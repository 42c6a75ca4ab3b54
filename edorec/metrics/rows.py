"""Scored rows kept for exact metrics: in memory up to a limit, beyond it in files on disk.

A row takes 5 bytes (float32 logit, uint8 label), and 4 more with a sample weight, 8 with a group,
1 for each frequency feature and 1 for the flag of unseen ids where those are given.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Columns = dict[str, npt.NDArray[Any]]
CHUNK_ROWS = 4_000_000


class ScoredRows:
    """Columns of equal length that only grow.

    Args:
        memory_rows: rows kept in memory; when there are more, all go to files.
        spill_folder: where those files go (a folder made and removed there); default the
            system's folder for temporary files.
    """

    def __init__(self, *, memory_rows: int, spill_folder: Path | None) -> None:
        self._memory_rows = memory_rows
        self._spill_folder = spill_folder
        self._chunks: list[Columns] = []
        self._files: tempfile.TemporaryDirectory[str] | None = None
        self._dtypes: dict[str, tuple[np.dtype[np.generic], tuple[int, ...]]] = {}
        self.num_rows = 0

    def append(self, columns: Columns) -> None:
        """Adds rows; every call has the same columns."""
        self._dtypes = {name: (values.dtype, values.shape[1:]) for name, values in columns.items()}
        self.num_rows += len(next(iter(columns.values())))
        self._chunks.append(columns)
        if self._files is not None or self.num_rows > self._memory_rows:
            self._spill()

    @property
    def is_spilled(self) -> bool:
        """Whether the rows are on disk."""
        return self._files is not None

    def chunks(self, *names: str) -> Iterator[Columns]:
        """All rows in chunks of the named columns."""
        if self._files is None:
            for chunk in self._chunks:
                yield {name: chunk[name] for name in names}
            return
        for start in range(0, self.num_rows, CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, self.num_rows)
            yield {name: self._mapped(name)[start:stop] for name in names}

    def _mapped(self, name: str) -> npt.NDArray[Any]:
        dtype, shape = self._dtypes[name]
        path = self._path(name)
        return np.memmap(path, dtype=dtype, mode="r", shape=(self.num_rows, *shape))

    def _path(self, name: str) -> Path:
        assert self._files is not None
        return Path(self._files.name) / name

    def _spill(self) -> None:
        if self._files is None:
            if self._spill_folder is not None:
                self._spill_folder.mkdir(parents=True, exist_ok=True)
            self._files = tempfile.TemporaryDirectory(prefix="metrics-", dir=self._spill_folder)
        for name in self._dtypes:
            with self._path(name).open("ab") as file:
                for chunk in self._chunks:
                    file.write(np.ascontiguousarray(chunk[name]).tobytes())
        self._chunks = []
