"""What the user says about embedding tables, and one table's resolved description."""

from typing import Literal

from pydantic import Field

from edorec.sections import Section


class EmbeddingConfig(Section):
    """Defaults of all embedding tables and their optimizer."""

    dim: int = Field(16, ge=1, description="Embedding dim of tables that state none.")
    init_std: float = Field(
        0.01, ge=0, description="Standard deviation of initial rows; the same for every table size."
    )
    optimizer: Literal["rowwise_adagrad", "adagrad", "sgd"] = Field(
        "rowwise_adagrad",
        description="Optimizer fused into the backward pass; touches looked-up rows only.",
    )
    learning_rate: float = Field(0.05, gt=0, description="Learning rate of the tables.")
    initial_accumulator: float = Field(
        1e-5, ge=0, description="Initial sum of squared gradients of (row-wise) Adagrad."
    )


class MemoryConfig(Section):
    """How table rows are stored."""

    format: Literal["fp32", "fp16"] = Field("fp32", description="Row format of the tables.")
