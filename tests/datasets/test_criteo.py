"""Criteo's text format, on lines made by hand."""

import gzip
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from edorec.config import load_config

SCRIPT = Path(__file__).parents[2] / "data" / "criteo" / "prepare.py"


def line(label: int, first: str, category: str) -> str:
    return "\t".join([str(label), first, "-3", *[""] * 11, category, *["68fd1e64"] * 25])


def convert(raw: list[Path], out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--raw", *map(str, raw), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_rows_keep_their_order_and_are_split_by_it(tmp_path: Path) -> None:
    lines = [line(i % 2, str(i), "" if i == 3 else f"{i:08x}") for i in range(28)]
    (tmp_path / "day_0").write_text("\n".join(lines[:20]) + "\n")
    (tmp_path / "day_1.gz").write_bytes(gzip.compress("\n".join(lines[20:]).encode()))
    done = convert([tmp_path / "day_0", tmp_path / "day_1.gz"], tmp_path / "log")
    assert done.returncode == 0, done.stderr
    splits = [pq.read_table(tmp_path / "log" / f"{n}.parquet") for n in ("train", "valid", "test")]
    assert [len(rows) for rows in splits] == [24, 2, 2]
    train = splits[0].to_pydict()
    assert train["int_1"] == list(range(24))
    assert train["int_2"] == [-3] * 24
    assert train["int_3"] == [None] * 24
    assert train["cat_1"][2:5] == ["00000002", None, "00000004"]
    assert train["cat_26"] == ["68fd1e64"] * 24
    assert splits[2]["int_1"].to_pylist() == [26, 27]
    assert splits[2]["label"].to_pylist() == [0, 1]


def test_a_line_with_another_number_of_fields_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(f"{line(0, '1', 'a')}\n{line(0, '1', 'a')}\textra\n")
    done = convert([tmp_path / "train.txt"], tmp_path / "log")
    assert done.returncode == 2
    assert "train.txt line 2: 41 fields between tabs, expected 40" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("log*"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    done = convert([tmp_path / "train.txt"], tmp_path / "log")
    assert done.returncode == 2
    assert "train.txt: no such file" in done.stderr


def test_the_configuration_names_every_column() -> None:
    features = load_config("criteo", []).config.features
    assert len(features.sparse) == 26
    assert len(features.dense) == 13
