"""Reports: files, plots, screen, diagnosis."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from rich.console import Console

from edorec.diagnosis import diagnose
from edorec.errors import InputError
from edorec.report import MetricsLog, print_summary, write_report


def task(auc: float | None = 0.75, **changes: Any) -> dict[str, Any]:
    metrics = {
        "auc": auc,
        "gauc": None,
        "logloss": 0.5,
        "ne": 0.9,
        "calibration": 1.02,
        "rows": 1000,
        "positives": 300,
        "best_reachable_auc": 0.81,
        "by_frequency": [
            {
                "feature": "item",
                "decile": 0,
                "rows": 90,
                "positives": 9,
                "auc": 0.7,
                "calibration": 1.0,
            },
            {
                "feature": "item",
                "decile": 10,
                "rows": 8,
                "positives": 0,
                "auc": None,
                "calibration": None,
            },
        ],
        "unseen_ids": {"rows": 8, "positives": 0, "auc": None, "logloss": 0.3, "calibration": None},
        "calibration_curve": [
            {"predicted": 0.1, "observed": 0.12, "rows": 500},
            {"predicted": 0.5, "observed": 0.48, "rows": 500},
        ],
    }
    return metrics | changes


def report(run_dir: Path, **tasks: dict[str, Any]) -> dict[str, Any]:
    tasks = tasks or {"click": task()}
    table = {"name": "item", "rows": 10, "buckets": 1, "num_ids": 12, "dim": 4, "format": "fp32"}
    content = {
        "run": str(run_dir),
        "tasks_split": "test",
        "tasks": tasks,
        "validation": {name: {"auc": 0.76} for name in tasks},
        "data": {
            "train_rows": 4000,
            "test_rows": 1000,
            "counts": {
                "warnings": ["feature x alone gives AUC 1.0"],
                "lookups": {"test": {"item": 1000}},
                "unseen_ids": {"test": {"item": 8}},
                "filled_values": {"train": {"price": 17}},
            },
        },
        "memory": {
            "baseline_bytes": 240,
            "weights_bytes": 160,
            "optimizer_bytes": 40,
            "total_bytes": 200,
            "peak_rss_bytes": 500_000_000,
            "tables": [{**table, "weights_bytes": 160, "optimizer_bytes": 40}],
        },
        "sharing": {
            "separate_bytes": 400,
            "saved_bytes": {"across_tasks": 200, "within_task": 0, "across_layers": 0},
            "task_specific_bytes": 0,
        },
        "speed": {
            "prepare_seconds": 1.0,
            "train_seconds": 2.0,
            "train_rows_per_second": 2000.0,
            "train_steps": 16,
            "eval_rows_per_second": 5000.0,
        },
        "events": [{"kind": "early_stop", "step": 3}],
    }
    content["diagnosis"] = diagnose(content)
    return content


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        for step in (1, 2, 3):
            log.write({"step": step, "split": "train", "loss": 1 / step})
        tasks = {"click": {"auc": 0.7}, "buy": {"auc": None}}
        log.write({"step": 3, "split": "valid", "tasks": tasks})
    return tmp_path


def test_the_folder_gets_report_and_readable_plots(run_dir: Path) -> None:
    content = report(run_dir)
    write_report(run_dir, content)
    assert json.loads((run_dir / "report.json").read_text()) == content
    for name in ("learning_curves.png", "calibration.png", "memory_by_table.png"):
        height, width, _ = matplotlib.image.imread(run_dir / name).shape
        assert min(height, width) > 100
        assert f"]({name})" in (run_dir / "report.md").read_text()
    assert not list(run_dir.glob("*.tmp"))


def test_the_text_has_every_figure(run_dir: Path) -> None:
    write_report(run_dir, report(run_dir))
    text = (run_dir / "report.md").read_text()
    assert "| click | 0.7500 | 0.8100 | n/a | 0.5000 | 0.9000 | 1.0200 | 1,000 | 300 |" in text
    assert "| click | item | 1 | 90 | 9 | 0.7000 | 1.0000 |" in text
    assert "| click | item | unseen | 8 | 0 | n/a | n/a |" in text
    assert "| item | 1,000 | 0.80% |" in text
    assert "| filled values | train | price | 17 |" in text
    assert "| item | 10 | 1 | 12 | 4 | fp32 | 160 | 40 |" in text
    assert "tables: 200 B (rows 160 B, optimizer state 40 B), 0.83 of FP32" in text
    assert "feature x alone gives AUC 1.0" in text
    assert '"kind": "early_stop"' in text


def test_a_value_that_is_not_a_number_never_reaches_the_report(run_dir: Path) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        write_report(run_dir, report(run_dir, click=task(auc=float("nan"))))
    assert not (run_dir / "report.json").exists()


def test_the_screen_shows_undefined_metrics_as_such(run_dir: Path) -> None:
    output = io.StringIO()
    content = report(run_dir, click=task(), buy=task(auc=None, best_reachable_auc=None))
    print_summary(content, Console(file=output, width=120))
    rows = [line.split("│")[1:-1] for line in output.getvalue().splitlines() if "│" in line]
    shown = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows}
    assert shown["click"] == ["0.7500", "0.8100", "n/a", "0.9000", "1.0200"]
    assert shown["buy"] == ["n/a", "n/a", "n/a", "0.9000", "1.0200"]
    assert f"report: {run_dir}/report.md" in output.getvalue()


def test_tensorboard_gets_the_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with MetricsLog(tmp_path / "m.jsonl", tensorboard_folder=tmp_path / "tb") as log:
        log.write({"step": 1, "split": "train", "loss": 0.5, "losses": {"click": 0.25}})
    (events,) = (tmp_path / "tb").iterdir()
    content = events.read_bytes()
    assert b"train/loss" in content
    assert b"train/losses/click" in content


def test_tensorboard_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"edorec\[tensorboard\]"):
        MetricsLog(tmp_path / "m.jsonl", tensorboard_folder=tmp_path / "tb")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"calibration_curve": [{"predicted": 0.3, "observed": 0.3, "rows": 1000}]},
            "every score is 0.3000",
        ),
        ({"unseen_ids": {"rows": 990}}, "99% of the rows have an id that training never saw"),
        ({"positives": 3}, "there are 3 positives in 1000 rows, too few to tell"),
        ({}, "its validation AUC is 0.760; compare tasks.click.label"),
    ],
)
def test_an_auc_near_one_half_comes_with_a_diagnosis(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    sentences = report(tmp_path, click=task(auc=0.51, **changes))["diagnosis"]
    assert any(
        text.startswith("click has AUC 0.510, no better than chance: ") and sentence in text
        for text in sentences
    )


def test_a_model_that_learned_needs_no_diagnosis(tmp_path: Path) -> None:
    assert report(tmp_path, click=task(), buy=task(auc=None))["diagnosis"] == []
