"""sparse28: two of each eight values kept, two bits each; at most 1/16 of FP32 from dim 16 on.

    bit   0      14        23                      14 + 9 ceil(D / 8), filled up to whole bytes
          | step | group 0 | group 1 | ... |

    group: bit 0 to 4: which pair of the eight positions (28 of them, in the order (0, 1), (0, 2),
    ... (6, 7)); then for each kept value a bit for the magnitude, 0.75 or 1.25 steps, and a sign.

Bits are numbered from the lowest of the first byte. The step is the mean magnitude of the kept
values as a positive half without its last bit. Kept are the two largest magnitudes of a group,
of equal ones the first. 0.75 and 1.25 are near the best two levels for normal values (squared
error 0.029 of their mean squared; 0.107 with 0.5 and 1.5).

Rows are not updated in this format: what is not kept would never grow. It is a target of
quantization-aware training.
"""

from itertools import combinations
from typing import Any

import numpy as np
import torch
from numba import njit

from edorec.embedding.formats.row_format import RowFormat
from edorec.embedding.kernels.primitives import (
    FAST,
    bytes_at,
    float_to_half,
    floats_at,
    half_to_float,
    noise,
    scaled,
)

GROUP = 8
SCALE_BITS = 14
GROUP_BITS = 9
LOW, STEP = 0.75, 0.5
LARGEST = 32768.0
PAIRS = list(combinations(range(GROUP), 2))
FIRST = np.array([pair[0] for pair in PAIRS])
SECOND = np.array([pair[1] for pair in PAIRS])


def row_bytes(dim: int) -> int:
    """Bytes of a row."""
    return (SCALE_BITS + GROUP_BITS * -(-dim // GROUP) + 7) // 8


def encode(values_ND: torch.Tensor, noise_ND: torch.Tensor) -> torch.Tensor:
    """Float32 rows to bytes."""
    num_rows, dim = values_ND.shape
    padding = (0, -dim % GROUP)
    num_groups = -(-dim // GROUP)
    values = torch.nn.functional.pad(values_ND, padding).view(num_rows, num_groups, GROUP)
    noise = torch.nn.functional.pad(noise_ND.expand_as(values_ND), padding).view_as(values)
    order = values.abs().sort(dim=2, descending=True, stable=True).indices
    kept = order[:, :, :2].sort(dim=2).values
    kept_values = values.gather(2, kept)
    num_kept = (kept.flatten(1) + _group_starts(kept) < dim).sum(1)
    step_N = (kept_values.abs().sum((1, 2)) / num_kept).clamp(max=LARGEST)
    scale_N = (step_N.half().view(torch.int16).long() + 1) >> 1
    step_N = _step(scale_N)
    inverse_N = torch.where(step_N > 0, 1 / step_N, 0.0)
    upper = (kept_values.abs() * inverse_N.view(-1, 1, 1) - LOW) / STEP + noise.gather(2, kept)
    bits = upper.clamp(0, 1).long() | ((kept_values < 0).long() << 1)
    first, second = kept[:, :, 0], kept[:, :, 1]
    # Pairs that begin before ``first``, then those between it and ``second``.
    pair = first * (2 * GROUP - 1 - first) // 2 + second - first - 1
    codes = pair | (bits[:, :, 0] << 5) | (bits[:, :, 1] << 7)
    return _pack(scale_N, codes, dim)


def decode(rows_NB: torch.Tensor, dim: int) -> torch.Tensor:
    """Bytes to float32 rows."""
    rows = rows_NB.long()
    step_N = _step((rows[:, 0] | (rows[:, 1] << 8)) & ((1 << SCALE_BITS) - 1))
    num_groups = -(-dim // GROUP)
    at = SCALE_BITS + GROUP_BITS * torch.arange(num_groups, device=rows.device)
    codes = (rows[:, at >> 3] | (rows[:, (at >> 3) + 1] << 8)) >> (at & 7)
    pair = codes & 31
    values = torch.zeros(len(rows), num_groups, GROUP, device=rows.device)
    for positions, shift in ((FIRST, 5), (SECOND, 7)):
        bits = codes >> shift
        value = (LOW + STEP * (bits & 1)) * (1 - 2 * ((bits >> 1) & 1))
        where = torch.from_numpy(positions).to(rows.device)[pair]
        values.scatter_(2, where.unsqueeze(2), (value * step_N.unsqueeze(1)).unsqueeze(2))
    return values.flatten(1)[:, :dim]


def _step(scale_N: torch.Tensor) -> torch.Tensor:
    return (scale_N << 1).to(torch.int16).view(torch.float16).float()


def _group_starts(kept: torch.Tensor) -> torch.Tensor:
    return (torch.arange(kept.shape[1], device=kept.device) * GROUP).repeat_interleave(2)


def _pack(scale_N: torch.Tensor, codes: torch.Tensor, dim: int) -> torch.Tensor:
    rows = torch.zeros(len(scale_N), row_bytes(dim), dtype=torch.uint8, device=scale_N.device)
    rows[:, 0] = (scale_N & 255).to(torch.uint8)
    rows[:, 1] = (scale_N >> 8).to(torch.uint8)
    for group in range(codes.shape[1]):
        at = SCALE_BITS + GROUP_BITS * group
        shifted = codes[:, group] << (at & 7)
        rows[:, at >> 3] |= (shifted & 255).to(torch.uint8)
        rows[:, (at >> 3) + 1] |= (shifted >> 8).to(torch.uint8)
    return rows


@njit(forceinline=True)
def _load_step(row: Any) -> Any:
    scale = (np.uint32(row[0]) | (np.uint32(row[1]) << np.uint32(8))) & np.uint32(0x3FFF)
    return half_to_float(np.uint16(scale << np.uint32(1)))


@njit(fastmath=FAST, forceinline=True)
def add_row(_step: Any, address: int, dim: int, weight: Any, target: int) -> None:
    """Numba twin of ``decode``."""
    out = floats_at(target)
    row = bytes_at(address)
    step = weight * _load_step(row)
    for group in range((dim + GROUP - 1) // GROUP):
        at = SCALE_BITS + GROUP_BITS * group
        code = (np.int32(row[at >> 3]) | (np.int32(row[(at >> 3) + 1]) << 8)) >> (at & 7)
        pair = code & 31
        for side in range(2):
            bits = code >> (5 + 2 * side)
            d = GROUP * group + (SECOND[pair] if side else FIRST[pair])
            magnitude = np.float32(LOW) + np.float32(STEP) * np.float32(bits & 1)
            if d < dim:
                out[d] += step * (-magnitude if bits & 2 else magnitude)


@njit(fastmath=FAST, forceinline=True)
def _largest_two(values: Any, start: int, dim: int) -> Any:
    """Positions in a group of its two largest magnitudes, ascending; 0 stands past ``dim``."""
    top, second = 0, 1
    largest, next_largest = np.float32(-1), np.float32(-1)
    for k in range(GROUP):
        magnitude = abs(values[start + k]) if start + k < dim else np.float32(0)
        if magnitude > largest:
            second, next_largest = top, largest
            top, largest = k, magnitude
        elif magnitude > next_largest:
            second, next_largest = k, magnitude
    return min(top, second), max(top, second)


@njit(fastmath=FAST, forceinline=True)
def store_row(_step: Any, source: int, dim: int, address: int, key: Any, nearest: bool) -> None:
    """Numba twin of ``encode``."""
    values = floats_at(source)
    num_groups = (dim + GROUP - 1) // GROUP
    total, num_kept = np.float32(0), 0
    for group in range(num_groups):
        for k in _largest_two(values, GROUP * group, dim):
            if GROUP * group + k < dim:
                total += abs(values[GROUP * group + k])
                num_kept += 1
    half = float_to_half(min(total / np.float32(num_kept), np.float32(LARGEST)))
    scale = (np.int32(half) + 1) >> 1
    step = half_to_float(np.uint16(scale << 1))
    inverse = np.float32(1) / step if step > 0 else np.float32(0)
    row = bytes_at(address)
    for byte in range((SCALE_BITS + GROUP_BITS * num_groups + 7) // 8):
        row[byte] = np.uint8(0)
    row[0] = np.uint8(scale & 255)
    row[1] = np.uint8(scale >> 8)
    for group in range(num_groups):
        kept = _largest_two(values, GROUP * group, dim)
        code = kept[0] * (2 * GROUP - 1 - kept[0]) // 2 + kept[1] - kept[0] - 1
        for side in range(2):
            d = GROUP * group + kept[side]
            value = values[d] if d < dim else np.float32(0)
            shift = np.float32(0.5) if nearest else noise(key, d)
            upper = scaled(
                scaled(abs(value), inverse, np.float32(-LOW)), np.float32(1 / STEP), shift
            )
            bit = 1 if upper >= 1 else 0
            code |= (bit + (2 if value < 0 else 0)) << (5 + 2 * side)
        at = SCALE_BITS + GROUP_BITS * group
        shifted = code << (at & 7)
        row[at >> 3] = np.uint8(row[at >> 3] | (shifted & 255))
        row[(at >> 3) + 1] = np.uint8(shifted >> 8)


FORMAT = RowFormat("sparse28", row_bytes, encode, decode, add_row, store_row, trains=False)
