"""Tables of a run: their bands, what is refused, and which features get which rows."""

import tempfile
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edorec.config import RunConfig
from edorec.data.batch import Batch
from edorec.data.schema import SparseFeature
from edorec.data.vocabulary import Vocabulary
from edorec.embedding import build as build_module
from edorec.embedding.accounting import TableBytes, memory_report
from edorec.embedding.admission import RowMap
from edorec.embedding.bands import Band, num_bytes, plan_bands
from edorec.embedding.build import EmbeddingTables, build_tables, report_bytes
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.tables import EmbeddingConfig, MemoryConfig
from edorec.errors import ConfigError
from edorec.recommender import build_recommender
from tests.embedding.batches import by_hand, jagged

CPU = torch.device("cpu")
COUNTS = np.array([90, 50, 30, 9, 9, 5, 2, 1, 1], np.int64)


def row_map(own: int, buckets: int = 1) -> RowMap:
    return RowMap(own, buckets, rare_from=own, oov_rate=0.0)


def bands_of(*bands: tuple[int, str, str]) -> MemoryConfig:
    return MemoryConfig.model_validate(
        {"bands": [{"min_count": c, "format": f, "state": s} for c, f, s in bands]}
    )


def test_a_table_without_bands_is_one() -> None:
    memory = MemoryConfig(format="int8", state="bf16")
    assert plan_bands(memory.all_bands(), row_map=row_map(9, 4), counts=COUNTS) == [
        Band(13, "int8", "bf16")
    ]


def test_bands_are_cut_by_count_and_buckets_are_like_an_id_as_frequent() -> None:
    memory = bands_of((30, "fp32", "fp32"), (9, "int8", "bf16"), (0, "int4", "log8"))
    assert plan_bands(memory.all_bands(), row_map=row_map(9, 2), counts=COUNTS) == [
        Band(3, "fp32"),
        Band(2, "int8", "bf16"),
        Band(4, "int4", "log8"),
        Band(2, "int4", "log8"),  # no training id takes a bucket
    ]
    # Fewer ids have a row of their own than the first band would take.
    assert plan_bands(memory.all_bands(), row_map=row_map(2, 2), counts=COUNTS) == [
        Band(2, "fp32"),
        Band(0, "int8", "bf16"),
        Band(0, "int4", "log8"),
        Band(2, "int8", "bf16"),  # 57 look-ups of the others, 28 a bucket
    ]
    # Draws of rare ids count as often as they are made.
    drawn = RowMap(9, 2, rare_from=0, oov_rate=0.5)
    per_bucket = 0.5 * COUNTS[:9].sum() / 2
    assert per_bucket >= 30
    assert plan_bands(memory.all_bands(), row_map=drawn, counts=COUNTS)[-1] == Band(2, "fp32")


@given(
    counts=st.lists(st.integers(1, 40), max_size=60),
    thresholds=st.lists(st.integers(1, 45), max_size=4, unique=True),
    own=st.integers(0, 60),
    buckets=st.integers(1, 5),
)
@settings(max_examples=200, deadline=None)
def test_every_row_is_in_the_band_of_its_count(
    counts: list[int], thresholds: list[int], own: int, buckets: int
) -> None:
    sorted_counts = np.array(sorted(counts, reverse=True), np.int64)
    own = min(own, len(counts))
    cuts = [*sorted(thresholds, reverse=True), 0]
    formats = ["fp32", "fp16", "int8", "int4", "int2"]
    memory = bands_of(*[(cut, formats[k], "bf16") for k, cut in enumerate(cuts)])
    planned = plan_bands(memory.all_bands(), row_map=row_map(own, buckets), counts=sorted_counts)
    assert sum(band.num_rows for band in planned) == own + buckets
    row_formats = [band.format for band in planned for _ in range(band.num_rows)]
    for rank in range(own):
        wanted = next(k for k, cut in enumerate(cuts) if sorted_counts[rank] >= cut)
        assert row_formats[rank] == formats[wanted]
    per_bucket = sorted_counts[own:].sum() / buckets
    wanted = next(k for k, cut in enumerate(cuts) if per_bucket >= cut)
    assert row_formats[own:] == [formats[wanted]] * buckets


def build(
    features: dict[str, dict[str, Any]],
    row_maps: dict[str, RowMap],
    dims: dict[str, int],
    *,
    counts: dict[str, np.ndarray] | None = None,
    embedding: dict[str, Any] | None = None,
    memory: MemoryConfig | None = None,
) -> EmbeddingTables:
    return build_tables(
        features={name: SparseFeature.model_validate(f) for name, f in features.items()},
        row_maps=row_maps,
        counts=counts or {name: np.ones(3, np.int64) for name in row_maps},
        dims=dims,
        embedding=EmbeddingConfig.model_validate({"init_std": 0.5, **(embedding or {})}),
        memory=memory or MemoryConfig(),
        seed=3,
        device=CPU,
        cache=Path(tempfile.gettempdir()),
    )


def test_b40_a_table_that_does_not_fit_is_refused_before_it_is_allocated() -> None:
    row_maps = {"item": row_map(3_000_000_000), "user": row_map(10)}
    with pytest.raises(ConfigError) as caught:
        build({"item": {}, "user": {}}, row_maps, {"item": 64, "user": 8})
    (sentence,) = caught.value.problems
    assert sentence.startswith("the embedding tables take 780.0 GB, and ")
    assert sentence.endswith(
        " of memory are free; item alone takes 780.0 GB: store rows smaller with memory.format or "
        "memory.bands, give fewer ids a row of their own with vocabularies.item.min_count, or set "
        "memory.placement to disk"
    )


@pytest.mark.parametrize("fits", [True, False])
def test_tables_may_take_what_is_free(fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = 101 * (64 + 4) + 51 * (32 + 4)
    monkeypatch.setattr(build_module, "free_memory_bytes", lambda: needed if fits else needed - 1)
    arguments = ({"a": {}, "b": {}}, {"a": row_map(100), "b": row_map(50)}, {"a": 16, "b": 8})
    if fits:
        tables = build(*arguments)
        assert sum(sum(sizes) for sizes in tables.table_bytes().values()) == needed
        return
    with pytest.raises(ConfigError, match=r"take 8.7 KB, and 8.7 KB of memory are free; a alone"):
        build(*arguments)


def test_b40_sizes_are_64_bit() -> None:
    bands = [Band(3_000_000_000, "fp32")]
    assert num_bytes(bands, dim=64, optimizer="rowwise_adagrad") == 3_000_000_000 * 260
    table = TableBytes(
        name="item",
        num_ids=3_000_000_000,
        rows=3_000_000_000,
        buckets=1,
        dim=64,
        format="fp32",
        placement="ram",
        weights_bytes=3_000_000_000 * 256,
        optimizer_bytes=3_000_000_000 * 4,
    )
    report = memory_report([table], peak_rss_bytes=1, paging=None)
    assert report["fp32_bytes"] == 768_000_000_000
    assert report["baseline_bytes"] == report["total_bytes"] == 780_000_000_000


def test_the_report_is_what_is_allocated() -> None:
    memory = bands_of((9, "int8", "bf16"), (0, "int4", "log8"))
    tables = build({"a": {}}, {"a": row_map(9, 3)}, {"a": 16}, counts={"a": COUNTS}, memory=memory)
    (table,) = report_bytes(
        tables,
        row_maps={"a": row_map(9, 3)},
        num_ids={"a": 9},
        dims={"a": 16},
        memory=memory,
        device=CPU,
    )
    assert table.weights_bytes == 5 * 20 + (4 + 3) * 12
    assert table.optimizer_bytes == 5 * 2 + (4 + 3) * 1
    assert (table.rows, table.buckets, table.format) == (12, 3, "int8+int4")
    held = [rows.nbytes for bands in tables.tables_state().values() for rows in bands.values()]
    assert sum(held) == table.weights_bytes + table.optimizer_bytes
    report = memory_report([table], peak_rss_bytes=7, paging=None)
    assert report["total_bytes"] == sum(held)
    assert report["baseline_bytes"] == 9 * (16 * 4 + 4)


FEATURES = {
    "fp32_sum": {"pooling": "sum"},
    "mean": {"pooling": "mean"},
    "hashed": {"pooling": "sum"},
    "item": {"pooling": "sum"},
    "viewed": {"pooling": "mean", "vocabulary": "item"},
}
DIMS = {"fp32_sum": 8, "mean": 16, "hashed": 8, "item": 4}
ROW_MAPS = {
    "fp32_sum": row_map(9),
    "mean": row_map(9, 2),
    "hashed": row_map(0, 6),
    "item": row_map(9, 3),
}
BAGS = {
    "fp32_sum": [[3], [0, 1], []],
    "mean": [[10, 2, 2], [], [5]],
    "hashed": [[5], [0, 0], [1]],
    "item": [[11], [0], [4]],
    "viewed": [list(range(12)) * 3 + [0] * 4, [], [1]],
}


@pytest.mark.parametrize("row_format", ["fp32", "int8", "bands"])
def test_b43_any_order_of_features_gives_each_its_rows(row_format: str) -> None:
    memory = (
        bands_of((9, "fp32", "fp32"), (2, "int8", "bf16"), (0, "int4", "log8"))
        if row_format == "bands"
        else MemoryConfig.model_validate({"format": row_format})
    )
    first: dict[str, torch.Tensor] = {}
    for k, order in enumerate(permutations(FEATURES)):
        if k % 5:
            continue
        tables = build(
            {name: FEATURES[name] for name in order},
            {name: ROW_MAPS[name] for name in order if name in ROW_MAPS},
            DIMS,
            counts=dict.fromkeys(ROW_MAPS, COUNTS),
            memory=memory,
        )
        assert isinstance(tables, EdoEmbeddingBagCollection)
        pooled = tables(jagged({name: BAGS[name] for name in reversed(order)}))
        for name, feature in FEATURES.items():
            table = feature.get("vocabulary", name)
            weight = tables.tables.weight(table)
            mean = feature["pooling"] == "mean"
            torch.testing.assert_close(pooled[name], by_hand(weight, BAGS[name], mean=mean))
            assert torch.equal(first.setdefault(table, weight), weight)


@pytest.mark.parametrize("order", [tuple(FEATURES), tuple(reversed(FEATURES))])
def test_b43_the_model_gets_each_features_vector_whatever_their_order_in_the_configuration(
    order: tuple[str, ...],
) -> None:
    config = RunConfig.model_validate(
        {
            "data": {"train": "unused.parquet"},
            "features": {"sparse": {name: FEATURES[name] for name in order}},
            "tasks": {"click": {"label": "click"}},
            "vocabularies": {name: {"dim": dim, "buckets": 3} for name, dim in DIMS.items()},
            "embedding": {"init_std": 0.5},
            "model": {"backbone": {"name": "dcnv2", "hidden": [4]}},
        }
    )
    vocabularies = {name: Vocabulary(name, Path("unused"), COUNTS) for name in DIMS}
    recommender = build_recommender(config, vocabularies, device=CPU)
    batch = Batch(
        sparse=jagged(BAGS),
        dense_BN=torch.empty(3, 0),
        labels_BT=torch.zeros(3, 1),
        weights_B=None,
        groups_B=None,
        end=3,
    )
    embedded = recommender.embed(batch)
    assert list(recommender.lookups) == ["fp32_sum", "hashed", "item", "viewed", "mean"]
    assert isinstance(recommender.tables, EdoEmbeddingBagCollection)
    for name, values in zip(recommender.lookups, embedded, strict=True):
        weight = recommender.tables.tables.weight(FEATURES[name].get("vocabulary", name))
        mean = FEATURES[name]["pooling"] == "mean"
        torch.testing.assert_close(values, by_hand(weight, BAGS[name], mean=mean))
    assert recommender.logits(batch).shape == (3, 1)


def test_buckets_start_at_zero() -> None:
    tables = build({"a": {}}, {"a": row_map(9, 4)}, {"a": 8})
    assert isinstance(tables, EdoEmbeddingBagCollection)
    weight = tables.tables.weight("a")
    assert not weight[9:].any()
    assert weight[:9].any(1).all()
