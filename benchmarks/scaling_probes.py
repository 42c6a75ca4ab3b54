"""Parts of ``benchmarks.scaling``: timed steps, gloo's speed, and what else the machine does."""

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from edorec.processes import Processes

# Elements of a tensor in the probe of a collective.
PROBE_SIZES = (16, 1 << 16, 1 << 18, 1 << 20)
NUM_PROBES = 40
COPIED_BYTES = 64 << 20


def new_mlp(width: int, hidden: int) -> nn.Module:
    """The dense part."""
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))


def timed_steps(
    model: nn.Module, vectors: Callable[[int], torch.Tensor], *, steps: int, warm_steps: int
) -> list[float]:
    """Seconds of training steps.

    Args:
        model: vectors to an output; the optimizer is Adam.
        vectors: looks up those of a step.
        steps: to time.
        warm_steps: before them.
    """
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    seconds = []
    for step in range(warm_steps + steps):
        started = time.perf_counter()
        loss = model(vectors(step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    return seconds[warm_steps:]


def copying() -> float:
    """Bytes that one thread reads and writes per second."""
    source = torch.zeros(COPIED_BYTES // 4)
    target, seconds = torch.empty_like(source), []
    for _ in range(NUM_PROBES):
        started = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - started)
    return 2 * source.nbytes / median(seconds)


def loopback(processes: Processes) -> tuple[float, float]:
    """Bytes that a process sends per second while all do, and seconds of an empty collective.

    Vectors go by all-to-all and dense gradients by all-reduce, most bytes by the former.
    """
    times, sent = [], []
    for size in PROBE_SIZES:
        tensor, out = torch.zeros(size), torch.zeros(size)
        seconds = []
        for _ in range(NUM_PROBES):
            processes.barrier()
            started = time.perf_counter()
            dist.all_to_all_single(out, tensor)
            seconds.append(time.perf_counter() - started)
        times.append(median(seconds))
        sent.append(tensor.nbytes * (processes.world_size - 1) / processes.world_size)
    per_byte, _ = np.polyfit(sent, times, 1)
    return float(1 / per_byte), times[0]


def busy_seconds() -> tuple[float, float]:
    """CPU seconds of the whole machine, and those of this process and its ended children."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    busy = [int(fields[k]) for k in (0, 1, 2, 5, 6)]  # user, nice, system, interrupts
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own = sum(use.ru_utime + use.ru_stime for use in uses)
    return sum(busy) / os.sysconf("SC_CLK_TCK"), own
