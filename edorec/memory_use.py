"""Memory that this process holds or may take, as the operating system counts it."""

import os
import re
import resource
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

STATUS = Path("/proc/self/status")
SMAPS = Path("/proc/self/smaps")
STATM = Path("/proc/self/statm")
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
UNITS = {
    "B": 1,
    **{f"{letter}B": 1000**k for k, letter in enumerate("KMGT", 1)},
    **{f"{letter}IB": 1024**k for k, letter in enumerate("KMGT", 1)},
}


def rss_bytes() -> int:
    """Resident memory now; where /proc is absent, its peak."""
    return _status_bytes("VmRSS") if STATUS.exists() else peak_rss_bytes()


def peak_rss_bytes() -> int:
    """Largest resident memory since the process started."""
    if STATUS.exists():
        return _status_bytes("VmHWM")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, others KiB


def mapped_file_bytes() -> int:
    """Resident memory that is mapped from files, tables on disk and libraries among them."""
    return int(STATM.read_text().split()[2]) * resource.getpagesize()


def resident_bytes_at(addresses: Collection[int]) -> int:
    """Resident memory of the maps that begin at these addresses; slower, as it walks all maps."""
    total, is_wanted = 0, False
    with SMAPS.open() as lines:
        for line in lines:
            if not line[0].isupper():  # the head of a map: addresses in hexadecimal, rights, file
                is_wanted = int(line.split("-", 1)[0], 16) in addresses
            elif is_wanted and line.startswith("Rss:"):
                total += int(line.split()[1]) * 1024
    return total


def _status_bytes(key: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{STATUS} has no line {key}")


@dataclass(frozen=True)
class MemoryUse:
    """Memory of what bounds this process.

    Attributes:
        bound: what it is: machine, control group, limit or device.
        total_bytes: of it.
        used_bytes: what is not free; cached files that can be dropped are free.
    """

    bound: str
    total_bytes: int
    used_bytes: int

    @property
    def free_bytes(self) -> int:
        """What may still be taken."""
        return max(self.total_bytes - self.used_bytes, 0)

    @property
    def free_share(self) -> float:
        """The same as a share."""
        return self.free_bytes / max(self.total_bytes, 1)


def memory_uses() -> list[MemoryUse]:
    """Of the machine, and of each control group with a limit that the process is in.

    Cached files count as free, in both: the system drops them where memory runs short. Without
    /proc, all memory of the machine is free.
    """
    if not MEMINFO.exists():
        return [MemoryUse("machine", os.sysconf("SC_PHYS_PAGES") * resource.getpagesize(), 0)]
    numbers = _numbers(MEMINFO)
    total, free = (numbers[key] * 1024 for key in ("MemTotal:", "MemAvailable:"))
    uses = [MemoryUse("machine", total, total - free)]
    for folder, (limit, used, prefix) in _control_groups():
        if all((folder / name).exists() for name in (limit, used, "memory.stat")):
            text = (folder / limit).read_text().strip()
            if text != "max":
                stat = _numbers(folder / "memory.stat")
                cached = stat[f"{prefix}inactive_file"] + stat[f"{prefix}active_file"]
                held = int((folder / used).read_text()) - cached
                uses.append(MemoryUse("control group", int(text), max(held, 0)))
    return uses


def _control_groups() -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Folders of the groups that the process is in, and their files: limit, use, and a prefix.

    A limit holds for all groups below, so those above the process's own count as well. In a
    container the path may be that on its host: then only the top, which is its own, is there.
    """
    for line in OWN_GROUPS.read_text().splitlines() if OWN_GROUPS.exists() else []:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            top, files = CGROUP, ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            top = CGROUP / "memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        else:
            continue
        own = top / path.lstrip("/")
        for folder in [own, *own.parents]:
            yield folder, files
            if folder == top:
                break


def free_memory_bytes() -> int:
    """Memory this process may still take, of the machine and of its control group."""
    return min(use.free_bytes for use in memory_uses())


def own_memory_bytes() -> int:
    """Resident memory of this process that is no page of a file; without /proc, its peak."""
    if not STATUS.exists():
        return peak_rss_bytes()
    return _status_bytes("RssAnon") + _status_bytes("RssShmem")


def _numbers(path: Path) -> dict[str, int]:
    """Lines of a name and a number, perhaps with a unit."""
    return {line.split()[0]: int(line.split()[1]) for line in path.read_text().splitlines()}


def format_bytes(num_bytes: float) -> str:
    """Bytes for people: 512 B, 1.5 KB, 3.2 GB (powers of 1000)."""
    for unit in ("B", "KB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def parse_bytes(text: str) -> int:
    """Bytes of a size such as 800MB, 1.5 GB or 64MiB.

    Raises:
        ValueError: if it is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", text.strip())
    if found is None or found[2].upper() not in UNITS:
        raise ValueError(f"wanted a number with a unit, such as 800MB or 1.5GiB, got {text!r}")
    return int(float(found[1]) * UNITS[found[2].upper()])


def parse_budget(budget: float | str) -> float | int:
    """A share (float, above 0, at most 1) or a number of bytes (int, at least 1).

    Raises:
        ValueError: if it is neither.
    """
    if isinstance(budget, str):
        num_bytes = parse_bytes(budget)
        if num_bytes < 1:
            raise ValueError(f"wanted at least 1 byte, got {budget!r}")
        return num_bytes
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget <= 1:
        raise ValueError(
            "wanted a share of FP32's bytes, above 0 and at most 1, or a size with a unit, such as "
            f"800MB, got {budget!r}"
        )
    return float(budget)
