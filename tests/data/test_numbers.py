import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edorec.data.numbers import Moments, bin_edges, signed_log1p, standardize

FINITE = st.floats(-1e6, 1e6)


@given(st.lists(st.lists(FINITE, max_size=8), min_size=1, max_size=6))
def test_moments_of_chunks_are_those_of_all(chunks: list[list[float]]) -> None:
    moments = Moments()
    for chunk in chunks:
        moments.add(np.array(chunk, dtype=np.float64))
    values = np.array([value for chunk in chunks for value in chunk])
    mean, deviation = moments.scale()
    if len(np.unique(values)) < 2:
        assert (mean, deviation) == (values[0] if len(values) else 0.0, 1.0)
    else:
        assert mean == pytest.approx(values.mean(), rel=1e-9, abs=1e-9)
        assert deviation == pytest.approx(values.std(), rel=1e-6, abs=1e-9)


def test_signed_log1p_at_and_below_the_shift_of_a_plain_log() -> None:
    values = signed_log1p(np.array([-3.0, -1.0, 0.0, 3.0]))
    np.testing.assert_allclose(values, [-np.log(4), -np.log(2), 0, np.log(4)])


def test_standardize_fills_clips_and_counts() -> None:
    values, clipped = standardize(np.array([1.0, np.nan, 100.0, -100.0]), 0.0, 2.0)
    assert values.dtype == np.float32
    assert values.tolist() == [0.5, 0.0, 10.0, -10.0]
    assert clipped == 2


@given(
    counts=st.lists(st.integers(1, 20), min_size=1, max_size=40),
    bins=st.integers(2, 50),
)
def test_bins_are_at_most_as_many_as_asked_and_about_equal(counts: list[int], bins: int) -> None:
    values = np.arange(len(counts), dtype=np.float64)
    edges = bin_edges(values, np.array(counts), bins)
    assert (np.diff(edges) > 0).all()
    assert len(edges) < bins
    places = np.searchsorted(edges, values)
    sizes = np.bincount(places, weights=counts)
    assert (sizes > 0).all()
    assert sizes.max() <= sum(counts) / bins + max(counts)
