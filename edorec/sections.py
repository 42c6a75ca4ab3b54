"""Base of every section of a run's YAML: unknown keys are errors, values never change."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of the configuration; every field carries a description for the key reference."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
