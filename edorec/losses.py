"""Loss of a batch: binary cross-entropy of each task over the rows whose label is known."""

import torch
from torch.nn import functional


def multi_task_loss(
    logits_BT: torch.Tensor,
    labels_BT: torch.Tensor,
    *,
    task_weights_T: torch.Tensor,
    weights_B: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted sum over tasks of the mean loss of a task.

    A NaN label takes its row out of that task's mean; a task without any label in the batch adds 0.

    Args:
        logits_BT: float (B, T).
        labels_BT: float32 (B, T), 0, 1 or NaN.
        task_weights_T: float32 (T,).
        weights_B: float32 (B,) sample weights, or None.

    Returns:
        The scalar loss and the mean loss of each task (T,), both float32.
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
    losses_T = sums_T / totals_T.clamp(min=torch.finfo(torch.float32).tiny)
    return (losses_T * task_weights_T).sum(), losses_T
