"""Counter-based random numbers for stochastic rounding.

A number depends on (seed, step, table, row, dim) alone, so results depend neither on threads nor
on the order of look-ups, and every kernel draws the same. Keys of rows are made with splitmix64's
finalizer, the numbers of a row with a 32-bit finalizer over the dims; ``kernels.primitives`` holds
the numba twins of the torch functions here.
"""

import torch

GOLDEN_64 = 0x9E3779B97F4A7C15
GOLDEN_32 = 0x9E3779B9
MIX_64 = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
MIX_32 = (0x21F0AAAD, 0xD35A2D97)
MASK_32 = 0xFFFFFFFF
MASK_64 = 0xFFFFFFFFFFFFFFFF


def table_key(*, seed: int, step: int, table: int) -> int:
    """The 64-bit key of one table in one step."""
    return _mix_int(_mix_int(_mix_int(seed) + step) + table)


def row_keys(key: int, rows: torch.Tensor) -> torch.Tensor:
    """The 64-bit keys of int64 ``rows`` of a table, as int64."""
    return _mix(rows + _signed(key))


def row_noise(keys: torch.Tensor, dim: int) -> torch.Tensor:
    """Uniform float32 numbers in [0, 1), shape (N, ``dim``), of int64 row keys (N)."""
    lanes = torch.arange(dim, device=keys.device, dtype=torch.int64) * GOLDEN_32
    x = ((keys & MASK_32).unsqueeze(1) + lanes) & MASK_32
    x = ((x ^ (x >> 16)) * MIX_32[0]) & MASK_32
    x = ((x ^ (x >> 15)) * MIX_32[1]) & MASK_32
    x = x ^ (x >> 15)
    return (x >> 8).float() * 2.0**-24


def _mix_int(value: int) -> int:
    value = (value + GOLDEN_64) & MASK_64
    value = ((value ^ (value >> 30)) * MIX_64[0]) & MASK_64
    value = ((value ^ (value >> 27)) * MIX_64[1]) & MASK_64
    return value ^ (value >> 31)


def _mix(values: torch.Tensor) -> torch.Tensor:
    values = values + _signed(GOLDEN_64)
    values = (values ^ _shift_right(values, 30)) * _signed(MIX_64[0])
    values = (values ^ _shift_right(values, 27)) * _signed(MIX_64[1])
    return values ^ _shift_right(values, 31)


def _shift_right(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Shifts int64 as if it were unsigned."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
