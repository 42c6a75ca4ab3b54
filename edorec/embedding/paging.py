"""Tables on disk: the pages in use are in memory, the others in files without a name.

A band on disk is a map of a file, which kernels read and write as they do any memory. What is here
changes no result, only what is in memory when: pages of the next batch are fetched while the
present one trains, and where there is a limit, the pages that the fewest batches used are taken out
of memory. Ids are in order of frequency, so hot rows share pages and stay. (To take out those not
used for longest would push them out for the many pages that are used once.)

Whatever else walks through tables (initial rows, checkpoints, a model's file) brings pages in
behind the pager's back. So a thread watches the file pages that the process has mapped, and takes
out what is not in use when they are more than the limit.
"""

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edorec.embedding.bands import BandMemory
from edorec.embedding.kernels import disk_pages as kernels
from edorec.embedding.kernels.layout import ADDRESS, Lookups, table_slots
from edorec.memory_use import mapped_file_bytes, resident_bytes_at

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

WATCH_SECONDS = 0.005  # in which a walk through a table maps some 20 MB
LOW_WATER = 0.95  # of the limit: pages are taken out some at a time
SLACK = 0.05  # of the limit, by which more may be mapped than is in the books
AGEING = 2000  # batches, twice; then earlier uses count half
MOST_PAGES_A_ROW = 2  # a page is at least as large as a row


@dataclass(frozen=True)
class DiskSettings:
    """How tables on disk are paged.

    Attributes:
        folder: of the files.
        page_rows: rows of a page, rounded down to whole pages of the operating system.
        resident_bytes: most bytes of pages in memory, None for as many as the system gives.
        keep_cached: what is taken out of the process may stay in the system's cache of files.
    """

    folder: Path
    page_rows: int
    resident_bytes: int | None
    keep_cached: bool


@dataclass
class PagingFigures:
    """What paging did so far.

    Attributes:
        used_pages: pages that batches used, each counted once a batch.
        hit_pages: those that were in memory when their batch came.
        read_bytes: pages that came into memory, those that were fetched ahead included.
        written_bytes: pages that were changed and then taken out of memory.
        resident_bytes: pages in memory now.
        peak_bytes: most of them at once.
    """

    used_pages: int = 0
    hit_pages: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    resident_bytes: int = 0
    peak_bytes: int = 0

    def summary(self) -> dict[str, Any]:
        """For reports; the hit rate is null before the first batch."""
        return {
            "hit_rate": self.hit_pages / self.used_pages if self.used_pages else None,
            "read_bytes": self.read_bytes,
            "written_bytes": self.written_bytes,
            "resident_bytes": self.resident_bytes,
            "peak_resident_bytes": self.peak_bytes,
        }


class Pager:
    """Moves pages of tables on disk in and out of memory; see the head of the module.

    Args:
        memories: bands of all tables in order, those on disk among them.
        bands: of ``kernels.layout``.
        tables: likewise.
        settings: see ``DiskSettings``.

    Attributes:
        figures: see ``PagingFigures``.
    """

    def __init__(
        self,
        memories: Sequence[BandMemory],
        *,
        bands: I64,
        tables: I64,
        settings: DiskSettings,
        figures: PagingFigures,
    ) -> None:
        self._memories = memories  # keeps the maps alive as long as the thread works
        self._bands, self._tables = bands, tables
        self._settings = settings
        self.figures = figures
        figures.resident_bytes = 0
        self._paging = _paging(memories, settings.page_rows)
        on_disk = self._paging[self._paging[:, kernels.FIRST_PAGE] >= 0]
        counts = on_disk[:, kernels.END_PAGE] - on_disk[:, kernels.FIRST_PAGE]
        self._page_bytes: I32 = np.repeat(on_disk[:, kernels.PAGE_BYTES], counts).astype(np.int32)
        num_pages = len(self._page_bytes)
        self._last_used = np.zeros(num_pages, np.int32)
        self._resident = np.zeros(num_pages, np.uint8)
        self._changed = np.zeros(num_pages, np.uint8)
        self._uses = np.zeros(num_pages, np.int32)
        self._leaving: I64 = np.empty(0, np.int64)
        self._hand = 0
        self._now = 0  # number of the batch; odd numbers are of pages that are fetched ahead
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[Lookups, bool] | None] = queue.SimpleQueue()
        self._addresses = set(bands[self._paging[:, kernels.FIRST_PAGE] >= 0, ADDRESS].tolist())
        self._others_bytes = mapped_file_bytes()
        self._error: BaseException | None = None
        self._load_kernels()  # the thread must not be late because it compiles
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._thread = threading.Thread(target=self._work, name="edorec-pager", daemon=True)
        self._thread.start()

    def use(self, lookups: Lookups, *, will_change: bool) -> None:
        """To be called before a batch is looked up: notes what it uses, fetches what is missing.

        Raises:
            BaseException: what has ended the thread.
        """
        if self._error is not None:
            raise self._error
        with self._lock:
            self._now += 2
            if self._now % AGEING == 0:
                self._uses //= 2
            used, missing = self._mark(lookups, now=self._now, will_change=will_change)
            self.figures.used_pages += used
            self.figures.hit_pages += used - len(missing)
        self._bring(missing, will_change=will_change)

    def prefetch(self, lookups: Lookups, *, will_change: bool) -> None:
        """Fetches the pages of the batch after the present one in the background."""
        self._is_idle.wait()  # the present batch is used next: it must be there
        self._is_idle.clear()
        self._jobs.put((lookups, will_change))

    def close(self) -> None:
        """Ends the thread, which finishes what it is at.

        Before the interpreter ends, too: a thread that it stops within compiled code would abort
        the process.
        """
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:  # garbage is collected in any thread
            self._thread.join()

    def _load_kernels(self) -> None:
        nothing = np.empty(0, np.int64)
        kernels.advise(nothing, self._bands, self._paging, kernels.WILL_NEED)
        books = (self._resident, self._changed, self._uses, self._last_used)
        leaving = np.zeros(len(self._resident), np.uint8)
        kernels.choose_leaving(*books, 0, self._page_bytes, 0, 0, leaving)
        kernels.unmap(leaving, self._resident, self._bands, self._paging)
        kernels.begin_writing(nothing, self._bands, self._paging)
        kernels.drop_cached(nothing, self._bands, self._paging)

    def _mark(self, lookups: Lookups, *, now: int, will_change: bool) -> tuple[int, I64]:
        """Pages that are used, and in order those that were not resident. Holds the lock."""
        offsets = lookups.offsets.numpy()
        most = table_slots(lookups.features, offsets, len(self._tables))[-1]
        missing = np.empty(MOST_PAGES_A_ROW * most, np.int64)
        used, count = kernels.use_pages(
            self._bands,
            self._tables,
            lookups.features,
            lookups.values.numpy(),
            offsets,
            self._paging,
            self._last_used,
            self._resident,
            self._changed,
            self._uses,
            now,
            will_change,
            missing,
        )
        found = np.sort(missing[:count])
        num_bytes = int(self._page_bytes[found].sum())
        self.figures.read_bytes += num_bytes
        self.figures.resident_bytes += num_bytes
        return used, found

    def _make_room(self) -> None:
        """Before pages come: takes out those used least, if there would be too many."""
        limit = self._settings.resident_bytes
        figures = self.figures
        if limit is None or figures.resident_bytes <= limit:
            figures.peak_bytes = max(figures.peak_bytes, figures.resident_bytes)
            return
        with self._lock:
            leaving = np.empty(len(self._page_bytes), np.uint8)
            left, written, self._hand = kernels.choose_leaving(
                self._resident,
                self._changed,
                self._uses,
                self._last_used,
                self._now,
                self._page_bytes,
                int(figures.resident_bytes - LOW_WATER * limit),
                self._hand,
                leaving,
            )
            figures.resident_bytes -= left
            figures.written_bytes += written
            figures.peak_bytes = max(figures.peak_bytes, figures.resident_bytes)
        kernels.unmap(leaving, self._resident, self._bands, self._paging)
        if not self._settings.keep_cached:
            # What is being written cannot be forgotten yet: that is done a round later.
            forgotten, self._leaving = self._leaving, np.flatnonzero(leaving)
            kernels.begin_writing(np.flatnonzero(leaving > 1), self._bands, self._paging)
            kernels.drop_cached(forgotten, self._bands, self._paging)

    def _work(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # raised again where tables are used
            self._error = error
            self._is_idle.set()

    def _serve(self) -> None:
        seconds = None if self._settings.resident_bytes is None else WATCH_SECONDS
        while True:
            try:
                job = self._jobs.get(timeout=seconds)
            except queue.Empty:
                self._watch()
                continue
            if job is None:
                return
            self._fetch(*job)
            self._is_idle.set()
            self._watch()

    def _fetch(self, lookups: Lookups, will_change: bool) -> None:
        with self._lock:
            _, missing = self._mark(lookups, now=self._now + 1, will_change=will_change)
        self._bring(missing, will_change=will_change)

    def _bring(self, pages: I64, *, will_change: bool) -> None:
        """Maps pages, all of which the disk is asked for before the first is waited for.

        As changed pages where they will be: a page that is read first is mapped twice, and what
        lies around it in the system's cache with it.
        """
        if len(pages):
            self._make_room()
            kernels.advise(pages, self._bands, self._paging, kernels.WILL_NEED)
            populate = kernels.POPULATE_WRITE if will_change else kernels.POPULATE_READ
            kernels.advise(pages, self._bands, self._paging, populate)

    def _watch(self) -> None:
        """Takes out what walks through whole tables have mapped beside the pages in the books."""
        limit = self._settings.resident_bytes
        if limit is None:
            return
        most = self.figures.resident_bytes + SLACK * limit
        if mapped_file_bytes() - self._others_bytes <= most:
            return
        if resident_bytes_at(self._addresses) > most:
            self._make_room()
            idle = (self._resident == 0).astype(np.uint8)
            kernels.unmap(idle, self._resident, self._bands, self._paging)
            if not self._settings.keep_cached:
                kernels.drop_cached(np.flatnonzero(idle), self._bands, self._paging)
        # Libraries and other files come and go.
        self._others_bytes = mapped_file_bytes() - resident_bytes_at(self._addresses)


def _paging(memories: Sequence[BandMemory], page_rows: int) -> I64:
    """The bands as ``kernels.disk_pages`` knows them."""
    rows, first = [], 0
    for memory in memories:
        if memory.file_number is None:
            rows.append([-1] * kernels.PAGING_COLUMNS)
            continue
        num_rows, stride = memory.rows_RS.shape
        row_pages = -(-stride // kernels.OS_PAGE)
        page_bytes = max(page_rows * stride // kernels.OS_PAGE, row_pages) * kernels.OS_PAGE
        end = first - (-num_rows * stride // page_bytes)
        rows.append([first, end, page_bytes, num_rows * stride, memory.file_number])
        first = end
    return np.array(rows, np.int64).reshape(-1, kernels.PAGING_COLUMNS)
