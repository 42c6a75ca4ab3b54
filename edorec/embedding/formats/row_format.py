"""What a row format is: bytes per row, and how they are written and read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Encode = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Decode = Callable[[torch.Tensor, int], torch.Tensor]


@dataclass(frozen=True)
class RowFormat:
    """One encoding of an embedding row.

    ``encode`` and ``decode`` are plain torch, on any device, and define the format. ``add_row`` and
    ``store_row`` are their numba twins for one row; they take addresses, because numba counts
    references to arrays wherever it passes them on, which takes longer than a row.

    Attributes:
        name: as in configurations.
        row_bytes: bytes of a row of a given dim.
        encode: float32 (N, D) and numbers in [0, 1) that broadcast to it, to uint8 (N, row_bytes).
            A value between two codes takes the upper one if its number is large enough; uniform
            numbers round stochastically, 0.5 to the nearest.
        decode: uint8 (N, row_bytes) and D, to float32 (N, D).
        add_row: ``(step, address, dim, weight, target)`` adds weight * row to the float32 at an
            address.
        store_row: ``(step, source, dim, address, key, nearest)`` writes a row from the float32 at
            an address, rounded with the noise of a row key or to the nearest.
        trains: whether rows may be updated in this format; one that may not is a target of
            quantization-aware training.
        step: between values, the same in all rows; 0 where a row holds what scales it.
    """

    name: str
    row_bytes: Callable[[int], int]
    encode: Encode
    decode: Decode
    add_row: Any
    store_row: Any
    trains: bool = True
    step: float = 0.0


def to_halves(values_N: torch.Tensor) -> torch.Tensor:
    """fp16 bits of float32 (N), to the nearest, as uint8 (N, 2), little-endian."""
    return values_N.half().unsqueeze(1).contiguous().view(torch.uint8)


def from_halves(halves_N2: torch.Tensor) -> torch.Tensor:
    """float32 (N, 1) of fp16 bits, uint8 (N, 2)."""
    return as_numbers(halves_N2, torch.float16).float()


def as_numbers(rows_NB: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A copy of bytes, uint8 (N, B), as numbers of a type.

    Copied even where it is contiguous: a single row counts as that at any address and stride, and
    torch wants multiples of the number's size.
    """
    return rows_NB.clone(memory_format=torch.contiguous_format).view(dtype)


def floor_with(values: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The floor of values + noise, where a whole value stays: float32 rounds 255 + 0.99999 up."""
    floor = values.floor()
    return floor + (values - floor + noise).floor()


def power_of_two_at_least(values: torch.Tensor) -> torch.Tensor:
    """The smallest powers of two that are not below positive normal float32 values."""
    bits = values.view(torch.int32) + 0x007FFFFF
    return (bits & 0x7F800000).view(torch.float32)
