"""AUC and memory of several storages of the tables, one run each at the configuration's settings.

A picture, not a proof: one seed spreads by about 0.001, and nothing is tuned for each storage.

    python -m benchmarks.storages [--config ecommerce.yaml] [--plot FILE.png] [--json FILE]
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.figures import Figure, write_figures
from edorec.config import RunConfig, load_config
from edorec.train import run

COLD = "{format: int2, state: log8}"
ADMISSION = "{min_count: 10, buckets: 0.1}"
# Settings of the tables, and of every vocabulary.
STORAGES = {
    "FP32": ("{format: fp32}", "{}"),
    "FP16": ("{format: fp16}", "{}"),
    "INT8": ("{format: int8}", "{}"),
    "INT8, colder than 30 INT2": (
        f"{{bands: [{{min_count: 30, format: int8}}, {COLD}]}}",
        "{}",
    ),
    "the same, ids from 10": (
        f"{{bands: [{{min_count: 30, format: int8}}, {COLD}]}}",
        ADMISSION,
    ),
    "FP32, ids from 10": ("{format: fp32}", ADMISSION),
}


def vocabulary_names(config: RunConfig) -> list[str]:
    """Every vocabulary that a feature uses."""
    features = config.features.sparse
    return sorted({feature.vocabulary or name for name, feature in features.items()})


def train(config: str, storage: str, overrides: list[str]) -> dict[str, Any]:
    """The report of one run."""
    memory, vocabulary = STORAGES[storage]
    names = vocabulary_names(load_config(config, overrides).config)
    settings = [f"memory={memory}", *(f"vocabularies.{name}={vocabulary}" for name in names)]
    loaded = load_config(config, [*overrides, *settings])
    with tempfile.TemporaryDirectory() as folder:
        return run(loaded.config, run_dir=Path(folder) / "run", verbosity=-1)


def plot(reports: dict[str, dict[str, Any]], task: str, path: Path) -> None:
    """Test AUC of a task over the bytes of tables and optimizer state."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, report in reports.items():
        megabytes = report["memory"]["total_bytes"] / 1e6
        auc = report["tasks"][task]["auc"]
        axes.plot(megabytes, auc, "o", color="tab:gray" if name.startswith("FP32") else "tab:blue")
        axes.annotate(name, (megabytes, auc), xytext=(6, 4), textcoords="offset points")
    axes.set_xscale("log")
    axes.set_xlabel("tables and optimizer state while training, MB")
    axes.set_ylabel(f"test AUC, {task}")
    axes.margins(x=0.35, y=0.2)
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--config", default="ecommerce.yaml")
    parser.add_argument("--set", action="append", default=[], help="key=value for all runs")
    parser.add_argument("--quick", action="store_true", help="only FP32 and INT8")
    parser.add_argument("--plot", type=Path, help="PNG to write")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    names = ["FP32", "INT8"] if args.quick else list(STORAGES)
    reports = {}
    for name in names:
        reports[name] = train(args.config, name, args.set)
        print(f"{name}: done", flush=True)
    task = next(iter(reports["FP32"]["tasks"]))
    figures = []
    for name, report in reports.items():
        memory = report["memory"]
        figures += [
            Figure(f"{name}: test AUC {task}", report["tasks"][task]["auc"], "AUC"),
            Figure(f"{name}: bytes", memory["total_bytes"] / 1e6, "MB"),
            Figure(f"{name}: of FP32", memory["total_bytes"] / memory["baseline_bytes"], "ratio"),
        ]
    write_figures(figures, json_path=args.json)
    if args.plot:
        plot(reports, task, args.plot)


if __name__ == "__main__":
    main()
