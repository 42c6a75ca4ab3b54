"""The numba twins of row formats and accumulators on arrays, for comparison with torch.

Compiled once and cached like the kernels; a row of the result has bytes around it that must not
change.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit

from edorec.embedding.formats import format_code, format_of
from edorec.embedding.kernels import cpu
from edorec.embedding.kernels.noise import row_keys, row_noise
from edorec.embedding.kernels.primitives import row_key
from edorec.embedding.states import STATES

GUARD, GUARD_BYTES = 0xAB, 5
SOURCES = cpu._digest()  # what a function closes over is part of the key of numba's cache


@cache
def _store_rows(sources: str) -> Any:
    @njit(cache=True)
    def store_rows(code, source, num_rows, dim, target, stride, key, nearest):
        for r in range(num_rows if sources else 0):
            at = target + stride * r
            cpu._store_row(code, source + 4 * dim * r, dim, at, row_key(key, r), nearest)

    return store_rows


@cache
def _add_rows(sources: str) -> Any:
    @njit(cache=True)
    def add_rows(code, source, stride, num_rows, dim, weight, target):
        for r in range(num_rows if sources else 0):
            cpu._add_row(code, source + stride * r, dim, weight, target + 4 * dim * r)

    return add_rows


@cache
def _store_states(sources: str) -> Any:
    @njit(cache=True)
    def store_states(code, values, numbers, target, stride):
        for r in range(len(values) if sources else 0):
            cpu._store_state(code, target + stride * r, values[r], numbers[r])

    return store_states


@cache
def _load_states(sources: str) -> Any:
    @njit(cache=True)
    def load_states(code, source, stride, values):
        for r in range(len(values) if sources else 0):
            values[r] = cpu._load_state(code, source + stride * r)

    return load_states


def noise_of(num_rows: int, dim: int, *, key: int, nearest: bool) -> torch.Tensor:
    """The numbers that ``store_rows`` draws with this key."""
    if nearest:
        return torch.full((num_rows, dim), 0.5)
    return row_noise(row_keys(key, torch.arange(num_rows)), dim)


def store_rows(name: str, values_ND: torch.Tensor, *, key: int, nearest: bool) -> torch.Tensor:
    num_rows, dim = values_ND.shape
    size = format_of(name).row_bytes(dim)
    memory = _guarded(num_rows, size)
    values = np.ascontiguousarray(values_ND.numpy())
    target, stride = memory.ctypes.data + GUARD_BYTES, memory.shape[1]
    code = format_code(name)
    args = (code, values.ctypes.data, num_rows, dim, target, stride)
    _store_rows(SOURCES)(*args, np.uint64(key), nearest)
    return _inside(memory, size)


def add_rows(
    name: str, rows_NB: torch.Tensor, dim: int, *, weight: float, to_ND: torch.Tensor
) -> torch.Tensor:
    rows, out = np.ascontiguousarray(rows_NB.numpy()), to_ND.numpy().copy()
    code = format_code(name)
    args = (rows.ctypes.data, rows.shape[1], len(rows), dim, np.float32(weight), out.ctypes.data)
    _add_rows(SOURCES)(code, *args)
    return torch.from_numpy(out)


def store_states(name: str, values_N: torch.Tensor, numbers_N: torch.Tensor) -> torch.Tensor:
    size = STATES[name].num_bytes
    memory = _guarded(len(values_N), size)
    target, stride = memory.ctypes.data + GUARD_BYTES, memory.shape[1]
    code = list(STATES).index(name)
    _store_states(SOURCES)(code, values_N.numpy(), numbers_N.numpy(), target, stride)
    return _inside(memory, size)


def load_states(name: str, bytes_NB: torch.Tensor) -> torch.Tensor:
    values, source = np.empty(len(bytes_NB), np.float32), np.ascontiguousarray(bytes_NB.numpy())
    _load_states(SOURCES)(list(STATES).index(name), source.ctypes.data, source.shape[1], values)
    return torch.from_numpy(values)


def _guarded(num_rows: int, size: int) -> np.ndarray:
    return np.full((num_rows, size + 2 * GUARD_BYTES), GUARD, np.uint8)


def _inside(memory: np.ndarray, size: int) -> torch.Tensor:
    inside = slice(GUARD_BYTES, GUARD_BYTES + size)
    assert (np.delete(memory, inside, axis=1) == GUARD).all(), "wrote beside the row"
    return torch.from_numpy(memory[:, inside].copy())
