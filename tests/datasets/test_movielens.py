"""Both text formats of MovieLens, on lines made by hand."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from edorec.config import load_config

SCRIPT = Path(__file__).parents[2] / "data" / "movielens" / "prepare.py"
RATINGS = [
    (1, 10, 4.0, 1000),
    (1, 20, 3.5, 2000),
    (1, 30, 5.0, 2000),
    (1, 40, 1.0, 3000),
    (2, 10, 4.5, 2500),
    (2, 30, 2.0, 2600),
    (2, 40, 4.0, 2700),
    (3, 40, 4.0, 2800),
    (3, 10, 4.0, 86_400),
    (3, 20, 3.0, 90_000),
]
MOVIES = [
    (10, "Quiet, Please (1999)", "Drama|Comedy"),
    (20, "No Year", "(no genres listed)"),
    (30, "Été (2001)", "Drama"),
]


def write_csv(raw: Path) -> None:
    ratings = "\n".join(",".join(map(str, row)) for row in RATINGS)
    movies = "\n".join(f'{i},"{title}",{genres}' for i, title, genres in MOVIES)
    (raw / "ratings.csv").write_text(f"userId,movieId,rating,timestamp\n{ratings}\n")
    (raw / "movies.csv").write_text(f"movieId,title,genres\n{movies}\n", encoding="utf-8")


def write_dat(raw: Path) -> None:
    ratings = "\n".join("::".join(map(str, row)) for row in RATINGS)
    movies = "\n".join("::".join(map(str, row)) for row in MOVIES)
    (raw / "ratings.dat").write_text(f"{ratings}\n")
    (raw / "movies.dat").write_text(f"{movies}\n", encoding="latin-1")


def convert(raw: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--raw", str(raw), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("write", [write_csv, write_dat])
def test_history_holds_likes_of_strictly_earlier_seconds(tmp_path: Path, write: Any) -> None:
    write(tmp_path)
    done = convert(tmp_path, tmp_path / "log")
    assert done.returncode == 0, done.stderr
    splits = [pq.read_table(tmp_path / "log" / f"{n}.parquet") for n in ("train", "valid", "test")]
    assert [len(rows) for rows in splits] == [8, 1, 1]
    rows = [row for split in splits for row in split.to_pylist()]
    assert [row["time_s"] for row in rows] == sorted(rating[3] for rating in RATINGS)
    by_key = {(row["user_id"], row["movie_id"]): row for row in rows}
    assert by_key[1, 30]["hist_movie"] == [10]
    assert by_key[1, 40]["hist_movie"] == [10, 30]
    assert not by_key[1, 10]["hist_movie"]
    assert by_key[3, 20]["hist_movie"] == [40, 10]
    assert by_key[1, 10]["genres"] == ["Drama", "Comedy"]
    assert by_key[1, 20]["genres"] == []
    assert [by_key[1, m]["year"] for m in (10, 20, 30, 40)] == [1999, None, 2001, None]
    assert [by_key[1, m]["label_like"] for m in (10, 20, 30, 40)] == [1, 0, 1, 0]
    assert (by_key[3, 10]["hour"], by_key[3, 10]["weekday"]) == (0, 4)  # 2 January 1970, a Friday


def test_a_missing_release_is_named(tmp_path: Path) -> None:
    done = convert(tmp_path, tmp_path / "log")
    assert done.returncode == 2
    assert f"{tmp_path}: neither ratings.csv nor ratings.dat is there" in done.stderr
    assert not list(tmp_path.glob("log*"))


def test_the_configuration_is_valid() -> None:
    assert set(load_config("movielens", []).config.tasks) == {"like"}
