"""How many rows per second several processes train, on paper: a model of a step.

A step takes as long as the busiest process:

    contention * (fixed + rows * (dense + look_up * imbalance) + partial sums / memory bandwidth)
        + collectives * latency + sent bytes / bandwidth

``fixed``, ``dense`` and ``look_up`` are measured in one process, bytes follow from formulas, the
imbalance from simulated Zipf ids; ``contention`` is how much slower a process is beside others on
its machine without talking to them. Row-wise, each process has a partial sum for every row of all,
which memory passes six times: written, copied to be sent, added up, and its gradient likewise.
Nothing overlaps, so the model is on the careful side.

    python -m benchmarks.scaling_model [--measured docs/results/scaling.json]

prints what it says for 8 machines with the CPU that was measured, and for 8 GPUs under assumptions.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.checkpoint import zipf_rows
from edorec.embedding.shards import NUM_BUCKETS, deal_buckets

NUM_TABLES, DIM, HIDDEN = 26, 16, 256
NUM_WEIGHTS = NUM_TABLES * DIM * HIDDEN + 2 * HIDDEN + 1
ID_BYTES, LENGTH_BYTES, NUMBER_BYTES = 8, 4, 4
# Sizes, lengths and ids of look-ups; vectors and their gradients; dense gradients.
NUM_COLLECTIVES = 6
PASSES = 6
SHARDINGS = ("table_wise", "row_wise")
NUM_DRAWS, DRAWN_ROWS = 1_000_000, 1_000_000
MEASURED = Path(__file__).parent.parent / "docs" / "results" / "scaling.json"


@dataclass(frozen=True)
class Compute:
    """What one process needs without communication.

    Attributes:
        fixed_seconds: of each step.
        dense_seconds: of each row, in the dense part.
        lookup_seconds: of each row, in the tables.
        memory_bytes_per_second: that are read or written.
    """

    fixed_seconds: float
    dense_seconds: float
    lookup_seconds: float
    memory_bytes_per_second: float


@dataclass(frozen=True)
class Network:
    """What carries a process's bytes.

    Attributes:
        bytes_per_second: that it sends while all do.
        latency_seconds: of a collective without bytes.
    """

    bytes_per_second: float
    latency_seconds: float


def sent_bytes(sharding: str, world_size: int, batch: int) -> float:
    """Bytes that a process sends in a step of ``batch`` rows of all, one id a feature.

    A share (W - 1) / W of what it deals goes to others. Row-wise, each process sends partial sums
    for all rows of the batch, and gets the gradient of each.
    """
    away = (world_size - 1) / world_size
    rows = batch / world_size
    vectors = rows * NUM_TABLES * DIM * NUMBER_BYTES
    ids = rows * NUM_TABLES * (ID_BYTES + LENGTH_BYTES)
    if sharding == "row_wise":
        ids = rows * NUM_TABLES * (ID_BYTES + LENGTH_BYTES * world_size)
        vectors *= world_size
    return away * (ids + 2 * vectors + 2 * NUM_WEIGHTS * NUMBER_BYTES)


def imbalance(sharding: str, world_size: int) -> float:
    """Look-ups of the busiest process over the mean, with one id a feature.

    Table-wise, tables are as busy as each other; row-wise, ids are drawn and dealt as in a run.
    """
    if sharding == "table_wise":
        return -(-NUM_TABLES // world_size) * world_size / NUM_TABLES
    owners = np.empty((world_size, NUM_BUCKETS), np.int64)
    for first in range(world_size):
        for rank, shard in enumerate(deal_buckets(world_size, first=first)):
            owners[first, list(shard.buckets)] = rank
    rng, lookups = np.random.default_rng(0), np.zeros(world_size)
    for table in range(NUM_TABLES):
        rows = zipf_rows(rng, DRAWN_ROWS, NUM_DRAWS // NUM_TABLES)
        ranks = owners[table % world_size, rows % NUM_BUCKETS]
        lookups += np.bincount(ranks, minlength=world_size)
    return float(lookups.max() / lookups.mean())


def step_seconds(
    compute: Compute,
    network: Network,
    *,
    sharding: str,
    world_size: int,
    batch: int,
    contention: float = 1.0,
) -> float:
    """Of a step of ``batch`` rows of all processes; see the head of the module."""
    rows = batch / world_size
    lookups = compute.lookup_seconds * imbalance(sharding, world_size)
    own = compute.fixed_seconds + rows * (compute.dense_seconds + lookups)
    if sharding == "row_wise":
        partial_sums = rows * (world_size - 1) * NUM_TABLES * DIM * NUMBER_BYTES
        own += PASSES * partial_sums / compute.memory_bytes_per_second
    sent = sent_bytes(sharding, world_size, batch) / network.bytes_per_second
    return contention * own + NUM_COLLECTIVES * network.latency_seconds + sent


def fit_compute(
    rows: list[int],
    step_seconds: list[float],
    dense_seconds: list[float],
    *,
    memory_bytes_per_second: float,
) -> Compute:
    """Straight lines through the times of steps, and of their dense part alone.

    Args:
        rows: of steps.
        step_seconds: of whole steps.
        dense_seconds: of steps without tables.
        memory_bytes_per_second: see ``Compute``.
    """
    per_row, fixed = np.polyfit(rows, step_seconds, 1)
    dense, _ = np.polyfit(rows, dense_seconds, 1)
    return Compute(float(fixed), float(dense), float(per_row - dense), memory_bytes_per_second)


def gpu(efficiency: float) -> Compute:
    """A guess at a GPU from its data sheet (H100: 3.35 TB/s, 67 TFLOP/s in FP32), 1 ms a step.

    INT8 rows: 24 bytes are read, and read and written in the update; a vector and its gradient are
    written and read; 64 bytes are for sorting.

    Args:
        efficiency: share of the data sheet that is reached.
    """
    moved = NUM_TABLES * (3 * 24 + 4 * DIM * NUMBER_BYTES + 64)
    work = 3 * 2 * NUM_WEIGHTS
    memory = 3.35e12 * efficiency
    return Compute(1e-3, work / (67e12 * efficiency), moved / memory, memory)


def main() -> None:
    """Prints what the model says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--measured", type=Path, default=MEASURED, help="of benchmarks.scaling")
    figures = json.loads(parser.parse_args().measured.read_text())["figures"]
    found = {figure["name"]: figure["value"] for figure in figures}
    cpu = Compute(
        found["alone: a step without rows"],
        found["alone: dense part of a row"],
        found["alone: look-ups of a row"],
        found["alone: memory read or written"],
    )
    latency = found["loopback: a collective without bytes"]
    cases = [
        ("CPU, 25 Gbit/s", cpu, Network(25e9 / 8, latency), 4096),
        ("CPU, 100 Gbit/s", cpu, Network(100e9 / 8, latency), 4096),
    ]
    cases += [
        (f"GPU at {efficiency:.0%}, NVLink", gpu(efficiency), Network(450e9, 20e-6), rows)
        for rows in (4096, 32768)
        for efficiency in (0.05, 0.2)
    ]
    table = Table(
        "8 processes", "rows of each", "sharding", "ms a step", "sending", "rows/s", "x 1"
    )
    for name, compute, network, rows in cases:
        one = compute.fixed_seconds + rows * (compute.dense_seconds + compute.lookup_seconds)
        for sharding in SHARDINGS:
            batch = 8 * rows
            seconds = step_seconds(compute, network, sharding=sharding, world_size=8, batch=batch)
            sending = sent_bytes(sharding, 8, batch) / network.bytes_per_second
            table.add_row(
                name,
                f"{rows:,}",
                sharding.replace("_", "-"),
                f"{1e3 * seconds:.3g}",
                f"{sending / seconds:.0%}",
                f"{batch / seconds:,.3g}",
                f"{batch / seconds * one / rows:.2g}",
            )
    Console(emoji=False).print(table)
    for sharding in SHARDINGS:
        shares = ", ".join(f"{imbalance(sharding, size):.2f} of {size}" for size in (2, 8))
        print(f"busiest process over the mean, {sharding.replace('_', '-')}: {shares}")


if __name__ == "__main__":
    main()
