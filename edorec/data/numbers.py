"""Numeric columns: one float64 meaning for every type, moments of the training rows, quantile bins.

Decimals count as scaled (1.25 is 1.25); timestamps of any unit and dates as seconds since 1970 UTC,
so an instant gives the same value in every unit. Null and NaN are NaN here.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

F64 = npt.NDArray[np.float64]
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
CLIP = 10.0


def to_float64(array: pa.Array) -> F64:
    """Values of a numeric array, NaN where null."""
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), np.nan)
    if pa.types.is_timestamp(kind):
        values = _seconds(pc.cast(array, pa.int64()), _PER_SECOND[kind.unit])
    elif pa.types.is_date32(kind):
        values = _plain(pc.cast(pc.cast(array, pa.int32()), pa.float64())) * 86_400.0
    elif pa.types.is_date64(kind):
        values = _seconds(pc.cast(array, pa.int64()), 1_000)
    elif pa.types.is_boolean(kind):
        values = _plain(pc.cast(array, pa.uint8())).astype(np.float64)
    else:
        is_wide = kind == pa.float64()
        values = _plain(array if is_wide else pc.cast(array, pa.float64(), safe=False))
    if array.null_count:
        values[pc.is_null(array).to_numpy(zero_copy_only=False)] = np.nan
    return values


def _plain(array: pa.Array) -> F64:
    """A writable copy with some number where null."""
    filled = pc.fill_null(array, 0) if array.null_count else array
    values: F64 = filled.to_numpy(zero_copy_only=False)
    return np.array(values)


def _seconds(array: pa.Array, per_second: int) -> F64:
    whole, rest = np.divmod(pc.fill_null(array, 0).to_numpy(zero_copy_only=False), per_second)
    return np.asarray(whole + rest / per_second, dtype=np.float64)


def signed_log1p(values: F64) -> F64:
    """sign(x) * ln(1 + |x|)."""
    return np.copysign(np.log1p(np.abs(values)), values)


@dataclass
class Moments:
    """Mean and deviation of a stream of finite values, merged chunk by chunk.

    Extended precision keeps values up to float64's largest from overflowing when squared.
    """

    count: int = 0
    mean: np.longdouble = field(default_factory=lambda: np.longdouble(0))
    squares: np.longdouble = field(default_factory=lambda: np.longdouble(0))
    smallest: float = np.inf
    largest: float = -np.inf

    def add(self, values: F64) -> None:
        """Takes in a chunk without NaN or infinity."""
        if not len(values):
            return
        wide = values.astype(np.longdouble)
        mean = wide.mean()
        squares = np.square(wide - mean).sum()
        count = self.count + len(values)
        gap = mean - self.mean
        self.squares += squares + gap * gap * (np.longdouble(self.count) * len(values) / count)
        self.mean += gap * (np.longdouble(len(values)) / count)
        self.count = count
        self.smallest = min(self.smallest, float(values.min()))
        self.largest = max(self.largest, float(values.max()))

    def scale(self) -> tuple[float, float]:
        """(mean, standard deviation); the deviation is 1 where all values are equal."""
        if self.smallest >= self.largest:
            return (self.smallest if self.count else 0.0), 1.0
        return float(self.mean), float(np.sqrt(self.squares / self.count))


def standardize(values: F64, mean: float, deviation: float) -> tuple[npt.NDArray[np.float32], int]:
    """Standardized values (0 where NaN) clipped to +-10, and how many were clipped."""
    with np.errstate(over="ignore"):
        scaled = (values - mean) / deviation
    clipped = int(np.count_nonzero(np.abs(scaled) > CLIP))
    return np.nan_to_num(np.clip(scaled, -CLIP, CLIP), nan=0.0).astype(np.float32), clipped


def bin_edges(values: F64, counts: npt.NDArray[np.int64], bins: int) -> F64:
    """Upper edges (inclusive) of all bins but the last, strictly increasing.

    Args:
        values: distinct training values, ascending.
        counts: rows of each.
        bins: most bins there may be; with no more distinct values each has a bin of its own.
    """
    if len(values) <= bins:
        return values[:-1]
    reached = np.cumsum(counts)
    cuts = np.arange(1, bins) * (reached[-1] / bins)
    return np.unique(values[np.minimum(np.searchsorted(reached, cuts), len(values) - 2)])
