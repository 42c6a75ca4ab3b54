"""Dense programs: every backbone and head, batches of any size, the bits of the module."""

from pathlib import Path

import pytest
import torch
from torch import nn

from edorec.models.config import ModelConfig
from edorec.models.model import BACKBONES, HEADS, build_model
from edorec.serving.dense import DenseProgram, load_program, pickled_parts, save_program

CASES = [(name, "shared_bottom") for name in BACKBONES] + [("deepfm", name) for name in HEADS]


def inputs(num_rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num_rows)
    return (
        torch.randn(num_rows, width, generator=generator),
        torch.randn(num_rows, 2, generator=generator),
    )


def check(program: DenseProgram, path: Path) -> None:
    save_program(path, program, num_dense=2)
    assert pickled_parts(path) == []
    loaded = load_program(path)
    with torch.inference_mode():
        for num_rows in (1, 2, 7, 10_000, 1):
            pooled_BE, dense_BN = inputs(num_rows, sum(program.widths))
            wanted = program.eval()(pooled_BE, dense_BN)
            torch.testing.assert_close(loaded(pooled_BE, dense_BN), wanted, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("backbone", "head"), dict.fromkeys(CASES))
def test_programs_give_the_logits_of_the_model(tmp_path, backbone, head):
    config = ModelConfig.model_validate(
        {"backbone": {"name": backbone}, "head": {"name": head}, "batch_norm": True, "dropout": 0.5}
    )
    own = [[4], [4]] if head == "stem" else []  # its tasks need vectors of their own
    model = build_model(config, dims=[4, 4, 4], num_dense=2, num_tasks=2, specific_dims=own)
    features = [(4, None)] * (3 + len(own))
    check(DenseProgram(model, features, [0.0, -1.5]), tmp_path / "dense.pt2")


class ByBatchSize(nn.Module):
    """Computes with the batch size, as attention over sequences may."""

    def forward(self, pooled: list[torch.Tensor], dense_BN: torch.Tensor) -> torch.Tensor:
        pooled_BFD = torch.stack(pooled, 1)
        sums_B = pooled_BFD.reshape(-1, 4).sum(1).reshape(pooled_BFD.shape[0], 3).sum(1)
        extra_B1 = torch.ones(pooled_BFD.shape[0], 1)
        return torch.cat([sums_B[:, None], dense_BN[:, :1] + extra_B1], 1)


def test_a_program_that_knows_its_batch_size(tmp_path):
    check(DenseProgram(ByBatchSize(), [(4, None)] * 3, [0.0, 0.0]), tmp_path / "dense.pt2")
