"""What sharing saves, against a count by hand."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from edorec.layers.sequences import Transformer
from edorec.train import run
from tests.toy import toy_config, write_toy

ROW = 4 * 4 + 4  # dim 4, FP32, with its optimizer state


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy log with items as integers, as the lists have them."""
    folder = write_toy(tmp_path_factory.mktemp("log"), train=600, valid=100, test=100)
    for path in folder.glob("*.parquet"):
        rows = pq.read_table(path)
        items = np.array([int(item[1:]) for item in rows["item"].to_pylist()])
        pq.write_table(rows.set_column(1, "item", [items]), path)
    return folder


def test_levels_add_up_and_a_features_own_table_has_its_ids(log: Path, tmp_path: Path) -> None:
    config = toy_config(
        log,
        features={
            "sparse": {"user": {}, "item": {}, "viewed": {"vocabulary": "item"}},
            "dense": {"price": {}},
        },
        vocabularies={
            "item": {"buckets": 2, "min_count": 8, "task_specific": {"buy": {"rows": 5, "dim": 1}}},
            "user": {"buckets": 3},
        },
    )
    report = run(config, run_dir=tmp_path / "run", verbosity=-1)
    rows = pq.read_table(log / "train.parquet")
    users = len(set(rows["user"].to_pylist())) + 3
    item = Counter(rows["item"].to_pylist())
    viewed = Counter(i for ids in rows["viewed"].to_pylist() for i in ids)
    own = [sum(n >= 8 for n in counts.values()) + 2 for counts in (item, viewed)]
    both = sum(n >= 8 for n in (item + viewed).values()) + 2
    alone = (users + sum(own)) * ROW
    assert report["sharing"] == {
        "separate_bytes": 2 * alone,
        "saved_bytes": {
            "across_tasks": alone,
            "within_task": (sum(own) - both) * ROW,
            "across_layers": 0,
        },
        "task_specific_bytes": 6 * 8,
    }
    saved = report["sharing"]["saved_bytes"]
    total = 2 * alone - saved["across_tasks"] - saved["within_task"] + 6 * 8
    assert report["memory"]["total_bytes"] == total
    markdown = (tmp_path / "run" / "report.md").read_text()
    assert (
        f"| saved within a task: one for each vocabulary | -{saved['within_task']:,} |" in markdown
    )
    assert f"| this run | {total:,} |" in markdown


def test_tied_layers_are_a_level(log: Path, tmp_path: Path) -> None:
    config = toy_config(
        log,
        features={
            "sparse": {
                "item": {},
                "viewed": {"vocabulary": "item", "pooling": "transformer", "max_length": 4},
            },
        },
        model={"transformer": {"num_layers": 4, "share_layers": 2, "num_heads": 2, "hidden": 8}},
        train={"epochs": 1},
    )
    report = run(config, run_dir=tmp_path / "run", verbosity=-1)
    sizes = {"max_length": 4, "num_layers": 4, "num_heads": 2, "hidden": 8, "dropout": 0.0}
    tied, untied = (
        sum(p.numel() for p in Transformer(4, share_layers=n, **sizes).parameters())  # type: ignore[arg-type]
        for n in (2, 1)
    )
    assert report["sharing"]["saved_bytes"]["across_layers"] == (untied - tied) * 12
    assert "Layers that are tied save" in (tmp_path / "run" / "report.md").read_text()
