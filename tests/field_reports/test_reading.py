"""Files as other programs write them (B11, B12, B14, B16, B18, B19, B20, B21)."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from edorec.data.prepare import check_schema
from edorec.errors import ConfigError, InputError
from tests.data.logs import batches, configs, encoded, prepare_log, raw_ids, write


def problems(folder: Path, **options: Any) -> list[str]:
    """What the check of a configuration against the files says; no row is read for it."""
    with pytest.raises(ConfigError) as error:
        check_schema(**configs(folder, **options))
    return error.value.problems


def two_files(folder: Path, **second: Any) -> Path:
    write(folder / "log" / "a.parquet", {"a": [1, 2, 3, 4, 5], "b": [1, 1, 2, 2, 3]})
    write(folder / "log" / "b.parquet", second)
    return folder / "log"


def test_b11_column_missing_everywhere_names_the_nearest(tmp_path: Path) -> None:
    two_files(tmp_path, a=[1], b=[1])
    found = problems(tmp_path, sparse={"a": None, "bb": None, "zzz": None}, train="log")
    assert found == [
        "features.sparse.bb: there is no column bb in any of the 2 files; did you mean b?",
        "features.sparse.zzz: there is no column zzz in any of the 2 files; there are a, b, y",
    ]


def test_b11_column_missing_in_some_files_is_an_error(tmp_path: Path) -> None:
    log = two_files(tmp_path, a=[1, 2, 3, 4, 5])
    assert problems(tmp_path, sparse={"a": None, "b": None}, train="log") == [
        f"features.sparse.b: {log / 'b.parquet'} has no column b; data.missing_columns: null "
        "reads it as null"
    ]


def test_b11_column_missing_in_some_files_may_be_null(tmp_path: Path) -> None:
    two_files(tmp_path, a=[1, 2, 3, 4, 5])
    prepared = prepare_log(
        tmp_path,
        sparse={"a": None, "b": None},
        dense={"c": {"column": "b"}},
        train="log",
        missing_columns="null",
    )
    assert raw_ids(prepared, "b") == [1, 1, 2, 2, 3] + [None] * 5
    assert encoded(prepared, "c")[5:] == [0.0] * 5
    assert prepared.counts["missing_column_rows"]["train"] == {"b": 5, "c": 5}
    assert (
        "feature b is null in 5 rows of train: their files lack its column"
        in (prepared.counts["warnings"])
    )


@pytest.mark.parametrize("missing_columns", ["error", "null"])
def test_b11_labels_are_never_filled(tmp_path: Path, missing_columns: str) -> None:
    log = two_files(tmp_path, a=[1, 2])
    table = pq.read_table(log / "b.parquet").drop_columns(["y"])
    pq.write_table(table, log / "b.parquet")
    options: dict[str, Any] = {"sparse": {"a": None}, "train": "log"}
    assert problems(tmp_path, missing_columns=missing_columns, **options) == [
        f"tasks.click.label: {log / 'b.parquet'} has no column y"
    ]


def test_b12_repeated_column(tmp_path: Path) -> None:
    table = pa.Table.from_arrays(
        [pa.array([1, 2, 3]), pa.array([4, 4, 5]), pa.array([7, 8, 9]), pa.array([0, 1, 1])],
        names=["id", "value", "value", "y"],
    )
    path = write(tmp_path / "train.parquet", table)
    assert problems(tmp_path, sparse={"id": None, "value": None}) == [
        f"features.sparse.value: {path} has 2 columns called value"
    ]
    assert raw_ids(prepare_log(tmp_path, sparse={"id": None}), "id") == [1, 2, 3]


def test_b14_empty_files_and_row_groups_are_skipped(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("y", pa.int64())])

    def rows(first: int) -> pa.Table:
        return pa.table({"id": [first, first + 1, first + 2], "y": [0, 1, 0]}, schema=schema)

    for folder in ("full", "only"):
        (tmp_path / folder).mkdir()
    for path in ("full/a.parquet", "only/a.parquet", "only/b.parquet"):
        with pq.ParquetWriter(tmp_path / path, schema):
            pass
    with pq.ParquetWriter(tmp_path / "full" / "b.parquet", schema) as writer:
        for part in (rows(0), schema.empty_table(), rows(3)):
            writer.write_table(part)
    pq.write_table(rows(6), tmp_path / "full" / "c.parquet")
    assert pq.read_metadata(tmp_path / "full" / "a.parquet").num_row_groups == 0
    assert pq.read_metadata(tmp_path / "full" / "b.parquet").num_row_groups == 3
    prepared = prepare_log(tmp_path, sparse={"id": None}, train="full")
    assert raw_ids(prepared, "id") == list(range(9))
    for world_size in (1, 2):
        found = [
            id_
            for rank in range(world_size)
            for batch in batches(prepared, rank=rank, world_size=world_size)
            for id_ in batch.sparse.values().tolist()
        ]
        assert sorted(found) == sorted(encoded(prepared, "id"))
    with pytest.raises(InputError, match=r"data.train: the 2 training files hold no rows"):
        prepare_log(tmp_path, sparse={"id": None}, train="only")
    empty = prepare_log(tmp_path, sparse={"id": None}, train="full", test="only")
    assert empty.splits["test"].rows == 0
    assert batches(empty, "test") == []


def three_files(folder: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    return [
        write(
            folder / "log" / f"{index}.parquet",
            {"id": rng.integers(0, 2**60, 6)},
            write_page_checksum=True,
        )
        for index in range(3)
    ]


def test_b16_truncated_file_is_named_before_reading(tmp_path: Path) -> None:
    good = write(tmp_path / "train.parquet", {"id": [1, 2]})
    paths = three_files(tmp_path)
    content = paths[1].read_bytes()
    paths[1].write_bytes(content[: len(content) * 6 // 10])
    with pytest.raises(InputError) as error:
        prepare_log(tmp_path, sparse={"id": None}, train=str(good), test="log")
    assert str(error.value).startswith(f"{paths[1]} is not a sound Parquet file: ")
    assert "\n" not in str(error.value)


def test_b16_csv_in_disguise(tmp_path: Path) -> None:
    paths = three_files(tmp_path)
    paths[2].write_text("id,y\n1,0\n2,1\n")
    with pytest.raises(InputError, match=r"2\.parquet is not a sound Parquet file: "):
        prepare_log(tmp_path, sparse={"id": None}, train="log")


def test_b16_damage_inside_names_file_and_row_group(tmp_path: Path) -> None:
    paths = three_files(tmp_path)
    content = bytearray(paths[1].read_bytes())
    content[20:40] = b"\xff" * 20
    paths[1].write_bytes(content)
    with pytest.raises(InputError) as error:
        prepare_log(tmp_path, sparse={"id": None}, train="log")
    assert str(error.value).startswith(f"{paths[1]}: row group 0 is damaged: ")


def test_b18_batches_do_not_depend_on_the_layout(tmp_path: Path) -> None:
    ids = [i % 6 for i in range(20)]
    labels = [int(i % 3 == 0) for i in range(20)]
    found = []
    for size in (1, 3, 7, 20):
        folder = tmp_path / str(size)
        write(folder / "train.parquet", {"id": ids, "y": labels}, row_group_size=size)
        found.append(batches(prepare_log(folder, sparse={"id": None})))
    for part in range(4):
        rows = slice(part * 5, part * 5 + 5)
        path = tmp_path / "four" / "train.parquet" / f"{part}.parquet"
        write(path, {"id": ids[rows], "y": labels[rows]})
    found.append(batches(prepare_log(tmp_path / "four", sparse={"id": None})))
    for layout in found:
        assert [len(batch) for batch in layout] == [8, 8, 4]
        for batch, first in zip(layout, found[0], strict=True):
            assert torch.equal(batch.sparse.values(), first.sparse.values())
            assert torch.equal(batch.labels_BT, first.labels_BT)


INSTANT = dt.datetime(2024, 5, 17, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("s"),
        pa.timestamp("ms"),
        pa.timestamp("us"),
        pa.timestamp("ns"),
        pa.timestamp("us", "Europe/Berlin"),
        pa.date32(),
        pa.date64(),
    ],
    ids=str,
)
def test_b19_an_instant_is_one_number_in_every_unit(tmp_path: Path, kind: pa.DataType) -> None:
    days = [INSTANT + dt.timedelta(days=day * day) for day in range(6)]
    values: list[Any] = days if pa.types.is_timestamp(kind) else [day.date() for day in days]
    write(tmp_path / "train.parquet", {"at": pa.array(values, kind)})
    prepared = prepare_log(
        tmp_path, sparse={"bin": {"column": "at", "bins": 3}}, dense={"at": None}
    )
    seconds = np.array([day.timestamp() for day in days])
    mean, deviation = prepared.manifest["dense_scale"]["at"]
    assert (mean, deviation) == pytest.approx((seconds.mean(), seconds.std()), rel=1e-12)
    assert prepared.manifest["bin_edges"]["bin"] == [seconds[1], seconds[3]]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([Decimal("1.25"), Decimal("-2.50"), Decimal("0.01"), None], pa.decimal128(10, 2)),
        pa.array([Decimal("1.25"), Decimal("-2.50"), Decimal("0.01"), None], pa.decimal256(50, 2)),
        pa.array([1.25, -2.5, 0.01, None], pa.float32()),
        pa.array(np.array([1.25, -2.5, 0.01, np.nan], np.float16)),
    ],
    ids=lambda array: str(array.type),
)
def test_b19_decimals_and_short_floats_are_numbers(tmp_path: Path, array: pa.Array) -> None:
    write(tmp_path / "train.parquet", {"x": array})
    prepared = prepare_log(tmp_path, dense={"x": None})
    values = np.array([1.25, -2.5, 0.01])
    expected = [*((values - values.mean()) / values.std()), 0]
    np.testing.assert_allclose(encoded(prepared, "x"), expected, rtol=1e-3)
    assert prepared.counts["bad_dense"]["train"]["x"] == 1


@pytest.mark.parametrize(
    "array",
    [
        pa.array([True, False, None]),
        pa.array([1, 0, None], pa.uint8()),
        pa.array([1.0, 0.0, np.nan], pa.float64()),
        pa.array(np.array([1, 0, np.nan], np.float16)),
    ],
    ids=lambda array: str(array.type),
)
def test_b19_labels_of_every_numeric_type(tmp_path: Path, array: pa.Array) -> None:
    write(tmp_path / "train.parquet", {"id": [1, 2, 3], "y": array})
    prepared = prepare_log(tmp_path, sparse={"id": None})
    [batch] = batches(prepared)
    np.testing.assert_array_equal(batch.labels_BT[:, 0], [1, 0, np.nan])
    assert prepared.counts["null_labels"]["train"]["click"] == 1


REFUSED_IDS = [
    pa.array([1.0, 2.0]),
    pa.array([Decimal("1.25"), Decimal("2.50")], pa.decimal128(10, 2)),
    pa.array([INSTANT, INSTANT], pa.timestamp("ms")),
    pa.array([INSTANT.date()] * 2, pa.date32()),
    pa.array([b"a", b"b"]),
]


@pytest.mark.parametrize("array", REFUSED_IDS, ids=lambda array: str(array.type))
def test_b19_other_types_are_refused_as_ids(tmp_path: Path, array: pa.Array) -> None:
    path = write(tmp_path / "train.parquet", {"x": array})
    [found] = problems(tmp_path, sparse={"x": None})
    wanted = "ids are integers, bools or strings, or lists of them"
    assert found.startswith(f"features.sparse.x: column x of {path} is {array.type}; {wanted}")
    assert ("bins makes ids of a numeric column" in found) == (not pa.types.is_binary(array.type))


@pytest.mark.parametrize(
    "array",
    [pa.array(["0", "1"]), REFUSED_IDS[1], REFUSED_IDS[2], pa.array([[1], [0]])],
    ids=lambda array: str(array.type),
)
def test_b19_other_types_are_refused_as_labels(tmp_path: Path, array: pa.Array) -> None:
    path = write(tmp_path / "train.parquet", {"id": [1, 2], "y": array})
    kind = pq.read_schema(path).field("y").type
    assert problems(tmp_path, sparse={"id": None}) == [
        f"tasks.click.label: column y of {path} is {kind}; labels are integers, floats or bools"
    ]


def test_b19_strings_are_refused_as_dense(tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet", {"x": ["1", "2"]})
    assert problems(tmp_path, dense={"x": None}) == [
        f"features.dense.x: column x of {path} is string; it must hold numbers, bools, timestamps "
        "or dates"
    ]


def test_b19_another_label_value_names_its_place(tmp_path: Path) -> None:
    path = write(
        tmp_path / "train.parquet",
        {"id": list(range(6)), "y": [0, 1, 0, 1, 2, 0]},
        row_group_size=4,
    )
    with pytest.raises(InputError) as error:
        prepare_log(tmp_path, sparse={"id": None})
    assert str(error.value) == (
        f"{path}: row 4 (from 0, in row group 1): column y is 2, and must be 0, 1 or null "
        "(tasks.click.label)"
    )


def test_b20_any_column_name_works(tmp_path: Path) -> None:
    columns = {
        "user.id": [1, 2, 3, 1, 2, 3],
        "user.tags": [[1], [2], [], None, [3], [1, 2]],
        "item id": [7, 7, 7, 8, 8, 8],
        "Item": [10, 11, 12, 10, 11, 12],
        "item": [20, 21, 22, 20, 21, 22],
        "größe": [0.5, 1.5, 2.5, 0.5, 1.5, 2.5],
    }
    write(tmp_path / "train.parquet", columns)
    names = ["user.id", "user.tags", "item id", "Item", "item"]
    prepared = prepare_log(
        tmp_path,
        sparse={**dict.fromkeys(names), "größe bin": {"column": "größe", "bins": 3}},
        dense={"größe": None},
    )
    for name in names:
        assert raw_ids(prepared, name) == [v if v is not None else [] for v in columns[name]]
    [batch] = batches(prepared)
    assert set(batch.sparse.keys()) == {*names, "größe bin"}
    assert raw_ids(prepared, "größe bin") == [0, 1, 2, 0, 1, 2]


def test_b21_deep_lists_are_refused_only_where_used(tmp_path: Path) -> None:
    deep = pa.array([[[0, 2], [1]], [[]], None, [[3]]], pa.list_(pa.list_(pa.int64())))
    pairs = pa.array([[{"id": 1, "weight": 0.5}], [], None, []])
    struct = pa.array([{"id": 1}] * 4)
    path = write(
        tmp_path / "train.parquet",
        {"deep": deep, "pairs": pairs, "struct": struct, "id": [1, 2, 3, 4]},
    )
    found = problems(tmp_path, sparse={"deep": None, "pairs": None, "struct": None, "id": None})
    wanted = "ids are integers, bools or strings, or lists of them"
    table = pq.read_schema(path)
    assert found == [
        f"features.sparse.{name}: column {name} of {path} is {table.field(name).type}; {wanted}"
        for name in ("deep", "pairs", "struct")
    ]
    assert raw_ids(prepare_log(tmp_path, sparse={"id": None}), "id") == [1, 2, 3, 4]


def test_column_that_is_list_in_one_file_only(tmp_path: Path) -> None:
    log = two_files(tmp_path, a=[[1], [2]])
    assert problems(tmp_path, sparse={"a": None}, train="log") == [
        f"features.sparse.a: column a is int64 in {log / 'a.parquet'} and list<element: int64> in "
        f"{log / 'b.parquet'}; it must hold lists in all files or in none"
    ]


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"a": [0.5], "b": ["x"]})
    found = problems(tmp_path, sparse={"a": None, "c": None}, dense={"b": None}, weight="w")
    assert [problem.split(":")[0] for problem in found] == [
        "features.sparse.a",
        "features.sparse.c",
        "features.dense.b",
        "data.weight",
    ]


def test_settings_that_do_not_fit_the_column(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"a": [1, 2], "x": [0.5, 1.5], "l": [[1], [2]]})
    found = problems(
        tmp_path,
        sparse={"a": {"max_length": 3}, "l": {"max_length": 3}, "x": {"bins": 2, "missing": ["?"]}},
    )
    assert found == [
        "features.sparse.a.max_length: column a holds no lists",
        "features.sparse.x.missing: '?' is no number, and a feature with bins holds numbers",
    ]


def test_attention_is_over_lists_and_from_one_id(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"a": [1, 2], "l": [[1], [2]], "m": [[1], [2]]})
    item = {"vocabulary": "item"}
    assert problems(
        tmp_path,
        sparse={
            "a": {**item, "pooling": "din", "candidate": "l"},
            "l": item,
            "m": {**item, "pooling": "din", "candidate": "l"},
        },
    ) == [
        "features.sparse.a.pooling: din pools lists, and column a holds none",
        "features.sparse.a.candidate: l holds lists; din attends from the one id that is scored",
        "features.sparse.m.candidate: l holds lists; din attends from the one id that is scored",
    ]
