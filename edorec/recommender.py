"""A model ready to train or score: row maps, tables and dense part built from one configuration."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from edorec.config import RunConfig
from edorec.data.batch import Batch
from edorec.data.schema import VocabularyConfig
from edorec.data.vocabulary import Vocabulary
from edorec.embedding.admission import RowMap, build_row_map
from edorec.embedding.build import EmbeddingTables, build_tables
from edorec.errors import ConfigError
from edorec.models.model import MultiTaskModel, build_model


@dataclass(frozen=True)
class Recommender:
    """Tables and dense part.

    Attributes:
        row_maps: by vocabulary, which ids have a row of their own.
        dims: embedding dim by vocabulary.
        tables: embedding tables; their optimizer is fused.
        model: pooled embeddings and dense features to logits.
        features: sparse features in the order that the model takes them.
        device: where both are.
    """

    row_maps: dict[str, RowMap]
    dims: dict[str, int]
    tables: EmbeddingTables
    model: MultiTaskModel
    features: tuple[str, ...]
    device: torch.device

    def embed(self, batch: Batch) -> list[torch.Tensor]:
        """Pooled embeddings of a batch whose values are rows: one float32 (B, D) a feature."""
        if not self.features:
            return []
        pooled = self.tables(batch.sparse.to(self.device))
        # Features are in the order of the tables. One split has one concatenation as its gradient;
        # a look-up of each key would have a zeroed copy of the whole for each.
        return list(torch.split(pooled.values(), pooled.length_per_key(), dim=1))

    def logits(self, batch: Batch) -> torch.Tensor:
        """Logits (B, T) on the recommender's device."""
        logits_BT: torch.Tensor = self.model(self.embed(batch), batch.dense_BN.to(self.device))
        return logits_BT


def build_recommender(
    config: RunConfig, vocabularies: Mapping[str, Vocabulary], *, device: torch.device
) -> Recommender:
    """Builds untrained tables and dense part; the same seed gives the same initial values.

    Raises:
        ConfigError: if the model cannot work on these features.
    """
    features = config.features.sparse
    names = sorted({feature.vocabulary or name for name, feature in features.items()})
    settings = {name: config.vocabularies.get(name, VocabularyConfig()) for name in names}
    row_maps = {
        name: build_row_map(
            vocabularies[name].counts,
            min_count=settings[name].min_count,
            max_rows=settings[name].max_rows,
            buckets=settings[name].buckets,
            oov_rate=settings[name].oov_rate,
        )
        for name in names
    }
    dims = {name: settings[name].dim or config.embedding.dim for name in names}
    torch.manual_seed(config.train.seed)
    try:
        model = build_model(
            config.model,
            dims=[dims[feature.vocabulary or name] for name, feature in features.items()],
            num_dense=len(config.features.dense),
            num_tasks=len(config.tasks),
        )
    except ValueError as error:
        raise ConfigError([f"model: {error}"]) from error
    tables = build_tables(
        features=features,
        row_maps=row_maps,
        counts={name: vocabularies[name].counts for name in names},
        dims=dims,
        embedding=config.embedding,
        memory=config.memory,
        seed=config.train.seed,
        device=device,
    )
    return Recommender(row_maps, dims, tables, model.to(device), tuple(features), device)
