"""Losses of the tasks and their total against the formulas."""

import math

import pytest
import torch

from edorec.losses import FixedWeights, UncertaintyWeights, loss_sums, mean_losses

NAN = math.nan


def bce(logit: float, label: float) -> float:
    return math.log1p(math.exp(-logit)) if label else math.log1p(math.exp(logit))


def test_a_null_label_touches_neither_loss_nor_gradient_of_its_task() -> None:
    logits = torch.tensor([[0.5, 1.0], [-1.0, 2.0]], requires_grad=True)
    labels = torch.tensor([[1.0, NAN], [0.0, 1.0]])
    losses = mean_losses(*loss_sums(logits, labels, weights_B=None))
    expected = torch.tensor([(bce(0.5, 1) + bce(-1.0, 0)) / 2, bce(2.0, 1)])
    torch.testing.assert_close(losses, expected)
    losses.sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, 1] == 0


def test_sample_weights_weigh_rows() -> None:
    logits = torch.tensor([[0.5], [-1.0]])
    labels = torch.tensor([[1.0], [1.0]])
    (loss,) = mean_losses(*loss_sums(logits, labels, weights_B=torch.tensor([3.0, 1.0])))
    expected = (3 * bce(0.5, 1) + bce(-1.0, 1)) / 4
    torch.testing.assert_close(loss.item(), expected, rtol=1e-6, atol=0)


def test_a_task_without_labels_in_the_batch_has_no_loss() -> None:
    logits = torch.tensor([[0.5, 9.0]], requires_grad=True)
    losses = mean_losses(*loss_sums(logits, torch.tensor([[1.0, NAN]]), weights_B=None))
    torch.testing.assert_close(losses, torch.tensor([bce(0.5, 1), 0.0]))


def test_fixed_weights_multiply_losses() -> None:
    assert FixedWeights([1.0, 3.0])(torch.tensor([0.5, 0.25])) == 1.25


def test_uncertainty_weights_settle_where_each_loss_is_its_variance() -> None:
    """d/ds (e^-s L + s / 2) = 0 at e^s = 2 L, so that e^-s L is 1/2 for every task."""
    losses = torch.tensor([0.7, 0.02])
    weights = UncertaintyWeights(2)
    assert weights(losses).item() == pytest.approx(0.72)
    optimizer = torch.optim.Adam(weights.parameters(), lr=0.05)
    for _ in range(500):
        optimizer.zero_grad()
        weights(losses).backward()
        optimizer.step()
    torch.testing.assert_close(weights.weights() * losses, torch.full((2,), 0.5), rtol=0.01, atol=0)


def test_uncertainty_of_a_task_without_labels_stays() -> None:
    weights = UncertaintyWeights(2)
    weights(torch.tensor([0.7, 0.0])).backward()
    gradient = weights.log_variances_T.grad
    assert gradient is not None
    assert gradient[0] != 0
    assert gradient[1] == 0
