"""Product quantization: nearest centroids, weighted by importance."""

import itertools

import numpy as np
import pytest

from edorec.serving import pq


def decoded(codes: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    dim = centroids.shape[1]
    columns = np.arange(dim)
    return centroids[codes[:, columns // pq.PIECE], columns]


@pytest.mark.parametrize("dim", [1, 8, 13, 16])
def test_codes_are_the_nearest_centroids(dim):
    rows = np.random.default_rng(0).normal(size=(1500, dim)).astype(np.float32)
    codes, centroids = pq.quantize(rows, np.ones(1500))
    assert codes.shape == (1500, pq.row_bytes(dim))
    for piece in range(codes.shape[1]):
        columns = slice(piece * pq.PIECE, (piece + 1) * pq.PIECE)
        gaps = ((rows[:, None, columns] - centroids[None, :, columns]) ** 2).sum(2)
        best = gaps.min(1)
        np.testing.assert_allclose(gaps[np.arange(1500), codes[:, piece]], best, atol=1e-4)
    assert ((decoded(codes, centroids) - rows) ** 2).mean() < 0.5 * rows.var()


def test_weighty_rows_are_closer():
    rows = np.random.default_rng(1).normal(size=(4000, 8)).astype(np.float32)
    weights = np.where(np.arange(4000) < 400, 100.0, 1.0)
    codes, centroids = pq.quantize(rows, weights)
    errors = ((decoded(codes, centroids) - rows) ** 2).mean(1)
    assert errors[:400].mean() < 0.6 * errors[400:].mean()


def test_pooled_sums_and_means_of_one_band():
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(50, 8)).astype(np.float32)
    codes, centroids = pq.quantize(rows, np.ones(50))
    table = np.concatenate([np.zeros((10, 8)), decoded(codes, centroids), np.zeros((5, 8))])
    ids, offsets = rng.integers(0, 65, 200), np.array([0, 0, 7, 7, 100, 200])
    for is_mean in (False, True):
        out = np.zeros((5, 8), np.float32)
        pq.add_rows(ids, offsets, 10, codes, centroids, is_mean, out)
        bags = [table[ids[a:b]] for a, b in itertools.pairwise(offsets)]
        pooled = [b.mean(0) if is_mean and len(b) else b.sum(0) for b in bags]
        np.testing.assert_allclose(out, np.stack(pooled), atol=1e-5)
