"""The memory monitor: what it sees, when it makes tables smaller, and runs that go through it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edorec import monitor as monitor_module
from edorec.config import RunConfig
from edorec.embedding.admission import RowMap
from edorec.embedding.bands import Band
from edorec.embedding.build import EmbeddingTables
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.formats import FORMATS
from edorec.embedding.tables import MonitorConfig
from edorec.errors import InputError
from edorec.evaluate import evaluate
from edorec.memory_use import MemoryUse
from edorec.monitor import MemoryMonitor
from edorec.train import run
from tests.checkpoints.runs import assert_same_model, load_best
from tests.embedding.batches import jagged, table
from tests.toy import toy_config, write_toy

ROOT = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")
MB = 1 << 20


class Machine:
    """Memory that the tables and something else take."""

    def __init__(self, total: int, others: int) -> None:
        self.total, self.others = total, others
        self.tables: EmbeddingTables | None = None

    def use(self, _device: torch.device, *, limit: int | None) -> MemoryUse:
        sizes = self.tables.table_bytes().values() if self.tables else ()
        return MemoryUse("machine", limit or self.total, self.others + sum(map(sum, sizes)))


def collection(bands: dict[str, list[Band]], dim: int = 16) -> EdoEmbeddingBagCollection:
    tables = [
        table(name, sum(band.num_rows for band in parts), dim, bands=parts)
        for name, parts in bands.items()
    ]
    return EdoEmbeddingBagCollection(tables, init_std=0.5, initial_accumulator=0.1)


@pytest.mark.parametrize(
    ("source", "target"), [("fp32", "fp16"), ("fp32", "int8"), ("fp16", "int8"), ("int8", "int2")]
)
def test_rows_are_stored_smaller_in_place(source: str, target: str) -> None:
    tables = collection({"a": [Band(10_000, source), Band(10, "int8")], "b": [Band(50, "fp32")]})
    tables(jagged({"a": [[3, 9999]], "b": [[1]]})).values().sum().backward()
    (memory, last), dim = tables.tables.memories[0], 16
    values = tables.tables.weight("a").clone()
    states = memory.rows_RS[:, memory.row_bytes :].clone()
    others = last.rows_RS.clone()
    address = memory.rows_RS.data_ptr()
    size = sum(tables.table_bytes()["a"])
    freed = tables.reencode("a", 0, target)
    row_bytes = FORMATS[target].row_bytes(dim)
    assert freed == 10_000 * (FORMATS[source].row_bytes(dim) - row_bytes)
    assert sum(tables.table_bytes()["a"]) == size - freed
    assert memory.rows_RS.data_ptr() == address
    expected = FORMATS[target].encode(values[:10_000], torch.tensor(0.5))
    assert torch.equal(memory.rows_RS[:, :row_bytes], expected)
    assert torch.equal(memory.rows_RS[:, row_bytes:], states)
    assert torch.equal(last.rows_RS, others)
    assert [band.format for band in tables.bands()["a"]] == [target, "int8"]
    with torch.no_grad():  # the kernel reads what the plain decoder reads
        pooled = tables(jagged({"a": [[5], [10_005]], "b": [[1], [1]]})).values()
    assert torch.allclose(pooled[:, :dim], tables.tables.weight("a")[[5, 10_005]])
    tables(jagged({"a": [[5, 10_005]], "b": [[1]]})).values().sum().backward()
    assert not torch.equal(tables.tables.weight("a")[5], pooled[0, :dim])


def test_a_format_that_is_no_smaller_is_refused() -> None:
    tables = collection({"a": [Band(10, "int8")]})
    with pytest.raises(ValueError, match="a row of fp16 is no smaller than one of int8"):
        tables.reencode("a", 0, "fp16")


SCRIPT = """\
from edorec.embedding.bands import Band
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.row_tables import EdoTableConfig
from edorec.memory_use import peak_rss_bytes, rss_bytes

def build(rows):
    config = EdoTableConfig(num_embeddings=rows, embedding_dim=16, name="t", format="fp32")
    return EdoEmbeddingBagCollection([config])

build(10_000).reencode("t", 0, "fp16")  # loads what it needs
tables = build(1_000_000)
for name in ("fp16", "int8"):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = rss_bytes()
    freed = tables.reencode("t", 0, name)
    print(freed, before - rss_bytes(), peak_rss_bytes() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc")
def test_the_memory_is_the_systems_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=ROOT, check=True
    )
    for line, wanted in zip(done.stdout.splitlines(), (32_000_000, 12_000_000), strict=True):
        freed, fallen, peak = map(int, line.split())
        assert freed == wanted
        assert abs(fallen - freed) < 4 * MB, "seen in the process's memory"
        assert peak < 8 * MB, "no second copy"


def monitor_of(
    tables: EmbeddingTables, counts: dict[str, list[int]], said: list[str], **settings: Any
) -> tuple[MemoryMonitor, list[float]]:
    now = [0.0]
    maps = {name: RowMap(len(c), 1, rare_from=len(c), oov_rate=0.0) for name, c in counts.items()}
    monitor = MemoryMonitor(
        MonitorConfig.model_validate({"interval": 10, "min_seconds": 60, **settings}),
        tables,
        counts={name: np.array(c, np.int64) for name, c in counts.items()},
        row_maps=maps,
        dims=dict.fromkeys(counts, 16),
        device=CPU,
        say=said.append,
        clock=lambda: now[0],
    )
    return monitor, now


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(total=1_000_000, others=0)
    monkeypatch.setattr(monitor_module, "tightest_use", machine.use)
    return machine


def test_the_least_loss_for_a_byte_first_and_no_thrashing(machine: Machine) -> None:
    tables = collection({"hot": [Band(1001, "fp32")], "cold": [Band(1001, "fp32")]})
    machine.tables = tables
    machine.others = 1_000_000 - 2 * 1001 * 68 - 190_000  # 19 % free
    said: list[str] = []
    counts = {"hot": [500] * 1000, "cold": [2] * 1000}
    monitor, now = monitor_of(tables, counts, said, compress_below=0.2, hysteresis=0.02)
    assert not monitor.is_short(1), "it is not time to look"
    now[0] = 11
    assert monitor.is_short(2)
    monitor.compress(2)
    # 30,000 bytes are wanted: the cold table from fp32 to fp16 gives 32,032.
    moves = [(e["table"], e["source"], e["target"], e["bytes"]) for e in monitor.events]
    assert moves == [("cold", "fp32", "fp16", 32_032)]
    assert said == [
        "step 2: 190.0 KB free of the machine: table cold, band 1, goes from fp32 to fp16, which "
        "frees 32.0 KB"
    ]
    now[0] = 22
    assert not monitor.is_short(3), "enough is free"
    machine.others += 100_000
    now[0] = 33
    assert not monitor.is_short(4), "less than min_seconds after the last change"
    now[0] = 80
    assert monitor.is_short(5)
    monitor.compress(5)
    moves = [(e["table"], e["source"], e["target"]) for e in monitor.events[1:]]
    assert moves == [("cold", "fp16", "int8"), ("hot", "fp32", "fp16"), ("hot", "fp16", "int8")]
    now[0] = 200
    assert not monitor.is_short(6), "nothing is left"
    assert not monitor.must_stop
    now[0] = 300
    assert not monitor.is_short(7)
    assert [event["kind"] for event in monitor.events[4:]] == ["memory_short"], "it says so once"
    machine.others += 150_000
    now[0] = 400
    assert not monitor.is_short(8)
    assert monitor.must_stop


def test_without_compress_below_it_only_watches(machine: Machine) -> None:
    tables = collection({"a": [Band(1001, "fp32")]})
    machine.tables, machine.others = tables, 999_000
    monitor, now = monitor_of(tables, {"a": [3] * 1000}, [])
    now[0] = 100
    assert not monitor.is_short(1)
    assert not monitor.must_stop
    assert monitor.summary() == {"bound": "machine", "used_bytes": 1_067_068, "free_bytes": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy"))


LIVE = {"interval": 0, "min_seconds": 0, "compress_below": 0.2, "hysteresis": 0.05}


def pressed(
    machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch, **monitor: Any
) -> RunConfig:
    """A run for which the machine is a little too small."""
    original = MemoryMonitor.__init__

    def remember(self: MemoryMonitor, settings: Any, tables: EmbeddingTables, **kw: Any) -> None:
        machine.tables = tables
        original(self, settings, tables, **kw)

    monkeypatch.setattr(MemoryMonitor, "__init__", remember)
    return toy_config(
        folder,
        embedding={"dim": 16},
        memory={"monitor": {**LIVE, **monitor}},
        checkpoint={"every_steps": 5, "keep": 10},
    )


def test_a_run_goes_on_smaller_and_resumes(
    machine: Machine, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = toy_config(folder, embedding={"dim": 16})
    whole = run(plain, run_dir=tmp_path / "plain", verbosity=-1)
    size = whole["memory"]["total_bytes"]
    config = pressed(machine, folder, monkeypatch)
    machine.total = 4 * size
    machine.others = int(0.78 * machine.total) - size  # 22 % free at first

    seen: list[int] = []
    original = MemoryMonitor.is_short

    def more_and_more(self: MemoryMonitor, step: int) -> bool:
        if step == 8:
            machine.others += int(0.05 * machine.total)  # then 17 %: wanted are 25
        if step == 16:
            machine.others += int(0.06 * machine.total)
        seen.append(step)
        return original(self, step)

    monkeypatch.setattr(MemoryMonitor, "is_short", more_and_more)
    report = run(config, run_dir=tmp_path / "run", verbosity=-1)
    events = [event for event in report["events"] if event["kind"] == "compressed"]
    steps = sorted({event["step"] for event in events})
    assert steps == [8, 16], "no thrashing"
    assert {(e["source"], e["target"]) for e in events} == {("fp32", "fp16"), ("fp16", "int8")}
    assert sum(event["bytes"] for event in events) == size - report["memory"]["total_bytes"]
    for task, metrics in report["tasks"].items():
        assert abs(metrics["auc"] - whole["tasks"][task]["auc"]) < 0.002, task
    again = evaluate(tmp_path / "run", files=None, split="test", verbosity=-1)
    for task, metrics in report["tasks"].items():
        assert again["tasks"][task]["logloss"] == metrics["logloss"]
    assert (tmp_path / "run" / "memory_over_steps.png").exists()
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert set(line["memory"]) == {"bound", "used_bytes", "free_bytes"}

    # A checkpoint between the two changes has the formats of its step, and goes on from there.
    copy = shutil.copytree(tmp_path / "run", tmp_path / "again")
    for path in (copy / "checkpoints").glob("step-*"):
        manifest = json.loads((path / "manifest.json").read_text())
        if manifest["step"] > 15:
            shutil.rmtree(path)
    machine.others -= int(0.06 * machine.total)
    resumed = run(config, run_dir=copy, verbosity=-1, resume=True)
    assert resumed["resumed_from_step"] in (10, 15)
    assert resumed["tasks"] == report["tasks"]
    assert resumed["events"][0] == report["events"][0]
    assert_same_model(load_best(copy, config), load_best(tmp_path / "run", config))


def test_a_run_that_cannot_shrink_stops_with_a_checkpoint(
    machine: Machine, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pressed(machine, folder, monkeypatch, smallest_format="fp32")
    machine.others = 990_000
    with pytest.raises(InputError) as caught:
        run(config, run_dir=tmp_path / "run", verbosity=-1)
    (sentence,) = str(caught.value).splitlines()
    assert "memory runs out: " in sentence
    assert "the run stopped behind step 1." in sentence
    assert sentence.endswith("and go on with --resume")
    assert (tmp_path / "run" / "checkpoints" / "step-000000001" / "manifest.json").exists()
    machine.others = 0
    report = run(config, run_dir=tmp_path / "run", verbosity=-1, resume=True)
    assert report["resumed_from_step"] == 1
    assert [event["kind"] for event in report["events"]] == ["memory_short"]
