"""A row of the table: a technique beside its baseline, trained in pairs on the same seeds.

Each run is kept in ``STORE`` under a hash of its whole configuration, so the command can be stopped
and taken up again; remove that folder when the code has changed. A pair differs in nothing but the
technique: same rows in the same order, same initial tables. Which side trains first alternates.
"""

import hashlib
import json
import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from benchmarks.figures import Figure
from edorec.config import RunConfig, load_config
from edorec.output_folder import write_file
from edorec.serving.card import sizes
from edorec.serving.export import export
from edorec.serving.formats import parse_formats
from edorec.train import run

STORE = Path("runs/claims")
KEPT = ("tasks", "validation", "memory", "speed", "sharing")  # of a report


@dataclass(frozen=True)
class Options:
    """What the command line says.

    Attributes:
        seeds: of the pairs.
        num_threads: CPU threads of every run.
    """

    seeds: Sequence[int]
    num_threads: int


@dataclass(frozen=True)
class Side:
    """Baseline or technique, over all seeds.

    Attributes:
        size: what the technique saves.
        unit: of ``size``, such as bytes.
        auc: mean test AUC by task.
        rows_per_second: median of training.
    """

    size: float
    unit: str
    auc: dict[str, float]
    rows_per_second: float


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        name: of the technique, with its data.
        baseline: without it.
        edorec: with it.
        figures: what was measured, with bounds.
    """

    name: str
    baseline: Side
    edorec: Side
    figures: list[Figure]


def train_pairs(
    config: str, baseline: Sequence[str], edorec: Sequence[str], *, options: Options
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Reports (see ``trained``) of baseline and technique, a pair a seed.

    Args:
        config: name of the configuration.
        baseline: overrides of the baseline.
        edorec: overrides of the technique.
        options: seeds and threads.
    """
    pairs = []
    for number, seed in enumerate(options.seeds):
        both = [f"train.seed={seed}", f"train.num_threads={options.num_threads}"]
        sides = [load_config(config, [*side, *both]).config for side in (baseline, edorec)]
        first = number % 2
        reports = {k: trained(sides[k]) for k in (first, 1 - first)}
        pairs.append((reports[0], reports[1]))
        task = next(iter(reports[0]["tasks"]))
        aucs = " and ".join(f"{reports[k]['tasks'][task]['auc']:.4f}" for k in (0, 1))
        print(f"{config}, seed {seed}: {task} AUC {aucs}", flush=True)
    return pairs


def trained(config: RunConfig) -> dict[str, Any]:
    """What is kept of the report of a run, which is done once."""

    def train() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            report = run(config, run_dir=Path(folder) / "run", verbosity=-1)
        return {name: report[name] for name in KEPT}

    return _once(config.model_dump_json(), train)


def exported(config: RunConfig, formats: str) -> dict[str, Any]:
    """Like ``trained``, of the model exported in these formats: test AUC by task, and bytes."""

    def train() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            run_dir = Path(folder) / "run"
            report = run(config, run_dir=run_dir, verbosity=-1)
            manifest = export(
                run_dir,
                Path(folder) / "model",
                formats=parse_formats([formats]),
                max_auc_loss=1,
                verbosity=-1,
            )
        tasks = manifest["evaluation"]["tasks"]
        return {
            "tasks": {task: {"auc": aucs["auc_after"]} for task, aucs in tasks.items()},
            "bytes": sizes(manifest),
            "speed": report["speed"],
        }

    return _once(config.model_dump_json() + formats, train)


def _once(what: str, train: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``train`` returns, from the store if it has been done."""
    path = STORE / f"{hashlib.sha256(what.encode()).hexdigest()[:24]}.json"
    if not path.exists():
        kept = train()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(kept) + "\n")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def side(reports: Sequence[dict[str, Any]], *, size: float, unit: str) -> Side:
    """One side of the pairs."""
    return Side(
        size,
        unit,
        {
            task: statistics.mean(report["tasks"][task]["auc"] for report in reports)
            for task in reports[0]["tasks"]
        },
        statistics.median(report["speed"]["train_rows_per_second"] for report in reports),
    )


def auc_figures(
    name: str, pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], *, margin: float
) -> list[Figure]:
    """By task the mean difference of test AUC and its 95 % interval.

    One pair has no interval and no bound. The bound on a difference is that the technique may lose
    ``margin``, or what the interval leaves open if that is more (a task of few positives).
    """
    figures = []
    for task in pairs[0][0]["tasks"]:
        differences = [b["tasks"][task]["auc"] - a["tasks"][task]["auc"] for a, b in pairs]
        width = interval(differences) if len(pairs) > 1 else None
        bound = None if width is None else -max(margin, width)
        title = f"{name}: {task} AUC minus baseline's"
        figures.append(Figure(title, statistics.mean(differences), "AUC", bound))
        if width is not None:
            figures.append(Figure(f"{name}: {task}, 95 % interval +-", width, "AUC"))
    return figures


def speed_figure(name: str, pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> Figure:
    """Median ratio of training speed."""
    rates = [[report["speed"]["train_rows_per_second"] for report in pair] for pair in pairs]
    ratio = statistics.median(edorec / baseline for baseline, edorec in rates)
    return Figure(f"{name}: rows per second of baseline's", ratio, "ratio")


def interval(differences: Sequence[float]) -> float:
    """Half the width of the 95 % interval of the mean (Student's t) of two values or more."""
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return float(stats.t.ppf(0.975, len(differences) - 1)) * error
