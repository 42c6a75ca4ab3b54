"""Learning-rate schedule and early stopping."""

import pytest

from edorec.optimization import EarlyStopping, learning_rate_factor


def factors(decay: str, *, steps: int = 10, warmup: int = 0) -> list[float]:
    return [
        learning_rate_factor(step, total_steps=steps, warmup_steps=warmup, decay=decay)
        for step in range(steps)
    ]


def test_without_warmup_and_decay_the_rate_is_constant() -> None:
    assert factors("none") == [1.0] * 10


def test_warmup_rises_linearly_and_never_starts_at_zero() -> None:
    assert factors("none", warmup=3)[:4] == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_decay_falls_from_one_and_stays_above_zero(decay: str) -> None:
    values = factors(decay, warmup=2)[2:]
    assert values[0] == 1.0
    assert values == sorted(values, reverse=True)
    assert 0 < values[-1] < 0.2


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [
        ("auc", [0.6, 0.7, 0.65], 0.7),
        ("gauc", [0.6, 0.5, 0.55], 0.6),
        ("logloss", [0.6, 0.5, 0.55], 0.5),
        ("ne", [0.9, 0.95, 0.99], 0.9),
    ],
)
def test_b39_the_best_follows_the_metrics_direction(
    metric: str, values: list[float], best: float
) -> None:
    stopping = EarlyStopping(metric=metric, patience=None)
    for step, value in enumerate(values):
        stopping.update(value, step=step)
    assert stopping.best == best
    assert stopping.best_step == values.index(best)


def test_b29_an_undefined_metric_never_wins() -> None:
    stopping = EarlyStopping(metric="auc", patience=2)
    assert not stopping.update(None, step=1)
    assert stopping.update(0.4, step=2)
    assert not stopping.update(float("nan"), step=3)
    assert not stopping.update(None, step=4)
    assert stopping.best == 0.4
    assert stopping.should_stop


def test_patience_counts_evaluations_without_a_better_value() -> None:
    stopping = EarlyStopping(metric="auc", patience=2)
    stops = []
    for step, value in enumerate([0.5, 0.6, 0.6, 0.59]):
        stopping.update(value, step=step)
        stops.append(stopping.should_stop)
    assert stops == [False, False, False, True]
