"""Runs in several real processes, started as a user starts them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LIMIT_SECONDS = 300  # the first run compiles kernels


def train_command(config: Path, run_dir: Path, *arguments: str) -> list[str]:
    script = [sys.executable, str(ROOT / "train.py"), "--config", str(config)]
    return [*script, "--run-dir", str(run_dir), *arguments]


def torchrun_command(num_processes: int, config: Path, run_dir: Path) -> list[str]:
    starter = ["-m", "torch.distributed.run", "--standalone"]
    _, *arguments = train_command(config, run_dir)
    return [sys.executable, *starter, "--nproc-per-node", str(num_processes), *arguments]


def train(config: Path, run_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``train.py``, which must end in time however it ends."""
    return finished(train_command(config, run_dir, *arguments))


def finished(command: list[str]) -> subprocess.CompletedProcess[str]:
    """A command that must end in time however it ends."""
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
