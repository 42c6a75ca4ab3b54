"""Shards of tables hold each row once, and train as the whole table does."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edorec.embedding.bands import Band
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.row_tables import EdoTableConfig
from edorec.embedding.sharded_tables import place_tables
from edorec.embedding.shards import NUM_BUCKETS, WHOLE, Shard, deal_buckets
from tests.embedding.batches import jagged

BANDS = [Band(5, "fp32"), Band(60, "fp16"), Band(135, "int8", "bf16")]


@given(
    num_rows=st.integers(1, 400), world_size=st.integers(1, NUM_BUCKETS), first=st.integers(0, 9)
)
def test_every_row_is_in_one_shard_in_order(num_rows: int, world_size: int, first: int) -> None:
    shards = deal_buckets(world_size, first=first % world_size)
    rows = torch.arange(num_rows)
    found = []
    for shard in shards:
        places, local = shard.find(rows)
        assert torch.equal(local, torch.arange(shard.count_below(num_rows)))
        assert torch.equal(shard.rows(local), places)
        found.append(places)
    assert torch.equal(torch.cat(found).sort().values, rows)
    sizes = [len(places) for places in found]
    assert max(sizes) - min(sizes) <= -(-num_rows // NUM_BUCKETS)


def test_the_busiest_rows_are_spread() -> None:
    share = torch.tensor([1 / (row + 1) for row in range(100_000)])
    share /= share.sum()
    for world_size, most in ((2, 0.56), (8, 0.24)):
        shards = deal_buckets(world_size, first=0)
        held = [float(share[shard.find(torch.arange(len(share)))[0]].sum()) for shard in shards]
        assert max(held) < most


def test_more_processes_than_buckets_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^rows are spread over at most 64 processes, got 65$"):
        deal_buckets(65, first=0)


def placed(
    rows: dict[str, int], sharding: str, *, row_bytes: int = 24, **bag_sizes: float
) -> dict[str, int | None]:
    """By table its owner among two processes."""
    placements = place_tables(
        [EdoTableConfig(name=name, num_embeddings=rows[name], embedding_dim=16) for name in rows],
        {name: num_rows * row_bytes for name, num_rows in rows.items()},
        bag_sizes=dict.fromkeys(rows, 1.0) | bag_sizes,
        sharding=sharding,
        world_size=2,
    )
    return {name: placement.owner for name, placement in placements.items()}


def test_whole_tables_are_dealt_so_that_look_ups_and_bytes_are_even() -> None:
    rows = {"a": 5_000_000, "b": 10, "c": 5_000_000, "d": 4}
    owners = placed(rows, "table_wise")
    assert sorted(owners.values()) == [0, 0, 1, 1]
    assert owners["a"] != owners["c"], "both large ones in one process would be as fast"
    busy = placed(rows, "table_wise", b=10.0)
    assert [name for name, owner in busy.items() if owner == busy["b"]] == ["b"]


def test_small_tables_stay_whole_and_large_ones_are_spread() -> None:
    owners = placed({"a": 640, "b": 63, "c": 63, "d": 1}, "row_wise")
    assert owners["a"] is None
    assert {owners[name] for name in "bcd"} == {0, 1}
    assert placed({"a": 64}, "row_wise") == {"a": None}


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_shards_train_as_the_whole_table(kernel: str) -> None:
    """Bit for bit, rounding included: a row's noise is that of the row of the whole table."""

    def tables(shard: Shard) -> EdoEmbeddingBagCollection:
        config = EdoTableConfig(
            name="t", num_embeddings=200, embedding_dim=5, bands=BANDS, shard=shard, number=0
        )
        return EdoEmbeddingBagCollection([config], seed=3, kernel=kernel)

    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 200, (300,), generator=generator)
    upstream = torch.randn(300, 5, generator=generator)
    whole, shards = tables(WHOLE), deal_buckets(3, first=1)
    parts = [tables(shard) for shard in shards]
    for _ in range(2):
        pooled = whole(jagged({"t": [[int(row)] for row in rows]})).values()
        pooled.backward(upstream)
        for part, shard in zip(parts, shards, strict=True):
            places, local = shard.find(rows)
            mine = part(jagged({"t": [[int(row)] for row in local]})).values()
            assert torch.equal(mine, pooled[places])
            mine.backward(upstream[places])
    for part, shard in zip(parts, shards, strict=True):
        places, _ = shard.find(torch.arange(200))
        assert torch.equal(part.tables.weight("t"), whole.tables.weight("t")[places])
