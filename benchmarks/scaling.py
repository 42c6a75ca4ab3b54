"""What several processes send, hold and train: 1 process against 2, table-wise and row-wise.

Criteo-shaped: 26 INT8 tables, Zipf rows, one global batch of 4096 rows a step, an MLP behind the
tables. Rows per second are those of the slowest process; bytes sent are what a process has written
(/proc/self/io) in training steps, beside what the formulas of docs/distributed.md expect.

On one machine two processes share its cores and its memory: their rows per second show the cost of
sharding, not the gain of a second machine.

    python -m benchmarks.scaling [--quick] [--json FILE]
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.distributed.launcher.api import elastic_launch
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.checkpoint import zipf_rows
from benchmarks.figures import Figure, write_figures
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.row_tables import EdoTableConfig
from edorec.embedding.sharded_tables import ShardedTables, place_tables
from edorec.launch import launch_config
from edorec.processes import Processes, joined

NUM_TABLES, DIM, BATCH, HIDDEN = 26, 16, 4096, 256
ROWS, QUICK_ROWS = 1_000_000, 50_000
STEPS, QUICK_STEPS, WARM_STEPS = 60, 20, 5
NUM_BATCHES = 32
ID_BYTES, LENGTH_BYTES, NUMBER_BYTES = 8, 4, 4
NAMES = [f"f{k}" for k in range(NUM_TABLES)]


def expected_bytes(sharding: str, world_size: int) -> float:
    """Bytes that a process sends in a step, one id a feature: look-ups, vectors, dense gradients.

    A share (W - 1) / W of what it deals goes to others. Row-wise, each process sends partial sums
    for all rows of the batch, and gets the gradient of each.
    """
    away = (world_size - 1) / world_size
    rows = BATCH / world_size
    vectors = rows * NUM_TABLES * DIM * NUMBER_BYTES
    ids = rows * NUM_TABLES * (ID_BYTES + LENGTH_BYTES)
    if sharding == "row_wise":
        ids = rows * NUM_TABLES * (ID_BYTES + LENGTH_BYTES * world_size)
        vectors *= world_size
    num_weights = NUM_TABLES * DIM * HIDDEN + 2 * HIDDEN + 1
    return away * (ids + 2 * vectors + 2 * num_weights * NUMBER_BYTES)


def build(sharding: str, rows: int, processes: Processes) -> Any:
    """Tables in one process, or this process's part of them."""
    configs = [
        EdoTableConfig(name=name, num_embeddings=rows, embedding_dim=DIM, format="int8")
        for name in NAMES
    ]
    settings: dict[str, Any] = {"initial_accumulator": 1e-5}
    if processes.world_size == 1:
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


def batches(rows: int, processes: Processes) -> list[KeyedJaggedTensor]:
    """This process's part of the global batches."""
    rng, size = np.random.default_rng(0), BATCH // processes.world_size
    own = slice(processes.rank * size, (processes.rank + 1) * size)
    drawn = []
    for _ in range(NUM_BATCHES):
        values = zipf_rows(rng, rows, NUM_TABLES * BATCH).reshape(NUM_TABLES, BATCH)[:, own]
        lengths = torch.ones(values.size, dtype=torch.int32)
        flat = torch.from_numpy(np.ascontiguousarray(values).reshape(-1))
        drawn.append(KeyedJaggedTensor(NAMES, flat, lengths=lengths))
    return drawn


def written_bytes() -> int:
    """Bytes that this process has written, to sockets above all."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


def measure(sharding: str, rows: int, steps: int) -> dict[str, Any] | None:
    """Trains in the processes that are there; the first returns seconds, bytes sent and held."""
    torch.set_num_threads(1)
    with joined() as processes:
        tables = build(sharding, rows, processes)
        mlp = torch.nn.Sequential(
            torch.nn.Linear(NUM_TABLES * DIM, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 1)
        )
        optimizer = torch.optim.Adam(mlp.parameters(), fused=True)
        model, drawn = processes.data_parallel(mlp), batches(rows, processes)
        seconds, sent = [], 0
        for step in range(WARM_STEPS + steps):
            if step == WARM_STEPS:
                sent = written_bytes()
            started = time.perf_counter()
            loss = model(tables(drawn[step % NUM_BATCHES]).values()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seconds.append(time.perf_counter() - started)
        sent = written_bytes() - sent
        state = tables.tables_state().values()
        held = sum(band.nbytes for table in state for band in table.values())
        found = processes.gather((median(seconds[WARM_STEPS:]), sent / steps, held))
    if not found:
        return None
    return {
        "rows_per_second": BATCH / max(time for time, _, _ in found),
        "sent_bytes": max(sent for _, sent, _ in found),
        "table_bytes": [held for _, _, held in found],
    }


def measure_in(num_processes: int, sharding: str, rows: int, steps: int) -> dict[str, Any]:
    """``measure`` in new processes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        worker = ["-m", "benchmarks.scaling", "--worker", sharding, str(rows), str(steps)]
        elastic_launch(launch_config(num_processes), sys.executable)(*worker, str(path))
        found: dict[str, Any] = json.loads(path.read_text())
    return found


def figures(rows: int, steps: int) -> list[Figure]:
    """One process, then two in both ways."""
    one = measure_in(1, "table_wise", rows, steps)
    found = [Figure("1 process: rows per second", one["rows_per_second"], "rows/s")]
    for sharding in ("table_wise", "row_wise"):
        two, name = measure_in(2, sharding, rows, steps), sharding.replace("_", "-")
        expected = expected_bytes(sharding, 2)
        held = two["table_bytes"]
        found += [
            Figure(f"2 processes, {name}: rows per second", two["rows_per_second"], "rows/s"),
            Figure(
                f"2 processes, {name}: rows per second over those of 1",
                two["rows_per_second"] / one["rows_per_second"],
                "ratio",
            ),
            Figure(f"2 processes, {name}: sent by one in a step", two["sent_bytes"], "bytes"),
            Figure(
                f"2 processes, {name}: sent over expected",
                two["sent_bytes"] / expected,
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
    return found


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="smaller tables, fewer steps")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        sharding, rows, steps, path = args.worker
        found = measure(sharding, int(rows), int(steps))
        if found is not None:
            Path(path).write_text(json.dumps(found))
        return
    sizes = (QUICK_ROWS, QUICK_STEPS) if args.quick else (ROWS, STEPS)
    write_figures(figures(*sizes), json_path=args.json)


if __name__ == "__main__":
    main()
