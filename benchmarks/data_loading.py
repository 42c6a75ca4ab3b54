"""Does reading keep up with training?

Trains an epoch on the same batches twice, paired: once streamed from encoded Parquet, once held in
memory. The ratio of rows per second is the share of training speed that is left when the
data come from disk.

    python -m benchmarks.data_loading [--config ecommerce.yaml] [--quick] [--json FILE]
"""

import argparse
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.figures import Figure, write_figures
from edorec.config import RunConfig, load_config
from edorec.data.batch import Batch
from edorec.data.prepare import Prepared, prepare
from edorec.data.reader import Reader
from edorec.devices import pick_device, set_num_threads
from edorec.recommender import build_recommender
from edorec.step import TrainingStep

BOUND = 0.95


def rows_per_second(step: TrainingStep, batches: Iterable[Batch]) -> float:
    """Trains on ``batches`` and returns the rows per second, reading included."""
    rows = 0
    started = time.perf_counter()
    for batch in batches:
        step(batch)
        rows += len(batch)
    return rows / (time.perf_counter() - started)


def build_reader(config: RunConfig, prepared: Prepared, step: TrainingStep) -> Reader:
    """The reader that training uses."""
    return Reader(
        prepared,
        "train",
        batch_size=config.train.batch_size,
        row_maps=step.recommender.row_maps,
        shuffle=True,
        shuffle_rows=config.data.shuffle_rows,
        seed=config.train.seed,
        training=True,
    )


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--config", default="ecommerce.yaml")
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    num_runs = 2 if args.quick else 9
    config = load_config(args.config, []).config
    set_num_threads(config.train.num_threads)
    prepared = prepare(
        data=config.data,
        features=config.features,
        vocabularies=config.vocabularies,
        tasks=config.tasks,
    )
    recommender = build_recommender(
        config, prepared.vocabularies, device=pick_device(config.train.device)
    )
    step = TrainingStep(recommender, config, total_steps=1)
    reader = build_reader(config, prepared, step)
    in_memory = list(reader.batches(0))
    rows_per_second(step, in_memory[:50])
    ratios, streamed, held = [], [], []
    for run in range(num_runs):
        # In turn, so that a machine that gets slower favours neither.
        for source in ("stream", "memory") if run % 2 else ("memory", "stream"):
            if source == "stream":
                streamed.append(rows_per_second(step, reader.batches(0)))
            else:
                held.append(rows_per_second(step, in_memory))
        ratios.append(streamed[-1] / held[-1])
        print(f"run {run + 1}: from Parquet {streamed[-1]:,.0f} rows/s, ", end="")
        print(f"from memory {held[-1]:,.0f} rows/s, ratio {ratios[-1]:.3f}")
    write_figures(
        [
            Figure("streamed_over_in_memory", statistics.median(ratios), "ratio", at_least=BOUND),
            Figure("streamed_rows_per_second", statistics.median(streamed), "rows/s"),
            Figure("in_memory_rows_per_second", statistics.median(held), "rows/s"),
        ],
        json_path=args.json,
    )


if __name__ == "__main__":
    main()
