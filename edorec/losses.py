"""Loss of a batch: binary cross-entropy of each task where its label is known, and their total."""

import torch
from torch import nn
from torch.nn import functional


def loss_sums(
    logits_BT: torch.Tensor, labels_BT: torch.Tensor, *, weights_B: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """By task the weighted sum of losses and the sum of weights, both float32 (T,).

    A NaN label takes its row out of both.

    Args:
        logits_BT: float (B, T).
        labels_BT: float32 (B, T), 0, 1 or NaN.
        weights_B: float32 (B,) sample weights, or None.
    """
    known_BT = ~torch.isnan(labels_BT)
    losses_BT = functional.binary_cross_entropy_with_logits(
        logits_BT.float(), torch.where(known_BT, labels_BT, 0.0), reduction="none"
    )
    row_weights_BT = known_BT.float()
    if weights_B is not None:
        row_weights_BT = row_weights_BT * weights_B[:, None]
    totals_T = row_weights_BT.sum(0)
    # A row without a label must not spread a NaN logit of its own: 0 * NaN is NaN.
    sums_T = torch.where(row_weights_BT > 0, losses_BT * row_weights_BT, 0.0).sum(0)
    return sums_T, totals_T


def mean_losses(sums_T: torch.Tensor, totals_T: torch.Tensor) -> torch.Tensor:
    """Sums over totals (T,); 0 where the total is 0."""
    return sums_T / totals_T.clamp(min=torch.finfo(torch.float32).tiny)


class FixedWeights(nn.Module):
    """The sum over tasks of weight times loss."""

    weights_T: torch.Tensor

    def __init__(self, weights: list[float]) -> None:
        super().__init__()
        self.register_buffer("weights_T", torch.tensor(weights))

    def forward(self, losses_T: torch.Tensor) -> torch.Tensor:
        """(T,) to a scalar."""
        return (losses_T * self.weights_T).sum()


class UncertaintyWeights(nn.Module):
    """Learned weights (Kendall et al., CVPR 2018): the sum over tasks of e^-s * loss + s / 2.

    s is the logarithm of a task's variance, 0 at first. A task with a large loss learns a large s,
    so that tasks pull about equally hard whatever the scale of their losses. The total may be
    negative.
    """

    def __init__(self, num_tasks: int) -> None:
        super().__init__()
        self.log_variances_T = nn.Parameter(torch.zeros(num_tasks))

    def weights(self) -> torch.Tensor:
        """What each task's loss is multiplied with now, (T,)."""
        return torch.exp(-self.log_variances_T.detach())

    def forward(self, losses_T: torch.Tensor) -> torch.Tensor:
        """(T,) to a scalar; a task of loss 0 (no labels in the batch) keeps its s."""
        terms_T = torch.exp(-self.log_variances_T) * losses_T + self.log_variances_T / 2
        return torch.where(losses_T > 0, terms_T, 0.0).sum()
