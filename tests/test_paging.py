"""Whole runs with tables on disk: the same losses, model and checkpoints as in memory."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edorec.config import RunConfig, dump_config
from edorec.embedding.storage import is_in_memory
from edorec.errors import ConfigError
from edorec.evaluate import evaluate
from edorec.train import run
from tests.checkpoints.runs import assert_same_model, load_best
from tests.config_samples import GOOD, problems, write
from tests.toy import toy_config, write_toy

ROOT = Path(__file__).parents[1]
GIB = 2**30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy"))


def config_of(folder: Path, **memory: Any) -> RunConfig:
    return toy_config(folder, memory=memory, checkpoint={"every_steps": 5})


def losses(run_dir: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: line.get(k) for k in ("step", "split", "losses", "tasks")} for line in lines]


@pytest.mark.parametrize("row_format", ["fp32", "int8"])
def test_a_run_on_disk_is_the_run_in_memory(row_format: str, folder: Path, tmp_path: Path) -> None:
    ram = config_of(folder, format=row_format)
    limits = {"page_rows": 1, "resident": "4KiB", "folder": str(tmp_path / "tables")}
    disk = config_of(folder, format=row_format, placement="disk", disk=limits)
    reports = [
        run(config, run_dir=tmp_path / name, verbosity=-1)
        for name, config in (("ram", ram), ("disk", disk))
    ]
    assert losses(tmp_path / "ram") == losses(tmp_path / "disk")
    assert_same_model(load_best(tmp_path / "ram", ram), load_best(tmp_path / "disk", disk))
    assert reports[0]["tasks"] == reports[1]["tasks"]
    assert list((tmp_path / "tables").iterdir()) == []
    memory = reports[1]["memory"]
    assert {entry["placement"] for entry in memory["tables"]} == {"disk"}
    assert memory["disk_bytes"] == memory["total_bytes"] == reports[0]["memory"]["total_bytes"]
    assert 0 <= memory["paging"]["hit_rate"] <= 1
    assert memory["paging"]["read_bytes"] > memory["paging"]["written_bytes"] > 0
    assert reports[0]["memory"]["paging"] is None
    assert reports[0]["memory"]["disk_bytes"] == 0
    again = evaluate(tmp_path / "disk", files=None, split="test", verbosity=-1)
    for task, metrics in reports[1]["tasks"].items():
        assert again["tasks"][task]["logloss"] == metrics["logloss"]


def test_one_table_on_disk_and_the_others_in_memory(folder: Path, tmp_path: Path) -> None:
    config = config_of(folder, tables={"user": {"placement": "disk"}})
    report = run(config, run_dir=tmp_path / "run", verbosity=-1)
    placements = {entry["name"]: entry["placement"] for entry in report["memory"]["tables"]}
    assert placements == {"user": "disk", "item": "ram", "viewed": "ram"}
    ram = config_of(folder)
    run(ram, run_dir=tmp_path / "ram", verbosity=-1)
    assert losses(tmp_path / "ram") == losses(tmp_path / "run")


def test_a_disk_without_room_is_told_before_training(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))
    config = config_of(folder, placement="disk", disk={"folder": str(tmp_path / "full")})
    with pytest.raises(ConfigError) as caught:
        run(config, run_dir=tmp_path / "run", verbosity=-1)
    assert caught.value.problems == [
        f"memory.disk.folder: the tables' files could not be made in {tmp_path / 'full'} "
        "(No space left on device); give a folder on a disk with more room"
    ]


def test_a_folder_in_memory_is_refused(folder: Path, tmp_path: Path) -> None:
    if not is_in_memory(Path("/dev/shm")):
        pytest.skip("/dev/shm is no tmpfs here")
    config = config_of(folder, placement="disk", disk={"folder": "/dev/shm"})
    with pytest.raises(ConfigError, match=r"memory.disk.folder: files in /dev/shm are held in mem"):
        run(config, run_dir=tmp_path / "run", verbosity=-1)


@pytest.mark.parametrize(
    ("memory", "key"),
    [
        ({"placement": "uvm"}, "memory.placement is uvm"),
        ({"placement": "device"}, "memory.placement is device"),
        ({"tables": {"user": {"placement": "uvm"}}}, "memory.tables.user.placement is uvm"),
    ],
)
def test_placements_of_cuda_are_refused_on_the_cpu(
    memory: dict[str, Any], key: str, folder: Path, tmp_path: Path
) -> None:
    config = toy_config(folder, memory=memory, train={"device": "cpu"})
    with pytest.raises(ConfigError) as caught:
        run(config, run_dir=tmp_path / "run", verbosity=-1)
    assert caught.value.problems == [
        f"{key}, which needs CUDA, and the tables are on the CPU: take ram or disk, or change "
        "train.device"
    ]


def test_the_limit_is_a_size(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    (line,) = problems(path, "memory.disk.resident=much")
    assert "memory.disk.resident: wanted a number with a unit, such as 800MB" in line


@pytest.fixture
def limited_group() -> Iterator[Path]:
    """A control group below this process's that may take 1 GiB, its cached files included."""
    own = Path("/proc/self/cgroup").read_text().splitlines()
    paths = [line.split(":", 2)[2] for line in own if "memory" in line.split(":")[1].split(",")]
    if not paths:
        pytest.skip("needs control groups of version 1 for memory")
    group = Path("/sys/fs/cgroup/memory") / paths[0].lstrip("/") / "edorec-test"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(GIB))
    except OSError as error:
        pytest.skip(f"may not make a control group: {error}")
    yield group
    group.rmdir()


@pytest.mark.slow
def test_a_run_whose_tables_are_four_times_the_memory_of_its_control_group(
    limited_group: Path, tmp_path: Path
) -> None:
    folder = write_toy(tmp_path / "log")
    rows = pq.read_table(folder / "train.parquet")
    users = pa.array(np.random.default_rng(0).integers(0, 2**40, len(rows)))
    pq.write_table(rows.set_column(0, "user", users), folder / "train.parquet")
    config = toy_config(
        folder,
        embedding={"dim": 16},
        memory={"placement": "disk", "disk": {"folder": str(tmp_path), "resident": "200MiB"}},
        vocabularies={"user": {"min_count": 2, "buckets": 4 * GIB // 68}},
    )
    (tmp_path / "run.yaml").write_text(dump_config(config))
    command = [sys.executable, "train.py", "--config", str(tmp_path / "run.yaml")]
    enter = f'echo $$ > {limited_group}/cgroup.procs && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", enter, "sh", *command, "--run-dir", str(tmp_path / "run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    memory = json.loads((tmp_path / "run" / "report.json").read_text())["memory"]
    assert memory["disk_bytes"] >= 4 * GIB
    most = int((limited_group / "memory.max_usage_in_bytes").read_text())
    assert most <= GIB
    assert "oom_kill 0" in (limited_group / "memory.oom_control").read_text().splitlines()
