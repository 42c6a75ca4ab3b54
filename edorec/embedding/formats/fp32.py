"""fp32: D float32 values.

byte  0         4               4 D
      | value 0 | value 1 | ... |
"""

from typing import Any

import torch
from numba import njit

from edorec.embedding.formats.row_format import RowFormat, as_numbers
from edorec.embedding.kernels.primitives import FAST, floats_at


def row_bytes(dim: int) -> int:
    """Bytes of a row."""
    return 4 * dim


def encode(values_ND: torch.Tensor, _noise: torch.Tensor) -> torch.Tensor:
    """Float32 rows to bytes."""
    return values_ND.contiguous().view(torch.uint8)


def decode(rows_NB: torch.Tensor, dim: int) -> torch.Tensor:
    """Bytes to float32 rows."""
    return as_numbers(rows_NB, torch.float32)[:, :dim]


@njit(fastmath=FAST, forceinline=True)
def add_row(_step: Any, address: int, dim: int, weight: Any, target: int) -> None:
    """Numba twin of ``decode``."""
    out = floats_at(target)
    row = floats_at(address)
    for d in range(dim):
        out[d] += weight * row[d]


@njit(fastmath=FAST, forceinline=True)
def store_row(_step: Any, source: int, dim: int, address: int, _key: Any, _nearest: bool) -> None:
    """Numba twin of ``encode``."""
    values = floats_at(source)
    row = floats_at(address)
    for d in range(dim):
        row[d] = values[d]


FORMAT = RowFormat("fp32", row_bytes, encode, decode, add_row, store_row)
