"""Runs that are compared: what a report and a run folder must have in common."""

import json
from pathlib import Path
from typing import Any

import torch

from edorec.checkpoint import load_model, saved_formats
from edorec.config import RunConfig
from edorec.data.prepare import load_prepared
from edorec.recommender import Recommender, build_recommender


def figures(report: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on interruptions."""
    clock = ("peak_rss_bytes", "paging")
    memory = {k: v for k, v in report["memory"].items() if k not in clock}
    return {
        "tasks": report["tasks"],
        "validation": report["validation"],
        "data": report["data"],
        "memory": memory,
        "events": report["events"],
        "steps": report["speed"]["train_steps"],
    }


def logged(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what the clock decides."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    clock = ("time", "rows_per_second", "rss_bytes", "paging", "memory")
    return [{k: v for k, v in line.items() if k not in clock} for line in lines]


def load_best(run_dir: Path, config: RunConfig) -> Recommender:
    """The best model of a run."""
    prepared = load_prepared(run_dir / "vocabularies")
    path = run_dir / "checkpoints" / "best.pt"
    recommender = build_recommender(
        config,
        prepared.vocabularies,
        device=torch.device("cpu"),
        formats=saved_formats(path),
    )
    load_model(path, model=recommender.model, tables=recommender.tables)
    return recommender


def assert_same_model(one: Recommender, other: Recommender) -> None:
    """Bit for bit: dense weights, rows and optimizer state."""
    weights = other.model.state_dict()
    for name, weight in one.model.state_dict().items():
        assert torch.equal(weight, weights[name]), name
    tables = other.tables.tables_state()
    for table, bands in one.tables.tables_state().items():
        for band, rows in bands.items():
            assert torch.equal(rows, tables[table][band]), (table, band)


def assert_same_runs(one: Path, other: Path, config: RunConfig) -> None:
    """The best models, bit for bit, and all lines of metrics."""
    assert_same_model(load_best(one, config), load_best(other, config))
    assert logged(one) == logged(other)
