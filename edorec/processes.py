"""The processes of a run: one, or several that torchrun has started.

Everything that differs between one process and several is a method here, which does next to nothing
in one process. Ranks count from 0; the first writes files and shows progress.
"""

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from edorec.devices import backend_of, device_of_process
from edorec.errors import ConfigError

T = TypeVar("T")
# A process that ends takes the others along at once; this is for one that hangs.
TIMEOUT = timedelta(minutes=30)
PREPARE_TIMEOUT = timedelta(days=7)
# Longer than torchrun takes to end all processes once one has failed.
GRACE_SECONDS = 60
LOST = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe", "Timed out waiting")


@dataclass(frozen=True)
class Processes:
    """This process among those of the run.

    Attributes:
        rank: of this one.
        world_size: how many there are.
        local_rank: of this one among those of its machine.
        num_here: how many of them are on this machine.
        device: of this one, None in one process.
        store: what they share besides tensors, None in one process.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    num_here: int = 1
    device: torch.device | None = None
    store: Any = None

    @property
    def is_first(self) -> bool:
        """Whether this one writes and shows what all have done."""
        return self.rank == 0

    @property
    def ranks_here(self) -> range:
        """Ranks of the processes on this machine; torchrun numbers machine after machine."""
        first = self.rank - self.local_rank
        return range(first, first + self.num_here)

    def barrier(self) -> None:
        """Waits until all are here."""
        if self.world_size > 1:
            dist.barrier()

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all processes, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether it is true in one of them."""
        return bool(self.sum(torch.tensor(int(flag))))

    def gather(self, value: T) -> list[T]:
        """The values of all processes by rank; for the first, the others get none."""
        if self.world_size == 1:
            return [value]
        values: list[Any] | None = [None] * self.world_size if self.is_first else None
        dist.gather_object(value, values)
        return values or []

    def collect(self, name: str, value: T) -> list[T]:
        """As ``gather``, for values that JSON can hold; from any thread, beside other calls.

        Args:
            name: of these values; the same everywhere, and another in each call.
            value: of this process.
        """
        if self.world_size == 1:
            return [value]
        if not self.is_first:
            self.store.set(f"{name}/{self.rank}", json.dumps(value))
            return []
        keys = [f"{name}/{rank}" for rank in range(1, self.world_size)]
        self.store.wait(keys, TIMEOUT)
        values = [value, *(json.loads(self.store.get(key)) for key in keys)]
        for key in keys:
            self.store.delete_key(key)
        return values

    def from_first(self, make: Callable[[], T]) -> T:
        """What ``make`` returns in the first process, the only one that calls it."""
        if self.world_size == 1:
            return make()
        values: list[Any] = [make() if self.is_first else None]
        dist.broadcast_object_list(values)
        result: T = values[0]
        return result

    def first_then_all(self, name: str, make: Callable[[], T]) -> T:
        """What ``make`` returns here, called when the first has finished it, however late."""
        if self.is_first:
            result = make()
            if self.store is not None:
                self.store.set(name, b"done")
            return result
        self.store.wait([name], PREPARE_TIMEOUT)
        return make()

    def data_parallel(self, module: nn.Module) -> nn.Module:
        """The module with its gradients averaged over all processes in each backward pass."""
        if self.world_size == 1 or not any(p.requires_grad for p in module.parameters()):
            return module
        return DistributedDataParallel(module, forward_sync_buffers=False)

    def seed_step(self, seed: int, step: int) -> None:
        """Random numbers (dropout) of several processes follow from seed, step and rank alone."""
        if self.world_size > 1:
            sequence = np.random.SeedSequence([seed, step, self.rank])
            torch.manual_seed(int(sequence.generate_state(1)[0]))


ONE = Processes()


def num_started() -> int:
    """How many processes torchrun has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined(device_name: str = "cpu") -> Iterator[Processes]:
    """This process among those that torchrun has started; ``ONE`` without it.

    Where one fails, its error alone is shown: the others wait to be ended by torchrun.

    Args:
        device_name: ``train.device``; on CUDA each process has a GPU of its own.

    Raises:
        ConfigError: if there are too few GPUs, or processes have devices of different kinds.
    """
    if num_started() == 1:
        yield ONE
        return
    store, rank, world_size = next(rendezvous("env://"))
    groups, shared = PrefixStore("groups", store), PrefixStore("edorec", store)
    local_rank = int(os.environ.get("LOCAL_RANK", str(rank)))
    num_here = int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size)))
    try:
        device = device_of_process(device_name, local_rank=local_rank, num_here=num_here)
        _check_same_kind(device, shared)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(
            backend_of(device), store=groups, rank=rank, world_size=world_size, timeout=TIMEOUT
        )
        yield Processes(rank, world_size, local_rank, num_here, device, shared)
        gc.collect()  # what still holds the group, which would abort the process at its end
        dist.barrier()
    except Exception as error:
        _wait_for_others(error, rank, world_size, shared)
        raise
    dist.destroy_process_group()


def _check_same_kind(device: torch.device, store: Any) -> None:
    """Refuses machines of which some have GPUs and others do not.

    Raises:
        ConfigError: if another process was first with another kind of device.
    """
    kind = store.compare_set("device", "", device.type).decode()
    if kind != device.type:
        raise ConfigError(
            [
                f"train.device is auto, which is {device.type} on this machine and {kind} on "
                "another; set it to cpu, or take machines with GPUs alone"
            ]
        )


def _wait_for_others(error: Exception, rank: int, world_size: int, store: Any) -> None:
    """Returns in the process whose error is to be shown, which is one that others do not follow."""
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST):
        time.sleep(GRACE_SECONDS)
    if store.compare_set("failed", "", str(rank)) != str(rank).encode():
        time.sleep(GRACE_SECONDS)
        os._exit(1)
    sys.stderr.write(f"process {rank} of {world_size}:\n")
