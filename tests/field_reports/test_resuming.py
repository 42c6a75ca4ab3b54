"""Runs that go on with what they had, row by row and table by table (B48, B49, B50)."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from edorec.config import RunConfig
from edorec.errors import InputError
from edorec.step import TrainingStep
from edorec.train import run
from tests.checkpoints.test_resume import interrupted_after
from tests.toy import toy_config, toy_rows, write_toy

FEATURES = {"user": {}, "item": {}}


def config_of(log: Path, **sections: Any) -> RunConfig:
    wanted: dict[str, Any] = {
        "features": {"sparse": FEATURES},
        "vocabularies": {"item": {"min_count": 1, "buckets": 1}},
        "train": {"epochs": 2, "batch_size": 4},
        "checkpoint": {"every_steps": 1, "every_minutes": None},
    }
    return toy_config(log, **wanted | sections)


def test_b50_every_row_is_used_once_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """23 rows in 3 files, shuffled; stopped after 3 steps and after 5."""
    log = write_toy(tmp_path / "log", train=0, valid=30, test=0)
    rows = toy_rows(23)  # each with a price of its own
    for number, (first, size) in enumerate(((0, 10), (10, 6), (16, 7))):
        pq.write_table(rows.slice(first, size), log / f"train-{number}.parquet")
    config = config_of(log, data={"train": "train-*.parquet", "shuffle": True})
    used: list[float] = []
    call = TrainingStep.__call__

    def note(self: TrainingStep, batch: Any) -> float:
        used.extend(batch.dense_BN[:, 0].tolist())
        return call(self, batch)

    monkeypatch.setattr(TrainingStep, "__call__", note)
    run(config, run_dir=tmp_path / "whole", verbosity=-1)
    whole, used = used.copy(), []
    for step in (3, 5):
        with interrupted_after(step):
            run(config, run_dir=tmp_path / "run", verbosity=-1, resume=True)
    run(config, run_dir=tmp_path / "run", verbosity=-1, resume=True)
    assert used == whole
    for epoch in (used[:23], used[23:]):
        assert len(set(epoch)) == 23


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("log"), train=300, valid=50, test=0)


@pytest.fixture(scope="module")
def finished(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    config = config_of(log, train={"epochs": 1, "batch_size": 100})
    run(config, run_dir=folder, verbosity=-1)
    return folder


@pytest.mark.parametrize(
    ("features", "sentences"),
    [
        ({"user": {}}, ["features.sparse.item is there, and absent here", "table item.band0 is"]),
        (
            {"user": {}, "item": {}, "viewed": {"pooling": "sum"}},
            ["features.sparse.viewed is here, and absent there", "table viewed.band0 is"],
        ),
        (
            {"user": {}, "thing": {"column": "item"}},
            ["table item.band0 is", "rows there, and absent here", "table thing.band0 is"],
        ),
    ],
    ids=["one less", "one more", "renamed"],
)
def test_b49_other_tables_are_refused_by_name(
    log: Path, finished: Path, tmp_path: Path, features: dict[str, Any], sentences: list[str]
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    settings = {"features": {"sparse": features}, "train": {"epochs": 1, "batch_size": 100}}
    with pytest.raises(InputError) as error:
        run(config_of(log, **settings), run_dir=tmp_path / "run", verbosity=-1, resume=True)
    for sentence in sentences:
        assert sentence in str(error.value)


@pytest.mark.parametrize("max_rows", [10, 30])
def test_b48_another_number_of_rows_is_refused_with_both(
    log: Path, tmp_path: Path, max_rows: int
) -> None:
    train = {"epochs": 1, "batch_size": 100}

    def config(rows: int) -> RunConfig:
        table = {"min_count": 1, "buckets": 1, "max_rows": rows}
        return config_of(log, vocabularies={"item": table}, train=train)

    run(config(20), run_dir=tmp_path / "run", verbosity=-1)
    with pytest.raises(InputError) as error:
        run(config(max_rows), run_dir=tmp_path / "run", verbosity=-1, resume=True)
    assert f"vocabularies.item.max_rows is 20 there and {max_rows} here" in str(error.value)
    assert "table item.band0 is" in str(error.value)
