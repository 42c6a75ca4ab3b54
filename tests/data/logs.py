"""Tiny logs for tests: writes them, prepares them, reads encoded ids back as raw ids."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from edorec.data.batch import Batch
from edorec.data.prepare import Prepared, prepare
from edorec.data.reader import Reader
from edorec.data.schema import DataConfig, DenseFeature, FeaturesConfig, SparseFeature, TaskConfig


def write(path: Path, columns: Mapping[str, Any] | pa.Table, **options: Any) -> Path:
    """Writes a Parquet file; a label column y of alternating 0 and 1 is added if there is none."""
    table = columns if isinstance(columns, pa.Table) else pa.table(dict(columns))
    if "y" not in table.column_names:
        table = table.append_column("y", pa.array([i % 2 for i in range(len(table))], pa.int64()))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


def configs(
    folder: Path,
    *,
    sparse: Mapping[str, Any] | None = None,
    dense: Mapping[str, Any] | None = None,
    tasks: Mapping[str, str] | None = None,
    **data: Any,
) -> dict[str, Any]:
    """Keyword arguments of ``prepare``; the training file is train.parquet by default."""
    return {
        "data": DataConfig(
            **{"folder": str(folder), "train": "train.parquet", "cache": str(folder / "cache")}
            | data
        ),
        "features": FeaturesConfig(
            sparse={k: SparseFeature(**(v or {})) for k, v in (sparse or {}).items()},
            dense={k: DenseFeature(**(v or {})) for k, v in (dense or {}).items()},
        ),
        "tasks": {k: TaskConfig(label=v) for k, v in (tasks or {"click": "y"}).items()},
    }


def prepare_log(folder: Path, **options: Any) -> Prepared:
    """Prepares with ``configs(folder, **options)``."""
    return prepare(**configs(folder, **options), vocabularies={})


def encoded(prepared: Prepared, feature: str, split: str = "train") -> list[Any]:
    """Encoded ids (lists of them) or dense values of a feature, by row."""
    kind = "dense" if feature in prepared.dense else "sparse"
    table = pq.read_table(prepared.splits[split].path)
    values: list[Any] = table[prepared.columns[kind, feature]].to_pylist()
    return values


def vocabulary_ids(prepared: Prepared, name: str) -> list[Any]:
    """Raw ids by rank."""
    ids: list[Any] = pq.read_table(prepared.vocabularies[name].path)["id"].to_pylist()
    return ids


def raw_ids(prepared: Prepared, feature: str, split: str = "train") -> list[Any]:
    """Raw ids of a feature by row; "unseen" for an id that has no rank."""
    ids = [*vocabulary_ids(prepared, prepared.feature_vocabulary[feature]), "unseen"]

    def decode(value: Any) -> Any:
        if isinstance(value, list):
            return [decode(item) for item in value]
        return ids[(value & 0xFFFFFFFF) - 1]

    return [decode(value) for value in encoded(prepared, feature, split)]


def batches(
    prepared: Prepared, split: str = "train", *, start: int = 0, **options: Any
) -> list[Batch]:
    """Batches of epoch 0, unshuffled and with encoded ids by default."""
    defaults = {
        "batch_size": 8,
        "row_maps": None,
        "shuffle": False,
        "shuffle_rows": 1000,
        "seed": 0,
        "training": True,
    }
    epoch = options.pop("epoch", 0)
    reader = Reader(prepared, split, **(defaults | options))
    found: Iterator[Batch] = reader.batches(epoch, start)
    return list(found)
