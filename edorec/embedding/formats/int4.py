"""int4: 4-bit codes between a row's extremes; FBGEMM's inference bytes with row alignment 1.

    byte  0       2      4                    4 + ceil(D / 2)
          | scale | bias | codes 1, 0 | ... |               value = bias + scale * code

Scale and bias are halves, the first code of a byte is in its low four bits.
"""

from typing import Any

import numpy as np
import torch
from numba import njit

from edorec.embedding.formats.row_format import RowFormat, from_halves, to_halves
from edorec.embedding.kernels.primitives import (
    FAST,
    bytes_at,
    float_to_half,
    floats_at,
    half_to_float,
    halves_at,
    noise,
    scaled,
)

STEPS = 15
LARGEST = 32768.0


def row_bytes(dim: int) -> int:
    """Bytes of a row."""
    return 4 + (dim + 1) // 2


def encode(values_ND: torch.Tensor, noise_ND: torch.Tensor) -> torch.Tensor:
    """Float32 rows to bytes; values beyond 32768 become that."""
    values_ND = values_ND.clamp(-LARGEST, LARGEST)
    low_N, high_N = values_ND.aminmax(dim=1)
    bias_N = low_N.half().float()
    scale_N = ((high_N - bias_N) * (1 / STEPS)).half().float()
    inverse_N = torch.where(scale_N > 0, 1 / scale_N, 0.0)
    codes_ND = (values_ND - bias_N.unsqueeze(1)) * inverse_N.unsqueeze(1) + noise_ND
    codes_ND = codes_ND.clamp(0, STEPS).to(torch.uint8)
    if codes_ND.shape[1] % 2:
        codes_ND = torch.nn.functional.pad(codes_ND, (0, 1))
    pairs = codes_ND[:, ::2] | (codes_ND[:, 1::2] << 4)
    return torch.cat([to_halves(scale_N), to_halves(bias_N), pairs], dim=1)


def decode(rows_NB: torch.Tensor, dim: int) -> torch.Tensor:
    """Bytes to float32 rows."""
    scale_N1, bias_N1 = from_halves(rows_NB[:, :2]), from_halves(rows_NB[:, 2:4])
    pairs = rows_NB[:, 4 : row_bytes(dim)]
    codes_ND = torch.stack([pairs & 15, pairs >> 4], dim=2).flatten(1)[:, :dim]
    return codes_ND.float() * scale_N1 + bias_N1


@njit(fastmath=FAST, forceinline=True)
def add_row(_step: Any, address: int, dim: int, weight: Any, target: int) -> None:
    """Numba twin of ``decode``."""
    out = floats_at(target)
    halves = halves_at(address)
    scale = weight * half_to_float(halves[0])
    bias = weight * half_to_float(halves[1])
    pairs = bytes_at(address + 4)
    for d in range(dim):
        code = (np.int32(pairs[d >> 1]) >> np.int32((d & 1) << 2)) & np.int32(15)
        out[d] += np.float32(code) * scale + bias


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
    halves = halves_at(address)
    halves[1] = float_to_half(low)
    bias = half_to_float(halves[1])
    halves[0] = float_to_half((high - bias) * np.float32(1 / STEPS))
    scale = half_to_float(halves[0])
    inverse = np.float32(1) / scale if scale > 0 else np.float32(0)
    pairs = bytes_at(address + 4)
    for pair in range((dim + 1) >> 1):
        byte = np.int32(0)
        for side in range(min(2, dim - 2 * pair)):
            d = 2 * pair + side
            shift = np.float32(0.5) if nearest else noise(key, d)
            value = min(max(values[d], low), high)
            code = scaled(value - bias, inverse, shift)
            code = min(max(code, np.float32(0)), np.float32(STEPS))
            byte |= np.int32(code) << np.int32(4 * side)
        pairs[pair] = np.uint8(byte)


FORMAT = RowFormat("int4", row_bytes, encode, decode, add_row, store_row)
