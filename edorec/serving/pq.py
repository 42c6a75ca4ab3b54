"""Product quantization of rows that are only served (Jegou et al., TPAMI 2011).

A row is cut into pieces of ``PIECE`` values; each piece is one byte, the number of the nearest of
256 centroids of its position. Centroids are k-means over the rows, weighted by the square root of
how often training looked a row up. At dim 16 a row takes 2 bytes; centroids are stored once.
"""

import importlib
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from edorec.errors import InputError

F32 = npt.NDArray[np.float32]
PIECE = 8
NUM_CENTROIDS = 256
FIT_ROWS = 200_000
MAX_ITERATIONS = 30


def row_bytes(dim: int) -> int:
    """Bytes of a row."""
    return -(-dim // PIECE)


def centroid_bytes(dim: int) -> int:
    """Bytes of a band's centroids, stored as halves."""
    return 2 * NUM_CENTROIDS * dim


def quantize(rows_ND: F32, weights_N: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.uint8], F32]:
    """Codes and centroids of rows.

    Args:
        rows_ND: at least one row.
        weights_N: importance of each, above 0.

    Returns:
        uint8 codes (N, pieces) and float32 centroids (256, D); a piece's code picks its values in
        the columns of the piece.

    Raises:
        InputError: if scikit-learn is not installed.
    """
    try:
        cluster = importlib.import_module("sklearn.cluster")
    except ImportError as error:
        raise InputError(
            f"the format pq needs scikit-learn ({error}): pip install 'edorec[pq]'"
        ) from error
    num_rows, dim = rows_ND.shape
    rng = np.random.default_rng(0)
    # A sample by weight, so that frequent ids are in it whatever the number of rows.
    chosen = np.arange(num_rows)
    if num_rows > FIT_ROWS:
        share = weights_N / weights_N.sum()
        chosen = rng.choice(num_rows, FIT_ROWS, replace=False, p=share)
    codes = np.empty((num_rows, row_bytes(dim)), np.uint8)
    centroids = np.zeros((NUM_CENTROIDS, dim), np.float32)
    for piece in range(row_bytes(dim)):
        columns = slice(piece * PIECE, min(dim, (piece + 1) * PIECE))
        values = np.ascontiguousarray(rows_ND[:, columns])
        means = cluster.KMeans(
            min(NUM_CENTROIDS, len(chosen)),
            init="random",
            n_init=1,
            max_iter=MAX_ITERATIONS,
            random_state=0,
        )
        with warnings.catch_warnings():  # fewer distinct pieces than centroids is no fault
            warnings.simplefilter("ignore")
            means.fit(values[chosen], sample_weight=weights_N[chosen])
        centroids[: means.n_clusters, columns] = means.cluster_centers_
        codes[:, piece] = means.predict(values)
    return codes, centroids


@njit(nogil=True, cache=True)
def add_rows(
    rows: Any,
    offsets: Any,
    first_row: int,
    codes: Any,
    centroids: Any,
    is_mean: bool,
    out: Any,
) -> None:
    """Adds pooled rows of one band to ``out``.

    Args:
        rows: int64 rows of the table.
        offsets: int64 (B + 1).
        first_row: of the band in the table.
        codes: uint8 (rows of the band, pieces).
        centroids: float32 (256, D).
        is_mean: divide by the number of look-ups of a bag, also those of other bands.
        out: float32 (B, D).
    """
    dim = centroids.shape[1]
    for bag in range(len(offsets) - 1):
        size = offsets[bag + 1] - offsets[bag]
        for i in range(offsets[bag], offsets[bag + 1]):
            row = rows[i] - first_row
            if 0 <= row < len(codes):
                scale = np.float32(1) / np.float32(size) if is_mean else np.float32(1)
                for d in range(dim):
                    out[bag, d] += scale * centroids[codes[row, d // PIECE], d]
