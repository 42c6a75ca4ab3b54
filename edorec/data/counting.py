"""Between the two passes: counts the training ids into vocabularies and finds bin edges, in DuckDB.

DuckDB keeps to a memory limit (by default half of what is free) and spills to the new cache folder.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from edorec.cpus import num_cpus
from edorec.data.columns import ColumnUse
from edorec.data.encode import Encoder, bin_hashes
from edorec.data.growth import Growth
from edorec.data.numbers import F64, bin_edges
from edorec.data.schema import FeaturesConfig
from edorec.data.stage import Staged
from edorec.data.vocabulary import (
    MAX_IDS,
    U64,
    RankTable,
    count_ids,
    quoted,
    safe_file_name,
    write_vocabulary,
)
from edorec.errors import InputError

SPILL = "spill"  # folder of what is written and read again
LEAST_MEMORY_BYTES = 256 * 2**20


def free_memory_bytes() -> int:
    """Memory this process may still take: of the machine, and of its control group if limited."""
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":", 1) for line in file)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        if os.path.exists(limit) and os.path.exists(used):
            text = Path(limit).read_text().strip()
            if text != "max":
                free = min(free, int(text) - int(Path(used).read_text()))
    return max(free, 0)


@contextmanager
def open_database(folder: Path, *, memory_limit: str | None) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB in memory that spills to ``folder``.

    Raises:
        InputError: if the limit cannot be read or does not suffice.
    """
    limit = memory_limit or f"{max(free_memory_bytes() // 2, LEAST_MEMORY_BYTES) // 2**20}MiB"
    spill = folder / SPILL
    spill.mkdir()
    try:
        with duckdb.connect(
            config={
                "memory_limit": limit,
                "threads": num_cpus(),
                "temp_directory": str(spill),
                "preserve_insertion_order": False,
            }
        ) as connection:
            yield connection
    except duckdb.OutOfMemoryException as error:
        raise InputError(
            f"{limit} of memory do not suffice to count ids; raise data.memory_limit"
        ) from error
    except duckdb.ParserException as error:
        raise InputError(f"data.memory_limit is {limit}: {error}") from error
    except duckdb.IOException as error:
        raise InputError(f"cannot count ids in {folder}: {error}") from error


def find_bins(
    connection: duckdb.DuckDBPyConnection,
    staged: Staged,
    uses: Sequence[ColumnUse],
    features: FeaturesConfig,
    known: Mapping[str, F64],
) -> tuple[dict[str, F64], dict[str, dict[int, int]]]:
    """Bin edges from training quantiles, and training counts by hash of the bins, by feature.

    Edges that are ``known`` are kept.
    """
    edges: dict[str, F64] = {}
    counts: dict[str, dict[int, int]] = {}
    for index, use in enumerate(uses):
        if use.kind != "bins":
            continue
        column = f"c{index}"
        found = connection.execute(
            f"SELECT {column} AS v, count(*) AS n FROM read_parquet('{quoted(staged.path)}') "
            "GROUP BY v ORDER BY v"
        ).fetchnumpy()
        values = np.ma.getdata(found["v"]).astype(np.float64)
        numbers = np.ma.getdata(found["n"]).astype(np.int64)
        is_null = np.isnan(values)
        bins = features.sparse[use.name].bins
        assert bins is not None
        edges[use.name] = (
            known[use.name]
            if use.name in known
            else bin_edges(values[~is_null], numbers[~is_null], bins)
        )
        hashes, places = np.unique(bin_hashes(values, edges[use.name]), return_inverse=True)
        sums = np.bincount(places, weights=numbers).astype(np.int64)
        counts[use.name] = dict(zip(hashes.tolist(), sums.tolist(), strict=True))
    return edges, counts


@dataclass(frozen=True)
class Member:
    """A feature that uses a vocabulary.

    Attributes:
        name: of the feature.
        column: its staged column.
        is_list: whether it holds lists.
        bin_counts: training counts by hash of a feature with bins, else None.
    """

    name: str
    column: str
    is_list: bool
    bin_counts: Mapping[int, int] | None

    def query(self, connection: duckdb.DuckDBPyConnection, rows: Path, number: int) -> str:
        """Query of (h, n, feature) over staged training rows."""
        if self.bin_counts is not None:
            hashes = pa.array(list(self.bin_counts), pa.uint64())
            counts = pa.array(self.bin_counts.values(), pa.int64())
            connection.register(f"bins_{number}", pa.table({"h": hashes, "n": counts}))
            return f"SELECT h, n, {number} AS feature FROM bins_{number}"
        ids = f"unnest({self.column})" if self.is_list else self.column
        source = f"(SELECT {ids} AS h FROM read_parquet('{quoted(rows)}'))"
        return f"SELECT h, count(*) AS n, {number} AS feature FROM {source} GROUP BY h"


def vocabulary_members(
    uses: Sequence[ColumnUse],
    features: FeaturesConfig,
    lists: frozenset[str],
    bin_counts: Mapping[str, Mapping[int, int]],
) -> dict[str, list[Member]]:
    """The features of each vocabulary."""
    members: dict[str, list[Member]] = {}
    for index, use in enumerate(uses):
        if use.kind in ("id", "bins"):
            vocabulary = features.sparse[use.name].vocabulary or use.name
            member = Member(use.name, f"c{index}", use.name in lists, bin_counts.get(use.name))
            members.setdefault(vocabulary, []).append(member)
    return members


def build_vocabularies(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    *,
    staged: Staged,
    members: Mapping[str, Sequence[Member]],
    taken: Mapping[str, U64],
    growth: Growth | None,
) -> tuple[dict[str, str], dict[str, RankTable]]:
    """Counts the training ids of every vocabulary and writes its file.

    Args:
        connection: DuckDB.
        folder: of the vocabularies.
        staged: training rows.
        members: features by vocabulary.
        taken: hashes by rank of the vocabularies that are there already, made elsewhere.
        growth: vocabularies that these grow from, if any.

    Returns:
        File name and rank table by vocabulary.

    Raises:
        InputError: if a vocabulary has more ids than an encoded id can tell apart.
    """
    files = vocabulary_files(members)
    tables = {name: RankTable(hashes) for name, hashes in taken.items()}
    for name, users in members.items():
        if name in taken:
            continue
        names = [member.name for member in users]
        parts = [m.query(connection, staged.path, k) for k, m in enumerate(users)]
        texts = [staged.texts[feature] for feature in names if feature in staged.texts]
        if growth is not None and growth.has(name):
            parts += growth.queries(connection, name, names)
            texts += growth.texts(name, folder.parent / SPILL)
        hashes, counts, by_feature = count_ids(connection, parts, num_features=len(users))
        if len(hashes) > MAX_IDS:
            raise InputError(
                f"vocabulary {name} has {len(hashes)} ids; more than {MAX_IDS} cannot be encoded"
            )
        write_vocabulary(
            connection,
            folder / files[name],
            hashes=hashes,
            counts=counts,
            by_feature=dict(zip(names, by_feature, strict=False)),
            texts=texts,
        )
        tables[name] = RankTable(hashes)
    return files, tables


def vocabulary_files(names: Iterable[str]) -> dict[str, str]:
    """File name of each vocabulary."""
    return {name: f"{safe_file_name(name, k)}.parquet" for k, name in enumerate(names)}


def build_encoders(
    uses: Sequence[ColumnUse], manifest: Mapping[str, Any], tables: Mapping[str, RankTable]
) -> list[Encoder]:
    """Fresh encoders of all columns from what the manifest says."""
    lists = manifest["list_features"]
    encoders = []
    for use in uses:
        if use.kind in ("id", "bins"):
            vocabulary = manifest["features"]["sparse"][use.name]["vocabulary"] or use.name
            edges = manifest["bin_edges"].get(use.name)
            encoder = Encoder(
                use,
                is_list=use.name in lists,
                table=tables[vocabulary],
                edges=None if edges is None else np.array(edges, dtype=np.float64),
            )
        elif use.kind == "dense":
            encoder = Encoder(use, scale=tuple(manifest["dense_scale"][use.name]))
        else:
            encoder = Encoder(use)
        encoders.append(encoder)
    return encoders
