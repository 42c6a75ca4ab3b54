"""One small run, trained once, that the tests of serving export."""

from pathlib import Path

import pytest

from edorec.serving.export import export
from edorec.serving.formats import Formats
from edorec.train import run
from tests.toy import toy_config, write_toy

BANDS = {
    "bands": [
        {"min_count": 30, "format": "int8"},
        {"min_count": 3, "format": "int4"},
        {"format": "ternary", "state": "log8"},
    ]
}


@pytest.fixture(scope="session")
def log(tmp_path_factory) -> Path:
    """Folder of the toy log."""
    return write_toy(tmp_path_factory.mktemp("log"))


@pytest.fixture(scope="session")
def trained(log, tmp_path_factory) -> Path:
    """A run with three bands, admission, buckets and rows of one task."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    config = toy_config(
        log,
        memory=BANDS,
        vocabularies={
            "item": {
                "min_count": 2,
                "buckets": 5,
                "task_specific": {"buy": {"rows": 12, "dim": 3}},
            },
        },
    )
    run(config, run_dir=folder, verbosity=-1)
    return folder


@pytest.fixture(scope="session")
def trained_int8(log, tmp_path_factory) -> Path:
    """A run with INT8 rows of dim 16."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    config = toy_config(log, memory={"format": "int8"}, embedding={"dim": 16})
    run(config, run_dir=folder, verbosity=-1)
    return folder


@pytest.fixture(scope="session")
def model(trained, tmp_path_factory) -> Path:
    """The run of bands, exported as trained."""
    folder = tmp_path_factory.mktemp("model") / "model"
    export(trained, folder, formats=Formats(), verbosity=-1)
    return folder
