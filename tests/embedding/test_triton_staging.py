"""Rows fetched ahead of their batch: no number differs, and each crosses the bus once.

On the CPU the kernels run under Triton's interpreter, without streams; on a GPU with them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from edorec.embedding.bands import Band
from edorec.embedding.collection import EdoEmbeddingBagCollection
from tests.embedding.batches import all_bytes, jagged, table

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

DIM = 5
SIZES = {"cpu": {"rows": 9, "bags": 2}, "cuda": {"rows": 6000, "bags": 2000}}
FORMATS = {
    "bands": [("fp32", "fp32"), ("int8", "log8"), ("int4", "bf16")],
    "fp16": [("fp16", "fp32")] * 3,
    "int2": [("int2", "fp32")] * 3,
    "ternary": [("ternary:0.1", "log8")] * 3,
}
FEATURES = ["a", "mean", "list", "b"]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "cpu" and torch.cuda.is_available():
        pytest.skip("kernels are compiled for the GPU, and do not run on the CPU")
    return name


def build(device: str, *, formats: str = "bands", **settings: Any) -> EdoEmbeddingBagCollection:
    """Two thirds of table a and all of c are in the host's memory, b is on the device.

    Feature a is looked up in tables a and c.
    """
    rows = SIZES[device]["rows"]
    bands = [Band(rows // 3, *storage) for storage in FORMATS[formats]]
    return EdoEmbeddingBagCollection(
        [
            table("a", rows, DIM, ["a", "mean", "list"], bands=bands, host_rows=range(2, rows - 2)),
            table("b", rows, DIM, format="int8"),
            table("c", rows, 3, ["a"], format="int8", host_rows=range(rows), qat="int4"),
        ],
        pooling={"mean": PoolingType.MEAN},
        is_weighted=True,
        init_std=0.3,
        initial_accumulator=0.1,
        kernel="triton",
        device=torch.device(device),
        **settings,
    )


def random_batches(device: str, number: int, *, seed: int = 0) -> list[KeyedJaggedTensor]:
    """Few rows, so that batches share them; a bag has 0 to 3 look-ups."""
    generator = torch.Generator().manual_seed(seed)
    size = len(FEATURES) * SIZES[device]["bags"]
    batches = []
    for _ in range(number):
        lengths = torch.randint(0, 4, (size,), generator=generator)
        count = int(lengths.sum())
        ids = torch.randint(0, SIZES[device]["rows"], (count,), generator=generator)
        weights = torch.rand(count, generator=generator)
        batch = KeyedJaggedTensor(FEATURES, ids, lengths=lengths.int(), weights=weights)
        batches.append(batch.to(torch.device(device)))
    return batches


def look_up(tables: EdoEmbeddingBagCollection, batch: KeyedJaggedTensor) -> torch.Tensor:
    pooled, lists = tables.look_up(batch, unpooled={"list"})
    return torch.cat([pooled.values().flatten(), lists["list"].values().flatten()])


def step(tables: EdoEmbeddingBagCollection, batch: KeyedJaggedTensor) -> torch.Tensor:
    result = look_up(tables, batch)
    (1 + result).square().sum().backward()  # no row has a gradient of zero
    return result.detach()


def train(
    tables: EdoEmbeddingBagCollection,
    batches: Sequence[KeyedJaggedTensor],
    *,
    ahead: bool,
    between: Callable[[int], object] = lambda number: None,
) -> list[torch.Tensor]:
    """As the trainer does; ``between`` is called when the next batch is fetched."""
    results = []
    if ahead:
        tables.prefetch(batches[0])
    for number, batch in enumerate(batches):
        if ahead and number + 1 < len(batches):
            tables.prefetch(batches[number + 1])
        between(number)
        results.append(step(tables, batch))
    return results


def assert_same(
    ours: tuple[EdoEmbeddingBagCollection, list[torch.Tensor]],
    theirs: tuple[EdoEmbeddingBagCollection, list[torch.Tensor]],
) -> None:
    for one, other in zip(ours[1], theirs[1], strict=True):
        assert torch.equal(one, other)
    rows = all_bytes(theirs[0])
    for name, held in all_bytes(ours[0]).items():
        assert torch.equal(held, rows[name]), name


def figures(tables: EdoEmbeddingBagCollection) -> dict[str, Any]:
    paging = tables.paging()
    assert paging is not None
    return paging


@pytest.mark.parametrize(
    ("formats", "optimizer"),
    [
        ("bands", "rowwise_adagrad"),
        ("bands", "adam"),
        ("fp16", "sgd"),
        ("int2", "adagrad"),
        ("ternary", "rowwise_adagrad"),
    ],
)
def test_rows_fetched_ahead_train_as_others(device: str, formats: str, optimizer: str) -> None:
    batches = random_batches(device, 3)
    runs = []
    for ahead in (True, False):
        tables = build(device, formats=formats, optimizer=optimizer)
        runs.append((tables, train(tables, batches, ahead=ahead)))
        assert figures(tables)["prefetch_rate"] == ahead
    assert_same(*runs)
    ours, theirs = (figures(tables) for tables, _ in runs)
    assert ours["hit_rate"] == theirs["hit_rate"]
    assert ours["read_bytes"] == ours["written_bytes"] == theirs["written_bytes"]
    assert theirs["read_bytes"] > theirs["written_bytes"]


def test_batches_that_were_not_fetched_change_nothing(device: str) -> None:
    """Neither they nor those that were fetched and did not come; copies of rows are kept right."""
    fetched, others = random_batches(device, 3), random_batches(device, 3, seed=1)
    runs = []
    for ahead in (True, False):
        tables, seen = build(device), []

        def evaluate_and_train(
            number: int,
            tables: EdoEmbeddingBagCollection = tables,
            seen: list[torch.Tensor] = seen,
            ahead: bool = ahead,
        ) -> None:
            with torch.no_grad():
                if ahead and number == 1:
                    tables.prefetch(others[number])
                seen.append(look_up(tables, others[number]))
            seen.append(step(tables, others[number - 1]))

        results = train(tables, fetched, ahead=ahead, between=evaluate_and_train)
        runs.append((tables, [*results, *seen]))
    assert 0 < figures(runs[0][0])["prefetch_rate"] < 1
    assert_same(*runs)


def test_the_same_values_in_other_bags_or_changed_read_their_own_rows(device: str) -> None:
    (batch,) = random_batches(device, 1)
    lengths = batch.lengths().flip(0)
    other = KeyedJaggedTensor(
        FEATURES, batch.values(), lengths=lengths, weights=batch.weights_or_none()
    )
    runs = []
    for ahead in (True, False):
        tables, values = build(device), batch.values().clone()
        if ahead:
            tables.prefetch(batch)
        results = [step(tables, other)]
        if ahead:
            tables.prefetch(batch)
        batch.values().copy_(values.flip(0))
        results.append(step(tables, batch))
        batch.values().copy_(values)
        runs.append((tables, results))
    assert 0 < figures(runs[0][0])["prefetch_rate"] < 1
    assert_same(*runs)


@pytest.mark.parametrize("way", ["reencode", "load", "take_rows"])
def test_rows_changed_behind_an_update_are_read_anew(device: str, way: str) -> None:
    batches = random_batches(device, 3)
    source = build(device, seed=1)
    runs = []
    for ahead in (True, False):
        tables = build(device)

        def change(number: int, tables: EdoEmbeddingBagCollection = tables) -> None:
            if number != 1:
                return
            if way == "reencode":
                tables.reencode("a", 1, "int4")
            elif way == "take_rows":
                tables.take_rows(source.tables_state())
            else:
                theirs = source.tables_state()
                for name, bands in tables.tables_state().items():
                    for key, rows in bands.items():
                        rows.copy_(theirs[name][key])

        runs.append((tables, train(tables, batches, ahead=ahead, between=change)))
    assert_same(*runs)


def test_a_row_crosses_the_bus_once_for_a_batch(device: str) -> None:
    rows = 9
    tables = EdoEmbeddingBagCollection(
        [table("a", rows, DIM, ["a"], format="int8", host_rows=range(2, rows))],
        initial_accumulator=0.1,
        kernel="triton",
        device=torch.device(device),
    )
    row_bytes = 4 + DIM + 4
    first, second = (
        jagged({"a": bags}).to(torch.device(device))
        for bags in ([[0, 3, 3], [3, 8], []], [[8, 1], [8], [8, 4]])
    )
    tables.prefetch(first)
    assert figures(tables)["read_bytes"] == 2 * row_bytes  # rows 3 and 8
    tables.prefetch(second)
    assert figures(tables)["read_bytes"] == 4 * row_bytes  # 8 and 4
    tables(first).values().sum().backward()
    tables.prefetch(first)
    tables(second).values()[:2].sum().backward()  # row 4 has no gradient: it stays
    wanted = {"read_bytes": 6 * row_bytes, "written_bytes": 3 * row_bytes}
    wanted |= {"hit_rate": 2 / 10, "prefetch_rate": 1.0}
    assert {name: figures(tables)[name] for name in wanted} == wanted
    with torch.no_grad():
        tables(second)  # used up: rows are read as they are, one for each look-up
    wanted = {"read_bytes": wanted["read_bytes"] + 4 * (4 + DIM), "prefetch_rate": 8 / 12}
    assert {name: figures(tables)[name] for name in wanted} == wanted


def test_batches_without_look_ups_are_fetched(device: str) -> None:
    tables = build(device)
    empty = jagged({name: [[], []] for name in FEATURES}, {name: [[], []] for name in FEATURES})
    train(tables, [empty.to(torch.device(device))] * 2, ahead=True)
    assert figures(tables)["read_bytes"] == 0


def test_a_value_that_is_no_row_is_named_by_its_look_up(device: str) -> None:
    tables = build(device)
    rows = SIZES[device]["rows"]
    bags = {name: [[rows if name == "list" else 0]] for name in FEATURES}
    batch = jagged(bags, {name: [[1.0]] for name in FEATURES}).to(torch.device(device))
    tables.prefetch(batch)
    with pytest.raises(IndexError, match=f"feature list: {rows} is not a row of table a"):
        tables(batch)
