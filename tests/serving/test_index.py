"""The index of ids: every known hash has its row, others take a bucket."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edorec.data.hashing import mix
from edorec.serving.index import build_index


def hashes_of(first: int, num: int) -> np.ndarray:
    return mix(np.arange(first, first + num, dtype=np.uint64))


@settings(deadline=None)  # compiles
@given(
    sizes=st.lists(st.integers(0, 300), max_size=4),
    num_buckets=st.integers(1, 50),
    first=st.integers(0, 10**9),
)
def test_known_hashes_find_their_rows_and_others_their_buckets(sizes, num_buckets, first):
    ids = hashes_of(first, sum(sizes))
    parts = np.split(ids, np.cumsum(sizes)[:-1]) if sizes else []
    index, order = build_index(parts)
    assert sorted(order) == list(range(len(ids)))
    np.testing.assert_array_equal(index.rows(ids[order], num_buckets), np.arange(len(ids)))
    # The rows of a part stay together, in the order of the parts.
    ends = np.cumsum([0, *sizes])
    for start, end in itertools.pairwise(ends):
        assert set(order[start:end]) == set(range(start, end))
    unknown = hashes_of(first + 10**12, 100)
    expected = len(ids) + (unknown >> np.uint64(32)) % np.uint64(num_buckets)
    np.testing.assert_array_equal(index.rows(unknown, num_buckets), expected.astype(np.int64))


def test_size_and_false_positives():
    index, _ = build_index([hashes_of(0, 200_000)])
    size = sum(array.nbytes for array in index.arrays().values())
    assert size / 200_000 < 3.6
    found = index.rows(hashes_of(10**9, 1_000_000), 1) < 200_000
    assert found.sum() <= 3  # 0.06 expected
