"""Several processes train what one trains."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from edorec.config import RunConfig
from edorec.recommender import Recommender
from edorec.train import run
from tests.checkpoints.runs import load_best, logged
from tests.processes.commands import finished, torchrun_command, train
from tests.toy import toy_config, write_config, write_toy

NUM_ITEMS = 4091
BANDS = [
    {"min_count": 20, "format": "fp16"},
    {"min_count": 3, "format": "int8", "state": "bf16"},
    {"format": "ternary", "state": "log8"},
]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of 3 rows, of 1 and of 4091 (B60)."""
    folder = write_toy(tmp_path_factory.mktemp("log"), train=6000, valid=400, test=400)
    rng = np.random.default_rng(5)
    for name in ("train", "valid", "test"):
        rows = pq.read_table(folder / f"{name}.parquet")
        items = rng.integers(0, NUM_ITEMS - 1, len(rows))
        if name == "train":
            items[: NUM_ITEMS - 1] = np.arange(NUM_ITEMS - 1)
        rows = rows.set_column(rows.schema.get_field_index("item"), "item", pa.array(items))
        if name == "valid":  # only negatives in the half that one of two processes scores (B29)
            for task in ("click", "buy"):
                labels = rows[task].to_numpy().copy()
                labels[len(rows) // 2 :] = 0
                place = rows.schema.get_field_index(task)
                rows = rows.set_column(place, task, pa.array(labels))
        place = rows.schema.get_field_index("user")
        rows = rows.set_column(place, "user", pa.array(np.arange(len(rows)) % 2))
        pq.write_table(
            rows.append_column("shop", pa.array([7] * len(rows))), folder / f"{name}.parquet"
        )
    return folder


def config_of(log: Path, **sections: Any) -> RunConfig:
    wanted: dict[str, Any] = {
        "features": {
            "sparse": {
                "user": {},
                "item": {},
                "shop": {},
                "viewed": {"pooling": "mean"},
                "seen": {"column": "viewed", "vocabulary": "viewed", "pooling": "sum"},
            }
        },
        "vocabularies": {
            "user": {"min_count": 1, "buckets": 1},
            "item": {"min_count": 1, "buckets": 1},
            "shop": {"min_count": 100_000, "buckets": 1},
        },
        "train": {"epochs": 1, "batch_size": 255, "evaluate_every_steps": 10},
        "checkpoint": {"every_minutes": None},
    }
    return toy_config(
        log, **{k: {**wanted.get(k, {}), **sections.get(k, {})} for k in wanted | sections}
    )


def run_in(
    num_processes: int, config: RunConfig, folder: Path, *, by_torchrun: bool = False
) -> dict[str, Any]:
    """The report of a run in a new folder."""
    path = write_config(folder.with_suffix(".yaml"), config)
    if by_torchrun:
        done = finished(torchrun_command(num_processes, path, folder))
    else:
        done = train(path, folder, "--nproc", str(num_processes))
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def rows_of(recommender: Recommender) -> dict[str, torch.Tensor]:
    tables = recommender.tables
    return {name: tables.tables.weight(name) for name in tables.table_names}  # type: ignore[attr-defined]


def assert_alike(one: Path, other: Path, config: RunConfig, *, tolerance: float) -> None:
    """Loss curve, tables and metrics of two runs."""
    for mine, theirs in zip(logged(one), logged(other), strict=True):
        assert mine.keys() == theirs.keys()
        if "loss" in mine:
            assert mine["rows"] == theirs["rows"]
            assert mine["loss"] == pytest.approx(theirs["loss"], abs=tolerance)
        else:
            for task, metrics in mine["tasks"].items():
                assert metrics["auc"] == pytest.approx(theirs["tasks"][task]["auc"], abs=1e-3)
    mine, theirs = (rows_of(load_best(folder, config)) for folder in (one, other))
    for name, rows in mine.items():
        worst = float((rows - theirs[name]).abs().max())
        assert worst <= tolerance, (name, worst)


@pytest.mark.parametrize(
    ("memory", "sharding", "tolerance"),
    [
        ({"format": "fp32"}, "row_wise", 1e-5),
        ({"format": "int8"}, "table_wise", 2e-3),
        pytest.param({"format": "fp32"}, "table_wise", 1e-5, marks=pytest.mark.slow),
        pytest.param({"format": "int8"}, "row_wise", 2e-3, marks=pytest.mark.slow),
        pytest.param({"format": "fp16"}, "row_wise", 1e-3, marks=pytest.mark.slow),
        pytest.param({"format": "int4"}, "row_wise", 0.1, marks=pytest.mark.slow),
        pytest.param({"format": "int2"}, "table_wise", 0.3, marks=pytest.mark.slow),
        pytest.param({"bands": BANDS}, "row_wise", 0.3, marks=pytest.mark.slow),
    ],
)
def test_b29_b60_two_processes_train_what_one_trains(
    log: Path, tmp_path: Path, memory: dict[str, Any], sharding: str, tolerance: float
) -> None:
    config = config_of(log, memory=memory, embedding={"sharding": sharding})
    whole = run(config, run_dir=tmp_path / "one", verbosity=-1)
    report = run_in(2, config, tmp_path / "two", by_torchrun=sharding == "row_wise")
    assert_alike(tmp_path / "two", tmp_path / "one", config, tolerance=tolerance)
    assert report["data"]["rows_by_rank"] == [2988, 3012]
    assert {t["name"]: t["rows"] for t in report["memory"]["tables"]} | {"viewed": None} == {
        "user": 3,
        "item": NUM_ITEMS,
        "shop": 1,
        "viewed": None,
    }
    assert all(metrics["auc"] is not None for metrics in report["validation"].values())
    assert report["memory"]["total_bytes"] == whole["memory"]["total_bytes"]
    held = [process["table_bytes"] for process in report["processes"]]
    assert sum(held) == whole["memory"]["total_bytes"]
    assert min(held) > (0.45 if sharding == "row_wise" else 0.01) * sum(held)
    for task, metrics in whole["tasks"].items():
        assert report["tasks"][task]["rows"] == metrics["rows"]
        assert report["tasks"][task]["auc"] == pytest.approx(metrics["auc"], abs=1e-3)
        assert report["tasks"][task]["gauc"] == pytest.approx(metrics["gauc"], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["table_wise", "row_wise"])
def test_b60_three_processes_train_what_one_trains(
    log: Path, tmp_path: Path, sharding: str
) -> None:
    config = config_of(log, memory={"format": "fp32"}, embedding={"sharding": sharding})
    whole = run(config, run_dir=tmp_path / "one", verbosity=-1)
    report = run_in(3, config, tmp_path / "three")
    assert_alike(tmp_path / "three", tmp_path / "one", config, tolerance=1e-5)
    assert len(report["processes"]) == 3
    assert report["memory"]["total_bytes"] == whole["memory"]["total_bytes"]
