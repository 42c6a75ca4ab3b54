"""Layers against plain formulas."""

import pytest
import torch

from edorec.layers.experts import MMoE, SharedBottom
from edorec.layers.interaction import DLRM, DCNv2, DeepFM
from edorec.layers.mlp import MLP

COMMON = {"dropout": 0.0, "batch_norm": False}


def features(num_features: int = 3, dim: int = 4, rows: int = 5) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(rows, dim, generator=generator) for _ in range(num_features)]


def test_mlp_without_layers_is_the_identity() -> None:
    mlp = MLP(3, [], **COMMON)
    inputs = torch.randn(2, 3)
    assert mlp.out_features == 3
    assert torch.equal(mlp(inputs), inputs)


def test_mlp_has_dropout_only_while_training() -> None:
    mlp = MLP(8, [64], dropout=0.5, batch_norm=False)
    inputs = torch.ones(1, 8)
    mlp.train()
    assert not torch.equal(mlp(inputs), mlp(inputs))
    mlp.eval()
    assert torch.equal(mlp(inputs), mlp(inputs))


def test_deepfm_ends_with_the_sum_of_pairwise_products() -> None:
    pooled = features()
    model = DeepFM([4, 4, 4], 2, hidden=[6], **COMMON)
    outputs = model(pooled, torch.randn(5, 2))
    pairs = pooled[0] * pooled[1] + pooled[0] * pooled[2] + pooled[1] * pooled[2]
    assert outputs.shape == (5, model.out_features) == (5, 10)
    torch.testing.assert_close(outputs[:, 6:], pairs)


def test_dlrm_ends_with_all_dot_products() -> None:
    pooled = features()
    model = DLRM([4, 4, 4], 2, hidden=[6], **COMMON)
    dense = torch.randn(5, 2)
    outputs = model(pooled, dense)
    vectors = [model.bottom(dense), *pooled]
    dots = {
        round(float((vectors[i] * vectors[j]).sum(1)[0]), 4) for i in range(4) for j in range(i)
    }
    assert outputs.shape == (5, model.out_features) == (5, 4 + 6)
    assert {round(float(value), 4) for value in outputs[0, 4:]} == dots


def test_dcnv2_takes_features_of_different_dims() -> None:
    pooled = [torch.randn(5, 2), torch.randn(5, 7)]
    model = DCNv2([2, 7], 1, hidden=[6], num_cross_layers=2, cross_rank=3, **COMMON)
    assert model(pooled, torch.randn(5, 1)).shape == (5, model.out_features) == (5, 16)


@pytest.mark.parametrize("backbone", [DeepFM, DLRM])
def test_backbones_that_need_one_dim_say_so(backbone: type) -> None:
    with pytest.raises(ValueError, match=r"one dim, got dims \[2, 4\]"):
        backbone([2, 4], 1, hidden=[3], **COMMON)


def test_dlrm_without_dense_features_says_so() -> None:
    with pytest.raises(ValueError, match="at least one dense feature"):
        DLRM([4], 0, hidden=[3], **COMMON)


def test_shared_bottom_gives_one_logit_a_task() -> None:
    head = SharedBottom(6, 3, tower_hidden=[4], **COMMON)
    inputs = torch.randn(5, 6)
    logits = head(inputs)
    assert logits.shape == (5, 3)
    torch.testing.assert_close(logits[:, 1:2], head.towers[1](inputs))


def test_mmoe_mixes_experts_by_each_tasks_gate() -> None:
    head = MMoE(6, 2, num_experts=3, expert_hidden=[5], tower_hidden=[], **COMMON)
    inputs = torch.randn(4, 6)
    gates = torch.softmax(head.gates[1](inputs), dim=1)
    mixed = sum(gates[:, [e]] * head.experts[e](inputs) for e in range(3))
    torch.testing.assert_close(head(inputs)[:, 1:2], head.towers[1](mixed))
