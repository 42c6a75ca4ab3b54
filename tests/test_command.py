"""The way of a newcomer: a log, a first configuration, a model, its evaluation, by commands."""

import json
import subprocess
import sys
from pathlib import Path

from tests.toy import write_toy

EDOREC = [sys.executable, "-m", "edorec.cli"]


def command(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*EDOREC, *args], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_from_a_log_to_an_evaluated_model(tmp_path: Path) -> None:
    write_toy(tmp_path / "log")
    command("init", str(tmp_path / "log"), "--out", "mine.yaml", cwd=tmp_path)
    trained = command(
        "train", "--config", "mine.yaml", "--run-dir", "run", "train.num_threads=1", cwd=tmp_path
    )
    assert "validation AUC click" in trained.stderr
    assert "best so far" in trained.stderr
    assert "report: run/report.md" in trained.stdout
    assert "Traceback" not in trained.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["tasks"]["click"]["auc"] > 0.55
    shown = command("evaluate", "run", cwd=tmp_path).stdout
    assert f"{report['tasks']['click']['auc']:.4f}" in shown
    quiet = command(
        "train", "--config", "run/config.yaml", "--run-dir", "again", "-q", cwd=tmp_path
    )
    assert (quiet.stdout, quiet.stderr) == ("", "")
    again = json.loads((tmp_path / "again" / "report.json").read_text())
    assert again["tasks"] == report["tasks"]
