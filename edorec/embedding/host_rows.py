"""Tables with placement ``uvm``: their most used rows on the device, the rest in the host's memory.

Kernels read and write the latter where they are, over the bus, or copies that were made before
their batch came (see ``kernels.triton_staging``). Ids are in order of frequency, so
the first rows are those that batches use; buckets, the last rows, are shared by many ids and may be
used more than any of them. No row ever moves, so there is no index, and nothing to evict.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from edorec.embedding.admission import I64, RowMap
from edorec.embedding.bands import NO_ROWS, Band, BandMemory, bucket_lookups, num_bytes
from edorec.embedding.kernels.layout import (
    HOST_LOOKUPS,
    LOOKUPS,
    READ_BYTES,
    STAGED_LOOKUPS,
    TRAFFIC_COLUMNS,
    WRITTEN_BYTES,
)


def choose_host_rows(
    bands: Sequence[Band],
    *,
    row_map: RowMap,
    counts: I64,
    dim: int,
    optimizer: str,
    load_factor: float,
) -> range:
    """Rows that are in the host's memory; the others, the most used, are on the device.

    Args:
        bands: of the table.
        row_map: which ids have rows of their own.
        counts: training look-ups of each id, descending.
        dim: of the rows.
        optimizer: whose state lies with them.
        load_factor: most bytes on the device, as a share of the table's.
    """
    own, rows = row_map.num_own_rows, row_map.num_rows
    budget = int(load_factor * num_bytes(bands, dim=dim, optimizer=optimizer))
    buckets = bytes_of_rows(bands, range(own, rows), dim=dim, optimizer=optimizer)
    first = _num_first(bands, budget - buckets, dim=dim, optimizer=optimizer)
    if buckets <= budget and (first >= own or bucket_lookups(row_map, counts) >= counts[first]):
        return range(first, own) if first < own else NO_ROWS
    return range(min(_num_first(bands, budget, dim=dim, optimizer=optimizer), own), rows)


def bytes_of_rows(bands: Sequence[Band], rows: range, *, dim: int, optimizer: str) -> int:
    """Bytes of consecutive rows of a table and their optimizer state."""
    inside, first = [], 0
    for band in bands:
        low, high = max(first, rows.start), min(first + band.num_rows, rows.stop)
        inside.append(replace(band, num_rows=max(high - low, 0)))
        first += band.num_rows
    return num_bytes(inside, dim=dim, optimizer=optimizer)


def _num_first(bands: Sequence[Band], budget: int, *, dim: int, optimizer: str) -> int:
    """How many of the first rows take at most ``budget`` bytes."""
    count = 0
    for band in bands:
        size = num_bytes([replace(band, num_rows=1)], dim=dim, optimizer=optimizer)
        fitting = min(band.num_rows, max(budget, 0) // size)
        count, budget = count + fitting, budget - fitting * size
        if fitting < band.num_rows:
            break
    return count


@dataclass(frozen=True)
class HostTraffic:
    """What tables with rows in the host's memory hold, and what kernels did there.

    Attributes:
        counters: see ``kernels.layout``.
        device_bytes: of these tables on the device.
        host_bytes: of these tables in the host's memory.
    """

    counters: list[int]
    device_bytes: int
    host_bytes: int

    def summary(self) -> dict[str, Any]:
        """For reports.

        Returns:
            ``hit_rate``: of the look-ups, how many were of a row that is on the device, None
            before the first; ``prefetch_rate``: of the others, how many found their row fetched
            ahead, likewise; ``read_bytes`` and ``written_bytes`` of rows in the host's memory;
            ``device_bytes`` and ``host_bytes`` of the tables.
        """
        lookups, misses = self.counters[LOOKUPS], self.counters[HOST_LOOKUPS]
        return {
            "hit_rate": (lookups - misses) / lookups if lookups else None,
            "prefetch_rate": self.counters[STAGED_LOOKUPS] / misses if misses else None,
            "read_bytes": self.counters[READ_BYTES],
            "written_bytes": self.counters[WRITTEN_BYTES],
            "device_bytes": self.device_bytes,
            "host_bytes": self.host_bytes,
        }


class Traffic:
    """Counts what kernels read and write in the host's memory.

    Args:
        device: of the tables.

    Attributes:
        address: of the counters, on the device; see ``kernels.layout``.
    """

    def __init__(self, device: torch.device) -> None:
        self._counters = torch.zeros(TRAFFIC_COLUMNS, dtype=torch.int64, device=device)
        self.address = self._counters.data_ptr()

    def of(self, memories: Sequence[BandMemory]) -> HostTraffic:
        """The counts so far, and the bytes of the tables with rows in the host's memory."""
        sizes = [0, 0]
        for memory in memories:
            sizes[memory.on_host] += memory.rows_RS.nbytes
        return HostTraffic(self._counters.tolist(), *sizes)
