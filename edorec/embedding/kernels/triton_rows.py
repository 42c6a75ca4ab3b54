"""Look-up and update of rows on a GPU, in Triton; reference: ``kernels.reference``.

Forward: a program for a bag of a feature decodes the bag's rows and sums them. Backward: look-ups
are sorted by table and row (stable, so sums have one order); a program for a row sums its
gradients, applies the optimizer to the decoded row and writes it back with stochastic rounding.
One launch serves all tables, formats and bands; no gradient of a table's size exists.

Rows lie at any byte, since a row with its state may have an odd size, so numbers are put together
from bytes. Addresses are 64-bit. A band may be in the host's memory, pinned: it is read and written
there, and what crosses the bus is counted. Where such rows have been staged (``triton_staging``),
look-ups read the copies, and the update changes these and writes them back. With
``TRITON_INTERPRET=1`` the kernels run on CPU tensors.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from edorec.embedding.formats import FORMATS, fp16, int2, int4, int8, sparse28
from edorec.embedding.kernels import layout
from edorec.embedding.kernels.layout import Lookups, StagedRows
from edorec.embedding.kernels.noise import GOLDEN_32, MIX_32, row_keys
from edorec.embedding.optimizers import BETA_1, BETA_2, EPSILON, OPTIMIZERS, Step, keeps_idle_rows
from edorec.embedding.shards import NUM_BUCKETS
from edorec.embedding.states import LOG_LEVELS, LOWEST_EXPONENT, STATES, STEPS_PER_OCTAVE

FP32, FP16, INT8, INT4, INT2, SPARSE28, TERNARY = (
    tl.constexpr(list(FORMATS).index(name))
    for name in ("fp32", "fp16", "int8", "int4", "int2", "sparse28", "ternary")
)
STATE_FP32, STATE_BF16, STATE_LOG8 = (
    tl.constexpr(list(STATES).index(name)) for name in ("fp32", "bf16", "log8")
)
SGD, ROWWISE_ADAGRAD, ADAGRAD, ADAM = (
    tl.constexpr(OPTIMIZERS.index(name)) for name in ("sgd", "rowwise_adagrad", "adagrad", "adam")
)

FIRST_ROW, ADDRESS, ROW_STRIDE, ROW_BYTES, FORMAT, STATE, ON_HOST, BAND_COLUMNS = (
    tl.constexpr(column)
    for column in (
        layout.FIRST_ROW,
        layout.ADDRESS,
        layout.ROW_STRIDE,
        layout.ROW_BYTES,
        layout.FORMAT,
        layout.STATE,
        layout.ON_HOST,
        layout.BAND_COLUMNS,
    )
)
FIRST_BAND, END_BAND, DIM, QAT, TABLE_ROWS, TRAFFIC, TABLE_COLUMNS = (
    tl.constexpr(column)
    for column in (
        layout.FIRST_BAND,
        layout.END_BAND,
        layout.DIM,
        layout.QAT,
        layout.TABLE_ROWS,
        layout.TRAFFIC,
        layout.TABLE_COLUMNS,
    )
)
LOOKUPS, HOST_LOOKUPS, STAGED_LOOKUPS, READ_BYTES, WRITTEN_BYTES = (
    tl.constexpr(column)
    for column in (
        layout.LOOKUPS,
        layout.HOST_LOOKUPS,
        layout.STAGED_LOOKUPS,
        layout.READ_BYTES,
        layout.WRITTEN_BYTES,
    )
)
TABLE, FIRST_OFFSET, NUM_BAGS, OUT, OUT_STRIDE, IS_MEAN, FEATURE_COLUMNS = (
    tl.constexpr(column)
    for column in (
        layout.TABLE,
        layout.FIRST_OFFSET,
        layout.NUM_BAGS,
        layout.OUT,
        layout.OUT_STRIDE,
        layout.IS_MEAN,
        layout.FEATURE_COLUMNS,
    )
)

GOLDEN, MIX_A, MIX_B = (tl.constexpr(number) for number in (GOLDEN_32, *MIX_32))
HALF_LARGEST, HALF_SMALLEST_STEP, HALF_RELATIVE_STEP = (
    tl.constexpr(number) for number in (fp16.LARGEST, fp16.SMALLEST_STEP, fp16.RELATIVE_STEP)
)
INT8_LARGEST, INT8_PER_RANGE, INT8_PER_MAGNITUDE, INT8_SMALLEST_STEP = (
    tl.constexpr(number)
    for number in (int8.LARGEST, int8.PER_RANGE, int8.PER_MAGNITUDE, int8.SMALLEST_STEP)
)
FORMAT_BITS, FORMAT_MASK = (
    tl.constexpr(number) for number in (layout.FORMAT_BITS, layout.FORMAT_MASK)
)
INT4_LARGEST, INT4_STEPS, INT2_LARGEST = (
    tl.constexpr(number) for number in (int4.LARGEST, int4.STEPS, int2.LARGEST)
)
GROUP, SPARSE_LARGEST, SPARSE_LOW, SPARSE_STEP = (
    tl.constexpr(number)
    for number in (sparse28.GROUP, sparse28.LARGEST, sparse28.LOW, sparse28.STEP)
)
OCTAVE, LOWEST = (tl.constexpr(number) for number in (STEPS_PER_OCTAVE, LOWEST_EXPONENT))
BETA_A, BETA_B, TINY = (tl.constexpr(number) for number in (BETA_1, BETA_2, EPSILON))

# A row is short. Products and sums are rounded one by one, as in the reference.
OPTIONS = {"num_warps": 1, "enable_fp_fusion": False}
LOOKUPS_PER_BLOCK = 64
BYTES_PER_BLOCK = 32


@triton.jit
def _byte(address, mask):
    """Bytes at int64 addresses, as uint32; 0 where they are masked."""
    pointer = address.to(tl.pointer_type(tl.uint8), bitcast=True)
    return tl.load(pointer, mask=mask, other=0).to(tl.uint32)


@triton.jit
def _half(address, mask):
    """float32 of halves at int64 addresses."""
    bits = _byte(address, mask) | (_byte(address + 1, mask) << 8)
    return bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _float(address, mask):
    """float32 at int64 addresses."""
    low = _byte(address, mask) | (_byte(address + 1, mask) << 8)
    high = _byte(address + 2, mask) | (_byte(address + 3, mask) << 8)
    return (low | (high << 16)).to(tl.float32, bitcast=True)


@triton.jit
def _store_byte(address, bits, mask):
    pointer = address.to(tl.pointer_type(tl.uint8), bitcast=True)
    tl.store(pointer, (bits & 255).to(tl.uint8), mask=mask)


@triton.jit
def _store_half(address, value, mask):
    """Stores float32 values that are halves."""
    bits = value.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.uint32)
    _store_byte(address, bits, mask)
    _store_byte(address + 1, bits >> 8, mask)


@triton.jit
def _store_float(address, value, mask):
    bits = value.to(tl.uint32, bitcast=True)
    _store_byte(address, bits, mask)
    _store_byte(address + 1, bits >> 8, mask)
    _store_byte(address + 2, bits >> 16, mask)
    _store_byte(address + 3, bits >> 24, mask)


@triton.jit
def _noise(key, lane):
    """Twin of ``noise.row_noise``; uint32 keys and lanes."""
    x = key + lane * GOLDEN
    x = (x ^ (x >> 16)) * MIX_A
    x = (x ^ (x >> 15)) * MIX_B
    x = x ^ (x >> 15)
    return (x >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24


@triton.jit
def _floor_with(value, number):
    """Twin of ``row_format.floor_with``."""
    floor = tl.floor(value)
    return floor + tl.floor(value - floor + number)


@triton.jit
def _power_of_two_at_least(value):
    """Twin of ``row_format.power_of_two_at_least``."""
    bits = value.to(tl.uint32, bitcast=True) + 0x007FFFFF
    return (bits & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def _inverse_power_of_two(value):
    """1 / value, exactly, of a power of two."""
    return (0x7F000000 - value.to(tl.uint32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def _inverse(value):
    """1 / value, 0 of 0."""
    return tl.where(value > 0, tl.div_rn(1.0, tl.where(value > 0, value, 1.0)), 0.0)


@triton.jit
def _as_half(value):
    """The nearest half, as float32."""
    return value.to(tl.float16).to(tl.float32)


@triton.jit
def _clamp(value, low, high):
    return tl.minimum(tl.maximum(value, low), high)


@triton.jit
def _step_of(code):
    """The step in a format's number; see ``formats.format_code``."""
    return (code >> FORMAT_BITS).to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def _load_row(code, address, dim, BLOCK: tl.constexpr):
    """A row of any format, float32 (BLOCK), 0 from ``dim`` on; twin of the formats' ``decode``."""
    d = tl.arange(0, BLOCK)
    live = d < dim
    values = tl.zeros([BLOCK], tl.float32)
    if code == FP32:
        values = _float(address + 4 * d, live)
    elif code == FP16:
        values = _half(address + 2 * d, live)
    elif code == INT8:
        scale, bias = _half(address, dim > 0), _half(address + 2, dim > 0)
        values = _byte(address + 4 + d, live).to(tl.float32) * scale + bias
    elif code == INT4:
        scale, bias = _half(address, dim > 0), _half(address + 2, dim > 0)
        codes = (_byte(address + 4 + d // 2, live) >> ((d % 2) * 4).to(tl.uint32)) & 15
        values = codes.to(tl.float32) * scale + bias
    elif code == INT2:
        step = _half(address, dim > 0)
        codes = (_byte(address + 2 + d // 4, live) >> ((d % 4) * 2).to(tl.uint32)) & 3
        values = (codes.to(tl.float32) - 1.5) * step
    elif code & FORMAT_MASK == TERNARY:
        codes = (_byte(address + d // 4, live) >> ((d % 4) * 2).to(tl.uint32)) & 3
        values = (codes.to(tl.float32) - 1.0) * _step_of(code)
    return tl.where(live, values, 0.0)


@triton.jit
def _round_fp16(values, noise):
    """Halves, as float32."""
    bits = values.to(tl.uint32, bitcast=True) & 0x7F800000
    step = tl.maximum(bits.to(tl.float32, bitcast=True) * HALF_RELATIVE_STEP, HALF_SMALLEST_STEP)
    rounded = _floor_with(values * _inverse_power_of_two(step), noise) * step
    return _clamp(rounded, -HALF_LARGEST, HALF_LARGEST)


@triton.jit
def _round_int8(values, noise, live):
    """Scale, bias and codes."""
    values = _clamp(values, -INT8_LARGEST, INT8_LARGEST)
    low = tl.min(tl.where(live, values, INT8_LARGEST), axis=0)
    high = tl.max(tl.where(live, values, -INT8_LARGEST), axis=0)
    finest = tl.maximum((high - low) * INT8_PER_RANGE, tl.maximum(-low, high) * INT8_PER_MAGNITUDE)
    scale = _power_of_two_at_least(tl.maximum(finest, INT8_SMALLEST_STEP))
    inverse = _inverse_power_of_two(scale)
    bias = tl.floor(low * inverse) * scale
    return scale, bias, _floor_with((values - bias) * inverse, noise)


@triton.jit
def _round_int4(values, noise, live):
    """Scale, bias and codes."""
    values = _clamp(values, -INT4_LARGEST, INT4_LARGEST)
    low = tl.min(tl.where(live, values, INT4_LARGEST), axis=0)
    high = tl.max(tl.where(live, values, -INT4_LARGEST), axis=0)
    bias = _as_half(low)
    scale = _as_half((high - bias) * (1 / INT4_STEPS))
    codes = (values - bias) * _inverse(scale) + noise
    return scale, bias, tl.floor(_clamp(codes, 0.0, INT4_STEPS * 1.0))


@triton.jit
def _round_int2(values, noise, live, dim):
    """Step and codes."""
    total = tl.sum(tl.where(live, tl.abs(values), 0.0), axis=0)
    step = _as_half(tl.minimum(tl.div_rn(total, dim.to(tl.float32)), INT2_LARGEST))
    codes = values * _inverse(step) + (noise + 1.5)
    return step, tl.floor(_clamp(codes, 0.0, 3.0))


@triton.jit
def _round_sparse28(values, noise, dim, BLOCK: tl.constexpr):
    """What stays of the values."""
    d = tl.reshape(tl.arange(0, BLOCK), (BLOCK // GROUP, GROUP))
    v = tl.reshape(values, (BLOCK // GROUP, GROUP))
    size = tl.abs(v)
    ahead = (size[:, None, :] > size[:, :, None]) | (
        (size[:, None, :] == size[:, :, None]) & (d[:, None, :] < d[:, :, None])
    )
    kept = tl.sum(ahead.to(tl.int32), axis=2) < 2
    num_kept = tl.sum(tl.sum((kept & (d < dim)).to(tl.int32), axis=1), axis=0)
    total = tl.sum(tl.sum(tl.where(kept, size, 0.0), axis=1), axis=0)
    step = tl.minimum(tl.div_rn(total, num_kept.to(tl.float32)), SPARSE_LARGEST)
    bits = ((step.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.uint32) + 1) >> 1) << 1
    step = bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    upper = (size * _inverse(step) - SPARSE_LOW) * (1 / SPARSE_STEP) + noise
    magnitude = (SPARSE_LOW + SPARSE_STEP * tl.where(upper >= 1.0, 1.0, 0.0)) * step
    return tl.reshape(tl.where(kept, tl.where(v < 0, -magnitude, magnitude), 0.0), (BLOCK,))


@triton.jit
def _through(qat, values, dim, BLOCK: tl.constexpr):
    """A row as the ``qat`` format would have it, rounded to the nearest."""
    live = tl.arange(0, BLOCK) < dim
    seen = values
    if qat == FP16:
        seen = _round_fp16(values, 0.5)
    elif qat == INT8:
        scale, bias, codes = _round_int8(values, 0.5, live)
        seen = codes * _as_half(scale) + _as_half(bias)
    elif qat == INT4:
        scale, bias, codes = _round_int4(values, 0.5, live)
        seen = codes * scale + bias
    elif qat == INT2:
        step, codes = _round_int2(values, 0.5, live, dim)
        seen = (codes - 1.5) * step
    elif qat == SPARSE28:
        seen = _round_sparse28(values, 0.5, dim, BLOCK)
    return tl.where(live, seen, 0.0)


@triton.jit
def _packed(codes, live, BLOCK: tl.constexpr, EACH: tl.constexpr):
    """Codes put together, ``EACH`` a byte, the first lowest; uint32 (BLOCK / EACH)."""
    bits = tl.where(live, codes, 0.0).to(tl.uint32)
    place = tl.arange(0, BLOCK) % EACH
    shifted = bits << (place * (8 // EACH)).to(tl.uint32)
    return tl.sum(tl.reshape(shifted, (BLOCK // EACH, EACH)), axis=1)


@triton.jit
def _store_row(code, address, values, noise, dim, BLOCK: tl.constexpr):
    """Writes a row; twin of the formats' ``encode``."""
    d = tl.arange(0, BLOCK)
    live = d < dim
    if code == FP32:
        _store_float(address + 4 * d, values, live)
    elif code == FP16:
        _store_half(address + 2 * d, _round_fp16(values, noise), live)
    elif code == INT8:
        scale, bias, codes = _round_int8(values, noise, live)
        _store_half(address, scale, dim > 0)
        _store_half(address + 2, bias, dim > 0)
        _store_byte(address + 4 + d, codes.to(tl.uint32), live)
    elif code == INT4:
        scale, bias, codes = _round_int4(values, noise, live)
        _store_half(address, scale, dim > 0)
        _store_half(address + 2, bias, dim > 0)
        pairs = tl.arange(0, BLOCK // 2)
        _store_byte(address + 4 + pairs, _packed(codes, live, BLOCK, 2), 2 * pairs < dim)
    elif code == INT2:
        step, codes = _round_int2(values, noise, live, dim)
        _store_half(address, step, dim > 0)
        fours = tl.arange(0, BLOCK // 4)
        _store_byte(address + 2 + fours, _packed(codes, live, BLOCK, 4), 4 * fours < dim)
    elif code & FORMAT_MASK == TERNARY:
        steps = _clamp(values * _inverse(_step_of(code)), -1.0, 1.0)
        codes = _floor_with(steps, noise) + 1.0
        fours = tl.arange(0, BLOCK // 4)
        _store_byte(address + fours, _packed(codes, live, BLOCK, 4), 4 * fours < dim)


@triton.jit
def _load_state(state, address, levels):
    """An accumulator, float32."""
    value = 0.0
    if state == STATE_FP32:
        value = _float(address, state >= 0)
    elif state == STATE_BF16:
        bits = _byte(address, state >= 0) | (_byte(address + 1, state >= 0) << 8)
        value = (bits << 16).to(tl.float32, bitcast=True)
    else:
        value = tl.load(levels + _byte(address, state >= 0))
    return value


@triton.jit
def _log8_code(value, number, levels):
    """Exponent and mantissa find the code or the one below, then a step up by chance."""
    bits = value.to(tl.int32, bitcast=True)
    octave = (bits >> 23) - (127 + LOWEST)
    code = _clamp(OCTAVE * octave + ((bits >> 20) & 7) + 1, 0, 254)
    code = tl.where((code < 254) & (tl.load(levels + code + 1) <= value), code + 1, code)
    code = tl.where((code > 0) & (tl.load(levels + code) > value), code - 1, code)
    low, high = tl.load(levels + code), tl.load(levels + code + 1)
    return code + tl.where(number < tl.div_rn(value - low, high - low), 1, 0)


@triton.jit
def _store_state(state, address, value, number, levels):
    if state == STATE_FP32:
        _store_float(address, value, state >= 0)
    elif state == STATE_BF16:
        bits = value.to(tl.uint32, bitcast=True) + (number * 65536).to(tl.uint32)
        _store_byte(address, bits >> 16, state >= 0)
        _store_byte(address + 1, bits >> 24, state >= 0)
    else:
        _store_byte(address, _log8_code(value, number, levels).to(tl.uint32), state >= 0)


@triton.jit
def _band_of(bands, table, row):
    """Where a row's band is described."""
    entry = tl.load(table + FIRST_BAND)
    for k in range(entry + 1, tl.load(table + END_BAND)):
        entry = tl.where(row >= tl.load(bands + k * BAND_COLUMNS + FIRST_ROW), k, entry)
    return bands + entry * BAND_COLUMNS


@triton.jit
def _row_address(band, row):
    return tl.load(band + ADDRESS) + (row - tl.load(band + FIRST_ROW)) * tl.load(band + ROW_STRIDE)


@triton.jit
def _count(table, column, number):
    """Adds to a counter of the table's traffic; see ``layout``."""
    counters = tl.load(table + TRAFFIC).to(tl.pointer_type(tl.int64), bitcast=True)
    tl.atomic_add(counters + column, number, sem="relaxed")


@triton.jit
def _staged_copy(feature, row, firsts, keys, addresses, i):
    """Address of the copy of the row of look-up ``i``, 0 if there is none."""
    lookup = tl.load(firsts + tl.program_id(1)) + i
    key = (tl.load(feature + TABLE) << 32) | row
    return tl.where(tl.load(keys + lookup) == key, tl.load(addresses + lookup), 0)


@triton.jit
def forward_kernel(
    bands,
    tables,
    features,
    values,
    offsets,
    weights,
    out,
    wrong,
    staged_firsts,
    staged_keys,
    staged_addresses,
    HAS_WEIGHTS: tl.constexpr,
    HAS_STAGED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Pools bag ``program_id(0)`` of feature ``program_id(1)``."""
    bag = tl.program_id(0).to(tl.int64)
    feature = features + tl.program_id(1) * FEATURE_COLUMNS
    if bag < tl.load(feature + NUM_BAGS):
        table = tables + tl.load(feature + TABLE) * TABLE_COLUMNS
        dim, qat, num_rows = (
            tl.load(table + DIM),
            tl.load(table + QAT),
            tl.load(table + TABLE_ROWS),
        )
        first = offsets + tl.load(feature + FIRST_OFFSET) + bag
        low, high = tl.load(first), tl.load(first + 1)
        total = tl.zeros([BLOCK], tl.float32)
        on_host, from_host, read_bytes = low - low, low - low, low - low
        for i in range(low, high):
            row = tl.load(values + i)
            if (row >= 0) & (row < num_rows):
                band = _band_of(bands, table, row)
                address, over_bus = _row_address(band, row), tl.load(band + ON_HOST)
                on_host += over_bus
                if HAS_STAGED:
                    copy = _staged_copy(
                        feature, row, staged_firsts, staged_keys, staged_addresses, i
                    )
                    address = tl.where(copy != 0, copy, address)
                    over_bus = tl.where(copy != 0, 0, over_bus)
                from_host += over_bus
                read_bytes += over_bus * tl.load(band + ROW_BYTES)
                numbers = _load_row(tl.load(band + FORMAT), address, dim, BLOCK)
                if qat >= 0:
                    numbers = _through(qat, numbers, dim, BLOCK)
                scale = 1.0
                if HAS_WEIGHTS:
                    scale = tl.load(weights + i)
                if tl.load(feature + IS_MEAN) != 0:
                    scale = tl.div_rn(scale, (high - low).to(tl.float32))
                total += scale * numbers
            else:
                tl.store(wrong, 1)
        d = tl.arange(0, BLOCK)
        start = tl.load(feature + OUT) + bag * tl.load(feature + OUT_STRIDE)
        tl.store(out + start + d, total, mask=d < dim)
        if tl.load(table + TRAFFIC) != 0:
            _count(table, LOOKUPS, high - low)
            _count(table, HOST_LOOKUPS, on_host)
            _count(table, STAGED_LOOKUPS, on_host - from_host)
            _count(table, READ_BYTES, read_bytes)


@triton.jit
def collect_kernel(
    features,
    slots,
    values,
    offsets,
    weights,
    keys,
    starts,
    scales,
    HAS_WEIGHTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Table and row, start of the gradient, and scale of every look-up of a bag."""
    bag = tl.program_id(0).to(tl.int64)
    feature = features + tl.program_id(1) * FEATURE_COLUMNS
    if bag < tl.load(feature + NUM_BAGS):
        first = offsets + tl.load(feature + FIRST_OFFSET)
        low, high = tl.load(first + bag), tl.load(first + bag + 1)
        slot = tl.load(slots + tl.program_id(1)) - tl.load(first)
        start = tl.load(feature + OUT) + bag * tl.load(feature + OUT_STRIDE)
        share = 1.0
        if tl.load(feature + IS_MEAN) != 0:
            share = tl.div_rn(1.0, tl.maximum(high - low, 1).to(tl.float32))
        for begin in range(low, high, BLOCK):
            i = begin + tl.arange(0, BLOCK)
            live = i < high
            rows = tl.load(values + i, mask=live, other=0)
            scale = tl.zeros([BLOCK], tl.float32) + share
            if HAS_WEIGHTS:
                scale = scale * tl.load(weights + i, mask=live, other=0.0)
            tl.store(keys + slot + i, (tl.load(feature + TABLE) << 32) | rows, mask=live)
            tl.store(starts + slot + i, tl.zeros([BLOCK], tl.int64) + start, mask=live)
            tl.store(scales + slot + i, scale, mask=live)


@triton.jit
def _change(
    state,
    address,
    g,
    dim,
    number,
    levels,
    rate,
    moment_correction,
    square_correction,
    OPTIMIZER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What the optimizer takes off a row; updates its state; twin of ``optimizers.UPDATES``."""
    d = tl.arange(0, BLOCK)
    live = d < dim
    change = rate * g
    if OPTIMIZER == ADAGRAD:
        sums = _float(address + 4 * d, live) + g * g
        _store_float(address + 4 * d, sums, live)
        change = tl.div_rn(rate * g, tl.sqrt_rn(sums) + TINY)
    elif OPTIMIZER == ROWWISE_ADAGRAD:
        square = tl.div_rn(tl.sum(g * g, axis=0), dim.to(tl.float32))
        total = _load_state(state, address, levels) + square
        _store_state(state, address, total, number, levels)
        change = tl.div_rn(rate, tl.sqrt_rn(total) + TINY) * g
    elif OPTIMIZER == ADAM:
        square = tl.div_rn(tl.sum(g * g, axis=0), dim.to(tl.float32))
        moments = BETA_A * _float(address + 4 * d, live) + (1 - BETA_A) * g
        second = BETA_B * _float(address + 4 * dim, dim > 0) + (1 - BETA_B) * square
        _store_float(address + 4 * d, moments, live)
        _store_float(address + 4 * dim, second, dim > 0)
        scale = tl.sqrt_rn(tl.div_rn(second, square_correction)) + TINY
        change = tl.div_rn(rate, moment_correction) * tl.div_rn(moments, scale)
    return change


@triton.jit
def update_kernel(
    bands,
    tables,
    keys,
    firsts,
    noise_keys,
    starts,
    scales,
    gradients,
    copies,
    levels,
    rate,
    decay,
    moment_correction,
    square_correction,
    OPTIMIZER: tl.constexpr,
    KEEPS_IDLE: tl.constexpr,
    HAS_STAGED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Updates one row: sum of its gradients, optimizer, and back into its format.

    Where ``copies`` has the address of a copy, that is updated; it becomes 0 if the row stays as it
    is.
    """
    n = tl.program_id(0).to(tl.int64)
    low, high = tl.load(firsts + n), tl.load(firsts + n + 1)
    key = tl.load(keys + low)
    table, row = tables + (key >> 32) * TABLE_COLUMNS, key & 0xFFFFFFFF
    dim = tl.load(table + DIM)
    d = tl.arange(0, BLOCK)
    live = d < dim
    g = tl.zeros([BLOCK], tl.float32)
    for i in range(low, high):
        gradient = tl.load(gradients + tl.load(starts + i) + d, mask=live, other=0.0)
        g += tl.load(scales + i) * gradient
    moves = tl.max(tl.abs(g), axis=0) > 0
    if moves | (not KEEPS_IDLE):
        band = _band_of(bands, table, row)
        code, address = tl.load(band + FORMAT), _row_address(band, row)
        over_bus = tl.load(band + ON_HOST) != 0
        if HAS_STAGED:
            copy = tl.load(copies + n)
            address = tl.where(copy != 0, copy, address)
            over_bus = over_bus & (copy == 0)
        state_address = address + tl.load(band + ROW_BYTES)
        noise_key = tl.load(noise_keys + n).to(tl.uint32)
        w = _load_row(code, address, dim, BLOCK) * (1.0 - rate * decay)
        w -= _change(
            tl.load(band + STATE),
            state_address,
            g,
            dim,
            _noise(noise_key, dim.to(tl.uint32)),
            levels,
            rate,
            moment_correction,
            square_correction,
            OPTIMIZER,
            BLOCK,
        )
        noise = _noise(noise_key, d.to(tl.uint32))
        _store_row(code, address, w, noise, dim, BLOCK)
        if over_bus:
            _count(table, READ_BYTES, tl.load(band + ROW_STRIDE))
            _count(table, WRITTEN_BYTES, tl.load(band + ROW_STRIDE))
    else:
        if HAS_STAGED:
            tl.store(copies + n, 0)


@triton.jit
def write_back_kernel(
    bands,
    tables,
    keys,
    updated,
    copies,
    NUM_COPIES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copies a row from where it was ``updated`` to the host's memory and all of its ``copies``."""
    n = tl.program_id(0).to(tl.int64)
    source, key = tl.load(updated + n), tl.load(keys + n)
    if source != 0:
        table, row = tables + (key >> 32) * TABLE_COLUMNS, key & 0xFFFFFFFF
        band = _band_of(bands, table, row)
        address, size = _row_address(band, row), tl.load(band + ROW_STRIDE)
        for begin in range(0, size, BLOCK):
            d = begin + tl.arange(0, BLOCK)
            bits = _byte(source + d, d < size)
            _store_byte(address + d, bits, d < size)
            for k in tl.static_range(NUM_COPIES):
                copy = tl.load(copies + k * tl.num_programs(0) + n)
                if copy != 0:
                    _store_byte(copy + d, bits, d < size)
        _count(table, WRITTEN_BYTES, size)


def _block(tables: np.ndarray) -> int:
    """Numbers that a program holds of a row: a power of two, whole groups of sparse28."""
    power: int = triton.next_power_of_2(int(tables[:, layout.DIM].max()))
    return max(power, sparse28.GROUP)


def _on(device: torch.device, *arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(array).to(device) for array in arrays]


def _weights(lookups: Lookups) -> tuple[torch.Tensor, bool]:
    """Weights and whether there are any; a kernel wants a tensor in any case."""
    if lookups.weights is None:
        return torch.empty(0, device=lookups.values.device), False
    return lookups.weights, True


def forward(
    bands: np.ndarray, tables: np.ndarray, lookups: Lookups, staged: StagedRows | None = None
) -> torch.Tensor:
    """As ``kernels.cpu.forward``; rows that are ``staged`` are read there.

    ``staged`` is of a batch with as many values. Each look-up compares the row, so it need not be
    this batch.
    """
    device, features = lookups.values.device, lookups.features
    out = torch.empty(lookups.out_size, device=device)
    wrong = torch.zeros(1, dtype=torch.int32, device=device)
    weights, has_weights = _weights(lookups)
    grid = (int(features[:, layout.NUM_BAGS].max()), len(features))
    if grid[0]:
        forward_kernel[grid](
            *_on(device, bands, tables, features),
            lookups.values,
            lookups.offsets,
            weights,
            out,
            wrong,
            *_staged_lookups(staged, lookups.values),
            HAS_WEIGHTS=has_weights,
            HAS_STAGED=staged is not None,
            BLOCK=_block(tables),
            **OPTIONS,
        )
    if wrong.item():
        raise IndexError(*layout.first_outside(lookups, tables[:, layout.TABLE_ROWS].tolist()))
    return out


def _staged_lookups(staged: StagedRows | None, values: torch.Tensor) -> list[torch.Tensor]:
    """What the look-up wants of them; a kernel wants tensors in any case."""
    if staged is None:
        return [values, values, values]
    return [staged.firsts, staged.lookup_keys, staged.lookup_addresses]


def backward(
    bands: np.ndarray,
    tables: np.ndarray,
    lookups: Lookups,
    gradients: torch.Tensor,
    *,
    optimizer: str,
    step: Step,
    table_keys: np.ndarray,
    staged: Sequence[StagedRows] = (),
) -> None:
    """As ``kernels.cpu.backward``; all copies of a row in ``staged`` become what the row does."""
    device = gradients.device
    keys, starts, scales = _sorted_lookups(lookups)
    if not len(keys):
        return
    borders = (keys[1:] != keys[:-1]).nonzero().flatten() + 1
    ends = torch.tensor([0, len(keys)], device=device)
    firsts = torch.cat([ends[:1], borders, ends[1:]])
    row_of = keys[firsts[:-1]]
    (seeds,) = _on(device, table_keys)
    table, row = row_of >> 32, row_of & 0xFFFFFFFF
    if tables[:, layout.SHARD].any():
        row = _global_rows(tables, table, row)
    # Keys of rows are sums of table key and row, mixed; int64 sums wrap as they must.
    noise_keys = row_keys(0, row + seeds[table]) & 0xFFFFFFFF
    rate, decay, moment_correction, square_correction = step.numbers().tolist()
    bands_tables, copies_SN = _on(device, bands, tables), _copies(staged, row_of)
    updated_N = copies_SN.amax(dim=0) if staged else row_of
    update_kernel[(len(row_of),)](
        *bands_tables,
        keys,
        firsts,
        noise_keys,
        starts,
        scales,
        gradients,
        updated_N,
        torch.from_numpy(LOG_LEVELS).to(device),
        rate,
        decay,
        moment_correction,
        square_correction,
        OPTIMIZER=OPTIMIZERS.index(optimizer),
        KEEPS_IDLE=keeps_idle_rows(optimizer, step),
        HAS_STAGED=bool(staged),
        BLOCK=_block(tables),
        **OPTIONS,
    )
    if staged:
        write_back_kernel[(len(row_of),)](
            *bands_tables,
            row_of,
            updated_N,
            copies_SN,
            NUM_COPIES=len(staged),
            BLOCK=BYTES_PER_BLOCK,
            **OPTIONS,
        )


def _copies(staged: Sequence[StagedRows], keys_N: torch.Tensor) -> torch.Tensor:
    """Addresses of copies of rows, int64 (S, N), 0 where there is none."""
    copies_SN = keys_N.new_zeros(len(staged), len(keys_N))
    for copies_N, rows in zip(copies_SN, staged, strict=True):
        places = torch.searchsorted(rows.keys, keys_N).clamp(max=len(rows.keys) - 1)
        found = rows.keys[places] == keys_N
        copies_N.copy_(torch.where(found, rows.addresses[places], 0))
    return copies_SN


def _global_rows(tables: np.ndarray, table_N: torch.Tensor, local_N: torch.Tensor) -> torch.Tensor:
    """Rows of whole tables, int64 (N); see ``Shard.rows``."""
    buckets_TB = np.tile(np.arange(NUM_BUCKETS), (len(tables), 1))
    sizes_T = np.full(len(tables), NUM_BUCKETS)
    for table in np.flatnonzero(tables[:, layout.SHARD]):
        held = (ctypes.c_int64 * (1 + NUM_BUCKETS)).from_address(int(tables[table, layout.SHARD]))
        sizes_T[table] = held[0]
        buckets_TB[table, : held[0]] = held[1 : 1 + held[0]]
    buckets, sizes = _on(local_N.device, buckets_TB, sizes_T)
    size_N = sizes[table_N]
    return local_N // size_N * NUM_BUCKETS + buckets[table_N, local_N % size_N]


def _sorted_lookups(lookups: Lookups) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of all look-ups, by table and row: table and row in one int64, gradient's start, scale."""
    features, device = lookups.features, lookups.values.device
    first = torch.from_numpy(features[:, layout.FIRST_OFFSET]).to(device)
    num_bags = torch.from_numpy(features[:, layout.NUM_BAGS]).to(device)
    counts = lookups.offsets[first + num_bags] - lookups.offsets[first]
    slots = counts.cumsum(0) - counts
    size = int(counts.sum())
    keys, starts = (torch.empty(size, dtype=torch.int64, device=device) for _ in range(2))
    scales = torch.empty(size, device=device)
    weights, has_weights = _weights(lookups)
    if size:
        collect_kernel[(int(features[:, layout.NUM_BAGS].max()), len(features))](
            *_on(device, features),
            slots,
            lookups.values,
            lookups.offsets,
            weights,
            keys,
            starts,
            scales,
            HAS_WEIGHTS=has_weights,
            BLOCK=LOOKUPS_PER_BLOCK,
            **OPTIONS,
        )
    keys, order = keys.sort(stable=True)
    return keys, starts[order], scales[order]
