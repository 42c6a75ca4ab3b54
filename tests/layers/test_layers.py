"""Layers against plain formulas."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edorec.layers.experts import PLE, MMoE, SharedBottom
from edorec.layers.funnel import ESMM, logit_of_product
from edorec.layers.interaction import DLRM, DCNv2, DeepFM
from edorec.layers.mlp import MLP
from edorec.layers.stem import STEM

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


PLE_SIZES = {"num_shared_experts": 2, "num_task_experts": 1, "expert_hidden": [5]}


def test_ple_of_one_level_mixes_own_and_shared_experts() -> None:
    head = PLE(6, 2, num_levels=1, **PLE_SIZES, tower_hidden=[], **COMMON)
    inputs = torch.randn(4, 6)
    (level,) = head.levels
    gates = torch.softmax(level.gates[1](inputs), dim=1)
    experts = [*level.experts[1], *level.experts[2]]
    mixed = sum(gates[:, [e]] * expert(inputs) for e, expert in enumerate(experts))
    torch.testing.assert_close(head(inputs)[:, 1:2], head.towers[1](mixed))


def test_ple_tasks_meet_in_shared_experts_alone() -> None:
    """At the last level nothing of another task moves; its first level does, through the shared."""
    head = PLE(6, 2, num_levels=2, **PLE_SIZES, tower_hidden=[], **COMMON)
    head(torch.randn(4, 6))[:, 0].sum().backward()
    first, last = head.levels
    assert [moves(experts) for experts in first.experts] == [True, True, True]
    assert [moves(experts) for experts in last.experts] == [True, False, True]
    assert [moves(gate) for gate in last.gates] == [True, False]
    assert [moves(tower) for tower in head.towers] == [True, False]


def moves(module: torch.nn.Module) -> bool:
    return any(p.grad is not None and p.grad.any() for p in module.parameters())


def stem() -> STEM:
    return STEM(
        6,
        2,
        num_shared_experts=1,
        num_task_experts=2,
        expert_hidden=[5],
        tower_hidden=[],
        specific_widths=[3, 0],
        **COMMON,
    )


def test_stem_mixes_the_experts_of_all_tasks() -> None:
    head = stem()
    inputs, own = torch.randn(4, 6), [torch.randn(4, 3), torch.empty(4, 0)]
    seen = [torch.cat([inputs, vectors], dim=1) for vectors in own]
    outputs = [head.shared_experts[0](inputs)]
    outputs += [expert(seen[t]) for t in (0, 1) for expert in head.task_experts[t]]
    gates = torch.softmax(head.gates[1](seen[1]), dim=1)
    mixed = sum(gates[:, [e]] * output for e, output in enumerate(outputs))
    torch.testing.assert_close(head(inputs, own)[:, 1:2], head.towers[1](mixed))


def test_stem_sees_other_tasks_and_leaves_them_alone() -> None:
    head = stem()
    inputs = torch.randn(4, 6)
    own = [torch.randn(4, 3, requires_grad=True), torch.empty(4, 0)]
    head(inputs, own)[:, 1].sum().backward()
    assert own[0].grad is None or not own[0].grad.any()
    assert [moves(experts) for experts in head.task_experts] == [False, True]
    assert moves(head.shared_experts)
    other = [torch.randn(4, 3), own[1]]
    assert not torch.allclose(head(inputs, own)[:, 1], head(inputs, other)[:, 1])


def test_esmm_multiplies_probabilities_along_the_chain() -> None:
    head = ESMM(6, 3, tower_hidden=[4], **COMMON).double()
    inputs = torch.randn(5, 6, dtype=torch.float64)
    steps = torch.cat([torch.sigmoid(tower(inputs)) for tower in head.towers], dim=1)
    expected = torch.cumprod(steps, dim=1)
    torch.testing.assert_close(torch.sigmoid(head(inputs)).double(), expected, rtol=1e-5, atol=1e-7)


def test_esmm_of_one_task_says_so() -> None:
    with pytest.raises(ValueError, match="a chain of at least 2 tasks, got 1"):
        ESMM(6, 1, tower_hidden=[], **COMMON)


@given(st.floats(-200, 200), st.floats(-200, 200))
def test_the_logit_of_a_product_is_finite_and_right(a: float, b: float) -> None:
    logits = torch.tensor([a, b], requires_grad=True)
    logit = logit_of_product(logits[0], logits[1])
    exact = -torch.logsumexp(torch.tensor([-a, -b, -a - b], dtype=torch.float64), 0)
    torch.testing.assert_close(logit.double(), exact, rtol=1e-5, atol=1e-5)
    if abs(a) < 15 and abs(b) < 15:
        product = torch.sigmoid(torch.tensor([a, b], dtype=torch.float64)).prod()
        torch.testing.assert_close(torch.sigmoid(exact), product, rtol=1e-6, atol=0)
    logit.backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad >= 0).all()
