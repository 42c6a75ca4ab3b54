"""Between the two passes: counts the training ids into vocabularies and finds bin edges, in DuckDB.

DuckDB keeps to a memory limit (by default half of what is free) and spills to the new cache folder.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from edorec.cpus import num_cpus
from edorec.data.columns import ColumnUse
from edorec.data.encode import Encoder, bin_hashes
from edorec.data.numbers import F64, bin_edges
from edorec.data.schema import FeaturesConfig
from edorec.data.stage import Staged
from edorec.data.vocabulary import (
    MAX_IDS,
    RankTable,
    count_ids,
    quoted,
    safe_file_name,
    write_vocabulary,
)
from edorec.errors import InputError

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
    spill = folder / "spill"
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
) -> tuple[dict[str, F64], dict[str, dict[int, int]]]:
    """Bin edges from training quantiles, and training counts by hash of the bins, by feature."""
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
        edges[use.name] = bin_edges(values[~is_null], numbers[~is_null], bins)
        hashes, places = np.unique(bin_hashes(values, edges[use.name]), return_inverse=True)
        sums = np.bincount(places, weights=numbers).astype(np.int64)
        counts[use.name] = dict(zip(hashes.tolist(), sums.tolist(), strict=True))
    return edges, counts


def build_vocabularies(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    *,
    staged: Staged,
    uses: Sequence[ColumnUse],
    features: FeaturesConfig,
    lists: frozenset[str],
    bin_counts: Mapping[str, Mapping[int, int]],
) -> tuple[dict[str, str], dict[str, RankTable]]:
    """Counts the training ids of every vocabulary and writes its file.

    Returns:
        File name and rank table by vocabulary.

    Raises:
        InputError: if a vocabulary has more ids than an encoded id can tell apart.
    """
    users: dict[str, list[tuple[str, ColumnUse]]] = {}
    for index, use in enumerate(uses):
        if use.kind in ("id", "bins"):
            vocabulary = features.sparse[use.name].vocabulary or use.name
            users.setdefault(vocabulary, []).append((f"c{index}", use))
    files: dict[str, str] = {}
    tables: dict[str, RankTable] = {}
    for name, members in users.items():
        extra: dict[int, int] = {}
        for _, use in members:
            for key, count in bin_counts.get(use.name, {}).items():
                extra[key] = extra.get(key, 0) + count
        hashes, counts = count_ids(
            connection,
            rows=staged.path,
            scalars=[c for c, use in members if use.kind == "id" and use.name not in lists],
            lists=[c for c, use in members if use.name in lists],
            extra=extra,
        )
        if len(hashes) > MAX_IDS:
            raise InputError(
                f"vocabulary {name} has {len(hashes)} ids; more than {MAX_IDS} cannot be encoded"
            )
        files[name] = f"{safe_file_name(name, len(files))}.parquet"
        texts = [staged.texts[use.name] for _, use in members if use.name in staged.texts]
        write_vocabulary(
            connection, folder / files[name], hashes=hashes, counts=counts, texts=texts
        )
        tables[name] = RankTable(hashes)
    return files, tables


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
