"""What the user says about embedding tables."""

from typing import Literal

from pydantic import Field

from edorec.sections import Section

TrainedFormat = Literal["fp32", "fp16", "int8", "int4", "int2"]
StateName = Literal["fp32", "bf16", "log8"]


class EmbeddingConfig(Section):
    """Defaults of all embedding tables and their optimizer."""

    dim: int = Field(16, ge=1, description="Embedding dim of tables that state none.")
    init_std: float = Field(
        0.01, ge=0, description="Standard deviation of initial rows; the same for every table size."
    )
    optimizer: Literal["rowwise_adagrad", "adagrad", "sgd", "adam"] = Field(
        "rowwise_adagrad",
        description="Optimizer fused into the backward pass; touches looked-up rows only.",
    )
    learning_rate: float = Field(0.05, gt=0, description="Learning rate of the tables.")
    initial_accumulator: float = Field(
        1e-5, ge=0, description="Initial sum of squared gradients of (row-wise) Adagrad."
    )
    weight_decay: float = Field(
        0.0,
        ge=0,
        description="Decoupled weight decay; in each step of the rows that it looks up alone, "
        "others stay as they are.",
    )


class BandConfig(Section):
    """Rows of ids that are about equally frequent, in one format."""

    min_count: int = Field(
        0,
        ge=0,
        description="Ids seen at least so often in training; those of the bands before excluded.",
    )
    format: TrainedFormat = Field(description="Row format.")
    state: StateName = Field(
        "fp32", description="Format of row-wise Adagrad's accumulator: 4, 2 or 1 bytes a row."
    )


class MemoryConfig(Section):
    """How table rows are stored while training."""

    format: TrainedFormat = Field("fp32", description="Row format of the tables.")
    state: StateName = Field(
        "fp32", description="Format of row-wise Adagrad's accumulator: 4, 2 or 1 bytes a row."
    )
    bands: list[BandConfig] = Field(
        [],
        description="Formats by frequency in place of format and state, the most frequent ids "
        "first; the last band has min_count 0. Buckets are stored like an id that is as frequent.",
    )
    qat: Literal["int8", "int4", "int2", "sparse28"] | None = Field(
        None,
        description="Quantization-aware training: rows are read through this format, which the "
        "model then serves in, while they are stored and updated in theirs.",
    )
