import os
from pathlib import Path

import pytest

from edorec.data.source import find_files, open_file, read_best_auc
from edorec.errors import InputError
from tests.data.logs import write


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_file_folder_glob_and_list(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.parquet", "sub/c.pq", "_temporary/d.parquet", ".hidden.parquet"):
        write(tmp_path / "log" / name, {"id": [1]})
    (tmp_path / "log" / "_SUCCESS").touch()
    folder = str(tmp_path)
    assert names(find_files("log/b.parquet", folder=folder, key="k")) == ["b.parquet"]
    assert names(find_files("log", folder=folder, key="k")) == ["a.parquet", "b.parquet", "c.pq"]
    assert names(find_files("log/*.parquet", folder=folder, key="k")) == ["a.parquet", "b.parquet"]
    assert names(find_files("log/**/*.pq", folder=folder, key="k")) == ["c.pq"]
    listed = ["log/sub", str(tmp_path / "log" / "b.parquet")]
    assert names(find_files(listed, folder=folder, key="k")) == ["c.pq", "b.parquet"]


def test_name_with_brackets_is_a_file(tmp_path: Path) -> None:
    write(tmp_path / "log[1].parquet", {"id": [1]})
    assert names(find_files("log[1].parquet", folder=str(tmp_path), key="k")) == ["log[1].parquet"]


def test_environment_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "day1" / "a.parquet", {"id": [1]})
    monkeypatch.setenv("LOGS", str(tmp_path))
    monkeypatch.setenv("DAY", "day1")
    assert names(find_files("${DAY}", folder="${LOGS}", key="data.train")) == ["a.parquet"]
    monkeypatch.delenv("LOGS")
    with pytest.raises(InputError) as error:
        find_files("${DAY}", folder="${LOGS}", key="data.train")
    assert str(error.value) == (
        "data.folder is ${LOGS}, but the environment variable LOGS is not set"
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("nothing.parquet", "data.train: {0}/nothing.parquet: no such file or folder"),
        ("*.parquet", "data.train: {0}/*.parquet: no file matches"),
        ("empty", "data.train: {0}/empty: the folder holds no Parquet files"),
        ([], "data.train names no files"),
        (["a.pq", "a.pq"], "data.train names {0}/a.pq 2 times"),
    ],
)
def test_nothing_found(tmp_path: Path, files: str | list[str], message: str) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "a.pq", {"id": [1]})
    with pytest.raises(InputError) as error:
        find_files(files, folder=str(tmp_path), key="data.train")
    assert str(error.value) == message.format(tmp_path)


def test_fingerprint_changes_with_time_and_content(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"id": [1, 2]})
    first = open_file(path).fingerprint
    assert open_file(path).fingerprint == first
    os.utime(path, ns=(0, 12345))
    touched = open_file(path).fingerprint
    assert touched[3] == first[3]
    assert touched != first
    write(path, {"id": [1, 3]})
    assert open_file(path).fingerprint[3] != first[3]


def test_columns_by_position(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet",
        {"s": [{"x": 1, "y": [2]}, None], "a.b": [[1], [2]], "m": [3, 4], "y": [0, 1]},
    )
    file = open_file(path)
    assert file.names == ("s", "a.b", "m", "y")
    [chunk] = file.read(0, [3, 1], batch_rows=10)
    assert [array.to_pylist() for array in chunk] == [[0, 1], [[1], [2]]]
    assert [len(c[0]) for c in file.read(0, [2], batch_rows=1)] == [1, 1]


def test_best_auc_of_a_synthetic_log(tmp_path: Path) -> None:
    assert read_best_auc(str(tmp_path)) == {}
    (tmp_path / "best_auc.json").write_text('{"click": 0.81}')
    assert read_best_auc(str(tmp_path)) == {"click": 0.81}
