"""How many CPUs this process may use."""

import os


def num_cpus() -> int:
    """Those of the process's affinity where the system has one (Linux), else all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
