"""What the scripts of the peers share; each runs in the environment of its library.

They import nothing of this repository. An NPZ file holds, for the splits train, valid and test,
``SPLIT_rows`` int64 (N, F), ``SPLIT_dense`` float32 (N, C) and ``SPLIT_labels`` float32 (N), and
``sizes``, rows of the table of each of the F features.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score


@dataclass(frozen=True)
class Task:
    """What to train: a DeepFM with Adam, one epoch.

    Attributes:
        path: of the NPZ file.
        data: its arrays.
        batch_size: rows a step.
        dim: of the embeddings.
        hidden: widths of the MLP.
        learning_rate: of Adam, for tables and dense part.
    """

    path: str
    data: dict[str, np.ndarray]
    batch_size: int
    dim: int
    hidden: list[int]
    learning_rate: float


def read_task() -> Task:
    """From the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    for name in ("batch_size", "dim", "threads", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--learning_rate", type=float, required=True)
    parser.add_argument("--hidden", type=int, nargs="+", required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    with np.load(args.path) as file:
        data = {name: file[name] for name in file.files}
    return Task(args.path, data, args.batch_size, args.dim, args.hidden, args.learning_rate)


def report(
    task: Task,
    parameters: Any,
    train: Callable[[], Any],
    predict: Callable[[str], np.ndarray],
) -> None:
    """Trains, and prints a JSON object: rows per second, peak RSS, bytes of parameters, AUC.

    Args:
        task: what is trained.
        parameters: of the model.
        train: one epoch.
        predict: probabilities of a split, in its order.
    """
    started = time.perf_counter()
    train()
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    auc = {
        split: float(roc_auc_score(task.data[f"{split}_labels"], np.ravel(predict(split))))
        for split in ("valid", "test")
    }
    # Adam holds two moments of every parameter.
    num_bytes = sum(p.numel() * p.element_size() for p in parameters if p.dim() == 2) * 3
    result = {
        "rows_per_second": len(task.data["train_labels"]) / seconds,
        "peak_rss_bytes": peak,
        "table_bytes": num_bytes,
        "valid_auc": auc["valid"],
        "auc": auc["test"],
    }
    print("\n" + json.dumps(result))
