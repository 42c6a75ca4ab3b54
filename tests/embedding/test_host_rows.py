"""Rows in the host's memory: which they are, and tables that train and load as if they were one.

On the CPU both memories are the host's, and the kernels are those of a GPU under the interpreter.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edorec.checkpoint import load_model, save_model
from edorec.checkpoints.folder import Saved, complete_checkpoint, step_folder, write_part
from edorec.checkpoints.tables import SavedTables, load_tables
from edorec.embedding.admission import RowMap
from edorec.embedding.bands import Band, bucket_lookups, num_bytes
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.host_rows import bytes_of_rows, choose_host_rows
from edorec.embedding.snapshot import TableSnapshots
from edorec.errors import InputError
from tests.embedding.batches import jagged, table

ROWS, DIM = 9, 5
BANDS = {
    "bands": [Band(3, "fp32"), Band(4, "int8", "log8"), Band(2, "int4", "bf16")],
    "fp16": [Band(ROWS, "fp16")],
    "int2": [Band(ROWS, "int2")],
    "ternary": [Band(ROWS, "ternary:0.1", "log8")],
}
BATCHES = [
    {"a": [[0, 3, 8], [4, 4], []], "b": [[1], [0], [5, 1]]},
    {"a": [[7], [], [2, 6, 6, 5]], "b": [[3], [2, 2], [1]]},
]


def build(
    host_rows: range, *, bands: str = "bands", kernel: str = "cpu", seed: int = 0
) -> EdoEmbeddingBagCollection:
    """Table a has rows in the host's memory, b has none."""
    return EdoEmbeddingBagCollection(
        [
            table("a", ROWS, DIM, bands=BANDS[bands], host_rows=host_rows),
            table("b", 6, DIM, format="int8"),
        ],
        init_std=0.3,
        learning_rate=0.1,
        initial_accumulator=0.1,
        seed=seed,
        kernel=kernel,
    )


def train(tables: EdoEmbeddingBagCollection) -> list[torch.Tensor]:
    results = []
    for bags in BATCHES:
        pooled = tables(jagged(bags)).values()
        pooled.square().sum().backward()
        results.append(pooled.detach())
    return results


def rows(tables: EdoEmbeddingBagCollection) -> dict[str, torch.Tensor]:
    """All bytes by table and band, pieces put together."""
    memories = zip(tables.table_names, tables.tables.memories, strict=True)
    return {
        f"{name}.{number}": torch.cat([m.rows_RS for m in held if m.number == number])
        for name, held in memories
        for number in {m.number for m in held}
    }


def assert_same_rows(one: EdoEmbeddingBagCollection, other: EdoEmbeddingBagCollection) -> None:
    theirs = rows(other)
    for name, ours in rows(one).items():
        assert torch.equal(ours, theirs[name]), name


@pytest.mark.parametrize("kernel", ["triton", "cpu", "reference"])
@pytest.mark.parametrize("bands", BANDS)
@pytest.mark.parametrize("host_rows", [range(ROWS), range(2, 6), range(4, ROWS)], ids=str)
def test_a_table_in_two_memories_trains_as_one(host_rows: range, bands: str, kernel: str) -> None:
    if kernel == "triton":
        pytest.importorskip("triton")
    whole, split = (build(r, bands=bands, kernel=kernel) for r in (range(0), host_rows))
    assert split.bands() == whole.bands()
    assert split.table_bytes() == whole.table_bytes()
    for ours, theirs in zip(train(split), train(whole), strict=True):
        assert torch.equal(ours, theirs)
    assert_same_rows(split, whole)
    assert torch.equal(split.tables.weight("a"), whole.tables.weight("a"))


def test_what_crosses_the_bus_is_counted() -> None:
    pytest.importorskip("triton")
    assert build(range(0), kernel="triton").paging() is None
    tables = build(range(2, 6), kernel="triton")  # row 2 of fp32, rows 3, 4 and 5 of int8
    fp32, int8 = 4 * DIM, 4 + DIM
    held = {"device_bytes": 2 * (fp32 + 4) + (int8 + 1) + 2 * (4 + 3 + 2)}
    held["host_bytes"] = (fp32 + 4) + 3 * (int8 + 1)
    nothing = {"hit_rate": None, "prefetch_rate": None, "read_bytes": 0, "written_bytes": 0}
    assert tables.paging() == {**nothing, **held}
    train(tables)
    lookups, host_lookups = 10, 5  # of table a: rows 3, 4, 4, then 2, 5
    written = (fp32 + 4) + 3 * (int8 + 1)  # each row of a batch once, with its state
    assert tables.paging() == {
        "hit_rate": (lookups - host_lookups) / lookups,
        "prefetch_rate": 0.0,
        "read_bytes": fp32 + 4 * int8 + written,
        "written_bytes": written,
        **held,
    }


CUTS = [range(0), range(2, 6), range(4, ROWS), range(ROWS)]


@pytest.mark.parametrize("saved_cut", CUTS, ids=str)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_models_file_loads_whatever_the_cut(saved_cut: range, cut: range, tmp_path: Path) -> None:
    saved, loaded = build(saved_cut), build(cut, seed=1)
    train(saved)
    dense = torch.nn.Linear(2, 2)
    save_model(tmp_path / "best.pt", model=dense, tables=saved, step=3)
    load_model(tmp_path / "best.pt", model=dense, tables=loaded)
    assert_same_rows(loaded, saved)


@pytest.mark.parametrize("saved_cut", CUTS, ids=str)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_checkpoint_loads_whatever_the_cut(saved_cut: range, cut: range, tmp_path: Path) -> None:
    saved, loaded = build(saved_cut), build(cut, seed=1)
    train(saved)
    snapshots = TableSnapshots(saved)
    snapshots.begin(whole=True)
    folder = step_folder(tmp_path, 3)
    folder.with_name(f"{folder.name}.tmp").mkdir()
    part = write_part(folder, rank=0, bands=snapshots.bands, chunks=snapshots.chunks())
    complete_checkpoint(folder, parts=[part], state={}, content={"step": 3, "base": None})
    manifest: dict[str, Any] = {"base": None, "parts": [part["bands"]]}
    load_tables(SavedTables(Saved(folder, manifest)), loaded)
    assert_same_rows(loaded, saved)


def test_a_model_of_other_rows_is_refused_by_its_bands(tmp_path: Path) -> None:
    dense = torch.nn.Linear(2, 2)
    save_model(tmp_path / "best.pt", model=dense, tables=build(range(2, 6)), step=3)
    with pytest.raises(InputError, match=r"a\.band0_fp32_fp32 is uint8 \(3, 24\) there and absent"):
        load_model(tmp_path / "best.pt", model=dense, tables=build(range(2, 6), bands="fp16"))


@pytest.mark.parametrize("band", [0, 1])
def test_both_pieces_of_a_band_are_stored_smaller(band: int) -> None:
    whole, split = build(range(0)), build(range(2, 6))
    for tables in (whole, split):
        train(tables)
    freed = [tables.reencode("a", band, "int4") for tables in (whole, split)]
    assert freed[0] == freed[1] > 0
    assert split.bands() == whole.bands()
    assert_same_rows(split, whole)
    for ours, theirs in zip(train(split), train(whole), strict=True):
        assert torch.equal(ours, theirs)


def test_rows_of_another_format_are_taken_over_into_both_memories() -> None:
    source, whole, split = build(range(1, 5), bands="fp16"), build(range(0)), build(range(2, 6))
    train(source)
    for tables in (whole, split):
        tables.take_rows(source.tables_state())
    assert_same_rows(split, whole)


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=40),
    own=st.integers(0, 40),
    buckets=st.integers(1, 6),
    hot=st.integers(0, 20),
    load_factor=st.floats(0.01, 1.0),
)
@settings(max_examples=200, deadline=None)
def test_the_most_used_rows_that_fit_are_on_the_device(
    counts: list[int], own: int, buckets: int, hot: int, load_factor: float
) -> None:
    sorted_counts = np.array(sorted(counts, reverse=True), np.int64)
    own = min(own, len(counts))
    row_map = RowMap(own, buckets, rare_from=own, oov_rate=0.0)
    hot = min(hot, row_map.num_rows)
    bands = [Band(hot, "fp32"), Band(row_map.num_rows - hot, "int8")]
    storage: dict[str, Any] = {"dim": DIM, "optimizer": "sgd"}
    host_rows = choose_host_rows(
        bands, row_map=row_map, counts=sorted_counts, load_factor=load_factor, **storage
    )
    total = num_bytes(bands, **storage)
    budget = int(load_factor * total)
    on_device = total - bytes_of_rows(bands, host_rows, **storage)
    assert on_device <= budget
    if not host_rows:
        assert on_device == total
        return
    first = host_rows.start
    assert on_device + bytes_of_rows(bands, range(first, first + 1), **storage) > budget or (
        first == own
    ), "one more row would fit"
    bucket_bytes = bytes_of_rows(bands, range(own, row_map.num_rows), **storage)
    if host_rows.stop == own:  # buckets are on the device
        assert bucket_lookups(row_map, sorted_counts) >= sorted_counts[first]
    else:
        assert host_rows.stop == row_map.num_rows
        assert bucket_bytes > budget or bucket_lookups(row_map, sorted_counts) < sorted_counts[0]


def test_a_kernel_that_cannot_read_the_hosts_rows_refuses_them() -> None:
    with pytest.raises(ValueError, match="kernel reference reads no rows in the host's memory"):
        EdoEmbeddingBagCollection(
            [table("a", ROWS, DIM, host_rows=range(4, ROWS))],
            kernel="reference",
            device=torch.device("meta"),
        )
