"""How tasks share what the backbone found. B batch, H hidden, E experts, T tasks."""

import torch
from torch import nn

from edorec.layers.mlp import MLP


class SharedBottom(nn.Module):
    """One tower for each task on the same representation (Caruana, 1997)."""

    def __init__(
        self,
        in_features: int,
        num_tasks: int,
        *,
        tower_hidden: list[int],
        dropout: float,
        batch_norm: bool,
    ) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            _tower(in_features, tower_hidden, dropout=dropout, batch_norm=batch_norm)
            for _ in range(num_tasks)
        )

    def forward(self, inputs_BH: torch.Tensor) -> torch.Tensor:
        """(B, H) to logits (B, T)."""
        return torch.cat([tower(inputs_BH) for tower in self.towers], dim=1)


class MMoE(nn.Module):
    """A softmax gate for each task over shared experts (Ma et al., KDD 2018)."""

    def __init__(
        self,
        in_features: int,
        num_tasks: int,
        *,
        num_experts: int,
        expert_hidden: list[int],
        tower_hidden: list[int],
        dropout: float,
        batch_norm: bool,
    ) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            MLP(in_features, expert_hidden, dropout=dropout, batch_norm=batch_norm)
            for _ in range(num_experts)
        )
        self.gates = nn.ModuleList(nn.Linear(in_features, num_experts) for _ in range(num_tasks))
        width = expert_hidden[-1] if expert_hidden else in_features
        self.towers = nn.ModuleList(
            _tower(width, tower_hidden, dropout=dropout, batch_norm=batch_norm)
            for _ in range(num_tasks)
        )

    def forward(self, inputs_BH: torch.Tensor) -> torch.Tensor:
        """(B, H) to logits (B, T)."""
        experts_BEH = torch.stack([expert(inputs_BH) for expert in self.experts], dim=1)
        logits = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            gates_B1E = torch.softmax(gate(inputs_BH), dim=1).unsqueeze(1)
            logits.append(tower(torch.bmm(gates_B1E, experts_BEH).squeeze(1)))
        return torch.cat(logits, dim=1)


def _tower(
    in_features: int, hidden: list[int], *, dropout: float, batch_norm: bool
) -> nn.Sequential:
    mlp = MLP(in_features, hidden, dropout=dropout, batch_norm=batch_norm)
    return nn.Sequential(mlp, nn.Linear(mlp.out_features, 1))
