"""Kills, full disks and damaged files: the older checkpoint still loads (B46)."""

import json
import random
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from edorec.checkpoints.folder import newest_checkpoint, steps_of
from edorec.config import RunConfig
from edorec.train import run
from tests.checkpoints.runs import assert_same_runs, figures
from tests.toy import toy_config, write_config, write_toy

ROOT = Path(__file__).parent.parent.parent
DEADLINE_SECONDS = 120


def settings(epochs: int, **memory: Any) -> dict[str, Any]:
    """A run that does little but save."""
    return {
        "model": {"dropout": 0.2},
        "memory": {"format": "int8", **memory},
        "train": {"epochs": epochs, "batch_size": 40, "evaluate_every_steps": 7},
        "checkpoint": {"every_steps": 1, "every_minutes": None},
    }


def command(folder: Path) -> list[str]:
    arguments = ["--config", str(folder / "my.yaml"), "--run-dir", str(folder / "run"), "--resume"]
    return [sys.executable, str(ROOT / "train.py"), *arguments]


def kill_while_training(folder: Path, delay: float) -> bool:
    """Starts or resumes the run and kills it; False if it was over before."""
    checkpoints = folder / "run" / "checkpoints"
    before = steps_of(checkpoints)
    with (folder / "err.txt").open("w") as stderr:
        process = subprocess.Popen(command(folder), stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        started = time.monotonic()
        while process.poll() is None and steps_of(checkpoints) == before:
            assert time.monotonic() - started < DEADLINE_SECONDS, "training does not begin"
            time.sleep(0.002)
        time.sleep(delay)
        was_running = process.poll() is None
    finally:
        process.kill()
        process.wait()
    assert was_running or process.returncode == 0, (folder / "err.txt").read_text()
    return was_running


@pytest.mark.parametrize(
    ("num_kills", "epochs", "placement"),
    [(2, 1, "ram"), (2, 1, "disk"), pytest.param(20, 5, "ram", marks=pytest.mark.slow)],
)
def test_b46_kills_at_any_moment_change_nothing(
    tmp_path: Path, num_kills: int, epochs: int, placement: str
) -> None:
    log = write_toy(tmp_path / "log", train=4000, valid=60, test=200)
    tables = tmp_path / "tables"
    disk = {"folder": str(tables), "page_rows": 1, "resident": "20KiB", "keep_cached": False}
    config = toy_config(log, **settings(epochs, placement=placement, disk=disk))
    whole = run(config, run_dir=tmp_path / "whole", verbosity=-1)
    write_config(tmp_path / "my.yaml", config)
    rng = random.Random(num_kills)
    steps = []
    for _ in range(num_kills):
        assert kill_while_training(tmp_path, delay=rng.uniform(0, 0.3))
        steps.append(steps_of(tmp_path / "run" / "checkpoints")[-1])
    assert steps == sorted(steps)
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "going on from" in done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["resumed_from_step"] >= steps[-1] - 1
    assert figures(report) == figures(whole)
    assert_same_runs(tmp_path / "run", tmp_path / "whole", config)
    names = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert not [name for name in names if name.endswith(".tmp")], "leftovers are removed"
    assert not tables.exists() or not list(tables.iterdir()), "files of tables have no names"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    log = write_toy(tmp_path_factory.mktemp("log"), train=600, valid=60, test=60)
    return toy_config(log, **settings(1))


@pytest.fixture(scope="module")
def whole(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 15 steps with the checkpoints of the last two."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(config, run_dir=folder, verbosity=-1)
    return folder


DAMAGES = [
    (name, damage)
    for name in ("rows.bin", "pages.bin", "state.pt", "best.pt", "manifest.json")
    for damage in ("truncated", "removed", "altered")
    if (name, damage) != ("best.pt", "altered")  # only its size is checked
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_b46_a_damaged_file_is_named_and_the_older_checkpoint_taken(
    config: RunConfig,
    whole: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    name: str,
    damage: str,
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    path = folder / "checkpoints" / "step-000000015" / name
    content = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        middle = len(content) // 2
        broken = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
        path.write_bytes(content[:-1] if damage == "truncated" else broken)
    report = run(config, run_dir=folder, verbosity=0, resume=True)
    told = capfd.readouterr().err
    assert report["resumed_from_step"] == 14
    assert "skipped the checkpoint" in told
    assert f"step-000000015: {name} " in told
    assert figures(report) == figures(json.loads((whole / "report.json").read_text()))
    assert_same_runs(folder, whole, config)
    assert (folder / "checkpoints" / "step-000000015.damaged").is_dir()
    assert steps_of(folder / "checkpoints")[-1] == 15


def test_an_increment_on_a_damaged_checkpoint_is_passed_over(
    config: RunConfig, tmp_path: Path
) -> None:
    sparse = toy_config(
        Path(config.data.folder),
        **settings(1) | {"embedding": {"dim": 64}, "train": {"batch_size": 2, "epochs": 1}},
    )
    folder = tmp_path / "run"
    run(sparse, run_dir=folder, verbosity=-1)
    parent = folder / "checkpoints"
    said: list[str] = []
    newest = newest_checkpoint(parent, said.append)
    assert newest is not None
    base = newest.manifest["base"]
    assert base is not None, "two rows a step change few pages"
    assert said == []
    size = (parent / base / "rows.bin").stat().st_size
    assert (newest.folder / "rows.bin").stat().st_size <= size / 2
    (parent / base / "rows.bin").write_bytes(b"")
    older = newest_checkpoint(parent, said.append)
    assert older is not None
    assert older.folder.name < base
    assert f"{base}, which it needs, is damaged: rows.bin has 0 bytes" in said[0]


def test_b46_a_disk_without_room_ends_the_run_and_leaves_the_older_checkpoint(
    config: RunConfig, whole: Path, tmp_path: Path
) -> None:
    """The system refuses to write files beyond a size, as it does without room."""
    big = toy_config(
        Path(config.data.folder),
        **settings(1) | {"checkpoint": {"every_steps": 5, "every_minutes": None}},
    )
    write_config(tmp_path / "my.yaml", big)
    size = max(path.stat().st_size for path in whole.glob("checkpoints/step-*/*.pt"))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))

    assert subprocess.run([*command(tmp_path), "train.epochs=1"], check=False).returncode == 0
    kept = steps_of(tmp_path / "run" / "checkpoints")
    done = subprocess.run(
        [*command(tmp_path), "train.epochs=2"],
        capture_output=True,
        text=True,
        preexec_fn=limit,
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "could be written" in done.stderr or "could not be written" in done.stderr
    assert steps_of(tmp_path / "run" / "checkpoints") == kept
    assert not list((tmp_path / "run" / "checkpoints").glob("*.tmp"))
    again = subprocess.run([*command(tmp_path), "train.epochs=2"], check=False)
    assert again.returncode == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["resumed_from_step"] == kept[-1]
    assert report["speed"]["train_steps"] == 30
