"""Prepared data on disk: encoded rows, vocabularies, and what encoding another row needs.

A folder of the cache, named by its key::

    train.parquet ...            encoded rows of each split (see edorec.data.encode)
    vocabularies/<name>.parquet  ids and counts in order of rank
    vocabularies/<name>.ranks    new rank by earlier rank (Parquet), where the vocabulary has grown
    vocabularies/manifest.json   configuration of the columns, dense statistics, bin edges, counts

The ``vocabularies`` folder stands alone: a run keeps a copy of it, and rows that come later are
encoded with it exactly as the training rows were.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edorec.data.columns import ColumnUse, column_uses
from edorec.data.schema import FeaturesConfig, TaskConfig
from edorec.data.vocabulary import Vocabulary, read_counts
from edorec.errors import InputError

FORMAT = 2
MANIFEST = "manifest.json"
VOCABULARIES = "vocabularies"


@dataclass(frozen=True)
class Split:
    """Rows of one split.

    Attributes:
        name: train, valid, test or another name.
        rows: number of rows.
        files: raw files they come from.
        path: their encoded Parquet file.
    """

    name: str
    rows: int
    files: tuple[str, ...]
    path: Path


@dataclass(frozen=True)
class Prepared:
    """Prepared data; see the head of the module.

    Attributes:
        folder: folder of the encoded rows.
        vocabulary_folder: folder that ``load_prepared`` opens.
        key: hash of everything they were made from.
        splits: by name.
        vocabularies: by name; a feature that names none has one called like itself.
        feature_vocabulary: name of the vocabulary of each sparse feature.
        list_features: sparse features that are lists of ids; the others have one id in every row.
        sparse: sparse features in the order of the configuration.
        dense: dense features, likewise.
        tasks: tasks, likewise.
        columns: name of the encoded column by (kind, feature or task); kind is sparse, dense,
            label, weight or group.
        counts: what was met in the data: ``counts[event][split][name]`` is a number, where name is
            a feature or task; an event that did not happen may be absent. Events: lookups and
            unseen_ids (ids, of all and of those that training did not see), null_ids, null_lists,
            dropped_items (null items), cut_items (beyond max_length), bad_dense (filled),
            clipped_dense, null_labels, null_groups, missing_column_rows (rows of files that lack
            the column). ``counts["warnings"]`` is a list of sentences.
        manifest: content of manifest.json.
        seconds: how long preparing took this time.
        reused: whether the cache held it.
    """

    folder: Path
    vocabulary_folder: Path
    key: str
    splits: dict[str, Split]
    vocabularies: dict[str, Vocabulary]
    feature_vocabulary: dict[str, str]
    list_features: frozenset[str]
    sparse: tuple[str, ...]
    dense: tuple[str, ...]
    tasks: tuple[str, ...]
    columns: dict[tuple[str, str], str]
    counts: dict[str, Any]
    manifest: dict[str, Any]
    seconds: float
    reused: bool

    def features_config(self) -> FeaturesConfig:
        """The features as they were prepared."""
        return FeaturesConfig.model_validate(self.manifest["features"])

    def tasks_config(self) -> dict[str, TaskConfig]:
        """The tasks as they were prepared."""
        return {k: TaskConfig.model_validate(v) for k, v in self.manifest["tasks"].items()}

    def uses(self) -> list[ColumnUse]:
        """Uses of columns in the order of the encoded columns."""
        return column_uses(
            self.features_config(),
            self.tasks_config(),
            weight=self.manifest["weight"],
            group=self.manifest["group"],
        )


def encoded_columns(uses: list[ColumnUse]) -> dict[tuple[str, str], str]:
    """Names of encoded columns by (kind, name)."""
    kinds = {"id": "sparse", "bins": "sparse"}
    return {(kinds.get(use.kind, use.kind), use.name): f"c{i}" for i, use in enumerate(uses)}


def load_prepared(folder: Path) -> Prepared:
    """Opens a ``vocabularies`` folder; its splits are those whose encoded rows are beside it.

    Raises:
        InputError: if the folder is incomplete.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise InputError(f"{folder} holds no prepared vocabularies ({MANIFEST} is missing)")
    manifest = json.loads(path.read_text())
    if manifest["format"] != FORMAT:
        raise InputError(
            f"{path} has format {manifest['format']}, this version reads format {FORMAT}"
        )
    features = FeaturesConfig.model_validate(manifest["features"])
    tasks = {name: TaskConfig.model_validate(task) for name, task in manifest["tasks"].items()}
    uses = column_uses(features, tasks, weight=manifest["weight"], group=manifest["group"])
    splits = {
        name: Split(name, split["rows"], tuple(split["files"]), folder.parent / f"{name}.parquet")
        for name, split in manifest["splits"].items()
    }
    return Prepared(
        folder=folder.parent,
        vocabulary_folder=folder,
        key=manifest["key"],
        splits={name: split for name, split in splits.items() if split.path.exists()},
        vocabularies={
            name: Vocabulary(
                name, folder / file, read_counts(folder / file), manifest["bucket_ids"][name]
            )
            for name, file in manifest["vocabularies"].items()
        },
        feature_vocabulary={name: f.vocabulary or name for name, f in features.sparse.items()},
        list_features=frozenset(manifest["list_features"]),
        sparse=tuple(features.sparse),
        dense=tuple(features.dense),
        tasks=tuple(tasks),
        columns=encoded_columns(uses),
        counts=manifest["counts"],
        manifest=manifest,
        seconds=0.0,
        reused=True,
    )


def copy_vocabularies(prepared: Prepared, folder: Path) -> None:
    """Copies the vocabularies folder to ``folder``, which ``load_prepared`` then opens.

    A folder that is there is replaced; a copy that is cut off does not count.
    """
    temporary = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(prepared.vocabulary_folder, temporary)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
