"""The dense part of a model: a backbone over the features, a head over the tasks.

Adding a backbone or head is a class under ``edorec/layers``, its name in
``edorec/models/config.py`` and a line in the dict here.
"""

import torch
from torch import nn

from edorec.layers.experts import PLE, MMoE, SharedBottom
from edorec.layers.funnel import ESMM
from edorec.layers.interaction import DLRM, DCNv2, DeepFM
from edorec.models.config import ModelConfig

BACKBONES = {"deepfm": DeepFM, "dlrm": DLRM, "dcnv2": DCNv2}
HEADS = {"shared_bottom": SharedBottom, "mmoe": MMoE, "ple": PLE, "esmm": ESMM}


class MultiTaskModel(nn.Module):
    """Pooled embeddings and dense features in, one logit for each task out."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, pooled: list[torch.Tensor], dense_BN: torch.Tensor) -> torch.Tensor:
        """F tensors (B, D of the feature) and (B, N), all float32, to logits (B, T)."""
        logits_BT: torch.Tensor = self.head(self.backbone(pooled, dense_BN))
        return logits_BT


def build_model(
    config: ModelConfig, *, dims: list[int], num_dense: int, num_tasks: int
) -> MultiTaskModel:
    """Builds the model that ``config`` describes for features of the given dims.

    Raises:
        ValueError: if the backbone cannot work on these features.
    """
    common = {"dropout": config.dropout, "batch_norm": config.batch_norm}
    backbone_args = config.backbone.model_dump(exclude={"name"})
    backbone = BACKBONES[config.backbone.name](dims, num_dense, **backbone_args, **common)
    head_args = config.head.model_dump(exclude={"name"})
    head = HEADS[config.head.name](backbone.out_features, num_tasks, **head_args, **common)
    return MultiTaskModel(backbone, head)
