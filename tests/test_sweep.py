"""A sweep by commands: table, plots, resumed, refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from edorec.config import RunConfig
from edorec.errors import InputError
from edorec.sweep import sweep
from tests.toy import toy_config, write_config, write_toy


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("log"), train=1000, valid=200, test=300)


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "edorec.cli", "sweep", "--config", "my.yaml"]
    return subprocess.run(
        [*start, "--run-dir", "out", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def configs(log: Path, *budgets: float, **sections: dict[str, Any]) -> dict[str, RunConfig]:
    return {str(b): toy_config(log, memory={"budget": b}, **sections) for b in budgets}


def test_a_sweep_and_its_continuation(log: Path, tmp_path: Path) -> None:
    write_config(tmp_path / "my.yaml", toy_config(log, memory={"format": "int8"}))
    done = command(tmp_path, "--budgets", "1.0,0.3")
    assert done.returncode == 0, done.stderr
    assert "run 3 of 3: budget 0.3, seed 0" in done.stderr
    out = tmp_path / "out"
    first = json.loads((out / "sweep.json").read_text())
    fp32, whole, small = first["contenders"]
    assert [c["name"] for c in (fp32, whole, small)] == ["FP32", "budget 1.0", "budget 0.3"]
    assert first["baseline"] == "FP32 rows for all ids, FBGEMM"
    assert small["of_fp32"] <= 0.3 < 1 < whole["of_fp32"] == fp32["of_fp32"]
    assert abs(whole["auc"]["click"]["mean"] - fp32["auc"]["click"]["mean"]) < 0.02
    assert small["serving_bytes"] < fp32["serving_bytes"]
    assert "| budget 0.3 |" in (out / "sweep.md").read_text()
    assert matplotlib.image.imread(out / "sweep.png").std() > 0
    assert (out / "sweep.svg").read_text().startswith("<?xml")

    reports = {path: path.stat().st_mtime_ns for path in out.rglob("report.json")}
    assert len(reports) == 3
    # As if it had been killed in the middle of a run.
    cut = out / "budget-0.3" / "seed-0" / "report.json"
    cut.unlink()
    done = command(tmp_path, "--budgets", "1.0,0.3", "--seeds", "2")
    assert done.returncode == 0, done.stderr
    assert "run 1 of 6" not in done.stderr
    assert "run 3 of 6: budget 0.3, seed 0" in done.stderr
    assert all(path.stat().st_mtime_ns == time for path, time in reports.items() if path != cut)
    second = json.loads((out / "sweep.json").read_text())
    small_again = second["contenders"][2]
    assert small_again["seeds"] == [0, 1]
    assert small_again["auc_minus_fp32"]["click"]["sd"] is not None
    seed_0 = json.loads(cut.read_text())
    assert seed_0["tasks"]["click"]["auc"] == small["auc"]["click"]["mean"]


def test_a_budget_that_is_too_small_is_refused_before_training(log: Path, tmp_path: Path) -> None:
    write_config(tmp_path / "my.yaml", toy_config(log))
    done = command(tmp_path, "--budgets", "1.0,0.0001")
    assert done.returncode == 2
    assert "0.0001 is too small: the smallest plan takes" in done.stderr
    assert not list((tmp_path / "out").rglob("report.json"))


def test_other_settings_or_another_folder_are_refused(log: Path, tmp_path: Path) -> None:
    first = configs(log, 0.5)
    sweep(first, num_seeds=1, run_dir=tmp_path / "out", verbosity=-1)
    other = configs(log, 0.5, train={"learning_rate": 0.02})
    with pytest.raises(InputError, match="holds a run with other settings"):
        sweep(other, num_seeds=1, run_dir=tmp_path / "out", verbosity=-1)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("")
    with pytest.raises(InputError, match=r"is not empty and holds no sweep \(sweep.json\)"):
        sweep(first, num_seeds=1, run_dir=tmp_path / "full", verbosity=-1)


def test_where_fbgemm_lacks_the_optimizer_the_baseline_is_ours(log: Path, tmp_path: Path) -> None:
    adam = configs(log, 0.5, embedding={"optimizer": "adam"})
    result = sweep(adam, num_seeds=1, run_dir=tmp_path / "out", verbosity=-1)
    assert result["baseline"] == "FP32 rows for all ids, edorec"
