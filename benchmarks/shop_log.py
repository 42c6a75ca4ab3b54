"""Is the shop log neither trivial nor hopeless, in its head and in its tail?

Trains FP32 tables on all ids, on all ids hashed into 1/50 of the rows, and with every id seen fewer
than 30 times sent to one row; each with its own learning rate and initial accumulator, the best of
one grid on validation click AUC. Test AUC is read once for each.

    python -m benchmarks.shop_log [--quick] [--json FILE]
"""

import argparse
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure, write_figures
from edorec.config import RunConfig, load_config
from edorec.data.prepare import prepare
from edorec.train import run

RARE = 30
# Settings of every vocabulary.
STORAGES = {
    "fp32": "{}",
    "hashed_to_1_50": "{max_rows: 0, buckets: 0.02}",
    "rare_in_one_row": f"{{min_count: {RARE}, buckets: 1}}",
}
LEARNING_RATES = (0.1, 0.2, 0.4)
INITIAL_ACCUMULATORS = (1e-9, 1e-8, 1e-7)


def load(config: str, overrides: list[str]) -> RunConfig:
    """The configuration with FP32 rows."""
    return load_config(config, ["memory.format=fp32", *overrides]).config


def best_report(config: str, storage: str, grid: list[tuple[float, float]]) -> dict[str, Any]:
    """The report of the run of a storage that is best on validation."""
    names = vocabulary_names(load(config, []))
    vocabularies = [f"vocabularies.{name}={STORAGES[storage]}" for name in names]
    reports = []
    for learning_rate, accumulator in grid:
        optimizer = [
            f"embedding.learning_rate={learning_rate}",
            f"embedding.initial_accumulator={accumulator}",
        ]
        with tempfile.TemporaryDirectory() as folder:
            report = run(
                load(config, vocabularies + optimizer), run_dir=Path(folder) / "run", verbosity=-1
            )
        valid = report["validation"]["click"]["auc"]
        print(f"{storage}: {' '.join(optimizer)}: validation AUC {valid:.4f}", flush=True)
        reports.append((valid, report))
    return max(reports, key=lambda pair: pair[0])[1]


def vocabulary_names(config: RunConfig) -> list[str]:
    """Every vocabulary that a feature uses."""
    features = config.features.sparse
    return sorted({feature.vocabulary or name for name, feature in features.items()})


def share_of_rare_ids(config: RunConfig) -> float:
    """Share of the ids of the training rows that these hold fewer than 30 times."""
    prepared = prepare(
        data=config.data,
        features=config.features,
        vocabularies=config.vocabularies,
        tasks=config.tasks,
    )
    counts = np.concatenate([vocab.counts for vocab in prepared.vocabularies.values()])
    return float((counts < RARE).mean())


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--config", default="ecommerce.yaml")
    parser.add_argument("--quick", action="store_true", help="one setting instead of a grid")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    grid = list(product(LEARNING_RATES, INITIAL_ACCUMULATORS))
    grid = [(0.2, 1e-8)] if args.quick else grid
    clicks = {name: best_report(args.config, name, grid)["tasks"]["click"] for name in STORAGES}
    auc = {name: click["auc"] for name, click in clicks.items()}
    best = clicks["fp32"]["best_reachable_auc"]
    reached = (auc["fp32"] - 0.5) / (best - 0.5)
    write_figures(
        [
            Figure("best_reachable_click_auc", best, "AUC"),
            *[Figure(f"{name}_click_auc", value, "AUC") for name, value in auc.items()],
            Figure("reached_share", reached, "ratio", at_least=0.75, at_most=0.95),
            Figure("share_of_rare_ids", share_of_rare_ids(load(args.config, [])), "ratio", 0.5),
            Figure("cost_of_hashing", auc["fp32"] - auc["hashed_to_1_50"], "AUC", 0.01),
            Figure("cost_of_one_rare_row", auc["fp32"] - auc["rare_in_one_row"], "AUC", 0.003),
        ],
        json_path=args.json,
    )


if __name__ == "__main__":
    main()
