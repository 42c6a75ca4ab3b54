"""What it costs to store an id smaller, in shares of the labels' variance.

An id seen c times, of value V a look-up (``edorec.planning.value``), has learned the share
cV / (cV + 1) of it. A storage loses a part of that at once (``rounding``: what the format cannot
hold) and adds noise that builds up over the updates (``noise``: stochastic rounding):

    loss of a look-up = rounding * V cV / (cV + 1) + noise * c / (c + BUILD_UP)

In a list that is averaged, the noise of a row counts by the square of its share. An id without a
row of its own loses all of V cV / (cV + 1): in a bucket of many ids nothing of it is left. Buckets,
which ids never seen share too, do better the more there are, up to 1 in 10 ids: each halving costs
every look-up of a new id the same. The constants come from runs (docs/planning.md).
"""

import math
from dataclasses import dataclass, replace

from edorec.embedding.formats import format_of
from edorec.embedding.optimizers import state_bytes
from edorec.embedding.states import STATES
from edorec.planning.value import F64, Classes, Worth

BUILD_UP = 150.0  # updates after which half of the noise has built up
BUCKET_SHARES = (0.1, 0.05, 0.02, 0.01, 0.003, 0.001, 0.0)  # of the ids; at least one row
FEWER_BUCKETS = 1.9e-3  # loss of a look-up of a new id where buckets are 1/e of the largest share


@dataclass(frozen=True)
class Option:
    """One way to store rows.

    Attributes:
        format: row format.
        state: format of the accumulator.
        rounding: share of the learned value that is lost.
        noise: share of the labels' variance that a look-up of a row updated often loses.
    """

    format: str
    state: str
    rounding: float
    noise: float

    def row_bytes(self, dim: int, optimizer: str) -> int:
        """Bytes of a row and its state."""
        state = state_bytes(optimizer, dim=dim, state=STATES[self.state])
        return format_of(self.format).row_bytes(dim) + state


# The largest first. No run shows a loss of INT8, so FP16 and FP32 only take what budgets leave.
OPTIONS = (
    Option("fp32", "fp32", 0.0, 0.0),
    Option("fp16", "fp32", 1e-10, 1e-11),
    Option("int8", "log8", 1e-7, 2e-9),
    Option("int4", "log8", 0.006, 4e-4),
    Option("int2", "log8", 0.15, 1e-2),
    Option("ternary", "log8", 0.1, 5e-3),
)


def options_for(optimizer: str) -> list[Option]:
    """The options of an optimizer: small states are row-wise Adagrad's alone.

    So are ternary rows, whose step is what its first update moves a value by.
    """
    if optimizer == "rowwise_adagrad":
        return list(OPTIONS)
    return [replace(option, state="fp32") for option in OPTIONS if option.format != "ternary"]


def option_of(row_format: str, state: str) -> Option:
    """The option of a format with any state."""
    of_format = next(option for option in OPTIONS if option.format == row_format)
    return replace(of_format, state=state)


def learned(worth: Worth, classes: Classes) -> F64:
    """The share of the labels' variance that the look-ups of each class have learned, summed."""
    evidence = classes.mean_count * worth.value
    total: F64 = classes.lookups * worth.value * evidence / (evidence + 1)
    return total


def losses(option: Option, worth: Worth, classes: Classes) -> F64:
    """The loss of all look-ups of each class in one option."""
    built_up = classes.mean_count / (classes.mean_count + BUILD_UP)
    noise = option.noise * worth.reads * built_up
    total: F64 = option.rounding * learned(worth, classes) + noise
    return total


def bucket_losses(num_ids: int, classes: Classes) -> list[tuple[int, float]]:
    """(rows, loss of all look-ups of the table) for each share of buckets.

    New ids are looked up about as often as ids seen once (Good and Turing's estimate).
    """
    most = BUCKET_SHARES[0] * num_ids
    new = float(classes.lookups[classes.low == 1].sum())
    counts = dict.fromkeys(max(1, math.ceil(share * num_ids)) for share in BUCKET_SHARES)
    return [(n, FEWER_BUCKETS * new * max(0.0, math.log(max(most, 1) / n))) for n in counts]
