"""What ``edorec tune`` may change: ranges by key, and which keys ``--set`` takes out of the search.

Loads neither torch nor Optuna, so that a mistake is told at once.
"""

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from edorec.config import Loaded, RunConfig
from edorec.config_checks import near
from edorec.errors import ConfigError, InputError

LEARNING_RATE = "embedding.learning_rate"
ACCUMULATOR = "embedding.initial_accumulator"
WEIGHT_DECAY = "embedding.weight_decay"
DENSE_LEARNING_RATE = "train.learning_rate"
EPOCHS = "train.epochs"


@dataclass(frozen=True)
class Range:
    """Values from ``low`` to ``high``, both included and above 0."""

    low: float
    high: float

    def clip(self, value: float) -> float:
        """The nearest value in the range."""
        return min(max(value, self.low), self.high)

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"


# Whole numbers for epochs; the others are searched on a logarithmic scale, weight decay also at 0.
RANGES = {
    LEARNING_RATE: Range(0.01, 1),
    ACCUMULATOR: Range(1e-10, 1e-3),
    WEIGHT_DECAY: Range(1e-5, 0.1),
    DENSE_LEARNING_RATE: Range(3e-4, 5e-3),
    EPOCHS: Range(1, 4),
}


def search_space(loaded: Loaded, ranges: list[str]) -> dict[str, Range]:
    """The range of every key that the search tries values of.

    A key that an override gives keeps that value, and the initial accumulator is left out where the
    optimizer has none.

    Args:
        loaded: the configuration and which overrides were given.
        ranges: ``KEY=LOW..HIGH`` in place of those of ``RANGES``; later ones win.

    Raises:
        ConfigError: with everything that does not allow a search, one line each.
    """
    problems = []
    if loaded.config.data.valid is None:
        problems.append(
            f"{loaded.path}: data.valid: a search chooses by the validation split; give its files"
        )
    origins = {key: loaded.provenance[key] for key in RANGES}
    fixed = {key: f"fixed by {text}" for key, text in origins.items() if text.startswith("--set ")}
    if loaded.config.embedding.optimizer not in ("rowwise_adagrad", "adagrad"):
        fixed[ACCUMULATOR] = f"{loaded.config.embedding.optimizer} has none"
    space = {key: span for key, span in RANGES.items() if key not in fixed}
    for text in ranges:
        try:
            key, span = _parse(text)
        except ValueError as error:
            problems.append(f"--range {text}: {error}")
            continue
        if key in fixed:
            problems.append(f"--range {text}: {key} is not searched: {fixed[key]}")
        space[key] = span
    if not space:
        problems.append("every key of the search is fixed by --set; leave one out")
    if problems:
        raise ConfigError(problems)
    return space


def without_test(config: RunConfig) -> RunConfig:
    """``config`` as a search sees it: there is no test split."""
    return config.model_copy(update={"data": config.data.model_copy(update={"test": None})})


def with_values(config: RunConfig, values: Mapping[str, float | None]) -> RunConfig:
    """``config`` with other values at keys of the form ``section.name``."""
    sections: dict[str, dict[str, float | None]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    return config.model_copy(
        update={
            section: getattr(config, section).model_copy(update=changes)
            for section, changes in sections.items()
        }
    )


def value_of(config: RunConfig, key: str) -> float:
    """The value that ``config`` has at a key of ``RANGES``."""
    section, name = key.split(".")
    value: float = getattr(getattr(config, section), name)
    return value


def check_optuna() -> None:
    """Imports Optuna, so that its absence has a clear message.

    Raises:
        InputError: it is not installed, or does not load.
    """
    try:
        importlib.import_module("optuna")
    except ImportError as error:
        raise InputError(
            f"edorec tune needs the package optuna ({error}): pip install 'edorec[tune]', or in a "
            "checkout pip install -r requirements/tune.txt"
        ) from error


def _parse(text: str) -> tuple[str, Range]:
    key, _, span = text.partition("=")
    key = key.strip()
    if key not in RANGES:
        raise ValueError(f"{key or 'a range without a key'} is not searched{near(key, [*RANGES])}")
    low, _, high = span.partition("..")
    try:
        found = Range(float(low), float(high))
    except ValueError:
        raise ValueError(f"wanted KEY=LOW..HIGH, such as {key}={RANGES[key]}") from None
    if not 0 < found.low <= found.high < math.inf:
        raise ValueError(f"wanted numbers above 0, the lower one first, such as {RANGES[key]}")
    if key == EPOCHS and (found.low % 1 or found.high % 1):
        raise ValueError(f"wanted whole numbers, such as {RANGES[key]}")
    return key, found
