"""Scores of Parquet files, streamed to a file in the order of the rows."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from edorec.data.source import SourceFile
from edorec.data.stage_columns import Place
from edorec.errors import InputError
from edorec.progress import Progress
from edorec.serving.files import chunks
from edorec.serving.model import ServingModel


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
        files: to score; they may have no rows.
        out: Parquet file to write, under a temporary name until it is complete.
        keep: columns that are copied as they are, such as keys.
        verbosity: below 0 shows no progress.

    Returns:
        The number of rows.

    Raises:
        ConfigError: if a column of the model is missing or of a type that does not fit.
        InputError: if a column to keep is missing, differs between files or has the name of a
            score, or ``out`` is one of the files or cannot be written.
    """
    model.reader.check(list(files))
    schema = _schema(model, files, list(dict.fromkeys(keep)))
    if any(out.resolve() == file.path.resolve() for file in files):
        raise InputError(f"--output {out} is one of the files to score; give another name")
    total = sum(file.num_rows for file in files)
    temporary = out.with_name(f"{out.name}.tmp")
    progress = Progress(total=total, unit="rows", description="score", verbosity=verbosity)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            with progress, pq.ParquetWriter(temporary, schema) as writer:
                for place, rows in chunks(files, [*model.reader.columns, *keep]):
                    writer.write_table(_scored(model, rows, place, schema))
                    progress.advance(len(rows))
            temporary.replace(out)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error}") from error
    return total


def _schema(model: ServingModel, files: Sequence[SourceFile], keep: Sequence[str]) -> pa.Schema:
    """Columns to keep, then scores."""
    scores = [f"score_{task}" for task in model.signature.tasks]
    fields = [(name, _type_of(name, files)) for name in keep]
    if both := [name for name in keep if name in scores]:
        raise InputError(f"--keep {both[0]}: the model writes a column of that name")
    return pa.schema([*fields, *((name, pa.float32()) for name in scores)])


def _type_of(column: str, files: Sequence[SourceFile]) -> pa.DataType:
    """Type of a column to keep, which must be the same in all files."""
    for file in files:
        if file.names.count(column) != 1:
            have = f"has {file.names.count(column)} columns of that name"
            raise InputError(
                f"--keep {column}: {file.path} {have}; it has {', '.join(file.names[:10])}"
            )
    first = files[0]
    kind = first.types[first.names.index(column)]
    for file in files:
        other = file.types[file.names.index(column)]
        if other != kind:
            raise InputError(
                f"--keep {column} is {kind} in {first.path} and {other} in {file.path}"
            )
    return kind


def _scored(model: ServingModel, rows: pa.Table, place: Place, schema: pa.Schema) -> pa.Table:
    scores_RT = torch.sigmoid(torch.cat(list(model.logits(rows, place)))).numpy()
    num_kept = len(schema) - scores_RT.shape[1]
    kept = [rows.column(name) for name in schema.names[:num_kept]]
    scores = [pa.array(np.ascontiguousarray(scores_R)) for scores_R in scores_RT.T]
    return pa.table([*kept, *scores], schema=schema)
