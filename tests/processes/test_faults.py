"""One process fails: all stop, and its error is shown once (B58); odd splits end (B57)."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edorec.checkpoints.folder import steps_of
from edorec.config import RunConfig
from edorec.errors import ConfigError
from edorec.process_checks import check_processes
from edorec.processes import Processes
from edorec.train import run
from tests.checkpoints.runs import assert_same_model, assert_same_runs, figures, load_best
from tests.processes.commands import LIMIT_SECONDS, train, train_command
from tests.toy import toy_config, toy_rows, write_config, write_toy

END_SECONDS = 60


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("log"), train=3000, valid=100, test=100)


def children_of(process: subprocess.Popen[str]) -> dict[int, int]:
    """Ids of a process's children by rank."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ranks = {}
    for child in listed:
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        found = [v.split(b"=")[1] for v in variables if v.startswith(b"RANK=")]
        if found:
            ranks[int(found[0])] = int(child)
    return ranks


def long_config(log: Path) -> RunConfig:
    """Of a run that saves often enough to be killed between two checkpoints."""
    return toy_config(
        log,
        memory={"format": "int8"},
        embedding={"sharding": "row_wise"},
        train={"epochs": 5, "batch_size": 100, "evaluate_every_steps": 30},
        checkpoint={"every_steps": 7, "every_minutes": None},
    )


def train_until_killed(path: Path, folder: Path) -> tuple[int, str]:
    """Trains in two processes, kills the second after a checkpoint; exit code and what was told."""
    process = subprocess.Popen(
        train_command(path, folder, "--nproc", "2"), stderr=subprocess.PIPE, text=True
    )
    try:
        started = time.monotonic()
        while not steps_of(folder / "checkpoints"):
            assert time.monotonic() - started < LIMIT_SECONDS
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(children_of(process)[1], signal.SIGKILL)
        _, told = process.communicate(timeout=END_SECONDS)
    finally:
        process.terminate()  # its children with it
        process.wait()
    return process.returncode, told


def test_b46_b50_b58_a_killed_process_ends_all_and_another_number_goes_on(
    log: Path, tmp_path: Path
) -> None:
    config = long_config(log)
    path, folder = write_config(tmp_path / "my.yaml", config), tmp_path / "run"
    exit_code, told = train_until_killed(path, folder)
    assert exit_code == 1
    assert told.count("process 1 of 2 was ended by SIGKILL") == 1
    assert "Traceback" not in told

    done = train(path, folder, "--nproc", "3", "--resume")
    assert done.returncode == 0, done.stderr
    assert "going on from" in done.stderr
    report = json.loads((folder / "report.json").read_text())
    assert [process["rank"] for process in report["processes"]] == [0, 1, 2]
    assert sum(p["table_bytes"] for p in report["processes"]) == report["memory"]["total_bytes"]
    whole = run(config, run_dir=tmp_path / "whole", verbosity=-1)
    assert report["speed"]["train_steps"] == whole["speed"]["train_steps"]
    for task, metrics in whole["tasks"].items():
        assert report["tasks"][task]["logloss"] == pytest.approx(metrics["logloss"], abs=0.01)


@pytest.mark.slow
def test_b50_two_processes_go_on_as_if_they_had_not_been_killed(log: Path, tmp_path: Path) -> None:
    config = long_config(log)
    path, folder = write_config(tmp_path / "my.yaml", config), tmp_path / "run"
    train_until_killed(path, folder)
    for run_dir in (folder, tmp_path / "whole"):
        done = train(path, run_dir, "--nproc", "2", "--resume")
        assert done.returncode == 0, done.stderr
    found, wanted = (
        json.loads((run_dir / "report.json").read_text())
        for run_dir in (folder, tmp_path / "whole")
    )
    assert found["resumed_from_step"] >= 7
    assert wanted["resumed_from_step"] is None
    assert figures(found) == figures(wanted)
    assert_same_runs(folder, tmp_path / "whole", config)


@pytest.mark.slow
def test_b50_checkpoints_of_two_processes_load_in_one_and_back(log: Path, tmp_path: Path) -> None:
    """An epoch in two processes, one in one, one in two: with one row a step, bit for bit.

    Lists are summed: several processes divide a mean behind the sum, which rounds differently.
    """
    base: dict[str, Any] = {
        "features": {"sparse": {"user": {}, "item": {}, "viewed": {"pooling": "sum"}}},
        "memory": {"format": "int8"},
        "embedding": {"sharding": "row_wise"},
        "train": {"epochs": 3, "batch_size": 1, "decay": "none", "evaluate_every_steps": None},
        "checkpoint": {"every_minutes": 5},
    }
    small = write_toy(tmp_path / "log", train=120, valid=50, test=50)
    config = toy_config(small, **base)
    whole = run(config, run_dir=tmp_path / "whole", verbosity=-1)
    path, folder = write_config(tmp_path / "my.yaml", config), tmp_path / "run"
    for epochs, num_processes in ((1, "2"), (2, "1"), (3, "2")):
        arguments = ["--nproc", num_processes, "--resume", f"train.epochs={epochs}"]
        done = train(path, folder, *arguments)
        assert done.returncode == 0, done.stderr
    report = json.loads((folder / "report.json").read_text())
    assert report["resumed_from_step"] == 240
    assert_same_model(load_best(folder, config), load_best(tmp_path / "whole", config))
    for task, metrics in whole["tasks"].items():
        assert report["tasks"][task]["logloss"] == pytest.approx(metrics["logloss"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rows_by_rank", [[3, 4], [0, 3, 4]], ids=["2", "3"])
def test_b57_fewer_rows_than_processes_at_a_step(tmp_path: Path, rows_by_rank: list[int]) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    pq.write_table(toy_rows(7), folder / "train.parquet")
    pq.write_table(toy_rows(7, seed=1), folder / "valid.parquet")
    config = toy_config(folder, train={"batch_size": 2, "eval_batch_size": 2, "epochs": 2})
    whole = run(config, run_dir=tmp_path / "one", verbosity=-1)
    path = write_config(tmp_path / "my.yaml", config)
    done = train(path, tmp_path / "run", "--nproc", str(len(rows_by_rank)))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["data"]["rows_by_rank"] == rows_by_rank
    assert report["speed"]["train_steps"] == 8
    for task, metrics in whole["validation"].items():
        assert report["validation"][task]["rows"] == metrics["rows"] == 7
        assert report["validation"][task]["logloss"] == pytest.approx(metrics["logloss"], abs=1e-5)


def test_b58_an_error_in_the_data_is_shown_once(log: Path, tmp_path: Path) -> None:
    broken = write_toy(tmp_path / "log", train=100, valid=50, test=0)
    rows = pq.read_table(broken / "train.parquet")
    labels = rows["click"].to_pylist()
    labels[70] = 3
    place = rows.schema.get_field_index("click")
    rows = rows.set_column(place, "click", pa.array(labels, pa.int8()))
    pq.write_table(rows, broken / "train.parquet")
    path = write_config(tmp_path / "my.yaml", toy_config(broken))
    started = time.monotonic()
    done = train(path, tmp_path / "run", "--nproc", "2")
    assert time.monotonic() - started < LIMIT_SECONDS
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.count("row 70") == 1
    assert not steps_of(tmp_path / "run" / "checkpoints")


def test_b58_a_damaged_second_file_is_shown_once(log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    for name in ("valid", "test"):
        shutil.copy(log / f"{name}.parquet", folder)
    whole = (log / "train.parquet").read_bytes()
    (folder / "train-1.parquet").write_bytes(whole)
    (folder / "train-2.parquet").write_bytes(whole[: len(whole) // 2])
    config = toy_config(folder, data={"train": "train-*.parquet"})
    done = train(write_config(tmp_path / "my.yaml", config), tmp_path / "run", "--nproc", "2")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.count("train-2.parquet") == 1
    assert "train-1.parquet" not in done.stderr
    assert not steps_of(tmp_path / "run" / "checkpoints")


REFUSED = {
    "model.batch_norm": {"model": {"batch_norm": True}},
    "train.task_weights": {"train": {"task_weights": "uncertainty"}},
    "embedding.backend": {"embedding": {"backend": "fbgemm"}},
    "features.sparse.viewed.pooling is din": {
        "features": {
            "sparse": {"item": {}, "viewed": {"vocabulary": "item", "pooling": "din"}},
        },
    },
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_several_processes_cannot_do_is_refused(log: Path, key: str) -> None:
    config: RunConfig = toy_config(log, **REFUSED[key])
    check_processes(config, Processes())
    with pytest.raises(ConfigError, match=key):
        check_processes(config, Processes(rank=1, world_size=2))
