"""Builds the tables of a run from its vocabularies and settings."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from edorec.data.schema import SparseFeature, is_sequence
from edorec.embedding import fused
from edorec.embedding.accounting import TableBytes
from edorec.embedding.admission import I64, RowMap
from edorec.embedding.bands import Band, num_bytes, plan_bands
from edorec.embedding.collection import EdoEmbeddingBagCollection, EdoTableConfig
from edorec.embedding.fused import FusedEmbeddingBagCollection
from edorec.embedding.kernels.layout import BeforeUpdate
from edorec.embedding.sharded_tables import ShardedTables, place_tables
from edorec.embedding.shards import Shard
from edorec.embedding.tables import EmbeddingConfig, MemoryConfig
from edorec.errors import ConfigError
from edorec.memory_use import format_bytes, free_memory_bytes
from edorec.processes import ONE, Processes

POOLINGS = {"sum": PoolingType.SUM, "mean": PoolingType.MEAN}
FBGEMM_TYPES = {"fp32": DataType.FP32, "fp16": DataType.FP16}


class EmbeddingTables(Protocol):
    """What training, evaluation and checkpoints need of a collection.

    Attributes:
        num_updates: updates so far, where rounding depends on it, else 0.
    """

    num_updates: int

    @property
    def table_names(self) -> list[str]:
        """Names of all tables, in order."""

    def __call__(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Pooled rows by feature."""

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate of the next backward pass."""

    def tables_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """By table that this process has rows of, the live tensors of rows and optimizer state."""

    def shards(self) -> dict[str, Shard]:
        """By table of ``tables_state``, which of its rows those are."""

    def table_bytes(self) -> dict[str, tuple[int, int]]:
        """By table, bytes allocated for rows and for optimizer state, in all processes."""

    def watch_updates(self, before_update: BeforeUpdate | None) -> bool:
        """Has ``before_update`` called before each update of rows, or no longer (None).

        Returns:
            Whether it will be: False where rows are not on the CPU.
        """


def build_tables(
    *,
    features: Mapping[str, SparseFeature],
    row_maps: Mapping[str, RowMap],
    counts: Mapping[str, I64],
    dims: Mapping[str, int],
    embedding: EmbeddingConfig,
    memory: MemoryConfig,
    seed: int,
    device: torch.device,
    processes: Processes = ONE,
) -> EmbeddingTables:
    """One table for each vocabulary, shared by the features that use it.

    Args:
        features: sparse features by name.
        row_maps: row map by vocabulary.
        counts: training look-ups of each id, descending, by vocabulary.
        dims: embedding dim by vocabulary.
        embedding: initial rows and optimizer.
        memory: row formats.
        seed: seed of the initial rows.
        device: where the rows go.
        processes: that the tables are spread over.

    Raises:
        ConfigError: if there is not enough memory for them.
    """
    bands = {
        name: plan_bands(memory.bands_of(name), row_map=row_map, counts=counts[name])
        for name, row_map in row_maps.items()
    }
    _check_memory(bands, dims=dims, optimizer=embedding.optimizer, device=device)
    users: dict[str, list[str]] = {name: [] for name in row_maps}
    for name, feature in features.items():
        users[feature.vocabulary or name].append(name)
    sequences = [name for name, feature in features.items() if is_sequence(feature)]
    pooling = {n: POOLINGS[f.pooling] for n, f in features.items() if n not in sequences}
    if _uses_fbgemm(
        embedding, memory, tables=row_maps, has_sequences=bool(sequences), device=device
    ):
        return FusedEmbeddingBagCollection(
            [
                EmbeddingBagConfig(
                    name=name,
                    num_embeddings=row_map.num_rows,
                    embedding_dim=dims[name],
                    feature_names=users[name],
                    data_type=FBGEMM_TYPES[bands[name][0].format],
                )
                for name, row_map in row_maps.items()
            ],
            pooling=pooling,
            num_zero_rows={name: row_map.num_buckets for name, row_map in row_maps.items()},
            optimizer=embedding.optimizer,
            learning_rate=embedding.learning_rate,
            initial_accumulator=embedding.initial_accumulator,
            init_std=embedding.init_std,
            seed=seed,
            device=device,
        )
    tables = [
        EdoTableConfig(
            name=name,
            num_embeddings=row_map.num_rows,
            embedding_dim=dims[name],
            feature_names=users[name],
            bands=bands[name],
            num_zero_rows=row_map.num_buckets,
            qat=memory.qat,
        )
        for name, row_map in row_maps.items()
    ]
    settings: dict[str, Any] = {
        "pooling": pooling,
        "optimizer": embedding.optimizer,
        "learning_rate": embedding.learning_rate,
        "weight_decay": embedding.weight_decay,
        "initial_accumulator": embedding.initial_accumulator,
        "init_std": embedding.init_std,
        "seed": seed,
    }
    if processes.world_size == 1:
        return EdoEmbeddingBagCollection(tables, **settings, device=device)
    placements = place_tables(
        {
            name: num_bytes(table, dim=dims[name], optimizer=embedding.optimizer)
            for name, table in bands.items()
        },
        {table.name: table.num_embeddings for table in tables},
        sharding=embedding.sharding,
        world_size=processes.world_size,
    )
    return ShardedTables(tables, placements=placements, processes=processes, **settings)


def _check_memory(
    bands: Mapping[str, list[Band]],
    *,
    dims: Mapping[str, int],
    optimizer: str,
    device: torch.device,
) -> None:
    """Refuses tables that do not fit before any of them is allocated.

    Raises:
        ConfigError: naming the largest table and what to change.
    """
    sizes = {
        name: num_bytes(table, dim=dims[name], optimizer=optimizer) for name, table in bands.items()
    }
    on_cuda = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if on_cuda else free_memory_bytes()
    total = sum(sizes.values())
    if total <= free:
        return
    largest = max(sizes, key=lambda name: sizes[name])
    raise ConfigError(
        [
            f"the embedding tables take {format_bytes(total)}, and {format_bytes(free)} of memory "
            f"are free; {largest} alone takes {format_bytes(sizes[largest])}: store rows smaller "
            "with memory.format or memory.bands, or give fewer ids a row of their own with "
            f"vocabularies.{largest}.min_count"
        ]
    )


def _uses_fbgemm(
    embedding: EmbeddingConfig,
    memory: MemoryConfig,
    *,
    tables: Iterable[str],
    has_sequences: bool,
    device: torch.device,
) -> bool:
    """Whether the tables are FBGEMM's.

    Raises:
        ConfigError: if they must be and cannot.
    """
    can = not has_sequences and fbgemm_has(embedding, memory, tables)
    if embedding.backend == "fbgemm" and not can:
        raise ConfigError(
            [
                "embedding.backend: FBGEMM has tables with fp32 or fp16 rows (one format for "
                f"all), {', '.join(fused.OPTIMIZERS)}, an fp32 state, pooled lists, no weight "
                "decay and no qat; change those keys, or take edorec"
            ]
        )
    on_cuda = device.type == "cuda"
    return can and (embedding.backend == "fbgemm" or (embedding.backend == "auto" and on_cuda))


def fbgemm_has(embedding: EmbeddingConfig, memory: MemoryConfig, tables: Iterable[str]) -> bool:
    """Whether FBGEMM's fused tables do the same as ours."""
    by_table = [memory.bands_of(name) for name in tables]
    formats = {band.format for bands in by_table for band in bands}
    return (
        len(formats) == 1
        and formats <= FBGEMM_TYPES.keys()
        and all(len(bands) == 1 and bands[0].state == "fp32" for bands in by_table)
        and memory.qat is None
        and embedding.optimizer in fused.OPTIMIZERS
        and embedding.weight_decay == 0
    )


def report_bytes(
    tables: EmbeddingTables,
    *,
    row_maps: Mapping[str, RowMap],
    num_ids: Mapping[str, int],
    dims: Mapping[str, int],
    memory: MemoryConfig,
    device: torch.device,
) -> list[TableBytes]:
    """What each table holds in memory; ``num_ids``: ids of the training data by vocabulary."""
    return [
        TableBytes(
            name=name,
            num_ids=num_ids[name],
            rows=row_maps[name].num_rows,
            buckets=row_maps[name].num_buckets,
            dim=dims[name],
            format="+".join(dict.fromkeys(band.format for band in memory.bands_of(name))),
            placement="device" if device.type == "cuda" else "ram",
            weights_bytes=weights_bytes,
            optimizer_bytes=optimizer_bytes,
        )
        for name, (weights_bytes, optimizer_bytes) in tables.table_bytes().items()
    ]
