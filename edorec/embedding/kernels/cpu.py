"""Look-up and update of rows on CPU threads, compiled by numba; reference: ``kernels.reference``.

Forward, fused over all features: out[bag] = sum or mean over its look-ups of weight * row.

Backward, fused over all tables: look-ups are sorted by row (stable, so sums have one order), each
row's gradients are summed, the optimizer acts on the decoded row, and the row is written back in
its format with stochastic rounding. No gradient of a table's size exists, and no copy of a row
outlives its update. Work is cut into units that do not depend on the number of threads, and a row
belongs to one unit, so results do not depend on threads either.

Loads of rows far apart are what takes the time, so rows are prefetched ``AHEAD`` look-ups before
they are used.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import cfunc, njit

from edorec.embedding.formats import FORMATS
from edorec.embedding.kernels import layout
from edorec.embedding.kernels.layout import (
    ADDRESS,
    BAND_COLUMNS,
    DIM,
    END_BAND,
    FEATURE_COLUMNS,
    FIRST_BAND,
    FIRST_OFFSET,
    FORMAT,
    FORMAT_BITS,
    FORMAT_MASK,
    IS_MEAN,
    NUM_BAGS,
    OUT,
    OUT_STRIDE,
    PAGE_BYTES,
    QAT,
    ROW_BYTES,
    ROW_STRIDE,
    SHARD,
    STATE,
    TABLE,
    TABLE_COLUMNS,
    TABLE_ROWS,
    Lookups,
)
from edorec.embedding.kernels.primitives import (
    FAST,
    bytes_at,
    float_from_bits,
    floats_at,
    ints_at,
    noise,
    prefetch,
    row_key,
)
from edorec.embedding.kernels.threads import SIGNATURE, next_unit, pack, run_on_threads
from edorec.embedding.optimizers import (
    BETA_1,
    BETA_2,
    EPSILON,
    OPTIMIZERS,
    Step,
    keeps_idle_rows,
)
from edorec.embedding.shards import NUM_BUCKETS
from edorec.embedding.states import STATES

AHEAD = 16
COMMON_DIM = 16  # look-ups of this dim are compiled for it, their loops without remainders
BAGS_PER_UNIT = 128
LOOKUPS_PER_UNIT = 512
DIGIT_BITS = 11
DIGIT_MASK = (1 << DIGIT_BITS) - 1
LINE_BYTES = 64
PLACE_MASK = 0xFFFFFFFF
SGD, ROWWISE_ADAGRAD, ADAGRAD, ADAM = range(len(OPTIMIZERS))
NO_WEIGHTS = np.empty(0, np.float32)


def _digest() -> str:
    """Of the sources that are compiled into kernels."""
    folder = Path(__file__).parents[1]
    sources = sorted([*folder.glob("kernels/*.py"), *folder.glob("formats/*.py")])
    sources += [folder / "states.py", folder / "optimizers.py", folder / "shards.py"]
    return hashlib.blake2b(b"".join(path.read_bytes() for path in sources)).hexdigest()


def _choose(functions: Sequence[Any]) -> Any:
    """One compiled function that takes the position of the one to call as first argument."""
    first = functions[0]
    if len(functions) == 1:

        @njit
        def call(_position: int, *args: Any) -> Any:
            return first(*args)

        return call
    others = _choose(functions[1:])

    @njit(forceinline=True)
    def choose(position: int, *args: Any) -> Any:
        if position == 0:
            return first(*args)
        return others(position - 1, *args)

    return choose


_add_any_row = _choose([row_format.add_row for row_format in FORMATS.values()])
_store_any_row = _choose([row_format.store_row for row_format in FORMATS.values()])
_load_state = _choose([state.load for state in STATES.values()])
_store_state = _choose([state.store for state in STATES.values()])


@njit(forceinline=True)
def _step_of(code: int) -> Any:
    """The step in a format's number; see ``formats.format_code``."""
    return float_from_bits(np.uint32(code >> FORMAT_BITS))


@njit(forceinline=True)
def _add_row(code: int, address: int, dim: int, weight: Any, target: int) -> None:
    _add_any_row(code & FORMAT_MASK, _step_of(code), address, dim, weight, target)


@njit(forceinline=True)
def _store_row(code: int, source: int, dim: int, address: int, key: Any, nearest: bool) -> None:
    _store_any_row(code & FORMAT_MASK, _step_of(code), source, dim, address, key, nearest)


@njit(forceinline=True)
def _row_of(key: int) -> int:
    """The row in the upper half of a key, unsigned."""
    return (key >> 32) & PLACE_MASK


@njit(forceinline=True)
def _global_row(shard: int, row: int) -> Any:
    """The row of the whole table; see ``Shard.rows``."""
    if shard == 0:
        return row
    buckets = ints_at(shard)
    return row // buckets[0] * NUM_BUCKETS + buckets[1 + row % buckets[0]]


@njit(forceinline=True)
def _locate(bands: Any, first: int, end: int, row: int) -> Any:
    """Where a row's band is described, and the row's address; ``end`` is behind the last band."""
    entry = first * BAND_COLUMNS
    while entry + BAND_COLUMNS < end * BAND_COLUMNS and row >= bands[entry + BAND_COLUMNS]:
        entry += BAND_COLUMNS
    return entry, bands[entry + ADDRESS] + (row - bands[entry]) * bands[entry + ROW_STRIDE]


@njit(forceinline=True)
def _prefetch_row(bands: Any, first: int, end: int, row: int) -> None:
    entry, address = _locate(bands, first, end, row)
    last = address + bands[entry + ROW_STRIDE] - 1
    prefetch(address)
    if (last ^ address) >= LINE_BYTES:
        prefetch(last)


@njit(forceinline=True, fastmath=FAST)
def _scale(is_mean: int, weights: Any, has_weights: int, i: int, num_values: int) -> Any:
    """What a look-up's row is multiplied by: its weight, by the size of its bag for a mean."""
    scale = weights[i] if has_weights else np.float32(1)
    if is_mean:
        scale /= np.float32(num_values)
    return scale


@njit(forceinline=True)
def _zero(address: int, dim: int) -> None:
    values = floats_at(address)
    for d in range(dim):
        values[d] = np.float32(0)


@njit
def _add_through(
    qat: int, code: int, address: int, dim: int, scale: Any, target: int, spare: int
) -> None:
    """Adds a row as the ``qat`` format would have it; ``spare``: float32 (D), then its bytes."""
    small = spare + 4 * dim
    _zero(spare, dim)
    _add_row(code, address, dim, np.float32(1), spare)
    _store_row(qat, spare, dim, small, np.uint64(0), True)
    _add_row(qat, small, dim, scale, target)


@njit(forceinline=True)
def _pool_bags(
    packed: Any, f: int, table: Any, dim: int, first_bag: int, end_bag: int, spare: int
) -> bool:
    """``_pool`` in a table of a dim."""
    bands = ints_at(packed[1])
    feature = ints_at(packed[3] + 8 * FEATURE_COLUMNS * f)
    values, offsets = ints_at(packed[4]), ints_at(packed[5] + 8 * feature[FIRST_OFFSET])
    weights, has_weights, out = floats_at(packed[6]), packed[7], packed[8]
    first, end = table[FIRST_BAND], table[END_BAND]
    are_rows = True
    for bag in range(first_bag, end_bag):
        target = out + 4 * (feature[OUT] + bag * feature[OUT_STRIDE])
        _zero(target, dim)
        for i in range(offsets[bag], offsets[bag + 1]):
            if i + AHEAD < offsets[end_bag] and 0 <= values[i + AHEAD] < table[TABLE_ROWS]:
                _prefetch_row(bands, first, end, values[i + AHEAD])
            if not 0 <= values[i] < table[TABLE_ROWS]:
                are_rows = False
                continue
            entry, address = _locate(bands, first, end, values[i])
            size = offsets[bag + 1] - offsets[bag]
            scale = _scale(feature[IS_MEAN], weights, has_weights, i, size)
            code = bands[entry + FORMAT]
            if table[QAT] < 0:
                _add_row(code, address, dim, scale, target)
            else:
                _add_through(table[QAT], code, address, dim, scale, target, spare)
    return are_rows


@njit
def _pool(packed: Any, f: int, first_bag: int, end_bag: int, spare: int) -> bool:
    """Some bags of a feature; returns whether all their values are rows."""
    feature = ints_at(packed[3] + 8 * FEATURE_COLUMNS * f)
    table = ints_at(packed[2] + 8 * TABLE_COLUMNS * feature[TABLE])
    if table[DIM] == COMMON_DIM:
        return _pool_bags(packed, f, table, COMMON_DIM, first_bag, end_bag, spare)
    return _pool_bags(packed, f, table, table[DIM], first_bag, end_bag, spare)


@njit
def _forward(packed: Any) -> None:
    """Every unit is some bags of all features.

    Arguments: bands, tables, features, values, offsets, weights, whether there are weights, out,
    whether a value was no row (1), number of features, most bags, largest dim.
    """
    features, wrong = ints_at(packed[3]), ints_at(packed[9])
    num_features, most_bags = packed[10], packed[11]
    spare = np.empty(8 * packed[12] + 8, np.uint8)
    while True:
        start = next_unit(packed) * BAGS_PER_UNIT
        if start >= most_bags:
            return
        for f in range(num_features):
            end = min(start + BAGS_PER_UNIT, features[f * FEATURE_COLUMNS + NUM_BAGS])
            if start < end and not _pool(packed, f, start, end, spare.ctypes.data):
                wrong[0] = 1


@njit
def _collect(packed: Any, table: int, keys: Any, starts: Any, scales: Any) -> None:
    """Look-ups of a table: row and place, where the gradient starts, its scale."""
    features, weights, has_weights = packed[2], floats_at(packed[6]), packed[7]
    values = ints_at(packed[4])
    place = 0
    for f in range(packed[13]):
        feature = ints_at(features + 8 * FEATURE_COLUMNS * f)
        if feature[TABLE] != table:
            continue
        offsets = ints_at(packed[5] + 8 * feature[FIRST_OFFSET])
        for bag in range(feature[NUM_BAGS]):
            low, high = offsets[bag], offsets[bag + 1]
            for i in range(low, high):
                keys[place] = (values[i] << 32) | place
                starts[place] = feature[OUT] + bag * feature[OUT_STRIDE]
                scales[place] = _scale(feature[IS_MEAN], weights, has_weights, i, high - low)
                place += 1


@njit
def _radix_sort(keys: int, spare: int, size: int, num_rows: int, counts: Any) -> None:
    """Sorts keys by the row in their upper half, stably."""
    source, target = ints_at(keys), ints_at(spare)
    shift = 32
    while (num_rows - 1) >> (shift - 32) > 0:
        counts[:] = 0
        for i in range(size):
            counts[(source[i] >> shift) & DIGIT_MASK] += 1
        total = 0
        for digit in range(DIGIT_MASK + 1):
            total, counts[digit] = total + counts[digit], total
        for i in range(size):
            digit = (source[i] >> shift) & DIGIT_MASK
            target[counts[digit]] = source[i]
            counts[digit] += 1
        source, target = target, source
        shift += DIGIT_BITS
    if ((shift - 32) // DIGIT_BITS) % 2:
        for i in range(size):
            target[i] = source[i]


@njit
def _sort(packed: Any) -> None:
    """Every unit is a table's look-ups.

    Arguments: tables, features, slots, values, offsets, weights, whether there are weights,
    keys, spare keys, starts, scales, number of tables, number of features.
    """
    slots = ints_at(packed[3])
    counts = np.empty(DIGIT_MASK + 1, np.int64)
    while True:
        table = next_unit(packed)
        if table >= packed[12]:
            return
        begin, size = slots[table], slots[table + 1] - slots[table]
        keys, spare = packed[8] + 8 * begin, packed[9] + 8 * begin
        starts, scales = packed[10] + 8 * begin, packed[11] + 4 * begin
        _collect(packed, table, ints_at(keys), ints_at(starts), floats_at(scales))
        num_rows = ints_at(packed[1])[table * TABLE_COLUMNS + TABLE_ROWS]
        _radix_sort(keys, spare, size, num_rows, counts)


@njit(forceinline=True, fastmath=FAST)
def _adagrad(w: Any, g: Any, dim: int, sums: Any, rate: Any) -> None:
    for d in range(dim):
        sums[d] += g[d] * g[d]
        w[d] -= rate * g[d] / (np.sqrt(sums[d]) + np.float32(EPSILON))


@njit(forceinline=True, fastmath=FAST)
def _adam(w: Any, g: Any, dim: int, moments: Any, square: Any, step: Any) -> None:
    moments[dim] = np.float32(BETA_2) * moments[dim] + np.float32(1 - BETA_2) * square
    rate = step[0] / (step[2] * (np.sqrt(moments[dim] / step[3]) + np.float32(EPSILON)))
    for d in range(dim):
        moments[d] = np.float32(BETA_1) * moments[d] + np.float32(1 - BETA_1) * g[d]
        w[d] -= rate * moments[d]


@njit(forceinline=True, fastmath=FAST)
def _optimize(
    optimizer: int, w: Any, g: Any, dim: int, address: int, state: int, number: Any, step: Any
) -> None:
    """``optimizers.update_rows`` for one row with its state at ``address``."""
    rate = step[0]
    if step[1] > 0:
        for d in range(dim):
            w[d] *= np.float32(1) - rate * step[1]
    if optimizer == ADAGRAD:
        _adagrad(w, g, dim, floats_at(address), rate)
        return
    if optimizer != SGD:
        square = np.float32(0)
        for d in range(dim):
            square += g[d] * g[d]
        square /= np.float32(dim)
        if optimizer == ADAM:
            _adam(w, g, dim, floats_at(address), square, step)
            return
        total = _load_state(state, address) + square
        _store_state(state, address, total, number)
        rate /= np.sqrt(total) + np.float32(EPSILON)
    for d in range(dim):
        w[d] -= rate * g[d]


@njit(forceinline=True, fastmath=FAST)
def _add_gradient(gradient: Any, scale: Any, dim: int, g: Any) -> None:
    for d in range(dim):
        g[d] += scale * gradient[d]


@njit(forceinline=True)
def _any(g: Any, dim: int) -> bool:
    count = 0
    for d in range(dim):
        count += g[d] != 0
    return count > 0


@njit(forceinline=True)
def _flag_pages(flags: int, byte: int, row_stride: int) -> None:
    """Marks the pages of a band that a row of it is in."""
    pages = bytes_at(flags)
    for page in range(byte // PAGE_BYTES, (byte + row_stride - 1) // PAGE_BYTES + 1):
        pages[page] = np.uint8(1)


@njit
def _update_rows(packed: Any, t: int, low: int, high: int, spare: int) -> None:
    """Updates the rows of a table that begin at its keys ``low`` to ``high`` (excluded)."""
    bands, table = ints_at(packed[1]), ints_at(packed[2] + 8 * TABLE_COLUMNS * t)
    slots, gradients, step = ints_at(packed[3]), packed[7], floats_at(packed[8])
    keys, starts = ints_at(packed[4] + 8 * slots[t]), ints_at(packed[5] + 8 * slots[t])
    scales, table_key = floats_at(packed[6] + 4 * slots[t]), ints_at(packed[9])[t]
    size, dim = slots[t + 1] - slots[t], table[DIM]
    first, end = table[FIRST_BAND], table[END_BAND]
    w, g = floats_at(spare), floats_at(spare + 4 * dim)
    i = low
    while 0 < i < high and _row_of(keys[i]) == _row_of(keys[i - 1]):
        i += 1
    while i < high:
        row = _row_of(keys[i])
        _zero(spare, 2 * dim)
        while i < size and _row_of(keys[i]) == row:
            if i + AHEAD < size:
                ahead = keys[i + AHEAD]
                prefetch(gradients + 4 * starts[ahead & PLACE_MASK])
                _prefetch_row(bands, first, end, _row_of(ahead))
            place = keys[i] & PLACE_MASK
            _add_gradient(floats_at(gradients + 4 * starts[place]), scales[place], dim, g)
            i += 1
        if packed[13] and not _any(g, dim):
            continue
        entry, address = _locate(bands, first, end, row)
        code, state = bands[entry + FORMAT], bands[entry + STATE]
        key = row_key(table_key, _global_row(table[SHARD], row))
        _add_row(code, address, dim, np.float32(1), spare)
        state_address = address + bands[entry + ROW_BYTES]
        _optimize(packed[10], w, g, dim, state_address, state, noise(key, dim), step)
        _store_row(code, spare, dim, address, key, False)
        if packed[14]:
            flags = ints_at(packed[14])[entry // BAND_COLUMNS]
            _flag_pages(flags, address - bands[entry + ADDRESS], bands[entry + ROW_STRIDE])


@njit
def _update(packed: Any) -> None:
    """Every unit is some look-ups of a table.

    Arguments: bands, tables, slots, keys, starts, scales, gradients, step, table keys,
    optimizer, number of tables, largest dim, whether rows of gradient zero stay as they are,
    page flags (0 for none).
    """
    slots = ints_at(packed[3])
    spare = np.empty(2 * packed[12], np.float32)
    wanted, unit = next_unit(packed), 0
    for t in range(packed[11]):
        size = slots[t + 1] - slots[t]
        for low in range(0, size, LOOKUPS_PER_UNIT):
            if unit == wanted:
                high = min(low + LOOKUPS_PER_UNIT, size)
                _update_rows(packed, t, low, high, spare.ctypes.data)
                wanted = next_unit(packed)
            unit += 1


@cache
def _compiled() -> tuple[Any, Any, Any]:
    """The kernels as C functions; compiled on the first call ever, then from numba's cache."""
    # The cache does not see changes of functions that a kernel calls; what it closes over is part
    # of the cache's key.
    sources = _digest()

    @cfunc(SIGNATURE, cache=True)
    def forward(packed: Any) -> None:
        if sources:
            _forward(packed)

    @cfunc(SIGNATURE, cache=True)
    def sort(packed: Any) -> None:
        if sources:
            _sort(packed)

    @cfunc(SIGNATURE, cache=True)
    def update(packed: Any) -> None:
        if sources:
            _update(packed)

    return forward, sort, update


def forward(bands: np.ndarray, tables: np.ndarray, lookups: Lookups) -> torch.Tensor:
    """Looks up and pools.

    Returns:
        float32, flat, laid out as ``lookups.features`` says; numbers no feature owns are undefined.

    Raises:
        IndexError: if a value is not a row of its table; (position of the feature, value).
    """
    out = torch.empty(lookups.out_size, dtype=torch.float32)
    wrong = np.zeros(1, np.int64)
    features = lookups.features
    packed = pack(
        bands,
        tables,
        features,
        lookups.values.numpy(),
        lookups.offsets.numpy(),
        *_weights(lookups),
        out.numpy(),
        wrong,
        len(features),
        int(features[:, NUM_BAGS].max()),
        int(tables[:, DIM].max()),
    )
    run_on_threads(_compiled()[0], packed)
    if wrong[0]:
        raise IndexError(*layout.first_outside(lookups, tables[:, TABLE_ROWS].tolist()))
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
    page_flags: np.ndarray | None = None,
) -> None:
    """Updates the rows that were looked up, in place.

    Args:
        bands: see ``layout``.
        tables: see ``layout``.
        lookups: what ``forward`` looked up.
        gradients: of its result, float32, flat.
        optimizer: one of ``optimizers.OPTIMIZERS``.
        step: the numbers of this update.
        table_keys: int64, one a table, for this step's stochastic rounding.
        page_flags: of ``layout.UpdateWatch``, None where nobody watches.
    """
    values, offsets = lookups.values.numpy(), lookups.offsets.numpy()
    features, num_tables = lookups.features, len(tables)
    slots = layout.table_slots(features, offsets, num_tables)
    keys, spare, starts = (np.empty(slots[-1], np.int64) for _ in range(3))
    scales = np.empty(slots[-1], np.float32)
    look_ups = (features, slots, values, offsets, *_weights(lookups))
    sizes = (num_tables, len(features))
    run_on_threads(_compiled()[1], pack(tables, *look_ups, keys, spare, starts, scales, *sizes))
    gradient, numbers = gradients.numpy(), step.numbers()
    packed = pack(
        bands,
        tables,
        slots,
        keys,
        starts,
        scales,
        gradient,
        numbers,
        table_keys,
        OPTIMIZERS.index(optimizer),
        num_tables,
        int(tables[:, DIM].max()),
        keeps_idle_rows(optimizer, step),
        0 if page_flags is None else page_flags,
    )
    run_on_threads(_compiled()[2], packed)


def _weights(lookups: Lookups) -> tuple[np.ndarray, int]:
    """The weights, and whether there are any."""
    if lookups.weights is None:
        return NO_WEIGHTS, 0
    return lookups.weights.numpy(), 1
