"""Device, threads and arithmetic of a run."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

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


def device_of_process(name: str, *, local_rank: int, num_here: int) -> torch.device:
    """The device of one of several processes; on CUDA each has a GPU of its own.

    Args:
        name: ``train.device``.
        local_rank: of the process among those of this machine.
        num_here: processes on this machine.

    Raises:
        ConfigError: if they cannot train on GPUs here.
    """
    device = pick_device(name)
    if device.type == "cpu":
        return device
    num_gpus = torch.cuda.device_count()
    if num_gpus < num_here:
        raise ConfigError(
            [
                f"train.device: {num_here} processes on this machine need a GPU each, and torch "
                f"finds {num_gpus}; start fewer processes, or set it to cpu"
            ]
        )
    if not dist.is_nccl_available():
        raise ConfigError(
            [
                "train.device: several processes on CUDA need NCCL, which this build of torch does "
                "not have; start one process, or set it to cpu"
            ]
        )
    return torch.device("cuda", local_rank)


def backend_of(device: torch.device) -> str:
    """What connects processes with this device: gloo tensors on the CPU, NCCL those on GPUs."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


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
