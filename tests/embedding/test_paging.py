"""Tables on disk: the same bytes as in memory, and no more of them in memory than the limit."""

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from edorec.embedding.bands import Band
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.paging import DiskSettings
from tests.embedding.batches import all_bytes, jagged, table

ROOT = Path(__file__).resolve().parents[2]
MB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")


def disk(folder: Path, limit: int | None = None, **changes: Any) -> DiskSettings:
    return DiskSettings(
        folder, **{"page_rows": 64, "resident_bytes": limit, "keep_cached": True} | changes
    )


def collection(
    sizes: dict[str, int],
    settings: DiskSettings | None,
    *,
    bands: list[Band] | None = None,
    **kw: Any,
) -> EdoEmbeddingBagCollection:
    tables = [
        table(name, size, 16, bands=bands or [], on_disk=settings is not None)
        for name, size in sizes.items()
    ]
    return EdoEmbeddingBagCollection(tables, init_std=0.5, disk=settings, **kw)


def batch(sizes: dict[str, int], seed: int, bags: int = 50) -> KeyedJaggedTensor:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (len(sizes), bags), generator=generator, dtype=torch.int32)
    values = [
        torch.randint(0, size, (int(lengths[k].sum()),), generator=generator)
        for k, size in enumerate(sizes.values())
    ]
    return KeyedJaggedTensor(list(sizes), torch.cat(values), lengths=lengths.reshape(-1))


def step(tables: EdoEmbeddingBagCollection, features: KeyedJaggedTensor) -> torch.Tensor:
    pooled = tables(features).values()
    pooled.square().sum().backward()
    return pooled.detach()


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam"])
@pytest.mark.parametrize("keep_cached", [True, False])
@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_a_table_on_disk_trains_as_one_in_memory(
    optimizer: str, keep_cached: bool, kernel: str, tmp_path: Path
) -> None:
    sizes = {"a": 3000, "b": 500}
    limit = sum(sizes.values()) * 80 // 10
    arguments: dict[str, Any] = {"optimizer": optimizer, "kernel": kernel}
    ram = collection(sizes, None, **arguments)
    paged = collection(sizes, disk(tmp_path, limit, keep_cached=keep_cached), **arguments)
    for seed in range(8):
        if seed % 3:  # some batches are fetched ahead, some are not
            paged.prefetch(batch(sizes, seed))
        assert torch.equal(step(ram, batch(sizes, seed)), step(paged, batch(sizes, seed)))
    with torch.no_grad():
        assert torch.equal(ram(batch(sizes, 99)).values(), paged(batch(sizes, 99)).values())
    for key, rows in all_bytes(ram).items():
        assert torch.equal(rows, all_bytes(paged)[key]), key


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.integers(0, 400), min_size=1, max_size=4),
    formats=st.permutations(["fp32", "fp16", "int8", "int4", "int2", "ternary:0.2"]),
    page_rows=st.sampled_from([1, 64, 1000]),
    limit=st.sampled_from([None, PAGE, 20 * PAGE]),
)
def test_bands_of_any_size_and_format(
    rows: list[int], formats: list[str], page_rows: int, limit: int | None, tmp_path_factory: Any
) -> None:
    bands = [Band(count, name) for count, name in zip(rows, formats, strict=False)]
    bands.append(Band(1, "int8", "log8"))
    sizes = {"a": sum(rows) + 1}
    folder = tmp_path_factory.getbasetemp()
    ram = collection(sizes, None, bands=bands)
    paged = collection(sizes, disk(folder, limit, page_rows=page_rows), bands=bands)
    for seed in range(3):
        paged.prefetch(batch(sizes, seed + 1))
        assert torch.equal(step(ram, batch(sizes, seed)), step(paged, batch(sizes, seed)))
    for key, live in all_bytes(ram).items():
        assert torch.equal(live, all_bytes(paged)[key]), key


def test_hits_and_bytes_are_counted(tmp_path: Path) -> None:
    # A row and its state take 68 bytes: 64 of them are a page of 4096 and a bit more, so rows 60
    # and 120 lie on two pages each.
    paged = collection({"a": 10_000}, disk(tmp_path, page_rows=64))
    size = 64 * 68 // PAGE * PAGE
    first, second = size // 68, 2 * size // 68  # these rows lie on two pages each

    def use(*rows: int) -> dict[str, Any]:
        with torch.no_grad():
            paged(jagged({"a": [rows]}))
        figures = paged.paging()
        assert figures is not None
        return figures

    assert paged.paging() is not None
    assert paged.paging()["hit_rate"] is None  # type: ignore[index]
    figures = use(0, 1, 1, 2)
    assert (figures["hit_rate"], figures["read_bytes"]) == (0, size)
    figures = use(3, first)  # the page that is there, and one more
    assert (figures["hit_rate"], figures["read_bytes"]) == (1 / 3, 2 * size)
    figures = use(second)
    assert (figures["hit_rate"], figures["read_bytes"]) == (2 / 5, 3 * size)
    assert figures["resident_bytes"] == figures["peak_resident_bytes"] == 3 * size
    assert figures["written_bytes"] == 0


def test_the_pages_that_are_used_least_leave(tmp_path: Path) -> None:
    size = 64 * 68 // PAGE * PAGE
    paged = collection({"a": 10_000}, disk(tmp_path, 4 * size))
    rows = [k * size // 68 + 1 for k in range(6)]  # of different pages
    for row in rows[:4]:
        step(paged, jagged({"a": [[row]]}))
    step(paged, jagged({"a": [[rows[0]]]}))  # page 0 is used twice
    before = paged.paging()
    step(paged, jagged({"a": [[rows[4]]]}))
    after = paged.paging()
    assert before is not None
    assert after is not None
    assert after["resident_bytes"] <= 4 * size
    assert after["written_bytes"] - before["written_bytes"] >= size
    with torch.no_grad():
        paged(jagged({"a": [[rows[0]]]}))  # it has stayed
        assert paged.paging()["read_bytes"] == after["read_bytes"]  # type: ignore[index]
        paged(jagged({"a": [[rows[1]]]}))  # it has not
        assert paged.paging()["read_bytes"] == after["read_bytes"] + size  # type: ignore[index]


def test_the_next_batch_is_fetched_in_the_background(tmp_path: Path) -> None:
    sizes = {"a": 5000}
    paged = collection(sizes, disk(tmp_path))
    paged.prefetch(batch(sizes, 1))
    deadline = time.monotonic() + 30
    while paged.paging()["read_bytes"] == 0:  # type: ignore[index]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    step(paged, batch(sizes, 1))
    assert paged.paging()["hit_rate"] == 1  # type: ignore[index]


def test_values_that_are_no_rows_are_refused_as_in_memory(tmp_path: Path) -> None:
    paged = collection({"a": 10}, disk(tmp_path))
    for value in (10, -1):
        with pytest.raises(IndexError, match=f"feature a: {value} is not a row of table a"):
            paged(jagged({"a": [[value]]}))


def test_the_thread_goes_with_the_tables(tmp_path: Path) -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "edorec-pager"]

    gc.collect()
    before = len(threads())
    paged = collection({"a": 100}, disk(tmp_path))
    assert len(threads()) == before + 1
    del paged
    gc.collect()
    deadline = time.monotonic() + 30
    while len(threads()) > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Tables of four times the limit: built, trained, saved and loaded, while another thread samples the
# resident pages of files without a name.
SCRIPT = """\
import sys, threading, time
from pathlib import Path

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from edorec.checkpoint import load_model, save_model
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.row_tables import EdoTableConfig
from edorec.embedding.paging import DiskSettings

folder, limit, keep = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "keep"
torch.set_num_threads(1)


def build(rows):
    settings = DiskSettings(folder, page_rows=64, resident_bytes=limit, keep_cached=keep)
    config = EdoTableConfig(num_embeddings=rows, embedding_dim=16, name="t", on_disk=True)
    return EdoEmbeddingBagCollection([config], disk=settings)


def batch(rows, seed):
    ids = torch.randint(0, rows, (1000,), generator=torch.Generator().manual_seed(seed))
    return KeyedJaggedTensor(["t"], ids, lengths=torch.ones(1000, dtype=torch.int32))


def steps(tables, rows):
    for seed in range(30):
        tables.prefetch(batch(rows, seed + 1))
        tables(batch(rows, seed)).values().square().sum().backward()


model = torch.nn.Linear(1, 1)
small = build(1000)
steps(small, 1000)  # loads and compiles
save_model(folder / "best.pt", model=model, tables=small, step=1)
load_model(folder / "best.pt", model=model, tables=small)
del small

samples, done = [], threading.Event()


def resident():
    total, is_table = 0, False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if not line[0].isupper():  # the head of a map
                is_table = line.endswith("(deleted)\\n")
            elif is_table and line.startswith("Rss:"):
                total += int(line.split()[1]) * 1024
    return total


def sample():
    while not done.wait(0.003):
        samples.append(resident())


thread = threading.Thread(target=sample)
thread.start()
rows = 4 * limit // 68
tables = build(rows)
print("built", max(samples))
save_model(folder / "best.pt", model=model, tables=tables, step=1)
load_model(folder / "best.pt", model=model, tables=tables)
time.sleep(0.2)
samples.clear()
steps(tables, rows)
time.sleep(0.05)
done.set()
thread.join()
print("trained", max(samples))
print(tables.paging()["peak_resident_bytes"])
"""


@pytest.mark.parametrize("kept", ["keep", "drop"])
def test_tables_of_four_times_the_limit(kept: str, tmp_path: Path) -> None:
    limit = 32 * MB
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(limit), kept]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    built, trained, peak = (int(line.split()[-1]) for line in done.stdout.splitlines())
    # What walks through a whole table gets further before the pager's thread looks again.
    assert 0.1 * limit < built < 2 * limit, done.stdout
    assert 0.5 * limit < trained < 1.5 * limit, done.stdout
    assert peak <= limit
