"""Maps that shrink in place: what is cut off is the system's again, what is before it stays."""

import mmap
from pathlib import Path

import pytest
import torch

from edorec.embedding.storage import MappedBytes
from edorec.memory_use import rss_bytes

MB = 1 << 20


@pytest.fixture(params=["anonymous", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "rows" if request.param == "file" else None


@pytest.mark.parametrize("num_bytes", [0, 1, 4095, 4096, 10_000, 5 * MB])
def test_bytes_start_at_zero(path: Path | None, num_bytes: int) -> None:
    memory = MappedBytes(num_bytes, path)
    assert memory.tensor.shape == (num_bytes,)
    assert memory.tensor.dtype == torch.uint8
    assert not memory.tensor.any()
    memory.tensor.fill_(7)
    assert (memory.tensor == 7).all()


@pytest.mark.parametrize("kept", [0, 1, 4096, 20 * MB + 123, 64 * MB - 1])
def test_shrinking_returns_memory_and_keeps_what_is_before(path: Path | None, kept: int) -> None:
    size = 64 * MB
    memory = MappedBytes(size, path)
    pattern = torch.arange(size, dtype=torch.int32).to(torch.uint8)
    before = rss_bytes()
    memory.tensor.copy_(pattern)
    assert rss_bytes() - before > 0.9 * size
    memory.shrink(kept)
    assert rss_bytes() - before < kept + 4 * MB
    assert memory.tensor.shape == (kept,)
    assert torch.equal(memory.tensor, pattern[:kept])
    memory.tensor.fill_(1)  # still writable
    if path is not None:
        pages = -(-kept // mmap.PAGESIZE) * mmap.PAGESIZE
        assert path.stat().st_size == min(pages, size)
        assert path.read_bytes()[:kept] == bytes([1]) * kept


def test_shrinking_again_and_again(path: Path | None) -> None:
    memory = MappedBytes(10 * MB, path)
    memory.tensor.fill_(3)
    for kept in (8 * MB, 8 * MB, 5 * MB + 17, 4097, 0):
        memory.shrink(kept)
        assert memory.tensor.shape == (kept,)
        assert (memory.tensor == 3).all()


def test_a_map_does_not_grow(path: Path | None) -> None:
    memory = MappedBytes(10 * MB, path)
    memory.shrink(4096)
    with pytest.raises(ValueError, match="cannot shrink 4096 bytes to 4097"):
        memory.shrink(4097)


def test_the_tensor_keeps_the_map() -> None:
    tensor = MappedBytes(MB).tensor
    assert tensor.fill_(5).sum().item() == 5 * MB
