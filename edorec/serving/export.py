"""From a finished run to a serving folder, complete and checked, or not at all."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.console import Console

from edorec import __version__
from edorec.checkpoint import load_model
from edorec.config import RunConfig, load_config
from edorec.data.cache import new_folder
from edorec.data.prepared import Prepared, load_prepared
from edorec.data.vocabulary import read_hashes, safe_file_name
from edorec.devices import set_num_threads
from edorec.embedding.bands import BandMemory
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.formats import FORMATS
from edorec.errors import InputError
from edorec.evaluate import evaluate
from edorec.recommender import Recommender, build_recommender
from edorec.serving.card import model_card
from edorec.serving.dense import DenseProgram, save_program
from edorec.serving.evaluation import evaluate_model, open_files
from edorec.serving.folder import CARD, DENSE, FORMAT, INDEX, MANIFEST, TABLES, file_entries
from edorec.serving.index import build_index
from edorec.serving.model import ServingModel
from edorec.serving.tables import ServedBand, ServedTable, write_rows

AS_TRAINED = "as-trained"
CHOICES = (AS_TRAINED, *FORMATS)
MAX_AUC_LOSS = 0.002
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Formats:
    """Which format each band is served in.

    Attributes:
        default: of all bands that ``chosen`` does not name.
        chosen: by (table, band number), or (table, None) for all bands of a table.
    """

    default: str = AS_TRAINED
    chosen: dict[tuple[str, int | None], str] = field(default_factory=dict)

    def of(self, table: str, band: int, *, trained: str, dim: int) -> str:
        """The format to write; never one that takes more bytes than the trained one."""
        wanted = self.chosen.get((table, band)) or self.chosen.get((table, None)) or self.default
        if wanted == AS_TRAINED:
            return trained
        larger = FORMATS[wanted].row_bytes(dim) >= FORMATS[trained].row_bytes(dim)
        return trained if larger else wanted


def parse_formats(texts: list[str]) -> Formats:
    """Formats from ``FORMAT``, ``TABLE=FORMAT`` and ``TABLE.BAND=FORMAT``.

    Raises:
        InputError: naming the text that is none of these.
    """
    default = AS_TRAINED
    chosen: dict[tuple[str, int | None], str] = {}
    for text in texts:
        place, equals, name = text.rpartition("=")
        if name not in CHOICES:
            raise InputError(f"--format {text}: {name} is none of {', '.join(CHOICES)}")
        if not equals:
            default = name
            continue
        table, dot, band = place.rpartition(".")
        if dot and band.isdecimal():
            chosen[table, int(band)] = name
        else:
            chosen[place, None] = name
    return Formats(default, chosen)


@dataclass(frozen=True)
class Run:
    """A finished run, loaded on the CPU."""

    folder: Path
    config: RunConfig
    prepared: Prepared
    recommender: Recommender

    @property
    def tables(self) -> EdoEmbeddingBagCollection:
        """Its tables."""
        assert isinstance(self.recommender.tables, EdoEmbeddingBagCollection)
        return self.recommender.tables


def load_run(folder: Path) -> Run:
    """The best model of a run.

    Raises:
        InputError: if the folder holds no finished run.
    """
    if not (folder / "config.yaml").exists():
        raise InputError(f"{folder} holds no run (config.yaml is missing)")
    config = load_config(str(folder / "config.yaml"), []).config
    set_num_threads(config.train.num_threads)
    prepared = load_prepared(folder / "vocabularies")
    cpu = config.model_copy(update={"train": config.train.model_copy(update={"device": "cpu"})})
    recommender = build_recommender(cpu, prepared.vocabularies, device=torch.device("cpu"))
    load_model(
        folder / "checkpoints" / "best.pt", model=recommender.model, tables=recommender.tables
    )
    return Run(folder, config, prepared, recommender)


def export(
    run_dir: Path,
    out: Path,
    *,
    formats: Formats,
    data: list[str] | None = None,
    max_auc_loss: float = MAX_AUC_LOSS,
    verbosity: int = 0,
) -> dict[str, Any]:
    """Writes the serving folder of a run.

    Args:
        run_dir: folder of the run.
        out: folder to write; must not exist.
        formats: of the tables.
        data: files with labels to check the model on; default the run's own test or else
            validation split.
        max_auc_loss: most that the AUC of any task may fall by.
        verbosity: -1 quiet, 0 normal, 1 verbose.

    Returns:
        The content of model.json.

    Raises:
        InputError: if the run is not complete, ``out`` exists, a format names no table, or the AUC
            falls by more than the bound; nothing is written then.
    """
    if out.exists():
        raise InputError(f"{out} exists; give another --out, or remove it")
    run = load_run(run_dir)
    _check_names(formats, run)
    split = next(s for s in ("test", "valid", "train") if getattr(run.config.data, s) is not None)
    before = evaluate(run_dir, files=data, split=split, verbosity=verbosity)
    with new_folder(out) as folder:
        manifest = _write(run, folder, formats)
        _save(folder, manifest)
        files = open_files(
            data or getattr(run.config.data, split),
            folder="." if data else run.config.data.folder,
            key="--data" if data else f"data.{split}",
        )
        after = evaluate_model(
            ServingModel(folder),
            files,
            labels={name: task.label for name, task in run.config.tasks.items()},
            sampling_rates={n: task.sampling_rate for n, task in run.config.tasks.items()},
            weight=run.config.data.weight,
            verbosity=verbosity,
        )
        manifest["evaluation"] = {
            "files": before["files"],
            "rows": before["rows"],
            "max_auc_loss": max_auc_loss,
            "tasks": {
                task: {"auc_before": metrics["auc"], "auc_after": after[task]}
                for task, metrics in before["tasks"].items()
            },
        }
        _check_loss(manifest["evaluation"])
        _save(folder, manifest)
        folder.chmod(0o755)  # a server may run as another user
    return manifest


def _check_names(formats: Formats, run: Run) -> None:
    bands = {c.name: len(m) for c, m in _memories(run)}
    for table, band in formats.chosen:
        if table not in bands:
            raise InputError(f"--format {table}: there is no such table; {', '.join(bands)} are")
        if band is not None and band >= bands[table]:
            raise InputError(f"--format {table}.{band}: the table has {bands[table]} bands, from 0")


def _memories(run: Run) -> list[tuple[Any, list[BandMemory]]]:
    rows = run.tables.tables
    return list(zip(rows.configs, rows.memories, strict=True))


def _write(run: Run, folder: Path, formats: Formats) -> dict[str, Any]:
    """Writes tables, indexes and dense part; returns the manifest without figures."""
    (folder / TABLES).mkdir()
    (folder / INDEX).mkdir()
    tables = []
    for number, (config, memories) in enumerate(_memories(run)):
        stem = safe_file_name(config.name, number)
        table = _write_table(run, folder, stem, config, memories, formats)
        tables.append({**asdict(table), "index": stem})
    features = run.config.features
    dims = [run.recommender.dims[f.vocabulary or n] for n, f in features.sparse.items()]
    rates = [task.sampling_rate for task in run.config.tasks.values()]
    program = DenseProgram(run.recommender.model, dims, np.log(rates).tolist())
    save_program(folder / DENSE, program, num_dense=len(features.dense), num_embedded=sum(dims))
    manifest = run.prepared.manifest
    return {
        "format": FORMAT,
        "edorec": __version__,
        "name": run.config.name or run.folder.name,
        "run": run.folder.name,
        "created": f"{datetime.now().astimezone():%Y-%m-%dT%H:%M:%S%z}",
        "signature": {"inputs": _inputs(run), "tasks": list(run.config.tasks)},
        "reading": {
            "features": features.model_dump(mode="json"),
            "lists": sorted(run.prepared.list_features),
            "bin_edges": manifest["bin_edges"],
            "dense_scale": manifest["dense_scale"],
            "missing_columns": run.config.data.missing_columns,
        },
        "features": [
            {"name": name, "vocabulary": f.vocabulary or name, "pooling": f.pooling}
            for name, f in features.sparse.items()
        ],
        "tables": tables,
        "training": {
            "rows": run.prepared.manifest["splits"]["train"]["rows"],
            "files": run.prepared.manifest["splits"]["train"]["files"],
            "ids": {name: v.num_ids for name, v in run.prepared.vocabularies.items()},
        },
    }


def _write_table(
    run: Run,
    folder: Path,
    stem: str,
    config: Any,
    memories: list[BandMemory],
    formats: Formats,
) -> ServedTable:
    """Rows and index of one table, both in the order of the index."""
    row_map = run.recommender.row_maps[config.name]
    hashes = read_hashes(run.prepared.vocabularies[config.name].path)[: row_map.num_own_rows]
    ends = [min(m.first_row + m.band.num_rows, row_map.num_own_rows) for m in memories]
    starts = [min(m.first_row, row_map.num_own_rows) for m in memories]
    index, order = build_index([hashes[a:b] for a, b in zip(starts, ends, strict=True) if b > a])
    for name, array in index.arrays().items():
        np.save(folder / INDEX / f"{stem}.{name}.npy", array, allow_pickle=False)
    bands = []
    for number, (memory, start, end) in enumerate(zip(memories, starts, ends, strict=True)):
        # The last band may hold own rows and buckets, or buckets alone.
        buckets = np.arange(max(memory.first_row, end), memory.first_row + memory.band.num_rows)
        rows = np.concatenate([order[start:end], buckets]) - memory.first_row
        trained = config.qat or memory.band.format
        if FORMATS[trained].row_bytes(config.embedding_dim) > memory.row_bytes:
            trained = memory.band.format
        to_format = formats.of(config.name, number, trained=trained, dim=config.embedding_dim)
        file = f"{TABLES}/{stem}.{number}.rows"
        write_rows(
            folder / file,
            memory.rows_RS,
            rows,
            from_format=memory.band.format,
            to_format=to_format,
            dim=config.embedding_dim,
        )
        bands.append(ServedBand(file, to_format, len(rows)))
    return ServedTable(config.name, config.embedding_dim, row_map.num_buckets, tuple(bands))


def _inputs(run: Run) -> list[dict[str, Any]]:
    """Columns that the model reads, in the order of the configuration."""
    inputs: dict[str, dict[str, Any]] = {}
    for use in run.prepared.uses():
        if use.kind not in ("id", "bins", "dense"):
            continue
        kind, column_type = "number", "float64"
        if use.kind == "id":
            kind = "ids" if use.name in run.prepared.list_features else "id"
            vocabulary = run.prepared.feature_vocabulary[use.name]
            column_type = _id_type(run.prepared.vocabularies[vocabulary].path)
        entry = inputs.setdefault(
            use.column, {"column": use.column, "kind": kind, "type": column_type, "features": []}
        )
        entry["features"].append(use.name)
        if kind != "number":  # a column that is also read as a number is an id
            entry |= {"kind": kind, "type": column_type}
    return list(inputs.values())


def _id_type(vocabulary: Path) -> str:
    return "string" if pa.types.is_string(pq.read_schema(vocabulary).field("id").type) else "int64"


def _save(folder: Path, manifest: dict[str, Any]) -> None:
    """Writes card and manifest, which lists all other files."""
    if "evaluation" in manifest:
        (folder / CARD).write_text(model_card(manifest), encoding="utf-8")
    manifest["files"] = file_entries(folder)
    text = json.dumps(manifest, indent=1, allow_nan=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _check_loss(evaluation: Mapping[str, Any]) -> None:
    """Refuses a model that has lost more than the bound."""
    for task, aucs in evaluation["tasks"].items():
        before, after = aucs["auc_before"], aucs["auc_after"]
        if before is None or after is None:
            continue
        if before - after > evaluation["max_auc_loss"]:
            raise InputError(
                f"the AUC of {task} falls from {before:.5f} to {after:.5f} in these formats, and "
                f"--max-auc-loss is {evaluation['max_auc_loss']:g}; choose larger formats with "
                "--format, or another bound"
            )


def print_export(manifest: Mapping[str, Any], out: Path) -> None:
    """Prints the sizes of the folder and the AUC before and after."""
    console = Console()
    console.print(model_card(manifest), markup=False, highlight=False, soft_wrap=True)
    console.print(f"model: {out}", soft_wrap=True, highlight=False)
