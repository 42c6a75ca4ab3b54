"""From a finished run to a serving folder, complete and checked, or not at all."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
from edorec.checkpoint import load_model, saved_formats
from edorec.config import RunConfig, load_config
from edorec.data.cache import new_folder, remove_leftovers
from edorec.data.prepared import Prepared, load_prepared
from edorec.data.schema import sequence_length
from edorec.data.source import SourceFile
from edorec.data.vocabulary import Vocabulary, read_hashes, safe_file_name
from edorec.devices import set_num_threads
from edorec.embedding.bands import BandMemory
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.placement import moved_to_cpu
from edorec.embedding.row_tables import EdoTableConfig
from edorec.errors import InputError
from edorec.evaluate import evaluate
from edorec.recommender import Recommender, build_recommender
from edorec.serving.card import model_card
from edorec.serving.dense import DenseProgram, save_program
from edorec.serving.evaluation import evaluate_model
from edorec.serving.files import open_files
from edorec.serving.folder import CARD, DENSE, FORMAT, INDEX, MANIFEST, TABLES, file_entries
from edorec.serving.formats import (
    AS_TRAINED,
    Formats,
    Spec,
    bytes_of,
    parse_spec,
    served_format,
)
from edorec.serving.index import build_index
from edorec.serving.model import ServingModel
from edorec.serving.pq import centroid_bytes, quantize
from edorec.serving.tables import PQ, ServedBand, ServedTable, decode_rows, write_rows

MAX_AUC_LOSS = 0.002
# What ``auto`` tries, smallest first; rows of validation; least share of the bytes worth it.
AUTO_SPECS = ("int8:100:pq", "int4:30:int2", "int4", "int8")
AUTO_ROWS = 200_000
AUTO_LEAST_SHARE = 0.01
I64 = npt.NDArray[np.int64]


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

    def vocabulary_of(self, table: str) -> Vocabulary:
        """The vocabulary whose ids a table holds."""
        return self.prepared.vocabularies[self.recommender.vocabulary_of(table)]

    def dense_program(self) -> DenseProgram:
        """The dense part as it is served."""
        inputs = [
            (self.recommender.dims[f.vocabulary or name], sequence_length(f))
            for name, f in self.recommender.lookups.items()
        ]
        rates = [task.sampling_rate for task in self.config.tasks.values()]
        return DenseProgram(self.recommender.model, inputs, np.log(rates).tolist())


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
    train = config.train.model_copy(update={"device": "cpu"})
    cpu = config.model_copy(update={"train": train, "memory": moved_to_cpu(config.memory)})
    best = folder / "checkpoints" / "best.pt"
    recommender = build_recommender(
        cpu, prepared.vocabularies, device=torch.device("cpu"), formats=saved_formats(best)
    )
    load_model(best, model=recommender.model, tables=recommender.tables)
    return Run(folder, config, prepared, recommender)


def export(
    run_dir: Path,
    out: Path,
    *,
    formats: Formats,
    min_count: int = 1,
    data: list[str] | None = None,
    max_auc_loss: float = MAX_AUC_LOSS,
    verbosity: int = 0,
) -> dict[str, Any]:
    """Writes the serving folder of a run.

    Args:
        run_dir: folder of the run.
        out: folder to write; must not exist.
        formats: of the tables.
        min_count: ids that training saw less often are served by their bucket's row.
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
    names = [config.name for config, _ in _memories(run)]
    if unknown := sorted(set(formats.tables) - set(names)):
        raise InputError(f"--format {unknown[0]}: there is no such table; {', '.join(names)} are")
    split = next(s for s in ("test", "valid", "train") if getattr(run.config.data, s) is not None)
    before = evaluate(run_dir, files=data, split=split, verbosity=verbosity)
    files = _split_files(run, split) if data is None else open_files(data, key="--data")
    remove_leftovers(out.parent)
    with new_folder(out) as folder:
        (folder / TABLES).mkdir()
        (folder / INDEX).mkdir()
        manifest = _describe(run)
        num_dense = len(run.config.features.dense)
        save_program(folder / DENSE, run.dense_program(), num_dense=num_dense)
        if formats.is_auto:
            formats = _smallest_formats(
                run,
                folder,
                manifest,
                formats,
                min_count=min_count,
                max_auc_loss=max_auc_loss,
                verbosity=verbosity,
            )
        _write_tables(run, folder, manifest, formats, min_count=min_count)
        _save(folder, manifest)
        after = _aucs(run, folder, files, verbosity=verbosity)
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


def _split_files(run: Run, split: str) -> list[SourceFile]:
    data = run.config.data
    return open_files(getattr(data, split), folder=data.folder, key=f"data.{split}")


def _aucs(
    run: Run,
    folder: Path,
    files: list[SourceFile],
    *,
    verbosity: int,
    max_rows: int | None = None,
) -> dict[str, float | None]:
    """AUC of each task of the model in ``folder``."""
    tasks = run.config.tasks
    return evaluate_model(
        ServingModel(folder, unfinished=True),
        files,
        labels={name: task.label for name, task in tasks.items()},
        sampling_rates={name: task.sampling_rate for name, task in tasks.items()},
        weight=run.config.data.weight,
        verbosity=verbosity,
        max_rows=max_rows,
    )


def _smallest_formats(
    run: Run,
    folder: Path,
    manifest: dict[str, Any],
    formats: Formats,
    *,
    min_count: int,
    max_auc_loss: float,
    verbosity: int,
) -> Formats:
    """For each table the smallest formats whose AUC on the validation split stays in the bound.

    Tables are decided one after the other, the largest first; each may use up the part of the bound
    that belongs to its share of the bytes, and what those before have left.

    Raises:
        InputError: if the run has no validation split.
    """
    if run.config.data.valid is None:
        raise InputError("--format auto chooses by the validation split, and data.valid is not set")
    files = _split_files(run, "valid")
    sizes = {c.name: sum(m.weights_bytes for m in memories) for c, memories in _memories(run)}
    tables, used = dict(formats.tables), 0
    base: dict[str, float | None] | None = None
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        used += sizes[name]
        if name in tables or sizes[name] < AUTO_LEAST_SHARE * sum(sizes.values()):
            continue
        allowed = max_auc_loss * used / sum(sizes.values())
        for spec in _by_size(run, name, formats.default, min_count=min_count):
            tried = Formats(formats.default, {**tables, name: spec})
            if base is None:
                _write_tables(run, folder, manifest, formats, min_count=min_count)
                _save(folder, manifest)
                base = _aucs(run, folder, files, verbosity=-1, max_rows=AUTO_ROWS)
            _write_tables(run, folder, manifest, tried, min_count=min_count, only=name)
            _save(folder, manifest)
            found = _aucs(run, folder, files, verbosity=-1, max_rows=AUTO_ROWS)
            loss = max((base[t] or 0.0) - (found[t] or 0.0) for t in found)
            if verbosity >= 0:
                print(f"auto: {name} as {spec}: AUC loss {loss:.5f}, allowed {allowed:.5f}")
            if loss <= allowed:
                tables[name] = spec
                break
    return Formats(formats.default, tables)


def _by_size(run: Run, name: str, default: Spec, *, min_count: int) -> list[Spec]:
    """What ``auto`` tries for a table: specs that take fewer bytes than ``default``, ascending."""

    def num_bytes(spec: Spec) -> int:
        parts, dim = _parts(run, name, spec, min_count=min_count)
        sizes = [(part.end - part.start) * bytes_of(part.format, dim) for part in parts]
        return sum(sizes) + sum(centroid_bytes(dim) for part in parts if part.format == PQ)

    specs = [parse_spec(text, text) for text in AUTO_SPECS]
    smaller = [spec for spec in specs if num_bytes(spec) < num_bytes(default)]
    return sorted(smaller, key=num_bytes)


def _memories(run: Run) -> list[tuple[EdoTableConfig, list[BandMemory]]]:
    rows = run.tables.tables
    return list(zip(rows.configs, rows.memories, strict=True))


def _describe(run: Run) -> dict[str, Any]:
    """The manifest without tables and figures."""
    features, manifest = run.config.features, run.prepared.manifest
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
        "lookups": [
            {
                "feature": run.recommender.feature_of(name),
                "vocabulary": f.vocabulary or name,
                "pooling": f.pooling,
                "max_length": sequence_length(f),
            }
            for name, f in run.recommender.lookups.items()
        ],
        "training": {
            "rows": manifest["splits"]["train"]["rows"],
            "files": manifest["splits"]["train"]["files"],
            "ids": run.recommender.num_ids,
        },
    }


def _write_tables(
    run: Run,
    folder: Path,
    manifest: dict[str, Any],
    formats: Formats,
    *,
    min_count: int,
    only: str | None = None,
) -> None:
    """Writes all tables, or one in place of what is there; notes them in the manifest."""
    before = {entry["name"]: entry for entry in manifest.get("tables", [])}
    tables = []
    for number, (config, _) in enumerate(_memories(run)):
        if only not in (None, config.name):
            tables.append(before[config.name])
            continue
        stem = safe_file_name(config.name, number)
        for path in (folder / TABLES).glob(f"{stem}.*"):
            path.unlink()
        spec = formats.of(config.name)
        table = _write_table(run, folder, stem, config, spec, min_count=min_count)
        tables.append({**asdict(table), "index": stem})
    manifest["tables"] = tables


@dataclass(frozen=True)
class _Segment:
    """Ranks of a table that lie in one trained band and are served in one format."""

    memory: BandMemory
    start: int
    end: int
    format: str


def _parts(run: Run, name: str, spec: Spec, *, min_count: int) -> tuple[list[_Segment], int]:
    """Served rows of a table cut where the trained band or the served format changes; its dim.

    The last part is the buckets, which lie behind all own rows, in the last trained band.
    """
    config, memories = next(pair for pair in _memories(run) if pair[0].name == name)
    row_map, vocabulary = run.recommender.row_maps[name], run.vocabulary_of(name)
    num_ids = min(row_map.num_own_rows, vocabulary.num_with_count(min_count))
    dim = config.embedding_dim
    parts = []
    for memory in memories:
        start, end = memory.first_row, min(memory.first_row + memory.band.num_rows, num_ids)
        trained = config.qat or memory.band.format
        for least, wanted in spec.bands:
            stop = min(end, vocabulary.num_with_count(least))
            if stop > start:
                to_format = served_format(wanted, trained=trained, dim=dim)
                parts.append(_Segment(memory, start, stop, to_format))
                start = stop
    hottest = AS_TRAINED if spec.bands[0][1] == PQ else spec.bands[0][1]
    trained = config.qat or memories[-1].band.format
    to_format = served_format(hottest, trained=trained, dim=dim)
    parts.append(_Segment(memories[-1], row_map.num_own_rows, row_map.num_rows, to_format))
    return parts, dim


def _write_table(
    run: Run,
    folder: Path,
    stem: str,
    config: EdoTableConfig,
    spec: Spec,
    *,
    min_count: int,
) -> ServedTable:
    """Rows and index of one table, both in the order of the index."""
    row_map = run.recommender.row_maps[config.name]
    vocabulary = run.vocabulary_of(config.name)
    (*segments, buckets), dim = _parts(run, config.name, spec, min_count=min_count)
    hashes = read_hashes(vocabulary.path)
    index, order = build_index([hashes[s.start : s.end] for s in segments])
    for name, array in index.arrays().items():
        np.save(folder / INDEX / f"{stem}.{name}.npy", array, allow_pickle=False)
    ranks = [order[segment.start : segment.end] for segment in segments]
    ranks.append(np.arange(buckets.start, buckets.end))
    bands = [
        _write_band(folder, f"{TABLES}/{stem}.{number}", segment, rows, dim, vocabulary.counts)
        for number, (segment, rows) in enumerate(zip([*segments, buckets], ranks, strict=True))
    ]
    return ServedTable(config.name, dim, row_map.num_buckets, tuple(bands))


def _write_band(
    folder: Path, file: str, segment: _Segment, ranks: I64, dim: int, counts: I64
) -> ServedBand:
    """Rows of one segment, in the order of ``ranks``."""
    memory, rows = segment.memory, ranks - segment.memory.first_row
    path = folder / f"{file}.rows"
    if segment.format != PQ:
        write_rows(
            path,
            memory.rows_RS,
            rows,
            from_format=memory.band.format,
            to_format=segment.format,
            dim=dim,
        )
        return ServedBand(f"{file}.rows", segment.format, len(rows))
    values = decode_rows(memory.rows_RS, rows, row_format=memory.band.format, dim=dim)
    codes, centroids = quantize(values.numpy(), np.sqrt(counts[ranks]))
    path.write_bytes(codes.tobytes())
    np.save(folder / f"{file}.centroids.npy", centroids.astype(np.float16), allow_pickle=False)
    return ServedBand(f"{file}.rows", PQ, len(rows), f"{file}.centroids.npy")


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
