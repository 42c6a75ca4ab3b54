"""What numba kernels are made of: memory by address, half precision, random numbers.

Tables are memory maps that are paged and shrunk behind the kernels' back, so kernels get addresses
instead of arrays: 64-bit, and a row's is ``base + row * row_bytes``.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from edorec.embedding.kernels.layout import FIRST_ROW, ROW_STRIDE
from edorec.embedding.kernels.noise import GOLDEN_32, GOLDEN_64, MIX_32, MIX_64

# Reductions may be reordered, so that they vectorize. Values are finite: a loss that is not stops
# training before its gradient reaches a table.
FAST = {"reassoc", "nnan", "nsz", "arcp", "contract"}


POINTER: Any = types.CPointer


def _pointer(name: str, element: Any) -> Any:
    def pointer(_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return POINTER(element)(types.int64), codegen

    pointer.__doc__ = f"Memory at an int64 address, as {name}."
    return intrinsic(pointer)


bytes_at = _pointer("uint8", types.uint8)
halves_at = _pointer("uint16, or fp16 bits", types.uint16)
floats_at = _pointer("float32", types.float32)
ints_at = _pointer("int64", types.int64)


def _half_to_float(_context: Any, _bits: Any) -> Any:
    """float32 of fp16 bits (uint16)."""

    def codegen(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), codegen


half_to_float: Any = intrinsic(_half_to_float)


def _float_to_half(_context: Any, _value: Any) -> Any:
    """fp16 bits (uint16) of a float32, rounded to nearest."""

    def codegen(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), codegen


float_to_half: Any = intrinsic(_float_to_half)


def _float_bits(_context: Any, _value: Any) -> Any:
    """The bits (uint32) of a float32."""

    def codegen(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), codegen


float_bits: Any = intrinsic(_float_bits)


def _float_from_bits(_context: Any, _bits: Any) -> Any:
    """The float32 of its bits (uint32)."""

    def codegen(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), codegen


float_from_bits: Any = intrinsic(_float_from_bits)


def _prefetch(_context: Any, _address: Any) -> Any:
    """Starts to load the cache line at an int64 address."""

    def codegen(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = ir.PointerType(ir.IntType(8))
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        # Read, keep in all caches, data.
        hints = [ir.Constant(number, value) for value in (0, 3, 1)]
        builder.call(function, [builder.inttoptr(args[0], pointer), *hints])

    return types.void(types.int64), codegen


prefetch: Any = intrinsic(_prefetch)


@njit(forceinline=True)
def row_key(key: int, row: int) -> Any:
    """Twin of ``noise.row_keys``, for one row (uint64 key, int64 row)."""
    x = np.uint64(row) + np.uint64(key) + np.uint64(GOLDEN_64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(MIX_64[0])
    x = (x ^ (x >> np.uint64(27))) * np.uint64(MIX_64[1])
    return x ^ (x >> np.uint64(31))


@njit(forceinline=True)
def noise(key: Any, lane: int) -> Any:
    """Twin of ``noise.row_noise``, for one number of a row with this uint64 key."""
    x = np.uint32(np.uint32(key) + np.uint32(np.uint32(lane) * np.uint32(GOLDEN_32)))
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(MIX_32[0]))
    x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(MIX_32[1]))
    x = x ^ (x >> np.uint32(15))
    return np.float32(np.int32(x >> np.uint32(8))) * np.float32(2.0**-24)


@njit(forceinline=True, fastmath=False)  # a caller's fastmath would hold here too
def floor_with(value: Any, number: Any) -> Any:
    """Twin of ``row_format.floor_with``."""
    floor = np.floor(value)
    return floor + np.floor(value - floor + number)


@njit(forceinline=True, fastmath=False)
def scaled(value: Any, factor: Any, number: Any) -> Any:
    """Product plus number, rounded after each as in torch, so that codes at a border agree."""
    return value * factor + number


@njit(forceinline=True)
def power_of_two_at_least(value: Any) -> Any:
    """The smallest power of two that is not below a positive normal float32."""
    bits = np.uint32(float_bits(value) + np.uint32(0x007FFFFF))
    return float_from_bits(np.uint32(bits & np.uint32(0x7F800000)))


@njit(forceinline=True)
def inverse_power_of_two(value: Any) -> Any:
    """1 / value, exactly, of a power of two."""
    return float_from_bits(np.uint32(np.uint32(0x7F000000) - float_bits(value)))


@njit(forceinline=True)
def place_in_band(bands: Any, first: int, end: int, row: int) -> Any:
    """Which of a table's bands ``first`` to ``end`` (excluded) a row is in, and its bytes there.

    Returns:
        Number of the band, and the row's first and last byte in it.
    """
    band = first
    while band + 1 < end and row >= bands[band + 1, FIRST_ROW]:
        band += 1
    byte = (row - bands[band, FIRST_ROW]) * bands[band, ROW_STRIDE]
    return band, byte, byte + bands[band, ROW_STRIDE] - 1
