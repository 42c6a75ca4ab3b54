"""Batches and tables for tests of collections."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from edorec.embedding.bands import Band
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.row_tables import EdoTableConfig

Bags = Sequence[Sequence[int]]


def table(
    name: str, num_rows: int, dim: int, features: Sequence[str] = (), **settings: Any
) -> EdoTableConfig:
    return EdoTableConfig(
        name=name,
        num_embeddings=num_rows,
        embedding_dim=dim,
        feature_names=list(features) or [name],
        **settings,
    )


def one_band(num_rows: int, row_format: str, state: str = "fp32") -> list[Band]:
    return [Band(num_rows, row_format, state)]


def jagged(
    bags: Mapping[str, Bags], weights: Mapping[str, Sequence[Sequence[float]]] | None = None
) -> KeyedJaggedTensor:
    flat = [ids for rows in bags.values() for ids in rows]
    numbers = [w for name in bags for ws in weights[name] for w in ws] if weights else None
    return KeyedJaggedTensor(
        keys=list(bags),
        values=torch.tensor([i for ids in flat for i in ids], dtype=torch.int64),
        lengths=torch.tensor([len(ids) for ids in flat], dtype=torch.int32),
        weights=None if numbers is None else torch.tensor(numbers, dtype=torch.float32),
    )


def set_rows(tables: EdoEmbeddingBagCollection, name: str, values_RD: torch.Tensor) -> None:
    """Gives an FP32 table of one band these rows."""
    (memory,) = memories_of(tables, name)
    assert memory.band.format == "fp32"
    memory.rows_RS[:, : memory.row_bytes] = values_RD.contiguous().view(torch.uint8)


def memories_of(tables: EdoEmbeddingBagCollection, name: str) -> Any:
    index = [config.name for config in tables.embedding_bag_configs()].index(name)
    return tables.tables.memories[index]


def all_bytes(tables: EdoEmbeddingBagCollection) -> dict[str, torch.Tensor]:
    """A copy of all rows and states, by table and number of the band."""
    return {
        f"{name}.band{k}": rows.clone()
        for name, bands in tables.tables_state().items()
        for k, rows in enumerate(bands.values())
    }


def by_hand(
    weight: torch.Tensor,
    bags: Bags,
    *,
    mean: bool = False,
    scales: Sequence[Sequence[float]] | None = None,
) -> torch.Tensor:
    """Pooled rows (B, D) in plain torch."""
    pooled = []
    for b, ids in enumerate(bags):
        rows = weight[list(ids)]
        if scales is not None:
            rows = rows * torch.tensor(scales[b]).reshape(-1, 1)
        pooled.append(rows.sum(0) / len(ids) if mean and ids else rows.sum(0))
    return torch.stack(pooled)
