"""Every backbone with every head."""

import pytest
import torch

from edorec.layers.sequences import Padded
from edorec.models.config import (
    DCNv2Config,
    DeepFMConfig,
    DLRMConfig,
    ESMMConfig,
    MMoEConfig,
    ModelConfig,
    PLEConfig,
    SharedBottomConfig,
    STEMConfig,
)
from edorec.models.model import (
    BACKBONES,
    HEADS,
    TASK_SPECIFIC_HEADS,
    SequenceFeature,
    build_model,
)

BACKBONE_CONFIGS = [DeepFMConfig(hidden=[8]), DLRMConfig(hidden=[8]), DCNv2Config(hidden=[8])]
HEAD_CONFIGS = [
    SharedBottomConfig(tower_hidden=[4]),
    MMoEConfig(num_experts=2, expert_hidden=[6], tower_hidden=[4]),
    PLEConfig(expert_hidden=[6], tower_hidden=[4]),
    STEMConfig(expert_hidden=[6], tower_hidden=[4]),
    ESMMConfig(tower_hidden=[4]),
]
Backbone = DeepFMConfig | DLRMConfig | DCNv2Config
Head = SharedBottomConfig | MMoEConfig | PLEConfig | STEMConfig | ESMMConfig


def test_the_matrix_below_is_complete() -> None:
    assert {config.name for config in BACKBONE_CONFIGS} == set(BACKBONES)
    assert {config.name for config in HEAD_CONFIGS} == set(HEADS)


@pytest.mark.parametrize("head", HEAD_CONFIGS, ids=lambda config: config.name)
@pytest.mark.parametrize("backbone", BACKBONE_CONFIGS, ids=lambda config: config.name)
def test_every_weight_and_input_gets_a_gradient(backbone: Backbone, head: Head) -> None:
    torch.manual_seed(0)
    config = ModelConfig(backbone=backbone, head=head, batch_norm=True, dropout=0.1)
    own_dims: list[list[int]] = [[4], [], [4, 4]] if head.name == "stem" else []
    model = build_model(config, dims=[4, 4, 4], num_dense=2, num_tasks=3, specific_dims=own_dims)
    num_vectors = 3 + sum(len(dims) for dims in own_dims)
    pooled = [torch.randn(16, 4, requires_grad=True) for _ in range(num_vectors)]
    dense = torch.randn(16, 2, requires_grad=True)
    logits = model(pooled, dense)
    assert logits.shape == (16, 3)
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
    for tensor in [*pooled, dense]:
        assert tensor.grad is not None
        assert tensor.grad.abs().sum() > 0


@pytest.mark.parametrize("name", TASK_SPECIFIC_HEADS)
def test_vectors_of_one_task_reach_its_logit_alone(name: str) -> None:
    torch.manual_seed(0)
    head = next(config for config in HEAD_CONFIGS if config.name == name)
    model = build_model(
        ModelConfig(backbone=BACKBONE_CONFIGS[0], head=head),
        dims=[4, 4],
        num_dense=1,
        num_tasks=3,
        specific_dims=[[2], [], [3, 5]],
    )
    shared = [torch.randn(16, 4, requires_grad=True) for _ in range(2)]
    own = [torch.randn(16, dim, requires_grad=True) for dim in (2, 3, 5)]
    logits = model([*shared, *own], torch.randn(16, 1))
    for task, reached in enumerate(([0], [], [1, 2])):
        tensors = [*shared, *own]
        grads = torch.autograd.grad(
            logits[:, task].sum(), tensors, retain_graph=True, materialize_grads=True
        )
        assert [k for k, grad in enumerate(grads[2:]) if grad.any()] == reached
        assert all(grad.any() for grad in grads[:2])


def test_a_head_that_would_pass_a_tasks_gradient_on_is_refused() -> None:
    with pytest.raises(ValueError, match=r"head esmm takes no rows of single tasks; leave out"):
        build_model(
            ModelConfig(head=ESMMConfig()),
            dims=[4],
            num_dense=0,
            num_tasks=2,
            specific_dims=[[2], []],
        )


def test_a_stem_whose_tasks_have_nothing_of_their_own_is_refused() -> None:
    with pytest.raises(ValueError, match=r"give vocabularies\.NAME\.task_specific, or use ple"):
        build_model(ModelConfig(head=STEMConfig()), dims=[4], num_dense=0, num_tasks=2)


@pytest.mark.parametrize("backbone", BACKBONE_CONFIGS, ids=lambda config: config.name)
def test_a_rows_logits_do_not_depend_on_the_other_rows(
    backbone: Backbone,
) -> None:
    torch.manual_seed(0)
    config = ModelConfig(backbone=backbone, batch_norm=True)
    model = build_model(config, dims=[4, 4], num_dense=1, num_tasks=2).eval()
    pooled, dense = [torch.randn(9, 4) for _ in range(2)], torch.randn(9, 1)
    one = model([tensor[3:4] for tensor in pooled], dense[3:4])
    torch.testing.assert_close(one, model(pooled, dense)[3:4], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pooling", ["din", "transformer"])
@pytest.mark.parametrize("backbone", BACKBONE_CONFIGS, ids=lambda config: config.name)
def test_every_backbone_takes_lists(backbone: Backbone, pooling: str) -> None:
    torch.manual_seed(0)
    sequence = SequenceFeature(place=1, candidate=2, pooling=pooling, max_length=5)
    model = build_model(
        ModelConfig(backbone=backbone), dims=[4] * 3, num_dense=2, num_tasks=2, sequences=[sequence]
    )
    ids = torch.randn(6, 3, 4, requires_grad=True)
    user, item = (torch.randn(6, 4, requires_grad=True) for _ in range(2))
    lists = Padded(ids, torch.tensor([3, 0, 1, 2, 3, 0]))
    model([user, lists, item], torch.randn(6, 2)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
    for tensor in (ids, user, item):
        assert tensor.grad is not None
        assert tensor.grad.abs().sum() > 0
