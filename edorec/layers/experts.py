"""How tasks share what the backbone found. B batch, H hidden, E experts, T tasks.

Where tasks have rows of their own (``edorec.embedding.task_tables``), each tower sees those of its
task beside what it sees of the shared part: ``specific`` holds T tensors (B, W of the task), and is
empty where there are none.
"""

from collections.abc import Sequence

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
        specific_widths: Sequence[int] = (),
    ) -> None:
        super().__init__()
        widths = [in_features + own for own in specific_widths or [0] * num_tasks]
        self.towers = nn.ModuleList(
            tower(width, tower_hidden, dropout=dropout, batch_norm=batch_norm) for width in widths
        )

    def forward(
        self, inputs_BH: torch.Tensor, specific: Sequence[torch.Tensor] = ()
    ) -> torch.Tensor:
        """(B, H) to logits (B, T)."""
        return _logits(self.towers, [inputs_BH] * len(self.towers), specific)


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
        specific_widths: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            MLP(in_features, expert_hidden, dropout=dropout, batch_norm=batch_norm)
            for _ in range(num_experts)
        )
        self.gates = nn.ModuleList(nn.Linear(in_features, num_experts) for _ in range(num_tasks))
        width = expert_hidden[-1] if expert_hidden else in_features
        widths = [width + own for own in specific_widths or [0] * num_tasks]
        self.towers = nn.ModuleList(
            tower(width, tower_hidden, dropout=dropout, batch_norm=batch_norm) for width in widths
        )

    def forward(
        self, inputs_BH: torch.Tensor, specific: Sequence[torch.Tensor] = ()
    ) -> torch.Tensor:
        """(B, H) to logits (B, T)."""
        experts_BEH = torch.stack([expert(inputs_BH) for expert in self.experts], dim=1)
        mixes = [mix(gate, inputs_BH, experts_BEH) for gate in self.gates]
        return _logits(self.towers, mixes, specific)


class PLE(nn.Module):
    """Levels of experts that all tasks share and experts of one task (Tang et al., RecSys 2020).

    At each level a task's gate mixes its own experts and the shared ones; that is what its experts,
    its gate, and after the last level its tower see next. The shared experts of the next level see
    a mix of all experts.

    Args:
        in_features: width of the input.
        num_tasks: T.
        num_levels: levels of experts; with 1 this is CGC.
        num_shared_experts: shared experts a level.
        num_task_experts: experts of each task a level.
        expert_hidden: widths of each expert.
        tower_hidden: widths of each task's tower.
        dropout: in every MLP.
        batch_norm: in every MLP.
        specific_widths: of the vectors that each task has of its own.
    """

    def __init__(
        self,
        in_features: int,
        num_tasks: int,
        *,
        num_levels: int,
        num_shared_experts: int,
        num_task_experts: int,
        expert_hidden: list[int],
        tower_hidden: list[int],
        dropout: float,
        batch_norm: bool,
        specific_widths: Sequence[int] = (),
    ) -> None:
        super().__init__()
        width = expert_hidden[-1] if expert_hidden else in_features
        self.levels = nn.ModuleList(
            _PLELevel(
                width if level else in_features,
                num_tasks,
                num_shared_experts=num_shared_experts,
                num_task_experts=num_task_experts,
                expert_hidden=expert_hidden,
                mixes_shared=level < num_levels - 1,
                dropout=dropout,
                batch_norm=batch_norm,
            )
            for level in range(num_levels)
        )
        widths = [width + own for own in specific_widths or [0] * num_tasks]
        self.towers = nn.ModuleList(
            tower(width, tower_hidden, dropout=dropout, batch_norm=batch_norm) for width in widths
        )

    def forward(
        self, inputs_BH: torch.Tensor, specific: Sequence[torch.Tensor] = ()
    ) -> torch.Tensor:
        """(B, H) to logits (B, T)."""
        streams = [inputs_BH] * (len(self.towers) + 1)
        for level in self.levels:
            streams = level(streams)
        return _logits(self.towers, streams[: len(self.towers)], specific)


class _PLELevel(nn.Module):
    """One level; its streams are one of each task, then the shared one."""

    def __init__(
        self,
        in_features: int,
        num_tasks: int,
        *,
        num_shared_experts: int,
        num_task_experts: int,
        expert_hidden: list[int],
        mixes_shared: bool,
        dropout: float,
        batch_norm: bool,
    ) -> None:
        super().__init__()
        counts = [num_task_experts] * num_tasks + [num_shared_experts]
        self.experts = nn.ModuleList(
            nn.ModuleList(
                MLP(in_features, expert_hidden, dropout=dropout, batch_norm=batch_norm)
                for _ in range(count)
            )
            for count in counts
        )
        seen = [num_task_experts + num_shared_experts] * num_tasks
        if mixes_shared:
            seen.append(sum(counts))
        self.gates = nn.ModuleList(nn.Linear(in_features, count) for count in seen)

    def forward(self, streams: list[torch.Tensor]) -> list[torch.Tensor]:
        """T + 1 tensors (B, H) to as many, or to T at the last level."""
        *tasks, shared = [
            [expert(stream_BH) for expert in experts.children()]
            for experts, stream_BH in zip(self.experts, streams, strict=True)
        ]
        seen = [[*own, *shared] for own in tasks]
        seen.append([output for own in [*tasks, shared] for output in own])
        return [
            mix(gate, stream_BH, torch.stack(outputs, dim=1))
            for gate, stream_BH, outputs in zip(self.gates, streams, seen, strict=False)
        ]


def tower(
    in_features: int, hidden: list[int], *, dropout: float, batch_norm: bool
) -> nn.Sequential:
    """An MLP that ends in one logit."""
    mlp = MLP(in_features, hidden, dropout=dropout, batch_norm=batch_norm)
    return nn.Sequential(mlp, nn.Linear(mlp.out_features, 1))


def _logits(
    towers: nn.ModuleList, inputs: Sequence[torch.Tensor], specific: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Logits (B, T) of T inputs (B, H), each beside what its task has of its own."""
    if specific:
        pairs = zip(inputs, specific, strict=True)
        inputs = [torch.cat([shared_BH, own_BW], dim=1) for shared_BH, own_BW in pairs]
    return torch.cat([tower(x) for tower, x in zip(towers, inputs, strict=True)], dim=1)


def mix(gate: nn.Module, inputs_BI: torch.Tensor, experts_BEH: torch.Tensor) -> torch.Tensor:
    """The experts' outputs weighted by a softmax gate, (B, H)."""
    gates_B1E = torch.softmax(gate(inputs_BI), dim=1).unsqueeze(1)
    return torch.bmm(gates_B1E, experts_BEH).squeeze(1)
