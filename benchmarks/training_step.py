"""Rows per second of a whole DeepFM training step: edorec's tables against torchrec's on CPU.

26 id columns with Zipf ids, vocabularies of 1,000 to 1,000,000 rows, 13 dense columns, dim 16, MLP
256-128-64, batches of 4096 rows held in memory. Every contender trains the same dense model at the
same dense precision, with the same batches in turn; only the tables differ. torchrec's
FusedEmbeddingBagCollection has FP32 rows: with row-wise Adagrad, and with SGD, its fastest.
bf16 dense arithmetic (autocast) is a separate pair of rows. "dense alone" trains the dense model on
embeddings that are there already: the ratio to it is what tables that take no time would reach.

    python -m benchmarks.training_step [--quick] [--json FILE]
"""

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from benchmarks.figures import Figure, has_amx, write_figures
from edorec.devices import dense_arithmetic
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.row_tables import EdoTableConfig
from edorec.models.config import DeepFMConfig, ModelConfig, SharedBottomConfig
from edorec.models.model import build_model

NUM_SPARSE, NUM_DENSE, DIM, BATCH = 26, 13, 16, 4096
NAMES = [f"f{index}" for index in range(NUM_SPARSE)]
SIZES = np.geomspace(1_000, 1_000_000, NUM_SPARSE).astype(int)
HIDDEN = [256, 128, 64]
CPU = torch.device("cpu")


def torchrec_tables(optimizer: type[torch.optim.Optimizer], **settings: float) -> nn.Module:
    """Fused FP32 tables of torchrec."""
    tables = [
        EmbeddingBagConfig(
            name=name,
            num_embeddings=int(size),
            embedding_dim=DIM,
            feature_names=[name],
            data_type=DataType.FP32,
        )
        for name, size in zip(NAMES, SIZES, strict=True)
    ]
    return FusedEmbeddingBagCollection(
        tables=tables, optimizer_type=optimizer, optimizer_kwargs=settings, device=CPU
    )


def edorec_tables(row_format: str) -> nn.Module:
    """Our tables with row-wise Adagrad."""
    return EdoEmbeddingBagCollection(
        [
            EdoTableConfig(
                name=name,
                num_embeddings=int(size),
                embedding_dim=DIM,
                feature_names=[name],
                format=row_format,
            )
            for name, size in zip(NAMES, SIZES, strict=True)
        ],
        learning_rate=0.05,
        initial_accumulator=1e-5,
    )


class Ready(nn.Module):
    """Pooled embeddings that cost nothing; their gradient is thrown away."""

    def __init__(self) -> None:
        super().__init__()
        values_BE = torch.randn(BATCH, NUM_SPARSE * DIM) * 0.01
        self._pooled = KeyedTensor(NAMES, [DIM] * NUM_SPARSE, values_BE.requires_grad_())

    def forward(self, _sparse: KeyedJaggedTensor) -> KeyedTensor:
        """Pooled embeddings (B, F * D)."""
        self._pooled.values().grad = None
        return self._pooled


@dataclass(frozen=True)
class Batch:
    """One batch in memory."""

    sparse: KeyedJaggedTensor
    dense_BN: torch.Tensor
    labels_B: torch.Tensor


def make_batches(num_batches: int) -> list[Batch]:
    """Zipf ids (exponent 1.05), normal dense values, random labels."""
    rng = np.random.default_rng(0)
    lengths = torch.ones(NUM_SPARSE * BATCH, dtype=torch.int32)
    batches = []
    for _ in range(num_batches):
        power = 1 - 1.05
        uniform = rng.random((NUM_SPARSE, BATCH))
        ids = (((SIZES[:, None] + 1) ** power - 1) * uniform + 1) ** (1 / power) - 1
        rows = np.minimum(ids.astype(np.int64), SIZES[:, None] - 1)
        batches.append(
            Batch(
                KeyedJaggedTensor(NAMES, torch.from_numpy(rows.reshape(-1)), lengths=lengths),
                torch.from_numpy(rng.standard_normal((BATCH, NUM_DENSE), np.float32)),
                torch.from_numpy((rng.random(BATCH) < 0.2).astype(np.float32)),
            )
        )
    return batches


class Contender:
    """A DeepFM over given tables, with a fused Adam for the dense part."""

    def __init__(self, tables: nn.Module, precision: str) -> None:
        torch.manual_seed(0)
        self.tables = tables
        self._precision = precision
        config = ModelConfig(
            backbone=DeepFMConfig(hidden=HIDDEN), head=SharedBottomConfig(tower_hidden=[])
        )
        self._model = build_model(config, dims=[DIM] * NUM_SPARSE, num_dense=NUM_DENSE, num_tasks=1)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=1e-3, fused=True)

    def step(self, batch: Batch) -> None:
        """One training step."""
        pooled = self.tables(batch.sparse)
        with dense_arithmetic(self._precision, CPU):
            parts = list(torch.split(pooled.values(), DIM, dim=1))
            logits_B = self._model(parts, batch.dense_BN).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits_B.float(), batch.labels_B)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    def rows_per_second(self, batches: list[Batch]) -> float:
        """Over all batches once."""
        started = time.perf_counter()
        for batch in batches:
            self.step(batch)
        return len(batches) * BATCH / (time.perf_counter() - started)


def make_contenders() -> dict[str, Contender]:
    """By name; the dense precision is the last word."""
    builders: dict[str, Any] = {
        "torchrec fp32 rowwise_adagrad": lambda: torchrec_tables(RowWiseAdagrad, lr=0.05),
        "torchrec fp32 sgd": lambda: torchrec_tables(torch.optim.SGD, lr=0.05),
        "edorec fp32": lambda: edorec_tables("fp32"),
        "edorec int8": lambda: edorec_tables("int8"),
        "dense alone": Ready,
    }
    return {
        f"{name}, dense {precision}": Contender(build(), precision)
        for precision in ("fp32", "bf16")
        for name, build in builders.items()
    }


def figures_of(speeds: dict[str, list[float]]) -> list[Figure]:
    """Rows per second, and ratios of paired rounds."""

    def ratio(ours: str, baseline: str) -> float:
        pairs = zip(speeds[ours], speeds[baseline], strict=True)
        return statistics.median(fast / slow for fast, slow in pairs)

    figures = [Figure(name, statistics.median(v), "rows/s") for name, v in speeds.items()]
    for precision in ("fp32", "bf16"):
        bounds = (2.0, 1.4) if precision == "fp32" or has_amx() else (None, None)
        for ours in ("edorec int8", "edorec fp32", "dense alone"):
            for baseline, bound in zip(("rowwise_adagrad", "sgd"), bounds, strict=True):
                least = bound if ours == "edorec int8" else None
                name = f"{ours}, dense {precision}"
                value = ratio(name, f"torchrec fp32 {baseline}, dense {precision}")
                figures.append(Figure(f"{name} over torchrec {baseline}", value, "x", least))
    return figures


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rounds = 3 if args.quick else 7
    batches = make_batches(15)
    contenders = make_contenders()
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, contender in contenders.items():
            speed = contender.rows_per_second(batches)
            if number:  # the first round warms up and compiles
                speeds[name].append(speed)
    figures = figures_of(speeds)
    write_figures(figures, json_path=args.json)


if __name__ == "__main__":
    main()
