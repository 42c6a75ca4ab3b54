"""Memory that this process holds, as the operating system counts it."""

import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def rss_bytes() -> int:
    """Resident memory now; where /proc is absent, its peak."""
    return _status_bytes("VmRSS") if STATUS.exists() else peak_rss_bytes()


def peak_rss_bytes() -> int:
    """Largest resident memory since the process started."""
    if STATUS.exists():
        return _status_bytes("VmHWM")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, others KiB


def _status_bytes(key: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{STATUS} has no line {key}")


def format_bytes(num_bytes: float) -> str:
    """Bytes for people: 512 B, 1.5 KB, 3.2 GB (powers of 1000)."""
    for unit in ("B", "KB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
