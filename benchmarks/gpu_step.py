"""Forward, backward and update of embedding tables on a GPU: edorec's rows against FBGEMM's.

The work of ``benchmarks.embedding_step``; times by CUDA events, the same batches for all, in turn.
Then tables in two memories: FBGEMM's FP32 tables take 3 times the bytes of their cache on the
device (MANAGED_CACHING), and ours in INT8 have as many bytes there, or a third of their rows. Ours
fetch the rows of a batch while the one before it is used, but for one contender that does not.
Skips, and says why, where torch finds no CUDA device.

    python -m benchmarks.gpu_step [--quick] [--json FILE]
"""

import argparse
import statistics
from itertools import zip_longest
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
from edorec.embedding.bands import Band, num_bytes

CUDA = torch.device("cuda")
NUM_HOT = NUM_ROWS // 50
TIMES_BUDGET = 3
INT8_ROW_BYTES = num_bytes(one_format("int8"), dim=DIM, optimizer="rowwise_adagrad") // NUM_ROWS
CACHED = "fbgemm fp32 managed caching"
SAME_BYTES = "edorec int8 uvm, the same bytes on the device"
NOT_AHEAD = f"{SAME_BYTES}, not fetched ahead"
THIRD = "edorec int8 uvm, a third of the rows on the device"
BANDS = {
    "fp32": one_format("fp32"),
    "int8": one_format("int8"),
    "int8 hot, int2 cold": [
        Band(NUM_HOT, "int8", "log8"),
        Band(NUM_ROWS - NUM_HOT, "int2", "log8"),
    ],
}


def milliseconds(
    tables: Tables, batches: list[KeyedJaggedTensor], gradient: torch.Tensor, *, ahead: bool
) -> float:
    """Of one step, mean over the batches; ``ahead``: each is fetched while another is used."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    if ahead:
        tables.prefetch(batches[0])
    for batch, following in zip_longest(batches, batches[1:]):
        if ahead and following is not None:
            tables.prefetch(following)
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


def on_device() -> dict[str, Tables]:
    """Tables that are on the device."""
    return {
        "fbgemm fp32": fbgemm("rowwise_adagrad", device="cuda"),
        "fbgemm fp16": fbgemm("rowwise_adagrad", DataType.FP16, device="cuda"),
        **{f"edorec {name}": edorec(bands, device="cuda") for name, bands in BANDS.items()},
    }


def in_two_memories() -> dict[str, Tables]:
    """Tables of which a part is on the device."""
    cached = fbgemm("rowwise_adagrad", device="cuda", cached_share=1 / TIMES_BUDGET)
    figures = cached.paging()
    assert figures is not None
    fitting = figures["cache_bytes"] // NUM_TABLES // INT8_ROW_BYTES
    int8, colder = one_format("int8"), range(fitting, NUM_ROWS)
    return {
        CACHED: cached,
        SAME_BYTES: edorec(int8, device="cuda", host_rows=colder),
        NOT_AHEAD: edorec(int8, device="cuda", host_rows=colder),
        THIRD: edorec(int8, device="cuda", host_rows=range(NUM_ROWS // TIMES_BUDGET, NUM_ROWS)),
    }


def measure(tables: dict[str, Tables], num_rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each contender, by round."""
    batches = [batch.to(CUDA) for batch in make_batches()]
    gradient = torch.randn(BATCH, NUM_TABLES * DIM, device=CUDA) * 1e-3
    times: dict[str, list[float]] = {name: [] for name in tables}
    for number in range(num_rounds + 1):
        for name, contender in tables.items():
            taken = milliseconds(contender, batches, gradient, ahead=name != NOT_AHEAD)
            if number:  # the first round warms up and compiles
                times[name].append(taken)
    return times


def ratio(baseline: list[float], ours: list[float]) -> float:
    """Median over rounds of how many times as fast ours is."""
    return statistics.median(a / b for a, b in zip(baseline, ours, strict=True))


def figures_on_device(num_rounds: int) -> list[Figure]:
    """Times, speed against FBGEMM's FP32, memory traffic."""
    times = measure(on_device(), num_rounds)
    bandwidth = gigabytes_per_second()
    figures = [Figure(f"{name} step", statistics.median(t), "ms") for name, t in times.items()]
    for name, bands in BANDS.items():
        ours = times[f"edorec {name}"]
        bound = 1.0 if name == "int8" else None
        speed = ratio(times["fbgemm fp32"], ours)
        figures.append(Figure(f"{name} over fbgemm fp32", speed, "x", bound))
        if len(bands) == 1:
            moved = megabytes_moved(edorec(bands), make_batches())
            share = moved / statistics.median(ours) / bandwidth
            figures.append(Figure(f"{name} memory traffic of a step", moved, "MB"))
            figures.append(Figure(f"{name} share of a copy's bandwidth", share, "ratio"))
    return [*figures, Figure("memory bandwidth of a copy", bandwidth, "GB/s")]


def figures_in_two_memories(num_rounds: int) -> list[Figure]:
    """Times, speed against FBGEMM's cache, hit rates, rows read over the bus."""
    tables = in_two_memories()
    times = measure(tables, num_rounds)
    num_steps = (num_rounds + 1) * len(make_batches())
    figures = [Figure(f"{name} step", statistics.median(t), "ms") for name, t in times.items()]
    for name, bound in ((SAME_BYTES, 2.0), (NOT_AHEAD, None), (THIRD, None)):
        speed = ratio(times[CACHED], times[name])
        figures.append(Figure(f"{name}, over {CACHED}", speed, "x", bound))
    for name, contender in tables.items():
        paging = contender.paging()
        assert paging is not None
        device_bytes = paging["device_bytes" if "device_bytes" in paging else "cache_bytes"]
        read = paging["read_bytes"] / num_steps / 1e6
        figures.append(Figure(f"{name}: bytes on the device", device_bytes / 1e6, "MB"))
        figures.append(Figure(f"{name}: hit rate", paging["hit_rate"], "ratio"))
        figures.append(Figure(f"{name}: rows read over the bus in a step", read, "MB"))
    return figures


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: torch finds no CUDA device")
        return
    num_rounds = 3 if args.quick else 15
    figures = figures_on_device(num_rounds) + figures_in_two_memories(num_rounds)
    write_figures(figures, json_path=args.json)


if __name__ == "__main__":
    main()
