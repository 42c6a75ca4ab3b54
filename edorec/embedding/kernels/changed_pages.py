"""Which pages of tables a batch is about to change, and copies of pages; compiled by numba.

The memory of a table's bands is cut into pages of ``PAGE_BYTES``, numbered through all bands of all
tables; a band begins with a page of its own. Loops release the interpreter lock.
"""

from typing import Any

from numba import njit

from edorec.embedding.kernels.layout import (
    END_BAND,
    FIRST_BAND,
    FIRST_OFFSET,
    NUM_BAGS,
    PAGE_BYTES,
    TABLE,
)
from edorec.embedding.kernels.primitives import ints_at, place_in_band

PAGE_INTS = PAGE_BYTES // 8


@njit(nogil=True, cache=True)
def touch(
    bands: Any,
    tables: Any,
    features: Any,
    values: Any,
    offsets: Any,
    first_pages: Any,
    pending: Any,
    found: Any,
) -> int:
    """Takes the pending pages that an update of a batch's rows will change.

    Args:
        bands: see ``layout``, as the next two.
        tables: likewise.
        features: likewise.
        values: int64 rows.
        offsets: int64 starts of bags.
        first_pages: int64, of each band.
        pending: uint8, one a page; set to 0.
        found: int64; gets the pages that were pending.

    Returns:
        How many were pending.
    """
    count = 0
    for f in range(len(features)):
        first, end = tables[features[f, TABLE], FIRST_BAND], tables[features[f, TABLE], END_BAND]
        low = offsets[features[f, FIRST_OFFSET]]
        high = offsets[features[f, FIRST_OFFSET] + features[f, NUM_BAGS]]
        for i in range(low, high):
            band, low_byte, high_byte = place_in_band(bands, first, end, values[i])
            page = first_pages[band] + low_byte // PAGE_BYTES
            last = first_pages[band] + high_byte // PAGE_BYTES
            while page <= last:
                if pending[page]:
                    pending[page] = 0
                    found[count] = page
                    count += 1
                page += 1
    return count


@njit(nogil=True, cache=True)
def claim(pending: Any, start: int, found: Any) -> Any:
    """Takes pending pages from ``start`` on until ``found`` is full; (how many, where it ended)."""
    count, page = 0, start
    while page < len(pending) and count < len(found):
        if pending[page]:
            pending[page] = 0
            found[count] = page
            count += 1
        page += 1
    return count, page


@njit(nogil=True, cache=True)
def copy_pages(pages: Any, first_pages: Any, addresses: Any, out: int) -> None:
    """Copies pages one behind the other to address ``out``.

    Args:
        pages: int64 numbers.
        first_pages: int64, of each band.
        addresses: int64, of each band.
        out: address of ``len(pages)`` pages.
    """
    band = 0
    for i in range(len(pages)):
        while first_pages[band] > pages[i]:
            band -= 1
        while band + 1 < len(first_pages) and first_pages[band + 1] <= pages[i]:
            band += 1
        source = ints_at(addresses[band] + (pages[i] - first_pages[band]) * PAGE_BYTES)
        target = ints_at(out + i * PAGE_BYTES)
        for k in range(PAGE_INTS):
            target[k] = source[k]
