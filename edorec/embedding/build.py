"""Builds the tables of a run from its vocabularies and settings."""

from collections.abc import Mapping

import torch
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType

from edorec.data.schema import SparseFeature
from edorec.embedding.accounting import TableBytes
from edorec.embedding.admission import RowMap
from edorec.embedding.fused import FusedEmbeddingBagCollection
from edorec.embedding.tables import EmbeddingConfig, MemoryConfig

DATA_TYPES = {"fp32": DataType.FP32, "fp16": DataType.FP16}
POOLINGS = {"sum": PoolingType.SUM, "mean": PoolingType.MEAN}


def build_tables(
    *,
    features: Mapping[str, SparseFeature],
    row_maps: Mapping[str, RowMap],
    dims: Mapping[str, int],
    embedding: EmbeddingConfig,
    memory: MemoryConfig,
    seed: int,
    device: torch.device,
) -> FusedEmbeddingBagCollection:
    """One table for each vocabulary, shared by the features that use it.

    Args:
        features: sparse features by name.
        row_maps: row map by vocabulary.
        dims: embedding dim by vocabulary.
        embedding: initial rows and optimizer.
        memory: row format.
        seed: seed of the initial rows.
        device: where the rows go.
    """
    users: dict[str, list[str]] = {name: [] for name in row_maps}
    for name, feature in features.items():
        users[feature.vocabulary or name].append(name)
    configs = [
        EmbeddingBagConfig(
            name=name,
            num_embeddings=row_map.num_rows,
            embedding_dim=dims[name],
            feature_names=users[name],
            data_type=DATA_TYPES[memory.format],
        )
        for name, row_map in row_maps.items()
    ]
    return FusedEmbeddingBagCollection(
        configs,
        pooling={name: POOLINGS[feature.pooling] for name, feature in features.items()},
        num_zero_rows={name: row_map.num_buckets for name, row_map in row_maps.items()},
        optimizer=embedding.optimizer,
        learning_rate=embedding.learning_rate,
        initial_accumulator=embedding.initial_accumulator,
        init_std=embedding.init_std,
        seed=seed,
        device=device,
    )


def table_bytes(
    tables: FusedEmbeddingBagCollection,
    *,
    row_maps: Mapping[str, RowMap],
    num_ids: Mapping[str, int],
    memory: MemoryConfig,
) -> list[TableBytes]:
    """What each table holds in memory; ``num_ids``: ids of the training data by vocabulary."""
    state = tables.tables_state()
    return [
        TableBytes(
            name=config.name,
            num_ids=num_ids[config.name],
            rows=config.num_embeddings,
            buckets=row_maps[config.name].num_buckets,
            dim=config.embedding_dim,
            format=memory.format,
            placement="device" if tables.device.type == "cuda" else "ram",
            weights_bytes=state[config.name]["weight"].nbytes,
            optimizer_bytes=sum(
                tensor.nbytes for key, tensor in state[config.name].items() if key != "weight"
            ),
        )
        for config in tables.embedding_bag_configs()
    ]
