"""Vocabularies: the ids of one entity, most frequent in the training rows first.

An encoded id is an int64: low 32 bits rank + 1, 0 for an id that training never saw; high 32 bits
the upper half of the id's 64-bit hash. Ranks go by count, descending, ties by hash, ascending, so
they depend on the data alone and favour no age. A null id has a rank like any other.

``vocabularies/<name>.parquet`` holds the columns id (int64, or string where some id is no int64;
null for the null id) and count, in order of rank; where several features share the vocabulary also
count_<feature> for each of them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from edorec.data.hashing import NULL_HASH, IdHasher, unmix
from edorec.errors import InputError

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
MAX_IDS = 2**32 - 2
_HIGH = np.uint64(0xFFFFFFFF00000000)


@dataclass(frozen=True)
class Vocabulary:
    """One vocabulary.

    Attributes:
        name: its name.
        path: Parquet file (id, count).
        counts: training look-ups of each id, by rank, so descending.
        bucket_ids: what a share of buckets is a share of: the ids of the first data that it was
            made from, so that the buckets of ids stay where they are as it grows; None: its ids.
    """

    name: str
    path: Path
    counts: I64
    bucket_ids: int | None = None

    @property
    def num_ids(self) -> int:
        """Ids seen in training, the null id among them."""
        return len(self.counts)

    def num_with_count(self, min_count: int) -> int:
        """Ids seen at least this often."""
        return int(np.searchsorted(-self.counts, -min_count, side="right"))

    def decile_cuts(self) -> I64:
        """int64 (9): first rank behind each tenth of the training look-ups.

        An id of rank r is in decile ``searchsorted(cuts, r, side="right")``, 0 the most frequent.
        """
        reached = np.cumsum(self.counts)
        if not len(reached):
            return np.zeros(9, dtype=np.int64)
        cuts = np.arange(1, 10) * (reached[-1] / 10)
        behind: I64 = np.searchsorted(reached, cuts, side="left") + 1
        return behind


class RankTable:
    """Ranks by hash, in 14 to 16 bytes an id.

    Hashes are uniform, so the upper bits of a hash say where it lies in the sorted list; a table of
    these places saves nearly all steps of a binary search.
    """

    def __init__(self, hashes_by_rank: U64) -> None:
        self.num_ids = len(hashes_by_rank)
        order = np.argsort(hashes_by_rank)
        # The last entry stops every search; it means "not seen".
        self._hashes = np.append(hashes_by_rank[order], np.uint64(2**64 - 1))
        self._codes = np.zeros(self.num_ids + 1, dtype=np.uint32)
        self._codes[:-1] = order + 1
        bits = max(self.num_ids.bit_length() - 1, 4)
        self._shift = np.uint64(64 - bits)
        tops = (self._hashes[:-1] >> self._shift).astype(np.int64)
        sizes = np.bincount(tops, minlength=1 << bits)
        self._starts = (np.cumsum(sizes) - sizes).astype(np.uint32)

    def encode(self, hashes: U64) -> I64:
        """Encoded ids of hashes."""
        places = self._starts[hashes >> self._shift].astype(np.int64)
        found = self._hashes[places]
        behind = np.flatnonzero(found < hashes)
        while len(behind):
            places[behind] += 1
            found[behind] = self._hashes[places[behind]]
            behind = behind[found[behind] < hashes[behind]]
        codes = np.where(found == hashes, self._codes[places], np.uint32(0))
        encoded: I64 = ((hashes & _HIGH) | codes).view(np.int64)
        return encoded


def safe_file_name(name: str, index: int) -> str:
    """A file name for a vocabulary: its name where that is plain, else escaped and numbered."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", name) and name == name.lower():
        return name
    return f"{quote(name, safe='')[:60].replace('%', '=')}.{index}"


def count_ids(
    connection: duckdb.DuckDBPyConnection, parts: Sequence[str], *, num_features: int
) -> tuple[U64, I64, list[I64]]:
    """Hashes and counts in order of rank, and of several features also the counts of each.

    Args:
        connection: DuckDB.
        parts: queries of (h, n, feature): hash, count, number of the feature, -1 for none of them.
        num_features: features that use the vocabulary.
    """
    by_feature = [f"n{k}" for k in range(num_features)] if num_features > 1 else []
    sums = [
        f"CAST(coalesce(sum(n) FILTER (WHERE feature = {k}), 0) AS BIGINT) AS {column}"
        for k, column in enumerate(by_feature)
    ]
    columns = ", ".join(["h", "CAST(sum(n) AS BIGINT) AS n", *sums])
    query = f"SELECT {columns} FROM ({' UNION ALL '.join(parts)}) GROUP BY h ORDER BY n DESC, h"
    found = connection.execute(query).fetchnumpy()
    arrays = {name: np.ascontiguousarray(np.ma.getdata(values)) for name, values in found.items()}
    return arrays["h"], arrays["n"], [arrays[name] for name in by_feature]


def write_vocabulary(
    connection: duckdb.DuckDBPyConnection,
    path: Path,
    *,
    hashes: U64,
    counts: I64,
    by_feature: Mapping[str, I64],
    texts: Sequence[Path],
) -> None:
    """Writes (id, count, count_<feature> ...) in order of rank.

    Args:
        connection: DuckDB.
        path: file to write.
        hashes: by rank.
        counts: by rank.
        by_feature: counts of each feature, by rank.
        texts: files (hash, id) of the ids that hashes do not give back.
    """
    is_null = hashes == NULL_HASH
    ids = pa.array(unmix(hashes), mask=is_null)
    columns = {feature_column(name): values for name, values in by_feature.items()}
    ranked = pa.table({"id": ids, "count": counts, **columns})
    if texts:
        files = ", ".join(f"'{quoted(file)}'" for file in texts)
        ranked = ranked.append_column("h", pa.array(hashes))
        ranked = ranked.append_column("rank", pa.array(np.arange(len(hashes))))
        connection.register("ranked", ranked)
        connection.execute(
            "COPY (SELECT coalesce(t.id, CAST(r.id AS VARCHAR)) AS id, r.* EXCLUDE (id, h, rank) "
            "FROM ranked AS r LEFT JOIN (SELECT hash, min(id) AS id FROM "
            f"read_parquet([{files}]) GROUP BY hash) AS t ON r.h = t.hash ORDER BY r.rank) "
            f"TO '{quoted(path)}' (FORMAT parquet)"
        )
        connection.unregister("ranked")
    else:
        pq.write_table(ranked, path)


def feature_column(feature: str) -> str:
    """Column of a vocabulary file with the counts of one of several features."""
    return f"count_{feature}"


def read_counts(path: Path, column: str = "count") -> I64:
    """Counts of a vocabulary file by rank.

    Raises:
        InputError: if the file is missing or damaged.
    """
    try:
        counts: I64 = pq.read_table(path, columns=[column])[column].to_numpy()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise InputError(f"{path} is not a sound vocabulary: {error}") from error
    return counts


def feature_counts(vocabulary: Vocabulary, feature: str) -> I64:
    """Training look-ups by one feature of each id that it has, descending.

    Those of the whole vocabulary where the file does not tell features apart.
    """
    column = feature_column(feature)
    if column not in pq.read_schema(vocabulary.path).names:
        return vocabulary.counts
    counts = read_counts(vocabulary.path, column)
    descending: I64 = -np.sort(-counts[counts > 0])
    return descending


def read_hashes(path: Path) -> U64:
    """Hashes of a vocabulary file's ids, by rank."""
    hasher = IdHasher()
    with pq.ParquetFile(path) as file:
        parts = [hasher(batch.column(0)) for batch in file.iter_batches(columns=["id"])]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)


def quoted(path: Path) -> str:
    """A path inside a quoted SQL string."""
    return str(path).replace("'", "''")
