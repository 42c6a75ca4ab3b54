"""What ``edorec prepare``, ``evaluate``, ``tune`` and ``sweep`` show on the screen."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from edorec.data.growth import read_rank_map
from edorec.data.prepare import Prepared
from edorec.memory_use import format_bytes

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


def print_sweep(result: dict[str, Any], console: Console) -> None:
    """Prints AUC over memory, and where the plot is."""
    table = Table(title=f"test AUC of {result['task']} over memory", box=SIMPLE)
    table.add_column("", no_wrap=True)
    head, rows = _sweep_rows(result, [result["task"]])
    for title in head:
        table.add_column(title, justify="right", no_wrap=title != "seeds")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for text in (f"FP32: {result['baseline']}", f"{result['run']}/sweep.md, sweep.png, sweep.svg"):
        console.print(text, highlight=False, soft_wrap=True)


def sweep_markdown(result: dict[str, Any]) -> str:
    """The same for all tasks, as a Markdown page."""
    head, rows = _sweep_rows(result, result["tasks"])
    lines = [
        f"# {result['run'].rpartition('/')[2]}",
        "",
        "Means over seeds; differences are paired by seed, +- their standard deviation. Bytes are",
        "rows and optimizer state while training; serving is rows as trained and the index of ids.",
        f"FP32: {result['baseline']}.",
        "",
        f"| | {' | '.join(head)} |",
        f"|---|{'--:|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        "![AUC over memory](sweep.png)",
    ]
    return "\n".join(lines) + "\n"


def _sweep_rows(result: dict[str, Any], tasks: list[str]) -> tuple[list[str], list[list[str]]]:
    """Titles, and a row a contender whose first cell is its name."""
    titles = ["bytes", "of FP32", "serving", "rows/s", "seeds"]
    for task in tasks:
        titles += [f"AUC {task}" if len(tasks) > 1 else "AUC", "minus FP32's"]
    rows = []
    for contender in result["contenders"]:
        cells = [
            contender["name"],
            format_bytes(contender["total_bytes"]),
            f"{contender['of_fp32']:.4f}",
            format_bytes(contender["serving_bytes"]),
            f"{contender['rows_per_second']:,.0f}",
            str(len(contender["seeds"])),
        ]
        for task in tasks:
            auc, minus = contender["auc"][task], contender["auc_minus_fp32"][task]
            cells.append("n/a" if auc["mean"] is None else f"{auc['mean']:.4f}")
            spread = "" if minus["sd"] is None else f" +-{minus['sd']:.4f}"
            cells.append("n/a" if minus["mean"] is None else f"{minus['mean']:+.4f}{spread}")
        rows.append(cells)
    return titles, rows


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
