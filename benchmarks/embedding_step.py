"""Forward, backward and update of embedding tables alone: edorec's rows against FBGEMM's on CPU.

26 tables of 200,000 rows, dim 16, batches of 4096 rows with one id a table (Zipf-like), the same
batches for all, in turn. Ratios are medians over rounds of paired times. FBGEMM has no INT8 rows
that train; its FP32 rows are the baseline, with row-wise Adagrad and with its fastest optimizer.

    python -m benchmarks.embedding_step [--quick] [--json FILE]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.figures import Figure, write_figures
from edorec.embedding.bands import NO_ROWS, Band
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.fused import FusedEmbeddingBagCollection
from edorec.embedding.row_tables import EdoTableConfig

NUM_TABLES, NUM_ROWS, DIM, BATCH = 26, 200_000, 16, 4096
NUM_BATCHES = 20
LINE_BYTES = 64
NAMES = [f"f{index}" for index in range(NUM_TABLES)]
Tables = EdoEmbeddingBagCollection | FusedEmbeddingBagCollection


def fbgemm(
    optimizer: str,
    data_type: DataType = DataType.FP32,
    device: str = "cpu",
    cached_share: float | None = None,
) -> FusedEmbeddingBagCollection:
    """FBGEMM's fused tables; with a ``cached_share`` in unified memory with a cache of it."""
    return FusedEmbeddingBagCollection(
        [
            EmbeddingBagConfig(
                name=name,
                num_embeddings=NUM_ROWS,
                embedding_dim=DIM,
                feature_names=[name],
                data_type=data_type,
            )
            for name in NAMES
        ],
        pooling={},
        num_zero_rows={},
        optimizer=optimizer,
        learning_rate=0.01,
        initial_accumulator=1e-5,
        init_std=0.01,
        seed=0,
        device=torch.device(device),
        uvm=() if cached_share is None else NAMES,
        load_factor=cached_share or 1.0,
    )


def edorec(
    bands: list[Band],
    optimizer: str = "rowwise_adagrad",
    device: str = "cpu",
    host_rows: range = NO_ROWS,
) -> EdoEmbeddingBagCollection:
    """Our tables, with these rows of each in the host's memory."""
    return EdoEmbeddingBagCollection(
        [
            EdoTableConfig(
                name=name,
                num_embeddings=NUM_ROWS,
                embedding_dim=DIM,
                feature_names=[name],
                bands=bands,
                host_rows=host_rows,
            )
            for name in NAMES
        ],
        optimizer=optimizer,
        learning_rate=0.01,
        initial_accumulator=1e-5,
        device=torch.device(device),
    )


def one_format(name: str) -> list[Band]:
    """All rows of a table in a format."""
    return [Band(NUM_ROWS, name)]


def make_batches() -> list[KeyedJaggedTensor]:
    """Zipf-like rows: the cube of a uniform number, times the rows."""
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(NUM_BATCHES):
        rows = (rng.random(NUM_TABLES * BATCH) ** 3 * NUM_ROWS).astype(np.int64)
        lengths = torch.ones(len(rows), dtype=torch.int32)
        batches.append(KeyedJaggedTensor(NAMES, torch.from_numpy(rows), lengths=lengths))
    return batches


def milliseconds(tables: Tables, batches: list[KeyedJaggedTensor], gradient: torch.Tensor) -> float:
    """Of one step, mean over the batches."""
    started = time.perf_counter()
    for batch in batches:
        tables(batch).values().backward(gradient)
    return (time.perf_counter() - started) / len(batches) * 1e3


def megabytes_moved(tables: EdoEmbeddingBagCollection, batches: list[KeyedJaggedTensor]) -> float:
    """Least memory traffic of a step in whole cache lines, mean over the batches.

    Each row that is looked up is read, and read and written once more by the update; the pooled
    rows and their gradients are written and read once.
    """
    stride = next(iter(tables.tables_state()["f0"].values())).shape[1]
    lines = 0
    for batch in batches:
        for name in NAMES:
            first = batch[name].values().unique() * stride
            touched = torch.cat([first // LINE_BYTES, (first + stride - 1) // LINE_BYTES])
            lines += len(touched.unique())
    dense = 2 * BATCH * NUM_TABLES * DIM * 4
    return (3 * lines * LINE_BYTES / len(batches) + dense) / 1e6


def gigabytes_per_second() -> float:
    """Memory bandwidth of a large copy on torch's threads, bytes read and written."""
    source = torch.ones(64 << 20)
    target = torch.empty_like(source)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - started)
    return 2 * source.nbytes / statistics.median(times) / 1e9


def measure(num_rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each contender, by round."""
    contenders: dict[str, Callable[[], Tables]] = {
        "fbgemm fp32 rowwise_adagrad": lambda: fbgemm("rowwise_adagrad"),
        "fbgemm fp32 sgd": lambda: fbgemm("sgd"),
        "fbgemm fp16 rowwise_adagrad": lambda: fbgemm("rowwise_adagrad", DataType.FP16),
        "edorec fp32": lambda: edorec(one_format("fp32")),
        "edorec fp16": lambda: edorec(one_format("fp16")),
        "edorec int8": lambda: edorec(one_format("int8")),
        "edorec int8 sgd": lambda: edorec(one_format("int8"), "sgd"),
        "edorec int4": lambda: edorec(one_format("int4")),
        "edorec int2": lambda: edorec(one_format("int2")),
    }
    batches = make_batches()
    gradient = torch.randn(BATCH, NUM_TABLES * DIM, generator=torch.Generator().manual_seed(1))
    gradient *= 1e-3
    tables = {name: build() for name, build in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(num_rounds + 1):
        for name, contender in tables.items():
            taken = milliseconds(contender, batches, gradient)
            if number:  # the first round warms up and compiles
                times[name].append(taken)
    return times


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    times = measure(3 if args.quick else 9)

    def ratio(baseline: str, ours: str) -> float:
        pairs = zip(times[baseline], times[ours], strict=True)
        return statistics.median(slow / fast for slow, fast in pairs)

    adagrad, sgd = "fbgemm fp32 rowwise_adagrad", "fbgemm fp32 sgd"
    moved = megabytes_moved(edorec(one_format("int8")), make_batches())
    bandwidth = gigabytes_per_second()
    share = moved / statistics.median(times["edorec int8"]) / bandwidth
    write_figures(
        [
            *[Figure(f"{name} step", statistics.median(t), "ms") for name, t in times.items()],
            Figure("int8 over fbgemm fp32 rowwise_adagrad", ratio(adagrad, "edorec int8"), "x", 4),
            Figure("int8 over fbgemm fp32 sgd", ratio(sgd, "edorec int8"), "x", 1),
            Figure("fp32 over fbgemm fp32 rowwise_adagrad", ratio(adagrad, "edorec fp32"), "x", 4),
            Figure("fp16 over fbgemm fp32 rowwise_adagrad", ratio(adagrad, "edorec fp16"), "x"),
            Figure("int8 memory traffic of a step", moved, "MB"),
            Figure("memory bandwidth of a copy", bandwidth, "GB/s"),
            Figure("int8 share of that bandwidth", share, "ratio"),
        ],
        json_path=args.json,
    )


if __name__ == "__main__":
    main()
