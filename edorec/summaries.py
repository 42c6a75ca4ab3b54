"""What ``edorec prepare``, ``edorec evaluate`` and ``edorec tune`` show on the screen."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from edorec.data.growth import read_rank_map
from edorec.data.prepare import Prepared

METRICS = ("auc", "gauc", "logloss", "ne", "calibration")
BEST_TRIALS = 10


def print_prepared(prepared: Prepared) -> None:
    """Prints splits and vocabularies, what is odd about them, and how long it took."""
    console = Console()
    splits = Table("split")
    for title in ("rows", "files"):
        splits.add_column(title, justify="right")
    for split in prepared.splits.values():
        splits.add_row(split.name, f"{split.rows:,}", f"{len(split.files):,}")
    console.print(splits)
    console.print(_vocabularies(prepared))
    if prepared.manifest["growth"]:
        console.print(_growth(prepared))
    for warning in prepared.counts["warnings"]:
        console.print(f"warning: {warning}", markup=False)
    how = "used again what was prepared" if prepared.reused else "prepared"
    console.print(f"{how} in {prepared.folder} ({prepared.seconds:.1f} s)", soft_wrap=True)


def print_evaluation(result: dict[str, Any]) -> None:
    """Prints the metrics of each task; an undefined one is n/a."""
    table = Table("task")
    for title in (*METRICS, "rows", "positives"):
        table.add_column(title, justify="right")
    for task, metrics in result["tasks"].items():
        figures = ("n/a" if metrics[m] is None else f"{metrics[m]:.4f}" for m in METRICS)
        table.add_row(task, *figures, f"{metrics['rows']:,}", f"{metrics['positives']:,}")
    Console().print(table)


def print_search(result: dict[str, Any], console: Console) -> None:
    """Prints the best trials of a search, the best first, and how to train the best one."""
    sign = -1 if result["direction"] == "maximize" else 1
    ended = [trial for trial in result["trials"] if trial["value"] is not None]
    ended.sort(key=lambda trial: sign * trial["value"])
    table = Table(title=f"validation {result['metric']} of {result['task']}")
    keys = [key for key in result["ranges"] if key != "train.epochs"]
    # Narrow headers, so that all columns fit on a terminal.
    names = (key.replace(".", ".\n").replace("_", "\n") for key in keys)
    for title in ("trial", result["metric"], "best\nepoch", *names):
        table.add_column(title, justify="right")
    for trial in ended[:BEST_TRIALS]:
        values = (f"{trial['values'][key]:.3g}" for key in keys)
        table.add_row(
            str(trial["trial"]), f"{trial['value']:.4f}", str(trial["best_epoch"]), *values
        )
    console.print(table)
    diverged = len(result["trials"]) - len(ended)
    shown = f"the best {BEST_TRIALS} of " if len(ended) > BEST_TRIALS else ""
    console.print(
        f"{shown}{len(ended)} trials{f', {diverged} more diverged' if diverged else ''}; "
        f"train the best: edorec train --config {result['run']}/best.yaml",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _vocabularies(prepared: Prepared) -> Table:
    """One row a vocabulary, the largest first: features, ids, shares of rare and unseen ids."""
    others = [name for name in prepared.splits if name != "train"]
    table = Table()
    table.add_column("vocabulary", no_wrap=True)
    table.add_column("features")
    for title in ("ids seen", "seen once", *(f"unseen in {name}" for name in others)):
        table.add_column(title, justify="right")
    by_size = sorted(prepared.vocabularies.items(), key=lambda item: -item[1].num_ids)
    for name, vocabulary in by_size:
        features = [f for f, v in prepared.feature_vocabulary.items() if v == name]
        once = np.count_nonzero(vocabulary.counts == 1) / max(vocabulary.num_ids, 1)
        shown = "" if features == [name] else ", ".join(features)
        shares = (_unseen(prepared.counts, features, split) for split in others)
        table.add_row(name, shown, f"{vocabulary.num_ids:,}", f"{once:.1%}", *shares)
    return table


def _growth(prepared: Prepared) -> Table:
    """How the ids of each vocabulary that has grown have changed."""
    table = Table("vocabulary", title="grown")
    for title in ("ids before", "that have left", "new"):
        table.add_column(title, justify="right")
    for name, file in prepared.manifest["rank_maps"].items():
        ranks = read_rank_map(prepared.vocabulary_folder / file)
        left = int(np.count_nonzero(ranks < 0))
        new = prepared.vocabularies[name].num_ids - (len(ranks) - left)
        table.add_row(name, f"{len(ranks):,}", f"{left:,}", f"{new:,}")
    return table


def _unseen(counts: Mapping[str, Any], features: list[str], split: str) -> str:
    """The share of a split's look-ups whose id training has not seen."""
    unseen, lookups = (
        sum(counts.get(event, {}).get(split, {}).get(feature, 0) for feature in features)
        for event in ("unseen_ids", "lookups")
    )
    return f"{unseen / lookups:.2%}" if lookups else "n/a"
