"""Look-up and update of rows on CPU threads, compiled by numba; reference: ``kernels.reference``.

Forward, fused over all features: out[bag] = sum or mean over its look-ups of weight * row.

Backward, fused over all tables: look-ups are sorted by row (stable, so sums have one order), each
row's gradients are summed, the optimizer acts on the decoded row, and the row is written back in
its format with stochastic rounding. No gradient of a table's size exists, and no copy of a row
outlives its update. Work is cut into units that do not depend on the number of threads, and a row
belongs to one unit.

Loads of rows far apart are what takes the time, so rows are prefetched ``AHEAD`` look-ups before
they are used.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit

from edorec.embedding.formats import FORMATS
from edorec.embedding.kernels import layout
from edorec.embedding.kernels.layout import (
    ADDRESS,
    DIM,
    END_BAND,
    FIRST_BAND,
    FIRST_OFFSET,
    FIRST_ROW,
    FORMAT,
    IS_MEAN,
    NUM_BAGS,
    OUT,
    OUT_STRIDE,
    QAT,
    ROW_BYTES,
    ROW_STRIDE,
    STATE,
    TABLE,
    TABLE_ROWS,
    Lookups,
)
from edorec.embedding.kernels.primitives import FAST, floats_at, noise, prefetch, row_key
from edorec.embedding.kernels.threads import run_on_threads
from edorec.embedding.optimizers import BETA_1, BETA_2, EPSILON, OPTIMIZERS, Step
from edorec.embedding.states import STATES

AHEAD = 12
BAGS_PER_UNIT = 128
LOOKUPS_PER_UNIT = 512
DIGIT_BITS = 11
LINE_BYTES = 64
SGD, ROWWISE_ADAGRAD, ADAGRAD, ADAM = range(len(OPTIMIZERS))


def _digest() -> str:
    """Of the sources that are compiled into kernels."""
    folder = Path(__file__).parents[1]
    sources = sorted([*folder.glob("kernels/*.py"), *folder.glob("formats/*.py")])
    sources += [folder / "states.py", folder / "optimizers.py"]
    return hashlib.blake2b(b"".join(path.read_bytes() for path in sources)).hexdigest()


SOURCES = _digest()


def _choose(functions: Sequence[Any]) -> Any:
    """One compiled function that takes the position of the one to call as first argument."""
    first = functions[0]
    if len(functions) == 1:

        @njit
        def call(_position: int, *args: Any) -> Any:
            return first(*args)

        return call
    others = _choose(functions[1:])

    @njit
    def choose(position: int, *args: Any) -> Any:
        if position == 0:
            return first(*args)
        return others(position - 1, *args)

    return choose


_add_row = _choose([row_format.add_row for row_format in FORMATS.values()])
_store_row = _choose([row_format.store_row for row_format in FORMATS.values()])
_load_state = _choose([state.load for state in STATES.values()])
_store_state = _choose([state.store for state in STATES.values()])


@njit(inline="always")
def _band(bands: Any, first: int, end: int, row: int) -> Any:
    band = first
    while band + 1 < end and row >= bands[band + 1, FIRST_ROW]:
        band += 1
    return band


@njit(inline="always")
def _prefetch_row(bands: Any, first: int, end: int, row: int) -> None:
    band = _band(bands, first, end, row)
    stride = bands[band, ROW_STRIDE]
    address = bands[band, ADDRESS] + (row - bands[band, FIRST_ROW]) * stride
    prefetch(address)
    last = address + stride - 1
    if (last ^ address) >= LINE_BYTES:
        prefetch(last)


@njit(fastmath=FAST)
def _optimize(
    optimizer: int, w: Any, g: Any, dim: int, address: int, state: int, number: Any, step: Any
) -> None:
    """``optimizers.update_rows`` for one row, its state at ``address``."""
    rate = step[0]
    eps = np.float32(EPSILON)
    if step[1] > 0:
        for d in range(dim):
            w[d] *= np.float32(1) - rate * step[1]
    if optimizer == SGD:
        for d in range(dim):
            w[d] -= rate * g[d]
        return
    if optimizer == ADAGRAD:
        sums = floats_at(address)
        for d in range(dim):
            sums[d] += g[d] * g[d]
            w[d] -= rate * g[d] / (np.sqrt(sums[d]) + eps)
        return
    square = np.float32(0)
    for d in range(dim):
        square += g[d] * g[d]
    square /= np.float32(dim)
    if optimizer == ROWWISE_ADAGRAD:
        total = _load_state(state, address) + square
        _store_state(state, address, total, number)
        rate /= np.sqrt(total) + eps
        for d in range(dim):
            w[d] -= rate * g[d]
        return
    moments = floats_at(address)
    moments[dim] = np.float32(BETA_2) * moments[dim] + np.float32(1 - BETA_2) * square
    rate /= step[2] * (np.sqrt(moments[dim] / step[3]) + eps)
    for d in range(dim):
        moments[d] = np.float32(BETA_1) * moments[d] + np.float32(1 - BETA_1) * g[d]
        w[d] -= rate * moments[d]


def _make_forward(sources: str) -> Any:
    # numba's cache does not look at the files of the functions that a kernel calls; a constant
    # that the kernel closes over is part of the cache's key.
    @njit(nogil=True, cache=True)
    def forward(
        thread: int,
        num_threads: int,
        bands: Any,
        tables: Any,
        features: Any,
        values: Any,
        offsets: Any,
        weights: Any,
        out: Any,
        scratch: Any,
        errors: Any,
    ) -> Any:
        num_features = len(features)
        most_bags = 0
        for f in range(num_features):
            most_bags = max(most_bags, features[f, NUM_BAGS])
        row_values = np.empty(scratch, np.float32)
        row_bytes = np.empty(4 * scratch + 8, np.uint8)
        num_units = (most_bags + BAGS_PER_UNIT - 1) // BAGS_PER_UNIT
        for unit in range(thread, num_units, num_threads):
            for f in range(num_features):
                table = features[f, TABLE]
                first, end = tables[table, FIRST_BAND], tables[table, END_BAND]
                dim, qat, rows = tables[table, DIM], tables[table, QAT], tables[table, TABLE_ROWS]
                at = features[f, FIRST_OFFSET]
                stop = min((unit + 1) * BAGS_PER_UNIT, features[f, NUM_BAGS])
                if unit * BAGS_PER_UNIT >= stop:
                    continue
                last = offsets[at + stop]
                for bag in range(unit * BAGS_PER_UNIT, stop):
                    base = features[f, OUT] + bag * features[f, OUT_STRIDE]
                    for d in range(dim):
                        out[base + d] = 0
                    low, high = offsets[at + bag], offsets[at + bag + 1]
                    scale = np.float32(1)
                    if features[f, IS_MEAN] and high > low:
                        scale = np.float32(1) / np.float32(high - low)
                    for i in range(low, high):
                        row = values[i]
                        if i + AHEAD < last:
                            ahead = values[i + AHEAD]
                            if 0 <= ahead < rows:
                                _prefetch_row(bands, first, end, ahead)
                        if row < 0 or row >= rows:
                            errors[0] = f + 1
                            errors[1] = row
                            continue
                        weight = scale * weights[i] if len(weights) else scale
                        band = _band(bands, first, end, row)
                        address = bands[band, ADDRESS]
                        address += (row - bands[band, FIRST_ROW]) * bands[band, ROW_STRIDE]
                        code = bands[band, FORMAT]
                        if qat < 0:
                            _add_row(code, address, dim, weight, out, base)
                        else:
                            row_values[:dim] = 0
                            _add_row(code, address, dim, np.float32(1), row_values, 0)
                            small = row_bytes.ctypes.data
                            _store_row(qat, row_values, dim, small, np.uint64(0), True)
                            _add_row(qat, small, dim, weight, out, base)
        return len(sources)

    return forward


def _make_sort(sources: str) -> Any:
    @njit(nogil=True, cache=True)
    def sort(
        thread: int,
        num_threads: int,
        tables: Any,
        features: Any,
        slots: Any,
        values: Any,
        offsets: Any,
        weights: Any,
        keys: Any,
        spare: Any,
        starts: Any,
        scales: Any,
    ) -> Any:
        """Each table's look-ups: keys row << 32 | place, sorted; by place, gradient and scale."""
        counts = np.empty(1 << DIGIT_BITS, np.int64)
        for table in range(thread, len(tables), num_threads):
            begin, finish = slots[table], slots[table + 1]
            size = finish - begin
            place = 0
            for f in range(len(features)):
                if features[f, TABLE] != table:
                    continue
                at = features[f, FIRST_OFFSET]
                for bag in range(features[f, NUM_BAGS]):
                    low, high = offsets[at + bag], offsets[at + bag + 1]
                    start = features[f, OUT] + bag * features[f, OUT_STRIDE]
                    scale = np.float32(1)
                    if features[f, IS_MEAN] and high > low:
                        scale = np.float32(1) / np.float32(high - low)
                    for i in range(low, high):
                        keys[begin + place] = (values[i] << 32) | place
                        starts[begin + place] = start
                        scales[begin + place] = scale * weights[i] if len(weights) else scale
                        place += 1
            source, target = keys, spare
            shift, rest = 32, tables[table, TABLE_ROWS]
            while rest > 0:
                counts[:] = 0
                for i in range(begin, finish):
                    counts[(source[i] >> shift) & ((1 << DIGIT_BITS) - 1)] += 1
                total = begin
                for digit in range(1 << DIGIT_BITS):
                    total, counts[digit] = total + counts[digit], total
                for i in range(begin, finish):
                    digit = (source[i] >> shift) & ((1 << DIGIT_BITS) - 1)
                    target[counts[digit]] = source[i]
                    counts[digit] += 1
                source, target = target, source
                shift += DIGIT_BITS
                rest >>= DIGIT_BITS
            if shift != 32 and ((shift - 32) // DIGIT_BITS) % 2 == 1:
                keys[begin : begin + size] = spare[begin : begin + size]
        return len(sources)

    return sort


def _make_update(sources: str) -> Any:
    @njit(nogil=True, cache=True)
    def update(
        thread: int,
        num_threads: int,
        bands: Any,
        tables: Any,
        slots: Any,
        keys: Any,
        starts: Any,
        scales: Any,
        gradients: Any,
        optimizer: int,
        step: Any,
        table_keys: Any,
        scratch: Any,
    ) -> Any:
        w = np.empty(scratch, np.float32)
        g = np.empty(scratch, np.float32)
        unit = 0
        gradients_address = gradients.ctypes.data
        for table in range(len(tables)):
            begin, finish = slots[table], slots[table + 1]
            first, end, dim = (
                tables[table, FIRST_BAND],
                tables[table, END_BAND],
                tables[table, DIM],
            )
            for low in range(begin, finish, LOOKUPS_PER_UNIT):
                unit += 1
                if unit % num_threads != thread:
                    continue
                high = min(low + LOOKUPS_PER_UNIT, finish)
                i = low
                if i > begin:  # a row that begins in the unit before belongs to it
                    while i < high and keys[i] >> 32 == keys[i - 1] >> 32:
                        i += 1
                while i < high:
                    row = keys[i] >> 32
                    for d in range(dim):
                        g[d] = 0
                    while i < finish and keys[i] >> 32 == row:
                        if i + AHEAD < finish:
                            ahead = keys[i + AHEAD]
                            if ahead >> 32 != keys[i + AHEAD - 1] >> 32:
                                _prefetch_row(bands, first, end, ahead >> 32)
                            prefetch(
                                gradients_address + 4 * starts[begin + (ahead & 0xFFFFFFFF)]
                            )
                        place = begin + (keys[i] & 0xFFFFFFFF)
                        start, scale = starts[place], scales[place]
                        for d in range(dim):
                            g[d] += scale * gradients[start + d]
                        i += 1
                    band = _band(bands, first, end, row)
                    address = bands[band, ADDRESS]
                    address += (row - bands[band, FIRST_ROW]) * bands[band, ROW_STRIDE]
                    key = row_key(table_keys[table], row)
                    for d in range(dim):
                        w[d] = 0
                    _add_row(bands[band, FORMAT], address, dim, np.float32(1), w, 0)
                    state_address = address + bands[band, ROW_BYTES]
                    state = bands[band, STATE]
                    _optimize(
                        optimizer, w, g, dim, state_address, state, noise(key, dim), step
                    )
                    _store_row(bands[band, FORMAT], w, dim, address, key, False)
        return len(sources)

    return update


_forward = _make_forward(SOURCES)
_sort = _make_sort(SOURCES)
_update = _make_update(SOURCES)
NO_WEIGHTS = np.empty(0, np.float32)


def forward(bands: np.ndarray, tables: np.ndarray, lookups: Lookups) -> torch.Tensor:
    """Looks up and pools.

    Returns:
        float32, flat, laid out as ``lookups.features`` says; numbers no feature owns are undefined.

    Raises:
        IndexError: if a value is not a row of its table; (position of the feature, value).
    """
    out = torch.empty(lookups.out_size, dtype=torch.float32)
    errors = np.zeros(2, np.int64)
    run_on_threads(
        _forward,
        bands,
        tables,
        lookups.features,
        lookups.values.numpy(),
        lookups.offsets.numpy(),
        _weights(lookups),
        out.numpy(),
        int(tables[:, DIM].max()),
        errors,
    )
    if errors[0]:
        raise IndexError(int(errors[0]) - 1, int(errors[1]))
    return out


def backward(
    bands: np.ndarray,
    tables: np.ndarray,
    lookups: Lookups,
    gradients: torch.Tensor,
    *,
    optimizer: str,
    step: Step,
    table_keys: np.ndarray,
) -> None:
    """Updates the rows that were looked up, in place.

    Args:
        bands: see ``layout``.
        tables: see ``layout``.
        lookups: what ``forward`` looked up.
        gradients: of its result, float32, flat.
        optimizer: one of ``optimizers.OPTIMIZERS``.
        step: the numbers of this update.
        table_keys: uint64, one a table, for this step's stochastic rounding.
    """
    values, offsets = lookups.values.numpy(), lookups.offsets.numpy()
    slots = layout.table_slots(lookups.features, offsets, len(tables))
    keys, spare, starts = (np.empty(slots[-1], np.int64) for _ in range(3))
    scales = np.empty(slots[-1], np.float32)
    weights = _weights(lookups)
    run_on_threads(
        _sort,
        tables,
        lookups.features,
        slots,
        values,
        offsets,
        weights,
        keys,
        spare,
        starts,
        scales,
    )
    run_on_threads(
        _update,
        bands,
        tables,
        slots,
        keys,
        starts,
        scales,
        gradients.numpy(),
        OPTIMIZERS.index(optimizer),
        step.numbers(),
        table_keys,
        int(tables[:, DIM].max()),
    )


def _weights(lookups: Lookups) -> np.ndarray:
    return NO_WEIGHTS if lookups.weights is None else lookups.weights.numpy()
