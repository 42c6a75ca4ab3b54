"""What ``benchmarks.scaling`` measures apart from training in several processes.

``alone`` times steps of one process at several batch sizes, on the path of several: torchrec packs,
permutes and deals look-ups and vectors to the one process there is. ``loopback`` times gloo between
processes that do nothing else.
"""

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from edorec.processes import Processes

# Elements of a tensor in the probe of a collective.
PROBE_SIZES = (16, 1 << 16, 1 << 18, 1 << 20)
NUM_PROBES = 40


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
