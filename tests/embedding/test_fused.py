"""FBGEMM's fused tables against plain torch."""

import pytest
import torch
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from edorec.embedding.fused import FusedEmbeddingBagCollection

LEARNING_RATE, ACCUMULATOR = 0.1, 0.01


def build(
    tables: list[tuple[str, int, int, list[str]]],
    *,
    pooling: dict[str, PoolingType] | None = None,
    num_zero_rows: dict[str, int] | None = None,
    optimizer: str = "rowwise_adagrad",
    data_type: DataType = DataType.FP32,
    seed: int = 0,
    device: str = "cpu",
) -> FusedEmbeddingBagCollection:
    return FusedEmbeddingBagCollection(
        [
            EmbeddingBagConfig(
                name=name,
                num_embeddings=rows,
                embedding_dim=dim,
                feature_names=features,
                data_type=data_type,
            )
            for name, rows, dim, features in tables
        ],
        pooling=pooling or {},
        num_zero_rows=num_zero_rows or {},
        optimizer=optimizer,
        learning_rate=LEARNING_RATE,
        initial_accumulator=ACCUMULATOR,
        init_std=0.5,
        seed=seed,
        device=torch.device(device),
    )


def jagged(bags: dict[str, list[list[int]]]) -> KeyedJaggedTensor:
    flat = [ids for rows in bags.values() for ids in rows]
    return KeyedJaggedTensor(
        keys=list(bags),
        values=torch.tensor([i for ids in flat for i in ids], dtype=torch.int64),
        lengths=torch.tensor([len(ids) for ids in flat], dtype=torch.int32),
    )


def pooled_by_hand(weight: torch.Tensor, bags: list[list[int]], mean: bool) -> torch.Tensor:
    rows = []
    for ids in bags:
        total = weight[ids].sum(0)
        rows.append(total / len(ids) if mean and ids else total)
    return torch.stack(rows)


BAGS = {
    "item": [[3], [0], [9]],
    "viewed": [[1, 2, 3], [], [9] * 40],
    "tags": [[0, 1], [2], []],
    "one": [[0], [4], [2]],
}
TABLES = [("item", 10, 8, ["item", "viewed"]), ("one", 5, 1, ["one"]), ("tags", 3, 6, ["tags"])]
POOLING = {"viewed": PoolingType.MEAN, "item": PoolingType.SUM, "tags": PoolingType.SUM}


@pytest.mark.parametrize(
    "order", [["item", "viewed", "tags", "one"], ["one", "tags", "viewed", "item"]]
)
def test_b43_each_features_vector_equals_a_lookup_by_hand_in_any_order(order: list[str]) -> None:
    tables = build(TABLES, pooling=POOLING)
    pooled = tables(jagged({name: BAGS[name] for name in order}))
    for table, _, dim, features in TABLES:
        weight = tables.table_weight(table)[:, :dim]
        for name in features:
            mean = POOLING.get(name, PoolingType.SUM) == PoolingType.MEAN
            torch.testing.assert_close(pooled[name], pooled_by_hand(weight, BAGS[name], mean))


def test_b43_initial_rows_depend_on_the_tables_name_alone() -> None:
    one = build(TABLES)
    other = build(TABLES[::-1])
    for name, *_ in TABLES:
        assert torch.equal(one.table_weight(name), other.table_weight(name))
    assert not torch.equal(one.table_weight("item"), build(TABLES, seed=1).table_weight("item"))


def test_an_empty_bag_is_zero_and_has_no_gradient() -> None:
    tables = build(TABLES, pooling=POOLING)
    before = tables.table_weight("tags").clone()
    pooled = tables(jagged({name: [[]] for name in BAGS}))
    assert torch.equal(pooled.values(), torch.zeros(1, 8 + 8 + 1 + 6))
    pooled.values().sum().backward()
    assert torch.equal(tables.table_weight("tags"), before)


def test_bucket_rows_start_at_zero_and_init_std_does_not_depend_on_the_number_of_rows() -> None:
    for rows in (2_000, 20_000):
        tables = build([("t", rows, 16, ["t"])], num_zero_rows={"t": 5})
        weight = tables.table_weight("t")
        assert torch.equal(weight[-5:], torch.zeros(5, 16))
        assert abs(weight[:-5].std().item() - 0.5) < 0.02


def reference_step(
    optimizer: str, weight: torch.Tensor, gradient: torch.Tensor, state: torch.Tensor
) -> None:
    """One step of plain torch on (R, D) rows; ``state`` as FBGEMM keeps it."""
    if optimizer == "sgd":
        weight -= LEARNING_RATE * gradient
    elif optimizer == "adagrad":
        state += gradient.square()
        weight -= LEARNING_RATE * gradient / (state.sqrt() + 1e-8)
    else:
        state += gradient.square().mean(1)
        weight -= LEARNING_RATE * gradient / (state.sqrt() + 1e-8)[:, None]


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_b36_every_optimizer_equals_plain_torch(optimizer: str, device: str) -> None:
    tables = build([("t", 7, 8, ["t"])], optimizer=optimizer, device=device)
    weight = tables.table_weight("t").cpu().clone()
    state = torch.full((7,) if optimizer == "rowwise_adagrad" else (7, 8), ACCUMULATOR)
    generator = torch.Generator().manual_seed(3)
    for _ in range(5):
        ids = torch.randint(0, 7, (20,), generator=generator)
        upstream = torch.randn(20, 8, generator=generator)
        pooled = tables(jagged({"t": [[i] for i in ids.tolist()]}).to(tables.device))
        pooled.values().backward(upstream.to(tables.device))
        gradient = torch.zeros(7, 8).index_add_(0, ids, upstream)
        reference_step(optimizer, weight, gradient, state)
    torch.testing.assert_close(tables.table_weight("t").cpu(), weight, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dim", [1, 2, 6, 8])
def test_b04_any_dim_trains_and_padding_stays_zero(dim: int, device: str) -> None:
    tables = build([("t", 10, dim, ["t"])], device=device)
    before = tables.table_weight("t").clone()
    for _ in range(3):
        pooled = tables(jagged({"t": [[1], [2, 3]]}).to(tables.device))
        assert pooled["t"].shape == (2, dim)
        pooled["t"].square().sum().backward()
    after = tables.table_weight("t")
    assert after.shape[1] % 4 == 0
    assert not after[:, dim:].any()
    assert (after[1:4, :dim] != before[1:4, :dim]).all()
    assert torch.equal(after[4:], before[4:])


def test_fp16_rows_take_half_the_bytes() -> None:
    sizes = {
        data_type: build([("t", 100, 16, ["t"])], data_type=data_type).tables_state()["t"]
        for data_type in (DataType.FP32, DataType.FP16)
    }
    assert sizes[DataType.FP32]["weight"].nbytes == 2 * sizes[DataType.FP16]["weight"].nbytes
    assert sizes[DataType.FP16]["weight"].nbytes == 100 * 16 * 2
    assert sizes[DataType.FP16]["state0"].nbytes == 100 * 4


@pytest.mark.parametrize("device", DEVICES)
def test_tables_are_stored_anew_in_half_the_bytes(device: str) -> None:
    shapes = [("t", 5, 6, ["t"]), ("u", 3, 8, ["u"])]
    tables = build(shapes, optimizer="rowwise_adagrad", device=device)
    batch = jagged({"t": [[1, 2], [4]], "u": [[0], [2]]}).to(torch.device(device))
    tables(batch).values().square().sum().backward()
    before = {n: {k: v.clone() for k, v in s.items()} for n, s in tables.tables_state().items()}
    assert {n: b[0].format for n, b in tables.compressible_bands().items()} == {
        "t": "fp32",
        "u": "fp32",
    }
    assert tables.reencode("t", 0, "fp16") == 2 * (5 * 8 + 3 * 8), "of both tables"
    for name, state in tables.tables_state().items():
        assert torch.equal(state["weight"], before[name]["weight"].half())
        assert torch.equal(state["state0"], before[name]["state0"])
    assert tables.compressible_bands() == {}
    assert {n: b[0].format for n, b in tables.bands().items()} == {"t": "fp16", "u": "fp16"}
    tables.set_learning_rate(LEARNING_RATE)
    tables(batch).values().square().sum().backward()  # goes on training
    changed = tables.tables_state()["t"]["weight"][1]
    assert not torch.equal(changed, before["t"]["weight"][1].half())
    with pytest.raises(ValueError, match="FBGEMM's tables go from fp32 to fp16, not to int8"):
        tables.reencode("t", 0, "int8")


def test_learning_rate_is_that_of_the_next_backward() -> None:
    tables = build([("t", 3, 4, ["t"])], optimizer="sgd")
    before = tables.table_weight("t").clone()
    tables.set_learning_rate(0.25)
    tables(jagged({"t": [[1]]})).values().sum().backward()
    torch.testing.assert_close(tables.table_weight("t")[1], before[1] - 0.25)
