"""What ``edorec prepare`` shows of prepared data: two tables and a line."""

import numpy as np
from rich.console import Console
from rich.table import Table

from edorec.data.prepare import Prepared


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


def _vocabularies(prepared: Prepared) -> Table:
    """One row a vocabulary: its features, ids, and the shares of rare and unseen ids."""
    table = Table("vocabulary", "features", "ids seen", "seen once", *_unseen_titles(prepared))
    for name, vocabulary in prepared.vocabularies.items():
        features = [f for f, v in prepared.feature_vocabulary.items() if v == name]
        once = np.count_nonzero(vocabulary.counts == 1) / max(vocabulary.num_ids, 1)
        table.add_row(name, ", ".join(features), f"{vocabulary.num_ids:,}", f"{once:.1%}")
    return table


def _unseen_titles(prepared: Prepared) -> list[str]:
    return [f"unseen in {name}" for name in prepared.splits if name != "train"]
