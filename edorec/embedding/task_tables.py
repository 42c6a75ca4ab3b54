"""Rows that one task alone looks up and trains, for the most frequent ids of a vocabulary.

As in STEM (Su et al., AAAI 2024) each task sees concat(shared, its own), and the gradient of a task
never reaches another's rows. A task's table is one more cut in the order of frequency: ids of rank
below its number of rows have one there, and all others share the row behind them. Rows of the
shared table are ranks, so a look-up is that of the shared table, cut off at that last row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from edorec.data.schema import SparseFeature, VocabularyConfig, is_sequence
from edorec.embedding.admission import RowMap


@dataclass(frozen=True)
class TaskTable:
    """A task's own table for a vocabulary.

    Attributes:
        vocabulary: whose ids.
        task: the only one that sees it.
        row_map: its rows; the last one is shared by all other ids.
        dim: of its rows.
        features: sparse features of the vocabulary, each looked up here too.
    """

    vocabulary: str
    task: str
    row_map: RowMap
    dim: int
    features: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the table."""
        return task_name(self.vocabulary, self.task)


def task_name(name: str, task: str) -> str:
    """Name of a vocabulary's table, or of a feature's look-up, of one task."""
    return f"{name}@{task}"


def task_tables(
    features: Mapping[str, SparseFeature],
    *,
    settings: Mapping[str, VocabularyConfig],
    row_maps: Mapping[str, RowMap],
    tasks: Sequence[str],
) -> list[TaskTable]:
    """The task-specific tables, by task and then by vocabulary.

    An id without a row of its own in the shared table has none here either.

    Args:
        features: sparse features by name.
        settings: by vocabulary.
        row_maps: of the shared tables.
        tasks: in order.
    """
    tables = []
    for task in tasks:
        for name, vocabulary in settings.items():
            wanted = vocabulary.task_specific.get(task)
            if wanted is None:
                continue
            shared = row_maps[name]
            own_rows = min(wanted.rows, shared.num_own_rows)
            row_map = replace(shared, num_own_rows=own_rows, num_buckets=1)
            users = tuple(f for f, feature in features.items() if (feature.vocabulary or f) == name)
            tables.append(TaskTable(name, task, row_map, wanted.dim, users))
    return tables


def task_lookups(
    features: Mapping[str, SparseFeature], tables: Sequence[TaskTable]
) -> dict[str, SparseFeature]:
    """The look-ups in the tables of tasks, as features of vocabularies of the tables' names.

    A list that the model pools itself is a mean here.
    """
    return {
        task_name(name, table.task): SparseFeature(
            vocabulary=table.name,
            pooling="mean" if is_sequence(features[name]) else features[name].pooling,
        )
        for table in tables
        for name in table.features
    }


def add_task_lookups(sparse: KeyedJaggedTensor, tables: Sequence[TaskTable]) -> KeyedJaggedTensor:
    """Adds the look-ups of tasks to a batch.

    Args:
        sparse: values are rows of the shared tables.
        tables: of the tasks.

    Returns:
        The same with a key for each of ``task_lookups``, its values rows of the tasks' tables;
        itself if it has them.
    """
    names = {task_name(name, table.task) for table in tables for name in table.features}
    if names <= {*sparse.keys()}:
        return sparse
    starts = sparse.offset_per_key()
    lengths_FB = sparse.lengths().view(len(sparse.keys()), -1)
    keys, values, lengths = list(sparse.keys()), [sparse.values()], [sparse.lengths()]
    for table in tables:
        for name in table.features:
            at = sparse.keys().index(name)
            rows = sparse.values()[starts[at] : starts[at + 1]]
            keys.append(task_name(name, table.task))
            values.append(rows.clamp(max=table.row_map.num_own_rows))
            lengths.append(lengths_FB[at])
    return KeyedJaggedTensor(
        keys, torch.cat(values), lengths=torch.cat(lengths), stride=sparse.stride()
    )
