"""Tasks with embeddings of their own beside the shared ones.

B batch, H hidden, E experts, T tasks.
"""

from collections.abc import Sequence

import torch
from torch import nn

from edorec.layers.experts import mix, tower
from edorec.layers.mlp import MLP


class STEM(nn.Module):
    """Experts over shared and task-specific embeddings (Su et al., AAAI 2024).

    A task's experts and its gate see the shared part and its own vectors. Its gate mixes the
    shared experts, its own and those of all other tasks, but the gradient stops at the latter (all
    forward, task-specific backward): a task learns from what others know and never changes it.

    Args:
        in_features: width of the shared part.
        num_tasks: T.
        num_shared_experts: experts that see the shared part alone.
        num_task_experts: experts of each task.
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
        num_shared_experts: int,
        num_task_experts: int,
        expert_hidden: list[int],
        tower_hidden: list[int],
        dropout: float,
        batch_norm: bool,
        specific_widths: Sequence[int] = (),
    ) -> None:
        super().__init__()
        if not any(specific_widths):
            raise ValueError(
                "stem is for tasks with embeddings of their own; give "
                "vocabularies.NAME.task_specific, or use ple"
            )
        widths = [in_features + own for own in specific_widths]

        def experts(width: int, count: int) -> nn.ModuleList:
            return nn.ModuleList(
                MLP(width, expert_hidden, dropout=dropout, batch_norm=batch_norm)
                for _ in range(count)
            )

        self.shared_experts = experts(in_features, num_shared_experts)
        self.task_experts = nn.ModuleList(experts(width, num_task_experts) for width in widths)
        num_experts = num_shared_experts + num_tasks * num_task_experts
        self.gates = nn.ModuleList(nn.Linear(width, num_experts) for width in widths)
        self.towers = nn.ModuleList(
            tower(expert_hidden[-1], tower_hidden, dropout=dropout, batch_norm=batch_norm)
            for _ in range(num_tasks)
        )

    def forward(self, inputs_BH: torch.Tensor, specific: Sequence[torch.Tensor]) -> torch.Tensor:
        """(B, H) and T tensors (B, W of the task) to logits (B, T)."""
        seen = [torch.cat([inputs_BH, own_BW], dim=1) for own_BW in specific]
        shared = [expert(inputs_BH) for expert in self.shared_experts]
        of_tasks = [
            [expert(inputs) for expert in experts.children()]
            for experts, inputs in zip(self.task_experts, seen, strict=True)
        ]
        logits = []
        for task, (gate, tower_) in enumerate(zip(self.gates, self.towers, strict=True)):
            outputs = [
                output if owner == task else output.detach()
                for owner, own in enumerate(of_tasks)
                for output in own
            ]
            logits.append(tower_(mix(gate, seen[task], torch.stack([*shared, *outputs], dim=1))))
        return torch.cat(logits, dim=1)
