"""Settings of a training run; the dense optimizer, learning-rate schedule and early stopping."""

from typing import Literal

from pydantic import Field

from edorec.sections import Section


class EarlyStoppingConfig(Section):
    """When to stop, and which model counts as the best."""

    task: str | None = Field(None, description="Task that decides; default the first one.")
    metric: Literal["auc", "gauc", "logloss", "ne"] = Field("auc", description="Metric that decides.")
    patience: int | None = Field(
        None, ge=1, description="Stop after this many evaluations without a better one; default never."
    )


class TrainConfig(Section):
    """The training loop."""

    epochs: int = Field(1, ge=1, description="Passes over the training rows.")
    batch_size: int = Field(4096, ge=1, description="Rows a step.")
    eval_batch_size: int = Field(16_384, ge=1, description="Rows a step in evaluation.")
    seed: int = Field(0, ge=0, description="Seed of initial values and shuffling.")
    learning_rate: float = Field(0.001, gt=0, description="Adam's learning rate for the dense part.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay of the dense part.")
    clip_norm: float | None = Field(None, gt=0, description="Clip the dense gradient's norm to this.")
    warmup_steps: int = Field(0, ge=0, description="Steps over which all learning rates rise from 0.")
    decay: Literal["none", "linear", "cosine"] = Field(
        "none", description="How all learning rates fall to 0 over the run after warm-up."
    )
    evaluate_every_steps: int | None = Field(
        None, ge=1, description="Also evaluate every so many steps; default once an epoch."
    )
    early_stopping: EarlyStoppingConfig = EarlyStoppingConfig()
    matmul_precision: Literal["fp32", "tf32", "bf16"] = Field(
        "fp32", description="Dense arithmetic while training: tf32 on CUDA, bf16 by autocast."
    )
    eval_precision: Literal["fp32", "tf32", "bf16"] = Field(
        "fp32", description="Dense arithmetic in evaluation."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: CUDA when there is one.")
    num_threads: int | None = Field(None, ge=1, description="CPU threads; default all that are allowed.")
    tensorboard: bool = Field(False, description="Also write TensorBoard events to the run folder.")
