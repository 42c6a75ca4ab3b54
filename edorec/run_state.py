"""The state of a run between two steps: what a checkpoint holds besides the tables' rows."""

import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from edorec.checkpoints.folder import BEST, STATE, Saved
from edorec.checkpoints.saver import link_or_copy
from edorec.checkpoints.tables import SavedTables, load_tables
from edorec.embedding.bands import formats_of
from edorec.monitor import MemoryMonitor
from edorec.report import MetricsLog
from edorec.selection import Selection
from edorec.step import TrainingStep


class Position(NamedTuple):
    """Where training is in the data: ``row`` rows of an epoch (from 0) have been used."""

    epoch: int
    row: int


class RunState:
    """Everything that training changes.

    Attributes:
        step: the training step with model, optimizer and counters.
        selection: the best model so far and when to stop.
        monitor: what memory made smaller.
        position: behind the last batch that was used.
    """

    def __init__(
        self,
        step: TrainingStep,
        selection: Selection,
        log: MetricsLog,
        monitor: MemoryMonitor,
    ) -> None:
        self.step = step
        self.selection = selection
        self.monitor = monitor
        self.position = Position(0, 0)
        self._log = log
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds of training so far, in all processes, without evaluations."""
        return time.perf_counter() - self._started - self.selection.seconds

    def capture(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Copies of tensors, and figures as JSON can hold them."""
        random = {"cpu": torch.get_rng_state()}
        if self.step.recommender.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.step.recommender.device)
        tensors = {"step": self.step.tensors(), "random": random}
        figures = {
            "position": self.position,
            "seconds": self.seconds,
            "log_bytes": self._log.num_bytes,
            "num_updates": self.step.recommender.tables.num_updates,
            "step": self.step.figures(),
            "selection": self.selection.figures(),
            "monitor": self.monitor.figures(),
            "formats": formats_of(self.step.recommender.tables.bands()),
        }
        return _to_host(tensors), figures

    def restore(self, saved: Saved) -> None:
        """Takes over all that a checkpoint holds, tables included; it must fit the run."""
        figures, folder = saved.manifest["progress"], saved.folder
        recommender = self.step.recommender
        load_tables(SavedTables(saved), recommender.tables)
        recommender.tables.num_updates = figures["num_updates"]
        tensors = torch.load(folder / STATE, map_location="cpu", weights_only=True)
        self.step.restore(tensors["step"], figures["step"])
        self.selection.restore(figures["selection"])
        self.monitor.restore(figures["monitor"])
        recommender.processes.from_first(partial(_restore_best, folder, self.selection.path))
        self._log.cut(figures["log_bytes"])
        self.position = Position(*figures["position"])
        self._started = time.perf_counter() - figures["seconds"] - self.selection.seconds
        torch.set_rng_state(tensors["random"]["cpu"])
        if recommender.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random"]["cuda"], recommender.device)


def _restore_best(folder: Path, path: Path) -> None:
    path.unlink(missing_ok=True)  # may be of a step that comes again
    if (folder / BEST).exists():
        link_or_copy(folder / BEST, path)


def _to_host(value: Any) -> Any:
    """The same with every tensor copied to the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _to_host(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_to_host(inner) for inner in value]
    return value
