"""Yesterday's run goes on with today's data: rows move with their ids."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from edorec.config import RunConfig, load_config
from edorec.data.prepare import Prepared, load_prepared, prepare_extra
from edorec.data.reader import Reader
from edorec.embedding.formats import FORMATS
from edorec.errors import InputError
from edorec.recommender import Recommender
from edorec.train import prepare_splits, run
from edorec.warm_start import Summary, new_recommender, print_warm_start
from tests.checkpoints.runs import load_best
from tests.toy import toy_config, toy_rows, write_config, write_toy

BANDS = [
    {"min_count": 40, "format": "fp32"},
    {"min_count": 4, "format": "int8"},
    {"format": "int4", "state": "log8"},
]
VOCABULARIES = {
    "item": {"min_count": 2, "buckets": 3, "task_specific": {"buy": {"rows": 10, "dim": 2}}},
    "user": {"buckets": 0.2},
}
PLAIN: dict[str, Any] = {
    "memory": {"format": "int8"},
    "vocabularies": {
        "item": {"min_count": 2, "task_specific": {"buy": {"rows": 10_000, "dim": 2}}},
        "user": {"buckets": 0.2},
    },
}
HOT = "hot item"


def write_today(folder: Path) -> None:
    """Today's rows: another sample, with an item that none has seen and many show."""
    rows = toy_rows(1500, seed=9)
    items = [HOT if k % 4 else item for k, item in enumerate(rows["item"].to_pylist())]
    pq.write_table(rows.set_column(1, "item", pa.array(items)), folder / "today.parquet")


def config_of(folder: Path, **sections: Any) -> RunConfig:
    defaults: dict[str, Any] = {"vocabularies": VOCABULARIES, "memory": {"bands": BANDS}}
    return toy_config(folder, **{**defaults, **sections})


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_toy(tmp_path_factory.mktemp("log"), train=1500, valid=200, test=200)
    write_today(folder)
    return folder


@pytest.fixture(scope="module")
def yesterday(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with bands and a task's own table."""
    folder = tmp_path_factory.mktemp("yesterday") / "run"
    run(config_of(log), run_dir=folder, verbosity=-1)
    return folder


@pytest.fixture(scope="module")
def plain(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with INT8 rows throughout, and a row of the task's own for every item."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    run(config_of(log, **PLAIN), run_dir=folder, verbosity=-1)
    return folder


def today(log: Path, earlier: Path, **sections: Any) -> RunConfig:
    """A configuration that goes on from a run."""
    sections = {
        **sections,
        "data": {"train": "today.parquet", "extend": str(earlier)} | sections.get("data", {}),
        "train": {"warm_start": str(earlier)} | sections.get("train", {}),
    }
    return config_of(log, **sections)


def start(config: RunConfig) -> tuple[Recommender, Prepared, Summary]:
    prepared = prepare_splits(config, console=Console(quiet=True), verbosity=-1)
    recommender, summary = new_recommender(config, prepared, device=torch.device("cpu"))
    assert summary is not None
    return recommender, prepared, summary


def rows_by_id(
    recommender: Recommender, ids: list[Any], table: str
) -> dict[Any, tuple[str, bytes, torch.Tensor]]:
    """Formats, bytes and values of the rows of ids; those that share rows are called by numbers."""
    weight = recommender.tables.tables.weight(table)  # type: ignore[attr-defined]
    own = recommender.row_maps[table].num_own_rows
    names = [*ids[:own], *range(recommender.row_maps[table].num_buckets)]
    found: dict[Any, tuple[str, bytes, torch.Tensor]] = {}
    for key, band in recommender.tables.tables_state()[table].items():
        for row in band:
            position = len(found)
            found[names[position]] = key.partition("_")[2], row.numpy().tobytes(), weight[position]
    return found


def ids_of(prepared: Prepared, name: str) -> list[Any]:
    ids: list[Any] = pq.read_table(prepared.vocabularies[name].path)["id"].to_pylist()
    return ids


def test_a_new_hot_id_gets_a_hot_row_and_untouched_ids_keep_their_bytes(
    log: Path, yesterday: Path
) -> None:
    config = today(log, yesterday)
    recommender, prepared, summary = start(config)
    earlier = load_prepared(yesterday / "vocabularies")
    before = rows_by_id(load_best(yesterday, config_of(log)), ids_of(earlier, "item"), "item")
    after = rows_by_id(recommender, ids_of(prepared, "item"), "item")
    assert ids_of(prepared, "item")[0] == HOT
    assert after[HOT][0] == "fp32_fp32"
    moved = same = 0
    for name, (formats, found, values) in after.items():
        if name not in before:
            assert isinstance(name, str)
            continue
        if formats == before[name][0]:
            assert found == before[name][1]
            same += 1
            continue
        moved += 1
        row_format = FORMATS[formats.split("_")[0]]
        nearest = row_format.encode(before[name][2].unsqueeze(0), torch.tensor(0.5))
        assert torch.equal(values, row_format.decode(nearest, 4)[0])
    assert same > 20
    assert moved > 0
    assert summary["tables"]["item"]["reencoded"] >= moved
    # The new id starts as the bucket that it was in, with the state of a new row.
    buckets = [values for name, (_, _, values) in before.items() if isinstance(name, int)]
    assert any(torch.allclose(after[HOT][2], bucket) for bucket in buckets)
    assert after[HOT][1][-4:] == np.float32(1e-5).tobytes()


def logits(recommender: Recommender, prepared: Prepared, log: Path) -> torch.Tensor:
    """Logits of the test rows, and of today's, whose hot item is new."""
    config = config_of(log)
    extra = prepare_extra(prepared, ["test.parquet", "today.parquet"], data=config.data)
    reader = Reader(
        extra,
        "extra",
        batch_size=1000,
        row_maps=recommender.row_maps,
        shuffle=False,
        shuffle_rows=1000,
        seed=0,
        training=False,
    )
    recommender.model.eval()
    with torch.no_grad():
        return torch.cat([recommender.logits(batch) for batch in reader.batches(0)])


def test_no_score_changes_before_training_goes_on(log: Path, plain: Path) -> None:
    """Also of ids that had no row and now have one, in the shared and in the task's table."""
    recommender, prepared, summary = start(today(log, plain, **PLAIN))
    earlier = load_best(plain, config_of(log, **PLAIN))
    before = logits(earlier, load_prepared(plain / "vocabularies"), log)
    assert torch.equal(logits(recommender, prepared, log), before)
    tables = summary["tables"]
    assert tables["item"]["new"] > 0
    assert all(table["reencoded"] == 0 for table in tables.values())
    assert sorted(tables) == ["item", "item@buy", "user", "viewed"]
    assert summary["same_statistics"]
    assert recommender.tables.num_updates == summary["step"] > 0


def test_tables_are_one_copy_in_the_same_place(log: Path, yesterday: Path) -> None:
    recommender, _, _ = start(today(log, yesterday))
    total = sum(sum(sizes) for sizes in recommender.tables.table_bytes().values())
    states = recommender.tables.tables_state()
    live = [rows for bands in states.values() for rows in bands.values()]
    assert sum(rows.nbytes for rows in live) == total
    places = {rows.data_ptr() for rows in live if rows.nbytes}
    assert len(places) == sum(rows.nbytes > 0 for rows in live)
    for table, bands in states.items():
        again = recommender.tables.tables_state()[table]
        assert [t.data_ptr() for t in again.values()] == [t.data_ptr() for t in bands.values()]


def test_what_does_not_fit_starts_anew_and_is_named(
    log: Path, plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = today(
        log,
        plain,
        memory={"format": "int8"},
        vocabularies={**PLAIN["vocabularies"], "user": {"dim": 8}},
        model={"backbone": {"name": "dcnv2", "hidden": [16]}},
        embedding={"optimizer": "adagrad"},
        data={"extend": None},
    )
    recommender, _, summary = start(config)
    untrained, _ = new_recommender(
        config.model_copy(update={"train": config.train.model_copy(update={"warm_start": None})}),
        prepare_splits(config, console=Console(quiet=True), verbosity=-1),
        device=torch.device("cpu"),
    )
    why = "its dim is 8, and 4 in the earlier run"
    assert summary["tables"]["user"]["left_out"] == why
    for name in ("user", "item"):
        weights = [r.tables.tables.weight(name) for r in (recommender, untrained)]  # type: ignore[attr-defined]
        assert torch.equal(*weights) == (name == "user")
    assert not summary["same_statistics"]
    assert "backbone.cross.bias.0" in summary["dense"]["left_out"]
    assert summary["dense"]["loaded"] > 0
    print_warm_start(summary, Console(file=sys.stdout))
    text = capsys.readouterr().out
    assert f"table user starts anew: {why}" in text
    assert "dense weights that start anew: backbone.cross" in text
    assert "the optimizer of the tables is another one, so its state starts anew" in text
    assert "data.extend keeps them" in text


def test_a_folder_that_is_no_run_is_refused(log: Path, tmp_path: Path) -> None:
    config = config_of(log, train={"warm_start": str(tmp_path / "none")})
    with pytest.raises(InputError, match=r"train\.warm_start: .*none holds no run"):
        start(config)


def edorec(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edorec.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_the_commands_of_a_daily_run(log: Path, yesterday: Path, tmp_path: Path) -> None:
    shutil.copytree(yesterday, tmp_path / "yesterday")
    config = config_of(log, data={"train": "today.parquet"}, train={"epochs": 1})
    path = write_config(tmp_path / "today.yaml", config)
    extend = ["--config", str(path), "--extend", "yesterday"]
    shown = edorec("prepare", *extend, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "that have left" in shown.stdout
    done = edorec("train", *extend, "--run-dir", "today", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "starting from yesterday, step" in done.stderr
    report = json.loads((tmp_path / "today" / "report.json").read_text())
    assert report["warm_start"]["tables"]["item"]["new"] > 0
    assert report["tasks"]["click"]["auc"] > 0.6
    saved = load_config(str(tmp_path / "today" / "config.yaml"), []).config
    assert (saved.data.extend, saved.train.warm_start) == ("yesterday", "yesterday")
    # The day after goes on from today's run; the folders before it are no longer needed.
    shutil.rmtree(tmp_path / "yesterday")
    again = edorec("evaluate", "today", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    after = ["--config", str(path), "--extend", "today", "data.decay=0.5", "--run-dir", "after"]
    done = edorec("train", *after, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    refused = edorec("train", "--config", str(path), "--extend", "gone", cwd=tmp_path)
    assert refused.returncode == 2
    assert "gone/vocabularies holds no prepared vocabularies" in refused.stderr
