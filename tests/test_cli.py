"""The command line as a user meets it: exit codes, messages, and what is not loaded (B01, B03).

torch, torchrec and FBGEMM are blocked in the started processes unless said otherwise, so everything
here also holds on a machine where they do not load.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edorec import cli
from edorec.config import dump_config
from edorec.errors import InputError
from tests.toy import toy_config, write_toy

ROOT = Path(__file__).parent.parent
CONFIG = """\
data: {train: nowhere.parquet}
features: {sparse: {user: , item: }}
tasks: {click: {label: label_click}}
"""
BLOCKED = ("torch", "torchrec", "fbgemm_gpu", "duckdb", "pyarrow")


@pytest.fixture(scope="module")
def blocked(tmp_path_factory) -> dict[str, str]:
    """An environment in which importing the heavy packages fails."""
    folder = tmp_path_factory.mktemp("blocked")
    for name in BLOCKED:
        (folder / f"{name}.py").write_text(f"raise OSError('lib{name}.so: undefined symbol: x')\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def start(*arguments: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=env, cwd=cwd, timeout=60
    )


def test_b03_a_misspelt_key_is_one_line_on_stderr(tmp_path, blocked):
    (tmp_path / "ecommerce.yaml").write_text(CONFIG)
    done = start(
        str(ROOT / "train.py"),
        *("--config", "ecommerce.yaml", "--set", "train.epoch=1"),
        env=blocked,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "--set train.epoch=1: train.epoch: unknown key; did you mean train.epochs?"
    ]


def test_b01_help_and_print_config_load_nothing_heavy(tmp_path, blocked):
    (tmp_path / "my.yaml").write_text(CONFIG)
    done = start(str(ROOT / "train.py"), "--help", env=blocked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "edorec train --config kuairand" in done.stdout
    done = start(
        *("-m", "edorec.cli", "train", "--config", "my.yaml", "--print-config", "train.epochs=2"),
        env=blocked,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "epochs" in line]
    assert line.split("#")[0].strip() == "epochs: 2"
    assert line.endswith("# --set train.epochs=2")


def test_b01_a_wrong_version_is_one_line_before_torch_is_imported(tmp_path):
    for name in BLOCKED[:3]:
        (tmp_path / f"{name}.py").write_text("raise OSError('undefined symbol')\n")
    info = tmp_path / "torch-2.12.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.12.0\n")
    write_toy(tmp_path, train=10, valid=0, test=0)
    (tmp_path / "my.yaml").write_text(dump_config(toy_config(tmp_path)))
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = start(str(ROOT / "train.py"), "--config", "my.yaml", env=env, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("found torch 2.12.0, torchrec ")
    assert "; supported together are torch 2.13.0, torchrec 1.8.0, " in line
    # With the right versions, a library that does not load is one line too.
    shutil.rmtree(info)
    done = start(str(ROOT / "train.py"), "--config", "my.yaml", env=env, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("torch is installed but does not load (undefined symbol); found torch ")


@pytest.fixture
def runner(tmp_path, monkeypatch) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text(CONFIG)
    return CliRunner()


@pytest.mark.parametrize("command", ["train", "prepare", "evaluate", "tune", "init"])
def test_help_of_every_command_shows_an_example(runner, command):
    result = runner.invoke(cli.app, [command, "--help"])
    assert result.exit_code == 0
    assert f"edorec {command} " in result.stdout


def test_every_config_problem_is_told(runner):
    result = runner.invoke(
        cli.app, ["train", "--config", "my", "--set", "lr=1", "train.epochs=0", "x"]
    )
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "--set x: wanted KEY=VALUE, such as train.epochs=2",
        "--set lr=1: lr: unknown key; did you mean train.learning_rate?",
        "--set train.epochs=0: train.epochs: wanted a whole number >= 1, got 0",
    ]


def test_a_missing_config_names_those_there_are(runner):
    result = runner.invoke(cli.train_app, ["--config", "kuairnd"])
    assert result.exit_code == 2
    assert result.stderr.startswith("--config kuairnd: there is no such file in ., configs, ")
    assert "; available: kuairand.yaml, " in result.stderr


def test_columns_are_checked_before_torch_is_needed(runner, tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "load_fbgemm", lambda: pytest.fail("loaded"))
    write_toy(tmp_path, train=10, valid=0, test=0)
    (tmp_path / "my.yaml").write_text(dump_config(toy_config(tmp_path)))
    result = runner.invoke(
        cli.app, ["train", "--config", "my", "tasks.buy.label=bought", "features.dense.prise={}"]
    )
    assert result.exit_code == 2
    where = f"in {tmp_path / 'train.parquet'}; "
    assert result.stderr.splitlines() == [
        f"features.dense.prise: there is no column prise {where}did you mean price?",
        f"tasks.buy.label: there is no column bought {where}there are buy, click, item, price, "
        "user, viewed",
    ]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            InputError("part-1.parquet: row group 3: damaged"),
            2,
            "part-1.parquet: row group 3: damaged",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_of_a_run_are_one_line(runner, monkeypatch, error, code, text):
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "check_versions", fail)
    result = runner.invoke(cli.app, ["train", "--config", "my"])
    assert result.exit_code == code
    assert result.stderr == text + "\n"


def test_a_fault_of_the_program_has_its_traceback(runner, monkeypatch):
    def fail() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli, "check_versions", fail)
    result = runner.invoke(cli.app, ["train", "--config", "my"])
    assert result.exit_code == 1
    assert isinstance(result.exception, RuntimeError)
