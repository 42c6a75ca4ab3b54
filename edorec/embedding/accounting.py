"""Memory of embedding tables in bytes, as allocated and as FP32 would take.

``baseline_bytes`` is the denominator of every fraction that a run states: the same tables, shared
as configured, an FP32 row for every id of the training data (a task's own table: for the ids it is
for), 4 bytes of optimizer state a row.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

FP32_BYTES = 4
STATE_BYTES = 4


@dataclass(frozen=True)
class TableBytes:
    """One table as it is held in memory.

    Attributes:
        name: the vocabulary's name, with @ and the task's for rows of one task.
        num_ids: ids of the training data that it is for, with or without a row of their own.
        rows: rows allocated, buckets included.
        buckets: rows shared by hash.
        dim: embedding dim without padding.
        format: row format.
        placement: where the rows are.
        weights_bytes: bytes allocated for rows, padding included.
        optimizer_bytes: bytes allocated for optimizer state.
    """

    name: str
    num_ids: int
    rows: int
    buckets: int
    dim: int
    format: str
    placement: str
    weights_bytes: int
    optimizer_bytes: int


def memory_report(
    tables: Iterable[TableBytes], *, peak_rss_bytes: int, paging: dict[str, Any] | None
) -> dict[str, Any]:
    """The ``memory`` part of report.json; ``paging``: see ``EmbeddingTables.paging``."""
    tables = list(tables)
    fp32_bytes = sum(table.num_ids * table.dim * FP32_BYTES for table in tables)
    weights_bytes = sum(table.weights_bytes for table in tables)
    optimizer_bytes = sum(table.optimizer_bytes for table in tables)
    # Only FBGEMM holds cached rows twice; a page in memory is the page of the file.
    cache_bytes = 0 if paging is None else paging.get("cache_bytes", 0)
    return {
        "baseline_bytes": fp32_bytes + sum(table.num_ids for table in tables) * STATE_BYTES,
        "fp32_bytes": fp32_bytes,
        "weights_bytes": weights_bytes,
        "optimizer_bytes": optimizer_bytes,
        "index_bytes": 0,  # encoded data hold rows already: training keeps no id index
        "cache_bytes": cache_bytes,
        "total_bytes": weights_bytes + optimizer_bytes + cache_bytes,
        "disk_bytes": sum(
            table.weights_bytes + table.optimizer_bytes
            for table in tables
            if table.placement == "disk"
        ),
        "serving_bytes": None,
        "peak_rss_bytes": peak_rss_bytes,
        "paging": paging,
        "tables": [dict(vars(table)) for table in tables],
    }
