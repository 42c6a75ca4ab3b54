"""From the 64-bit hash of a raw id to its row, in about 3.5 bytes an id.

A minimal perfect hash in the manner of BBHash (Limasset et al., SEA 2017) gives each known hash a
slot of its own below the number of ids; rows are stored in the order of slots, so no rank or row
number is kept. A bit array a level: a hash that falls on a bit of its own in a level is settled
there, the others go to the next. The slot is the number of set bits before it. Any other hash falls
somewhere too; a fingerprint of 24 bits in its slot tells it apart but for one in 16.8 million.

A table's ids are split into parts, one for each band, that are asked one after the other. No raw
id is stored.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
BITS_AN_ID = 2  # in a level: 61 % of its hashes are settled there
BLOCK_WORDS = 8
FINGERPRINT_BITS = 24
# Columns of ``levels``: part, first word, bits. A level's bits begin at a word of their own.
PART, FIRST_WORD, NUM_BITS = range(3)


@dataclass(frozen=True)
class Index:
    """Arrays of an index; they may be memory maps.

    Attributes:
        levels: int64 (L, 3), in order of parts; see the columns above.
        words: uint64, the bits.
        counts: uint32, set bits before each block of ``BLOCK_WORDS`` words.
        fingerprints: uint8 (ids, 3) by slot.
    """

    levels: I64
    words: U64
    counts: npt.NDArray[np.uint32]
    fingerprints: npt.NDArray[np.uint8]

    def rows(self, hashes: U64, num_buckets: int) -> I64:
        """Rows of hashes; unknown ones take bucket ``ids + upper half % num_buckets``."""
        rows = np.empty(len(hashes), np.int64)
        _find(hashes, self.levels, self.words, self.counts, self.fingerprints, num_buckets, rows)
        return rows

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """By name."""
        return {
            "levels": self.levels,
            "words": self.words,
            "counts": self.counts,
            "fingerprints": self.fingerprints,
        }


def build_index(parts: list[U64]) -> tuple[Index, I64]:
    """An index of distinct hashes.

    Args:
        parts: hashes of each part.

    Returns:
        The index, and for each row the position in the concatenated parts of the hash it is for.
    """
    levels: list[tuple[int, int, int]] = []
    words: list[U64] = []
    order: list[I64] = []
    num_words, first_id = 0, 0
    for part, hashes in enumerate(parts):
        left = np.arange(len(hashes))
        depth = 0
        while len(left):
            num_bits = max(64, BITS_AN_ID * len(left))
            at = np.empty(len(left), np.int64)
            _places(hashes[left], depth, num_bits, at)
            hits = np.bincount(at, minlength=num_bits)
            is_settled = hits[at] == 1
            level = np.zeros(-(-num_bits // 64), np.uint64)
            settled = at[is_settled]
            bit = np.uint64(1) << (settled % 64).astype(np.uint64)
            np.bitwise_or.at(level, settled // 64, bit)
            order.append(first_id + left[is_settled][np.argsort(settled)])
            levels.append((part, num_words, num_bits))
            words.append(level)
            num_words += len(level)
            left = left[~is_settled]
            depth += 1
        first_id += len(hashes)
    rows = np.concatenate([*order, np.empty(0, np.int64)])
    all_words = np.concatenate([*words, np.empty(0, np.uint64)])
    of_row = np.concatenate([*parts, np.empty(0, np.uint64)])[rows]
    per_word = np.bitwise_count(all_words).astype(np.int64)
    before = np.cumsum(per_word) - per_word
    index = Index(
        levels=np.array(levels, np.int64).reshape(-1, 3),
        words=all_words,
        counts=before[::BLOCK_WORDS].astype(np.uint32),
        fingerprints=np.stack([(of_row >> np.uint64(8 * k)).astype(np.uint8) for k in range(3)], 1),
    )
    return index, rows


@njit(nogil=True, cache=True, inline="always")
def _place(key: Any, depth: int, num_bits: int) -> Any:
    """Where a hash falls in a level (splitmix64 of the hash and the depth)."""
    z = np.uint64(key) + np.uint64(0x9E3779B97F4A7C15) * np.uint64(depth + 1)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.int64(z % np.uint64(num_bits))


@njit(nogil=True, cache=True)
def _places(keys: Any, depth: int, num_bits: int, out: Any) -> None:
    for i in range(len(keys)):
        out[i] = _place(keys[i], depth, num_bits)


@njit(nogil=True, cache=True, inline="always")
def _num_bits_set(word: Any) -> Any:
    x = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit(nogil=True, cache=True)
def _slot(key: Any, first: int, levels: Any, words: Any, counts: Any) -> Any:
    """Slot of a hash in the part whose levels begin at ``first``, -1 if it falls on no bit."""
    level = first
    while level < len(levels) and levels[level, 0] == levels[first, 0]:
        at = _place(key, level - first, levels[level, 2])
        word = levels[level, 1] + (at >> 6)
        bit = np.uint64(at & 63)
        if (words[word] >> bit) & np.uint64(1):
            block = word // BLOCK_WORDS
            slot = np.int64(counts[block])
            for before in range(block * BLOCK_WORDS, word):
                slot += _num_bits_set(words[before])
            return slot + _num_bits_set(words[word] & ((np.uint64(1) << bit) - np.uint64(1)))
        level += 1
    return -1


@njit(nogil=True, cache=True)
def _find(
    keys: Any,
    levels: Any,
    words: Any,
    counts: Any,
    fingerprints: Any,
    num_buckets: int,
    out: Any,
) -> None:
    num_ids = len(fingerprints)
    for i in range(len(keys)):
        key = keys[i]
        row = np.int64(-1)
        first = 0
        while first < len(levels):
            slot = _slot(key, first, levels, words, counts)
            if slot >= 0 and (
                np.uint64(fingerprints[slot, 0])
                | (np.uint64(fingerprints[slot, 1]) << np.uint64(8))
                | (np.uint64(fingerprints[slot, 2]) << np.uint64(16))
            ) == key & np.uint64(0xFFFFFF):
                row = slot
                break
            part = levels[first, 0]
            while first < len(levels) and levels[first, 0] == part:
                first += 1
        if row < 0:
            row = num_ids + np.int64((key >> np.uint64(32)) % np.uint64(num_buckets))
        out[i] = row
