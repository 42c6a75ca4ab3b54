"""What a run and a checkpoint must agree on before one goes on from the other."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pydantic import ValidationError

from edorec.checkpoints.folder import Saved
from edorec.config import RunConfig
from edorec.data.prepared import Prepared
from edorec.embedding.snapshot import band_pages
from edorec.errors import InputError
from edorec.recommender import Recommender

# Keys that change nothing of what is trained; what the paths lead to is compared by content.
FREE = {
    "name",
    "data.folder",
    "data.train",
    "data.valid",
    "data.test",
    "data.cache",
    "data.memory_limit",
    "embedding.sharding",
    "train.eval_batch_size",
    "train.num_threads",
    "train.tensorboard",
    "checkpoint",
    "memory.disk",
    "memory.placement",
    "memory.monitor",
    "memory.uvm",
}


def identity(config: RunConfig, prepared: Prepared, recommender: Recommender) -> dict[str, Any]:
    """Configuration, data, tables and dense weights of a run, as JSON can hold them."""
    return {
        "config": config.model_dump(mode="json"),
        "vocabularies": {
            name: {"ids": vocabulary.num_ids, "content": _digest(vocabulary.path)}
            for name, vocabulary in prepared.vocabularies.items()
        },
        "splits": {name: _rows(split.path) for name, split in prepared.splits.items()},
        "tables": _tables(recommender),
        "dense": {
            name: f"{str(weight.dtype).removeprefix('torch.')} {list(weight.shape)}"
            for name, weight in recommender.model.state_dict().items()
        },
    }


def _tables(recommender: Recommender) -> dict[str, str]:
    """Rows of each band in all processes; for the first.

    Without formats: they follow from the configuration, unless memory ran short.
    """
    num_rows: dict[str, int] = {}
    for part in recommender.processes.gather(band_pages(recommender.tables)):
        for band in part:
            key = f"{band.table}.{band.band.split('_')[0]}"
            num_rows[key] = num_rows.get(key, 0) + band.num_rows
    return {name: f"{rows} rows" for name, rows in num_rows.items()}


def check_identity(saved: Saved, here: dict[str, Any]) -> None:
    """Compares a checkpoint's identity with that of the run that would go on from it.

    Raises:
        InputError: with all differences, naming both sides.
    """
    there, folder = saved.manifest["identity"], saved.folder
    try:
        settings = RunConfig.model_validate(there["config"]).model_dump(mode="json")
    except ValidationError as error:
        raise InputError(
            f"{folder} was saved by edorec with other configuration keys: {error}"
        ) from error
    free = FREE | ({"train.epochs"} if settings["train"]["decay"] == "none" else set())
    problems = [
        line
        for key, line in _differences(settings, here["config"], "")
        if not any(key == part or key.startswith(f"{part}.") for part in free)
        # The planner decides placement by the memory that is free, which may differ from then.
        and not (key.startswith("memory.tables.") and key.endswith(".placement"))
    ]
    for part, what in (
        ("vocabularies", "vocabulary"),
        ("splits", "split"),
        ("tables", "table"),
        ("dense", "dense weight"),
    ):
        problems += [f"{what} {line}" for _, line in _differences(there[part], here[part], "")]
    if problems:
        raise InputError(
            f"the run cannot go on from {folder}, because they differ:\n  "
            + "\n  ".join(problems)
            + "\nUndo the changes, or begin a new run in another --run-dir"
        )


def _differences(there: Any, here: Any, path: str) -> Iterator[tuple[str, str]]:
    """(key, sentence) of every difference; what is on one side only is named once."""
    if isinstance(there, dict) and isinstance(here, dict):
        for name in [*there, *(name for name in here if name not in there)]:
            key = f"{path}.{name}" if path else name
            if name not in here or name not in there:
                side = "there, and absent here" if name in there else "here, and absent there"
                value = (there if name in there else here)[name]
                yield key, f"{key} is {'' if isinstance(value, dict) else f'{value} '}{side}"
            else:
                yield from _differences(there[name], here[name], key)
    elif there != here:
        yield path, f"{path} is {there} there and {here} here"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _rows(path: Path) -> dict[str, Any]:
    """Number of encoded rows, and a digest of the sizes and ranges of their columns."""
    metadata = pq.read_metadata(path)
    digest = hashlib.sha256()
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            ranges = chunk.statistics and (chunk.statistics.min, chunk.statistics.max)
            figures = (chunk.num_values, chunk.total_compressed_size, ranges)
            digest.update(repr(figures).encode())
    return {"rows": metadata.num_rows, "content": digest.hexdigest()[:16]}
