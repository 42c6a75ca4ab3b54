"""Whole runs on CUDA; the same on the CPU with the GPU's kernels under Triton's interpreter.

The interpreter is slow, so there the log is tiny. A GPU's dense arithmetic may differ in the last
bits from run to run, so only on the CPU are runs compared bit for bit.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from edorec import monitor as monitor_module
from edorec.config import RunConfig
from edorec.embedding import row_tables
from edorec.embedding.placement import PLACEMENTS
from edorec.evaluate import evaluate
from edorec.memory_use import MemoryUse
from edorec.serving.export import export
from edorec.serving.formats import Formats
from edorec.train import run
from tests.checkpoints.runs import figures, load_best
from tests.checkpoints.test_resume import interrupted_after
from tests.toy import toy_config, write_toy

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

BANDS = {
    "bands": [
        {"min_count": 4, "format": "int8"},
        {"format": "int2", "state": "log8"},
    ]
}
TOLERANCE = {"cpu": 0.0, "cuda": 1e-5}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """CUDA, or the CPU as if it were a GPU."""
    name: str = request.param
    if name == "cpu":
        if torch.cuda.is_available():
            pytest.skip("kernels are compiled for the GPU, and do not run on the CPU")
        monkeypatch.setattr(row_tables, "_default_kernel", lambda *_: "triton")
        monkeypatch.setitem(PLACEMENTS, "cpu", ("ram", "uvm"))
    return name


@pytest.fixture
def config(device: str, tmp_path: Path) -> RunConfig:
    return config_of(device, tmp_path, placement="uvm", uvm={"load_factor": 0.3})


def config_of(device: str, tmp_path: Path, **memory: Any) -> RunConfig:
    num_rows = {"cpu": (60, 12, 12), "cuda": (4000, 500, 500)}[device]
    folder = tmp_path / "toy"
    if not folder.exists():
        write_toy(folder, **dict(zip(("train", "valid", "test"), num_rows, strict=True)))
    return toy_config(
        folder,
        memory={**BANDS, **memory},
        train={"device": device, "batch_size": num_rows[0] // 6, "epochs": 1},
        checkpoint={"every_steps": 2, "every_minutes": None},
        embedding={"backend": "edorec", "dim": 8},
    )


def losses(run_dir: Path) -> list[float]:
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [loss for line in lines if "losses" in line for loss in line["losses"].values()]


def assert_alike(ours: Any, theirs: Any, device: str) -> None:
    """Figures of a report, equal or nearly so."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            assert_alike(value, theirs[key], device)
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, abs=TOLERANCE[device], rel=0)
    else:
        assert ours == theirs


def test_a_run_in_two_memories_is_the_run_in_one(
    device: str, config: RunConfig, tmp_path: Path
) -> None:
    split = run(config, run_dir=tmp_path / "split", verbosity=-1)
    whole = run(config_of(device, tmp_path), run_dir=tmp_path / "whole", verbosity=-1)
    assert_alike(split["tasks"], whole["tasks"], device)
    assert losses(tmp_path / "split") == pytest.approx(
        losses(tmp_path / "whole"), abs=TOLERANCE[device], rel=0
    )
    assert {table["placement"] for table in split["memory"]["tables"]} == {"uvm"}
    assert split["memory"]["total_bytes"] == whole["memory"]["total_bytes"]
    paging = split["memory"]["paging"]
    assert whole["memory"]["paging"] is None
    assert 0 < paging["hit_rate"] < 1
    assert paging["prefetch_rate"] > 0.5
    assert paging["read_bytes"] > paging["written_bytes"] > 0
    assert paging["device_bytes"] + paging["host_bytes"] == split["memory"]["total_bytes"]
    assert paging["device_bytes"] <= 0.3 * split["memory"]["total_bytes"]
    lines = (tmp_path / "split" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["paging"]["read_bytes"] > 0


def test_a_run_resumes_with_more_rows_on_the_device_and_is_exported(
    device: str, config: RunConfig, tmp_path: Path
) -> None:
    whole = run(config, run_dir=tmp_path / "whole", verbosity=-1)
    with interrupted_after(5):
        run(config, run_dir=tmp_path / "run", verbosity=-1)
    more = config_of(device, tmp_path, placement="uvm", uvm={"load_factor": 0.6})
    resumed = run(more, run_dir=tmp_path / "run", verbosity=-1, resume=True)
    assert resumed["resumed_from_step"] == 4
    assert_alike(figures(resumed)["tasks"], figures(whole)["tasks"], device)
    again = evaluate(tmp_path / "run", files=None, split="test", verbosity=-1)
    assert_alike(again["tasks"]["click"]["logloss"], whole["tasks"]["click"]["logloss"], device)
    export(tmp_path / "run", tmp_path / "model", formats=Formats(), verbosity=-1)
    assert (tmp_path / "model").is_dir()


def test_a_run_in_two_memories_is_made_smaller(
    device: str, config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses = iter([MemoryUse("device", 1000, 100), *[MemoryUse("device", 1_000_000, 900_000)] * 99])
    monkeypatch.setattr(monitor_module, "tightest_use", lambda *_, **__: next(uses))
    settings = {"interval": 0, "min_seconds": 0, "compress_below": 0.2, "smallest_format": "int4"}
    monitor = config.memory.monitor.model_validate(settings)
    memory = config.memory.model_copy(update={"monitor": monitor})
    run_dir = tmp_path / "run"
    report = run(config.model_copy(update={"memory": memory}), run_dir=run_dir, verbosity=-1)
    events = [event for event in report["events"] if event["kind"] == "compressed"]
    assert {(event["source"], event["target"]) for event in events} == {("int8", "int4")}
    assert report["memory"]["paging"]["host_bytes"] > 0
    best = load_best(run_dir, config_of("cpu", tmp_path, placement="ram"))
    formats = {band.format for bands in best.tables.bands().values() for band in bands}
    assert formats == {"int4", "int2"}
