"""int8: 8-bit codes on a grid; the bytes of FBGEMM's inference tables with row alignment 1.

    byte  0       2      4              4 + D
          | scale | bias | code 0 | ... |            value = bias + scale * code

Scale and bias are halves. The scale is a power of two and the bias a multiple of it, so a value
that did not change stays where it was when its row is written again: no drift, no noise (unless
rounding has just widened the row to 255 steps). The scale is the smallest that spans the row in
254 steps and keeps the bias exact in fp16 (at most 2048 steps from zero).
"""

from typing import Any

import numpy as np
import torch
from numba import njit

from edorec.embedding.formats.row_format import (
    RowFormat,
    floor_with,
    from_halves,
    power_of_two_at_least,
    to_halves,
)
from edorec.embedding.kernels import primitives
from edorec.embedding.kernels.primitives import (
    FAST,
    bytes_at,
    float_to_half,
    floats_at,
    half_to_float,
    halves_at,
    inverse_power_of_two,
    noise,
)

PER_RANGE = 1 / 254
PER_MAGNITUDE = 1 / 1024
SMALLEST_STEP = 2.0**-24
LARGEST_STEP = 2.0**5  # 1024 of them stay below the largest half
LARGEST = 1024 * LARGEST_STEP


def row_bytes(dim: int) -> int:
    """Bytes of a row."""
    return 4 + dim


def encode(values_ND: torch.Tensor, noise_ND: torch.Tensor) -> torch.Tensor:
    """Float32 rows to bytes; values beyond 32768 become that."""
    values_ND = values_ND.clamp(-LARGEST, LARGEST)
    low_N, high_N = values_ND.aminmax(dim=1)
    magnitude_N = torch.maximum(-low_N, high_N)
    finest_N = torch.maximum((high_N - low_N) * PER_RANGE, magnitude_N * PER_MAGNITUDE)
    scale_N = power_of_two_at_least(finest_N.clamp(min=SMALLEST_STEP))
    bias_N = torch.floor(low_N / scale_N) * scale_N
    codes_ND = floor_with((values_ND - bias_N.unsqueeze(1)) / scale_N.unsqueeze(1), noise_ND)
    return torch.cat([to_halves(scale_N), to_halves(bias_N), codes_ND.to(torch.uint8)], dim=1)


def decode(rows_NB: torch.Tensor, dim: int) -> torch.Tensor:
    """Bytes to float32 rows."""
    scale_N1, bias_N1 = from_halves(rows_NB[:, :2]), from_halves(rows_NB[:, 2:4])
    return rows_NB[:, 4 : 4 + dim].float() * scale_N1 + bias_N1


@njit(fastmath=FAST, forceinline=True)
def add_row(_step: Any, address: int, dim: int, weight: Any, target: int) -> None:
    """Numba twin of ``decode``."""
    out = floats_at(target)
    halves = halves_at(address)
    scale = weight * half_to_float(halves[0])
    bias = weight * half_to_float(halves[1])
    codes = bytes_at(address + 4)
    for d in range(dim):
        out[d] += np.float32(np.int32(codes[d])) * scale + bias


@njit(fastmath=FAST, forceinline=True)
def store_row(_step: Any, source: int, dim: int, address: int, key: Any, nearest: bool) -> None:
    """Numba twin of ``encode``."""
    values = floats_at(source)
    low = values[0]
    high = values[0]
    for d in range(dim):
        low = min(low, values[d])
        high = max(high, values[d])
    low = min(max(low, np.float32(-LARGEST)), np.float32(LARGEST))
    high = min(max(high, np.float32(-LARGEST)), np.float32(LARGEST))
    finest = max((high - low) * np.float32(PER_RANGE), max(-low, high) * np.float32(PER_MAGNITUDE))
    scale = primitives.power_of_two_at_least(max(finest, np.float32(SMALLEST_STEP)))
    inverse = inverse_power_of_two(scale)
    bias = np.floor(low * inverse) * scale
    halves = halves_at(address)
    halves[0] = float_to_half(scale)
    halves[1] = float_to_half(bias)
    codes = bytes_at(address + 4)
    for d in range(dim):
        shift = np.float32(0.5) if nearest else noise(key, d)
        value = min(max(values[d], low), high)
        codes[d] = np.uint8(np.int32(primitives.floor_with((value - bias) * inverse, shift)))


FORMAT = RowFormat("int8", row_bytes, encode, decode, add_row, store_row)
