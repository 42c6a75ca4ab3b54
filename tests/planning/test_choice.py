"""The least loss within a budget."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edorec.embedding.admission import build_row_map
from edorec.embedding.bands import num_bytes, plan_bands
from edorec.embedding.tables import BandConfig
from edorec.planning.choice import DoesNotFitError, Pins, TableCosts, choose_within
from edorec.planning.costs import OPTIONS, losses, option_of, options_for
from edorec.planning.value import Classes, Worth, classes_of

DIM = 16
ORDER = [option.format for option in OPTIONS]
CURVES = st.lists(st.integers(1, 3000), min_size=1, max_size=60)
ROWWISE = "rowwise_adagrad"


def worth(classes: Classes, value: float) -> Worth:
    return Worth(np.full(len(classes.low), value), classes.lookups.astype(np.float64))


def costs(counts: list[int], value: float, pins: Pins | None = None) -> TableCosts:
    pins = pins or Pins()
    classes = classes_of(np.array(sorted(counts, reverse=True), np.int64), pins.edges())
    options = options_for(ROWWISE)
    if pins.bands is not None:
        options = [option_of(band.format, band.state) for band in pins.bands]
    return TableCosts(
        classes,
        worth(classes, value),
        dim=DIM,
        optimizer=ROWWISE,
        buckets=[(1, 0.0)],
        bucket_lookups=lambda min_count, _: sum(c for c in counts if c < min_count),
        options=options,
        pins=pins,
    )


@given(
    curves=st.lists(st.tuples(CURVES, st.sampled_from([1e-3, 0.02, 0.3])), min_size=1, max_size=4),
    share=st.floats(0.01, 1.2),
)
@settings(max_examples=150, deadline=None)
def test_what_is_chosen_fits_and_is_as_large_as_it_says(
    curves: list[tuple[list[int], float]], share: float
) -> None:
    tables = {f"t{k}": costs(counts, value) for k, (counts, value) in enumerate(curves)}
    budget = int(share * sum(len(counts) for counts, _ in curves) * 68)
    try:
        choices = choose_within(tables, budget)
    except DoesNotFitError as error:
        smallest = error.smallest_bytes
        choices = choose_within(tables, smallest)
        budget = max(smallest, budget + 1)  # what was refused is less than the smallest
    assert sum(choice.num_bytes for choice in choices.values()) <= budget
    for name, (counts, _) in zip(tables, curves, strict=True):
        choice, curve = choices[name], np.array(sorted(counts, reverse=True), np.int64)
        row_map = build_row_map(
            curve, min_count=choice.min_count, max_rows=None, buckets=1, oov_rate=0
        )
        bands = plan_bands(choice.bands, row_map=row_map, counts=curve)
        assert num_bytes(bands, dim=DIM, optimizer=ROWWISE) == choice.num_bytes
        # The more frequent, the larger the format.
        formats = [ORDER.index(band.format) for band in choice.bands]
        assert formats == sorted(formats)
        thresholds = [band.min_count for band in choice.bands]
        assert thresholds == sorted(set(thresholds), reverse=True)
        assert thresholds[-1] == 0


@given(curves=st.lists(CURVES, min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_a_larger_budget_loses_no_more(curves: list[list[int]]) -> None:
    tables = {f"t{k}": costs(counts, 0.05) for k, counts in enumerate(curves)}
    baseline = sum(len(counts) for counts in curves) * 68
    lost = []
    for share in (0.05, 0.1, 0.25, 0.5, 1.1):
        try:
            choices = choose_within(tables, int(share * baseline))
        except DoesNotFitError:
            continue
        lost.append(sum(choice.loss for choice in choices.values()))
    # Whole tables fill what is left of a budget, so neighbours may differ by a little.
    assert all(after <= before * 1.2 + 1e-9 for before, after in pairwise(lost))


def test_flat_ids_with_an_effect_keep_their_rows_where_rare_ones_without_do_not() -> None:
    flat = costs([20] * 400, 0.06)
    tail = costs([5000, 2000, 900] + [1] * 1000, 0.02)
    choices = choose_within({"flat": flat, "tail": tail}, int(0.12 * 1403 * 68))
    assert choices["flat"].min_count == 1
    assert choices["tail"].min_count > 1


def test_the_same_curves_are_cut_where_ids_are_worth_nothing() -> None:
    counts = [3000, 800, 400, 200, 100] + [3] * 300
    tables = {"worth": costs(counts, 0.3), "nothing": costs(counts, 5e-4)}
    choices = choose_within(tables, int(0.15 * 2 * len(counts) * 68))
    assert choices["worth"].min_count == 1
    assert choices["nothing"].min_count > 3


def test_pins_are_kept() -> None:
    counts = [900, 300, 80, 30, 9, 5, 2, 1, 1]
    bands = [
        BandConfig(min_count=50, format="int8", state="log8"),
        BandConfig(min_count=0, format="fp32", state="fp32"),
    ]
    table = costs(counts, 0.05, Pins(min_count=4, bands=bands))
    choices = choose_within({"t": table}, 1000)
    assert choices["t"].min_count == 4
    assert list(choices["t"].bands) == bands
    assert choices["t"].num_bytes == 3 * 21 + (3 + 1) * 68  # a bucket of 4 look-ups is cold
    with pytest.raises(DoesNotFitError) as caught:
        choose_within({"t": table}, 200)
    assert caught.value.smallest_bytes == choices["t"].num_bytes


def test_smaller_formats_lose_more_and_frequent_ids_most() -> None:
    classes = classes_of(np.array([5000] * 5 + [300] * 10 + [2] * 10, np.int64))
    # Ternary rows are smaller than INT2's and lose no more.
    scaled = [option for option in OPTIONS if option.format != "ternary"]
    by_option = np.array([losses(o, worth(classes, 0.05), classes) for o in scaled])
    assert (np.diff(by_option, axis=0) > 0).all()
    each = by_option[1:] / classes.lookups
    assert (np.diff(each, axis=1) < 0).all()


def test_other_optimizers_have_no_small_states() -> None:
    assert {option.state for option in options_for("adam")} == {"fp32"}
    assert [o.row_bytes(16, "adam") for o in options_for("adam")] == [132, 100, 88, 80, 74]
