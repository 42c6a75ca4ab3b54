"""Row formats: sizes, errors, and the same bytes from torch, numba and FBGEMM."""

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
    EmbeddingLocation,
    IntNBitTableBatchedEmbeddingBagsCodegen,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from edorec.embedding.formats import SELF_SCALED, format_of, kind_of
from tests.embedding.compiled import add_rows, noise_of, store_rows

BYTES_AT_DIM_16 = {
    "fp32": 64,
    "fp16": 32,
    "int8": 20,
    "int4": 12,
    "int2": 6,
    "sparse28": 4,
    "ternary": 4,
}
SQNR_DB = {"fp32": 300, "fp16": 70, "int8": 40, "int4": 20, "int2": 8, "sparse28": 3}
NEAREST = torch.tensor(0.5)
LAST_BEFORE_1 = 1 - 2.0**-24  # the largest number that noise can be
STEP = 0.5
NAMES = [*SELF_SCALED, f"ternary:{STEP}"]
all_formats = pytest.mark.parametrize("name", NAMES)
self_scaled = pytest.mark.parametrize("name", SELF_SCALED)


def normal_rows(num_rows: int, dim: int, *, std: float = 1.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(num_rows, dim).normal_(0, std, generator=generator)


def through(name: str, values_ND: torch.Tensor, noise: torch.Tensor = NEAREST) -> torch.Tensor:
    row_format = format_of(name)
    return row_format.decode(row_format.encode(values_ND, noise), values_ND.shape[1])


@all_formats
def test_row_bytes(name: str) -> None:
    assert format_of(name).row_bytes(16) == BYTES_AT_DIM_16[kind_of(name)]
    for dim in range(1, 71):
        rows = format_of(name).encode(normal_rows(3, dim), NEAREST)
        assert rows.shape == (3, format_of(name).row_bytes(dim))
        assert rows.dtype == torch.uint8


@pytest.mark.parametrize("dim", [16, 32, 64, 128])
def test_sparse28_takes_at_most_a_sixteenth_of_fp32(dim: int) -> None:
    assert 16 * format_of("sparse28").row_bytes(dim) <= format_of("fp32").row_bytes(dim)


@self_scaled
@pytest.mark.parametrize("dim", [8, 16, 64])
def test_signal_to_noise_of_normal_rows(name: str, dim: int) -> None:
    values = normal_rows(2000, dim, std=0.05)
    noise = (through(name, values) - values).square().sum()
    assert 10 * torch.log10(values.square().sum() / noise) > SQNR_DB[name]


def largest_error(name: str, values_ND: torch.Tensor) -> torch.Tensor:
    """Of each value rounded to the nearest, from the format's definition."""
    size, high, low = values_ND.abs(), values_ND.amax(1, True), values_ND.amin(1, True)
    mean = size.mean(1, True)
    half_step = torch.maximum(high.abs(), low.abs()) * 2.0**-11 + 2.0**-25
    if name == "fp32":
        return torch.zeros_like(values_ND)
    if name == "fp16":
        return size * 2.0**-11 + 2.0**-25
    if name == "int8":  # half of a scale, which is less than twice the finest that would do
        return torch.maximum((high - low) / 254, size.amax(1, True) / 1024).clamp(min=2.0**-25)
    if name == "int4":  # half of a scale; bias and scale are rounded to halves
        return (high - low) * (1 / 30 + 2.0**-11) + half_step + 15 * 2.0**-25
    if name == "int2":  # half of the mean inside, what is beyond 1.5 outside
        return torch.maximum(mean / 2, size - 1.5 * mean) + 1.5 * half_step
    if name in NAMES:  # ternary: half of the step inside, what is beyond it outside
        return (size - STEP).clamp(min=STEP / 2)
    raise ValueError(f"no bound for {name}")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "sparse28"])
@given(
    seed=st.integers(0, 2**32),
    dim=st.integers(1, 70),
    std=st.floats(-6, 3).map(lambda x: 10**x),
    shift=st.floats(-10, 10),
)
@settings(max_examples=60, deadline=None)
def test_error_of_a_value(name: str, seed: int, dim: int, std: float, shift: float) -> None:
    values = normal_rows(7, dim, std=std, seed=seed) + shift * std
    error = (through(name, values) - values).abs()
    assert (error <= largest_error(name, values) * (1 + 1e-4)).all()


@given(seed=st.integers(0, 2**32), dim=st.integers(1, 70))
@settings(max_examples=60, deadline=None)
def test_sparse28_keeps_the_two_largest_of_eight(seed: int, dim: int) -> None:
    values = normal_rows(5, dim, seed=seed)
    decoded = through("sparse28", values)
    groups = torch.nn.functional.pad(values, (0, -dim % 8)).view(5, -1, 8)
    kept = torch.zeros_like(groups).scatter_(2, groups.abs().topk(2).indices, 1).bool()
    kept = kept.flatten(1)[:, :dim]
    step = (values.abs() * kept).sum(1, True) / kept.sum(1, True)
    assert torch.equal(decoded != 0, kept)
    assert torch.equal(decoded.sign()[kept], values.sign()[kept])
    low = values.abs() < step
    near = (values.abs() - step).abs() < 1e-3 * step
    expected = torch.where(low, 0.75, 1.25) * step * kept
    torch.testing.assert_close(decoded.abs()[~near], expected[~near], rtol=2e-3, atol=0)


def inside_levels(name: str, values_ND: torch.Tensor) -> torch.Tensor:
    """Where rounding can be right on average: between the lowest and the highest level."""
    size = values_ND.abs()
    if name == "int4":
        halves = (
            format_of("int4").encode(values_ND, NEAREST)[:, :4].contiguous().view(torch.float16)
        )
        scale, bias = halves.float().split(1, dim=1)
        return (values_ND >= bias) & (values_ND <= bias + 15 * scale)
    if name == "int2":
        return size <= 1.49 * size.mean(1, True)
    if name == "sparse28":
        step = through(name, values_ND).abs().amax(1, True) / 1.25
        return (size > 0.76 * step) & (size < 1.24 * step) & (through(name, values_ND) != 0)
    if name not in SELF_SCALED:
        return size <= STEP
    return torch.ones_like(values_ND, dtype=torch.bool)


@all_formats
def test_stochastic_rounding_is_right_on_average(name: str) -> None:
    values, draws = normal_rows(6, 24, seed=3, std=1.0 if name in SELF_SCALED else STEP / 1.5), 4000
    total, squares = torch.zeros(6, 24), torch.zeros(6, 24)
    generator = torch.Generator().manual_seed(4)
    for _ in range(draws):
        decoded = through(name, values, torch.rand(6, 24, generator=generator))
        total, squares = total + decoded, squares + (decoded - values).square()
    # Steps of int2 and sparse28 are rounded to halves.
    allowed = 5 * (squares / draws).sqrt() / draws**0.5 + 2e-3 * values.abs() + 1e-6
    inside = inside_levels(name, values)
    assert inside.float().mean() > (0.05 if name == "sparse28" else 0.7)
    assert (((total / draws - values).abs() <= allowed) | ~inside).all()


@all_formats
def test_zero_rows_stay_zero(name: str) -> None:
    for noise in (0.0, 0.5, LAST_BEFORE_1):
        assert not through(name, torch.zeros(3, 9), torch.tensor(noise)).any()
    for nearest in (True, False):
        rows = store_rows(name, torch.zeros(3, 9), key=5, nearest=nearest)
        assert not format_of(name).decode(rows, 9).any()


@all_formats
def test_no_rows(name: str) -> None:
    for dim in (1, 8, 11):
        rows = format_of(name).encode(torch.empty(0, dim), NEAREST)
        assert rows.shape == (0, format_of(name).row_bytes(dim))
        assert format_of(name).decode(rows, dim).shape == (0, dim)


@self_scaled
@pytest.mark.parametrize("value", [0.3, -0.3, 1.0, 1000.1, -1e-3])
def test_constant_rows(name: str, value: float) -> None:
    decoded = through(name, torch.full((2, 11), value))
    if name == "sparse28":
        decoded = decoded[decoded != 0]
        assert len(decoded) == 2 * 4
        assert ((decoded / value - 1).abs() < 0.26).all()
    else:
        bound = 0.51 if name == "int2" else 2.0**-10
        assert ((decoded / value - 1).abs() < bound).all()


EXTREMES = [3.4e38, 1e30, 70000.0, 65504.0, 40000.0, 32768.0, 2.0**-24, 2.0**-25, 1e-30, 1e-45]


@all_formats
@pytest.mark.parametrize("value", [sign * value for value in EXTREMES for sign in (1, -1)])
def test_huge_and_tiny_values_stay_finite(name: str, value: float) -> None:
    rows = torch.tensor(
        [[value] * 9, [value, -value, 0, 0.5, 1, 2, value / 3, 0, 0], [0.0] * 8 + [value]]
    )
    for noise in (0.0, 0.5, LAST_BEFORE_1):
        decoded = through(name, rows, torch.tensor(noise))
        assert decoded.isfinite().all()
        largest = 1.51 * rows.abs().amax(1, True) + 2.0**-23
        assert (decoded.abs() <= (largest if name in SELF_SCALED else STEP)).all()
    for nearest in (True, False):
        stored = store_rows(name, rows, key=3, nearest=nearest)
        assert format_of(name).decode(stored, 9).isfinite().all()


@all_formats
@given(
    seed=st.integers(0, 2**32),
    dim=st.integers(1, 70),
    std=st.floats(-6, 3).map(lambda x: 10**x),
    nearest=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_numba_stores_the_bytes_of_torch(
    name: str, seed: int, dim: int, std: float, nearest: bool
) -> None:
    values = normal_rows(20, dim, std=std, seed=seed)
    noise = noise_of(20, dim, key=seed, nearest=nearest)
    stored = store_rows(name, values, key=seed, nearest=nearest)
    expected = format_of(name).encode(values, noise)
    if name not in ("int2", "sparse28"):
        assert torch.equal(stored, expected)
        return
    # Sums are in another order and products are fused: a code may fall on the other side of the
    # border between two.
    ours, theirs = format_of(name).decode(stored, dim), format_of(name).decode(expected, dim)
    differences, step = (ours - theirs).abs(), theirs.abs().amax(1, True)
    assert (differences > 2.1e-3 * step).sum() <= 1
    assert (differences <= step).all()


@all_formats
@given(seed=st.integers(0, 2**32), dim=st.integers(1, 70), weight=st.floats(-3, 3, width=32))
@settings(max_examples=40, deadline=None)
def test_numba_adds_what_torch_decodes(name: str, seed: int, dim: int, weight: float) -> None:
    values, start = normal_rows(20, dim, seed=seed), normal_rows(20, dim, seed=seed + 1)
    rows = format_of(name).encode(values, NEAREST)
    out = add_rows(name, rows, dim, weight=weight, to_ND=start)
    expected = start + weight * format_of(name).decode(rows, dim)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@all_formats
def test_a_single_row_is_read_at_any_address(name: str) -> None:
    for dim in (1, 2, 3, 7, 16):
        rows = format_of(name).encode(normal_rows(5, dim), NEAREST)
        memory = torch.zeros(5, rows.shape[1] + 3, dtype=torch.uint8)
        memory[:, 1 : 1 + rows.shape[1]] = rows
        inside = memory[:, 1 : 1 + rows.shape[1]]
        expected = format_of(name).decode(rows, dim)
        for r in range(5):
            decoded = format_of(name).decode(inside[r : r + 1], dim)
            assert torch.equal(decoded, expected[r : r + 1])
            assert torch.equal(format_of(name).decode(rows[r : r + 1], dim), decoded)


@pytest.mark.parametrize("name", ["fp32", "fp16", "int8", "ternary:0.5"])
@given(seed=st.integers(0, 2**32), dim=st.integers(1, 70), std=st.floats(1e-5, 100))
@settings(max_examples=60, deadline=None)
def test_a_row_written_again_does_not_change(name: str, seed: int, dim: int, std: float) -> None:
    once = through(name, normal_rows(9, dim, std=std, seed=seed))
    generator = torch.Generator().manual_seed(seed)
    again = through(name, once, torch.rand(9, dim, generator=generator))
    assert torch.equal(again, once)


@pytest.mark.parametrize("step", [1e-6, 0.01, 0.2, 0.3, 7.0])
def test_ternary_rows_have_the_step_of_their_name(step: float) -> None:
    name, row = f"ternary:{step}", torch.tensor([[-step, 0.0, step, 9 * step, 0.4 * step]])
    expected = row.clamp(-step, step) * torch.tensor([1, 1, 1, 1, 0])
    torch.testing.assert_close(through(name, row), expected)
    stored = store_rows(name, row, key=1, nearest=True)
    torch.testing.assert_close(format_of(name).decode(stored, 5), expected)
    assert format_of(name).step == step


@pytest.mark.parametrize("name", ["int3", "int8:0.1", "ternary:0", "ternary:-1", "ternary:1e39"])
def test_names_of_no_format(name: str) -> None:
    with pytest.raises(ValueError, match=r"format must be one of|step of ternary rows"):
        format_of(name)


def test_int8_does_not_wrap_around_at_the_top() -> None:
    # 254 steps, and the bias is a step below: 255, to which almost 1 is added.
    row = torch.tensor([[-1e-9, 254 / 128, 0.5]])
    decoded = through("int8", row, torch.tensor(LAST_BEFORE_1))
    assert (decoded - row).abs().max() <= 1 / 128
    keys = np.arange(400_000)
    highest = noise_of(len(keys), 3, key=1, nearest=False)[:, 1]
    assert highest.max() > 1 - 2.0**-17, "no row of these is rounded up to 256"
    stored = format_of("int8").decode(
        store_rows("int8", row.repeat(len(keys), 1), key=1, nearest=False), 3
    )
    assert (stored[:, 1] - row[0, 1]).abs().max() <= 1 / 128


@pytest.mark.parametrize(
    ("name", "sparse_type", "dim"),
    [
        ("int8", SparseType.INT8, 4),
        ("int8", SparseType.INT8, 16),
        ("int8", SparseType.INT8, 36),
        ("int4", SparseType.INT4, 8),
        ("int4", SparseType.INT4, 16),
        ("int4", SparseType.INT4, 40),
    ],
)
def test_fbgemm_reads_the_same_bytes(name: str, sparse_type: SparseType, dim: int) -> None:
    values = normal_rows(50, dim, std=0.1, seed=dim)
    rows = format_of(name).encode(values, NEAREST)
    theirs = IntNBitTableBatchedEmbeddingBagsCodegen(
        [("", 50, dim, sparse_type, EmbeddingLocation.HOST)],
        row_alignment=1,
        output_dtype=SparseType.FP32,
        device="cpu",
    )
    theirs.initialize_weights()
    ((weights, _),) = theirs.split_embedding_weights(split_scale_shifts=False)
    assert weights.shape == rows.shape
    weights.copy_(rows)
    looked_up = theirs(torch.arange(50, dtype=torch.int32), torch.arange(51, dtype=torch.int32))
    torch.testing.assert_close(looked_up, format_of(name).decode(rows, dim), rtol=1e-6, atol=1e-7)
