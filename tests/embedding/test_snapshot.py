"""Snapshots hold the tables of one step, however training and copying interleave."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from edorec.embedding import snapshot
from edorec.embedding.bands import Band
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.fused import FusedEmbeddingBagCollection
from edorec.embedding.kernels.layout import PAGE_BYTES
from edorec.embedding.row_tables import EdoTableConfig
from edorec.embedding.snapshot import TableSnapshots

ROWS = 5000


def build() -> EdoEmbeddingBagCollection:
    """A table of two bands, a table of one row, and one whose rows are wider than a page."""
    bands = [Band(700, "fp16"), Band(ROWS - 700, "int8")]
    return EdoEmbeddingBagCollection(
        [
            EdoTableConfig(name="a", num_embeddings=ROWS, embedding_dim=8, bands=bands),
            EdoTableConfig(name="one", num_embeddings=1, embedding_dim=4, format="int4"),
            EdoTableConfig(name="wide", num_embeddings=9, embedding_dim=300),
        ],
        learning_rate=0.1,
    )


def step(tables: EdoEmbeddingBagCollection, ids: list[int]) -> None:
    values = torch.tensor([*ids, *(0 for _ in ids), *(i % 9 for i in ids)])
    lengths = torch.ones(3 * len(ids), dtype=torch.int32)
    tables(
        KeyedJaggedTensor(["a", "one", "wide"], values, lengths=lengths)
    ).values().sum().backward()


def memory(tables: EdoEmbeddingBagCollection) -> np.ndarray:
    """All pages, the last of each band filled with zeros."""
    parts = []
    for bands in tables.tables_state().values():
        for rows in bands.values():
            flat = rows.reshape(-1).numpy()
            parts.append(np.pad(flat, (0, -len(flat) % PAGE_BYTES)))
    return np.concatenate(parts).reshape(-1, PAGE_BYTES).copy()


def collect(snapshots: TableSnapshots) -> dict[int, np.ndarray]:
    pages: dict[int, np.ndarray] = {}
    for numbers, content in snapshots.chunks():
        for number, page in zip(numbers.tolist(), content, strict=True):
            assert number not in pages, "a page is saved once"
            pages[number] = page.copy()
    return pages


def apply(pages: dict[int, np.ndarray], target: np.ndarray) -> np.ndarray:
    for number, page in pages.items():
        target[number] = page
    return target


def test_an_increment_on_a_whole_snapshot_is_the_tables() -> None:
    tables = build()
    snapshots = TableSnapshots(tables)
    assert snapshots.changed_share == 1
    snapshots.begin(whole=True)
    saved = apply(collect(snapshots), np.zeros_like(memory(tables)))
    assert np.array_equal(saved, memory(tables))
    assert snapshots.changed_share == 0
    step(tables, [0, 699, 700, 4999])
    assert 0 < snapshots.changed_share < 0.2
    snapshots.begin(whole=False)
    changed = collect(snapshots)
    assert len(changed) == snapshots.changed.sum()
    assert np.array_equal(apply(changed, saved), memory(tables))
    snapshots.begin(whole=False)  # since the whole one, not since the last
    assert collect(snapshots).keys() == changed.keys()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=50), max_size=6),
    st.integers(1, 40),
    st.integers(1, 3),
)
def test_pages_are_those_of_the_moment_when_the_snapshot_began(
    batches: list[list[int]], buffer_pages: int, most_buffers: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "BUFFER_PAGES", buffer_pages)
        patch.setattr(snapshot, "LEAST_BUFFERS", most_buffers)
        tables = build()
        snapshots = TableSnapshots(tables)
        before = memory(tables)
        snapshots.begin(whole=True)
        pages: dict[int, np.ndarray] = {}
        thread = threading.Thread(target=lambda: pages.update(collect(snapshots)))
        for number, batch in enumerate(batches):
            if number == 1:
                thread.start()  # the first batch finds nothing copied, the others race
            if number or len(batch) < buffer_pages * most_buffers // 4:
                step(tables, batch)
        if not thread.ident:
            thread.start()
        thread.join(60)
        assert not thread.is_alive()
        assert np.array_equal(apply(pages, np.zeros_like(before)), before)


def test_training_goes_on_when_a_snapshot_is_given_up() -> None:
    tables = build()
    snapshots = TableSnapshots(tables)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "BUFFER_PAGES", 2)
        snapshots.begin(whole=True)
        ids = list(range(0, ROWS, 3))
        thread = threading.Thread(target=step, args=(tables, ids))  # needs more than all buffers
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        snapshots.end()
        thread.join(60)
        assert not thread.is_alive()
    snapshots.begin(whole=True)
    assert np.array_equal(apply(collect(snapshots), np.zeros_like(memory(tables))), memory(tables))


def test_nothing_is_called_before_updates_when_closed() -> None:
    tables = build()
    snapshots = TableSnapshots(tables)
    snapshots.close()
    snapshots.begin(whole=True)
    collect(snapshots)
    step(tables, [1, 2])
    assert snapshots.changed_share == 0


def test_tables_that_do_not_announce_updates_are_copied_when_it_begins() -> None:
    tables = FusedEmbeddingBagCollection(
        [EmbeddingBagConfig(name="a", num_embeddings=100, embedding_dim=4, feature_names=["a"])],
        pooling={},
        num_zero_rows={},
        optimizer="rowwise_adagrad",
        learning_rate=0.1,
        initial_accumulator=0.5,
        init_std=1.0,
        seed=0,
        device=torch.device("cpu"),
    )
    snapshots = TableSnapshots(tables)
    before = tables.table_weight("a").clone()
    snapshots.begin(whole=True)
    tables.table_weight("a").zero_()
    pages = collect(snapshots)
    content = np.concatenate([pages[number] for number in sorted(pages)])
    assert np.array_equal(content[: before.nbytes].view(np.float32), before.numpy().reshape(-1))
    assert snapshots.changed_share == 1


def test_a_feature_of_many_tables_finds_more_pages_than_it_has_values() -> None:
    names = [f"t{k}" for k in range(12)]
    tables = EdoEmbeddingBagCollection(
        [
            EdoTableConfig(name=n, num_embeddings=64, embedding_dim=254, feature_names=["f"])
            for n in names
        ]
    )
    snapshots = TableSnapshots(tables)
    before = memory(tables)
    snapshots.begin(whole=True)
    ids = torch.arange(64)
    features = KeyedJaggedTensor(["f"], ids, lengths=torch.ones(64, dtype=torch.int32))
    tables(features).values().sum().backward()
    assert np.array_equal(apply(collect(snapshots), np.zeros_like(before)), before)
    assert snapshots.changed_share == 1
