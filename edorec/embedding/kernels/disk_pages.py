"""Pages of tables on disk: which ones a batch uses, and what the system is told about them.

The map of a band on disk is cut into pages of a multiple of the operating system's, numbered
through all such bands. Loops release the interpreter lock; system calls are made from within.
Advice that a kernel does not know (Linux before 5.14 cannot fault pages in ahead) only costs time.
"""

import mmap
from typing import Any

import numpy as np
from numba import njit, types

from edorec.embedding.kernels.layout import (
    ADDRESS,
    END_BAND,
    FIRST_BAND,
    FIRST_OFFSET,
    NUM_BAGS,
    TABLE,
    TABLE_ROWS,
)
from edorec.embedding.kernels.primitives import place_in_band

# One entry a band; ``FIRST_PAGE`` is -1 for a band that is not on disk.
FIRST_PAGE, END_PAGE, PAGE_BYTES, BAND_BYTES, FILE = range(5)
PAGING_COLUMNS = 5

OS_PAGE = mmap.PAGESIZE
USES = 4096  # pages used so often are all alike
WILL_NEED, DONT_NEED, POPULATE_READ, POPULATE_WRITE = 3, 4, 22, 23
WRITE, WAIT_AND_WRITE = 2, 7  # of sync_file_range
DROP_CACHED = 4  # POSIX_FADV_DONTNEED

_madvise: Any = types.ExternalFunction(
    "madvise", types.int32(types.int64, types.int64, types.int32)
)
_sync_file_range: Any = types.ExternalFunction(
    "sync_file_range", types.int32(types.int32, types.int64, types.int64, types.uint32)
)
_fadvise: Any = types.ExternalFunction(
    "posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32)
)


@njit(nogil=True, cache=True)
def use_pages(
    bands: Any,
    tables: Any,
    features: Any,
    values: Any,
    offsets: Any,
    paging: Any,
    last_used: Any,
    resident: Any,
    changed: Any,
    uses: Any,
    now: int,
    will_change: bool,
    missing: Any,
) -> Any:
    """Notes that the pages of a batch's rows are used, and which of them have to come.

    Args:
        bands: see ``layout``, as the next two.
        tables: likewise.
        features: likewise.
        values: int64 rows; what is no row of its table is passed over.
        offsets: int64 starts of bags.
        paging: int64 (bands, 5), see the columns above.
        last_used: int32, one a page; set to ``now``.
        resident: uint8, one a page; set to 1.
        changed: uint8, one a page; set to 1 where ``will_change``.
        uses: int32, one a page; counted up if the batch is the present one.
        now: number of the batch, even for the present one, odd for the next.
        will_change: whether the batch updates its rows.
        missing: int64; gets the pages that were not resident.

    Returns:
        How many different pages, and how many of them were not resident.
    """
    used = count = 0
    for f in range(len(features)):
        table = features[f, TABLE]
        first, end = tables[table, FIRST_BAND], tables[table, END_BAND]
        low = offsets[features[f, FIRST_OFFSET]]
        high = offsets[features[f, FIRST_OFFSET] + features[f, NUM_BAGS]]
        if paging[first, FIRST_PAGE] < 0:  # a table is on disk with all its bands
            continue
        for i in range(low, high):
            row = values[i]
            if row < 0 or row >= tables[table, TABLE_ROWS]:
                continue
            band, low_byte, high_byte = place_in_band(bands, first, end, row)
            page = paging[band, FIRST_PAGE] + low_byte // paging[band, PAGE_BYTES]
            last = paging[band, FIRST_PAGE] + high_byte // paging[band, PAGE_BYTES]
            while page <= last:
                if last_used[page] != now:
                    last_used[page] = now
                    used += 1
                    uses[page] += now % 2 == 0
                    if will_change:
                        changed[page] = 1
                    if not resident[page]:
                        resident[page] = 1
                        missing[count] = page
                        count += 1
                page += 1
    return used, count


@njit(nogil=True, cache=True)
def choose_leaving(
    resident: Any,
    changed: Any,
    uses: Any,
    last_used: Any,
    now: int,
    page_bytes: Any,
    surplus: int,
    hand: int,
    leaving: Any,
) -> Any:
    """Takes the least used pages out of the books; those in use last.

    Of equally used ones the next behind ``hand``, round and round: each has its turn, and those
    that leave lie beside each other.

    Args:
        resident: uint8, one a page; 0 for those that leave.
        changed: likewise.
        uses: int32, one a page.
        last_used: int32, one a page.
        now: number of the present batch; pages used then or later are in use.
        page_bytes: int32, one a page.
        surplus: bytes that leave, at least, if so many are there.
        hand: page behind the last that left.
        leaving: uint8, one a page; gets 1 for those that leave, 2 where they were changed.

    Returns:
        Bytes that leave, bytes of those that were changed, and the new hand.
    """
    num_pages = len(resident)
    bytes_at = np.zeros(USES + 1, np.int64)
    for page in range(num_pages):
        leaving[page] = 0
        if resident[page]:
            in_use = last_used[page] >= now
            bytes_at[USES if in_use else min(uses[page], USES - 1)] += page_bytes[page]
    last, wanted = 0, surplus
    while last < USES and bytes_at[last] < wanted:
        wanted -= bytes_at[last]
        last += 1
    left = written = 0
    first = hand
    for k in range(num_pages):
        page = (first + k) % num_pages
        if not resident[page]:
            continue
        level = USES if last_used[page] >= now else min(uses[page], USES - 1)
        if level > last or (level == last and wanted <= 0):
            continue
        if level == last:
            wanted -= page_bytes[page]
            hand = page + 1
        left += page_bytes[page]
        written += changed[page] * page_bytes[page]
        leaving[page] = 1 + changed[page]
        resident[page] = changed[page] = 0
    return left, written, hand


@njit(nogil=True, cache=True)
def unmap(leaving: Any, resident: Any, bands: Any, paging: Any) -> None:
    """Takes pages out of the process's memory.

    In as few calls as can be, since each interrupts all CPUs: across pages that are not there.

    Args:
        leaving: uint8, one a page; not 0 for those that leave.
        resident: uint8, one a page; those that stay.
        bands: see ``layout``.
        paging: see the columns above.
    """
    for band in range(len(paging)):
        if paging[band, FIRST_PAGE] < 0:
            continue
        first = end = -1
        for page in range(paging[band, FIRST_PAGE], paging[band, END_PAGE] + 1):
            is_over = page == paging[band, END_PAGE] or resident[page]
            if is_over and first >= 0:
                address, num_bytes, _ = _place(first, end, band, bands, paging)
                _madvise(address, num_bytes, np.int32(DONT_NEED))
                first = -1
            elif not is_over and leaving[page]:
                first = page if first < 0 else first
                end = page + 1


@njit(nogil=True, cache=True)
def _place(first: int, end: int, band: int, bands: Any, paging: Any) -> Any:
    """Address of consecutive pages of a band, their bytes, and their place in its file."""
    size = paging[band, PAGE_BYTES]
    start = (first - paging[band, FIRST_PAGE]) * size
    whole = -(-paging[band, BAND_BYTES] // OS_PAGE) * OS_PAGE
    num_bytes = min((end - paging[band, FIRST_PAGE]) * size, whole) - start
    return bands[band, ADDRESS] + start, num_bytes, start


@njit(nogil=True, cache=True)
def _run(pages: Any, i: int, bands: Any, paging: Any) -> Any:
    """The run of consecutive pages of a band that begins at ``pages[i]``.

    Returns:
        Where the next run begins in ``pages``, address, bytes, file, and place in the file.
    """
    band = 0
    while not paging[band, FIRST_PAGE] <= pages[i] < paging[band, END_PAGE]:
        band += 1
    end = i + 1
    while end < len(pages) and pages[end] == pages[end - 1] + 1:
        if pages[end] >= paging[band, END_PAGE]:
            break
        end += 1
    address, num_bytes, start = _place(pages[i], pages[end - 1] + 1, band, bands, paging)
    return end, address, num_bytes, paging[band, FILE], start


@njit(nogil=True, cache=True)
def advise(pages: Any, bands: Any, paging: Any, advice: int) -> None:
    """Gives the system advice about pages, which are in order."""
    i = 0
    while i < len(pages):
        i, address, num_bytes, _, _ = _run(pages, i, bands, paging)
        _madvise(address, num_bytes, np.int32(advice))


@njit(nogil=True, cache=True)
def begin_writing(pages: Any, bands: Any, paging: Any) -> None:
    """Has the system write changed pages to their files; they are in order."""
    i = 0
    while i < len(pages):
        i, _, num_bytes, file, start = _run(pages, i, bands, paging)
        _sync_file_range(np.int32(file), start, num_bytes, np.uint32(WRITE))


@njit(nogil=True, cache=True)
def drop_cached(pages: Any, bands: Any, paging: Any) -> None:
    """Waits until pages, which are in order, are on disk, and has the system forget them.

    Those that are in use again stay.
    """
    i = 0
    while i < len(pages):
        i, _, num_bytes, file, start = _run(pages, i, bands, paging)
        _sync_file_range(np.int32(file), start, num_bytes, np.uint32(WAIT_AND_WRITE))
        _fadvise(np.int32(file), start, num_bytes, np.int32(DROP_CACHED))
