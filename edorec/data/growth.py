"""Vocabularies that grow: the counts of earlier data, decayed, join those of the new.

An id keeps a share ``decay`` of its count, rounded up or down by a random number of its hash, so
that it is right on average and an id seen once is not forgotten at once; at 0 it leaves. Means and
deviations of dense columns and edges of bins stay as they were, because the model has learned with
them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from edorec.data.hashing import IdHasher, mix
from edorec.data.numbers import F64
from edorec.data.prepared import VOCABULARIES, Prepared, load_prepared
from edorec.data.schema import DataConfig, FeaturesConfig
from edorec.data.source import expand
from edorec.data.vocabulary import I64, RankTable, feature_column, read_counts, read_hashes
from edorec.embedding.admission import RANK_MASK
from edorec.errors import ConfigError

NO_FEATURE = -1
GONE = -1


@dataclass(frozen=True)
class Growth:
    """What new data are added to.

    Attributes:
        base: vocabularies and statistics of the earlier data.
        decay: share of its count that an id keeps.
    """

    base: Prepared
    decay: float

    @property
    def number(self) -> int:
        """How many times the vocabularies have grown, this time included."""
        before: dict[str, Any] | None = self.base.manifest["growth"]
        return 1 + (before["number"] if before else 0)

    def manifest(self) -> dict[str, Any]:
        """What prepared data keep of it, and their cache key covers."""
        return {"key": self.base.key, "decay": self.decay, "number": self.number}

    def has(self, vocabulary: str) -> bool:
        """Whether there is such a vocabulary."""
        return vocabulary in self.base.vocabularies

    def keep_statistics(self, manifest: dict[str, Any]) -> None:
        """Puts back what must not change: scales of dense columns, what buckets are a share of."""
        for part in ("dense_scale", "bucket_ids"):
            earlier = self.base.manifest[part]
            manifest[part] = {n: earlier.get(n, value) for n, value in manifest[part].items()}

    def edges(self) -> dict[str, F64]:
        """Edges of bins by feature."""
        edges = self.base.manifest["bin_edges"].items()
        return {name: np.array(values, np.float64) for name, values in edges}

    def queries(
        self, connection: duckdb.DuckDBPyConnection, vocabulary: str, features: Sequence[str]
    ) -> list[str]:
        """Queries of (h, n, feature) of the earlier counts, decayed."""
        path = self.base.vocabularies[vocabulary].path
        hashes = read_hashes(path)
        noise = (mix(hashes + np.uint64(self.number)) >> np.uint64(11)) * 2.0**-53
        queries: list[str] = []
        for column in _count_columns(path):
            number = _number_of(column, features)
            counts = np.floor(read_counts(path, column) * self.decay + noise).astype(np.int64)
            kept = counts > 0
            name = f"earlier_{len(queries)}"
            connection.register(name, pa.table({"h": hashes[kept], "n": counts[kept]}))
            queries.append(f"SELECT h, n, {number} AS feature FROM {name}")
        return queries

    def texts(self, vocabulary: str, folder: Path) -> list[Path]:
        """A file (hash, id) of the ids that hashes do not give back, if there are any."""
        source = self.base.vocabularies[vocabulary].path
        if not pa.types.is_string(pq.read_schema(source).field("id").type):
            return []
        hasher = IdHasher()
        schema = pa.schema([("hash", pa.uint64()), ("id", pa.string())])
        target = folder / f"{source.stem}.earlier.parquet"
        with pq.ParquetFile(source) as file, pq.ParquetWriter(target, schema) as writer:
            for batch in file.iter_batches(columns=["id"]):
                ids = batch.column(0).drop_null()
                hashes = pa.array(hasher(ids))
                hasher.take_texts()
                writer.write_table(pa.Table.from_arrays([hashes, ids], schema=schema))
        return [target]

    def write_rank_maps(self, folder: Path, tables: Mapping[str, RankTable]) -> dict[str, str]:
        """Writes where earlier ranks have gone, a file for each vocabulary that was there.

        Returns:
            Name of the file by vocabulary.
        """
        files = {}
        for name in (name for name in tables if self.has(name)):
            source = self.base.vocabularies[name].path
            ranks = rank_map(source, tables[name])
            files[name] = f"{source.stem}.ranks"
            mapped = pa.array(ranks, mask=ranks == GONE)
            pq.write_table(pa.table({"rank": mapped}), folder / files[name])
        return files


def open_growth(data: DataConfig, features: FeaturesConfig) -> Growth | None:
    """What vocabularies grow from, None where they do not.

    Raises:
        ConfigError: if a feature with bins has another number of them there.
        InputError: if the folder holds no vocabularies.
    """
    if data.extend is None:
        return None
    run = Path(expand(data.extend, "data.extend"))
    growth = Growth(load_prepared(run / VOCABULARIES), data.decay)
    earlier = growth.base.features_config().sparse
    problems = [
        f"features.sparse.{name}.bins is {feature.bins}, and {earlier[name].bins} in {run}; bins "
        "keep their edges when vocabularies grow"
        for name, feature in features.sparse.items()
        if name in earlier and feature.bins != earlier[name].bins
    ]
    if problems:
        raise ConfigError(problems)
    return growth


def _count_columns(path: Path) -> list[str]:
    """The columns of single features where the file has them, else that of all."""
    names: list[str] = pq.read_schema(path).names
    return [name for name in names if name not in ("id", "count")] or ["count"]


def _number_of(column: str, features: Sequence[str]) -> int:
    """Number of the feature that a column's counts are of."""
    if column == "count":
        return 0 if len(features) == 1 else NO_FEATURE
    columns = [feature_column(name) for name in features]
    return columns.index(column) if column in columns else NO_FEATURE


def rank_map(earlier: Path, table: RankTable) -> I64:
    """New rank of each earlier rank, int64, ``GONE`` for an id that has left.

    Args:
        earlier: vocabulary file.
        table: of the new vocabulary.
    """
    codes = table.encode(read_hashes(earlier))
    ranks: I64 = (codes & RANK_MASK) - 1
    return ranks


def read_rank_map(path: Path) -> I64:
    """As ``rank_map`` gave it."""
    ranks: I64 = pq.read_table(path)["rank"].fill_null(GONE).to_numpy()
    return ranks
