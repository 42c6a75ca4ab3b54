"""The configurations of public logs reach their AUC; EDOREC_DATA names the folder of the logs."""

import os
from pathlib import Path
from typing import Any

import pytest

from edorec.config import load_config
from edorec.train import run

pytestmark = pytest.mark.skipif(
    "EDOREC_DATA" not in os.environ,
    reason="EDOREC_DATA, the folder of real logs, is not set",
)


def train(name: str, tmp_path: Path) -> dict[str, Any]:
    cache = f"data.cache={tmp_path / 'cache'}"
    return run(load_config(name, [cache]).config, run_dir=tmp_path / "run", verbosity=-1)["tasks"]


def test_kuairand(tmp_path: Path) -> None:
    tasks = train("kuairand", tmp_path)
    assert tasks["click"]["auc"] >= 0.738
    assert tasks["long_view"]["auc"] >= 0.735
    assert tasks["like"]["auc"] >= 0.80
    assert tasks["click"]["gauc"] >= 0.60


def test_census(tmp_path: Path) -> None:
    tasks = train("census", tmp_path)
    assert tasks["income_50k"]["auc"] >= 0.950
    assert tasks["never_married"]["auc"] >= 0.994
