"""What prepare and evaluate show."""

from typer.testing import CliRunner

from edorec.cli import app
from edorec.config import dump_config
from edorec.summaries import print_evaluation
from tests.toy import toy_config, write_toy


def test_prepare_shows_ids_and_says_when_it_did_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    config = toy_config(write_toy(tmp_path, train=300, valid=50, test=50))
    (tmp_path / "toy.yaml").write_text(dump_config(config))
    arguments = ["prepare", "--config", str(tmp_path / "toy.yaml")]
    first, second, quiet = (
        CliRunner().invoke(app, [*arguments, *extra]) for extra in ([], [], ["-q"])
    )
    assert first.exit_code == second.exit_code == quiet.exit_code == 0, first.output
    cells = [[c.strip() for c in line.split("│")[1:-1]] for line in first.stdout.splitlines()]
    assert ["train", "300", "1"] in cells
    (items,) = [row for row in cells if row[:1] == ["item"] and len(row) == 6]
    assert int(items[2]) > 10
    assert all(share.endswith("%") for share in items[3:])
    assert "prepared in " in first.stdout
    assert "used again what was prepared in " in second.stdout
    assert quiet.stdout == ""


def test_undefined_metrics_are_not_available(capsys):
    metrics = {"auc": None, "gauc": 0.51239, "logloss": 0.3, "ne": None, "calibration": 1.0}
    print_evaluation({"tasks": {"click": {**metrics, "rows": 12_345, "positives": 0}}})
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "click" in line]
    cells = [cell.strip() for cell in line.split("│")[1:-1]]
    assert cells == ["click", "n/a", "0.5124", "0.3000", "n/a", "1.0000", "12,345", "0"]
