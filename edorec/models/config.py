"""What the user says about the model: an interaction backbone and a multi-task head."""

from typing import Annotated, Literal

from pydantic import Field

from edorec.sections import Section

Hidden = list[Annotated[int, Field(ge=1)]]
BACKBONE_NAMES = "deepfm, dlrm or dcnv2."
HEAD_NAMES = "shared_bottom, mmoe, ple, stem or esmm."


class DeepFMConfig(Section):
    """MLP beside the pairwise term of a factorization machine (Guo et al., IJCAI 2017)."""

    name: Literal["deepfm"] = Field("deepfm", description=BACKBONE_NAMES)
    hidden: Hidden = Field([256, 128], description="Widths of the MLP.")


class DLRMConfig(Section):
    """Dot products of all pairs of features (Naumov et al., 2019)."""

    name: Literal["dlrm"] = Field("dlrm", description=BACKBONE_NAMES)
    hidden: Hidden = Field([256, 128], description="Widths of the MLP over dense features.")


class DCNv2Config(Section):
    """Low-rank cross network beside an MLP (Wang et al., WWW 2021)."""

    name: Literal["dcnv2"] = Field("dcnv2", description=BACKBONE_NAMES)
    hidden: Hidden = Field([256, 128], description="Widths of the MLP.")
    num_cross_layers: int = Field(3, ge=1, description="Cross layers.")
    cross_rank: int = Field(64, ge=1, description="Rank of each cross layer.")


class SharedBottomConfig(Section):
    """One tower for each task on the same representation (Caruana, 1997)."""

    name: Literal["shared_bottom"] = Field("shared_bottom", description=HEAD_NAMES)
    tower_hidden: Hidden = Field([64], description="Widths of each task's tower.")


class MMoEConfig(Section):
    """A gate for each task over shared experts (Ma et al., KDD 2018)."""

    name: Literal["mmoe"] = Field("mmoe", description=HEAD_NAMES)
    num_experts: int = Field(4, ge=2, description="Experts.")
    expert_hidden: Hidden = Field([128], min_length=1, description="Widths of each expert.")
    tower_hidden: Hidden = Field([64], description="Widths of each task's tower.")


class PLEConfig(Section):
    """Levels of shared experts and experts of one task (Tang et al., RecSys 2020)."""

    name: Literal["ple"] = Field("ple", description=HEAD_NAMES)
    num_levels: int = Field(2, ge=1, description="Levels of experts; 1 is CGC.")
    num_shared_experts: int = Field(2, ge=1, description="Shared experts a level.")
    num_task_experts: int = Field(1, ge=1, description="Experts of each task a level.")
    expert_hidden: Hidden = Field([128], min_length=1, description="Widths of each expert.")
    tower_hidden: Hidden = Field([64], description="Widths of each task's tower.")


class STEMConfig(Section):
    """Experts over shared and task-specific embeddings (Su et al., AAAI 2024)."""

    name: Literal["stem"] = Field("stem", description=HEAD_NAMES)
    num_shared_experts: int = Field(1, ge=1, description="Experts on the shared part.")
    num_task_experts: int = Field(1, ge=1, description="Experts of each task.")
    expert_hidden: Hidden = Field([128], min_length=1, description="Widths of each expert.")
    tower_hidden: Hidden = Field([64], description="Widths of each task's tower.")


class ESMMConfig(Section):
    """Tasks in the order of a funnel, each over all exposures (Ma et al., SIGIR 2018)."""

    name: Literal["esmm"] = Field("esmm", description=HEAD_NAMES)
    tower_hidden: Hidden = Field([64], description="Widths of each task's tower.")


class DINConfig(Section):
    """Lists with pooling din: a weight for each id (Zhou et al., KDD 2018)."""

    hidden: Hidden = Field([32], description="Widths of the MLP that weighs an id.")


class TransformerConfig(Section):
    """Lists with pooling transformer: an encoder (Chen et al., DLP-KDD 2019)."""

    num_layers: int = Field(2, ge=1, description="Encoder layers.")
    share_layers: int = Field(
        1,
        ge=1,
        description="So many neighbouring layers are one module with one copy of the weights; it "
        "divides num_layers.",
    )
    num_heads: int = Field(2, ge=1, description="Attention heads; they divide the dim.")
    hidden: int = Field(64, ge=1, description="Width of each layer's MLP.")


class ModelConfig(Section):
    """The dense part."""

    backbone: DeepFMConfig | DLRMConfig | DCNv2Config = Field(
        DeepFMConfig(), discriminator="name", description="How features interact."
    )
    head: SharedBottomConfig | MMoEConfig | PLEConfig | STEMConfig | ESMMConfig = Field(
        SharedBottomConfig(), discriminator="name", description="How tasks share."
    )
    din: DINConfig = DINConfig()
    transformer: TransformerConfig = TransformerConfig()
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout in every MLP and encoder layer.")
    batch_norm: bool = Field(False, description="Batch normalization in every MLP.")
