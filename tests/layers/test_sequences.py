"""Pooling of lists against plain formulas."""

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edorec.layers.sequences import DIN, Padded, Transformer

DIM = 4
SIZES = {"max_length": 6, "num_heads": 2, "hidden": 8, "dropout": 0.0}


def pooling(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if name == "din":
        return DIN(DIM, hidden=[5], dropout=0.0)
    return Transformer(DIM, num_layers=2, share_layers=1, **SIZES)


def lists(lengths: list[int], *, num_places: int, beyond: float = 0.0) -> Padded:
    """Lists of random vectors, the same whatever stands beyond their ends."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.full((len(lengths), num_places, DIM), beyond)
    for b, length in enumerate(lengths):
        ids[b, :length] = torch.randn(length, DIM, generator=generator)
    return Padded(ids, torch.tensor(lengths))


both = pytest.mark.parametrize("name", ["din", "transformer"])


@both
@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5), training=st.booleans())
@settings(max_examples=20, deadline=None)
def test_padding_changes_nothing(name: str, lengths: list[int], training: bool) -> None:
    module = pooling(name).train(training)
    candidates = torch.randn(len(lengths), DIM, generator=torch.Generator().manual_seed(2))
    num_places = max(*lengths, 1)
    whole = module(lists(lengths, num_places=num_places), candidates)
    assert whole.shape == (len(lengths), DIM)
    wider = module(lists(lengths, num_places=6, beyond=1e3), candidates)
    torch.testing.assert_close(wider, whole, rtol=1e-4, atol=1e-5)
    ids, _ = lists(lengths, num_places=num_places)
    for b, length in enumerate(lengths):
        alone = Padded(ids[b : b + 1, : max(length, 1)], torch.tensor([length]))
        result = module(alone, candidates[b : b + 1])
        torch.testing.assert_close(result, whole[b : b + 1], rtol=1e-4, atol=1e-5)


@both
def test_gradients_reach_ids_and_candidate_and_no_padding(name: str) -> None:
    module = pooling(name)
    ids, lengths = lists([3, 0, 1], num_places=4)
    ids.requires_grad_()
    candidates = torch.randn(3, DIM, requires_grad=True)
    (module(Padded(ids, lengths), candidates) * torch.randn(3, DIM)).sum().backward()
    assert ids.grad is not None
    assert candidates.grad is not None
    has_gradient = ids.grad.abs().sum(2) > 0
    assert has_gradient.tolist() == [[True] * 3 + [False], [False] * 4, [True] + [False] * 3]
    assert candidates.grad[[0, 2]].abs().sum(1).gt(0).all()


def test_din_is_the_weighted_sum() -> None:
    module = pooling("din")
    ids, lengths = lists([3, 2], num_places=3)
    candidates = torch.randn(2, DIM)
    for b, length in enumerate(lengths.tolist()):
        expected = torch.zeros(DIM)
        for row, candidate in ((row, candidates[b]) for row in ids[b, :length]):
            seen = torch.cat([row, candidate, row - candidate, row * candidate])
            expected += module.weigh(seen.unsqueeze(0))[0, 0] * row
        torch.testing.assert_close(module(Padded(ids, lengths), candidates)[b], expected)


def test_din_of_an_empty_list_is_zero() -> None:
    result = pooling("din")(lists([0, 2], num_places=2), torch.randn(2, DIM))
    assert result[0].tolist() == [0.0] * DIM
    assert result[1].abs().sum() > 0


def test_the_transformer_knows_positions_from_the_end() -> None:
    module = pooling("transformer").eval()
    with torch.no_grad():
        module.positions.normal_()
    candidate = torch.randn(1, DIM)
    (ids,), _ = lists([3], num_places=3)

    def of(*rows: torch.Tensor) -> torch.Tensor:
        return module(Padded(torch.stack(rows).unsqueeze(0), torch.tensor([len(rows)])), candidate)

    assert not torch.allclose(of(ids[0], ids[1]), of(ids[1], ids[0]), atol=1e-3)
    # The places of the last two ids are the same, however many stand before them.
    taken = module.positions[[1, 0]]
    with torch.no_grad():
        module.positions[2:] = 0
        short = of(ids[0], ids[1])
        module.positions[:2] = 0
        shifted = of(ids[0] + taken[0], ids[1] + taken[1])
    torch.testing.assert_close(short, shifted)


def test_the_transformer_is_torchs_encoder_over_candidate_and_list() -> None:
    """The same numbers from torch's own stack of layers, mask and all."""
    module = pooling("transformer").eval()
    encoder = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(DIM, 2, 8, dropout=0.0, batch_first=True, norm_first=True),
        num_layers=2,
        norm=torch.nn.LayerNorm(DIM),
        enable_nested_tensor=False,
    ).eval()
    encoder.layers.load_state_dict(module.layers.state_dict())
    encoder.norm.load_state_dict(module.norm.state_dict())
    ids, lengths = lists([3, 1], num_places=3)
    candidates = torch.randn(2, DIM)
    places = torch.tensor([[2, 1, 0], [0, 0, 0]])  # from the end; what is beyond is masked
    tokens = torch.cat(
        [(candidates + module.candidate).unsqueeze(1), ids + module.positions[places]], dim=1
    )
    mask = torch.tensor([[False] * 4, [False, False, True, True]])
    expected = encoder(tokens, src_key_padding_mask=mask)[:, 0]
    torch.testing.assert_close(module(Padded(ids, lengths), candidates), expected)


def tied(share_layers: int) -> Transformer:
    torch.manual_seed(3)
    return Transformer(DIM, num_layers=4, share_layers=share_layers, **SIZES)


def storages(module: torch.nn.Module) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in module.state_dict().values()}


def test_tied_layers_are_one_module_in_forward_and_backward() -> None:
    """Against four layers with equal weights: the same result, and the gradient is their sum."""
    ours, untied = tied(2), tied(1)
    for k, layer in enumerate(untied.layers):
        layer.load_state_dict(ours.layers[k // 2].state_dict())
    for name in ("positions", "candidate"):
        getattr(untied, name).data.copy_(getattr(ours, name))
    batch, candidates = lists([3, 2], num_places=3), torch.randn(2, DIM)
    torch.testing.assert_close(ours(batch, candidates), untied(batch, candidates))
    for module in (ours, untied):
        module(batch, candidates).square().sum().backward()
    for k, layer in enumerate(ours.layers):
        copies = [untied.layers[2 * k + n] for n in (0, 1)]
        for name, parameter in layer.named_parameters():
            gradients = [copy.get_parameter(name).grad for copy in copies]
            torch.testing.assert_close(parameter.grad, sum(gradients), rtol=1e-4, atol=1e-6)


def test_a_tie_is_one_copy_through_training_saving_and_loading() -> None:
    module, untied = tied(2), tied(1)
    layer_size = sum(p.numel() for p in untied.layers[0].parameters())
    assert sum(p.numel() for p in module.layers.parameters()) == 2 * layer_size
    assert sum(p.numel() for p in untied.layers.parameters()) == 4 * layer_size
    before = storages(module)
    assert len(before) == len(list(module.parameters()))
    optimizer = torch.optim.AdamW(module.parameters())
    module(lists([3, 2], num_places=3), torch.randn(2, DIM)).square().sum().backward()
    optimizer.step()
    assert storages(module) == before
    assert len(optimizer.state) == len(list(module.parameters()))
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer)
    assert sum(tensor.numel() for name, tensor in state.items() if name.startswith("layers.")) == (
        2 * layer_size
    )
    loaded = tied(2)
    kept = storages(loaded)
    loaded.load_state_dict(state)
    assert storages(loaded) == kept
    batch, candidates = lists([3, 1], num_places=3), torch.randn(2, DIM)
    assert torch.equal(loaded.eval()(batch, candidates), module.eval()(batch, candidates))


def test_transformers_that_cannot_be_say_so() -> None:
    with pytest.raises(ValueError, match="num_heads must divide the vocabulary's dim, got 3 heads"):
        Transformer(DIM, num_layers=2, share_layers=1, **{**SIZES, "num_heads": 3})
    with pytest.raises(ValueError, match="share_layers must divide num_layers, got 2 and 3"):
        Transformer(DIM, num_layers=3, share_layers=2, **SIZES)
