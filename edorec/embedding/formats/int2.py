"""int2: 2-bit codes on four levels symmetric about zero, one fp16 step.

    byte  0      2                          2 + ceil(D / 4)
          | step | codes 3, 2, 1, 0 | ... |               value = step * (code - 1.5)

The step is the mean of the row's absolute values; values beyond the outer levels take them. The
first code of a byte is in its low two bits. For rows that are updated a few times: each update
rounds to two bits anew.
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

LARGEST = 32768.0


def row_bytes(dim: int) -> int:
    """Bytes of a row."""
    return 2 + (dim + 3) // 4


def encode(values_ND: torch.Tensor, noise_ND: torch.Tensor) -> torch.Tensor:
    """Float32 rows to bytes."""
    dim = values_ND.shape[1]
    step_N = values_ND.abs().mean(dim=1).clamp(max=LARGEST).half().float()
    inverse_N = torch.where(step_N > 0, 1 / step_N, 0.0)
    codes_ND = values_ND * inverse_N.unsqueeze(1) + (1.5 + noise_ND)
    codes_ND = codes_ND.clamp(0, 3).to(torch.uint8)
    codes_ND = torch.nn.functional.pad(codes_ND, (0, -dim % 4))
    fours = sum((codes_ND[:, k::4] << (2 * k) for k in range(1, 4)), codes_ND[:, ::4])
    return torch.cat([to_halves(step_N), fours], dim=1)


def decode(rows_NB: torch.Tensor, dim: int) -> torch.Tensor:
    """Bytes to float32 rows."""
    fours = rows_NB[:, 2 : row_bytes(dim)]
    codes = torch.stack([(fours >> (2 * k)) & 3 for k in range(4)], dim=2).flatten(1)[:, :dim]
    return (codes.float() - 1.5) * from_halves(rows_NB[:, :2])


@njit(fastmath=FAST, forceinline=True)
def add_row(_step: Any, address: int, dim: int, weight: Any, target: int) -> None:
    """Numba twin of ``decode``."""
    out = floats_at(target)
    step = weight * half_to_float(halves_at(address)[0])
    fours = bytes_at(address + 2)
    for d in range(dim):
        code = (np.int32(fours[d >> 2]) >> np.int32((d & 3) << 1)) & np.int32(3)
        out[d] += (np.float32(code) - np.float32(1.5)) * step


@njit(fastmath=FAST, forceinline=True)
def store_row(_step: Any, source: int, dim: int, address: int, key: Any, nearest: bool) -> None:
    """Numba twin of ``encode``."""
    values = floats_at(source)
    total = np.float32(0)
    for d in range(dim):
        total += abs(values[d])
    halves = halves_at(address)
    halves[0] = float_to_half(min(total / np.float32(dim), np.float32(LARGEST)))
    step = half_to_float(halves[0])
    inverse = np.float32(1) / step if step > 0 else np.float32(0)
    fours = bytes_at(address + 2)
    for four in range((dim + 3) >> 2):
        byte = np.int32(0)
        for place in range(min(4, dim - 4 * four)):
            d = 4 * four + place
            shift = np.float32(0.5) if nearest else noise(key, d)
            code = scaled(values[d], inverse, np.float32(1.5) + shift)
            code = min(max(code, np.float32(0)), np.float32(3))
            byte |= np.int32(code) << np.int32(2 * place)
        fours[four] = np.uint8(byte)


FORMAT = RowFormat("int2", row_bytes, encode, decode, add_row, store_row)
