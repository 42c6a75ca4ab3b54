"""Memory of the process."""

import mmap
from pathlib import Path

import pytest

from edorec.memory_use import format_bytes, free_memory_bytes, peak_rss_bytes, rss_bytes


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


GB = 10**9


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /proc and /sys/fs/cgroup, of a machine with 8 GiB available."""
    (tmp_path / "meminfo").write_text("MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    monkeypatch.setattr("edorec.memory_use.MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr("edorec.memory_use.CGROUP", tmp_path)
    (tmp_path / "groups").write_text("5:cpu,memory:/\n0::/\n")
    monkeypatch.setattr("edorec.memory_use.OWN_GROUPS", tmp_path / "groups")
    return tmp_path


def test_free_memory_is_what_the_machine_has_available(system: Path) -> None:
    assert free_memory_bytes() == 8 * 2**30
    (system / "memory.max").write_text("max\n")
    (system / "memory.current").write_text("5\n")
    (system / "memory.stat").write_text("inactive_file 1\nactive_file 1\n")
    assert free_memory_bytes() == 8 * 2**30


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("limited", ["", "jobs", "jobs/one"])
def test_a_limit_of_any_group_above_the_process_counts(
    system: Path, version: int, limited: str
) -> None:
    (system / "groups").write_text(f"{'3:memory' if version == 1 else '0:'}:/jobs/one\n")
    top = system / "memory" if version == 1 else system
    (top / limited).mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, number in zip(names, (3 * GB, GB), strict=True):
        (top / limited / name).write_text(f"{number}\n")
    prefix = "total_" if version == 1 else ""
    (top / limited / "memory.stat").write_text(f"{prefix}inactive_file 0\n{prefix}active_file 0\n")
    assert free_memory_bytes() == 2 * GB


@pytest.mark.parametrize("version", [1, 2])
def test_free_memory_is_limited_by_the_control_group_without_its_cached_files(
    system: Path, version: int
) -> None:
    if version == 2:
        folder, limit, used, prefix = system, "memory.max", "memory.current", ""
    else:
        folder, limit, used = system / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        prefix = "total_"
        folder.mkdir()
    (folder / limit).write_text(f"{4 * GB}\n")
    (folder / used).write_text(f"{3 * GB}\n")
    (folder / "memory.stat").write_text(
        f"anon {GB}\n{prefix}inactive_file {GB}\n{prefix}active_file {GB // 2}\n"
    )
    assert free_memory_bytes() == 4 * GB - 3 * GB + GB + GB // 2
    (folder / used).write_text(f"{9 * GB}\n")
    assert free_memory_bytes() == 0


def test_free_memory_is_that_of_the_machine_without_proc(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edorec.memory_use.MEMINFO", system / "absent")
    assert free_memory_bytes() > 2**28
