"""Copies of tables as they were at one moment, made while training goes on.

Tables are copied page by page by another thread. Before an update changes a page that is not yet
copied, the training thread copies it first, so all pages are those of the step at which the
snapshot began, and no second table is ever in memory: copies wait in a few buffers, and where the
disk is too slow for those, training waits. Every update marks the pages that it changes, so a later
snapshot may hold those alone.

Tables whose updates cannot be watched (on a GPU) are copied to the host when a snapshot begins, and
every page of theirs counts as changed.
"""

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from edorec.embedding.build import EmbeddingTables
from edorec.embedding.kernels.changed_pages import claim, copy_pages, touch
from edorec.embedding.kernels.layout import PAGE_BYTES, Lookups, UpdateWatch, table_slots
from edorec.embedding.storage import read_ahead

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

BUFFER_PAGES = 1024  # 1 MB, which takes the training thread's lock for well under a millisecond
LEAST_BUFFERS = 16
BUFFER_SHARE = 0.02  # of the tables' bytes


@dataclass(frozen=True)
class BandPages:
    """Where the rows of a band are among the pages.

    Attributes:
        table: the table's name.
        band: key in ``tables_state``, which names the format.
        buckets: of the shard that the rows are of; see ``edorec.embedding.shards``.
        first_row: of the rows in that shard.
        num_rows: rows.
        row_bytes: bytes of a row with its optimizer state.
        first_page: number of its first page.
    """

    table: str
    band: str
    buckets: tuple[int, ...]
    first_row: int
    num_rows: int
    row_bytes: int
    first_page: int

    @property
    def end_page(self) -> int:
        """Number behind its last page."""
        return self.first_page - (-self.num_rows * self.row_bytes // PAGE_BYTES)


def band_pages(tables: EmbeddingTables) -> list[BandPages]:
    """The bands of all tables in order, numbered."""
    bands: list[BandPages] = []
    shards = tables.shards()
    for table, tensors in tables.tables_state().items():
        first_row = 0
        for key, tensor in tensors.items():
            bands.append(
                BandPages(
                    table=table,
                    band=key,
                    buckets=shards[table].buckets,
                    first_row=first_row,
                    num_rows=len(tensor),
                    row_bytes=tensor.stride(0) * tensor.element_size(),
                    first_page=bands[-1].end_page if bands else 0,
                )
            )
            if "weight" not in tensors:  # FBGEMM's rows and states stand side by side
                first_row += len(tensor)
    return bands


class TableSnapshots:
    """Takes snapshots of tables, one at a time; see the head of the module.

    Attributes:
        bands: where rows are among the pages.
        changed: uint8, one a page, whether it may have changed since the last whole snapshot began.
    """

    def __init__(self, tables: EmbeddingTables) -> None:
        self.bands = band_pages(tables)
        self._tables = tables
        self._first_pages = np.array([band.first_page for band in self.bands], np.int64)
        num_pages = self.bands[-1].end_page if self.bands else 0
        self.changed = np.ones(num_pages, np.uint8)
        self._pending = np.zeros(num_pages, np.uint8)
        self._addresses = np.empty(0, np.int64)
        self._copies: list[torch.Tensor] = []
        self._has_changed = threading.Condition()
        self._staged: deque[tuple[I64, U8]] = deque()
        self._free: list[U8] = []
        self._num_buffers = 0
        self._most_buffers = max(LEAST_BUFFERS, int(BUFFER_SHARE * num_pages / BUFFER_PAGES))
        widest = max((band.row_bytes for band in self.bands), default=0)
        self._most_pages_a_row = 2 + widest // PAGE_BYTES
        self._is_running = False
        self._is_staging = False
        page_flags = self.changed.ctypes.data + self._first_pages
        self._is_live = tables.watch_updates(UpdateWatch(self._before_update, page_flags))

    @property
    def changed_share(self) -> float:
        """Share of the pages that may have changed since the last whole snapshot began."""
        return float(self.changed.mean()) if self.changed.size else 0.0

    def close(self) -> None:
        """Ends the watch over updates."""
        self._tables.watch_updates(None)

    def begin(self, *, whole: bool) -> None:
        """Begins a snapshot of the tables as they are now, between two updates.

        Args:
            whole: of all pages; else of those changed since the last whole one began.
        """
        tensors = [t for table in self._tables.tables_state().values() for t in table.values()]
        if not self._is_live:
            tensors = self._copies = [_copy(tensor) for tensor in tensors]
        with self._has_changed:
            self._is_running = True
            self._addresses = np.array([t.data_ptr() for t in tensors], np.int64)
            self._pending[:] = 1 if whole else self.changed
            if whole and self._is_live:
                self.changed[:] = 0

    def chunks(self) -> Iterator[tuple[I64, U8]]:
        """The pages of the snapshot that has begun: numbers, and uint8 (pages, PAGE_BYTES).

        To be used from another thread, each chunk before the next is taken.
        """
        start = 0
        own = np.empty((BUFFER_PAGES, PAGE_BYTES), np.uint8)
        found = np.empty(BUFFER_PAGES, np.int64)
        self._read_ahead(start)
        while True:
            self._read_ahead(start + BUFFER_PAGES)
            with self._has_changed:
                self._has_changed.wait_for(lambda: self._staged or not self._is_staging)
                staged = self._staged.popleft() if self._staged else None
                if staged is None:
                    count, start = claim(self._pending, start, found)
                    self._copy(found[:count], own)
            if staged is not None:
                numbers, buffer = staged
                yield numbers, buffer[: len(numbers)]
                with self._has_changed:
                    self._free.append(buffer)
                    self._has_changed.notify_all()
            elif count:
                yield found[:count], own[:count]
            else:
                self.end()
                return

    def _read_ahead(self, start: int) -> None:
        """Has the system read pages from their files, if most of a chunk's are wanted."""
        wanted = np.flatnonzero(self._pending[start : start + BUFFER_PAGES]) + start
        if len(wanted) < BUFFER_PAGES / 2:
            return
        bands = np.searchsorted(self._first_pages, wanted, side="right") - 1
        for band in np.unique(bands):
            first, last = wanted[bands == band][[0, -1]].tolist()
            place = (first - int(self._first_pages[band])) * PAGE_BYTES
            read_ahead(int(self._addresses[band]) + place, (last + 1 - first) * PAGE_BYTES)

    def end(self) -> None:
        """Ends the snapshot, complete or given up, and frees its buffers."""
        with self._has_changed:
            self._is_running = False
            self._pending[:] = 0
            self._staged.clear()
            self._free, self._num_buffers, self._copies = [], 0, []
            self._has_changed.notify_all()

    def _before_update(
        self, bands: I64, tables: I64, lookups: Lookups, *, first_band: int = 0
    ) -> None:
        """Saves the pages that an update is about to change and that are still to be copied."""
        if not self._is_running:
            return
        offsets = lookups.offsets.numpy()
        num_lookups = table_slots(lookups.features, offsets, len(tables))[-1]
        found = np.empty(self._most_pages_a_row * num_lookups, np.int64)
        with self._has_changed:
            count = touch(
                bands,
                tables,
                lookups.features,
                lookups.values.numpy(),
                offsets,
                self._first_pages[first_band:],
                self._pending,
                found,
            )
            self._is_staging = count > 0
            for first in range(0, count, BUFFER_PAGES):
                self._stage(found[first : min(first + BUFFER_PAGES, count)])
            self._is_staging = False
            self._has_changed.notify_all()

    def _stage(self, numbers: I64) -> None:
        """Copies pages into a buffer; waits for one to be free. Holds the lock."""
        if not self._free and self._num_buffers < self._most_buffers:
            self._num_buffers += 1
            self._free.append(np.empty((BUFFER_PAGES, PAGE_BYTES), np.uint8))
        self._has_changed.wait_for(lambda: self._free or not self._is_running)
        if self._is_running:
            buffer = self._free.pop()
            self._copy(numbers, buffer)
            self._staged.append((numbers, buffer))
            self._has_changed.notify_all()

    def _copy(self, numbers: I64, out: U8) -> None:
        copy_pages(numbers, self._first_pages, self._addresses, out.ctypes.data)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes on the host, with room up to the end of the last page."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    copy = torch.zeros(-(-len(flat) // PAGE_BYTES) * PAGE_BYTES, dtype=torch.uint8)
    copy[: len(flat)] = flat
    return copy
