"""Rows per second of a training step with its tables on disk, against the same tables in memory.

Eight id columns with Zipf ids, vocabularies of 10,000 to 1,000,000 rows, FP32, dim 16 (141 MB with
row-wise Adagrad), MLP 256-128-64, 4096 rows a batch; the next batch is fetched while one trains.
Tables are 2.7 and 4 times as large as the memory that they may have (``memory.disk.resident``), in
pages of 64 to 8192 rows, with ids in order of frequency, and shuffled. Pages that leave stay in the
system's cache of files; once, at the end, they are dropped, so that every miss reads from the disk.
Each is timed in turn with tables in memory, on the same batches.

    python -m benchmarks.paging [--quick] [--json FILE]
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.figures import Figure, write_figures
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.paging import DiskSettings
from edorec.embedding.row_tables import EdoTableConfig
from edorec.models.config import DeepFMConfig, ModelConfig, SharedBottomConfig
from edorec.models.model import build_model

SIZES = np.geomspace(10_000, 1_000_000, 8).astype(int)
NAMES = [f"f{index}" for index in range(len(SIZES))]
DIM, NUM_DENSE, BATCH, EXPONENT = 16, 13, 4096, 1.05
ROW_BYTES = 4 * DIM + 4
TOTAL_BYTES = int(SIZES.sum()) * ROW_BYTES
HIDDEN = [256, 128, 64]
PAGE_ROWS = (64, 256, 512, 1024, 2048, 8192)
RATIOS = (2.7, 4.0)
SLOWEST = 1 / 1.15  # at the first of the ratios


@dataclass(frozen=True)
class Batch:
    """One batch in memory."""

    sparse: KeyedJaggedTensor
    dense_BN: torch.Tensor
    labels_B: torch.Tensor


def make_batches(num_batches: int, *, is_shuffled: bool) -> list[Batch]:
    """Zipf ids, whose rows are in order of frequency or anywhere."""
    rng = np.random.default_rng(0)
    orders = [rng.permutation(size) for size in SIZES]
    lengths = torch.ones(len(SIZES) * BATCH, dtype=torch.int32)
    batches = []
    for _ in range(num_batches):
        power = 1 - EXPONENT
        uniform = rng.random((len(SIZES), BATCH))
        ids = (((SIZES[:, None] + 1) ** power - 1) * uniform + 1) ** (1 / power) - 1
        rows = np.minimum(ids.astype(np.int64), SIZES[:, None] - 1)
        if is_shuffled:
            rows = np.stack([order[ranks] for order, ranks in zip(orders, rows, strict=True)])
        batches.append(
            Batch(
                KeyedJaggedTensor(NAMES, torch.from_numpy(rows.reshape(-1)), lengths=lengths),
                torch.from_numpy(rng.standard_normal((BATCH, NUM_DENSE), np.float32)),
                torch.from_numpy((rng.random(BATCH) < 0.2).astype(np.float32)),
            )
        )
    return batches


class Contender:
    """A DeepFM on tables that are in memory or on disk."""

    def __init__(self, disk: DiskSettings | None) -> None:
        torch.manual_seed(0)
        self.tables = EdoEmbeddingBagCollection(
            [
                EdoTableConfig(
                    name=name,
                    num_embeddings=int(size),
                    embedding_dim=DIM,
                    on_disk=disk is not None,
                )
                for name, size in zip(NAMES, SIZES, strict=True)
            ],
            initial_accumulator=1e-5,
            disk=disk,
        )
        config = ModelConfig(
            backbone=DeepFMConfig(hidden=HIDDEN), head=SharedBottomConfig(tower_hidden=[])
        )
        self._model = build_model(config, dims=[DIM] * len(SIZES), num_dense=NUM_DENSE, num_tasks=1)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=1e-3, fused=True)

    def rows_per_second(self, batches: list[Batch]) -> float:
        """Over all batches once."""
        started = time.perf_counter()
        self.tables.prefetch(batches[0].sparse)
        for batch, following in zip(batches, [*batches[1:], None], strict=True):
            if following is not None:
                self.tables.prefetch(following.sparse)
            self._step(batch)
        return len(batches) * BATCH / (time.perf_counter() - started)

    def _step(self, batch: Batch) -> None:
        parts = list(torch.split(self.tables(batch.sparse).values(), DIM, dim=1))
        logits_B = self._model(parts, batch.dense_BN).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits_B, batch.labels_B)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def measure(
    ram: Contender, settings: DiskSettings, batches: list[Batch], *, rounds: int
) -> tuple[float, float]:
    """Median of paired ratios of speed, and the share of pages that were there."""
    disk = Contender(settings)
    ratios = []
    for number in range(rounds + 1):
        ours, theirs = disk.rows_per_second(batches), ram.rows_per_second(batches)
        if number:  # the first round warms up
            ratios.append(ours / theirs)
    paging = disk.tables.paging()
    assert paging is not None
    return statistics.median(ratios), paging["hit_rate"]


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="two page sizes, fewer rounds")
    parser.add_argument("--folder", type=Path, help="disk of the tables; default that of /tmp")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rounds = 2 if args.quick else 3
    page_rows = PAGE_ROWS[::5] if args.quick else PAGE_ROWS
    ram = Contender(None)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:

        def add(name: str, rows: int, ratio: float, *, is_kept: bool = True) -> float:
            batches = ordered if name == "ordered" else shuffled
            limit = int(TOTAL_BYTES / ratio)
            settings = DiskSettings(Path(folder), rows, limit, is_kept)
            speed, hits = measure(ram, settings, batches, rounds=rounds)
            title = f"{name} ids, {ratio}x, pages of {rows} rows" + ("" if is_kept else ", dropped")
            figures.append(Figure(f"{title}: speed of memory's", speed, "ratio"))
            figures.append(Figure(f"{title}: pages that were there", hits, "ratio"))
            print(f"{title}: {speed:.3f}, hits {hits:.3f}", flush=True)
            return speed

        ordered = make_batches(40, is_shuffled=False)
        shuffled = make_batches(40, is_shuffled=True)
        speeds = {rows: add("ordered", rows, RATIOS[0]) for rows in page_rows}
        for rows in page_rows:
            add("shuffled", rows, RATIOS[0])
        best = max(speeds, key=lambda rows: speeds[rows])
        for name in ("ordered", "shuffled"):
            add(name, best, RATIOS[1])
        add("ordered", best, RATIOS[0], is_kept=False)
    figures.append(Figure("fastest pages, rows", best, "rows"))
    title = f"ordered ids, {RATIOS[0]}x, fastest pages: speed of memory's"
    figures.append(Figure(title, speeds[best], "ratio", at_least=SLOWEST))
    write_figures(figures, json_path=args.json)


if __name__ == "__main__":
    main()
