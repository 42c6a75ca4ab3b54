"""Formats of one row's accumulator (sum of squared gradients) under row-wise Adagrad.

fp32: 4 bytes. bf16: 2 bytes, the upper half of the float32, rounded stochastically (to the nearest,
an addition below 1/256 of the sum would be lost every time). log8: 1 byte on a log scale, 8 steps
an octave: code 0 is 0, code c is 2^((c - 1) / 8 - 36), up to 2^-4.25 = 0.053; rounded
stochastically, so that it is right on average. For rows that are updated seldom.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import njit

from edorec.embedding.formats.row_format import as_numbers
from edorec.embedding.kernels.primitives import (
    bytes_at,
    float_bits,
    float_from_bits,
    floats_at,
    halves_at,
)

LOWEST_EXPONENT = -36
STEPS_PER_OCTAVE = 8
LOG_LEVELS = np.concatenate(
    [[0], 2.0 ** (np.arange(255) / STEPS_PER_OCTAVE + LOWEST_EXPONENT)]
).astype(np.float32)


@dataclass(frozen=True)
class StateFormat:
    """One encoding of an accumulator.

    Attributes:
        name: as in configurations.
        num_bytes: bytes a row.
        encode: float32 (N) and uniform numbers (N) to uint8 (N, num_bytes).
        decode: uint8 (N, num_bytes) to float32 (N).
        load: numba twin of ``decode``: ``(address)``.
        store: numba twin of ``encode``: ``(address, value, number)``.
    """

    name: str
    num_bytes: int
    encode: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    decode: Callable[[torch.Tensor], torch.Tensor]
    load: Any
    store: Any


def _encode_fp32(values_N: torch.Tensor, _noise: torch.Tensor) -> torch.Tensor:
    return values_N.unsqueeze(1).contiguous().view(torch.uint8)


def _decode_fp32(bytes_NB: torch.Tensor) -> torch.Tensor:
    return as_numbers(bytes_NB, torch.float32).squeeze(1)


@njit(forceinline=True)
def _load_fp32(address: int) -> Any:
    return floats_at(address)[0]


@njit(forceinline=True)
def _store_fp32(address: int, value: Any, _number: Any) -> None:
    floats_at(address)[0] = value


def _encode_bf16(values_N: torch.Tensor, noise_N: torch.Tensor) -> torch.Tensor:
    bits = values_N.view(torch.int32).long() + (noise_N * 65536).long()
    return (bits >> 16).to(torch.int16).unsqueeze(1).contiguous().view(torch.uint8)


def _decode_bf16(bytes_NB: torch.Tensor) -> torch.Tensor:
    return as_numbers(bytes_NB, torch.bfloat16).float().squeeze(1)


@njit(forceinline=True)
def _load_bf16(address: int) -> Any:
    return float_from_bits(np.uint32(np.uint32(halves_at(address)[0]) << np.uint32(16)))


@njit(forceinline=True)
def _store_bf16(address: int, value: Any, number: Any) -> None:
    bits = np.uint32(float_bits(value) + np.uint32(number * np.float32(65536)))
    halves_at(address)[0] = np.uint16(bits >> np.uint32(16))


def _encode_log8(values_N: torch.Tensor, noise_N: torch.Tensor) -> torch.Tensor:
    levels = torch.from_numpy(LOG_LEVELS).to(values_N.device)
    code = torch.searchsorted(levels, values_N, right=True) - 1
    code = code.clamp(0, 254)
    share = (values_N - levels[code]) / (levels[code + 1] - levels[code])
    return (code + (noise_N < share)).to(torch.uint8).unsqueeze(1)


def _decode_log8(bytes_NB: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(LOG_LEVELS).to(bytes_NB.device)[bytes_NB.squeeze(1).long()]


@njit(forceinline=True)
def _load_log8(address: int) -> Any:
    return LOG_LEVELS[bytes_at(address)[0]]


@njit(forceinline=True)
def _store_log8(address: int, value: Any, number: Any) -> None:
    # The exponent and the mantissa's place in its octave, then at most a step up or down.
    bits = np.int32(float_bits(value))
    octave = (bits >> np.int32(23)) - np.int32(127 + LOWEST_EXPONENT)
    code: Any = STEPS_PER_OCTAVE * octave + ((bits >> np.int32(20)) & np.int32(7)) + 1
    code = min(max(code, 0), 254)
    while code < 254 and LOG_LEVELS[code + 1] <= value:
        code += 1
    while code > 0 and LOG_LEVELS[code] > value:
        code -= 1
    share = (value - LOG_LEVELS[code]) / (LOG_LEVELS[code + 1] - LOG_LEVELS[code])
    bytes_at(address)[0] = np.uint8(code + (1 if number < share else 0))


STATES: dict[str, StateFormat] = {
    state.name: state
    for state in (
        StateFormat("fp32", 4, _encode_fp32, _decode_fp32, _load_fp32, _store_fp32),
        StateFormat("bf16", 2, _encode_bf16, _decode_bf16, _load_bf16, _store_bf16),
        StateFormat("log8", 1, _encode_log8, _decode_log8, _load_log8, _store_log8),
    )
}
