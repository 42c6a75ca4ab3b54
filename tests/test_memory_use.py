"""Memory of the process."""

import mmap

import pytest

from edorec.memory_use import format_bytes, peak_rss_bytes, rss_bytes


def test_resident_memory_follows_what_is_touched() -> None:
    size = 64 * 1024 * 1024
    before = rss_bytes()
    with mmap.mmap(-1, size) as held:
        held.write(b"x" * size)
        assert rss_bytes() - before >= size * 0.95
        assert peak_rss_bytes() >= rss_bytes() * 0.99
    assert rss_bytes() - before < size / 2


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 KB"), (3.2e9, "3.2 GB"), (5e12, "5.0 TB")],
)
def test_bytes_for_people(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text
