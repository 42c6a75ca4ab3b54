"""Ids and dense values as people's files hold them, in two processes and in the model they train.

B22 (unseen ids), B23 (negative ids), B25 (dense values that are no numbers), B35 (single rows).
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import edorec
from edorec.serving.export import export
from edorec.serving.formats import parse_formats
from edorec.train import run
from tests.processes.commands import train
from tests.toy import toy_config, toy_rows, write_config

NASTY = [-3.0, -1.0, 0.0, math.nan, math.inf, None, 1e30]


def nasty_rows(num_rows: int, *, seed: int, new_ids: bool) -> pa.Table:
    """Toy rows, some with user -1, users never seen in training, and bad prices."""
    rows = toy_rows(num_rows, seed=seed)
    users = rows["user"].to_numpy().copy()
    users[::9] = -1
    if new_ids:
        users[1::9], users[2::9] = 10_000, 10_001
    price = rows["price"].to_pylist()
    price[:: len(NASTY)] = [NASTY[k % len(NASTY)] for k in range(len(price[:: len(NASTY)]))]
    rows = rows.set_column(rows.schema.get_field_index("user"), "user", pa.array(users))
    return rows.set_column(rows.schema.get_field_index("price"), "price", pa.array(price))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    for seed, (name, num_rows) in enumerate({"train": 1200, "valid": 200, "test": 200}.items()):
        rows = nasty_rows(num_rows, seed=seed, new_ids=name != "train")
        pq.write_table(rows, folder / f"{name}.parquet")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("transform", ["none", "log1p"])
@pytest.mark.parametrize("missing", [[], [-1]], ids=["an id", "missing"])
def test_b22_b23_b25_b35_two_processes_and_their_model_treat_bad_values_as_one_does(
    log: Path, tmp_path: Path, transform: str, missing: list[int]
) -> None:
    config = toy_config(
        log,
        features={
            "sparse": {"user": {"missing": missing}, "item": {}, "viewed": {"pooling": "mean"}},
            "dense": {"price": {"transform": transform}},
        },
        embedding={"sharding": "row_wise"},
    )
    whole = run(config, run_dir=tmp_path / "one", verbosity=-1)
    path = write_config(tmp_path / "my.yaml", config)
    done = train(path, tmp_path / "two", "--nproc", "2")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((tmp_path / "two" / "report.json").read_text())
    assert report["data"]["counts"] == whole["data"]["counts"]
    assert report["data"]["counts"]["unseen_ids"]["test"]["user"] > 0
    assert report["data"]["counts"]["bad_dense"]["train"]["price"] > 0
    for task, metrics in whole["tasks"].items():
        assert report["tasks"][task]["logloss"] == pytest.approx(metrics["logloss"], abs=1e-5)

    rows = nasty_rows(60, seed=9, new_ids=True)
    scores = {}
    for name, source, row_format in (
        ("one", "one", "fp32"),
        ("two", "two", "fp32"),
        ("int8", "two", "int8"),
        ("int4", "two", "int4"),
    ):
        out = tmp_path / f"model-{name}"
        export(
            tmp_path / source,
            out,
            formats=parse_formats([row_format]),
            max_auc_loss=1,
            verbosity=-1,
        )
        model = edorec.load(out)
        scores[name] = scores_of(model.predict(rows))
        assert np.isfinite(scores[name]).all()
        alone = scores_of(model.predict(rows.slice(1, 1)))
        np.testing.assert_allclose(alone, scores[name][1:2], atol=1e-6)
    for name, gap in (("two", 1e-5), ("int8", 0.01), ("int4", 0.1)):
        assert np.abs(scores[name] - scores["one"]).max() <= gap


def scores_of(table: pa.Table) -> np.ndarray:
    names = [name for name in table.column_names if name.startswith("score_")]
    return np.stack([table[name].to_numpy() for name in names], 1)
