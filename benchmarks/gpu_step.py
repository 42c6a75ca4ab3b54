"""Forward, backward and update of embedding tables on a GPU: edorec's rows against FBGEMM's.

The work of ``benchmarks.embedding_step``; times by CUDA events, the same batches for all, in turn.
Skips, and says why, where torch finds no CUDA device.

    python -m benchmarks.gpu_step [--quick] [--json FILE]
"""

import argparse
import statistics
from pathlib import Path

import torch
from torchrec.modules.embedding_configs import DataType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.embedding_step import (
    BATCH,
    DIM,
    NUM_ROWS,
    NUM_TABLES,
    Tables,
    edorec,
    fbgemm,
    make_batches,
    megabytes_moved,
    one_format,
)
from benchmarks.figures import Figure, write_figures
from edorec.embedding.bands import Band

CUDA = torch.device("cuda")
NUM_HOT = NUM_ROWS // 50
BANDS = {
    "fp32": one_format("fp32"),
    "int8": one_format("int8"),
    "int8 hot, int2 cold": [
        Band(NUM_HOT, "int8", "log8"),
        Band(NUM_ROWS - NUM_HOT, "int2", "log8"),
    ],
}


def milliseconds(tables: Tables, batches: list[KeyedJaggedTensor], gradient: torch.Tensor) -> float:
    """Of one step, mean over the batches."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for batch in batches:
        tables(batch).values().backward(gradient)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / len(batches)


def gigabytes_per_second() -> float:
    """Memory bandwidth of a large copy, bytes read and written."""
    source = torch.ones(256 << 20, device=CUDA)
    target = torch.empty_like(source)
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return 2 * source.nbytes / statistics.median(times) / 1e6


def measure(num_rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each contender, by round."""
    batches = [batch.to(CUDA) for batch in make_batches()]
    gradient = torch.randn(BATCH, NUM_TABLES * DIM, device=CUDA) * 1e-3
    tables: dict[str, Tables] = {
        "fbgemm fp32": fbgemm("rowwise_adagrad", device="cuda"),
        "fbgemm fp16": fbgemm("rowwise_adagrad", DataType.FP16, device="cuda"),
        **{f"edorec {name}": edorec(bands, device="cuda") for name, bands in BANDS.items()},
    }
    times: dict[str, list[float]] = {name: [] for name in tables}
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
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: torch finds no CUDA device")
        return
    times = measure(3 if args.quick else 15)
    bandwidth = gigabytes_per_second()
    baseline = times["fbgemm fp32"]
    figures = [Figure(f"{name} step", statistics.median(t), "ms") for name, t in times.items()]
    for name, bands in BANDS.items():
        ours = times[f"edorec {name}"]
        ratio = statistics.median(a / b for a, b in zip(baseline, ours, strict=True))
        bound = 1.0 if name == "int8" else None
        figures.append(Figure(f"{name} over fbgemm fp32", ratio, "x", bound))
        if len(bands) == 1:
            moved = megabytes_moved(edorec(bands), make_batches())
            share = moved / statistics.median(ours) / bandwidth
            figures.append(Figure(f"{name} memory traffic of a step", moved, "MB"))
            figures.append(Figure(f"{name} share of a copy's bandwidth", share, "ratio"))
    figures.append(Figure("memory bandwidth of a copy", bandwidth, "GB/s"))
    write_figures(figures, json_path=args.json)


if __name__ == "__main__":
    main()
