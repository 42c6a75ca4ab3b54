"""The cpu kernel against the reference, whatever the tables and batches."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from edorec.embedding import row_tables
from edorec.embedding.bands import Band, BandMemory
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.formats import SELF_SCALED, format_of
from edorec.embedding.formats.row_format import as_numbers
from edorec.embedding.kernels import cpu
from edorec.embedding.kernels.layout import BAND_COLUMNS, TABLE_COLUMNS, Lookups
from edorec.embedding.kernels.noise import row_keys, row_noise, table_key
from edorec.embedding.optimizers import OPTIMIZERS, Step
from edorec.embedding.states import STATES
from tests.embedding.batches import all_bytes, jagged, memories_of, table

TRAINED = [*(name for name in SELF_SCALED if format_of(name).trains), "ternary:0.3"]
QAT = [None, *SELF_SCALED]
# Every format with every optimizer and with every state, the others in turn.
COVERING = [
    {"row_format": row_format, "optimizer": optimizer, "state": state, "qat": qat}
    for row_format, optimizer, state, qat in (
        [
            (row_format, optimizer, list(STATES)[k % len(STATES)], QAT[k % len(QAT)])
            for k, (row_format, optimizer) in enumerate(product(TRAINED, OPTIMIZERS))
        ]
        + [(name, "rowwise_adagrad", state, None) for name, state in product(TRAINED, STATES)]
    )
]


def name_of(storage: dict[str, Any]) -> str:
    """Of a case in ``COVERING``."""
    return "-".join(str(value) for value in storage.values())


@dataclass(frozen=True)
class Shape:
    """Of the tables and of a batch."""

    rows: tuple[int, int, int]
    dims: tuple[int, int, int]
    batch_size: int
    longest: int
    weighted: bool
    seed: int


shapes = st.builds(
    Shape,
    rows=st.tuples(*[st.sampled_from([1, 2, 9, 60])] * 3),
    dims=st.tuples(*[st.sampled_from([1, 2, 3, 7, 8, 16, 33])] * 3),
    batch_size=st.sampled_from([0, 1, 2, 30]),
    longest=st.integers(0, 5),
    weighted=st.booleans(),
    seed=st.integers(0, 2**32),
)
FEATURES = {"a": ["a0", "a1"], "b": ["b0"], "c": ["c0", "c1", "c2"]}
MEAN = {"a1": PoolingType.MEAN, "c0": PoolingType.MEAN, "c2": PoolingType.SUM}


def build(
    kernel: str,
    shape: Shape,
    *,
    row_format: str,
    optimizer: str,
    state: str = "fp32",
    qat: str | None = None,
    weight_decay: float = 0.0,
) -> EdoEmbeddingBagCollection:
    """Table a: one format; b: three bands, the second in another; c: a band for each row."""
    a, b, c = shape.rows
    first, other = b // 3, b - b // 3 - b // 2
    bands = {
        "a": [Band(a, row_format, state)],
        "b": [Band(first, row_format, state), Band(other, "int8"), Band(b // 2, row_format, state)],
        "c": [Band(1, TRAINED[k % len(TRAINED)], list(STATES)[k % len(STATES)]) for k in range(c)],
    }
    return EdoEmbeddingBagCollection(
        [
            table(name, rows, dim, FEATURES[name], bands=bands[name], qat=qat)
            for name, rows, dim in zip("abc", shape.rows, shape.dims, strict=True)
        ],
        pooling=MEAN,
        is_weighted=shape.weighted,
        optimizer=optimizer,
        learning_rate=0.05,
        weight_decay=weight_decay,
        initial_accumulator=1e-3,
        init_std=0.3,
        seed=shape.seed,
        kernel=kernel,
    )


def random_batch(
    shape: Shape, generator: torch.Generator, *, is_positive: bool = False
) -> KeyedJaggedTensor:
    """Keys in any order, one that no table has among them; weights above 0 if ``is_positive``."""
    sizes = {name: rows for t, rows in zip("abc", shape.rows, strict=True) for name in FEATURES[t]}
    sizes |= {"unused": 7}
    keys = [list(sizes)[k] for k in torch.randperm(len(sizes), generator=generator)]
    size = (len(keys) * shape.batch_size,)
    counts = torch.randint(0, shape.longest + 1, size, generator=generator)
    per_key = counts.view(len(keys), -1).sum(1).tolist()
    values = [
        torch.randint(0, sizes[key], (n,), generator=generator)
        for key, n in zip(keys, per_key, strict=True)
    ]
    weights = torch.randint(1 if is_positive else -4, 5, (sum(per_key),), generator=generator) / 4
    return KeyedJaggedTensor(
        keys=keys,
        values=torch.cat(values),
        lengths=counts.int(),
        weights=weights if shape.weighted else None,
    )


def assert_rows_alike(ours: torch.Tensor, theirs: torch.Tensor, row_format: str) -> None:
    """Decoded rows are equal but for sums in another order, and what these round otherwise."""
    if row_format == "fp32":
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        return
    # The step of an int4 or int2 row may be the next half, a code its neighbour.
    differences, largest = (ours - theirs).abs(), theirs.abs().amax(1, True)
    far = (differences > 2.1e-3 * largest + 1e-6).any(1)
    assert far.sum() <= 1 + 0.02 * len(far)
    assert (differences <= largest + 1e-6).all()


def assert_states_alike(ours: BandMemory, theirs: BandMemory, optimizer: str) -> None:
    codes = [memory.rows_RS[:, memory.row_bytes :] for memory in (ours, theirs)]
    if optimizer == "sgd":
        return
    if optimizer != "rowwise_adagrad":
        mine, other = (as_numbers(code, torch.float32) for code in codes)
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
        return
    mine, other = (STATES[ours.band.state].decode(code) for code in codes)
    far = (mine - other).abs() > 1e-5 * other
    assert far.sum() <= 1 + 0.01 * far.numel()
    assert ((mine - other).abs() <= 0.1 * other + 1e-10).all()


def check_like_the_reference(kernel: str, shape: Shape, **settings: Any) -> None:
    """Two steps of a kernel and of the reference from the same rows."""
    ours, theirs = (build(name, shape, **settings) for name in (kernel, "reference"))
    # Adam's first steps are as large for a gradient that is nothing but a rest of rounding, which
    # is another one in another order, as for any other. What is added up has one sign there.
    is_positive = settings["optimizer"] == "adam"
    generator = torch.Generator().manual_seed(shape.seed)
    for _ in range(2):
        before = all_bytes(ours)
        batch = random_batch(shape, generator, is_positive=is_positive)
        mine, other = ours(batch).values(), theirs(batch).values()
        # The step of these is a mean of magnitudes as a half.
        rtol = 2.1e-3 if settings["qat"] in ("int2", "sparse28") else 1e-4
        torch.testing.assert_close(mine, other, rtol=rtol, atol=1e-5)
        gradient = torch.randn(mine.shape, generator=generator)
        gradient = gradient.abs() if is_positive else gradient
        mine.backward(gradient)
        other.backward(gradient)
        looked_up = looked_up_rows(batch)
        for name, k, our_band, their_band in pairs_of_bands(ours, theirs):
            band_format, dim = our_band.band.format, shape.dims["abc".index(name)]
            rows = [
                format_of(band_format).decode(band.rows_RS[:, : band.row_bytes], dim)
                for band in (our_band, their_band)
            ]
            assert_rows_alike(*rows, band_format)
            assert_states_alike(our_band, their_band, settings["optimizer"])
            others = untouched(our_band, looked_up[name])
            assert torch.equal(our_band.rows_RS[others], before[f"{name}.band{k}"][others])
            assert torch.equal(their_band.rows_RS[others], before[f"{name}.band{k}"][others])
            their_band.rows_RS.copy_(our_band.rows_RS)


@pytest.mark.parametrize("storage", COVERING, ids=name_of)
@given(shape=shapes, weight_decay=st.sampled_from([0.0, 0.5]))
@settings(max_examples=6, deadline=None)
def test_cpu_does_as_the_reference(
    shape: Shape, weight_decay: float, storage: dict[str, Any]
) -> None:
    check_like_the_reference("cpu", shape, weight_decay=weight_decay, **storage)


def pairs_of_bands(
    ours: EdoEmbeddingBagCollection, theirs: EdoEmbeddingBagCollection
) -> Iterator[tuple[str, int, BandMemory, BandMemory]]:
    for name, *memories in zip("abc", ours.tables.memories, theirs.tables.memories, strict=True):
        for k, (mine, other) in enumerate(zip(*memories, strict=True)):
            yield name, k, mine, other


def looked_up_rows(batch: KeyedJaggedTensor) -> dict[str, set[int]]:
    return {
        name: {row for feature in features for row in batch[feature].values().tolist()}
        for name, features in FEATURES.items()
    }


def untouched(memory: BandMemory, looked_up: set[int]) -> list[int]:
    """Rows of a band, counted in it, that no batch looked up."""
    rows = range(memory.first_row, memory.first_row + memory.band.num_rows)
    return [row - memory.first_row for row in rows if row not in looked_up]


@pytest.mark.parametrize("row_format", ["fp32", "fp16", "int8"])
@given(shape=shapes)
@settings(max_examples=25, deadline=None)
def test_bytes_are_those_of_the_reference_where_sums_are_exact(
    shape: Shape, row_format: str
) -> None:
    # All values are multiples of 1/64 below 1, bags and weights powers of two.
    num_rows, dim = shape.rows[0], shape.dims[0]
    generator = torch.Generator().manual_seed(shape.seed)
    values = torch.randint(-64, 65, (num_rows, dim), generator=generator) / 64
    ours, theirs = (
        EdoEmbeddingBagCollection(
            [table("t", num_rows, dim, ["sum", "mean"], format=row_format)],
            pooling={"mean": PoolingType.MEAN},
            is_weighted=True,
            optimizer="sgd",
            learning_rate=0.25,
            seed=shape.seed,
            kernel=kernel,
        )
        for kernel in ("cpu", "reference")
    )
    batches, gradients = [], []
    for _ in range(3):
        lengths = torch.tensor([0, 1, 2, 4])[torch.randint(0, 4, (20,), generator=generator)]
        ids = torch.randint(0, num_rows, (int(lengths.sum()),), generator=generator)
        weights = torch.tensor([-1, 0.5, 2])[torch.randint(0, 3, ids.shape, generator=generator)]
        batches.append(KeyedJaggedTensor(["mean", "sum"], ids, weights, lengths))
        gradients.append(torch.randint(-16, 17, (10, 2 * dim), generator=generator) / 16)
    for tables in (ours, theirs):
        (rows,) = tables.tables_state()["t"].values()
        rows.copy_(format_of(row_format).encode(values, torch.tensor(0.5)))
    for batch, gradient in zip(batches, gradients, strict=True):
        mine, other = ours(batch).values(), theirs(batch).values()
        assert torch.equal(mine, other)
        mine.backward(gradient)
        other.backward(gradient)
    assert torch.equal(all_bytes(ours)["t.band0"], all_bytes(theirs)["t.band0"])


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("row_format", TRAINED)
def test_results_do_not_depend_on_threads(row_format: str) -> None:
    results = []
    for num_threads in (1, 2, 2, 3):
        torch.set_num_threads(num_threads)
        shape = Shape((1, 5000, 60), (16, 8, 7), 2000, 5, True, 3)
        tables = build("cpu", shape, row_format=row_format, optimizer="rowwise_adagrad")
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            pooled = tables(random_batch(shape, generator)).values()
            pooled.backward(torch.randn(pooled.shape, generator=generator))
        results.append({**all_bytes(tables), "pooled": pooled.detach()})
    for other in results[1:]:
        assert all(torch.equal(other[name], rows) for name, rows in results[0].items())


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.usefixtures("two_threads")
def test_a_value_that_is_no_row_is_named(kernel: str, num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    tables = EdoEmbeddingBagCollection(
        [table("t", 5, 4, ["f", "g"]), table("u", 9, 4, bands=[Band(4, "fp32"), Band(5, "int8")])],
        kernel=kernel,
    )
    good = {"u": [[8], [0]], "f": [[4], [1, 2]], "g": [[], [3]]}
    tables(jagged(good))
    for feature, value, sentence in [
        ("f", 5, "feature f: 5 is not a row of table t, which has 5"),
        ("g", -1, "feature g: -1 is not a row of table t, which has 5"),
        ("u", 9, "feature u: 9 is not a row of table u, which has 9"),
        ("u", 2**40, "feature u: 1099511627776 is not a row of table u, which has 9"),
        ("u", -(2**63), f"feature u: -{2**63} is not a row of table u, which has 9"),
    ]:
        with pytest.raises(IndexError, match=f"^{sentence}$"):
            tables(jagged({**good, feature: [[1], [0, value, 1]]}))
    many = {"u": [[9]] * 3000, "f": [[0]] * 3000, "g": [[0, 1]] * 1500 + [[-7], [-8]] * 750}
    with pytest.raises(IndexError, match=r"^feature g: -7 is not a row of table t, which has 5$"):
        tables(jagged(many))


@pytest.mark.parametrize("row_format", ["int8", "int4"])
@pytest.mark.parametrize(
    ("kernel", "device"),
    [
        ("cpu", "cpu"),
        ("reference", "cpu"),
        pytest.param("reference", "cuda", marks=pytest.mark.gpu),
    ],
)
def test_b40_the_last_rows_of_a_table_beyond_2_to_the_31_train(
    row_format: str, kernel: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 2.2e9 numbers, of which only the pages of three rows are touched.
    monkeypatch.setattr(row_tables, "init_bands", lambda *_args, **_settings: None)
    num_rows, dim = 70_000_000, 32
    tables = EdoEmbeddingBagCollection(
        [table("t", num_rows, dim, format=row_format)],
        learning_rate=0.1,
        device=torch.device(device),
        kernel=kernel,
    )
    assert num_rows * dim > 2**31
    ids = [0, 67_108_865, 69_999_999]
    batch = jagged({"t": [[i] for i in ids]}).to(tables.device)
    upstream = torch.randn(3, dim, generator=torch.Generator().manual_seed(1))
    pooled = tables(batch).values()
    assert not pooled.any()
    pooled.backward(upstream.to(tables.device))
    # Row-wise Adagrad's first step from 0: the gradient by its root mean square.
    expected = -0.1 * upstream / upstream.square().mean(1, True).sqrt()
    looked_up = tables(batch).values().cpu()
    step = (expected.amax(1, True) - expected.amin(1, True)) / (127 if row_format == "int8" else 15)
    assert ((looked_up.detach() - expected).abs() <= 1.01 * step).all()
    (memory,) = memories_of(tables, "t")
    touched = memory.rows_RS[[0, 1, 67_108_864, 67_108_865, 67_108_866, 69_999_998, 69_999_999]]
    assert touched.any(1).tolist() == [True, False, False, True, False, False, True]


def addressed(memory: np.ndarray, first_row: int, stride: int) -> int:
    """Where row 0 would be, were this memory row ``first_row``."""
    return memory.ctypes.data - first_row * stride


@pytest.mark.parametrize("rows", [(2**31 - 1, 2**31, 3_000_000_000), (5, 2**32 - 2, 2**32 - 1)])
def test_b40_addresses_and_rows_are_64_bit(rows: tuple[int, int, int]) -> None:
    # A table of 2^32 rows of 64 numbers of which three exist: bands that begin where these are.
    dim, num_rows = 64, 2**32
    stride = 4 * dim
    memory = np.arange(3 * dim, dtype=np.float32).reshape(3, dim)
    before = memory.copy()
    bands = np.array(
        [
            [0, rows[1], addressed(memory[0], rows[0], stride), stride, stride, 0, 0, 0],
            [rows[1], rows[2] - rows[1], memory[1].ctypes.data, stride, stride, 0, 0, 0],
            [rows[2], num_rows - rows[2], memory[2].ctypes.data, stride, stride, 0, 0, 0],
        ],
        np.int64,
    )
    tables = np.array([[0, 3, dim, -1, num_rows, 0, 0]], np.int64)
    assert (bands.shape[1], tables.shape[1]) == (BAND_COLUMNS, TABLE_COLUMNS)
    values = torch.tensor([rows[2], rows[0], rows[2], rows[1]])
    lookups = Lookups(
        features=np.array([[0, 0, 4, 0, dim, 0]], np.int64),
        values=values,
        offsets=torch.arange(5),
        weights=None,
        out_size=4 * dim,
    )
    out = cpu.forward(bands, tables, lookups).view(4, dim).numpy()
    np.testing.assert_array_equal(out, before[[2, 0, 2, 1]])
    gradients = torch.arange(4.0).repeat_interleave(dim)
    cpu.backward(
        bands,
        tables,
        lookups,
        gradients,
        optimizer="sgd",
        step=Step(0.5, 0.0, 1),
        table_keys=np.zeros(1, np.int64),
    )
    np.testing.assert_array_equal(memory, before - [[0.5], [1.5], [1.0]])
    lookups.values[3] = num_rows
    with pytest.raises(IndexError) as caught:
        cpu.forward(bands, tables, lookups)
    assert caught.value.args == (0, num_rows)


def test_noise_is_uniform_and_of_its_own_for_each_seed_step_table_and_row() -> None:
    keys = [
        table_key(seed=seed, step=step, table=index)
        for seed, step, index in product((0, 1, 2**31), (1, 2, 100), (0, 1, 30))
    ]
    assert len(set(keys)) == len(keys)
    rows = torch.arange(20_000)
    noise = torch.stack([row_noise(row_keys(key, rows), 17) for key in keys])
    assert noise.min() >= 0
    assert noise.max() < 1
    assert abs(noise.mean().item() - 0.5) < 5 * (1 / 12 / noise.numel()) ** 0.5
    counts = torch.histc(noise, 64, 0, 1)
    expected = noise.numel() / 64
    assert ((counts - expected).square() / expected).sum() < 63 + 5 * (2 * 63) ** 0.5
    for shifted in (noise[:, 1:] * noise[:, :-1], noise[..., 1:] * noise[..., :-1]):
        deviation = (7 / 144 / shifted.numel()) ** 0.5
        assert abs(shifted.mean().item() - 0.25) < 6 * deviation
    for one, other in ((0, 1), (0, 3), (0, 9)):
        product_mean = (noise[one] * noise[other]).mean().item()
        assert abs(product_mean - 0.25) < 5 * (7 / 144 / noise[0].numel()) ** 0.5
