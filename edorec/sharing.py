"""What sharing saves, by level, each counted after the ones before it.

A table for each feature and task would be the other extreme. Tasks share first (one table for each
feature), then features of one entity (one table for each vocabulary), then neighbouring layers of a
Transformer. What tasks get back as rows of their own is a cost. All in bytes of rows and optimizer
state as this run stores them; a feature's own table would have its ids under the same settings.
"""

from typing import Any

from edorec.config import RunConfig
from edorec.data.schema import VocabularyConfig
from edorec.data.vocabulary import Vocabulary, feature_counts
from edorec.embedding.admission import build_row_map
from edorec.embedding.bands import num_bytes, plan_bands
from edorec.layers.sequences import Transformer
from edorec.recommender import Recommender

DENSE_BYTES = 3 * 4  # a weight and Adam's two moments


def sharing_report(
    config: RunConfig, vocabularies: dict[str, Vocabulary], recommender: Recommender
) -> dict[str, Any]:
    """The ``sharing`` part of report.json; ``vocabularies`` are those that the run trained with."""
    features, num_tasks = config.features.sparse, len(config.tasks)
    users: dict[str, list[str]] = {}
    for name, feature in features.items():
        users.setdefault(feature.vocabulary or name, []).append(name)
    allocated = {name: sum(parts) for name, parts in recommender.tables.table_bytes().items()}
    shared = sum(allocated[name] for name in users)
    alone = 0
    for name, members in users.items():
        if len(members) == 1:
            alone += allocated[name]
            continue
        for feature_name in members:
            alone += _bytes_alone(config, vocabularies[name], feature_name)
    tied = sum(
        module.num_tied_parameters
        for module in recommender.model.modules()
        if isinstance(module, Transformer)
    )
    return {
        "separate_bytes": num_tasks * alone,
        "saved_bytes": {
            "across_tasks": (num_tasks - 1) * alone,
            "within_task": alone - shared,
            "across_layers": tied * DENSE_BYTES,
        },
        "task_specific_bytes": sum(allocated[table.name] for table in recommender.task_tables),
    }


def _bytes_alone(config: RunConfig, vocabulary: Vocabulary, feature: str) -> int:
    """Bytes of a table for the ids of one feature."""
    settings = config.vocabularies.get(vocabulary.name, VocabularyConfig())
    counts = feature_counts(vocabulary, feature)
    row_map = build_row_map(
        counts,
        min_count=settings.min_count,
        max_rows=settings.max_rows,
        buckets=settings.buckets,
        oov_rate=settings.oov_rate,
    )
    bands = plan_bands(config.memory.bands_of(vocabulary.name), row_map=row_map, counts=counts)
    dim = settings.dim or config.embedding.dim
    return num_bytes(bands, dim=dim, optimizer=config.embedding.optimizer)
