"""Devices of several processes: on CUDA a GPU each, NCCL between them; what cannot be is refused.

Without GPUs their kernels run under Triton's interpreter, in two processes that gloo connects.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from edorec.config import RunConfig
from edorec.devices import backend_of, device_of_process
from edorec.embedding.build import _check_memory
from edorec.embedding.row_tables import EdoTableConfig
from edorec.embedding.sharded_tables import place_tables
from edorec.embedding.sharding import shapes_and_plan
from edorec.errors import ConfigError
from edorec.processes import Processes, _check_same_kind
from edorec.train import run
from tests.checkpoints.runs import logged
from tests.processes.commands import LIMIT_SECONDS, ROOT, finished, torchrun_command, train
from tests.toy import toy_config, write_config, write_toy


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch sees a machine with two."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)


def test_gloo_connects_cpus_and_nccl_gpus() -> None:
    assert backend_of(torch.device("cpu")) == "gloo"
    assert backend_of(torch.device("cuda", 1)) == "cpu:gloo,cuda:nccl"


@pytest.mark.usefixtures("two_gpus")
def test_each_process_has_a_gpu_of_its_own() -> None:
    devices = [device_of_process("auto", local_rank=rank, num_here=2) for rank in (0, 1)]
    assert devices == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert device_of_process("cpu", local_rank=2, num_here=3) == torch.device("cpu")


@pytest.mark.usefixtures("two_gpus")
def test_more_processes_than_gpus_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        device_of_process("cuda", local_rank=0, num_here=3)
    assert str(error.value) == (
        "train.device: 3 processes on this machine need a GPU each, and torch finds 2; start "
        "fewer processes, or set it to cpu"
    )


@pytest.mark.usefixtures("two_gpus")
def test_gpus_without_nccl_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(ConfigError, match="several processes on CUDA need NCCL"):
        device_of_process("cuda", local_rank=0, num_here=2)


def test_machines_with_and_without_gpus_are_refused() -> None:
    store = dist.HashStore()
    _check_same_kind(torch.device("cuda", 0), store)
    _check_same_kind(torch.device("cuda", 1), store)
    with pytest.raises(ConfigError, match="is cpu on this machine and cuda on another"):
        _check_same_kind(torch.device("cpu"), store)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_no_gpu_is_told_once(tmp_path: Path) -> None:
    log = write_toy(tmp_path / "log", train=100, valid=50, test=0)
    path = write_config(tmp_path / "my.yaml", toy_config(log, train={"device": "cuda"}))
    done = train(path, tmp_path / "run", "--nproc", "2")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.count("train.device is cuda, but torch finds no CUDA device") == 1


@pytest.mark.parametrize("sharding", ["table_wise", "row_wise"])
def test_torchrec_is_told_the_device_of_each_process(sharding: str) -> None:
    """Two machines with two GPUs each."""
    configs = [EdoTableConfig(name=name, num_embeddings=640, embedding_dim=8) for name in "abcd"]
    placements = place_tables(
        configs,
        dict.fromkeys("abcd", 1000),
        bag_sizes=dict.fromkeys("abcd", 1.0),
        sharding=sharding,
        world_size=4,
    )
    _, plan = shapes_and_plan(
        configs, placements, world_size=4, num_here=2, device_type="cuda", build=lambda _: None
    )
    found = {
        str(shard.placement) for table in plan.values() for shard in table.sharding_spec.shards
    }
    assert found == {"rank:0/cuda:0", "rank:1/cuda:1", "rank:2/cuda:0", "rank:3/cuda:1"}


def test_a_machine_needs_room_for_its_own_part_of_the_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = Processes(rank=3, world_size=4, local_rank=1, num_here=2)
    assert processes.ranks_here == range(2, 4)
    config = EdoTableConfig(name="a", num_embeddings=640, embedding_dim=8)
    placements = place_tables(
        [config], {"a": 1}, bag_sizes={"a": 1.0}, sharding="row_wise", world_size=4
    )
    assert placements["a"].share(processes.ranks_here) == 0.5
    monkeypatch.setattr("edorec.embedding.build.free_memory_bytes", lambda: 640 * 36 // 2)
    settings: dict[str, Any] = {
        "placements": {"a": "ram"},
        "host_rows": {},
        "dims": {"a": 8},
        "optimizer": "rowwise_adagrad",
        "device": torch.device("cpu"),
    }
    _check_memory({"a": config.bands}, device_share={"a": 0.5}, **settings)
    with pytest.raises(ConfigError, match="the embedding tables take"):
        _check_memory({"a": config.bands}, **settings)
    with pytest.raises(ConfigError, match=r"or take more machines$"):
        _check_memory({"a": config.bands}, device_share={"a": 0.75}, **settings)


def losses(run_dir: Path) -> list[float]:
    return [line["loss"] for line in logged(run_dir) if "loss" in line]


def config_of(log: Path, *, sharding: str, **train: Any) -> RunConfig:
    return toy_config(
        log,
        memory={
            "placement": "uvm",
            "uvm": {"load_factor": 0.3},
            "bands": [{"min_count": 4, "format": "fp32"}, {"format": "int8"}],
        },
        embedding={"backend": "edorec", "sharding": sharding, "dim": 8},
        train={"epochs": 1, **train},
        checkpoint={"every_minutes": None},
    )


def assert_alike(report: dict[str, Any], whole: dict[str, Any], tolerance: float) -> None:
    """Two reports of runs with rows in two memories."""
    assert report["memory"]["total_bytes"] == whole["memory"]["total_bytes"]
    paging, expected = report["memory"]["paging"], whole["memory"]["paging"]
    assert expected["host_bytes"] > 0
    for key in ("device_bytes", "host_bytes", "hit_rate"):
        assert paging[key] == pytest.approx(expected[key]), key
    for task, metrics in whole["tasks"].items():
        assert report["tasks"][task]["logloss"] == pytest.approx(metrics["logloss"], abs=tolerance)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled for the GPU")
@pytest.mark.parametrize(
    "sharding", ["row_wise", pytest.param("table_wise", marks=pytest.mark.slow)]
)
def test_gpu_kernels_train_in_two_processes_what_they_train_in_one(
    tmp_path: Path, sharding: str
) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: pip install triton")
    log = write_toy(tmp_path / "log", train=60, valid=12, test=12)
    path = write_config(tmp_path / "my.yaml", config_of(log, sharding=sharding, batch_size=20))
    module = ["-m", "tests.processes.as_gpu", "--config", str(path), "--run-dir"]
    starters = {
        "one": [sys.executable],
        "two": [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--standalone", "--nproc-per-node", "2"),
        ],
    }
    for name, starter in starters.items():
        done = subprocess.run(
            [*starter, *module, str(tmp_path / name)],
            cwd=ROOT,
            env={**os.environ, "TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        assert done.returncode == 0, done.stderr
    whole, report = (
        json.loads((tmp_path / name / "report.json").read_text()) for name in ("one", "two")
    )
    assert len(report["processes"]) == 2
    assert_alike(report, whole, tolerance=2e-3)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=2e-3)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("sharding", ["table_wise", "row_wise"])
@pytest.mark.parametrize("row_format", ["fp32", "int8"])
def test_two_gpus_train_what_one_trains(tmp_path: Path, row_format: str, sharding: str) -> None:
    log = write_toy(tmp_path / "log")
    config = toy_config(
        log,
        memory={"format": row_format},
        embedding={"backend": "edorec", "sharding": sharding, "dim": 8},
        train={"device": "cuda", "epochs": 1},
        checkpoint={"every_steps": 5, "every_minutes": None},
    )
    whole = run(config, run_dir=tmp_path / "one", verbosity=-1)
    done = finished(
        torchrun_command(2, write_config(tmp_path / "my.yaml", config), tmp_path / "two")
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "two" / "report.json").read_text())
    assert report["device"]["type"] == "cuda"
    tolerance = 1e-4 if row_format == "fp32" else 2e-3
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=tolerance)
    for task, metrics in whole["tasks"].items():
        assert report["tasks"][task]["auc"] == pytest.approx(metrics["auc"], abs=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_with_rows_in_the_hosts_memory(tmp_path: Path) -> None:
    config = config_of(write_toy(tmp_path / "log"), sharding="row_wise", device="cuda")
    whole = run(config, run_dir=tmp_path / "one", verbosity=-1)
    done = finished(
        torchrun_command(2, write_config(tmp_path / "my.yaml", config), tmp_path / "two")
    )
    assert done.returncode == 0, done.stderr
    assert_alike(json.loads((tmp_path / "two" / "report.json").read_text()), whole, 2e-3)
