"""A model ready to train or score: row maps, tables and dense part built from one configuration."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedTensor

from edorec.config import RunConfig
from edorec.data.batch import Batch
from edorec.data.schema import (
    SparseFeature,
    VocabularyConfig,
    candidate_of,
    is_sequence,
    sequence_length,
)
from edorec.data.vocabulary import Vocabulary
from edorec.embedding.admission import I64, RowMap, build_row_map
from edorec.embedding.bands import Formats
from edorec.embedding.build import EmbeddingTables, build_tables
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.task_tables import (
    TaskTable,
    add_task_lookups,
    task_lookups,
    task_name,
    task_tables,
)
from edorec.errors import ConfigError
from edorec.layers.sequences import Padded
from edorec.models.model import MultiTaskModel, SequenceFeature, build_model
from edorec.processes import ONE, Processes


@dataclass(frozen=True)
class TableMaps:
    """Which rows the tables of a run have.

    Attributes:
        row_maps: by table, which ids have a row of their own; a vocabulary's table has its name.
        dims: embedding dim by table.
        num_ids: by table, ids of the training data that it is for.
        counts: by table, training look-ups of its vocabulary's ids, descending.
        task_tables: those among them that one task alone looks up.
    """

    row_maps: dict[str, RowMap]
    dims: dict[str, int]
    num_ids: dict[str, int]
    counts: dict[str, I64]
    task_tables: list[TaskTable]


@dataclass(frozen=True)
class Recommender:
    """Tables and dense part.

    Attributes:
        row_maps: by table, which ids have a row of their own; a vocabulary's table has its name.
        dims: embedding dim by table.
        num_ids: by table, ids of the training data that it is for.
        tables: embedding tables; their optimizer is fused.
        task_tables: those among them that one task alone looks up.
        model: embeddings and dense features to logits.
        lookups: in the order that the model takes them: the sparse features, then those in the
            tables of tasks.
        sequences: those among them that are lists for the model to pool.
        device: where both are.
        processes: that the tables are spread over; each has the dense part.
    """

    row_maps: dict[str, RowMap]
    dims: dict[str, int]
    num_ids: dict[str, int]
    tables: EmbeddingTables
    task_tables: list[TaskTable]
    model: MultiTaskModel
    lookups: dict[str, SparseFeature]
    sequences: frozenset[str]
    device: torch.device
    processes: Processes = ONE

    def vocabulary_of(self, table: str) -> str:
        """The vocabulary whose ids a table holds."""
        return {own.name: own.vocabulary for own in self.task_tables}.get(table, table)

    def feature_of(self, lookup: str) -> str:
        """The sparse feature that a look-up reads."""
        names = ((task_name(f, own.task), f) for own in self.task_tables for f in own.features)
        return dict(names).get(lookup, lookup)

    def embed(self, batch: Batch) -> list[torch.Tensor | Padded]:
        """Embeddings of a batch whose values are rows: float32 (B, D), or lists, by look-up."""
        if not self.lookups:
            return []
        sparse = add_task_lookups(batch.sparse, self.task_tables).to(self.device)
        if not self.sequences:
            return [*_split(self.tables(sparse))]
        assert isinstance(self.tables, EdoEmbeddingBagCollection)
        pooled, lists = self.tables.look_up(sparse, unpooled=self.sequences)
        vectors = iter(_split(pooled))
        return [
            _pad(lists[name]) if name in self.sequences else next(vectors) for name in self.lookups
        ]

    def ahead(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches; rows of the next are fetched while one is used.

        Their look-ups are those of ``embed``, on the device, so that it looks up what was fetched.
        """
        if self.tables.paging() is None:
            yield from batches
            return
        present = None
        for batch in batches:
            sparse = add_task_lookups(batch.sparse, self.task_tables).to(self.device)
            self.tables.prefetch(sparse)
            if present is not None:
                yield present
            present = replace(batch, sparse=sparse)
        if present is not None:
            yield present

    def logits(self, batch: Batch) -> torch.Tensor:
        """Logits (B, T) on the recommender's device."""
        logits_BT: torch.Tensor = self.model(self.embed(batch), batch.dense_BN.to(self.device))
        return logits_BT


def table_maps(config: RunConfig, vocabularies: Mapping[str, Vocabulary]) -> TableMaps:
    """Which rows the tables of a configuration have on these vocabularies.

    Raises:
        ValueError: if ``config`` has a budget that was not planned.
    """
    features = config.features.sparse
    names = sorted({feature.vocabulary or name for name, feature in features.items()})
    if config.memory.budget is not None and not config.memory.tables.keys() >= set(names):
        raise ValueError("memory.budget is not planned: the configuration lacks the plan's tables")
    settings = {name: config.vocabularies.get(name, VocabularyConfig()) for name in names}
    row_maps = {
        name: build_row_map(
            vocabularies[name].counts,
            min_count=settings[name].min_count,
            max_rows=settings[name].max_rows,
            buckets=settings[name].buckets,
            oov_rate=settings[name].oov_rate,
            bucket_ids=vocabularies[name].bucket_ids,
        )
        for name in names
    }
    dims = {name: settings[name].dim or config.embedding.dim for name in names}
    counts = {name: vocabularies[name].counts for name in names}
    num_ids = {name: vocabularies[name].num_ids for name in names}
    own = task_tables(features, settings=settings, row_maps=row_maps, tasks=list(config.tasks))
    for table in own:
        row_maps[table.name], dims[table.name] = table.row_map, table.dim
        counts[table.name] = counts[table.vocabulary]
        rows = settings[table.vocabulary].task_specific[table.task].rows
        num_ids[table.name] = min(rows, num_ids[table.vocabulary])
    return TableMaps(row_maps, dims, num_ids, counts, own)


def build_recommender(
    config: RunConfig,
    vocabularies: Mapping[str, Vocabulary],
    *,
    device: torch.device,
    processes: Processes = ONE,
    formats: Formats | None = None,
) -> Recommender:
    """Builds untrained tables and dense part; the same seed gives the same initial values.

    Args:
        config: of the run.
        vocabularies: by name.
        device: where all goes.
        formats: of tables, where rows that will be loaded have other ones than the configuration.

    Args:
        config: with the plan of its budget, if it has one.
        vocabularies: by name.
        device: where tables and dense part go.
        processes: that the tables are spread over.

    Raises:
        ConfigError: if the model cannot work on these features.
        ValueError: if ``config`` has a budget that was not planned.
    """
    features = config.features.sparse
    maps = table_maps(config, vocabularies)
    dims, own = maps.dims, maps.task_tables
    lookups = {**features, **task_lookups(features, own)}
    torch.manual_seed(config.train.seed)
    try:
        model = build_model(
            config.model,
            dims=[dims[feature.vocabulary or name] for name, feature in features.items()],
            num_dense=len(config.features.dense),
            num_tasks=len(config.tasks),
            sequences=_sequence_features(features),
            specific_dims=[
                [table.dim for table in own if table.task == task for _ in table.features]
                for task in config.tasks
            ],
        )
    except ValueError as error:
        raise ConfigError([f"model: {error}"]) from error
    tables = build_tables(
        features=lookups,
        row_maps=maps.row_maps,
        counts=maps.counts,
        dims=dims,
        embedding=config.embedding,
        memory=config.memory,
        seed=config.train.seed,
        device=device,
        processes=processes,
        cache=Path(config.data.cache),
        formats=formats,
    )
    sequences = frozenset(name for name, feature in features.items() if is_sequence(feature))
    return Recommender(
        row_maps=maps.row_maps,
        dims=dims,
        num_ids=maps.num_ids,
        tables=tables,
        task_tables=own,
        model=model.to(device),
        lookups=lookups,
        sequences=sequences,
        device=device,
        processes=processes,
    )


def _sequence_features(features: Mapping[str, SparseFeature]) -> list[SequenceFeature]:
    """Which features the model pools itself, in the order of the model's inputs."""
    names = list(features)
    return [
        SequenceFeature(
            place=names.index(name),
            candidate=names.index(candidate_of(name, features)),
            pooling=feature.pooling,
            max_length=max_length,
        )
        for name, feature in features.items()
        if (max_length := sequence_length(feature)) is not None
    ]


def _split(pooled: KeyedTensor) -> tuple[torch.Tensor, ...]:
    """The vectors of features in the order of the tables.

    One split has one concatenation as its gradient; a look-up of each key would have a zeroed copy
    of the whole for each.
    """
    return torch.split(pooled.values(), pooled.length_per_key(), dim=1)


def _pad(lists: JaggedTensor) -> Padded:
    """Lists padded to the longest of the batch."""
    lengths_B = lists.lengths()
    longest = int(lengths_B.max()) if len(lengths_B) else 0
    return Padded(lists.to_padded_dense(max(longest, 1)), lengths_B)
