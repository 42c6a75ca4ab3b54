"""Tasks that follow each other: an exposure, a click, a conversion. B batch, H hidden, T tasks."""

import torch
from torch import nn

from edorec.layers.experts import tower


class ESMM(nn.Module):
    """Conversion over the whole space of exposures (Ma et al., SIGIR 2018).

    Each tower gives the probability of a task among the rows where the task before it happened, and
    the logit of a task is that of the product of these up to it. So conversion is trained on every
    exposure, by the loss of click x conversion, instead of on clicks alone. With more than two
    tasks this is the chain of Wen et al. (SIGIR 2020).
    """

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
        if num_tasks < 2:
            raise ValueError(f"esmm needs a chain of at least 2 tasks, got {num_tasks}")
        self.towers = nn.ModuleList(
            tower(in_features, tower_hidden, dropout=dropout, batch_norm=batch_norm)
            for _ in range(num_tasks)
        )

    def forward(self, inputs_BH: torch.Tensor) -> torch.Tensor:
        """(B, H) to logits (B, T), float32; those of a row never rise from a task to the next."""
        steps = [tower(inputs_BH).float() for tower in self.towers]
        logits = steps[:1]
        for step_B1 in steps[1:]:
            logits.append(logit_of_product(logits[-1], step_B1))
        return torch.cat(logits, dim=1)


def logit_of_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The logit of sigmoid(a) * sigmoid(b), which is -log(e^-a + e^-b + e^-(a + b)).

    Finite wherever a + b is, where the product itself would round to 0 or 1.
    """
    return -torch.logsumexp(torch.stack([-a, -b, -a - b]), dim=0)
