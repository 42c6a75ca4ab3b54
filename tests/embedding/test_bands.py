"""Bands of a table: sizes, initial rows and states."""

import os
from pathlib import Path

import pytest
import torch

from edorec.embedding import bands as bands_module
from edorec.embedding.bands import Band, BandMemory, init_bands, make_bands
from edorec.embedding.formats import FORMATS, format_of
from edorec.embedding.optimizers import OPTIMIZERS, state_bytes
from edorec.embedding.states import STATES

CPU = torch.device("cpu")


def make(
    bands: list[Band],
    *,
    dim: int = 8,
    optimizer: str = "rowwise_adagrad",
    init_std: float = 0.5,
    num_zero_rows: int = 0,
    accumulator: float = 0.25,
) -> list[BandMemory]:
    memories = make_bands(bands, dim=dim, optimizer=optimizer, device=CPU)
    init_bands(
        memories,
        dim=dim,
        optimizer=optimizer,
        initial_accumulator=accumulator,
        init_std=init_std,
        num_zero_rows=num_zero_rows,
        generator=torch.Generator().manual_seed(1),
    )
    return memories


def rows_of(memories: list[BandMemory], dim: int = 8) -> torch.Tensor:
    return torch.cat(
        [
            format_of(memory.band.format).decode(memory.rows_RS[:, : memory.row_bytes], dim)
            for memory in memories
        ]
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((-1, "fp32"), "num_rows must be at least 0, got -1"),
        (
            (1, "int3"),
            "format must be one of fp32, fp16, int8, int4, int2, sparse28, ternary, got int3",
        ),
        ((1, "sparse28"), "rows cannot be updated in sparse28; use it for qat"),
        ((1, "int8", "fp8"), "state must be one of fp32, bf16, log8, got fp8"),
    ],
)
def test_refuses_bands_that_cannot_be(arguments: tuple, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Band(*arguments)


def test_a_table_has_a_row() -> None:
    with pytest.raises(ValueError, match="a table must have at least one row"):
        make([Band(0, "fp32"), Band(0, "int8")])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "name", [*(name for name in FORMATS if format_of(name).trains), "ternary:0.2"]
)
def test_a_row_and_its_state_lie_together(name: str, optimizer: str) -> None:
    (memory,) = make([Band(11, name, "bf16")], dim=7, optimizer=optimizer)
    row, state = format_of(name).row_bytes(7), state_bytes(optimizer, dim=7, state=STATES["bf16"])
    assert memory.rows_RS.shape == (11, row + state)
    assert memory.rows_RS.is_contiguous()
    assert (memory.weights_bytes, memory.optimizer_bytes) == (11 * row, 11 * state)
    states = memory.rows_RS[:, row:]
    if optimizer == "rowwise_adagrad":
        assert torch.equal(STATES["bf16"].decode(states), torch.full((11,), 0.25))
    elif optimizer == "adagrad":
        assert (states.clone().view(torch.float32) == 0.25).all()
    else:
        assert not states.any()


def test_bands_follow_each_other_and_empty_ones_take_nothing() -> None:
    memories = make([Band(3, "fp32"), Band(0, "fp16"), Band(40, "int8"), Band(2, "int4", "log8")])
    assert [memory.first_row for memory in memories] == [0, 3, 43]
    assert [memory.band.num_rows for memory in memories] == [3, 40, 2]


@pytest.mark.parametrize("dim", [1, 3, 8])
def test_a_rows_first_values_depend_on_its_position_alone(
    dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bands_module, "CHUNK_ROWS", 64)
    expected = rows_of(make([Band(300, "fp32")], dim=dim), dim)
    assert abs(expected.std().item() - 0.5) < 0.06
    for num_rows in (1, 15, 16, 17, 63, 64, 65, 200):
        assert torch.equal(
            rows_of(make([Band(num_rows, "fp32")], dim=dim), dim), expected[:num_rows]
        )
    mixed = [Band(10, "fp32"), Band(100, "fp16"), Band(190, "fp32", "log8")]
    rows = rows_of(make(mixed, dim=dim), dim)
    assert torch.equal(rows[:10], expected[:10])
    assert torch.equal(rows[10:110], expected[10:110].half().float())
    assert torch.equal(rows[110:], expected[110:])


@pytest.mark.parametrize("zeros", [0, 1, 5, 70, 200, 300])
def test_the_last_rows_are_zero(zeros: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bands_module, "CHUNK_ROWS", 64)
    bands = [Band(100, "int8"), Band(100, "fp32"), Band(3, "int8")]
    rows = rows_of(make(bands, num_zero_rows=zeros))
    kept = max(0, 203 - zeros)
    assert not rows[kept:].any()
    assert torch.equal(rows[:kept], rows_of(make(bands))[:kept])
    assert rows[:kept].any(dim=1).all()


def test_rows_may_lie_in_a_file(tmp_path: Path) -> None:
    memory = BandMemory(
        Band(5, "int8"),
        first_row=0,
        dim=4,
        optimizer="rowwise_adagrad",
        device=CPU,
        folder=tmp_path,
    )
    memory.rows_RS.fill_(9)
    assert memory.file_number is not None
    assert os.pread(memory.file_number, 1000, 0) == bytes([9]) * 5 * (8 + 4)
