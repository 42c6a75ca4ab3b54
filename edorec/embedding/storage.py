"""Memory of table rows: maps that can be shrunk in place, viewed as tensors.

A tensor from torch's allocator cannot give a part of its memory back. A map can: its pages past a
new end are returned to the system while the rest stays where it is.

A map may be of a file. That file has no name: what a killed process leaves cannot be mistaken for a
table, and the system frees its room on the disk. Or it may be pinned, so that a GPU reads and
writes it where it is. (torch's own pinned tensors take a power of two of bytes.)
"""

import ctypes
import errno
import mmap
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import BinaryIO

import torch

HUGE_PAGE_BYTES = 2 << 20
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")
MOUNTS = Path("/proc/self/mounts")
PORTABLE_AND_MAPPED = 3  # flags of cudaHostRegister
_LIBC = ctypes.CDLL(None, use_errno=True)


class MappedBytes:
    """Zeroed bytes in a private anonymous map, or in a file without a name.

    Args:
        num_bytes: how many.
        folder: where the file is, None for none.
        is_pinned: for CUDA, whose kernels then take the address of ``tensor``.

    Attributes:
        tensor: the bytes, uint8, one dimension; valid until ``shrink``.

    Raises:
        OSError: if the disk has no room for the file, or the folder cannot be written to.
        RuntimeError: if CUDA cannot pin so much.
    """

    def __init__(
        self, num_bytes: int, folder: Path | None = None, *, is_pinned: bool = False
    ) -> None:
        size = max(num_bytes, 1)
        self._file: BinaryIO | None = None
        if folder is None:
            self._map = _map_anonymous(size)
        else:
            self._file = tempfile.TemporaryFile(dir=folder, prefix="edorec-table-")  # noqa: SIM115
            # Room that is missing later would be a bus error in the middle of a step. It is asked
            # for first: a reservation that fails fills the disk for everyone.
            if shutil.disk_usage(folder).free < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
            os.posix_fallocate(self._file.fileno(), 0, size)
            self._map = mmap.mmap(self._file.fileno(), size)
            self.read_in_order(False)
        self.tensor = self._view(num_bytes)
        self._is_pinned = is_pinned
        self._pin()

    def _pin(self) -> None:
        if self._is_pinned and len(self.tensor):
            address, size = self.tensor.data_ptr(), len(self.tensor)
            _check_cuda(torch.cuda.cudart().cudaHostRegister(address, size, PORTABLE_AND_MAPPED))
            self._unpin = weakref.finalize(self, _unpin, address)
            self._unpin.atexit = False  # goes with the process

    @property
    def file_number(self) -> int | None:
        """Descriptor of the file, None where there is none."""
        return None if self._file is None else self._file.fileno()

    def read_in_order(self, is_in_order: bool) -> None:
        """Whether a file is read ahead; else only where a row is, as its neighbours are not next.

        Read in order, a table that is not in memory comes several times as fast ahead of its use.
        """
        self._map.madvise(mmap.MADV_SEQUENTIAL if is_in_order else mmap.MADV_RANDOM)

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
        if self._is_pinned and len(self.tensor):
            self._unpin()  # pinned pages cannot be given back
        first = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        behind = len(self._map) - first
        if behind > 0:
            # Private pages go at once; a file's keep their space on disk, which is cut with it.
            self._map.madvise(mmap.MADV_DONTNEED, first, behind)
            if self._file is not None:
                os.ftruncate(self._file.fileno(), first)
        self.tensor = self._view(num_bytes)
        self._pin()


def forget_pages(tensor: torch.Tensor) -> None:
    """Takes the pages of a tensor that is mapped from a file out of the process's memory.

    They come back from the file when they are used again. Of other tensors they would be lost.
    """
    first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > first:
        _LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)


def read_ahead(address: int, num_bytes: int) -> None:
    """Has the system read memory that is mapped from a file and about to be walked through.

    Rows are read at random, so maps have no read-ahead of their own, and a walk would wait for the
    disk at every page.
    """
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    size = ctypes.c_size_t(address + num_bytes - first)
    _LIBC.madvise(ctypes.c_void_p(first), size, mmap.MADV_WILLNEED)


def is_in_memory(folder: Path) -> bool:
    """Whether the files of a folder are held in memory instead of on a disk (tmpfs)."""
    found, kind = "", ""
    for line in MOUNTS.read_text().splitlines():
        _, mount, file_system, *_ = line.split()
        if len(mount) >= len(found) and folder.resolve().is_relative_to(mount):
            found, kind = mount, file_system
    return kind in MEMORY_FILE_SYSTEMS


def _unpin(address: int) -> None:
    _check_cuda(torch.cuda.cudart().cudaHostUnregister(address))


def _check_cuda(status: int) -> None:
    if int(status):
        raise RuntimeError(
            f"CUDA could not pin or unpin rows in the host's memory (cudaError {int(status)}); "
            "give memory.uvm.load_factor more, or fewer rows the placement uvm"
        )


def _map_anonymous(num_bytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if num_bytes >= HUGE_PAGE_BYTES:  # rows are read at random: fewer misses of the TLB
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
