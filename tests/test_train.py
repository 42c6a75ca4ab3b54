"""Whole runs on a small log."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from edorec.config import RunConfig
from edorec.errors import ConfigError, InputError
from edorec.evaluate import evaluate
from edorec.models.model import HEADS
from edorec.train import run
from tests.toy import toy_config, toy_rows, toy_settings, write_toy

REPORT_KEYS = {
    "run",
    "config",
    "versions",
    "tasks_split",
    "data",
    "tasks",
    "validation",
    "memory",
    "speed",
    "resumed_from_step",
    "events",
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("log"))


def train(log: Path, run_dir: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    return run(toy_config(log, **sections), run_dir=run_dir, verbosity=-1)


def figures(report: dict[str, Any]) -> str:
    """What must not change from run to run."""
    return json.dumps([report["tasks"], report["validation"], report["memory"]["total_bytes"]])


def test_a_run_learns_and_writes_its_folder(log: Path, tmp_path: Path) -> None:
    report = train(log, tmp_path / "run")
    assert set(report) >= REPORT_KEYS
    assert report["tasks_split"] == "test"
    assert report["tasks"]["click"]["auc"] > 0.7
    assert report["tasks"]["click"]["rows"] == 500
    assert report["data"]["train_rows"] == 4000
    memory = report["memory"]
    assert memory["total_bytes"] == memory["weights_bytes"] + memory["optimizer_bytes"]
    assert memory["baseline_bytes"] == sum(t["num_ids"] * (4 * 4 + 4) for t in memory["tables"])
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.yaml", "plan.json", "vocabularies", "checkpoints"} <= written
    assert {"metrics.jsonl", "report.json", "report.md"} <= written
    assert json.loads((tmp_path / "run" / "report.json").read_text())["tasks"] == report["tasks"]
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["split"] == "valid"] == [16, 32]


def test_the_same_seed_gives_the_same_figures_and_another_seed_others(
    log: Path, tmp_path: Path
) -> None:
    one, two, other = (
        train(log, tmp_path / name, train={"seed": seed})
        for name, seed in (("one", 1), ("two", 1), ("other", 2))
    )
    assert figures(one) == figures(two)
    assert figures(one) != figures(other)


def test_the_order_of_features_in_the_yaml_changes_nothing(log: Path, tmp_path: Path) -> None:
    sparse: dict[str, Any] = {"user": {}, "item": {}, "viewed": {"pooling": "mean"}}
    turned = dict(reversed(sparse.items()))
    one = train(log, tmp_path / "one", features={"sparse": sparse, "dense": {"price": {}}})
    two = train(log, tmp_path / "two", features={"sparse": turned, "dense": {"price": {}}})
    assert figures(one) == figures(two)


def test_evaluate_repeats_the_reports_figures(log: Path, tmp_path: Path) -> None:
    report = train(log, tmp_path / "run")
    again = evaluate(tmp_path / "run", files=None, split="test", verbosity=-1)
    for task, metrics in again["tasks"].items():
        for name in ("auc", "gauc", "logloss", "ne", "calibration"):
            assert metrics[name] == report["tasks"][task][name], (task, name)


def test_b56_a_rows_score_does_not_depend_on_the_other_rows(log: Path, tmp_path: Path) -> None:
    train(log, tmp_path / "run")
    rows = pq.read_table(log / "test.parquet")
    halves = []
    for name, part in (("a", rows.slice(0, 250)), ("b", rows.slice(250))):
        pq.write_table(part, tmp_path / f"{name}.parquet")
        result = evaluate(
            tmp_path / "run", files=[str(tmp_path / f"{name}.parquet")], split="test", verbosity=-1
        )
        halves.append(result["tasks"]["click"]["logloss"])
    whole = evaluate(tmp_path / "run", files=None, split="test", verbosity=-1)
    assert sum(halves) / 2 == pytest.approx(whole["tasks"]["click"]["logloss"], abs=1e-6)


def test_b39_the_best_model_is_kept_and_reported(log: Path, tmp_path: Path) -> None:
    report = train(
        log,
        tmp_path / "run",
        # A rate so high that later epochs overfit the 4,000 rows.
        embedding={"learning_rate": 0.5},
        train={
            "epochs": 6,
            "early_stopping": {"task": "click", "metric": "logloss", "patience": 2},
        },
    )
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    by_step = {
        line["step"]: line["tasks"]["click"]["logloss"]
        for line in lines
        if line["split"] == "valid"
    }
    best_step = min(by_step, key=lambda step: by_step[step])
    assert report["validation"]["click"]["logloss"] == min(by_step.values())
    (event,) = [event for event in report["events"] if event["kind"] == "early_stop"]
    assert event["best_step"] == best_step
    assert event["step"] == best_step + 2 * 16
    again = evaluate(tmp_path / "run", files=None, split="valid", verbosity=-1)
    assert again["tasks"]["click"]["logloss"] == min(by_step.values())


def test_b25_a_diverging_run_stops_and_names_step_and_cause(log: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"loss is not finite at step \d+ \(task .*click.*\)"):
        train(
            log,
            tmp_path / "run",
            embedding={"learning_rate": 1e30, "optimizer": "sgd"},
            train={"learning_rate": 1e20},
        )
    assert not (tmp_path / "run" / "checkpoints" / "best.pt").exists()


def test_b35_a_last_batch_of_one_row_with_batch_norm(tmp_path: Path) -> None:
    log = write_toy(tmp_path / "log", train=33, valid=20, test=1)
    report = train(log, tmp_path / "run", train={"batch_size": 32}, model={"batch_norm": True})
    (event,) = [event for event in report["events"] if event["kind"] == "skipped_rows"]
    assert event["rows"] == 2  # one in each of two epochs
    assert report["tasks"]["click"]["rows"] == 1


def test_b29_one_class_in_validation_and_test_does_not_end_the_run(tmp_path: Path) -> None:
    log = write_toy(tmp_path / "log", train=300, valid=0, test=0)
    negatives = toy_rows(40, seed=5)
    for name in ("click", "buy"):
        index = negatives.column_names.index(name)
        negatives = negatives.set_column(index, name, pa.array([0] * 40, pa.int8()))
    for name in ("valid", "test"):
        pq.write_table(negatives, log / f"{name}.parquet")
    report = train(log, tmp_path / "run")
    assert report["tasks"]["click"]["auc"] is None
    assert report["tasks"]["click"]["ne"] is None
    assert report["tasks"]["click"]["logloss"] > 0


def test_b55_batches_in_which_all_bags_are_empty(tmp_path: Path) -> None:
    log = write_toy(tmp_path / "log", train=200, valid=0, test=0)
    rows = pq.read_table(log / "train.parquet")
    empty = pa.array([[]] * 200, pa.list_(pa.int64()))
    pq.write_table(rows.set_column(2, "viewed", empty), log / "train.parquet")
    report = train(log, tmp_path / "run", train={"batch_size": 50})
    assert report["tasks_split"] == "train"
    assert report["tasks"]["click"]["logloss"] > 0


def test_null_labels_of_one_task_leave_the_other_alone(tmp_path: Path) -> None:
    log = write_toy(tmp_path / "log", train=400, valid=100, test=100)
    for name in ("train", "valid", "test"):
        rows = pq.read_table(log / f"{name}.parquet")
        labels = rows["buy"].to_pylist()
        labels[::2] = [None] * len(labels[::2])
        index = rows.column_names.index("buy")
        rows = rows.set_column(index, "buy", pa.array(labels, pa.int8()))
        pq.write_table(rows, log / f"{name}.parquet")
    report = train(log, tmp_path / "run")
    assert report["tasks"]["click"]["rows"] == 100
    assert report["tasks"]["buy"]["rows"] == 50


@pytest.mark.parametrize(
    ("backbone", "head"),
    [("deepfm", head) for head in HEADS if head != "stem"]
    + [(backbone, "mmoe") for backbone in ("dlrm", "dcnv2")],
)
def test_every_model_trains(log: Path, tmp_path: Path, backbone: str, head: str) -> None:
    report = train(
        log,
        tmp_path / "run",
        model={"backbone": {"name": backbone}, "head": {"name": head}},
        train={"epochs": 8},
    )
    assert report["tasks"]["click"]["auc"] > 0.65


def test_stem_trains(log: Path, tmp_path: Path) -> None:
    own = {task: {"rows": 50, "dim": 2} for task in ("click", "buy")}
    report = train(
        log,
        tmp_path / "run",
        vocabularies={"user": {"task_specific": own}, "item": {"task_specific": own}},
        model={"head": {"name": "stem"}},
        train={"epochs": 4},
    )
    assert report["tasks"]["click"]["auc"] > 0.7


def test_esmm_refuses_labels_that_are_no_funnel(log: Path, tmp_path: Path) -> None:
    settings = toy_settings(log, model={"head": {"name": "esmm"}})
    settings["tasks"] = dict(reversed(settings["tasks"].items()))
    with pytest.raises(InputError, match=r"[\d,]+ rows of train have click without buy; list"):
        run(RunConfig.model_validate(settings), run_dir=tmp_path / "run", verbosity=-1)


def test_learned_task_weights_are_reported(log: Path, tmp_path: Path) -> None:
    report = train(log, tmp_path / "run", train={"task_weights": "uncertainty"})
    (event,) = [event for event in report["events"] if event["kind"] == "task_weights"]
    # Of the two losses that of buy is smaller, so its weight has fallen less.
    assert 1 > event["buy"] > event["click"]
    assert report["tasks"]["click"]["auc"] > 0.7


@pytest.mark.parametrize("pooling", ["din", "transformer"])
def test_lists_as_sequences_train_and_load(log: Path, tmp_path: Path, pooling: str) -> None:
    """Ids of the list share the table of users, from whom the model attends to them."""
    viewed = {"vocabulary": "user", "pooling": pooling, "max_length": 3}
    report = train(
        log,
        tmp_path / "run",
        features={"sparse": {"user": {}, "item": {}, "viewed": viewed}},
        model={"transformer": {"num_layers": 2, "share_layers": 2}},
        memory={"format": "int8"},
    )
    assert report["tasks"]["click"]["auc"] > 0.7
    assert [table["name"] for table in report["memory"]["tables"]] == ["item", "user"]
    again = evaluate(tmp_path / "run", files=None, split="test", verbosity=-1)
    assert again["tasks"]["click"]["logloss"] == report["tasks"]["click"]["logloss"]
    saved = torch.load(tmp_path / "run" / "checkpoints" / "best.pt")["dense"]
    layers = {name.split(".")[3] for name in saved if name.startswith("poolings.0.layers.")}
    assert layers == ({"0"} if pooling == "transformer" else set())


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adagrad", "sgd"])
@pytest.mark.parametrize("row_format", ["fp32", "fp16"])
def test_every_optimizer_and_format_trains(
    log: Path, tmp_path: Path, optimizer: str, row_format: str
) -> None:
    rate = 5.0 if optimizer == "sgd" else 0.1
    report = train(
        log,
        tmp_path / "run",
        embedding={"optimizer": optimizer, "learning_rate": rate},
        memory={"format": row_format},
    )
    assert report["tasks"]["click"]["auc"] > 0.7
    bytes_a_row = {"fp32": 16, "fp16": 8}[row_format]
    rows = sum(table["rows"] for table in report["memory"]["tables"])
    assert report["memory"]["weights_bytes"] == rows * bytes_a_row


def test_bf16_arithmetic_trains_and_evaluates_in_fp32(log: Path, tmp_path: Path) -> None:
    report = train(log, tmp_path / "run", train={"matmul_precision": "bf16"})
    assert report["tasks"]["click"]["auc"] > 0.7


def test_tf32_without_cuda_is_refused_before_anything_is_written(log: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.matmul_precision is tf32, which only CUDA"):
        train(log, tmp_path / "run", train={"matmul_precision": "tf32", "device": "cpu"})
    assert not (tmp_path / "run").exists()


def test_a_run_folder_in_use_is_refused(log: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        train(log, tmp_path / "run")
