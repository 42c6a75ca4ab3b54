"""edorec score, and edorec evaluate on what it wrote, as a user runs them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import edorec
from edorec.errors import InputError
from edorec.serving.files import open_files
from edorec.serving.scoring import score
from tests.serving.rows import odd_rows, trainer_batches


def test_a_fresh_process_scores_files_in_order_and_keeps_keys(trained, model, tmp_path):
    rows = odd_rows()
    recommender, (batch,) = trainer_batches(trained, rows, tmp_path)
    out = tmp_path / "scores.parquet"
    command = [sys.executable, "-m", "edorec.cli", "score", "--model", str(model)]
    command += ["--input", str(tmp_path / "rows.parquet"), "--output", str(out)]
    done = subprocess.run([*command, "--keep", "user", "--keep", "click"], capture_output=True)
    assert done.returncode == 0, done.stderr
    scored = pq.read_table(out)
    assert scored.column_names == ["user", "click", "score_click", "score_buy"]
    assert scored["user"].to_pylist() == rows["user"].to_pylist()
    with torch.no_grad():
        wanted = torch.sigmoid(recommender.logits(batch)).numpy()
    np.testing.assert_allclose(scored["score_buy"].to_numpy(), wanted[:, 1], atol=1e-6)
    assert [path.name for path in tmp_path.glob("*.tmp")] == []


def score_files(model: Path, files: list[Path], out: Path, *keep: str) -> int:
    opened = open_files([str(path) for path in files], key="--input")
    return score(edorec.load(model), opened, out, keep=keep, verbosity=-1)


def test_files_without_one_of_the_columns_and_other_row_groups(model, tmp_path):
    """Order is that of files and rows, whatever the layout."""
    rows = odd_rows()
    pq.write_table(rows.slice(0, 700), tmp_path / "a.parquet", row_group_size=13)
    pq.write_table(rows.slice(700), tmp_path / "b.parquet")
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    out = tmp_path / "new" / "scores.parquet"
    assert score_files(model, paths, out, "viewed", "viewed") == len(rows)
    found = pq.read_table(out)
    assert found.column_names == ["viewed", "score_click", "score_buy"]
    assert found["viewed"].to_pylist() == rows["viewed"].to_pylist()
    wanted = edorec.load(model).predict(rows)
    np.testing.assert_allclose(found["score_buy"], wanted["score_buy"], atol=1e-6)


def test_what_cannot_be_scored_is_said(model, tmp_path):
    rows = odd_rows().append_column("score_buy", pa.array(np.zeros(1504)))
    path, other, out = tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "out.parquet"
    pq.write_table(rows, path)
    pq.write_table(rows.set_column(4, "click", rows["click"].cast(pa.string())), other)
    cases = [
        ([path], path, [], "--output .*a.parquet is one of the files to score"),
        ([path], out, ["uid"], "--keep uid: .* has 0 columns of that name; it has user, item"),
        ([path], out, ["score_buy"], "--keep score_buy: the model writes a column of that name"),
        ([path, other], out, ["click"], "--keep click is int8 in .* and string in .*b.parquet"),
        ([path], path / "out.parquet", [], "cannot write .*out.parquet: "),
    ]
    for files, target, keep, message in cases:
        with pytest.raises(InputError, match=message):
            score_files(model, files, target, *keep)
    assert sorted(tmp_path.iterdir()) == [path, other]


def test_metrics_of_scores_in_a_file_equal_the_reports(trained, model, log, tmp_path):
    out = tmp_path / "scores.parquet"
    base = [sys.executable, "-m", "edorec.cli"]
    test = str(log / "test.parquet")
    # predict is another name of score
    command = ["predict", "--model", str(model), "--input", test, "--output", str(out), "-q"]
    keep = [part for name in ("user", "click", "buy") for part in ("--keep", name)]
    subprocess.run([*base, *command, *keep], check=True)
    command = ["evaluate", str(out), "--label", "click", "--score", "score_click"]
    done = subprocess.run(
        [*base, *command, "--group", "user"], check=True, capture_output=True, text=True
    )
    report = json.loads((trained / "report.json").read_text())["tasks"]["click"]
    for metric in ("auc", "gauc", "logloss", "ne"):
        assert f"{report[metric]:.4f}" in done.stdout
    failed = subprocess.run([*base, "evaluate", str(out)], capture_output=True, text=True)
    assert failed.returncode == 2
    assert "name its label with --label" in failed.stderr
    failed = subprocess.run(
        [*base, "evaluate", str(out), "--label", "click", "--score", "user"],
        capture_output=True,
        text=True,
    )
    assert failed.returncode == 2
    assert "must be a probability from 0 to 1" in failed.stderr
