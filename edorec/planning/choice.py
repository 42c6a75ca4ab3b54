"""The least loss that fits a budget.

Every class of ids of every table takes one storage, or none (then its ids share buckets). With a
price on a byte, each class takes what has the least loss plus price of its bytes, all by
themselves; the price is raised until everything fits. That is the same as taking the moves with the
least loss for a byte saved first, over all tables at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edorec.embedding.tables import BandConfig
from edorec.planning.costs import Option, learned, losses
from edorec.planning.value import Classes, Worth

ROUNDS = 60  # of halving the interval of the price
LOWEST_PRICE, HIGHEST_PRICE = 1e-12, 1e6
BUCKET_FORMAT = "int8"  # of a table whose ids all share buckets, where it may


class DoesNotFitError(Exception):
    """No choice fits; ``smallest_bytes`` is what the smallest takes."""

    def __init__(self, smallest_bytes: int) -> None:
        self.smallest_bytes = smallest_bytes
        super().__init__(f"the smallest plan takes {smallest_bytes} bytes")


@dataclass(frozen=True)
class Pins:
    """What the configuration fixes for a table; None where it leaves it open."""

    min_count: int | None = None
    bands: Sequence[BandConfig] | None = None

    def edges(self) -> list[int]:
        """Counts at which something fixed changes."""
        counts = [band.min_count for band in self.bands or ()]
        return [*counts, *([] if self.min_count is None else [self.min_count])]


@dataclass(frozen=True)
class Choice:
    """What was chosen for a table.

    Attributes:
        min_count: look-ups that earn an id a row of its own.
        buckets: rows for all other ids.
        bands: formats, as in a configuration.
        num_bytes: rows and optimizer state, buckets included.
        loss: of all look-ups, in shares of the labels' variance.
    """

    min_count: int
    buckets: int
    bands: tuple[BandConfig, ...]
    num_bytes: int
    loss: float


class TableCosts:
    """Losses and bytes of everything that can be chosen for a table.

    Args:
        classes: of its ids, the most frequent first.
        worth: of its ids.
        dim: of its rows.
        optimizer: whose state they have.
        buckets: (rows, loss) of each number of buckets that may be chosen.
        bucket_lookups: look-ups of one bucket, by (min_count, buckets).
        options: storages, the largest first; with fixed bands, theirs.
        pins: what is fixed.
    """

    def __init__(
        self,
        classes: Classes,
        worth: Worth,
        *,
        dim: int,
        optimizer: str,
        buckets: Sequence[tuple[int, float]],
        bucket_lookups: Callable[[int, int], float],
        options: Sequence[Option],
        pins: Pins,
    ) -> None:
        self._classes = classes
        self._options = options
        self._pins = pins
        self._row_bytes = np.array([option.row_bytes(dim, optimizer) for option in options])
        self._buckets = buckets
        self._bucket_lookups = bucket_lookups
        # One row an option, the last for ids without a row; a column a class.
        self._losses = np.array(
            [*(losses(o, worth, classes) for o in options), learned(worth, classes)]
        )
        self._bytes = np.outer([*self._row_bytes, 0], classes.num_ids)
        self._losses[self._forbidden()] = np.inf

    def _forbidden(self) -> np.ndarray:
        """Bool (options + 1, classes): what the pins exclude."""
        low, pins = self._classes.low, self._pins
        forbidden = np.zeros(self._losses.shape, np.bool_)
        if pins.min_count is not None:
            forbidden[-1] |= low >= pins.min_count
            forbidden[:-1] |= low < pins.min_count
        for k, option in enumerate(self._options if pins.bands is not None else ()):
            allowed = np.array([_is(option, _band_of(pins.bands or (), int(x))) for x in low])
            forbidden[k] |= ~allowed.astype(np.bool_)
        return forbidden

    def choose(self, price: float) -> Choice:
        """The least of loss + price * bytes."""
        chosen = np.argmin(self._losses + price * self._bytes, axis=0)
        # More frequent ids never get less: bands are cuts in the order of frequency.
        chosen = np.minimum.accumulate(chosen[::-1])[::-1]
        classes = np.arange(len(chosen))
        num_own = int((chosen < len(self._options)).sum())
        bands = tuple(self._pins.bands or self._bands(chosen[:num_own]))
        min_count = self._min_count(num_own)
        sizes = [self._bucket_bytes(n, min_count, bands) for n, _ in self._buckets]
        priced = [lost + price * size for (_, lost), size in zip(self._buckets, sizes, strict=True)]
        best = int(np.argmin(priced))
        buckets, lost = self._buckets[best]
        return Choice(
            min_count=min_count,
            buckets=buckets,
            bands=bands,
            num_bytes=int(self._bytes[chosen, classes].sum()) + sizes[best],
            loss=float(self._losses[chosen, classes].sum()) + lost,
        )

    def _bucket_bytes(self, buckets: int, min_count: int, bands: Sequence[BandConfig]) -> int:
        """Of all buckets, stored like an id as frequent as one of them."""
        lookups = self._bucket_lookups(min_count, buckets)
        return buckets * int(self._row_bytes[self._index(_band_of(bands, lookups))])

    def _min_count(self, num_own: int) -> int:
        if self._pins.min_count is not None:
            return self._pins.min_count
        low = self._classes.low
        if num_own == len(low):
            return 1
        return int(low[num_own - 1]) if num_own else self._classes.highest + 1

    def _bands(self, chosen: np.ndarray) -> list[BandConfig]:
        """The options of classes with rows of their own as bands."""
        if not len(chosen):
            names = [option.format for option in self._options]
            option = self._options[names.index(BUCKET_FORMAT)]
            return [BandConfig(format=option.format, state=option.state)]
        lasts = np.flatnonzero(np.diff(chosen, append=-1))
        return [
            BandConfig(
                min_count=0 if k == len(chosen) - 1 else int(self._classes.low[k]),
                format=self._options[chosen[k]].format,
                state=self._options[chosen[k]].state,
            )
            for k in lasts
        ]

    def _index(self, band: BandConfig) -> int:
        return next(k for k, option in enumerate(self._options) if _is(option, band))


def choose_within(tables: dict[str, TableCosts], budget_bytes: int) -> dict[str, Choice]:
    """The choice of each table, all together within the budget.

    Raises:
        DoesNotFitError: if not even the smallest fits.
    """
    tight = _choose(tables, HIGHEST_PRICE)
    if _total(tight) > budget_bytes:
        raise DoesNotFitError(_total(tight))
    loose = _choose(tables, 0.0)
    if _total(loose) <= budget_bytes:
        return loose
    low, high = np.log(LOWEST_PRICE), np.log(HIGHEST_PRICE)
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        choices = _choose(tables, float(np.exp(middle)))
        if _total(choices) <= budget_bytes:
            high, tight = middle, choices
        else:
            low, loose = middle, choices
    return _fill(tight, loose, budget_bytes)


def _choose(tables: dict[str, TableCosts], price: float) -> dict[str, Choice]:
    return {name: table.choose(price) for name, table in tables.items()}


def _total(choices: dict[str, Choice]) -> int:
    return sum(choice.num_bytes for choice in choices.values())


def _fill(
    tight: dict[str, Choice], loose: dict[str, Choice], budget_bytes: int
) -> dict[str, Choice]:
    """Gives what is left to the tables whose next larger choice still fits."""
    filled = dict(tight)
    for name, larger in sorted(loose.items(), key=lambda item: item[1].loss - tight[item[0]].loss):
        candidate = filled | {name: larger}
        if larger.loss < filled[name].loss and _total(candidate) <= budget_bytes:
            filled = candidate
    return filled


def _band_of(bands: Sequence[BandConfig], count: float) -> BandConfig:
    return next(band for band in bands if count >= band.min_count)


def _is(option: Option, band: BandConfig) -> bool:
    return (option.format, option.state) == (band.format, band.state)
