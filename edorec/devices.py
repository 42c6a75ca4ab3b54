"""Device, threads and arithmetic of a run."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from edorec.cpus import num_cpus
from edorec.errors import ConfigError


def pick_device(name: str) -> torch.device:
    """The device that ``train.device`` asks for.

    Raises:
        ConfigError: if it asks for CUDA and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            ["train.device is cuda, but torch finds no CUDA device; set it to cpu or auto"]
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def set_num_threads(num_threads: int | None, *, num_processes: int = 1) -> int:
    """Sets torch's CPU threads and returns them.

    Args:
        num_threads: of each process; default one a CPU that this process may use.
        num_processes: that share those CPUs by default.
    """
    if num_threads is None:
        num_threads = max(1, num_cpus() // num_processes)
    torch.set_num_threads(num_threads)
    return num_threads


def check_precision(key: str, precision: str, device: torch.device) -> None:
    """Refuses an arithmetic that the device does not have.

    Raises:
        ConfigError: naming ``key``.
    """
    if precision == "tf32" and device.type != "cuda":
        raise ConfigError([f"{key} is tf32, which only CUDA devices have; use fp32 or bf16"])


@contextmanager
def dense_arithmetic(precision: str, device: torch.device) -> Iterator[None]:
    """Dense arithmetic inside the block: fp32, tf32 (CUDA) or bf16 by autocast."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
