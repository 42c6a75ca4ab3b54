"""What ``edorec prepare`` and ``edorec evaluate`` show on the screen."""

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from edorec.data.prepare import Prepared

METRICS = ("auc", "gauc", "logloss", "ne", "calibration")


def print_prepared(prepared: Prepared) -> None:
    """Prints splits and vocabularies, and how long it took."""
    console = Console()
    splits = Table("split", "rows", "files")
    for split in prepared.splits.values():
        splits.add_row(split.name, f"{split.rows:,}", f"{len(split.files):,}")
    console.print(splits)
    console.print(_vocabularies(prepared))
    how = "used again" if prepared.reused else f"prepared in {prepared.seconds:.1f} s"
    console.print(f"{how}: {prepared.folder}")


def print_evaluation(result: dict[str, Any]) -> None:
    """Prints the metrics of each task; an undefined one is n/a."""
    table = Table("task", *METRICS, "rows", "positives")
    for task, metrics in result["tasks"].items():
        figures = ("n/a" if metrics[m] is None else f"{metrics[m]:.4f}" for m in METRICS)
        table.add_row(task, *figures, f"{metrics['rows']:,}", f"{metrics['positives']:,}")
    Console().print(table)


def _vocabularies(prepared: Prepared) -> Table:
    """One row a vocabulary: its features, ids, and the shares of rare and unseen ids."""
    table = Table("vocabulary", "features", "ids seen", "seen once")
    for name, vocabulary in prepared.vocabularies.items():
        features = [f for f, v in prepared.feature_vocabulary.items() if v == name]
        once = np.count_nonzero(vocabulary.counts == 1) / max(vocabulary.num_ids, 1)
        table.add_row(name, ", ".join(features), f"{vocabulary.num_ids:,}", f"{once:.1%}")
    return table
