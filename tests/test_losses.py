"""The multi-task loss against the formula."""

import math

import torch

from edorec.losses import multi_task_loss

NAN = math.nan


def bce(logit: float, label: float) -> float:
    return math.log1p(math.exp(-logit)) if label else math.log1p(math.exp(logit))


def test_a_null_label_touches_neither_loss_nor_gradient_of_its_task() -> None:
    logits = torch.tensor([[0.5, 1.0], [-1.0, 2.0]], requires_grad=True)
    labels = torch.tensor([[1.0, NAN], [0.0, 1.0]])
    loss, by_task = multi_task_loss(
        logits, labels, task_weights_T=torch.tensor([1.0, 3.0]), weights_B=None
    )
    click = (bce(0.5, 1) + bce(-1.0, 0)) / 2
    buy = bce(2.0, 1)
    torch.testing.assert_close(by_task.tolist(), [click, buy], rtol=1e-6, atol=0)
    torch.testing.assert_close(loss.item(), click + 3 * buy, rtol=1e-6, atol=0)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[0, 1] == 0


def test_sample_weights_weigh_rows() -> None:
    logits = torch.tensor([[0.5], [-1.0]])
    labels = torch.tensor([[1.0], [1.0]])
    loss, _ = multi_task_loss(
        logits, labels, task_weights_T=torch.ones(1), weights_B=torch.tensor([3.0, 1.0])
    )
    expected = (3 * bce(0.5, 1) + bce(-1.0, 1)) / 4
    torch.testing.assert_close(loss.item(), expected, rtol=1e-6, atol=0)


def test_a_task_without_labels_in_the_batch_adds_nothing() -> None:
    logits = torch.tensor([[0.5, 9.0]], requires_grad=True)
    loss, by_task = multi_task_loss(
        logits, torch.tensor([[1.0, NAN]]), task_weights_T=torch.ones(2), weights_B=None
    )
    assert by_task[1] == 0
    torch.testing.assert_close(loss.item(), bce(0.5, 1), rtol=1e-6, atol=0)
