"""Vocabularies that grow by the data of another day."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edorec.data.growth import read_rank_map
from edorec.data.prepare import Prepared, copy_vocabularies, load_prepared, prepare
from edorec.embedding.admission import build_row_map
from edorec.errors import ConfigError, InputError
from tests.data.logs import configs, encoded, prepare_log, vocabulary_ids, write

SPARSE: dict[str, Any] = {
    "item": {"vocabulary": "thing"},
    "seen": {"vocabulary": "thing"},
    "shop": None,
    "price": {"column": "amount", "bins": 2},
}
DAY_1 = {
    "item": [1, 1, 1, 2, 2, 3],
    "seen": [[4, 4], [1], [], [], [], []],
    "shop": ["a", "b", "a", "7", None, "é"],
    "amount": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
}
DAY_2 = {
    "item": [9, 9, 9, 9, 9, 2],
    "seen": [[9], [2], [8], [], [], []],
    "shop": ["c", "c", "c", "c", "a", None],
    "amount": [100.0, 200.0, 300.0, 400.0, 500.0, 6.0],
}


def two_days(folder: Path, **data: Any) -> tuple[Prepared, Prepared]:
    """Yesterday's data in a run folder, and today's that grow from them."""
    dense = {"amount": None}
    if not (folder / "run").exists():
        write(folder / "train.parquet", DAY_1)
        write(folder / "today.parquet", DAY_2)
    first = prepare_log(folder, sparse=SPARSE, dense=dense)
    if not (folder / "run").exists():
        copy_vocabularies(first, folder / "run" / "vocabularies")
    options: dict[str, Any] = {"train": "today.parquet", "extend": str(folder / "run")} | data
    return first, prepare_log(folder, sparse=SPARSE, dense=dense, **options)


def test_counts_are_added_and_ids_ranked_again(tmp_path: Path) -> None:
    first, second = two_days(tmp_path)
    things = Counter({1: 4, 2: 2 + 2, 3: 1, 4: 2, 9: 6, 8: 1})
    table = pq.read_table(second.vocabularies["thing"].path).to_pylist()
    assert {row["id"]: row["count"] for row in table} == things
    assert table[0]["id"] == 9
    assert [row["count"] for row in table] == sorted(things.values(), reverse=True)
    by_id = {row["id"]: row for row in table}
    assert (by_id[1]["count_item"], by_id[1]["count_seen"]) == (3, 1)
    assert (by_id[2]["count_item"], by_id[2]["count_seen"]) == (3, 1)
    shops = pq.read_table(second.vocabularies["shop"].path).to_pylist()
    assert {row["id"]: row["count"] for row in shops} == {
        **{"a": 3, "b": 1, "7": 1, None: 2, "é": 1},
        "c": 4,
    }
    # Today's rows are encoded by the new ranks.
    ids = vocabulary_ids(second, "thing")
    found = [ids[(code & 0xFFFFFFFF) - 1] for code in encoded(second, "item")]
    assert found == DAY_2["item"]
    assert second.vocabularies["thing"].bucket_ids == first.vocabularies["thing"].num_ids == 4


def test_the_map_leads_every_earlier_rank_to_the_same_id(tmp_path: Path) -> None:
    first, second = two_days(tmp_path)
    for name in ("thing", "shop", "price"):
        before, after = vocabulary_ids(first, name), vocabulary_ids(second, name)
        path = second.vocabulary_folder / second.manifest["rank_maps"][name]
        ranks = read_rank_map(path)
        assert [after[rank] for rank in ranks] == before
        assert pq.read_schema(path).names == ["rank"]


def test_scales_and_edges_stay(tmp_path: Path) -> None:
    first, second = two_days(tmp_path)
    for part in ("dense_scale", "bin_edges"):
        assert second.manifest[part] == first.manifest[part]
    # 6.0 came on both days, and is the same number and in the same bin.
    assert encoded(second, "amount")[-1] == encoded(first, "amount")[-1]
    bins = [vocabulary_ids(p, "price") for p in (first, second)]
    codes = [(encoded(p, "price")[-1] & 0xFFFFFFFF) - 1 for p in (first, second)]
    assert bins[0][codes[0]] == bins[1][codes[1]] == 1


def test_buckets_stay_where_they_are(tmp_path: Path) -> None:
    for vocabulary in (p.vocabularies["thing"] for p in two_days(tmp_path)):
        row_map = build_row_map(
            vocabulary.counts,
            min_count=1,
            max_rows=None,
            buckets=0.9,
            oov_rate=0.0,
            bucket_ids=vocabulary.bucket_ids,
        )
        assert row_map.num_buckets == 4


def test_growing_again_goes_on_from_there_and_is_cached(tmp_path: Path) -> None:
    _, second = two_days(tmp_path)
    again = two_days(tmp_path)[1]
    assert again.reused
    assert again.key == second.key
    copy_vocabularies(second, tmp_path / "run2" / "vocabularies")
    third = two_days(tmp_path, extend=str(tmp_path / "run2"))[1]
    assert third.manifest["growth"]["number"] == 2
    table = pq.read_table(third.vocabularies["thing"].path).to_pylist()
    assert {row["id"]: row["count"] for row in table}[9] == 12
    assert third.vocabularies["thing"].bucket_ids == 4
    assert third.key != second.key


def test_decayed_counts_are_right_on_average_and_ids_leave(tmp_path: Path) -> None:
    num_ids, counts = 3000, [3, 1]
    ids = np.arange(num_ids)
    write(tmp_path / "train.parquet", {"item": np.concatenate([np.repeat(ids, 3), ids + num_ids])})
    write(tmp_path / "today.parquet", {"item": [5, -1]})
    first = prepare_log(tmp_path, sparse={"item": None})
    copy_vocabularies(first, tmp_path / "run" / "vocabularies")
    grown = prepare_log(
        tmp_path,
        sparse={"item": None},
        train="today.parquet",
        extend=str(tmp_path / "run"),
        decay=0.5,
    )
    table = pq.read_table(grown.vocabularies["item"].path).to_pylist()
    kept = {row["id"]: row["count"] for row in table}
    for count, some in zip(counts, (ids, ids + num_ids), strict=True):
        left = np.array([kept.get(int(i), 0) for i in some if i != 5])
        assert set(left) <= {count // 2, count // 2 + 1}
        assert abs(left.mean() - count / 2) < 0.05
    assert kept[-1] == 1
    ranks = read_rank_map(grown.vocabulary_folder / grown.manifest["rank_maps"]["item"])
    before = vocabulary_ids(first, "item")
    assert {before[k] for k in np.flatnonzero(ranks < 0)} == set(before) - set(kept)


@given(
    days=st.lists(
        st.lists(st.sampled_from(["a", "b", "7", "é", None]), min_size=1, max_size=8),
        min_size=2,
        max_size=2,
    )
)
@settings(max_examples=10, deadline=None)
def test_growing_without_decay_equals_counting_both_days(
    tmp_path_factory: pytest.TempPathFactory, days: list[list[str | None]]
) -> None:
    folder = tmp_path_factory.mktemp("days")
    for name, values in (("one", days[0]), ("two", days[1]), ("both", days[0] + days[1])):
        write(folder / f"{name}.parquet", {"shop": values})
    first = prepare_log(folder, sparse={"shop": None}, train="one.parquet")
    copy_vocabularies(first, folder / "run" / "vocabularies")
    grown = prepare_log(
        folder, sparse={"shop": None}, train="two.parquet", extend=str(folder / "run")
    )
    both = prepare_log(folder, sparse={"shop": None}, train="both.parquet")
    one, other = (pq.read_table(p.vocabularies["shop"].path) for p in (grown, both))
    assert [(str(r["id"]), r["count"]) for r in one.to_pylist()] == [
        (str(r["id"]), r["count"]) for r in other.to_pylist()
    ]


def test_what_cannot_grow_is_refused(tmp_path: Path) -> None:
    two_days(tmp_path)
    with pytest.raises(InputError, match=r"none/vocabularies holds no prepared vocabularies"):
        two_days(tmp_path, extend=str(tmp_path / "none"))
    sparse = SPARSE | {"price": {"column": "amount", "bins": 3}}
    options = configs(tmp_path, sparse=sparse, train="today.parquet", extend=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"features\.sparse\.price\.bins is 3, and 2 in .*run"):
        prepare(**options, vocabularies={})


def test_a_run_folder_is_enough(tmp_path: Path) -> None:
    _, second = two_days(tmp_path)
    copy_vocabularies(second, tmp_path / "run2" / "vocabularies")
    loaded = load_prepared(tmp_path / "run2" / "vocabularies")
    assert loaded.vocabularies["thing"].bucket_ids == 4
    manifest = json.loads((tmp_path / "run2" / "vocabularies" / "manifest.json").read_text())
    assert set(manifest["rank_maps"]) == {"thing", "shop", "price"}
