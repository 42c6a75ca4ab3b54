import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edorec.embedding.admission import RowMap, build_row_map

COUNTS = np.array([9, 5, 3, 2, 2, 1, 1, 1], dtype=np.int64)


def encode(rank: int, bucket_hash: int) -> int:
    word = bucket_hash << 32 | (rank + 1)
    return word - (1 << 64) if word >= 1 << 63 else word


def build(**settings: object) -> RowMap:
    defaults = {"min_count": 1, "max_rows": None, "buckets": 0.01, "oov_rate": 0.1}
    return build_row_map(COUNTS, **(defaults | settings))  # type: ignore[arg-type]


def test_min_count_and_max_rows_cut_the_list() -> None:
    assert build().num_own_rows == 8
    assert build(min_count=2).num_own_rows == 5
    assert build(min_count=10).num_own_rows == 0
    assert build(max_rows=3).num_own_rows == 3
    assert build(min_count=4, max_rows=7).num_own_rows == 2
    assert build(max_rows=0).num_own_rows == 0


def test_buckets_are_a_share_or_a_number_and_at_least_one() -> None:
    assert build().num_buckets == 1
    assert build(buckets=0).num_buckets == 1
    assert build(buckets=0.5).num_buckets == 4
    assert build(buckets=1).num_buckets == 1
    assert build(buckets=7).num_buckets == 7
    assert build(min_count=2, buckets=7).num_rows == 12


def test_rare_ids_begin_where_counts_fall_to_two() -> None:
    assert build().rare_from == 3
    nothing = build_row_map(
        np.empty(0, np.int64), min_count=1, max_rows=None, buckets=0.5, oov_rate=0
    )
    assert (nothing.num_own_rows, nothing.num_buckets, nothing.rare_from) == (0, 1, 0)


@pytest.mark.parametrize("own", [-1])
def test_refuses_negative_rows(own: int) -> None:
    with pytest.raises(ValueError, match="num_own_rows must be at least 0, got -1"):
        RowMap(own, 1, 0, 0.1)
    with pytest.raises(ValueError, match="num_buckets must be at least 1, got 0"):
        RowMap(1, 0, 0, 0.1)


@given(
    ids=st.lists(
        st.tuples(st.integers(-1, 2**32 - 2), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
        min_size=1,
    ),
    own=st.integers(0, 50),
    buckets=st.integers(1, 7),
    rare_from=st.integers(0, 60),
    oov_rate=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    training=st.booleans(),
)
def test_rows_equal_the_rule(
    ids: list[tuple[int, int, int]],
    own: int,
    buckets: int,
    rare_from: int,
    oov_rate: float,
    training: bool,
) -> None:
    row_map = RowMap(own, buckets, rare_from, oov_rate)
    words = np.array([encode(rank, bucket_hash) for rank, bucket_hash, _ in ids], dtype=np.int64)
    draws = np.array([draw for _, _, draw in ids], dtype=np.uint32)
    before = words.copy()
    rows = row_map.rows(words, draws=draws if training else None)
    for (rank, bucket_hash, draw), row in zip(ids, rows.tolist(), strict=True):
        dropped = training and rank >= rare_from and draw < oov_rate * 2**32
        if 0 <= rank < own and not dropped:
            assert row == rank
        else:
            assert row == own + bucket_hash % buckets
    assert (rows >= 0).all()
    assert (rows < row_map.num_rows).all()
    np.testing.assert_array_equal(words, before)


def test_about_oov_rate_of_the_rare_take_their_bucket() -> None:
    row_map = RowMap(100, 5, 50, 0.25)
    ids = np.full(40_000, encode(70, 123), dtype=np.int64)
    draws = np.random.default_rng(0).integers(0, 2**32, len(ids), dtype=np.uint32)
    share = np.mean(row_map.rows(ids, draws=draws) == 100 + 123 % 5)
    assert abs(share - 0.25) < 0.01
    frequent = np.full(10, encode(49, 123), dtype=np.int64)
    assert (row_map.rows(frequent, draws=np.zeros(10, np.uint32)) == 49).all()
