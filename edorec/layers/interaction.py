"""How the features of a row interact before the multi-task head.

Every backbone takes the pooled embeddings of a row and its dense features and returns one
representation. B batch, D dim, F sparse features, N dense features.
"""

import torch
from torch import nn
from torchrec.models.dlrm import InteractionArch
from torchrec.modules.crossnet import LowRankCrossNet

from edorec.layers.mlp import MLP


def check_same_dims(name: str, dims: list[int]) -> int:
    """Returns the one dim that all features share.

    Raises:
        ValueError: if dims differ or there is none.
    """
    if not dims or len(set(dims)) != 1:
        raise ValueError(
            f"{name} needs sparse features of one dim, got dims {sorted(set(dims))}; "
            "give all vocabularies the same dim or use dcnv2"
        )
    return dims[0]


class DeepFM(nn.Module):
    """MLP beside the pairwise term of a factorization machine (Guo et al., IJCAI 2017).

    The FM term keeps its D products apart instead of summing them, so that each task of the head
    weighs them by itself.
    """

    def __init__(
        self,
        dims: list[int],
        num_dense: int,
        *,
        hidden: list[int],
        dropout: float,
        batch_norm: bool,
    ) -> None:
        super().__init__()
        dim = check_same_dims("deepfm", dims)
        self.deep = MLP(sum(dims) + num_dense, hidden, dropout=dropout, batch_norm=batch_norm)
        self.out_features = self.deep.out_features + dim

    def forward(self, pooled: list[torch.Tensor], dense_BN: torch.Tensor) -> torch.Tensor:
        """F tensors (B, D) and (B, N) to (B, out_features)."""
        deep_BH = self.deep(torch.cat([*pooled, dense_BN], dim=1))
        pooled_BFD = torch.stack(pooled, dim=1)
        fm_BD = 0.5 * (pooled_BFD.sum(1).square() - pooled_BFD.square().sum(1))
        return torch.cat([deep_BH, fm_BD], dim=1)


class DLRM(nn.Module):
    """Dot products of all pairs of features (Naumov et al., 2019); torchrec's InteractionArch."""

    def __init__(
        self,
        dims: list[int],
        num_dense: int,
        *,
        hidden: list[int],
        dropout: float,
        batch_norm: bool,
    ) -> None:
        super().__init__()
        dim = check_same_dims("dlrm", dims)
        if num_dense == 0:
            raise ValueError("dlrm needs at least one dense feature, got none; use deepfm or dcnv2")
        self.bottom = MLP(num_dense, [*hidden, dim], dropout=dropout, batch_norm=batch_norm)
        self.interaction = InteractionArch(len(dims))
        num_vectors = len(dims) + 1
        self.out_features = dim + num_vectors * (num_vectors - 1) // 2

    def forward(self, pooled: list[torch.Tensor], dense_BN: torch.Tensor) -> torch.Tensor:
        """F tensors (B, D) and (B, N) to (B, out_features)."""
        outputs: torch.Tensor = self.interaction(self.bottom(dense_BN), torch.stack(pooled, dim=1))
        return outputs


class DCNv2(nn.Module):
    """torchrec's low-rank cross network beside an MLP (Wang et al., WWW 2021)."""

    def __init__(
        self,
        dims: list[int],
        num_dense: int,
        *,
        hidden: list[int],
        num_cross_layers: int,
        cross_rank: int,
        dropout: float,
        batch_norm: bool,
    ) -> None:
        super().__init__()
        width = sum(dims) + num_dense
        self.cross = LowRankCrossNet(width, num_cross_layers, cross_rank)
        self.deep = MLP(width, hidden, dropout=dropout, batch_norm=batch_norm)
        self.out_features = width + self.deep.out_features

    def forward(self, pooled: list[torch.Tensor], dense_BN: torch.Tensor) -> torch.Tensor:
        """F tensors (B, D) and (B, N) to (B, out_features)."""
        inputs_BI = torch.cat([*pooled, dense_BN], dim=1)
        return torch.cat([self.cross(inputs_BI), self.deep(inputs_BI)], dim=1)
