"""ternary: 2-bit codes for -step, 0 and step, with one step for all rows.

    byte  0                    ceil(D / 4)
          | codes 3, 2, 1, 0 | ... |             value = step * (code - 1)

The first code of a byte is in its low two bits; values beyond the outer levels take them. A value
that did not move stays where it was when its row is written again, as it must: with a step of its
own (``int2``) each update of a row rounds all its values anew. A step is right if it is about what
an update moves a value by, which for Adagrad is the learning rate; it is part of the name,
``ternary:0.2``. For rows that are updated a few times.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from numba import njit

from edorec.embedding.formats.row_format import RowFormat, floor_with
from edorec.embedding.kernels import primitives
from edorec.embedding.kernels.primitives import FAST, bytes_at, floats_at, noise

STEP = 0.1  # where the name gives none


def row_bytes(dim: int) -> int:
    """Bytes of a row."""
    return (dim + 3) // 4


def encode(values_ND: torch.Tensor, noise_ND: torch.Tensor, *, step: float) -> torch.Tensor:
    """Float32 rows to bytes."""
    dim = values_ND.shape[1]
    steps_ND = (values_ND * float(np.float32(1) / np.float32(step))).clamp(-1, 1)
    codes_ND = (floor_with(steps_ND, noise_ND) + 1).to(torch.uint8)
    codes_ND = torch.nn.functional.pad(codes_ND, (0, -dim % 4))
    fours: torch.Tensor = sum((codes_ND[:, k::4] << (2 * k) for k in range(1, 4)), codes_ND[:, ::4])
    return fours


def decode(rows_NB: torch.Tensor, dim: int, *, step: float) -> torch.Tensor:
    """Bytes to float32 rows."""
    codes = torch.stack([(rows_NB >> (2 * k)) & 3 for k in range(4)], dim=2).flatten(1)[:, :dim]
    return (codes.float() - 1) * step


@njit(fastmath=FAST, forceinline=True)
def add_row(step: Any, address: int, dim: int, weight: Any, target: int) -> None:
    """Numba twin of ``decode``."""
    out = floats_at(target)
    scale = weight * step
    fours = bytes_at(address)
    for d in range(dim):
        code = (np.int32(fours[d >> 2]) >> np.int32((d & 3) << 1)) & np.int32(3)
        out[d] += np.float32(code - np.int32(1)) * scale


@njit(fastmath=FAST, forceinline=True)
def store_row(step: Any, source: int, dim: int, address: int, key: Any, nearest: bool) -> None:
    """Numba twin of ``encode``."""
    values = floats_at(source)
    inverse = np.float32(1) / step
    fours = bytes_at(address)
    for four in range((dim + 3) >> 2):
        byte = np.int32(0)
        for place in range(min(4, dim - 4 * four)):
            d = 4 * four + place
            shift = np.float32(0.5) if nearest else noise(key, d)
            steps = min(max(values[d] * inverse, np.float32(-1)), np.float32(1))
            code = np.int32(primitives.floor_with(steps, shift)) + np.int32(1)
            byte |= code << np.int32(2 * place)
        fours[four] = np.uint8(byte)


def with_step(step: float) -> RowFormat:
    """The format with a step.

    Raises:
        ValueError: unless the step is a positive normal float32.
    """
    if not 2.0**-126 <= step <= 2.0**127:
        raise ValueError(f"the step of ternary rows must be above 0 and a float32, got {step}")
    return RowFormat(
        f"ternary:{step:g}",
        row_bytes,
        partial(encode, step=float(np.float32(step))),
        partial(decode, step=float(np.float32(step))),
        add_row,
        store_row,
        step=step,
    )
