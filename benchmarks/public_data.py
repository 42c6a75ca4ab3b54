"""Test AUC on public logs beside what others reach on the same split, mean of several seeds.

KuaiRand-Pure: LightGBM on the same columns and days. Census-Income: the best MMoE that was
published. One model for all tasks; everything in the configurations was chosen on the validation
split (docs/log.md lists the trials).

    python -m benchmarks.public_data [--configs kuairand census] [--seeds 3] [--quick] [--json FILE]
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.figures import Figure, write_figures
from edorec.config import load_config
from edorec.train import run

# By configuration and task: the AUC that must be reached.
BOUNDS = {
    "kuairand": {"click": 0.7441, "long_view": 0.7405, "like": 0.842},
    "census": {"income_50k": 0.9494, "never_married": 0.9942},
}
MINUTES = 5.0


def figures_of(config: str, seeds: range) -> list[Figure]:
    """Trains one configuration, once a seed."""
    aucs: dict[str, list[float]] = {}
    minutes = []
    for seed in seeds:
        loaded = load_config(config, [f"train.seed={seed}"])
        with tempfile.TemporaryDirectory() as folder:
            report = run(loaded.config, run_dir=Path(folder) / "run", verbosity=-1)
        for task, metrics in report["tasks"].items():
            aucs.setdefault(task, []).append(metrics["auc"])
        minutes.append(report["speed"]["train_seconds"] / 60)
        print(f"{config}, seed {seed}: { ({t: round(a[-1], 4) for t, a in aucs.items()}) }")
    figures = [
        Figure(f"{config}, {task}", statistics.mean(values), "AUC", BOUNDS[config][task])
        for task, values in aucs.items()
    ]
    spread = [
        Figure(f"{config}, {task}: highest minus lowest", max(values) - min(values), "AUC")
        for task, values in aucs.items()
    ]
    longest = Figure(f"{config}: longest training", max(minutes), "minutes", at_most=MINUTES)
    return [*figures, *spread, longest]


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--configs", nargs="*", choices=list(BOUNDS), default=list(BOUNDS))
    parser.add_argument("--seeds", type=int, default=3, help="runs of each configuration")
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    seeds = range(1, 2 if args.quick else args.seeds + 1)
    figures = [figure for config in args.configs for figure in figures_of(config, seeds)]
    write_figures(figures, json_path=args.json)


if __name__ == "__main__":
    main()
