"""Collections against plain torch and torchrec."""

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.models.dlrm import DLRM
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from edorec.checkpoint import load_model, save_model
from edorec.embedding.bands import Band
from edorec.embedding.collection import EdoEmbeddingBagCollection, EdoEmbeddingCollection
from edorec.embedding.formats import SELF_SCALED, format_of
from edorec.embedding.optimizers import OPTIMIZERS
from edorec.embedding.states import STATES
from edorec.errors import InputError
from tests.embedding.batches import all_bytes, by_hand, jagged, memories_of, set_rows, table

TRAINED = [*(name for name in SELF_SCALED if format_of(name).trains), "ternary:0.3"]
PLACES = [
    ("cpu", "cpu"),
    ("reference", "cpu"),
    pytest.param("reference", "cuda", marks=pytest.mark.gpu),
]
both_kernels = pytest.mark.parametrize("kernel", ["cpu", "reference"])


def build(*tables: Any, **settings: Any) -> EdoEmbeddingBagCollection:
    return EdoEmbeddingBagCollection(tables, **{"init_std": 0.5, **settings})


# Optimizers


def expected_step(
    optimizer: str, w: torch.Tensor, g: torch.Tensor, state: dict[str, torch.Tensor], t: int
) -> torch.Tensor:
    """New rows by the formulas of the papers; ``state`` holds a, m and v of the rows."""
    lr, eps = 0.1, 1e-8
    if optimizer == "sgd":
        return w - lr * g
    if optimizer == "adagrad":
        state["a"] = state["a"] + g**2
        return w - lr * g / (torch.sqrt(state["a"]) + eps)
    if optimizer == "rowwise_adagrad":
        state["a"] = state["a"] + torch.mean(g**2, dim=1, keepdim=True)
        return w - lr * g / (torch.sqrt(state["a"]) + eps)
    assert optimizer == "adam"
    state["m"] = 0.9 * state["m"] + 0.1 * g
    state["v"] = 0.999 * state["v"] + 0.001 * torch.mean(g**2, dim=1, keepdim=True)
    first, second = state["m"] / (1 - 0.9**t), state["v"] / (1 - 0.999**t)
    return w - lr * first / (torch.sqrt(second) + eps)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("kernel", "device"), PLACES)
def test_b36_every_optimizer_equals_plain_torch(optimizer: str, kernel: str, device: str) -> None:
    tables = build(
        table("t", 20, 8),
        optimizer=optimizer,
        learning_rate=0.1,
        initial_accumulator=0.01,
        device=torch.device(device),
        kernel=kernel,
    )
    weight = tables.tables.weight("t").cpu().double()
    width = 8 if optimizer == "adagrad" else 1
    state = {
        "a": torch.full((20, width), 0.01).double(),
        "m": torch.zeros(20, 8).double(),
        "v": torch.zeros(20, 1).double(),
    }
    generator = torch.Generator().manual_seed(3)
    for t in range(1, 6):
        ids = torch.randint(0, 20, (12,), generator=generator)
        upstream = torch.randn(12, 8, generator=generator)
        pooled = tables(jagged({"t": [[i] for i in ids.tolist()]}).to(tables.device))
        pooled.values().backward(upstream.to(tables.device))
        gradient = torch.zeros(20, 8).index_add_(0, ids, upstream).double()
        rows = ids.unique()
        ours = {name: values[rows] for name, values in state.items()}
        weight[rows] = expected_step(optimizer, weight[rows], gradient[rows], ours, t)
        for name, values in ours.items():
            state[name][rows] = values
    result = tables.tables.weight("t").cpu().double()
    torch.testing.assert_close(result, weight, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kernel", "device"), PLACES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_b37_weight_decay_acts_on_the_rows_looked_up_alone(
    optimizer: str, kernel: str, device: str
) -> None:
    tables = build(
        table("t", 4, 8),
        optimizer=optimizer,
        learning_rate=0.1,
        weight_decay=0.1,
        device=torch.device(device),
        kernel=kernel,
    )
    set_rows(tables, "t", torch.ones(4, 8).to(tables.device))
    before = all_bytes(tables)["t.band0"]
    for _ in range(10):
        pooled = tables(jagged({"t": [[0, 1], [1]]}).to(tables.device)).values()
        pooled.backward(torch.zeros_like(pooled))
    weight = tables.tables.weight("t").cpu()
    torch.testing.assert_close(weight[:2], torch.full((2, 8), (1 - 0.1 * 0.1) ** 10))
    assert weight[0, 0].item() == pytest.approx(0.904, abs=5e-4)
    assert torch.equal(all_bytes(tables)["t.band0"][2:], before[2:])


@both_kernels
@pytest.mark.parametrize("row_format", TRAINED)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("accumulator", [0.0, 1e-3])
def test_a_zero_gradient_changes_nothing(
    row_format: str, optimizer: str, kernel: str, accumulator: float
) -> None:
    tables = build(
        table("t", 50, 7, bands=[Band(50, row_format, "log8")]),
        optimizer=optimizer,
        initial_accumulator=accumulator,
        kernel=kernel,
    )
    weight, rows = tables.tables.weight("t"), all_bytes(tables)["t.band0"]
    for _ in range(3):
        pooled = tables(jagged({"t": [[i] for i in range(50)]})).values()
        pooled.backward(torch.zeros_like(pooled))
    after = tables.tables.weight("t")
    assert after.isfinite().all()
    if optimizer != "adam":
        assert torch.equal(all_bytes(tables)["t.band0"], rows)
    elif row_format in ("fp32", "fp16", "int8"):  # the others round anew
        assert torch.equal(after, weight)


@both_kernels
@pytest.mark.parametrize("state", STATES)
def test_an_accumulator_may_start_at_zero_and_is_right_on_average(kernel: str, state: str) -> None:
    num_rows, steps, gradient = 1000, 30, 0.01
    tables = build(
        table("t", num_rows, 4, bands=[Band(num_rows, "fp32", state)]),
        learning_rate=1e-3,
        kernel=kernel,
    )
    batch = jagged({"t": [[i] for i in range(num_rows)]})
    for _ in range(steps):
        pooled = tables(batch).values()
        pooled.backward(torch.full_like(pooled, gradient))
    (memory,) = memories_of(tables, "t")
    sums = STATES[state].decode(memory.rows_RS[:, memory.row_bytes :]).double()
    deviation = sums.std().item() / num_rows**0.5
    assert abs(sums.mean().item() - steps * gradient**2) <= 5 * deviation + 1e-7
    assert tables.tables.weight("t").isfinite().all()


def test_learning_rate_is_that_of_the_next_backward() -> None:
    tables = build(table("t", 3, 4), optimizer="sgd")
    before = tables.tables.weight("t")
    tables.set_learning_rate(0.25)
    tables(jagged({"t": [[1]]})).values().sum().backward()
    torch.testing.assert_close(tables.tables.weight("t")[1], before[1] - 0.25)


# Look-ups and gradients


@both_kernels
@given(seed=st.integers(0, 2**32), dim=st.sampled_from([1, 3, 8]), weighted=st.booleans())
@settings(max_examples=15, deadline=None)
def test_gradients_are_those_of_torch(kernel: str, seed: int, dim: int, weighted: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    tables = build(
        table("t", 9, dim, ["sum", "mean"]),
        pooling={"mean": PoolingType.MEAN},
        is_weighted=weighted,
        optimizer="sgd",
        learning_rate=1.0,
        kernel=kernel,
    )
    bags: dict[str, list[list[int]]] = {}
    scales: dict[str, list[list[float]]] = {}
    for name in ("mean", "sum"):
        lengths = torch.randint(0, 5, (6,), generator=generator).tolist()
        bags[name] = [torch.randint(0, 9, (n,), generator=generator).tolist() for n in lengths]
        scales[name] = [torch.randn(n, generator=generator).tolist() for n in lengths]
    before = tables.tables.weight("t").requires_grad_()
    expected = torch.cat(
        [
            by_hand(
                before, bags[name], mean=name == "mean", scales=scales[name] if weighted else None
            )
            for name in ("sum", "mean")
        ],
        dim=1,
    )
    pooled = tables(jagged(bags, scales if weighted else None)).values()
    torch.testing.assert_close(pooled, expected)
    upstream = torch.randn(pooled.shape, generator=generator)
    pooled.backward(upstream)
    expected.backward(upstream)
    assert before.grad is not None
    moved = before.detach() - tables.tables.weight("t")
    torch.testing.assert_close(moved, before.grad, rtol=1e-4, atol=1e-5)


@both_kernels
@pytest.mark.parametrize("qat", SELF_SCALED)
def test_qat_reads_through_the_format_and_passes_the_gradient_straight(
    kernel: str, qat: str
) -> None:
    tables = build(table("t", 9, 16, qat=qat), optimizer="sgd", learning_rate=0.1, kernel=kernel)
    before = tables.tables.weight("t")
    small = format_of(qat)
    served = small.decode(small.encode(before, torch.tensor(0.5)), 16)
    bags = [[0, 3, 3], [], [8]]
    pooled = tables(jagged({"t": bags})).values()
    torch.testing.assert_close(pooled, by_hand(served, bags), rtol=2.1e-3, atol=1e-6)
    pooled.backward(torch.ones(3, 16))
    moved = (before - tables.tables.weight("t"))[:, 0] / 0.1
    expected = torch.tensor([1.0, 0, 0, 2, 0, 0, 0, 0, 1])
    torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-4)


BAGS = {
    "fp32_sum": [[3], [0, 1], []],
    "mean": [[8, 2, 2], [], [5]],
    "hashed": [[5], [0, 0], [1]],
    "item": [[9], [0], [4]],
    "viewed": [list(range(10)) * 4, [], [1]],
}


def four_tables(kernel: str = "cpu", **settings: Any) -> EdoEmbeddingBagCollection:
    return build(
        table("fp32_sum", 9, 8),
        table("mean", 9, 16, format="int8", pooling=PoolingType.MEAN),
        table("hashed", 6, 8, num_zero_rows=2),
        table("item", 10, 4, ["item", "viewed"]),
        pooling={"viewed": PoolingType.MEAN},
        kernel=kernel,
        **settings,
    )


@both_kernels
def test_b43_any_order_of_keys_gives_each_feature_its_rows(kernel: str) -> None:
    tables = four_tables(kernel)
    for order in list(permutations(BAGS))[::7]:
        pooled = tables(jagged({name: BAGS[name] for name in order}))
        assert pooled.keys() == ["fp32_sum", "mean", "hashed", "item", "viewed"]
        for name in BAGS:
            weight = tables.tables.weight("item" if name == "viewed" else name)
            expected = by_hand(weight, BAGS[name], mean=name in ("mean", "viewed"))
            torch.testing.assert_close(pooled[name], expected)


def test_the_result_is_that_of_torchrec() -> None:
    # A feature of two tables is two keys; a table without features has one of its name.
    configs = [
        EmbeddingBagConfig(name="a", num_embeddings=9, embedding_dim=4, feature_names=["f", "g"]),
        EmbeddingBagConfig(name="b", num_embeddings=7, embedding_dim=8, feature_names=["g"]),
        EmbeddingBagConfig(name="c", num_embeddings=5, embedding_dim=4, pooling=PoolingType.MEAN),
    ]
    theirs = EmbeddingBagCollection(tables=configs)
    ours = build(
        table("a", 9, 4, ["f", "g"]),
        table("b", 7, 8, ["g"]),
        table("c", 5, 4, pooling=PoolingType.MEAN),
    )
    for name, bag in theirs.embedding_bags.items():
        set_rows(ours, name, bag.weight.detach())
    batch = jagged({"c": [[1, 2], []], "g": [[0, 6], [3]], "f": [[8], [7]]})
    expected, pooled = theirs(batch), ours(batch)
    assert pooled.keys() == expected.keys()
    assert pooled.length_per_key() == expected.length_per_key()
    torch.testing.assert_close(pooled.values(), expected.values())
    assert [config.name for config in ours.embedding_bag_configs()] == ["a", "b", "c"]


@both_kernels
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_values_and_weights_may_have_gaps_and_any_type(kernel: str, dtype: torch.dtype) -> None:
    tables = build(table("t", 9, 4), is_weighted=True, kernel=kernel)
    values, weights = torch.tensor([1, 5, 8, 2]), torch.tensor([0.5, 1.0, -1.0, 2.0])
    plain = KeyedJaggedTensor(["t"], values, weights, torch.tensor([2, 0, 2]))
    gaps = KeyedJaggedTensor(
        ["t"],
        torch.stack([values, torch.full((4,), -77)], dim=1).to(dtype)[:, 0],
        torch.stack([weights, torch.full((4,), 1e9)], dim=1).double()[:, 0].requires_grad_(),
        torch.tensor([2, 0, 2], dtype=torch.int32),
    )
    assert torch.equal(tables(gaps).values(), tables(plain).values())
    tables(gaps).values().sum().backward()


@both_kernels
def test_empty_batches_and_bags(kernel: str) -> None:
    tables = four_tables(kernel)
    before = all_bytes(tables)
    for bags in ({name: [] for name in BAGS}, {name: [[]] * 3 for name in BAGS}):
        pooled = tables(jagged(bags)).values()
        assert pooled.shape == (len(bags["item"]), 8 + 16 + 8 + 4 + 4)
        assert not pooled.any()
        pooled.sum().backward()
    assert all(torch.equal(rows, before[name]) for name, rows in all_bytes(tables).items())
    assert build().embedding_bag_configs() == []  # a run without sparse features


@both_kernels
def test_refuses_batches_that_are_not_whole(kernel: str) -> None:
    tables = build(table("t", 9, 4, ["f", "g"]), kernel=kernel)
    with pytest.raises(ValueError, match="feature g is not in the batch, which has f, h"):
        tables(jagged({"f": [[1]], "h": [[1]]}))
    with pytest.raises(
        ValueError, match="the lengths of the batch add up to 900, and it has 2 values"
    ):
        tables(KeyedJaggedTensor(["f", "g"], torch.tensor([1, 2]), lengths=torch.tensor([1, 899])))
    with pytest.raises(ValueError, match="features must have one batch size"):
        tables(
            KeyedJaggedTensor(
                ["f", "g"],
                torch.tensor([1, 2, 3]),
                lengths=torch.tensor([1, 1, 1]),
                stride_per_key_per_rank=[[1], [2]],
            )
        )


@pytest.mark.parametrize(
    ("tables", "settings", "sentence"),
    [
        ([table("t", 2, 4)] * 2, {}, "tables must have different names, got t, t"),
        ([table("t", 2, 4)], {"optimizer": "lamb"}, "optimizer must be one of sgd, .*, got lamb"),
        (
            [table("t", 2, 4)],
            {"kernel": "gpu"},
            "kernel must be one of cpu, triton, reference, got gpu",
        ),
        (
            [table("t", 2, 4)],
            {"kernel": "cpu", "device": torch.device("meta")},
            "kernel cpu works on the CPU, got device meta",
        ),
    ],
)
def test_refuses_collections_that_cannot_be(
    tables: list[Any], settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        build(*tables, **settings)


def test_refuses_tables_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="table t: bands have 3 rows, num_embeddings is 4"):
        table("t", 4, 4, bands=[Band(3, "int8")])
    with pytest.raises(ValueError, match=r"table t: qat must be one of fp32, .*, got int5"):
        table("t", 4, 4, qat="int5")
    with pytest.raises(ValueError, match="table t: 4294967297 rows are more than 4294967296"):
        table("t", 2**32 + 1, 4)


def test_initial_rows_and_rounding_follow_the_seed() -> None:
    def trained(seed: int) -> dict[str, torch.Tensor]:
        tables = four_tables(seed=seed)
        for _ in range(2):
            tables(jagged(BAGS)).values().square().sum().backward()
        return all_bytes(tables)

    one, same, other = trained(1), trained(1), trained(2)
    assert all(torch.equal(rows, same[name]) for name, rows in one.items())
    assert not any(torch.equal(rows, other[name]) for name, rows in one.items())
    alone = build(table("item", 10, 4)).tables.weight("item")
    assert torch.equal(alone, four_tables().tables.weight("item"))


def test_no_gradient_and_evaluation_leave_the_rows() -> None:
    tables = four_tables()
    before = all_bytes(tables)
    with torch.no_grad():
        assert not tables(jagged(BAGS)).values().requires_grad
    tables.eval()
    tables(jagged(BAGS))
    assert list(tables.parameters()) == []
    assert all(torch.equal(rows, before[name]) for name, rows in all_bytes(tables).items())


def test_a_checkpoint_of_another_format_of_as_many_bytes_is_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    saved, other = (build(table("t", 9, 4, format=name)) for name in ("fp16", "int8"))
    assert all_bytes(saved)["t.band0"].shape == all_bytes(other)["t.band0"].shape
    save_model(tmp_path / "best.pt", model=model, tables=saved, step=1)
    with pytest.raises(
        InputError, match=r"t\.band0_fp16_fp32 is uint8 \(9, 12\) there and absent here"
    ):
        load_model(tmp_path / "best.pt", model=model, tables=other)
    again = build(table("t", 9, 4, format="fp16"), seed=1)
    load_model(tmp_path / "best.pt", model=model, tables=again)
    assert torch.equal(all_bytes(again)["t.band0"], all_bytes(saved)["t.band0"])


# In torchrec's models


@pytest.mark.parametrize("row_format", ["fp32", "int8"])
def test_dlrm_of_torchrec_trains(row_format: str) -> None:
    torch.manual_seed(0)
    tables = build(
        *[table(name, 30, 8, format=row_format) for name in ("user", "item")],
        init_std=0.1,
        learning_rate=0.1,
    )
    model = DLRM(
        tables, dense_in_features=3, dense_arch_layer_sizes=[8, 8], over_arch_layer_sizes=[8, 1]
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    effects, losses = torch.randn(2, 30), []
    for _ in range(60):
        users, items = torch.randint(0, 30, (2, 256))
        logits = 2 * effects[0][users] + 2 * effects[1][items]
        labels = (torch.rand(256) < logits.sigmoid()).float()
        batch = jagged(
            {"item": [[i] for i in items.tolist()], "user": [[u] for u in users.tolist()]}
        )
        predicted = model(torch.randn(256, 3), batch).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(predicted, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[:5]) / 5 > 0.6
    assert sum(losses[-10:]) / 10 < 0.5


# Sequences

SEQUENCES = {"viewed": [[3, 3, 0], [], [9]], "item": [[1], [2], [2]], "tag": [[], [4, 0], [1]]}


def sequences(**settings: Any) -> EdoEmbeddingCollection:
    return EdoEmbeddingCollection(
        [table("item", 10, 4, ["item", "viewed"]), table("tag", 5, 4)],
        **{"init_std": 0.5, "optimizer": "sgd", "learning_rate": 0.5, **settings},
    )


@both_kernels
def test_sequences_are_their_rows(kernel: str) -> None:
    tables = sequences(kernel=kernel)
    for order in permutations(SEQUENCES):
        result = tables(jagged({name: SEQUENCES[name] for name in order} | {"other": [[77]] * 3}))
        assert list(result) == ["item", "viewed", "tag"]
        for name, values in result.items():
            weight = tables.tables.weight("tag" if name == "tag" else "item")
            ids = [i for row in SEQUENCES[name] for i in row]
            assert torch.equal(values.values(), weight[ids])
            assert values.lengths().tolist() == [len(row) for row in SEQUENCES[name]]


@both_kernels
def test_gradients_of_sequences(kernel: str) -> None:
    tables = sequences(kernel=kernel)
    before = {name: tables.tables.weight(name) for name in ("item", "tag")}
    result = tables(jagged(SEQUENCES))
    loss = (result["viewed"].values() * torch.arange(4.0)[:, None]).sum()
    (loss + 5 * result["item"].values()[0].sum()).backward()
    moved = {name: (before[name] - tables.tables.weight(name)) / 0.5 for name in before}
    expected = torch.zeros(10, 4)
    expected[3], expected[0], expected[9], expected[1] = 1, 2, 3, 5
    torch.testing.assert_close(moved["item"], expected)
    assert not moved["tag"].any()


@both_kernels
def test_sequences_without_values(kernel: str) -> None:
    tables = sequences(kernel=kernel)
    for bags in ({name: [] for name in SEQUENCES}, {name: [[], []] for name in SEQUENCES}):
        for values in tables(jagged(bags)).values():
            assert values.values().shape == (0, 4)
            assert values.lengths().shape == (len(bags["tag"]),)


@both_kernels
def test_b43_pooled_and_unpooled_look_ups_of_shared_tables(kernel: str) -> None:
    """Each gets its rows whatever the order of keys, and a row that both look up moves once."""
    configs = [
        table("item", 9, 4, ["shown", "viewed", "bought"]),
        table("user", 5, 3, ["user"]),
        table("tag", 6, 4, ["tags"]),
    ]
    bags = {
        "shown": [[1], [2], [8]],
        "viewed": [[2, 1, 2], [], [0]],
        "bought": [[1, 3], [4], []],
        "user": [[0], [4], [4]],
        "tags": [[], [5, 5], [1]],
    }
    for order in permutations(bags):
        tables = build(*configs, optimizer="rowwise_adagrad", learning_rate=0.1, kernel=kernel)
        before = {config.name: tables.tables.weight(config.name) for config in configs}
        pooled, lists = tables.look_up(
            jagged({name: bags[name] for name in order}), unpooled={"viewed", "tags"}
        )
        assert pooled.keys() == ["shown", "bought", "user"]
        assert set(lists) == {"viewed", "tags"}
        for name, key in (("shown", "item"), ("bought", "item"), ("user", "user")):
            torch.testing.assert_close(pooled[name], by_hand(before[key], bags[name]))
        for name, key in (("viewed", "item"), ("tags", "tag")):
            ids = [i for bag in bags[name] for i in bag]
            torch.testing.assert_close(lists[name].values(), before[key][ids])
            assert lists[name].lengths().tolist() == [len(bag) for bag in bags[name]]
        total = pooled["shown"].sum() + (2 * lists["viewed"].values()).sum()
        total.backward()
        # Row 1 of item was shown once and viewed once, row 2 shown once and viewed twice.
        gradient = torch.tensor([2.0, 3, 5, 0, 0, 0, 0, 0, 1]).unsqueeze(1).expand(9, 4)
        state = {"a": torch.zeros(9, 1)}
        moved = expected_step("rowwise_adagrad", before["item"], gradient, state, 1)
        looked_up = [0, 1, 2, 8]
        torch.testing.assert_close(
            tables.tables.weight("item")[looked_up], moved[looked_up], rtol=1e-5, atol=1e-6
        )
        assert torch.equal(tables.tables.weight("item")[5:8], before["item"][5:8])
        assert torch.equal(tables.tables.weight("user"), before["user"])


def test_interface_of_sequences() -> None:
    tables = sequences()
    assert tables.embedding_dim() == 4
    assert tables.need_indices() is False
    assert tables.embedding_names_by_table() == [["item", "viewed"], ["tag"]]
    assert [config.name for config in tables.embedding_configs()] == ["item", "tag"]
    shared = EdoEmbeddingCollection([table("a", 5, 4, ["f"]), table("b", 6, 4, ["f", "g"])])
    result = shared(jagged({"g": [[0], [1]], "f": [[1, 2], []]}))
    assert list(result) == ["f@a", "f@b", "g"]
    assert torch.equal(result["f@b"].values(), shared.tables.weight("b")[[1, 2]])
    assert shared.embedding_names_by_table() == [["f@a"], ["f@b", "g"]]
    with pytest.raises(ValueError, match="all tables must have one embedding_dim, got \\[4, 8\\]"):
        EdoEmbeddingCollection([table("a", 5, 4), table("b", 5, 8)])
    with pytest.raises(IndexError, match="feature tag: 5 is not a row of table tag, which has 5"):
        tables(jagged({**SEQUENCES, "tag": [[5], [], []]}))
    with pytest.raises(ValueError, match="feature tag is not in the batch"):
        tables(jagged({"item": [[1]], "viewed": [[1]]}))
