"""What the user says about checkpoints."""

from pydantic import Field

from edorec.sections import Section


class CheckpointConfig(Section):
    """When a run saves all that ``--resume`` needs; one more is saved when training ends."""

    every_steps: int | None = Field(
        None, ge=1, description="A checkpoint every so many steps; default none."
    )
    every_minutes: float | None = Field(
        10.0,
        gt=0,
        description="A checkpoint so many minutes after the last was complete; null for none. "
        "With every_steps null too, the run writes no checkpoints.",
    )
    keep: int = Field(2, ge=1, description="How many of the newest checkpoints are kept.")
