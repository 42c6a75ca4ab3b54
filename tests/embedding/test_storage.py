"""Maps that shrink in place: what is cut off is the system's again, what is before it stays."""

import errno
import mmap
import os
from pathlib import Path

import pytest
import torch

from edorec.embedding.storage import MappedBytes, forget_pages, is_in_memory
from edorec.memory_use import rss_bytes

MB = 1 << 20


@pytest.fixture(params=["anonymous", "file"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "file" else None


@pytest.mark.parametrize("num_bytes", [0, 1, 4095, 4096, 10_000, 5 * MB])
def test_bytes_start_at_zero(folder: Path | None, num_bytes: int) -> None:
    memory = MappedBytes(num_bytes, folder)
    assert memory.tensor.shape == (num_bytes,)
    assert memory.tensor.dtype == torch.uint8
    assert not memory.tensor.any()
    memory.tensor.fill_(7)
    assert (memory.tensor == 7).all()


@pytest.mark.parametrize("kept", [0, 1, 4096, 20 * MB + 123, 64 * MB - 1])
def test_shrinking_returns_memory_and_keeps_what_is_before(folder: Path | None, kept: int) -> None:
    size = 64 * MB
    memory = MappedBytes(size, folder)
    pattern = torch.arange(size, dtype=torch.int32).to(torch.uint8)
    before = rss_bytes()
    memory.tensor.copy_(pattern)
    assert rss_bytes() - before > 0.9 * size
    memory.shrink(kept)
    assert rss_bytes() - before < kept + 4 * MB
    assert memory.tensor.shape == (kept,)
    assert torch.equal(memory.tensor, pattern[:kept])
    memory.tensor.fill_(1)  # still writable
    if folder is not None:
        assert memory.file_number is not None
        pages = -(-kept // mmap.PAGESIZE) * mmap.PAGESIZE
        assert os.fstat(memory.file_number).st_size == min(pages, size)
        assert os.pread(memory.file_number, kept, 0) == bytes([1]) * kept


def test_shrinking_again_and_again(folder: Path | None) -> None:
    memory = MappedBytes(10 * MB, folder)
    memory.tensor.fill_(3)
    for kept in (8 * MB, 8 * MB, 5 * MB + 17, 4097, 0):
        memory.shrink(kept)
        assert memory.tensor.shape == (kept,)
        assert (memory.tensor == 3).all()


def test_a_map_does_not_grow(folder: Path | None) -> None:
    memory = MappedBytes(10 * MB, folder)
    memory.shrink(4096)
    with pytest.raises(ValueError, match="cannot shrink 4096 bytes to 4097"):
        memory.shrink(4097)


def test_the_tensor_keeps_the_map() -> None:
    tensor = MappedBytes(MB).tensor
    assert tensor.fill_(5).sum().item() == 5 * MB


def test_a_file_has_no_name(tmp_path: Path) -> None:
    memory = MappedBytes(MB, tmp_path)
    memory.tensor.fill_(1)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_found_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        MappedBytes(1 << 50, tmp_path)
    assert caught.value.errno == errno.ENOSPC


def test_forgotten_pages_come_back(tmp_path: Path) -> None:
    memory = MappedBytes(8 * MB, tmp_path)
    memory.tensor.fill_(5)
    before = rss_bytes()
    forget_pages(memory.tensor)
    assert before - rss_bytes() > 7 * MB
    assert (memory.tensor == 5).all()


def test_folders_that_are_memory(tmp_path: Path) -> None:
    assert not is_in_memory(Path("/"))
    mounts = Path("/proc/self/mounts").read_text()
    if " /dev/shm tmpfs " not in mounts:
        pytest.skip("/dev/shm is no tmpfs here")
    assert is_in_memory(Path("/dev/shm/tables"))
