"""What several processes send, hold and train: 1 process against 2, table-wise and row-wise.

Criteo-shaped: 26 INT8 tables, Zipf rows, one global batch of 4096 rows a step, an MLP behind the
tables. Rows per second are those of the slowest process; bytes sent are what a process has written
(/proc/self/io) in training steps, beside what the formulas of docs/distributed.md expect.

On one machine two processes share its cores and its memory: their rows per second show the cost of
sharding, not the gain of a second machine. How much slower each is for that reason alone is
measured by two that train beside each other without communication. ``scaling_model`` expects the
time of a step from that, from steps of one process and from gloo's speed.

    python -m benchmarks.scaling [--quick] [--json FILE]
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.launcher.api import elastic_launch
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.checkpoint import zipf_rows
from benchmarks.figures import Figure, write_figures
from benchmarks.scaling_model import (
    DIM,
    HIDDEN,
    NUM_TABLES,
    SHARDINGS,
    Compute,
    Network,
    fit_compute,
    sent_bytes,
    step_seconds,
)
from benchmarks.scaling_probes import busy_seconds, copying, loopback, new_mlp, timed_steps
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.row_tables import EdoTableConfig
from edorec.embedding.sharded_tables import ShardedTables, place_tables
from edorec.launch import launch_config
from edorec.processes import ONE, Processes, joined

BATCH = 4096
ROWS, QUICK_ROWS = 1_000_000, 50_000
STEPS, QUICK_STEPS, WARM_STEPS = 60, 30, 5
NUM_BATCHES = 32
NUM_ROUNDS = 2
ALONE_ROWS = (512, 1024, 2048, 4096)
# By name the number of processes and what they do.
RUNS = {
    "one": (1, "table_wise"),
    "alone": (1, "alone"),
    "apart": (2, "apart"),
    "probe": (2, "probe"),
    "table_wise": (2, "table_wise"),
    "row_wise": (2, "row_wise"),
}
NAMES = [f"f{k}" for k in range(NUM_TABLES)]


def build(sharding: str, rows: int, processes: Processes, *, may_be_plain: bool = True) -> Any:
    """This process's part of the tables; in one process all, without torchrec's if it may be."""
    configs = [
        EdoTableConfig(name=name, num_embeddings=rows, embedding_dim=DIM, format="int8")
        for name in NAMES
    ]
    settings: dict[str, Any] = {"initial_accumulator": 1e-5}
    if processes.world_size == 1 and may_be_plain:
        return EdoEmbeddingBagCollection(configs, **settings)
    placements = place_tables(
        configs,
        dict.fromkeys(NAMES, rows),
        bag_sizes=dict.fromkeys(NAMES, 1.0),
        sharding=sharding,
        world_size=processes.world_size,
    )
    pooling = dict.fromkeys(NAMES, PoolingType.SUM)
    return ShardedTables(
        configs,
        pooling=pooling,
        placements=placements,
        processes=processes,
        device=torch.device("cpu"),
        **settings,
    )


def batches(rows: int, processes: Processes, batch: int = BATCH) -> list[KeyedJaggedTensor]:
    """This process's part of the global batches."""
    rng, size = np.random.default_rng(0), batch // processes.world_size
    own = slice(processes.rank * size, (processes.rank + 1) * size)
    drawn = []
    for _ in range(NUM_BATCHES):
        values = zipf_rows(rng, rows, NUM_TABLES * batch).reshape(NUM_TABLES, batch)[:, own]
        lengths = torch.ones(values.size, dtype=torch.int32)
        flat = torch.from_numpy(np.ascontiguousarray(values).reshape(-1))
        drawn.append(KeyedJaggedTensor(NAMES, flat, lengths=lengths))
    return drawn


def written_bytes() -> int:
    """Bytes that this process has written, to sockets above all."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


def train(sharding: str, rows: int, steps: int) -> dict[str, Any] | None:
    """Trains in the processes that are there; the first returns seconds, bytes sent and held."""
    with joined() as processes:
        tables, drawn = build(sharding, rows, processes), batches(rows, processes)
        model = processes.data_parallel(new_mlp(NUM_TABLES * DIM, HIDDEN))
        sent = 0

        def vectors(step: int) -> torch.Tensor:
            nonlocal sent
            if step == WARM_STEPS:
                sent = written_bytes()
            return _look_up(tables, drawn, step)

        seconds = median(timed_steps(model, vectors, steps=steps, warm_steps=WARM_STEPS))
        sent = written_bytes() - sent
        state = tables.tables_state().values()
        held = sum(band.nbytes for table in state for band in table.values())
        found = processes.gather((seconds, sent / steps, held))
    if not found:
        return None
    return {
        "seconds": max(seconds for seconds, _, _ in found),
        "sent_bytes": max(sent for _, sent, _ in found),
        "table_bytes": [held for _, _, held in found],
    }


def alone(rows: int, steps: int, batch_sizes: Sequence[int]) -> dict[str, Any]:
    """Seconds of steps of one process on the path of several, by batch size; and without tables."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    tables = build("table_wise", rows, ONE, may_be_plain=False)
    mlp = new_mlp(NUM_TABLES * DIM, HIDDEN)
    found: dict[str, Any] = {"step": [], "dense": [], "bytes_per_second": copying()}
    for size in batch_sizes:
        drawn = batches(rows, ONE, size)
        inputs = torch.randn(size, NUM_TABLES * DIM, requires_grad=True)
        kinds: dict[str, Callable[[int], torch.Tensor]] = {
            "step": partial(_look_up, tables, drawn),
            "dense": partial(_nothing, inputs),
        }
        for kind, vectors in kinds.items():
            seconds = timed_steps(mlp, vectors, steps=steps, warm_steps=WARM_STEPS)
            found[kind].append(median(seconds))
    dist.destroy_process_group()
    return found


def _look_up(tables: Any, drawn: list[KeyedJaggedTensor], step: int) -> torch.Tensor:
    values: torch.Tensor = tables(drawn[step % NUM_BATCHES]).values()
    return values


def _nothing(inputs: torch.Tensor, _step: int) -> torch.Tensor:
    return inputs


def apart(rows: int, steps: int) -> dict[str, Any] | None:
    """As ``alone`` with half a batch, in processes that train at once and do not communicate."""
    found = alone(rows, 2 * steps, [BATCH // 2])
    return found if os.environ["RANK"] == "0" else None


def probe() -> dict[str, Any]:
    """Of gloo between the processes that are there."""
    with joined() as processes:
        bytes_per_second, latency = loopback(processes)
    return {"bytes_per_second": bytes_per_second, "latency": latency}


def work(kind: str, rows: int, steps: int) -> dict[str, Any] | None:
    """One of the measurements, in a process of its own."""
    torch.set_num_threads(1)
    if kind == "alone":
        return alone(rows, steps, ALONE_ROWS)
    if kind == "apart":
        return apart(rows, steps)
    if kind == "probe":
        return probe()
    return train(kind, rows, steps)


def measure_in(num_processes: int, kind: str, rows: int, steps: int) -> dict[str, Any]:
    """``work`` in new processes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        worker = ["-m", "benchmarks.scaling", "--worker", kind, str(rows), str(steps)]
        elastic_launch(launch_config(num_processes), sys.executable)(*worker, str(path))
        found: dict[str, Any] = json.loads(path.read_text())
    return found


def measure(rows: int, steps: int) -> dict[str, dict[str, Any]]:
    """All of it in turns, and of each figure the fastest: others may use the machine too."""
    found: dict[str, dict[str, Any]] = {}
    for _ in range(NUM_ROUNDS):
        for name, (num_processes, kind) in RUNS.items():
            new = measure_in(num_processes, kind, rows, steps)
            old = found.setdefault(name, new)
            for key, value in new.items():
                if key == "bytes_per_second":
                    old[key] = max(old[key], value)
                elif key in ("step", "dense"):
                    old[key] = [min(pair) for pair in zip(old[key], value, strict=True)]
                elif key in ("seconds", "latency"):
                    old[key] = min(old[key], value)
    return found


def model_figures(
    found: dict[str, dict[str, Any]],
) -> tuple[list[Figure], Compute, Network, float]:
    """What the model of ``scaling_model`` is fed, and the same as figures."""
    single, gloo = found["alone"], found["probe"]
    compute = fit_compute(
        list(ALONE_ROWS),
        single["step"],
        single["dense"],
        memory_bytes_per_second=single["bytes_per_second"],
    )
    contention = found["apart"]["step"][0] / single["step"][ALONE_ROWS.index(BATCH // 2)]
    network = Network(gloo["bytes_per_second"], gloo["latency"])
    figures = [
        Figure("alone: a step without rows", compute.fixed_seconds, "s"),
        Figure("alone: dense part of a row", compute.dense_seconds, "s"),
        Figure("alone: look-ups of a row", compute.lookup_seconds, "s"),
        Figure("alone: memory read or written", compute.memory_bytes_per_second, "bytes/s"),
        Figure("2 apart: time of a step over one alone", contention, "ratio"),
        Figure("loopback: sent by each of 2 at once", network.bytes_per_second, "bytes/s"),
        Figure("loopback: a collective without bytes", network.latency_seconds, "s"),
    ]
    return figures, compute, network, contention


def figures(rows: int, steps: int) -> list[Figure]:
    """One process, then two in both ways, and what the model expects of them."""
    started, (busy, own) = time.monotonic(), busy_seconds()
    measured = measure(rows, steps)
    (busy_then, own_then), seconds = busy_seconds(), time.monotonic() - started
    others = ((busy_then - busy) - (own_then - own)) / seconds
    fed, compute, network, contention = model_figures(measured)
    one = measured["one"]
    found = [Figure("1 process: rows per second", BATCH / one["seconds"], "rows/s")]
    for sharding in SHARDINGS:
        two, name = measured[sharding], sharding.replace("_", "-")
        expected = step_seconds(
            compute, network, sharding=sharding, world_size=2, batch=BATCH, contention=contention
        )
        held = two["table_bytes"]
        found += [
            Figure(f"2 processes, {name}: rows per second", BATCH / two["seconds"], "rows/s"),
            Figure(
                f"2 processes, {name}: rows per second over those of 1",
                one["seconds"] / two["seconds"],
                "ratio",
            ),
            Figure(
                f"2 processes, {name}: time of a step expected over measured",
                expected / two["seconds"],
                "ratio",
            ),
            Figure(f"2 processes, {name}: sent by one in a step", two["sent_bytes"], "bytes"),
            Figure(
                f"2 processes, {name}: sent over expected",
                two["sent_bytes"] / sent_bytes(sharding, 2, BATCH),
                "ratio",
                at_least=0.8,
                at_most=1.25,
            ),
            *(
                Figure(f"2 processes, {name}: table bytes of rank {rank}", size, "bytes")
                for rank, size in enumerate(held)
            ),
            Figure(
                f"2 processes, {name}: largest share of the tables",
                max(held) / sum(one["table_bytes"]),
                "ratio",
                at_most=0.55,
            ),
        ]
    return [*found, *fed, Figure("CPUs that other programs used meanwhile", others, "CPUs")]


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="smaller tables, fewer steps")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        kind, rows, steps, path = args.worker
        found = work(kind, int(rows), int(steps))
        if found is not None:
            Path(path).write_text(json.dumps(found))
        return
    sizes = (QUICK_ROWS, QUICK_STEPS) if args.quick else (ROWS, STEPS)
    write_figures(figures(*sizes), json_path=args.json)


if __name__ == "__main__":
    main()
