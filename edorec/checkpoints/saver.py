"""When a run saves a checkpoint, and the thread that writes it while training goes on."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from edorec.checkpoints import folder as disk
from edorec.checkpoints.config import CheckpointConfig
from edorec.embedding.build import EmbeddingTables
from edorec.embedding.snapshot import TableSnapshots
from edorec.errors import InputError
from edorec.processes import ONE, Processes

WHOLE_FROM = 0.5  # an increment with more of the pages than this would save too little
MOST_INCREMENTS = 9  # then a whole one again, so that not everything stands on old files

# What a checkpoint holds besides tables: tensors for state.pt, and figures for the manifest.
Capture = Callable[[], tuple[dict[str, Any], dict[str, Any]]]


class Checkpoints:
    """Saves a run's checkpoints; a context manager.

    Args:
        parent: folder of the checkpoints, made when the first is saved.
        settings: when to save, and how many to keep.
        tables: of the run.
        identity: what a run that loads the checkpoints must agree with.
        capture: called between two steps; see ``Capture``. What it returns must not change later.
        best: file of the best model, which need not be there.
        resumed_step: of the checkpoint that the run goes on from, None for none.
        processes: of the run. Each writes its rows, the first all the rest.
    """

    def __init__(
        self,
        parent: Path,
        settings: CheckpointConfig,
        *,
        tables: EmbeddingTables,
        identity: dict[str, Any],
        capture: Capture,
        best: Path,
        resumed_step: int | None,
        processes: Processes = ONE,
    ) -> None:
        self._parent = parent
        self._settings = settings
        self._identity = identity
        self._capture = capture
        self._best = best
        self._processes = processes
        self._is_on = settings.every_steps is not None or settings.every_minutes is not None
        self._tables = tables
        self._snapshots = TableSnapshots(tables) if self._is_on else None
        self._saved_at = time.monotonic()
        self._last_step = self._last_complete = resumed_step
        self._base: str | None = None
        self._num_increments = 0
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Lets a checkpoint that has begun become complete, whatever has ended training."""
        if self._thread is not None:
            self._thread.join()
        if self._snapshots is not None:
            self._snapshots.close()

    def step_done(self, step: int) -> None:
        """Begins a checkpoint if one is due.

        One that is due by steps waits for the one before; time runs from the end of that.

        Raises:
            InputError: if the one before could not be written.
        """
        self._raise_error()
        every_steps, every_minutes = self._settings.every_steps, self._settings.every_minutes
        is_due = every_steps is not None and step % every_steps == 0
        if every_minutes is not None:
            is_late = time.monotonic() - self._saved_at >= 60 * every_minutes
            # Clocks differ, and all must save after the same step.
            first_is_late = self._processes.is_first and is_late and not self.is_busy()
            is_due |= self._processes.any(first_is_late)
        if is_due:
            self._save(step)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Lets a checkpoint that has begun become complete; inside, bands may change formats.

        The next checkpoint is a whole one.

        Raises:
            InputError: if it could not be written.
        """
        self._wait()
        if self._snapshots is None:
            yield
            return
        self._snapshots.close()
        try:
            yield
        finally:
            self._snapshots = TableSnapshots(self._tables)
            self._base = None

    def finish(self, step: int) -> None:
        """Saves the end of training, and waits until it is on disk.

        Raises:
            InputError: if a checkpoint could not be written.
        """
        if self._is_on:
            self._save(step)
            self._wait()

    def _save(self, step: int) -> None:
        self._wait()
        if self._snapshots is None or step == self._last_step:
            return
        self._last_step = step
        is_whole = self._processes.any(self._must_be_whole())
        folder = disk.step_folder(self._parent, step)
        state, progress = self._capture()
        content = {
            "step": step,
            "base": None if is_whole else self._base,
            "identity": self._identity,
            "progress": progress,
        }
        if is_whole:
            self._base, self._num_increments = folder.name, 0
        else:
            self._num_increments += 1
        self._processes.from_first(lambda: self._make_folder(disk.temporary_folder(folder)))
        self._snapshots.begin(whole=is_whole)
        self._thread = threading.Thread(
            target=self._write, args=(folder, state, content), name="edorec-checkpoint", daemon=True
        )
        self._thread.start()

    def _must_be_whole(self) -> bool:
        """The first of a process is, and one that would hold most pages anyway."""
        assert self._snapshots is not None
        return (
            self._base is None
            or self._num_increments >= MOST_INCREMENTS
            or self._snapshots.changed_share > WHOLE_FROM
        )

    def _make_folder(self, temporary: Path) -> None:
        """With the best model as it is now, which training may replace any time."""
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            if self._best.exists():
                link_or_copy(self._best, temporary / disk.BEST)
        except OSError as error:
            raise self._failure(error, temporary) from error

    def _write(self, folder: Path, state: dict[str, Any], content: dict[str, Any]) -> None:
        assert self._snapshots is not None
        try:
            part = disk.write_part(
                folder,
                rank=self._processes.rank,
                bands=self._snapshots.bands,
                chunks=self._snapshots.chunks(),
            )
            parts = self._processes.collect(folder.name, part)
            if self._processes.is_first:
                disk.complete_checkpoint(folder, parts=parts, state=state, content=content)
                disk.prune(self._parent, self._settings.keep)
            self._last_complete = content["step"]
        except BaseException as error:  # raised again by the training thread
            self._error = error
        finally:
            self._snapshots.end()
            if self._processes.is_first:
                shutil.rmtree(disk.temporary_folder(folder), ignore_errors=True)
            self._saved_at = time.monotonic()

    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise_error()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if isinstance(error, OSError):
            raise self._failure(error, self._parent) from error
        if error is not None:
            raise error

    def _failure(self, error: OSError, path: Path) -> InputError:
        older = (
            "there is none to go on from"
            if self._last_complete is None
            else f"that of step {self._last_complete} is complete, --resume goes on from it"
        )
        return InputError(
            f"no checkpoint could be written to {path} ({error.strerror}); {older}. Make room "
            "there or choose another --run-dir"
        )


def link_or_copy(source: Path, target: Path) -> None:
    """A second name of a file that is replaced, never written to; where links fail, a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
