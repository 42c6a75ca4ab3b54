"""What checkpoints cost: training time and memory, for INT8 tables of 2 GB.

The log is Criteo-shaped: 26 tables, Zipf ids, batches of 4096, an MLP behind the tables. Training
time is that of steps, and a checkpoint costs

- in every step, the marks on the pages that it changes: pairs of blocks of steps with and without;
- while it is written, what steps take longer than before it began and after it ended. Whole
  checkpoints are measured, and one after a minute of training, which is an increment if few pages
  have changed.

Its share of training time at an interval is the first ratio, and the second time over the interval;
at five minutes every checkpoint counts as whole. Peak memory is that of processes of their own,
with two checkpoints and without any.

    python -m benchmarks.checkpoint [--quick] [--json FILE] [--folder DIR]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.figures import Figure, write_figures
from edorec.checkpoints.config import CheckpointConfig
from edorec.checkpoints.folder import ROWS, step_folder, steps_of
from edorec.checkpoints.saver import Checkpoints
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.row_tables import EdoTableConfig
from edorec.memory_use import peak_rss_bytes

NUM_TABLES, DIM, BATCH, ROW_BYTES = 26, 16, 4096, 24
TOTAL_BYTES, QUICK_BYTES = 2_000_000_000, 200_000_000
ZIPF = 1.05
NUM_BATCHES = 256
BLOCK_STEPS, NUM_PAIRS = 15, 16
NUM_CHECKPOINTS, USUAL_BLOCKS = 5, 3


class Training:
    """Tables and an MLP that train on batches drawn beforehand."""

    def __init__(self, total_bytes: int) -> None:
        rows = total_bytes // ROW_BYTES // NUM_TABLES
        names = [f"f{k}" for k in range(NUM_TABLES)]
        self.tables = EdoEmbeddingBagCollection(
            [
                EdoTableConfig(name=name, num_embeddings=rows, embedding_dim=DIM, format="int8")
                for name in names
            ],
            initial_accumulator=1e-5,
        )
        self._mlp = torch.nn.Sequential(
            torch.nn.Linear(NUM_TABLES * DIM, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)
        )
        self._optimizer = torch.optim.Adam(self._mlp.parameters(), fused=True)
        rng = np.random.default_rng(0)
        lengths = torch.ones(NUM_TABLES * BATCH, dtype=torch.int32)
        self._batches = [
            KeyedJaggedTensor(
                names,
                torch.from_numpy(zipf_rows(rng, rows, NUM_TABLES * BATCH)),
                lengths=lengths,
            )
            for _ in range(NUM_BATCHES)
        ]
        self._labels_B = (torch.rand(BATCH) < 0.2).float()
        self.num_steps = 0

    def step(self) -> float:
        """One step; its seconds."""
        started = time.perf_counter()
        features = self._batches[self.num_steps % NUM_BATCHES]
        logits_B = self._mlp(self.tables(features).values()).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits_B, self._labels_B)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self.num_steps += 1
        return time.perf_counter() - started

    def block(self) -> list[float]:
        """Seconds of some steps."""
        return [self.step() for _ in range(BLOCK_STEPS)]

    def checkpoints(self, folder: Path) -> Checkpoints:
        """Saves one whenever it is told that a step is done."""
        return Checkpoints(
            folder,
            CheckpointConfig(every_steps=1, every_minutes=None),
            tables=self.tables,
            identity={},
            capture=lambda: (
                {name: weight.clone() for name, weight in self._mlp.state_dict().items()},
                {},
            ),
            best=folder / "best.pt",
            resumed_step=None,
        )


def zipf_rows(rng: np.random.Generator, rows: int, size: int) -> np.ndarray:
    """Ranks below ``rows`` with density proportional to (rank + 1)^-ZIPF, by its inverse."""
    power = 1 - ZIPF
    uniform = rng.random(size)
    ranks = (1 + uniform * ((rows + 1) ** power - 1)) ** (1 / power) - 1
    return np.minimum(ranks.astype(np.int64), rows - 1)


def cost_of_marks(training: Training, folder: Path) -> float:
    """Seconds of steps whose changes are marked over those of others, paired blocks."""
    ratios = []
    for _ in range(NUM_PAIRS):
        without = median(training.block())
        with training.checkpoints(folder):
            ratios.append(median(training.block()) / without)
    return median(ratios)


def usual_steps(training: Training) -> list[float]:
    """Seconds of steps while nothing is written."""
    return [seconds for _ in range(USUAL_BLOCKS) for seconds in training.block()]


def cost_of_saving(training: Training, checkpoints: Checkpoints) -> tuple[float, float]:
    """Seconds that steps take longer while a checkpoint is written, and seconds of writing."""
    before = usual_steps(training)
    started = time.perf_counter()
    checkpoints.step_done(training.num_steps)
    spent = [time.perf_counter() - started]
    while checkpoints.is_busy():
        spent.append(training.step())
    written = time.perf_counter() - started
    usual = mean(before + usual_steps(training))
    return sum(spent) - usual * (len(spent) - 1), written


def measure_peak(total_bytes: int, folder: Path | None) -> None:
    """Prints the peak memory of this process, which trains and, with a folder, saves twice."""
    training = Training(total_bytes)
    training.block()
    if folder is not None:
        for _ in range(2):
            with training.checkpoints(folder) as checkpoints:
                cost_of_saving(training, checkpoints)
    training.block()
    print(json.dumps(peak_rss_bytes()))


def peak_of(total_bytes: int, folder: Path | None) -> int:
    """The same in a process of its own."""
    arguments = ["--peak", str(total_bytes), *(["--folder", str(folder)] if folder else [])]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.checkpoint", *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(json.loads(done.stdout))


def time_figures(total_bytes: int, folder: Path, minute: float) -> list[Figure]:
    """Costs in training time; ``minute`` is how many seconds are trained between checkpoints."""
    training = Training(total_bytes)
    training.block()
    marks = cost_of_marks(training, folder)
    whole: list[tuple[float, float]] = []
    for _ in range(NUM_CHECKPOINTS):
        with training.checkpoints(folder) as checkpoints:
            whole.append(cost_of_saving(training, checkpoints))
            if len(whole) == NUM_CHECKPOINTS:
                started = time.perf_counter()
                while time.perf_counter() - started < minute:
                    training.step()
                extra_later, _ = cost_of_saving(training, checkpoints)
    size = (step_folder(folder, steps_of(folder)[-1]) / ROWS).stat().st_size
    extra = median(cost for cost, _ in whole)
    every_step = max(marks - 1, 0.0)  # below 1 is the spread of the times
    shares = {5: every_step + extra / 300, 1: every_step + extra_later / 60}
    return [
        Figure("step with marks over step without", marks, "ratio"),
        Figure("whole checkpoint: written in", median(s for _, s in whole), "s"),
        Figure("whole checkpoint: training time that it costs", extra, "s"),
        Figure("share of training time, one every 5 minutes", shares[5], "ratio", at_most=0.03),
        Figure("after a minute: size over that of the tables", size / total_bytes, "ratio"),
        Figure("after a minute: training time that it costs", extra_later, "s"),
        Figure("share of training time, one a minute", shares[1], "ratio"),
    ]


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="smaller tables, shorter training")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help="where to write; default a temporary folder")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peak is not None:
        measure_peak(args.peak, args.folder)
        return
    total_bytes = QUICK_BYTES if args.quick else TOTAL_BYTES
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = Path(temporary)
        without, with_checkpoints = peak_of(total_bytes, None), peak_of(total_bytes, folder / "a")
        figures = time_figures(total_bytes, folder / "b", minute=10 if args.quick else 60)
    added = (with_checkpoints - without) / total_bytes
    # Compiled code and libraries take tens of MB whatever the tables, most of what small ones add.
    name, bound = "peak memory that checkpoints add, over the tables", None if args.quick else 0.1
    figures.append(Figure(name, added, "ratio", at_most=bound))
    write_figures(figures, json_path=args.json)


if __name__ == "__main__":
    main()
