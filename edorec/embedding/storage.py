"""Memory of table rows: maps that can be shrunk in place, viewed as tensors.

A tensor from torch's allocator cannot give a part of its memory back. A map can: its pages past a
new end are returned to the system while the rest stays where it is.
"""

import mmap
from pathlib import Path

import torch

HUGE_PAGE_BYTES = 2 << 20


class MappedBytes:
    """Zeroed bytes in a private anonymous map, or in a file.

    Attributes:
        tensor: the bytes, uint8, one dimension; valid until ``shrink``.
    """

    def __init__(self, num_bytes: int, path: Path | None = None) -> None:
        self._map = _map_file(path, num_bytes) if path else _map_anonymous(num_bytes)
        self._path = path
        self.tensor = self._view(num_bytes)

    def _view(self, num_bytes: int) -> torch.Tensor:
        if num_bytes == 0:  # torch refuses an empty buffer
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(self._map, dtype=torch.uint8, count=num_bytes)

    def shrink(self, num_bytes: int) -> None:
        """Keeps the first ``num_bytes`` and returns the pages behind them to the system.

        Raises:
            ValueError: if there are fewer bytes than that.
        """
        if num_bytes > len(self.tensor):
            raise ValueError(f"cannot shrink {len(self.tensor)} bytes to {num_bytes}")
        first = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        behind = len(self._map) - first
        if behind > 0:
            # Private pages go at once; a file's keep their space on disk, which is cut with it.
            self._map.madvise(mmap.MADV_DONTNEED, first, behind)
            if self._path is not None:
                with self._path.open("r+b") as file:
                    file.truncate(first)
        self.tensor = self._view(num_bytes)


def _map_anonymous(num_bytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if num_bytes >= HUGE_PAGE_BYTES:  # rows are read at random: fewer misses of the TLB
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _map_file(path: Path, num_bytes: int) -> mmap.mmap:
    with path.open("w+b") as file:
        file.truncate(max(num_bytes, 1))
        return mmap.mmap(file.fileno(), max(num_bytes, 1))
