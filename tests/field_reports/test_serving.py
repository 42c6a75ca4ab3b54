"""Exported models on other data than they were trained on (B35, B53, B55, B56)."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import edorec
from edorec.evaluate import evaluate
from edorec.serving.export import export
from edorec.serving.files import open_files
from edorec.serving.formats import parse_formats
from edorec.serving.model import ServingModel
from edorec.serving.scoring import score
from edorec.train import run
from tests.toy import toy_config, toy_rows, write_toy


def train(folder: Path, **sections: Any) -> Path:
    """A run on the log of ``folder``."""
    run(toy_config(folder, **sections), run_dir=folder / "run", verbosity=-1)
    return folder / "run"


def exported(run_dir: Path, out: Path, *formats: str) -> ServingModel:
    export(run_dir, out, formats=parse_formats(list(formats)), verbosity=-1)
    return edorec.load(out)


def scored(model: ServingModel, rows: pa.Table, folder: Path) -> pa.Table:
    """What ``edorec score`` writes for these rows."""
    pq.write_table(rows, folder / "rows.parquet")
    files = open_files(str(folder / "rows.parquet"), key="--input")
    score(model, files, folder / "scores.parquet", keep=["user"], verbosity=-1)
    return pq.read_table(folder / "scores.parquet")


def scores_of(table: pa.Table) -> np.ndarray:
    names = [name for name in table.column_names if name.startswith("score_")]
    return np.stack([table[name].to_numpy() for name in names], 1)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("log"), test=3000)


@pytest.fixture(scope="module")
def run_dir(log: Path) -> Path:
    return train(log, embedding={"dim": 16})


@pytest.fixture(scope="module")
def model(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> ServingModel:
    return exported(run_dir, tmp_path_factory.mktemp("model") / "fp32")


def test_b35_one_row_is_scored_with_batch_norm(tmp_path: Path) -> None:
    log = write_toy(tmp_path, train=33, valid=20, test=20)
    run_dir = train(log, train={"batch_size": 32}, model={"batch_norm": True})
    model, rows = exported(run_dir, tmp_path / "model"), toy_rows(5)
    alone = scores_of(scored(model, rows.slice(3, 1), tmp_path))
    np.testing.assert_allclose(alone, scores_of(model.predict(rows))[3:4], atol=1e-6)


@pytest.mark.parametrize(("row_format", "gap"), [("int8", 0.01), ("int4", 0.05)])
def test_b53_quantized_scores_stay_close_and_finite(
    run_dir: Path, model: ServingModel, tmp_path: Path, row_format: str, gap: float
) -> None:
    small = exported(run_dir, tmp_path / row_format, row_format)
    rows = toy_rows(500, seed=5)
    found, wanted = scores_of(small.predict(rows)), scores_of(model.predict(rows))
    assert np.isfinite(found).all()
    assert 0 < np.abs(found - wanted).max() <= gap
    evaluated = evaluate(run_dir, files=None, split="test", verbosity=-1)["tasks"]
    for task, aucs in small.manifest["evaluation"]["tasks"].items():
        assert aucs["auc_before"] == evaluated[task]["auc"]
        assert abs(aucs["auc_after"] - aucs["auc_before"]) <= 0.002


def test_b55_a_file_without_rows_has_scores_of_no_rows(model: ServingModel, tmp_path: Path) -> None:
    rows = toy_rows(3)
    none = scored(model, rows.slice(0, 0), tmp_path)
    assert len(none) == 0
    assert none.schema.equals(scored(model, rows, tmp_path).schema)
    predicted = model.predict(rows.slice(0, 0))
    assert (len(predicted), predicted.column_names) == (0, ["score_click", "score_buy"])
    assert len(model.predict(rows.slice(0, 0).to_pandas())) == 0


def test_b55_rows_whose_lists_are_all_empty(model: ServingModel, log: Path) -> None:
    rows = toy_rows(3)
    empty = rows.set_column(2, "viewed", pa.array([[], None, []], pa.list_(pa.int64())))
    found = scores_of(model.predict(empty))
    assert np.isfinite(found).all()
    assert len(np.unique(found[:, 0])) > 1  # by the other features
    vectors = model.embed(model.reader.read(empty)).numpy()
    wanted = model.embed(model.reader.read(rows)).numpy()
    columns = slice(32, 48)  # features: user, item, viewed
    assert (vectors[:, columns] == 0).all()
    assert (vectors[:, :32] == wanted[:, :32]).all()


def test_b55_training_on_empty_lists_alone(tmp_path: Path) -> None:
    write_toy(tmp_path, train=300, valid=100, test=100)
    rows = toy_rows(300)
    empty = rows.set_column(2, "viewed", pa.array([[]] * 300, pa.list_(pa.int64())))
    pq.write_table(empty, tmp_path / "train.parquet")
    model = exported(train(tmp_path), tmp_path / "model")
    assert np.isfinite(scores_of(model.predict(toy_rows(50)))).all()  # lists of unseen ids


def test_b56_a_score_depends_on_its_row_alone(tmp_path: Path) -> None:
    """Trained on items a to j; other rows, fewer ids or unseen ids in front change nothing."""
    log = write_toy(tmp_path, train=0, valid=0, test=0)
    for seed, split in enumerate(("train", "valid", "test")):
        rows = toy_rows(500, seed=seed)
        names = pa.array(["abcdefghij"[int(item.as_py()[1:]) % 10] for item in rows["item"]])
        pq.write_table(rows.set_column(1, "item", names), log / f"{split}.parquet")
    model = exported(train(log), tmp_path / "model")
    rows = pq.read_table(log / "test.parquet")
    wanted = scores_of(scored(model, rows, tmp_path))
    assert wanted.std(0).min() > 0.01
    late = np.flatnonzero([item in "ghij" for item in rows["item"].to_pylist()])
    assert 0 < len(late) < len(rows)
    found = scores_of(scored(model, rows.take(late), tmp_path))
    np.testing.assert_allclose(found, wanted[late], atol=1e-6)
    unseen = rows.slice(0, 50).set_column(1, "item", pa.array([f"new{i}" for i in range(50)]))
    found = scores_of(scored(model, pa.concat_tables([unseen, rows]), tmp_path))
    np.testing.assert_allclose(found[50:], wanted, atol=1e-6)
