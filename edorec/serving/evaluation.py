"""AUC of a serving model, and all metrics of scores in files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from edorec.data.columns import ColumnUse, check_files
from edorec.data.hashing import IdHasher
from edorec.data.source import SourceFile
from edorec.data.stage_columns import Place, TargetColumn
from edorec.errors import ConfigError
from edorec.metrics import TaskMetrics
from edorec.progress import Progress
from edorec.serving.files import chunks
from edorec.serving.model import ServingModel


def evaluate_model(
    model: ServingModel,
    files: Sequence[SourceFile],
    *,
    labels: Mapping[str, str],
    sampling_rates: Mapping[str, float],
    weight: str | None,
    verbosity: int,
    max_rows: int | None = None,
) -> dict[str, float | None]:
    """AUC of each task of a serving model on files with labels.

    Args:
        model: scores them.
        files: with the model's columns.
        labels: column of each task's label.
        sampling_rates: by task, see ``TaskConfig``.
        weight: column of sample weights, if any.
        verbosity: below 0 shows no progress.
        max_rows: stop after about so many rows.

    Raises:
        ConfigError: if a column is missing or of a type that does not fit.
    """
    model.reader.check(list(files))
    targets = {
        task: TargetColumn(ColumnUse("label", task, column, f"tasks.{task}.label"))
        for task, column in labels.items()
    }
    weights = weight and TargetColumn(ColumnUse("weight", "weight", weight, "data.weight"))
    metrics = {task: TaskMetrics(task, sampling_rate=sampling_rates[task]) for task in labels}
    wanted = [*model.reader.columns, *labels.values(), *([weight] if weight else [])]
    total = min(sum(file.num_rows for file in files), max_rows or 2**62)
    done = 0
    with Progress(total=total, unit="rows", description="check", verbosity=verbosity) as progress:
        for place, rows in chunks(files, wanted):
            logits_RT = torch.cat(list(model.logits(rows, place)))
            weights_R = None
            if weights:
                weights_R = torch.from_numpy(_staged(weights, rows, place))
            for k, (task, target) in enumerate(targets.items()):
                metrics[task].update(
                    # Metrics shift logits of sampled negatives themselves.
                    logits_RT[:, k] - float(np.log(sampling_rates[task])),
                    torch.from_numpy(_staged(target, rows, place)),
                    weights_B=weights_R,
                )
            done += len(rows)
            progress.advance(len(rows))
            if done >= total:
                break
    return {task: metric.compute()["auc"] for task, metric in metrics.items()}


def evaluate_scores(
    files: Sequence[SourceFile],
    *,
    label: str,
    score: str,
    group: str | None,
    weight: str | None,
    folder: Path,
) -> dict[str, Any]:
    """All metrics of probabilities that are already in a file, made here or elsewhere.

    Args:
        files: Parquet files.
        label: column with 0, 1 or null.
        score: column with probabilities.
        group: column of groups for GAUC.
        weight: column of sample weights.
        folder: where rows go that do not fit in memory.

    Raises:
        ConfigError: if a column is missing or of a type that does not fit.
        InputError: if a score is no probability.
    """
    uses = [
        ColumnUse("label", label, label, "--label"),
        ColumnUse("weight", score, score, "--score"),
        *([ColumnUse("weight", weight, weight, "--weight")] if weight else []),
        *([ColumnUse("group", group, group, "--group")] if group else []),
    ]
    if problems := check_files(uses, files, missing_columns="error"):
        raise ConfigError(problems)
    metrics = TaskMetrics(label, spill_folder=folder)
    columns = {use.key: TargetColumn(use) for use in uses if use.kind != "group"}
    hasher = IdHasher()
    for place, rows in chunks(files, [use.column for use in uses]):
        scores_R = _scores(rows, score, place)
        groups_R = None
        if group:
            hashes = hasher(rows.column(group).combine_chunks())
            hasher.take_texts()
            groups_R = torch.from_numpy(hashes.view(np.int64))
        weights_R = None
        if weight:
            weights_R = torch.from_numpy(_staged(columns["--weight"], rows, place))
        metrics.update(
            torch.logit(torch.from_numpy(scores_R), eps=1e-12).float(),
            torch.from_numpy(_staged(columns["--label"], rows, place)),
            weights_B=weights_R,
            groups_B=groups_R,
        )
    return metrics.compute()


def _scores(rows: pa.Table, score: str, place: Place) -> np.ndarray:
    """Probabilities float64 (R)."""
    scores_R: np.ndarray = rows.column(score).cast(pa.float64()).fill_null(np.nan).to_numpy()
    bad = ~((scores_R >= 0) & (scores_R <= 1))
    if bad.any():
        row = int(np.argmax(bad))
        raise place.error(
            ColumnUse("weight", score, score, "--score"),
            row,
            f"is {scores_R[row]}, and must be a probability from 0 to 1",
        )
    return scores_R


def _staged(column: TargetColumn, rows: pa.Table, place: Place) -> np.ndarray:
    staged = column.stage(rows.column(column.use.column).combine_chunks(), place)
    return np.array(staged.to_numpy())  # Arrow's memory is read-only
