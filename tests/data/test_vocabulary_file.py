"""Vocabularies made elsewhere: taken as they are, or refused with the first fault."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edorec.data.prepare import Prepared, prepare, prepare_extra
from edorec.data.schema import VocabularyConfig
from edorec.errors import InputError
from tests.data.logs import configs, encoded, raw_ids, vocabulary_ids, write

FILE = "item.parquet"


def take(folder: Path, columns: dict[str, Any] | pa.Table, *, name: str = FILE) -> Prepared:
    """Prepares a log of items and histories with a vocabulary from a file."""
    write(
        folder / "train.parquet", {"item": [5, 5, 5, 9, 7, None], "seen": [[9], [], [1], *[[]] * 3]}
    )
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    (folder / name).parent.mkdir(exist_ok=True)
    pq.write_table(table, folder / name)
    return again(folder, name.partition("/")[0])


def again(folder: Path, file: str = FILE) -> Prepared:
    options = configs(
        folder, sparse={"item": {"vocabulary": "thing"}, "seen": {"vocabulary": "thing"}}
    )
    return prepare(**options, vocabularies={"thing": VocabularyConfig(file=file)})


@pytest.mark.parametrize("id_type", [pa.int64(), pa.int32(), pa.uint64(), pa.string()])
def test_ids_and_their_order_are_those_of_the_file(tmp_path: Path, id_type: pa.DataType) -> None:
    ids = pa.array([7, None, 9, 1000], pa.int64()).cast(id_type)
    prepared = take(tmp_path, {"id": ids, "count": pa.array([4, 4, 2, 1], pa.int32())})
    found = [None if i is None else int(i) for i in vocabulary_ids(prepared, "thing")]
    assert found == [7, None, 9, 1000]
    assert prepared.vocabularies["thing"].counts.tolist() == [4, 4, 2, 1]
    # 5 and 1 are in the data and not in the file.
    ranks = [(code & 0xFFFFFFFF) - 1 for code in encoded(prepared, "item")]
    assert ranks == [-1, -1, -1, 2, 0, 1]
    assert [[str(i) for i in row] for row in raw_ids(prepared, "seen")[:3]] == [
        ["9"],
        [],
        ["unseen"],
    ]
    assert prepared.counts["unseen_ids"]["train"] == {"item": 3, "seen": 1}
    write(tmp_path / "more.parquet", {"item": [9, 1000, 6], "seen": [[], [], []]})
    more = prepare_extra(prepared, "more.parquet", data=configs(tmp_path)["data"])
    assert [(code & 0xFFFFFFFF) - 1 for code in encoded(more, "item", "extra")] == [2, 3, -1]


def test_ids_beyond_int64_stay_what_they_are(tmp_path: Path) -> None:
    ids = pa.array([2**64 - 1, 5], pa.uint64())
    prepared = take(tmp_path, {"id": ids, "count": [2, 1]})
    assert vocabulary_ids(prepared, "thing") == [str(2**64 - 1), "5"]


def test_a_folder_of_parts_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    take(tmp_path, {"id": [7, 5], "count": [9, 8]}, name="parts/part-0001.parquet")
    assert vocabulary_ids(again(tmp_path, "parts"), "thing") == [7, 5]
    pq.write_table(pa.table({"count": [8, 1], "id": [1, 2]}), tmp_path / "parts/part-0002.parquet")
    assert vocabulary_ids(again(tmp_path, "parts"), "thing") == [7, 5, 1, 2]


def test_a_changed_file_is_prepared_anew(tmp_path: Path) -> None:
    first = take(tmp_path, {"id": [5, 7], "count": [2, 1]})
    assert again(tmp_path).reused
    second = take(tmp_path, {"id": [7, 5], "count": [2, 1]})
    assert not second.reused
    assert second.key != first.key
    assert vocabulary_ids(second, "thing") == [7, 5]


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        (
            {"id": [1, 2]},
            "item.parquet has 0 columns called count; a vocabulary has the columns id and count",
        ),
        (
            {"id": [0.5], "count": [1]},
            "column id of .*item.parquet is double; ids are integers or strings",
        ),
        (
            {"id": [1], "count": [1.0]},
            "column count of .*item.parquet is double; counts are integers",
        ),
        ({"id": [1, 2], "count": [1, None]}, "item.parquet, row 1: the count is null"),
        ({"id": [1, 2], "count": [1, 0]}, "item.parquet, row 1: the count is 0; counts are"),
        (
            {"id": [1, 2, 3], "count": [5, 2, 3]},
            "item.parquet, row 2: the count 3 is larger than 2 before it; sort by count",
        ),
        (
            {"id": [8, 1, 2, 1], "count": [5, 4, 3, 2]},
            "item.parquet, row 3: id 1 is also in row 1 of .*item.parquet; an id comes once",
        ),
        ({"id": ["7", "07", "7"], "count": [5, 4, 3]}, "row 2: id 7 is also in row 0"),
        ({"id": [None, 3, None], "count": [5, 4, 3]}, "row 2: id None is also in row 0"),
    ],
)
def test_the_first_fault_is_named(tmp_path: Path, columns: dict[str, Any], fault: str) -> None:
    if columns["id"][0] is None:
        columns["id"] = pa.array(columns["id"], pa.int64())
    with pytest.raises(InputError, match=f"vocabularies.thing.file: .*{fault}"):
        take(tmp_path, columns)


def test_faults_at_the_borders_of_chunks_are_seen(tmp_path: Path) -> None:
    size = 1 << 17
    counts = np.arange(size + 5, 0, -1)
    counts[size] = counts[size - 1] + 1
    with pytest.raises(InputError, match=f"row {size}: the count 7 is larger than 6 before it"):
        take(tmp_path, {"id": np.arange(size + 5), "count": counts})


def test_a_missing_file_is_named_before_anything_is_read(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"item": [1], "seen": [[1]]})
    with pytest.raises(
        InputError, match=r"vocabularies\.thing\.file: .*item\.parquet: no such file"
    ):
        again(tmp_path)
