"""The dense part of a model: sequences pooled, a backbone over the features, a head over the tasks.

Adding a backbone or head is a class under ``edorec/layers``, its settings in
``edorec/models/config.py`` and a line in the dict here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from edorec.layers.experts import PLE, MMoE, SharedBottom
from edorec.layers.funnel import ESMM
from edorec.layers.interaction import DLRM, DCNv2, DeepFM
from edorec.layers.sequences import DIN, Padded, Transformer
from edorec.layers.stem import STEM
from edorec.models.config import ModelConfig

BACKBONES = {"deepfm": DeepFM, "dlrm": DLRM, "dcnv2": DCNv2}
HEADS = {"shared_bottom": SharedBottom, "mmoe": MMoE, "ple": PLE, "stem": STEM, "esmm": ESMM}
# Heads in which what a task has of its own gets the gradient of that task alone.
TASK_SPECIFIC_HEADS = ("shared_bottom", "mmoe", "ple", "stem")


@dataclass(frozen=True)
class SequenceFeature:
    """A list that the model pools.

    Attributes:
        place: of the feature among those that the model takes.
        candidate: place of the feature to attend from.
        pooling: din or transformer.
        max_length: longest list.
    """

    place: int
    candidate: int
    pooling: str
    max_length: int


class MultiTaskModel(nn.Module):
    """Embeddings and dense features in, one logit for each task out.

    Args:
        backbone: over pooled embeddings and dense features.
        head: over what the backbone found.
        sequences: lists that come in as they are.
        poolings: one for each of them.
        num_shared: how many embeddings all tasks share; those of single tasks follow, task by task.
        num_specific: how many each task has of its own.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        *,
        sequences: Sequence[SequenceFeature],
        poolings: Sequence[nn.Module],
        num_shared: int,
        num_specific: Sequence[int],
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.poolings = nn.ModuleList(poolings)
        self._sequences = list(sequences)
        self._num_shared = num_shared
        self._num_specific = list(num_specific)

    def forward(
        self, embedded: Sequence[torch.Tensor | Padded], dense_BN: torch.Tensor
    ) -> torch.Tensor:
        """Float32 (B, D) of each look-up, or its lists, and (B, N), to logits (B, T)."""
        pooled = list(embedded[: self._num_shared])
        for feature, pool in zip(self._sequences, self.poolings, strict=True):
            pooled[feature.place] = pool(embedded[feature.place], embedded[feature.candidate])
        hidden_BH = self.backbone(pooled, dense_BN)
        if not any(self._num_specific):
            logits_BT: torch.Tensor = self.head(hidden_BH)
            return logits_BT
        specific, start = [], self._num_shared
        for count in self._num_specific:
            # The dense features' empty slice is for a task without vectors of its own.
            own = cast(Sequence[torch.Tensor], embedded[start : start + count])
            specific.append(torch.cat([*own, dense_BN[:, :0]], dim=1))
            start += count
        logits_BT = self.head(hidden_BH, specific)
        return logits_BT


def build_model(
    config: ModelConfig,
    *,
    dims: list[int],
    num_dense: int,
    num_tasks: int,
    sequences: Sequence[SequenceFeature] = (),
    specific_dims: Sequence[Sequence[int]] = (),
) -> MultiTaskModel:
    """Builds the model that ``config`` describes.

    Args:
        config: backbone and head.
        dims: of the features' vectors.
        num_dense: dense features.
        num_tasks: tasks.
        sequences: lists that the model pools.
        specific_dims: of the vectors that each task has of its own; empty where none has any.

    Raises:
        ValueError: if backbone, head or a pooling cannot work on these features.
    """
    common = {"dropout": config.dropout, "batch_norm": config.batch_norm}
    poolings = [_pooling(config, feature, dims[feature.place]) for feature in sequences]
    backbone_args = config.backbone.model_dump(exclude={"name"})
    backbone = BACKBONES[config.backbone.name](dims, num_dense, **backbone_args, **common)
    head_args = config.head.model_dump(exclude={"name"})
    if any(specific_dims):
        if config.head.name not in TASK_SPECIFIC_HEADS:
            raise ValueError(
                f"head {config.head.name} takes no rows of single tasks; leave out task_specific "
                f"of the vocabularies, or use head {' or '.join(TASK_SPECIFIC_HEADS)}"
            )
        head_args["specific_widths"] = [sum(dims) for dims in specific_dims]
    head = HEADS[config.head.name](backbone.out_features, num_tasks, **head_args, **common)
    return MultiTaskModel(
        backbone,
        head,
        sequences=sequences,
        poolings=poolings,
        num_shared=len(dims),
        num_specific=[len(own) for own in specific_dims],
    )


def _pooling(config: ModelConfig, feature: SequenceFeature, dim: int) -> nn.Module:
    if feature.pooling == "din":
        return DIN(dim, hidden=config.din.hidden, dropout=config.dropout)
    settings = config.transformer.model_dump()
    return Transformer(dim, max_length=feature.max_length, **settings, dropout=config.dropout)
