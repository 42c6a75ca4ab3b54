"""What the user says about the model: an interaction backbone and a multi-task head."""

from typing import Literal

from pydantic import Field

from edorec.sections import Section


class BackboneConfig(Section):
    """How features interact."""

    name: Literal["deepfm", "dlrm", "dcnv2"] = Field("deepfm", description="Interaction backbone.")
    hidden: list[int] = Field([256, 128], description="Widths of the backbone's MLP.")
    num_cross_layers: int = Field(3, ge=1, description="dcnv2: cross layers.")
    cross_rank: int = Field(64, ge=1, description="dcnv2: rank of each cross layer.")


class HeadConfig(Section):
    """How tasks share."""

    name: Literal["shared_bottom", "mmoe"] = Field("shared_bottom", description="Multi-task head.")
    num_experts: int = Field(4, ge=2, description="mmoe: experts.")
    expert_hidden: list[int] = Field([128], description="mmoe: widths of each expert.")
    tower_hidden: list[int] = Field([64], description="Widths of each task's tower.")


class ModelConfig(Section):
    """The dense part."""

    backbone: BackboneConfig = BackboneConfig()
    head: HeadConfig = HeadConfig()
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout in every MLP.")
    batch_norm: bool = Field(False, description="Batch normalization in every MLP.")
