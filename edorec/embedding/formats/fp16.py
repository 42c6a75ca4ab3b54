"""fp16: D half-precision values, rounded stochastically.

    byte  0         2               2 D
          | value 0 | value 1 | ... |

Values beyond the largest half (65504) become that.
"""

from typing import Any

import numpy as np
import torch
from numba import njit

from edorec.embedding.formats.row_format import RowFormat, as_numbers, floor_with
from edorec.embedding.kernels import primitives
from edorec.embedding.kernels.primitives import (
    FAST,
    float_bits,
    float_from_bits,
    float_to_half,
    floats_at,
    half_to_float,
    halves_at,
    inverse_power_of_two,
    noise,
)

LARGEST = 65504.0
SMALLEST_STEP = 2.0**-24  # between subnormal halves
RELATIVE_STEP = 2.0**-10


def row_bytes(dim: int) -> int:
    """Bytes of a row."""
    return 2 * dim


def encode(values_ND: torch.Tensor, noise_ND: torch.Tensor) -> torch.Tensor:
    """Float32 rows to bytes: down to a multiple of the step between halves, after adding noise."""
    power = (values_ND.view(torch.int32) & 0x7F800000).view(torch.float32)
    step = (power * RELATIVE_STEP).clamp(min=SMALLEST_STEP)
    rounded = floor_with(values_ND / step, noise_ND) * step
    return rounded.clamp(-LARGEST, LARGEST).half().contiguous().view(torch.uint8)


def decode(rows_NB: torch.Tensor, dim: int) -> torch.Tensor:
    """Bytes to float32 rows."""
    return as_numbers(rows_NB, torch.float16)[:, :dim].float()


@njit(fastmath=FAST, forceinline=True)
def add_row(_step: Any, address: int, dim: int, weight: Any, target: int) -> None:
    """Numba twin of ``decode``."""
    out = floats_at(target)
    row = halves_at(address)
    for d in range(dim):
        out[d] += weight * half_to_float(row[d])


@njit(fastmath=FAST, forceinline=True)
def store_row(_step: Any, source: int, dim: int, address: int, key: Any, nearest: bool) -> None:
    """Numba twin of ``encode``."""
    values = floats_at(source)
    row = halves_at(address)
    for d in range(dim):
        power = float_from_bits(np.uint32(float_bits(values[d]) & np.uint32(0x7F800000)))
        step = max(power * np.float32(RELATIVE_STEP), np.float32(SMALLEST_STEP))
        shift = np.float32(0.5) if nearest else noise(key, d)
        rounded = primitives.floor_with(values[d] * inverse_power_of_two(step), shift) * step
        rounded = min(max(rounded, np.float32(-LARGEST)), np.float32(LARGEST))
        row[d] = float_to_half(rounded)


FORMAT = RowFormat("fp16", row_bytes, encode, decode, add_row, store_row)
