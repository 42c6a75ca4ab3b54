"""``edorec init``: what it makes of a log, and that the result is a valid configuration."""

from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edorec.config import RunConfig, load_config
from edorec.data.prepare import prepare
from edorec.errors import InputError
from edorec.init import write_config
from edorec.init_guess import words

ROWS = 600


def shop_log(rows: int = ROWS, seed: int = 0) -> pa.Table:
    """A small log with every kind of column that has a rule of its own."""
    rng = np.random.default_rng(seed)
    items = rng.integers(0, 150, rows) * 7_919 + 2**40
    start = datetime(2026, 1, 1)
    recent = [list(rng.choice(items, size)) for size in rng.integers(0, 4, rows)]
    return pa.table(
        {
            "row_id": np.arange(rows),
            "event_time": [start + timedelta(minutes=i) for i in range(rows)],
            "user.id": [f"u{i}" for i in rng.integers(0, 90, rows)],
            "item_id": items,
            "recent_items": pa.array([None, *recent[1:]], pa.list_(pa.int64())),
            "shop": pa.array([None, *rng.integers(0, 9, rows - 1).tolist()], pa.int32()),
            "tags": pa.array([["a", "b"]] * rows, pa.list_(pa.string())),
            "price": np.exp(rng.normal(2, 1.5, rows)),
            "score": np.where(np.arange(rows) == 3, np.nan, rng.normal(size=rows)),
            "num_views": rng.integers(0, 1_000, rows),
            "country": ["x"] * rows,
            "embedding": pa.array([[0.5, 0.25]] * rows, pa.list_(pa.float32())),
            "instance_weight": rng.random(rows),
            "empty": pa.nulls(rows, pa.int64()),
            "is_new": rng.integers(0, 2, rows).astype(np.int8),
            "label_click": rng.integers(0, 2, rows).astype(np.int8),
            "label_buy": pa.array([None, *rng.integers(0, 2, rows - 1).tolist()], pa.int8()),
            "label_seconds": rng.random(rows),
        }
    )


def load(tmp_path: Path, data: Path | str) -> tuple[RunConfig, str]:
    out = tmp_path / "out" / "made.yaml"
    text = write_config(str(data), out=out)
    assert out.read_text() == text
    return load_config(str(out), []).config, text


def test_every_column_gets_its_role(tmp_path):
    pq.write_table(shop_log(), tmp_path / "log.parquet")
    config, text = load(tmp_path, tmp_path / "log.parquet")
    assert {name: task.label for name, task in config.tasks.items()} == {
        "click": "label_click",
        "buy": "label_buy",
    }
    assert config.data.group == "user.id"
    assert config.data.folder == str(tmp_path)
    assert config.data.train == "log.parquet"
    assert {name: f.vocabulary for name, f in config.features.sparse.items()} == {
        "user.id": None,
        "item_id": None,
        "recent_items": "item_id",
        "shop": None,
        "tags": None,
        "is_new": None,
    }
    assert {name: f.transform for name, f in config.features.dense.items()} == {
        "price": "log1p",
        "score": "none",
        "num_views": "none",
    }
    for line in (
        "  # weight: instance_weight  # guess: if it weighs the rows",
        "#   row_id: different in every row",
        "#   event_time: a time",
        "#   country: constant",
        "#   embedding: FLOAT[] is no id, list of ids, or number",
        "#   instance_weight: a weight of the row?",
        "#   empty: null in every row of the sample",
        "#   label_seconds: called like a label, but its values are not 0 and 1",
    ):
        assert line in text.splitlines()
    assert "# guess: INTEGER, 9 values, 0.2% null" in text
    guessed = [line for line in text.splitlines() if line.startswith("    ")]
    assert all("# guess: " in line for line in guessed)


def test_the_result_can_be_prepared(tmp_path):
    pq.write_table(shop_log(), tmp_path / "log.parquet")
    config, _ = load(tmp_path, tmp_path / "log.parquet")
    prepared = prepare(
        data=config.data.model_copy(update={"cache": str(tmp_path / "cache")}),
        features=config.features,
        vocabularies=config.vocabularies,
        tasks=config.tasks,
    )
    assert prepared.splits["train"].rows == ROWS
    assert prepared.feature_vocabulary["recent_items"] == "item_id"
    assert prepared.list_features == {"recent_items", "tags"}


def test_the_hint_to_split_by_time_works(tmp_path, monkeypatch):
    pq.write_table(shop_log(), tmp_path / "log.parquet")
    _, text = load(tmp_path, tmp_path / "log.parquet")
    hint = text.partition("for example:\n")[2].partition("  group:")[0]
    statements = hint.replace("  #", "").strip()
    assert statements.count("COPY") == 3
    monkeypatch.chdir(tmp_path)
    duckdb.sql(statements)
    rows = {
        name: pq.read_metadata(f"{name}.parquet").num_rows for name in ("train", "valid", "test")
    }
    assert sum(rows.values()) == ROWS
    assert 0.78 * ROWS <= rows["train"] <= 0.82 * ROWS
    config, text = load(tmp_path / "again", tmp_path)
    assert "COPY" not in text
    assert (config.data.train, config.data.valid, config.data.test) == (
        "train.parquet",
        "valid.parquet",
        "test.parquet",
    )
    assert config.train.early_stopping.patience == 2


def test_split_folders_plain_folders_and_globs(tmp_path):
    table = shop_log(100)
    for name in ("split/train/a", "split/val/a", "plain/a", "plain/b", "deep/x=1/a"):
        path = tmp_path / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
    data = load(tmp_path / "1", tmp_path / "split")[0].data
    assert (data.train, data.valid, data.test) == ("train", "val", None)
    data = load(tmp_path / "2", tmp_path / "plain")[0].data
    assert (data.folder, data.train) == (str(tmp_path / "plain"), ".")
    data = load(tmp_path / "3", tmp_path / "deep")[0].data
    assert (data.folder, data.train) == (str(tmp_path / "deep"), ".")
    data = load(tmp_path / "4", f"{tmp_path}/pl*/a.parquet")[0].data
    assert (data.folder, data.train) == (str(tmp_path), "pl*/a.parquet")


@pytest.mark.parametrize(
    ("columns", "tasks", "named"),
    [
        ({"is_fresh": [0, 1], "clicked": [1, 0]}, {"clicked": "clicked"}, True),
        ({"is_fresh": [0, 1], "x": [5, 6]}, {"fresh": "is_fresh"}, False),
        ({"isClick": [False, True], "x": [5, 6]}, {"isClick": "isClick"}, True),
        ({"a": [0, 1], "b": [1, 0]}, {"b": "b"}, False),
        ({"like": [0.0, 1.0], "likes": [3, 4]}, {"like": "like"}, True),
        (
            {"click": [0, 0], "label_click": [0, 1]},
            {"click": "click", "label_click": "label_click"},
            True,
        ),
    ],
)
def test_labels_by_name(tmp_path, columns, tasks, named):
    pq.write_table(pa.table({"user_id": [1, 2], **columns}), tmp_path / "log.parquet")
    config, text = load(tmp_path, tmp_path / "log.parquet")
    assert {name: task.label for name, task in config.tasks.items()} == tasks
    assert ("no column is called like a label" not in text) == named


def test_integers_of_different_things_do_not_share(tmp_path):
    rng = np.random.default_rng(1)
    table = pa.table(
        {
            "user_id": rng.integers(0, 400, ROWS),
            "video_id": rng.integers(0, 100, ROWS),
            "hist_video": [list(rng.integers(0, 100, 5)) for _ in range(ROWS)],
            "hour": rng.integers(0, 24, ROWS),
            "label": rng.integers(0, 2, ROWS),
        }
    )
    pq.write_table(table, tmp_path / "log.parquet")
    config, _ = load(tmp_path, tmp_path / "log.parquet")
    # All ids of videos are ids of users too: the name decides.
    assert config.features.sparse["hist_video"].vocabulary == "video_id"


def test_a_repeated_name_is_left_out(tmp_path):
    table = pa.table([[1, 2], [3, 4], [5, 6], [0, 1]], names=["id", "value", "value", "label"])
    pq.write_table(table, tmp_path / "log.parquet")
    config, text = load(tmp_path, tmp_path / "log.parquet")
    assert list(config.features.sparse) == ["id"]
    assert "#   value: several columns have this name" in text.splitlines()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user": [1, 2]}, "no column holds only 0 and 1, so there is no label to predict"),
        ({"label": [0, 1]}, "no column besides the labels can be a feature"),
        ({"label": pa.array([], pa.int8())}, "the training files hold no rows"),
    ],
)
def test_a_log_without_label_feature_or_row(tmp_path, columns, message):
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(InputError) as caught:
        write_config(str(path), out=None)
    assert str(caught.value) == f"{path}: {message}"


def test_files_that_are_not_there_not_parquet_or_not_to_be_overwritten(tmp_path):
    with pytest.raises(InputError) as caught:
        write_config(str(tmp_path / "none"), out=None)
    assert str(caught.value) == f"DATA: {tmp_path / 'none'}: no such file or folder"
    text = tmp_path / "text.parquet"
    text.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"text\.parquet is not a sound Parquet file"):
        write_config(str(text), out=None)
    with pytest.raises(InputError) as caught:
        write_config(str(tmp_path), out=text)
    assert str(caught.value) == f"--out {text}: the file exists; choose another name"


def test_words():
    assert words("userID_last-Seen") == {"user", "id", "last", "seen"}
