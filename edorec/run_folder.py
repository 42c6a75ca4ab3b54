"""The folder of a run: a new one, or one to go on in."""

from datetime import datetime
from pathlib import Path

from rich.console import Console

from edorec.checkpoints.folder import (
    Saved,
    newest_checkpoint,
    put_aside,
    remove_leftovers,
)
from edorec.errors import InputError
from edorec.output_folder import write_file

RUNS = Path("runs")
CHECKPOINTS = "checkpoints"
CONFIG = "config.yaml"


def new_run_dir(name: str | None, run_dir: Path | None) -> Path:
    """Makes the folder of a new run; default ``runs/<name>-<time>``.

    Raises:
        InputError: if there are files in it.
    """
    if run_dir is None:
        run_dir = RUNS / f"{name or 'run'}-{datetime.now():%Y%m%d-%H%M%S}"
    if run_dir.exists() and any(run_dir.iterdir()):
        raise InputError(
            f"the run folder {run_dir} is not empty; give another --run-dir, or --resume to go on "
            "in it"
        )
    run_dir.mkdir(parents=True, exist_ok=True)
    return run_dir


def find_run_dir(name: str | None, run_dir: Path | None) -> Path:
    """The folder of a run to go on with, made if it is not there; default the newest of its name.

    Raises:
        InputError: if there is none of that name, or ``run_dir`` holds something else.
    """
    if run_dir is None:
        pattern = f"{name or 'run'}-{'[0-9]' * 8}-{'[0-9]' * 6}"
        found = sorted(path for path in RUNS.glob(pattern) if (path / CONFIG).exists())
        if not found:
            raise InputError(
                f"there is no run {RUNS}/{name or 'run'}-<time> to resume; give its --run-dir"
            )
        return found[-1]
    if run_dir.exists() and any(run_dir.iterdir()) and not (run_dir / CONFIG).exists():
        raise InputError(f"{run_dir} holds no run to resume ({CONFIG} is missing)")
    run_dir.mkdir(parents=True, exist_ok=True)
    return run_dir


def find_checkpoint(run_dir: Path, console: Console) -> Saved | None:
    """The checkpoint that a run goes on from; says which, and what it passes over."""

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    saved = newest_checkpoint(run_dir / CHECKPOINTS, say)
    if saved is None:
        say(f"{run_dir} holds no complete checkpoint: training starts from the beginning")
    else:
        position = saved.manifest["progress"]["position"]
        say(f"going on from {saved.folder}: epoch {position[0] + 1}, row {position[1]:,}")
    return saved


def begin_run_dir(run_dir: Path, config: str, *, saved: Saved | None) -> None:
    """Writes the configuration and clears away what the run will write again."""
    parent = run_dir / CHECKPOINTS
    remove_leftovers(parent)
    put_aside(parent, after_step=-1 if saved is None else saved.step)
    if saved is None:
        (run_dir / "metrics.jsonl").unlink(missing_ok=True)
        (parent / "best.pt").unlink(missing_ok=True)
    write_file(run_dir / CONFIG, config)
