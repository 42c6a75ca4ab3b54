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
    size = paging[band, PAGE_BYTES]
    start = (pages[i] - paging[band, FIRST_PAGE]) * size
    whole = -(-paging[band, BAND_BYTES] // OS_PAGE) * OS_PAGE
    num_bytes = min((pages[end - 1] + 1 - paging[band, FIRST_PAGE]) * size, whole) - start
    return end, bands[band, ADDRESS] + start, num_bytes, paging[band, FILE], start


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
