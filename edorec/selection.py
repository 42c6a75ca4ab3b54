"""Which model of a run is the best: evaluates while training, keeps the best, says when to stop."""

from pathlib import Path
from typing import Any

from rich.console import Console

from edorec.checkpoint import save_model
from edorec.config import RunConfig
from edorec.data.prepare import Prepared
from edorec.evaluate import evaluate_split
from edorec.optimization import EarlyStopping
from edorec.recommender import Recommender
from edorec.report import MetricsLog

SCALARS = ("auc", "gauc", "logloss", "ne", "calibration")


class Selection:
    """Evaluates on the validation split and saves every new best model.

    Without a validation split, and as long as the deciding metric is undefined, the latest model is
    kept.

    Attributes:
        path: file of the best model.
        task: the task that decides.
        metric: its metric that decides.
        best: the best value of that metric, None before the first defined one.
        best_epoch: the epoch of ``best``, counted from 1.
        validation: metrics of the best model by task.
        seconds: time spent in evaluations so far.
        events: what the report should mention.
    """

    def __init__(
        self,
        recommender: Recommender,
        prepared: Prepared,
        config: RunConfig,
        *,
        run_dir: Path,
        log: MetricsLog,
        console: Console,
        keeps_model: bool = True,
    ) -> None:
        self._recommender = recommender
        self._prepared = prepared
        self._config = config
        self._log = log
        self._console = console
        self._keeps_model = keeps_model
        stopping = config.train.early_stopping
        self.task = stopping.task or next(iter(config.tasks))
        self.metric = stopping.metric
        self._stopping = EarlyStopping(metric=stopping.metric, patience=stopping.patience)
        self.path = run_dir / "checkpoints" / "best.pt"
        self.best: float | None = None
        self.best_epoch: int | None = None
        self.validation: dict[str, dict[str, Any]] = {}
        self.seconds = 0.0
        self.events: list[dict[str, Any]] = []

    @property
    def should_stop(self) -> bool:
        """Whether training should stop early."""
        return self._stopping.should_stop

    def figures(self) -> dict[str, Any]:
        """The state, as JSON can hold it."""
        return {
            "stopping": self._stopping.figures(),
            "best_epoch": self.best_epoch,
            "validation": self.validation,
            "seconds": self.seconds,
            "events": self.events,
        }

    def restore(self, figures: dict[str, Any]) -> None:
        """Takes over what ``figures`` of another selection returned."""
        self._stopping.restore(figures["stopping"])
        self.best = self._stopping.best
        self.best_epoch = figures["best_epoch"]
        self.validation = figures["validation"]
        self.seconds = figures["seconds"]
        self.events = list(figures["events"])

    def update(self, *, step: int, epoch: int) -> None:
        """Evaluates the model after ``step``."""
        if "valid" not in self._prepared.splits:
            self._save(step)
            return
        metrics, seconds = evaluate_split(
            self._recommender,
            self._prepared,
            "valid",
            config=self._config,
            verbosity=-1,  # the bar of training stays
        )
        self.seconds += seconds
        scalars = {
            task: {name: values[name] for name in SCALARS} for task, values in metrics.items()
        }
        self._log.write({"step": step, "epoch": epoch, "split": "valid", "tasks": scalars})
        is_better = self._stopping.update(metrics[self.task][self.metric], step=step)
        if is_better:
            self.best, self.best_epoch = self._stopping.best, epoch + 1
        if is_better or self.best is None:
            self.validation = metrics
            self._save(step)
        self._say(step, metrics)
        if self._stopping.should_stop:
            self.events.append(
                {
                    "kind": "early_stop",
                    "step": step,
                    "best_step": self._stopping.best_step,
                    "task": self.task,
                    "metric": self.metric,
                }
            )

    def _say(self, step: int, metrics: dict[str, dict[str, Any]]) -> None:
        figures = ", ".join(
            f"{task} {'n/a' if values['auc'] is None else format(values['auc'], '.4f')}"
            for task, values in metrics.items()
        )
        best = " (best so far)" if self._stopping.best_step == step else ""
        self._console.print(
            f"step {step:,}: validation AUC {figures}{best}", highlight=False, soft_wrap=True
        )

    def _save(self, step: int) -> None:
        if not self._keeps_model:
            return
        save_model(
            self.path,
            model=self._recommender.model,
            tables=self._recommender.tables,
            step=step,
            processes=self._recommender.processes,
        )
