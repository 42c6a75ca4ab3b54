"""Preparation against plain Python, its cache, and rows that come later."""

import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edorec.data import stage
from edorec.data.hashing import NULL_HASH, hash_integer, hash_text
from edorec.data.prepare import copy_vocabularies, load_prepared, prepare, prepare_extra
from edorec.data.schema import DataConfig
from edorec.data.vocabulary import feature_counts
from edorec.errors import ConfigError, InputError
from tests.data.logs import configs, encoded, prepare_log, raw_ids, vocabulary_ids, write


def random_log(seed: int, rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def some(values: list[Any], nulls: float = 0.2) -> list[Any]:
        picked = [values[i] for i in np.minimum(rng.zipf(1.5, rows), len(values)) - 1]
        return [
            None if draw < nulls else v for v, draw in zip(picked, rng.random(rows), strict=True)
        ]

    items = [-1, 2**40, 7, 13, *range(100, 160)]
    return {
        "item": pa.array(some(items), pa.int64()),
        "shop": pa.array(some(["a", "é", "7", "", "shop 12", *map(str, range(30))])),
        "seen": pa.array(
            [
                None
                if rng.random() < 0.2
                else [items[i] for i in rng.integers(0, 40, rng.integers(0, 5))]
                for _ in range(rows)
            ],
            pa.list_(pa.int64()),
        ),
        "price": pa.array(some([0.0, 1.5, -3.25, 1e4, 12.0, 99.0])),
        "y": pa.array(some([0, 1], 0.1), pa.int8()),
    }


def reference_vocabulary(values: list[Any]) -> list[tuple[Any, int]]:
    def hash_of(value: Any) -> int:
        if value is None:
            return int(NULL_HASH)
        return hash_text(value) if isinstance(value, str) else hash_integer(value)

    return sorted(Counter(values).items(), key=lambda item: (-item[1], hash_of(item[0])))


@pytest.mark.parametrize("seed", range(3))
def test_equals_a_plain_reference(tmp_path: Path, seed: int) -> None:
    train, test = random_log(seed, 300), random_log(seed + 100, 90)
    write(tmp_path / "train.parquet", train, row_group_size=77)
    write(tmp_path / "test.parquet", test)
    prepared = prepare_log(
        tmp_path,
        sparse={"item": {"vocabulary": "thing"}, "seen": {"vocabulary": "thing"}, "shop": None},
        dense={"price": {"transform": "log1p"}},
        test="test.parquet",
    )
    assert prepared.sparse == ("shop", "item", "seen")
    assert prepared.list_features == {"seen"}
    assert prepared.splits["train"].rows == 300
    log = {name: array.to_pylist() for name, array in train.items()}
    things = log["item"] + [item for row in log["seen"] for item in row or []]
    for name, values in (("thing", things), ("shop", log["shop"])):
        expected = reference_vocabulary(values)
        table = pq.read_table(prepared.vocabularies[name].path).to_pylist()
        assert [(row["id"], row["count"]) for row in table] == expected
        assert prepared.vocabularies[name].counts.tolist() == [count for _, count in expected]
        assert prepared.vocabularies[name].num_ids == len(expected)
    # A shared vocabulary also counts the look-ups of each feature.
    seen = Counter(item for row in log["seen"] for item in row or [])
    for row in pq.read_table(prepared.vocabularies["thing"].path).to_pylist():
        assert (row["count_item"], row["count_seen"]) == (
            log["item"].count(row["id"]),
            seen[row["id"]],
        )
    found = feature_counts(prepared.vocabularies["thing"], "seen")
    assert found.tolist() == sorted(seen.values(), reverse=True)
    assert feature_counts(prepared.vocabularies["shop"], "shop").sum() == 300
    for split, part in (("train", train), ("test", test)):
        rows = {name: array.to_pylist() for name, array in part.items()}
        known = {"thing": set(things), "shop": set(log["shop"])}

        def seen(value: Any, name: str, known: dict[str, set[Any]] = known) -> Any:
            return value if value in known[name] else "unseen"

        assert raw_ids(prepared, "item", split) == [seen(v, "thing") for v in rows["item"]]
        assert raw_ids(prepared, "shop", split) == [seen(v, "shop") for v in rows["shop"]]
        assert raw_ids(prepared, "seen", split) == [
            [seen(item, "thing") for item in row or []] for row in rows["seen"]
        ]
        _check_dense(log["price"], rows["price"], encoded(prepared, "price", split))
        labels = pq.read_table(prepared.splits[split].path)[prepared.columns["label", "click"]]
        expected_labels = [math.nan if v is None else v for v in rows["y"]]
        np.testing.assert_array_equal(labels.to_numpy(), expected_labels)
        unseen = raw_ids(prepared, "item", split).count("unseen")
        assert prepared.counts["unseen_ids"][split]["item"] == unseen
        assert prepared.counts["lookups"][split]["item"] == len(rows["item"])
        assert prepared.counts["null_ids"][split]["item"] == rows["item"].count(None)
        assert prepared.counts["null_lists"][split]["seen"] == rows["seen"].count(None)
        assert prepared.counts["bad_dense"][split]["price"] == rows["price"].count(None)
        assert prepared.counts["null_labels"][split]["click"] == rows["y"].count(None)


def _check_dense(train: list[float | None], raw: list[float | None], values: list[float]) -> None:
    logs = np.array([math.copysign(math.log1p(abs(v)), v) for v in train if v is not None])
    expected = [
        0.0 if v is None else (math.copysign(math.log1p(abs(v)), v) - logs.mean()) / logs.std()
        for v in raw
    ]
    np.testing.assert_allclose(values, np.clip(expected, -10, 10), rtol=1e-6, atol=1e-7)


def test_high_bits_are_the_hash_of_the_raw_id(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"item": [5, 5, 6], "shop": ["a", "b", "b"]})
    write(tmp_path / "test.parquet", {"item": [7], "shop": ["zz"]})
    prepared = prepare_log(tmp_path, sparse={"item": None, "shop": None}, test="test.parquet")
    assert [v >> 32 & 0xFFFFFFFF for v in encoded(prepared, "item")] == [
        hash_integer(v) >> 32 for v in (5, 5, 6)
    ]
    [unseen] = encoded(prepared, "shop", "test")
    assert unseen & 0xFFFFFFFF == 0
    assert unseen >> 32 & 0xFFFFFFFF == hash_text("zz") >> 32


def test_second_prepare_is_free_and_change_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet", {"item": [1, 2, 3]})
    first = prepare_log(tmp_path, sparse={"item": None})
    again = prepare_log(tmp_path, sparse={"item": None})
    assert not first.reused
    assert again.reused
    assert again.folder == first.folder
    assert again.counts == first.counts
    status = path.stat()
    write(path, {"item": [1, 2, 4]})
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    changed = prepare_log(tmp_path, sparse={"item": None})
    assert not changed.reused
    assert sorted(vocabulary_ids(changed, "item")) == [1, 2, 4]
    assert sorted(vocabulary_ids(first, "item")) == [1, 2, 3]
    other = prepare_log(tmp_path, sparse={"item": {"missing": [4]}})
    assert not other.reused


def test_settings_of_memory_need_no_new_preparation(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"item": [1, 2, 3], "list": [[1], [2], [3]]})
    first = prepare_log(tmp_path, sparse={"item": None, "list": {"pooling": "sum"}})
    again = prepare_log(tmp_path, sparse={"list": {"pooling": "mean"}, "item": None})
    assert again.reused
    assert again.key == first.key


def test_a_part_that_was_removed_is_made_again(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"item": [1, 2, 3]})
    prepared = prepare_log(tmp_path, sparse={"item": None})
    prepared.splits["train"].path.unlink()
    again = prepare_log(tmp_path, sparse={"item": None})
    assert not again.reused
    assert again.splits["train"].path.exists()


def test_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"item": [1, 2], "y": [0, 5]})
    with pytest.raises(InputError, match="must be 0, 1 or null"):
        prepare_log(tmp_path, sparse={"item": None})
    assert list((tmp_path / "cache").iterdir()) == []


def test_null_and_missing_share_a_row_of_their_own(tmp_path: Path) -> None:
    write(
        tmp_path / "train.parquet",
        {"item": [-1, None, 0, -1], "list": [[-1, 2], [-1], [None, 2, 3], None]},
    )
    prepared = prepare_log(
        tmp_path, sparse={"item": {"missing": [-1]}, "list": {"missing": ["-1"]}}
    )
    assert raw_ids(prepared, "item") == [None, None, 0, None]
    assert raw_ids(prepared, "list") == [[2], [], [2, 3], []]
    assert prepared.counts["null_ids"]["train"]["item"] == 3
    assert prepared.counts["dropped_items"]["train"]["list"] == 3


def test_max_length_keeps_the_first_ids(tmp_path: Path) -> None:
    lists = [[1, None, 2, 3, 4], [], None, [5], [6, 7, 8]]
    write(tmp_path / "train.parquet", {"list": lists})
    prepared = prepare_log(tmp_path, sparse={"list": {"max_length": 2}})
    assert raw_ids(prepared, "list") == [[1, 2], [], [], [5], [6, 7]]
    assert prepared.counts["cut_items"]["train"]["list"] == 3


def test_strings_and_integers_share_a_vocabulary_by_decimal_text(tmp_path: Path) -> None:
    write(
        tmp_path / "train.parquet",
        {
            "a": pa.array(["1", "x", "01", "1"]),
            "b": pa.array([1, 1, -1, 3]),
            "c": pa.array([2**64 - 1, 1, 3, 3], pa.uint64()),
        },
    )
    prepared = prepare_log(tmp_path, sparse={name: {"vocabulary": "v"} for name in "abc"})
    assert vocabulary_ids(prepared, "v")[:2] == ["1", "3"]
    assert sorted(vocabulary_ids(prepared, "v")[2:]) == ["-1", "01", str(2**64 - 1), "x"]
    assert prepared.vocabularies["v"].counts.tolist() == [5, 3, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_strings_of_every_kind(tmp_path: Path, kind: pa.DataType) -> None:
    ids = ["a", None, "b", "7", "b", "c", "d", "a", None, "e"]
    array = pa.array(ids)
    array = array.dictionary_encode() if pa.types.is_dictionary(kind) else array.cast(kind)
    write(tmp_path / "train.parquet", {"s": array}, row_group_size=4)
    prepared = prepare_log(tmp_path, sparse={"s": None}, group="s")
    assert raw_ids(prepared, "s") == ids


def test_chunks_of_a_row_group_and_extension_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "CHUNK_ROWS", 4)
    flags = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None] * 5, pa.int8()))
    lists = [[i, i + 1] if i % 3 else None for i in range(15)]
    write(tmp_path / "train.parquet", {"flag": flags, "list": lists, "y": [0] * 14 + [1]})
    prepared = prepare_log(tmp_path, sparse={"flag": None, "list": {"max_length": 1}})
    assert raw_ids(prepared, "flag") == [1, 0, None] * 5
    assert raw_ids(prepared, "list") == [row[:1] if row else [] for row in lists]
    path = write(tmp_path / "train.parquet", {"flag": flags, "list": lists, "y": [0] * 14 + [3]})
    with pytest.raises(InputError, match=rf"{path}: row 14 \(from 0, in row group 0\): column y"):
        prepare_log(tmp_path, sparse={"flag": None})


def test_bins_are_training_quantiles(tmp_path: Path) -> None:
    values = [*range(100), None, math.nan]
    write(tmp_path / "train.parquet", {"x": pa.array(values, pa.float64())})
    write(tmp_path / "test.parquet", {"x": pa.array([-5.0, 24.0, 25.0, 1e9, None, math.inf])})
    prepared = prepare_log(tmp_path, sparse={"x": {"bins": 4}}, test="test.parquet")
    assert raw_ids(prepared, "x") == [i // 25 for i in range(100)] + [None, None]
    assert raw_ids(prepared, "x", "test") == [0, 0, 1, 3, None, 3]
    assert prepared.vocabularies["x"].counts.tolist() == [25, 25, 25, 25, 2]


def test_bins_of_few_values_tell_them_apart(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"x": [3, 3, 3, 3, 8, 900]})
    prepared = prepare_log(tmp_path, sparse={"x": {"bins": 5}})
    assert raw_ids(prepared, "x") == [0, 0, 0, 0, 1, 2]


def test_weights_and_groups(tmp_path: Path) -> None:
    write(
        tmp_path / "train.parquet",
        {"w": [0.5, 2.0, 0.0], "user": ["u", None, "u"], "item": [1, 2, 3]},
    )
    prepared = prepare_log(tmp_path, sparse={"item": None}, weight="w", group="user")
    table = pq.read_table(prepared.splits["train"].path)
    assert table[prepared.columns["weight", "weight"]].to_pylist() == [0.5, 2.0, 0.0]
    groups = table[prepared.columns["group", "group"]].to_pylist()
    assert groups[0] == groups[2] != groups[1]
    assert prepared.counts["null_groups"]["train"] == {"group": 1}


@pytest.mark.parametrize("bad", [-0.5, None, math.nan, math.inf])
def test_bad_weight_names_file_and_row(tmp_path: Path, bad: float | None) -> None:
    path = write(tmp_path / "train.parquet", {"w": pa.array([1.0, 1.0, bad]), "item": [1, 2, 3]})
    with pytest.raises(InputError) as error:
        prepare_log(tmp_path, sparse={"item": None}, weight="w")
    assert str(error.value) == (
        f"{path}: row 2 (from 0, in row group 0): column w is {bad}, and must be a number of at "
        "least 0 (data.weight)"
    )


@pytest.mark.parametrize("name", ["a/b", "..", "A", "ü", "x" * 300, "a b"])
def test_any_vocabulary_name_makes_a_safe_file(tmp_path: Path, name: str) -> None:
    write(tmp_path / "train.parquet", {"item": [1, 2, 3], "other": [1, 1, 1]})
    prepared = prepare_log(
        tmp_path, sparse={"item": {"vocabulary": name}, "other": {"vocabulary": "a"}}
    )
    path = prepared.vocabularies[name].path
    assert path.parent == prepared.vocabulary_folder
    assert path.name.lower() != prepared.vocabularies["a"].path.name
    assert sorted(vocabulary_ids(prepared, name)) == [1, 2, 3]


def test_later_rows_use_the_vocabularies_as_they_are(tmp_path: Path) -> None:
    columns = {"item": [3, 3, 4, 4, 4], "x": [1.0, 2.0, 3.0, 4.0, 5.0], "shop": list("aabbc")}
    write(tmp_path / "train.parquet", columns)
    write(
        tmp_path / "valid.parquet", {"item": [9, 3, 4], "x": [9.0, None, 3.0], "shop": list("zac")}
    )
    options = configs(
        tmp_path,
        sparse={"item": None, "shop": None, "bin": {"column": "x", "bins": 2}},
        dense={"x": None},
        valid="valid.parquet",
    )
    prepared = prepare(**options, vocabularies={})
    copy_vocabularies(prepared, tmp_path / "run" / "vocabularies")
    loaded = load_prepared(tmp_path / "run" / "vocabularies")
    assert loaded.splits == {}
    assert loaded.counts == prepared.counts
    extra = prepare_extra(loaded, "valid.parquet", data=options["data"], split="extra")
    assert extra.splits["extra"].rows == 3
    for name in ("item", "shop", "bin", "x"):
        assert encoded(extra, name, "extra") == encoded(prepared, name, "valid")
    assert extra.counts["unseen_ids"] == {"extra": {"item": 1, "shop": 1, "bin": 1}}
    again = prepare_extra(loaded, ["valid.parquet"], data=options["data"], split="extra")
    assert again.reused
    assert not extra.reused


def test_later_rows_must_have_the_same_shape(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"id": [1, 2], "list": [[1], [2]]})
    options = configs(tmp_path, sparse={"id": None, "list": {"max_length": 3}})
    prepared = prepare(**options, vocabularies={})
    path = write(tmp_path / "later.parquet", {"id": [[1], [2]], "list": pa.nulls(2)})
    with pytest.raises(ConfigError) as error:
        prepare_extra(prepared, "later.parquet", data=options["data"])
    assert error.value.problems == [
        f"features.sparse.id: column id of {path} is list<element: int64>; the rows trained on "
        "held no lists there"
    ]
    write(path, {"id": [1, 1], "list": pa.nulls(2)})
    extra = prepare_extra(prepared, "later.parquet", data=options["data"])
    assert encoded(extra, "list", "extra") == [[], []]


def test_load_prepared_refuses_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no prepared vocabularies"):
        load_prepared(tmp_path)


def test_memory_limit_that_is_none(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"item": [1]})
    with pytest.raises(InputError, match=r"data.memory_limit is lots: .*must have a number"):
        prepare_log(tmp_path, sparse={"item": None}, memory_limit="lots")


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"item": [1, 2, 3]})
    calls: list[tuple[str, int, int]] = []
    options = configs(tmp_path, sparse={"item": None})
    prepare(**options, vocabularies={}, on_progress=lambda *call: calls.append(call))
    assert calls == [("read train", 3, 3), ("encode train", 3, 3)]


def test_cache_may_name_an_environment_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_CACHE", str(tmp_path / "elsewhere"))
    write(tmp_path / "train.parquet", {"item": [1, 2, 3]})
    prepared = prepare_log(tmp_path, sparse={"item": None}, cache="${SOME_CACHE}")
    assert prepared.folder.parent == tmp_path / "elsewhere"
    assert isinstance(DataConfig(train="x").cache, str)
