"""Ids as people's files hold them (B05, B06, B08, B09, B22, B23)."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from edorec.data.prepare import Prepared
from edorec.embedding.admission import build_row_map
from tests.data.logs import batches, encoded, prepare_log, raw_ids, vocabulary_ids, write

BIG = [9007199254740993, 9007199254740992, 16777217, 16777216]


def test_b05_null_does_not_change_other_ids(tmp_path: Path) -> None:
    ids = [BIG[i % 4] for i in range(9)]
    write(tmp_path / "with" / "train.parquet", {"item": pa.array([*ids, None], pa.int64())})
    write(tmp_path / "without" / "train.parquet", {"item": pa.array(ids, pa.int64())})
    with_null = prepare_log(tmp_path / "with", sparse={"item": None})
    without = prepare_log(tmp_path / "without", sparse={"item": None})
    assert raw_ids(with_null, "item") == [*ids, None]
    assert with_null.vocabularies["item"].num_ids == 5
    assert without.vocabularies["item"].num_ids == 4
    high = [value >> 32 for value in encoded(with_null, "item")]
    assert high[:9] == [value >> 32 for value in encoded(without, "item")]
    assert with_null.counts["null_ids"]["train"]["item"] == 1


def test_b06_every_width_of_the_same_ids_is_one_id(tmp_path: Path) -> None:
    kinds = [pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()]
    seen = set()
    for index, kind in enumerate(kinds):
        folder = tmp_path / str(index)
        write(folder / "train.parquet", {"item": pa.array([0, 5, 100, 5], kind)})
        seen.add(tuple(encoded(prepare_log(folder, sparse={"item": None}), "item")))
    assert len(seen) == 1


def test_b06_ids_of_64_bits_stay_distinct_and_inside_the_table(tmp_path: Path) -> None:
    unsigned = [0, 2**63, 2**64 - 1]
    signed = [-1, 2**31 + 5, 2**63 - 1]
    write(
        tmp_path / "train.parquet",
        {
            "u": pa.array(unsigned, pa.uint64()),
            "i": pa.array(signed, pa.int64()),
            "s": pa.array([5, 5, 5], pa.int32()),
        },
    )
    prepared = prepare_log(tmp_path, sparse={name: {"vocabulary": "v"} for name in "uis"})
    assert sorted(vocabulary_ids(prepared, "v")) == sorted(map(str, [*unsigned, *signed, 5]))
    assert raw_ids(prepared, "u") == [str(value) for value in unsigned]
    hashed = build_row_map(
        prepared.vocabularies["v"].counts, min_count=100, max_rows=None, buckets=97, oov_rate=0
    )
    for name in "uis":
        rows = hashed.rows(np.array(encoded(prepared, name)), draws=None)
        assert ((rows >= 0) & (rows < 97)).all()


def test_b08_null_empty_and_null_items(tmp_path: Path) -> None:
    lists = [[1, 2], None, [], [3], [None]]
    write(tmp_path / "train.parquet", {"list": pa.array(lists, pa.list_(pa.int64()))})
    prepared = prepare_log(tmp_path, sparse={"list": None})
    [batch] = batches(prepared)
    assert batch.sparse["list"].lengths().tolist() == [2, 0, 0, 1, 0]
    assert raw_ids(prepared, "list") == [[1, 2], [], [], [3], []]
    assert prepared.counts["null_lists"]["train"]["list"] == 1
    assert prepared.counts["dropped_items"]["train"]["list"] == 1


@pytest.mark.parametrize("lists", [[None] * 5, [[]] * 5], ids=["null", "empty"])
@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.list_(pa.null())], ids=str)
def test_b08_lists_without_any_item(tmp_path: Path, lists: list[Any], kind: pa.DataType) -> None:
    write(tmp_path / "train.parquet", {"list": pa.array(lists, kind), "id": [1, 2, 3, 4, 5]})
    prepared = prepare_log(tmp_path, sparse={"list": None, "id": None})
    [batch] = batches(prepared)
    assert batch.sparse["list"].lengths().tolist() == [0] * 5
    assert prepared.vocabularies["list"].num_ids == 0
    assert prepared.vocabularies["list"].decile_cuts().tolist() == [0] * 9


LISTS: list[Any] = [[1, 2, 3], None, [4, 5, 6], [1, 1, 1], None, [7, 8, 9], [2, 2, 3], [9, 9, 9]]
FLAVOURS = {
    "list": pa.list_(pa.int64()),
    "named": pa.list_(pa.field("thing", pa.int64())),
    "not null items": pa.list_(pa.field("item", pa.int64(), nullable=False)),
    "large_list": pa.large_list(pa.int32()),
    "fixed_size_list": pa.list_(pa.int64(), 3),
    "list_view": pa.list_view(pa.uint16()),
    "strings": pa.list_(pa.string()),
    "large strings": pa.list_(pa.large_string()),
    "large list of large strings": pa.large_list(pa.large_string()),
    "dictionary": pa.list_(pa.dictionary(pa.int32(), pa.string())),
}


def _flavour(folder: Path, lists: list[Any], kind: pa.DataType) -> Prepared:
    if pa.types.is_dictionary(kind.value_type):
        flat = pa.array([str(item) for row in lists for item in row or []]).dictionary_encode()
        sizes = [len(row or []) for row in lists]
        array = pa.ListArray.from_arrays(
            pa.array(np.cumsum([0, *sizes]), pa.int32()),
            flat,
            mask=pa.array([row is None for row in lists]),
        )
    elif pa.types.is_integer(kind.value_type):
        array = pa.array(lists, kind)
    else:
        array = pa.array([row and [str(item) for item in row] for row in lists], kind)
    write(folder / "train.parquet", {"list": array}, row_group_size=3)
    return prepare_log(folder, sparse={"list": None})


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_b09_every_list_flavour_gives_the_same_batches(tmp_path: Path, flavour: str) -> None:
    prepared = _flavour(tmp_path, LISTS, FLAVOURS[flavour])
    reference = _flavour(tmp_path / "reference", LISTS, pa.list_(pa.int64()))
    assert encoded(prepared, "list") == encoded(reference, "list")
    assert vocabulary_ids(prepared, "list") == vocabulary_ids(reference, "list")
    assert raw_ids(prepared, "list") == [row or [] for row in LISTS]


def test_b09_fixed_size_list_that_is_null_in_every_row(tmp_path: Path) -> None:
    prepared = _flavour(tmp_path, [None] * 8, pa.list_(pa.int64(), 3))
    assert encoded(prepared, "list") == [[]] * 8


def test_b22_unseen_ids_share_buckets_and_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"item": list(range(10))})
    write(tmp_path / "test.parquet", {"item": [0, 9, 10, 10000, 10]})
    prepared = prepare_log(tmp_path, sparse={"item": None}, test="test.parquet")
    assert prepared.counts["unseen_ids"]["test"]["item"] == 3
    assert prepared.counts["unseen_ids"]["train"]["item"] == 0
    row_map = build_row_map(
        prepared.vocabularies["item"].counts, min_count=1, max_rows=None, buckets=4, oov_rate=0
    )
    rows = row_map.rows(np.array(encoded(prepared, "item", "test")), draws=None).tolist()
    assert all(row < 10 for row in rows[:2])
    assert all(10 <= row < 14 for row in rows[2:])
    assert rows[2] == rows[4]
    assert raw_ids(prepared, "item", "test") == [0, 9, "unseen", "unseen", "unseen"]


@pytest.mark.parametrize("missing", [[], [-1]], ids=["an id", "missing"])
def test_b23_negative_ids_are_ids_or_missing(tmp_path: Path, missing: list[int]) -> None:
    write(
        tmp_path / "train.parquet",
        {"item": [-1, 0, 3, -1, 0, 3], "list": [[-1, 2], [2], [-1], [2], [], [0]]},
    )
    prepared = prepare_log(
        tmp_path, sparse={"item": {"missing": missing}, "list": {"missing": missing}}
    )
    absent = None if missing else -1
    assert raw_ids(prepared, "item") == [absent, 0, 3, absent, 0, 3]
    assert raw_ids(prepared, "list")[0] == ([2] if missing else [-1, 2])
    for min_count in (1, 10):  # plain and hashed
        row_map = build_row_map(
            prepared.vocabularies["item"].counts,
            min_count=min_count,
            max_rows=None,
            buckets=5,
            oov_rate=0,
        )
        rows = row_map.rows(np.array(encoded(prepared, "item")), draws=None)
        assert ((rows >= 0) & (rows < row_map.num_rows)).all()
