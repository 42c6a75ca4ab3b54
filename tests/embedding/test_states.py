"""Formats of the accumulator: right on average, however small the additions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edorec.embedding.optimizers import OPTIMIZERS, initial_state, state_bytes
from edorec.embedding.states import LOG_LEVELS, STATES
from tests.embedding.compiled import load_states, store_states

HIGHEST_LOG8 = 2.0**-4.25
LAST_BEFORE_1 = 1 - 2.0**-24
all_states = pytest.mark.parametrize("name", STATES)
SMALL = ["bf16", "log8"]


def through(name: str, values_N: torch.Tensor, numbers_N: torch.Tensor) -> torch.Tensor:
    return STATES[name].decode(STATES[name].encode(values_N, numbers_N))


def test_sizes() -> None:
    assert {name: state.num_bytes for name, state in STATES.items()} == {
        "fp32": 4,
        "bf16": 2,
        "log8": 1,
    }
    for optimizer, expected in {"sgd": 0, "adagrad": 28, "adam": 32}.items():
        assert state_bytes(optimizer, dim=7, state=STATES["log8"]) == expected
    assert state_bytes("rowwise_adagrad", dim=7, state=STATES["log8"]) == 1


def test_levels_of_log8() -> None:
    assert LOG_LEVELS[0] == 0
    assert LOG_LEVELS[1] == 2.0**-36
    assert LOG_LEVELS[255] == np.float32(HIGHEST_LOG8)
    np.testing.assert_allclose(LOG_LEVELS[9:] / LOG_LEVELS[1:-8], 2, rtol=1e-6)


@all_states
@given(values=st.lists(st.floats(0, 2.0**127, width=32), min_size=1), seed=st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_numba_stores_the_bytes_of_torch(name: str, values: list[float], seed: int) -> None:
    numbers = torch.rand(len(values), generator=torch.Generator().manual_seed(seed))
    values_N = torch.tensor(values)
    expected = STATES[name].encode(values_N, numbers)
    assert expected.shape == (len(values), STATES[name].num_bytes)
    assert torch.equal(store_states(name, values_N, numbers), expected)
    assert torch.equal(load_states(name, expected), STATES[name].decode(expected))


@all_states
@given(value=st.floats(1e-12, 0.05), number=st.floats(0, LAST_BEFORE_1))
@settings(max_examples=200, deadline=None)
def test_a_value_takes_one_of_its_two_neighbours(name: str, value: float, number: float) -> None:
    exact = torch.tensor([value])
    rounded = through(name, exact, torch.tensor([number]))
    step = {"fp32": 0.0, "bf16": 2.0**-7, "log8": 2 ** (1 / 8) - 1}[name]
    smallest = {"fp32": 0.0, "bf16": 0.0, "log8": 2.0**-36}[name]
    assert (rounded - exact).abs() <= exact * step * (1 + 1e-5) + smallest


@all_states
def test_values_that_can_be_written_stay(name: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8).unsqueeze(1)
    values = STATES["log8"].decode(codes) if name == "log8" else torch.arange(256) / 1024
    for number in (0.0, 0.5, LAST_BEFORE_1):
        numbers = torch.full((256,), number)
        assert torch.equal(through(name, values, numbers), values)
        assert torch.equal(load_states(name, store_states(name, values, numbers)), values)


@all_states
@pytest.mark.parametrize("value", [3e-12, 1.23e-8, 1.001e-5, 0.0123, 0.05])
def test_rounding_is_right_on_average(name: str, value: float) -> None:
    draws = 40_000
    numbers = torch.rand(draws, generator=torch.Generator().manual_seed(2))
    values = torch.full((draws,), value)
    for rounded in (
        through(name, values, numbers),
        load_states(name, store_states(name, values, numbers)),
    ):
        allowed = 5 * rounded.double().std().item() / draws**0.5 + 1e-6 * value
        assert abs(rounded.double().mean().item() - value) <= allowed


@all_states
@pytest.mark.parametrize(("start", "addition", "steps"), [(0.0, 2e-6, 2000), (0.01, 5e-6, 2000)])
def test_tiny_additions_are_not_lost(name: str, start: float, addition: float, steps: int) -> None:
    num_rows = 2000
    generator = torch.Generator().manual_seed(1)
    codes = STATES[name].encode(torch.full((num_rows,), start), torch.full((num_rows,), 0.5))
    begun = STATES[name].decode(codes)
    for _ in range(steps):
        numbers = torch.rand(num_rows, generator=generator)
        codes = STATES[name].encode(STATES[name].decode(codes) + addition, numbers)
    sums = STATES[name].decode(codes).double()
    expected = begun.double().mean() + steps * addition
    allowed = 5 * sums.std() / num_rows**0.5 + 1e-4 * expected
    assert (sums.mean() - expected).abs() <= allowed
    # To the nearest, the sum would stand still: the test sees what it is about.
    if name in SMALL:
        half = torch.full((1,), 0.5)
        stuck = through(name, torch.tensor([expected]).float(), half)
        assert torch.equal(through(name, stuck + addition, half), stuck)


def test_log8_holds_its_highest_value() -> None:
    values = torch.tensor([HIGHEST_LOG8, 0.06, 1.0, 1e30])
    for number in (0.0, LAST_BEFORE_1):
        numbers = torch.full((4,), number)
        highest = torch.full((4,), HIGHEST_LOG8)
        assert torch.equal(through("log8", values, numbers), highest)
        assert torch.equal(load_states("log8", store_states("log8", values, numbers)), highest)


@all_states
def test_zero_stays_zero(name: str) -> None:
    for number in (0.0, 0.5, LAST_BEFORE_1):
        zeros, numbers = torch.zeros(3), torch.full((3,), number)
        assert not through(name, zeros, numbers).any()
        assert not load_states(name, store_states(name, zeros, numbers)).any()


@all_states
def test_a_single_state_is_read_at_any_address(name: str) -> None:
    values = torch.tensor([1e-5, 2e-4, 0.03])
    codes = STATES[name].encode(values, torch.full((3,), 0.5))
    memory = torch.zeros(3, 9, dtype=torch.uint8)
    memory[:, 3 : 3 + codes.shape[1]] = codes
    for r in range(3):
        inside = memory[r : r + 1, 3 : 3 + codes.shape[1]]
        assert torch.equal(STATES[name].decode(inside), STATES[name].decode(codes)[r : r + 1])


@all_states
@pytest.mark.parametrize("accumulator", [0.0, 1e-5, 0.02])
def test_initial_state(name: str, accumulator: float) -> None:
    state = STATES[name]
    for optimizer in OPTIMIZERS:
        first = initial_state(optimizer, dim=6, state=state, accumulator=accumulator)
        assert first.shape == (state_bytes(optimizer, dim=6, state=state),)
        if optimizer == "rowwise_adagrad":
            (value,) = state.decode(first.unsqueeze(0)).tolist()
            assert value == pytest.approx(accumulator, rel=0.05)
        elif optimizer == "adagrad":
            assert torch.equal(first.view(torch.float32), torch.full((6,), accumulator))
        else:
            assert not first.any()
