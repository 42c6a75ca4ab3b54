"""How a list of past ids becomes one vector, seen from the candidate that is scored.

B batch, L ids in a list (padded), D dim. Both pool a list, seen from the candidate's vector (B, D),
to (B, D); what stands beyond a row's length changes nothing.
"""

from typing import NamedTuple

import torch
from torch import nn

from edorec.layers.mlp import MLP


class Padded(NamedTuple):
    """Lists of ids.

    Attributes:
        ids_BLD: float32, zero beyond the end of a list.
        lengths_B: int, ids in each list.
    """

    ids_BLD: torch.Tensor
    lengths_B: torch.Tensor


class DIN(nn.Module):
    """A weight for each id by an MLP over id and candidate (Zhou et al., KDD 2018).

    The weights are not normalized, as in the paper: their sum says how much of the history fits the
    candidate. The MLP sees both vectors, their difference and their product. An empty list gives
    zeros.
    """

    def __init__(self, dim: int, *, hidden: list[int], dropout: float) -> None:
        super().__init__()
        # No batch normalization: padding would count in it.
        mlp = MLP(4 * dim, hidden, dropout=dropout, batch_norm=False)
        self.weigh = nn.Sequential(mlp, nn.Linear(mlp.out_features, 1))

    def forward(self, lists: Padded, candidate_BD: torch.Tensor) -> torch.Tensor:
        """Lists of B rows and (B, D) to (B, D)."""
        ids_BLD, lengths_B = lists
        candidate_BLD = candidate_BD.unsqueeze(1).expand_as(ids_BLD)
        pairs = [ids_BLD, candidate_BLD, ids_BLD - candidate_BLD, ids_BLD * candidate_BLD]
        weights_BL1 = self.weigh(torch.cat(pairs, dim=2))
        is_id_BL1 = is_inside(lengths_B, ids_BLD.shape[1]).unsqueeze(2)
        return (torch.where(is_id_BL1, weights_BL1, 0.0) * ids_BLD).sum(1)


class Transformer(nn.Module):
    """Encoder layers over the list and, behind it, the candidate (Chen et al., DLP-KDD 2019).

    The result is what the encoder makes of the candidate, so an empty list is nothing special.
    Positions are learned and counted from the end: the last id has position 0, whatever the length.

    Args:
        dim: D.
        max_length: longest list.
        num_layers: encoder layers that a list goes through.
        share_layers: so many neighbouring layers are one module, with one copy of its weights
            everywhere: training, optimizer state, files.
        num_heads: attention heads.
        hidden: width of each layer's MLP.
        dropout: in every layer.
    """

    def __init__(
        self,
        dim: int,
        *,
        max_length: int,
        num_layers: int,
        share_layers: int,
        num_heads: int,
        hidden: int,
        dropout: float,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(
                f"transformer: num_heads must divide the vocabulary's dim, got {num_heads} heads "
                f"and dim {dim}"
            )
        if num_layers % share_layers:
            raise ValueError(
                f"transformer: share_layers must divide num_layers, got {share_layers} and "
                f"{num_layers}"
            )
        self._share_layers = share_layers
        self.positions = nn.Parameter(torch.randn(max_length, dim) * 0.01)
        self.candidate = nn.Parameter(torch.randn(dim) * 0.01)  # its position
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                dim, num_heads, hidden, dropout=dropout, batch_first=True, norm_first=True
            )
            for _ in range(num_layers // share_layers)
        )
        self.norm = nn.LayerNorm(dim)

    @property
    def num_tied_parameters(self) -> int:
        """How many more it would have if each layer were a module of its own."""
        return (self._share_layers - 1) * sum(p.numel() for p in self.layers.parameters())

    def forward(self, lists: Padded, candidate_BD: torch.Tensor) -> torch.Tensor:
        """Lists of B rows and (B, D) to (B, D)."""
        ids_BLD, lengths_B = lists
        num_ids = ids_BLD.shape[1]
        is_id_BL = is_inside(lengths_B, num_ids)
        from_end_BL = lengths_B.unsqueeze(1) - 1 - torch.arange(num_ids, device=lengths_B.device)
        ids_BLD = ids_BLD + self.positions[from_end_BL.clamp(min=0)]
        # The candidate stands first here, where lists of all lengths have it at one place.
        tokens_BLD = torch.cat([(candidate_BD + self.candidate).unsqueeze(1), ids_BLD], dim=1)
        is_padding_BL = nn.functional.pad(~is_id_BL, (1, 0), value=False)
        for layer in self.layers:
            for _ in range(self._share_layers):
                tokens_BLD = layer(tokens_BLD, src_key_padding_mask=is_padding_BL)
        outputs_BD: torch.Tensor = self.norm(tokens_BLD[:, 0])
        return outputs_BD


def is_inside(lengths_B: torch.Tensor, num_ids: int) -> torch.Tensor:
    """Which places of lists padded to ``num_ids`` hold an id, bool (B, L)."""
    return torch.arange(num_ids, device=lengths_B.device) < lengths_B.unsqueeze(1)
