"""The text files of Census-Income (KDD), on lines in their format."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from edorec.config import load_config
from edorec.data.prepare import check_schema

SCRIPT = Path(__file__).parents[2] / "data" / "census" / "prepare.py"
LINE = (
    "38, Private, 6, 36, {education}, 0, Not in universe, {marital}, Manufacturing-durable goods, "
    "Machine operators assmblrs & inspctrs, White, Mexican (Mexicano), Female, Not in universe, "
    "Not in universe, Full-time schedules, 0, 0, 0, Joint one under 65 & one 65+, "
    "Not in universe, Not in universe, Spouse of householder, Spouse of householder, 1032.38, ?, "
    "?, ?, Not in universe under 1 year old, ?, 4, Not in universe, Mexico, Mexico, Mexico, "
    "Foreign born- Not a citizen of U S , 0, Not in universe, 2, {weeks}, 95, {income}"
)


def line(
    weeks: int, *, education: str = "Children", marital: str = "Widowed", more: int = 0
) -> str:
    income = " 50000+." if more else "- 50000."
    return LINE.format(weeks=weeks, education=education, marital=marital, income=income)


def write_raw(raw: Path) -> None:
    train = [
        line(52, more=1),
        line(12, education="Bachelors degree(BA AB BS)", marital="Never married"),
    ]
    (raw / "census-income.data").write_text("\n".join(train) + "\n")
    test = "\n".join(line(weeks) for weeks in range(5)) + "\n"
    (raw / "census-income.test.gz").write_bytes(gzip.compress(test.encode()))


def convert(raw: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--raw", str(raw), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_values_labels_and_splits(tmp_path: Path) -> None:
    write_raw(tmp_path)
    done = convert(tmp_path, tmp_path / "log")
    assert done.returncode == 0, done.stderr
    train, valid, test = (
        pq.read_table(tmp_path / "log" / f"{name}.parquet").to_pylist()
        for name in ("train", "valid", "test")
    )
    assert [row["weeks_worked"] for row in train] == [52, 12]
    assert [row["weeks_worked"] for row in valid] == [0, 2, 4]
    assert [row["weeks_worked"] for row in test] == [1, 3]
    assert [row["label_income_50k"] for row in train] == [1, 0]
    assert [row["label_never_married"] for row in train] == [0, 1]
    assert [row["label_college"] for row in train] == [0, 1]
    assert (train[0]["age"], train[0]["class_worker"], train[0]["year"]) == (38, "Private", 95)
    assert train[0]["instance_weight"] == 1032.38
    assert train[0]["citizenship"] == "Foreign born- Not a citizen of U S"
    assert (train[0]["mig_chg_msa"], train[0]["mig_same"]) == (
        None,
        "Not in universe under 1 year old",
    )


def test_the_result_has_every_column_of_the_configuration(tmp_path: Path) -> None:
    write_raw(tmp_path)
    convert(tmp_path, tmp_path / "log")
    config = load_config("census", [f"data.folder={tmp_path / 'log'}"]).config
    check_schema(data=config.data, features=config.features, tasks=config.tasks)


@pytest.mark.skipif("EDOREC_DATA" not in os.environ, reason="EDOREC_DATA is not set")
def test_columns_and_types_are_those_of_the_real_log(tmp_path: Path) -> None:
    write_raw(tmp_path)
    convert(tmp_path, tmp_path / "log")
    folders = (tmp_path / "log", Path(os.environ["EDOREC_DATA"]) / "census_income_kdd")
    made, real = (pq.read_schema(folder / "train.parquet") for folder in folders)
    assert [(field.name, field.type) for field in made] == [(f.name, f.type) for f in real]


def test_a_wrong_value_is_named(tmp_path: Path) -> None:
    write_raw(tmp_path)
    (tmp_path / "census-income.data").write_text(line(1).replace("38, ", "many, ", 1) + "\n")
    done = convert(tmp_path, tmp_path / "log")
    assert done.returncode == 2
    assert done.stderr.startswith(f"{tmp_path / 'census-income.data'}: ")
    assert "'many'" in done.stderr
    assert not list(tmp_path.glob("log*"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    done = convert(tmp_path, tmp_path / "log")
    assert done.returncode == 2
    assert f"{tmp_path}: no census-income.data" in done.stderr
    assert not list(tmp_path.glob("log*"))
