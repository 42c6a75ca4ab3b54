"""Settings of a training run; the dense optimizer, learning-rate schedule and early stopping."""

import math
from typing import Any, ClassVar, Literal

from pydantic import Field

from edorec.sections import Section


class EarlyStoppingConfig(Section):
    """When to stop, and which model counts as the best."""

    task: str | None = Field(None, description="Task that decides; default the first one.")
    metric: Literal["auc", "gauc", "logloss", "ne"] = Field(
        "auc", description="Metric that decides."
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="Stop after this many evaluations without a better one; default never.",
    )


class TrainConfig(Section):
    """The training loop."""

    epochs: int = Field(1, ge=1, description="Passes over the training rows.")
    batch_size: int = Field(4096, ge=1, description="Rows a step.")
    eval_batch_size: int = Field(16_384, ge=1, description="Rows a step in evaluation.")
    seed: int = Field(0, ge=0, description="Seed of initial values and shuffling.")
    learning_rate: float = Field(
        0.001, gt=0, description="Adam's learning rate for the dense part."
    )
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay of the dense part.")
    task_weights: Literal["fixed", "uncertainty"] = Field(
        "fixed",
        description="How the losses of tasks add up: by their loss_weight, or by weights that are "
        "learned with the dense part (Kendall et al., CVPR 2018).",
    )
    clip_norm: float | None = Field(
        None, gt=0, description="Clip the dense gradient's norm to this."
    )
    warmup_steps: int = Field(
        0, ge=0, description="Steps over which all learning rates rise from 0."
    )
    decay: Literal["none", "linear", "cosine"] = Field(
        "none", description="How all learning rates fall to 0 over the run after warm-up."
    )
    evaluate_every_steps: int | None = Field(
        None, ge=1, description="Also evaluate every so many steps; default once an epoch."
    )
    early_stopping: EarlyStoppingConfig = EarlyStoppingConfig()
    matmul_precision: Literal["fp32", "tf32", "bf16"] = Field(
        "fp32",
        description="Dense arithmetic while training: tf32 on CUDA, bf16 by autocast (many times "
        "slower than fp32 on a CPU without bf16 instructions).",
    )
    eval_precision: Literal["fp32", "tf32", "bf16"] = Field(
        "fp32", description="Dense arithmetic in evaluation."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto: CUDA when there is one."
    )
    num_threads: int | None = Field(
        None, ge=1, description="CPU threads; default all that are allowed."
    )
    warm_start: str | None = Field(
        None,
        description="Folder of a run whose best model training starts from: rows, their optimizer "
        "state and dense weights; what does not fit starts anew and is named.",
    )
    tensorboard: bool = Field(False, description="Also write TensorBoard events to the run folder.")


def learning_rate_factor(step: int, *, total_steps: int, warmup_steps: int, decay: str) -> float:
    """Factor on all learning rates at ``step`` (0 .. total_steps - 1): linear warm-up, then decay.

    The last step of a decay is just above 0, so that no step is without effect.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    if decay == "linear":
        return 1 - progress
    if decay == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress))
    return 1.0


class EarlyStopping:
    """Keeps the best value of one metric of one task, in the metric's own direction.

    AUC and GAUC are better when higher, logloss and normalized entropy when lower. An undefined
    value (None) never wins and counts as no improvement.

    Attributes:
        best: best value so far, None before the first defined one.
        best_step: training step of ``best``.
    """

    HIGHER_IS_BETTER: ClassVar = {"auc": True, "gauc": True, "logloss": False, "ne": False}

    def __init__(self, *, metric: str, patience: int | None) -> None:
        self.metric = metric
        self.best: float | None = None
        self.best_step: int | None = None
        self._patience = patience
        self._without_better = 0

    def figures(self) -> dict[str, Any]:
        """The state, as JSON can hold it."""
        return {
            "best": self.best,
            "best_step": self.best_step,
            "without_better": self._without_better,
        }

    def restore(self, figures: dict[str, Any]) -> None:
        """Takes over what ``figures`` of another returned."""
        self.best = figures["best"]
        self.best_step = figures["best_step"]
        self._without_better = figures["without_better"]

    def update(self, value: float | None, *, step: int) -> bool:
        """Takes the value at ``step``; True if it is the best so far."""
        if value is None or not math.isfinite(value):
            better = False
        elif self.best is None:
            better = True
        else:
            better = value > self.best if self.HIGHER_IS_BETTER[self.metric] else value < self.best
        if better:
            self.best, self.best_step, self._without_better = value, step, 0
        else:
            self._without_better += 1
        return better

    @property
    def should_stop(self) -> bool:
        """True after ``patience`` evaluations in a row without a better value."""
        return self._patience is not None and self._without_better >= self._patience
