"""The reader: every row once, in an order of its own, in batches that depend on nothing else."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edorec.data import encode
from edorec.data.batch import Batch
from edorec.data.prepare import Prepared
from edorec.data.reader import Reader
from edorec.embedding.admission import RowMap
from edorec.errors import InputError
from tests.data.logs import batches, encoded, prepare_log, write

ROWS = 103


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """103 rows in encoded row groups of 10, each with an id and an x of its own."""
    folder = tmp_path_factory.mktemp("reader")
    rng = np.random.default_rng(0)
    write(
        folder / "train.parquet",
        {
            "item": list(range(ROWS)),
            "shop": [i % 7 for i in range(ROWS)],
            "list": [list(range(i % 4)) for i in range(ROWS)],
            "x": list(range(ROWS)),
            "w": rng.random(ROWS),
            "y": rng.integers(0, 2, ROWS),
        },
    )
    write(
        folder / "test.parquet",
        {"item": [1, 500], "shop": [1, 8], "list": [[1], [77]], "x": [0, 1]} | {"w": [1.0, 1.0]},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "ROW_GROUP", 10)
        return prepare_log(
            folder,
            sparse={"item": None, "list": None, "shop": None},
            dense={"x": None},
            weight="w",
            group="shop",
            test="test.parquet",
        )


def rows_of(found: list[Batch]) -> list[tuple[object, ...]]:
    """Everything a batch holds, row by row."""
    rows: list[tuple[object, ...]] = []
    for batch in found:
        jagged = [batch.sparse[key] for key in batch.sparse.keys()]  # noqa: SIM118
        assert batch.weights_B is not None
        assert batch.groups_B is not None
        for row in range(len(batch)):
            ids = tuple(
                tuple(part.values()[part.offsets()[row] : part.offsets()[row + 1]].tolist())
                for part in jagged
            )
            rows.append(
                (
                    *ids,
                    batch.dense_BN[row].item(),
                    batch.labels_BT[row].item(),
                    batch.weights_B[row].item(),
                    batch.groups_B[row].item(),
                )
            )
    return rows


def expected_rows(prepared: Prepared) -> list[tuple[object, ...]]:
    table = pq.read_table(prepared.splits["train"].path).to_pydict()
    columns = [
        table[prepared.columns[key]]
        for key in (
            ("sparse", "item"),
            ("sparse", "list"),
            ("sparse", "shop"),
            ("dense", "x"),
            ("label", "click"),
            ("weight", "weight"),
            ("group", "group"),
        )
    ]
    return [
        ((item,), tuple(items), (shop,), *rest)
        for item, items, shop, *rest in zip(*columns, strict=True)
    ]


def test_encoded_row_groups_do_not_follow_the_input(prepared: Prepared) -> None:
    metadata = pq.read_metadata(prepared.splits["train"].path)
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert sizes == [10] * 10 + [3]


def test_unshuffled_rows_come_as_they_are(prepared: Prepared) -> None:
    found = batches(prepared, batch_size=8)
    assert [len(batch) for batch in found] == [8] * 12 + [7]
    assert [batch.end for batch in found] == [*range(8, 97, 8), 103]
    assert rows_of(found) == expected_rows(prepared)
    first = found[0]
    assert first.sparse.keys() == ["item", "list", "shop"]
    assert first.sparse.values().dtype == torch.int64
    assert first.sparse.lengths().dtype == torch.int32
    assert first.dense_BN.dtype == first.labels_BT.dtype == torch.float32
    assert first.deciles_BK is None
    assert first.unseen_B is None


@settings(max_examples=40, deadline=None)
@given(
    batch_size=st.integers(1, 120),
    shuffle_rows=st.integers(1, 120),
    start=st.integers(0, ROWS),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 3),
)
def test_each_row_once_and_resumable_anywhere(
    prepared: Prepared, batch_size: int, shuffle_rows: int, start: int, seed: int, epoch: int
) -> None:
    def read(begin: int, size: int) -> list[Batch]:
        return batches(
            prepared,
            start=begin,
            batch_size=size,
            shuffle=True,
            shuffle_rows=shuffle_rows,
            seed=seed,
            epoch=epoch,
        )

    everything = read(0, batch_size)
    rows = rows_of(everything)
    assert [len(b) for b in everything[:-1]] == [batch_size] * (len(everything) - 1)
    assert everything[-1].end == ROWS
    assert sorted(rows, key=str) == sorted(expected_rows(prepared), key=str)
    assert rows_of(read(start, 17)) == rows[start:]


def test_order_depends_on_seed_and_epoch(prepared: Prepared) -> None:
    orders = {
        tuple(rows_of(batches(prepared, shuffle=True, seed=seed, epoch=epoch)))
        for seed in (0, 1)
        for epoch in (0, 1)
        for _ in range(2)
    }
    assert len(orders) == 4


def test_shuffling_moves_rows_across_row_groups(prepared: Prepared) -> None:
    found = rows_of(batches(prepared, shuffle=True, shuffle_rows=ROWS))
    original = expected_rows(prepared)
    places = [original.index(row) for row in found]
    assert len({place // 10 for place in places[:20]}) > 5


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_ranks_share_each_batch(prepared: Prepared, world_size: int) -> None:
    alone = batches(prepared, shuffle=True, batch_size=20)
    ranks = [
        batches(prepared, shuffle=True, batch_size=20, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    assert {len(found) for found in ranks} == {6}
    for step, batch in enumerate(alone):
        parts = [found[step] for found in ranks]
        assert rows_of(parts) == rows_of([batch])
        assert {part.end for part in parts} == {batch.end}
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_ranks_share_batches_over_windows_and_from_any_row(prepared: Prepared) -> None:
    options: dict[str, Any] = {"shuffle": True, "shuffle_rows": 17, "batch_size": 20}
    for start in (0, 7, 40):
        alone = batches(prepared, start=start, **options)
        ranks = [
            batches(prepared, start=start, rank=rank, world_size=3, **options) for rank in range(3)
        ]
        for step, batch in enumerate(alone):
            assert rows_of([found[step] for found in ranks]) == rows_of([batch])


def test_a_rank_without_rows_gets_an_empty_batch(prepared: Prepared) -> None:
    found = batches(prepared, "test", batch_size=2, rank=0, world_size=3)
    assert [len(batch) for batch in found] == [0]
    assert found[0].sparse.lengths().tolist() == []
    assert found[0].sparse.keys() == ["item", "list", "shop"]


def test_row_maps_apply_and_draws_do_not_depend_on_batches(prepared: Prepared) -> None:
    maps = {name: RowMap(60, 9, 20, 0.5) for name in ("item", "list", "shop")}

    def rows(**options: object) -> dict[object, tuple[object, ...]]:
        found = rows_of(batches(prepared, row_maps=maps, **options))
        return {row[3]: row[:3] for row in found}  # by x, which names the row

    plain = rows(batch_size=8)
    assert plain == rows(batch_size=31, shuffle=True, shuffle_rows=13)
    assert plain != rows(batch_size=8, epoch=1)
    assert plain != rows(batch_size=8, seed=1)
    evaluated = rows(batch_size=8, training=False)
    ids = np.array(encoded(prepared, "item"))
    expected = maps["item"].rows(ids, draws=None).tolist()
    xs = encoded(prepared, "x")
    assert {x: evaluated[x][0] for x in xs} == {
        x: (row,) for x, row in zip(xs, expected, strict=True)
    }
    changed = [x for x in xs if plain[x][0] != evaluated[x][0]]
    assert 10 < len(changed) < 30  # half of the 40 rare ids that have a row


def test_deciles_and_unseen_rows(prepared: Prepared) -> None:
    [batch] = batches(prepared, "test", training=False, frequency_features=("shop", "item"))
    assert batch.deciles_BK is not None
    assert batch.unseen_B is not None
    assert batch.deciles_BK.dtype == torch.uint8
    assert batch.deciles_BK[1].tolist() == [10, 10]
    assert batch.unseen_B.tolist() == [False, True]
    whole = batches(prepared, training=False, frequency_features=("item",), batch_size=ROWS)[
        0
    ].deciles_BK
    assert whole is not None
    counts = torch.bincount(whole[:, 0].long())
    assert len(counts) == 10
    assert counts.min() >= 10
    assert counts.max() <= 11


def test_closing_ends_the_thread(prepared: Prepared) -> None:
    reader = Reader(
        prepared,
        "train",
        batch_size=1,
        row_maps=None,
        shuffle=True,
        shuffle_rows=5,
        seed=0,
        training=True,
    )
    before = threading.active_count()
    found = reader.batches(0)
    next(iter(found))
    found.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_damaged_rows_raise_where_they_are_used(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"item": list(range(2000))})
    prepared = prepare_log(tmp_path, sparse={"item": None})
    path = prepared.splits["train"].path
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"prepared rows .* are damaged in row group 0"):
        batches(prepared)


def test_wrong_rank(prepared: Prepared) -> None:
    with pytest.raises(ValueError, match=r"rank must lie in \[0, 2\), got 2"):
        batches(prepared, rank=2, world_size=2)


def test_no_sparse_features_and_no_optional_columns(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"x": pa.array([1.0, 2.0, 3.0])})
    prepared = prepare_log(tmp_path, dense={"x": None})
    [batch] = batches(prepared)
    assert batch.sparse.keys() == []
    assert batch.weights_B is None
    assert batch.groups_B is None
    np.testing.assert_allclose(batch.dense_BN[:, 0], [-1.2247449, 0, 1.2247449], rtol=1e-6)
