"""The loops of ``window`` over every id, compiled: several times as fast as numpy's whole arrays.

They release the interpreter lock, so that training goes on beside them. The rule of ``to_rows`` is
that of ``RowMap.rows``.
"""

from typing import Any

import numpy as np
from numba import njit

GOLDEN = np.uint32(0x9E3779B9)
NO_KEYS = np.empty(0, np.uint32)


@njit(nogil=True, cache=True)
def take(values: Any, order: Any, out: Any) -> None:
    """``out[i] = values[order[i]]``; any types of numbers."""
    for i in range(len(order)):
        out[i] = values[order[i]]


@njit(nogil=True, cache=True)
def take_lists(values: Any, offsets: Any, order: Any, out: Any, out_offsets: Any) -> None:
    """Lists in another order: items to ``out`` and offsets (one more than lists)."""
    at = 0
    out_offsets[0] = 0
    for i in range(len(order)):
        for k in range(offsets[order[i]], offsets[order[i] + 1]):
            out[at] = values[k]
            at += 1
        out_offsets[i + 1] = at


@njit(nogil=True, cache=True)
def draw(key: Any, feature: int) -> Any:
    """A uniform uint32 from a row's word, another for each feature."""
    z = np.uint32(key + np.uint32(np.uint64(feature) * np.uint64(0x85EBCA77)))
    z = np.uint32((z ^ (z >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    z = np.uint32((z ^ (z >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(z ^ (z >> np.uint32(16)))


@njit(nogil=True, cache=True)
def to_rows(
    encoded: Any,
    offsets: Any,
    keys: Any,
    feature: int,
    num_own_rows: int,
    num_buckets: int,
    rare_from: int,
    oov_limit: int,
) -> None:
    """Writes table rows over encoded ids.

    Args:
        encoded: int64 ids.
        offsets: where each row's ids begin and the last one's end; for one id a row, of length 0.
        keys: uint32, one a row; of length 0 to draw nothing.
        feature: number of the feature, for the draws.
        num_own_rows: see ``RowMap``.
        num_buckets: see ``RowMap``.
        rare_from: see ``RowMap``.
        oov_limit: a rare id takes its bucket's row if its draw is below.
    """
    num_rows = len(offsets) - 1 if len(offsets) else len(encoded)
    for i in range(num_rows):
        first, end = (offsets[i], offsets[i + 1]) if len(offsets) else (i, i + 1)
        for k in range(first, end):
            rank = np.int64(encoded[k] & 0xFFFFFFFF) - 1
            is_shared = rank < 0 or rank >= num_own_rows
            if len(keys) and rank >= rare_from and not is_shared:
                word = np.uint32(keys[i] + np.uint32(np.uint32(k - first) * GOLDEN))
                is_shared = draw(word, feature) < oov_limit
            if is_shared:
                encoded[k] = num_own_rows + np.int64((encoded[k] >> 32) & 0xFFFFFFFF) % num_buckets
            else:
                encoded[k] = rank
