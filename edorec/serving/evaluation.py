"""Scores of Parquet files: streamed to a file, or compared with labels."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from edorec.data.columns import ColumnUse, check_files
from edorec.data.hashing import IdHasher
from edorec.data.source import SourceFile, find_files, open_file
from edorec.data.stage_columns import Place, TargetColumn
from edorec.errors import ConfigError, InputError
from edorec.metrics import TaskMetrics
from edorec.progress import Progress
from edorec.serving.model import ServingModel

CHUNK_ROWS = 65_536


def open_files(files: str | Sequence[str], *, folder: str = ".", key: str) -> list[SourceFile]:
    """Opens Parquet files: a file, a folder, a glob, or a list of them.

    Raises:
        InputError: if there are none, or one is not sound.
    """
    names = files if isinstance(files, str) else list(files)
    return [open_file(path) for path in find_files(names, folder=folder, key=key)]


def chunks(files: Sequence[SourceFile], columns: Sequence[str]) -> Iterator[tuple[Place, pa.Table]]:
    """Rows of files in their order, some columns; a file without one of them has no such column."""
    for file in files:
        first_row = 0
        names = [name for name in dict.fromkeys(columns) if name in file.names]
        positions = [file.names.index(name) for name in names]
        for row_group, num_rows in enumerate(file.row_groups):
            if not num_rows:
                continue
            for arrays in file.read(row_group, positions, batch_rows=CHUNK_ROWS):
                yield Place(file.path, row_group, first_row), pa.table(arrays, names=names)
                first_row += len(arrays[0])


def score(
    model: ServingModel,
    files: Sequence[SourceFile],
    out: Path,
    *,
    keep: Sequence[str],
    verbosity: int,
) -> int:
    """Writes ``score_<task>`` of every row, in order, beside the columns to keep.

    Args:
        model: scores them.
        files: to score.
        out: Parquet file to write, under a temporary name until it is complete.
        keep: columns that are copied as they are, such as keys.
        verbosity: below 0 shows no progress.

    Returns:
        The number of rows.

    Raises:
        ConfigError: if a column is missing or of a type that does not fit.
    """
    model.reader.check(list(files))
    _check_kept(files, keep)
    total = sum(file.num_rows for file in files)
    temporary = out.with_name(f"{out.name}.tmp")
    wanted = [*model.reader.columns, *keep]
    writer: pq.ParquetWriter | None = None
    with ExitStack() as stack:
        stack.callback(temporary.unlink, missing_ok=True)
        progress = stack.enter_context(
            Progress(total=total, unit="rows", description="score", verbosity=verbosity)
        )
        for place, rows in chunks(files, wanted):
            scored = _scored(model, rows, place, keep)
            if writer is None:
                writer = stack.enter_context(pq.ParquetWriter(temporary, scored.schema))
            writer.write_table(scored.cast(writer.schema))
            progress.advance(len(rows))
        if writer is None:
            raise InputError(f"{files[0].path}: there are no rows to score")
        writer.close()
        temporary.replace(out)
    return total


def _scored(model: ServingModel, rows: pa.Table, place: Place, keep: Sequence[str]) -> pa.Table:
    scores_RT = torch.sigmoid(torch.cat(list(model.logits(rows, place)))).numpy()
    columns = {name: rows.column(name) for name in keep}
    columns |= {
        f"score_{task}": pa.array(np.ascontiguousarray(scores_RT[:, k]))
        for k, task in enumerate(model.signature.tasks)
    }
    return pa.table(columns)


def _check_kept(files: Sequence[SourceFile], keep: Sequence[str]) -> None:
    for name in keep:
        for file in files:
            if name not in file.names:
                raise InputError(
                    f"--keep {name}: {file.path} has no such column; it has "
                    f"{', '.join(file.names[:10])}"
                )


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
