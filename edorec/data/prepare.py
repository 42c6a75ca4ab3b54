"""Raw Parquet files to encoded rows, once for each content.

Three passes, each in bounded memory (chunks of rows; of the ids only hashes and counts): stage the
raw columns (``edorec.data.stage``), count the training ids with DuckDB, which spills to disk
(``edorec.data.vocabulary``), encode (``edorec.data.encode``). All is written to a temporary folder
of the cache and renamed when complete. The cache key covers path, size, time of change and footer
of every file and the parts of the configuration that shape the rows; settings of vocabularies (dim,
cuts, buckets) do not, so one preparation serves every memory policy. Vocabularies made elsewhere
and those that grow (``data.extend``) are part of it.
"""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edorec.data.cache import (
    cache_folder,
    cache_key,
    new_folder,
    remove_leftovers,
    shaping_settings,
)
from edorec.data.columns import ColumnUse, check, check_again, column_uses, list_features
from edorec.data.counting import (
    SPILL,
    build_encoders,
    build_vocabularies,
    find_bins,
    open_database,
    vocabulary_files,
    vocabulary_members,
)
from edorec.data.encode import Encoder, LeakWatch, encode_split
from edorec.data.growth import Growth, open_growth
from edorec.data.prepared import (
    MANIFEST,
    VOCABULARIES,
    Prepared,
    Split,
    copy_vocabularies,
    load_prepared,
)
from edorec.data.schema import DataConfig, FeaturesConfig, Files, TaskConfig, VocabularyConfig
from edorec.data.source import SourceFile, find_files, open_file
from edorec.data.stage import Progress, Staged, stage_split
from edorec.data.stage_columns import build_columns
from edorec.data.vocabulary import RankTable, read_hashes
from edorec.data.vocabulary_file import VocabularyFile, open_vocabulary, take_vocabulary
from edorec.errors import InputError

__all__ = [
    "Prepared",
    "Split",
    "check_schema",
    "copy_vocabularies",
    "load_prepared",
    "prepare",
    "prepare_extra",
]

SPLITS = ("train", "valid", "test")


def check_schema(
    *, data: DataConfig, features: FeaturesConfig, tasks: Mapping[str, TaskConfig]
) -> dict[str, list[SourceFile]]:
    """Opens every file of every split and checks its columns; reads no rows.

    Returns:
        Open files by split.

    Raises:
        ConfigError: with all that does not fit between configuration and files.
        InputError: if a file is missing or damaged, or the training files hold no rows.
    """
    files = {}
    for split in SPLITS:
        chosen: Files | None = getattr(data, split)
        if chosen is not None:
            files[split] = _open(chosen, data=data, key=f"data.{split}")
    uses = _uses(data, features, tasks)
    everything = [file for part in files.values() for file in part]
    check(uses, everything, features=features, missing_columns=data.missing_columns)
    if not any(file.num_rows for file in files["train"]):
        raise InputError(f"data.train: the {len(files['train'])} training files hold no rows")
    return files


def prepare(
    *,
    data: DataConfig,
    features: FeaturesConfig,
    vocabularies: Mapping[str, VocabularyConfig],
    tasks: Mapping[str, TaskConfig],
    on_progress: Progress | None = None,
) -> Prepared:
    """Prepares all splits, or opens what the cache holds for the same input.

    Args:
        data: files and cache.
        features: columns of the model's inputs.
        vocabularies: settings, of which ``file`` alone changes what is prepared.
        tasks: columns of labels.
        on_progress: called with (what, rows done, rows in all).

    Raises:
        ConfigError: with all that does not fit between configuration and files.
        InputError: if a file is damaged or a value is not allowed.
    """
    started = time.perf_counter()
    files = check_schema(data=data, features=features, tasks=tasks)
    growth = open_growth(data, features)
    taken = {
        name: open_vocabulary(v.file, folder=data.folder, key=f"vocabularies.{name}.file")
        for name, v in vocabularies.items()
        if v.file is not None
    }
    settings = shaping_settings(data, features, tasks)
    settings["growth"] = growth and growth.manifest()
    key = cache_key(settings, files | {f"vocabulary {n}": file.parts for n, file in taken.items()})
    remove_leftovers(cache_folder(data))
    folder = cache_folder(data) / key
    parts = [folder / VOCABULARIES / MANIFEST, *(folder / f"{split}.parquet" for split in files)]
    reused = all(part.exists() for part in parts)
    if not reused:
        shutil.rmtree(folder, ignore_errors=True)  # where a part is there, someone removed another
        with new_folder(folder, may_exist=True) as temporary:
            _prepare(
                temporary,
                settings | {"key": key},
                files,
                data,
                taken=taken,
                growth=growth,
                on_progress=on_progress,
            )
    prepared = load_prepared(folder / VOCABULARIES)
    return replace(prepared, seconds=time.perf_counter() - started, reused=reused)


def prepare_extra(
    prepared: Prepared, files: Files, *, data: DataConfig, split: str = "extra"
) -> Prepared:
    """Encodes more files with the vocabularies and statistics of prepared data.

    Args:
        prepared: from ``prepare`` or ``load_prepared``; need not hold any rows.
        files: raw files with the same columns.
        data: folder, cache and memory limit; columns are those of ``prepared``.
        split: name of the new split.

    Returns:
        ``prepared`` with this split alone, and the counts of these files.
    """
    started = time.perf_counter()
    opened = _open(files, data=data, key="data")
    uses = prepared.uses()
    check_again(uses, opened, lists=prepared.list_features, missing_columns=data.missing_columns)
    key = cache_key(
        {"prepared": prepared.key, "missing_columns": data.missing_columns}, {split: opened}
    )
    remove_leftovers(cache_folder(data))
    folder = cache_folder(data) / key
    reused = (folder / "split.json").exists()
    if not reused:
        with new_folder(folder, may_exist=True) as temporary:
            columns = build_columns(uses, prepared.features_config(), prepared.list_features)
            staged = stage_split(split, opened, columns, folder=temporary, keep_texts=False)
            tables = {
                name: RankTable(read_hashes(vocabulary.path))
                for name, vocabulary in prepared.vocabularies.items()
            }
            encoders = build_encoders(uses, prepared.manifest, tables)
            encode_split(split, staged, encoders, path=temporary / f"{split}.parquet")
            for path in (staged.path, *staged.texts.values()):
                path.unlink()
            counts: dict[str, Any] = {}
            _collect(counts, split, staged, encoders)
            summary = {"rows": staged.rows, "counts": counts}
            (temporary / "split.json").write_text(json.dumps(summary))
    summary = json.loads((folder / "split.json").read_text())
    names = tuple(str(file.path) for file in opened)
    part = Split(split, summary["rows"], names, folder / f"{split}.parquet")
    return replace(
        prepared,
        folder=folder,
        key=key,
        splits={split: part},
        counts=summary["counts"] | {"warnings": _missing_columns(summary["counts"])},
        seconds=time.perf_counter() - started,
        reused=reused,
    )


def _uses(
    data: DataConfig, features: FeaturesConfig, tasks: Mapping[str, TaskConfig]
) -> list[ColumnUse]:
    return column_uses(features, tasks, weight=data.weight, group=data.group)


def _open(files: Files, *, data: DataConfig, key: str) -> list[SourceFile]:
    return [open_file(path) for path in find_files(files, folder=data.folder, key=key)]


def _prepare(
    folder: Path,
    settings: Mapping[str, Any],
    files: Mapping[str, Sequence[SourceFile]],
    data: DataConfig,
    *,
    taken: Mapping[str, VocabularyFile],
    growth: Growth | None,
    on_progress: Progress | None,
) -> None:
    """Writes everything into ``folder``."""
    features = FeaturesConfig.model_validate(settings["features"])
    tasks = {name: TaskConfig.model_validate(task) for name, task in settings["tasks"].items()}
    uses = _uses(data, features, tasks)
    lists = list_features(uses, [file for part in files.values() for file in part])
    manifest = {**settings, "list_features": sorted(lists)}
    names = vocabulary_files(vocabulary_members(uses, features, lists, {}))
    (folder / VOCABULARIES).mkdir()
    hashes = {n: take_vocabulary(f, folder / VOCABULARIES / names[n]) for n, f in taken.items()}
    with open_database(folder, memory_limit=data.memory_limit) as connection:
        staged = {
            split: stage_split(
                split,
                part,
                build_columns(uses, features, lists),
                folder=folder,
                keep_texts=split == "train",
                on_progress=on_progress,
            )
            for split, part in files.items()
        }
        edges, bin_counts = find_bins(
            connection, staged["train"], uses, features, growth.edges() if growth else {}
        )
        manifest["vocabularies"], tables = build_vocabularies(
            connection,
            folder / VOCABULARIES,
            staged=staged["train"],
            members=vocabulary_members(uses, features, lists, bin_counts),
            taken=hashes,
            growth=growth,
        )
    shutil.rmtree(folder / SPILL)
    manifest["bin_edges"] = {name: values.tolist() for name, values in edges.items()}
    manifest["dense_scale"] = {n: m.scale() for n, m in staged["train"].moments.items()}
    manifest["bucket_ids"] = {name: table.num_ids for name, table in tables.items()}
    manifest["rank_maps"] = {}
    if growth is not None:
        growth.keep_statistics(manifest)
        manifest["rank_maps"] = growth.write_rank_maps(folder / VOCABULARIES, tables)
    manifest["counts"] = _encode(folder, staged, uses, manifest, tables, on_progress)
    manifest["splits"] = {
        split: {"rows": part.rows, "files": [str(file.path) for file in files[split]]}
        for split, part in staged.items()
    }
    (folder / VOCABULARIES / MANIFEST).write_text(json.dumps(manifest, indent=1))


def _encode(
    folder: Path,
    staged: Mapping[str, Staged],
    uses: Sequence[ColumnUse],
    manifest: Mapping[str, Any],
    tables: Mapping[str, RankTable],
    on_progress: Progress | None,
) -> dict[str, Any]:
    """Encodes all splits, removes the staged rows and returns the counts."""
    num_ids = {
        use.name: tables[manifest["features"]["sparse"][use.name]["vocabulary"] or use.name].num_ids
        for use in uses
        if use.kind in ("id", "bins") and use.name not in manifest["list_features"]
    }
    watch = LeakWatch(uses, num_ids=num_ids, num_rows=staged["train"].rows)
    counts: dict[str, Any] = {}
    for split, part in staged.items():
        encoders = build_encoders(uses, manifest, tables)
        encode_split(
            split,
            part,
            encoders,
            path=folder / f"{split}.parquet",
            watch=watch if split == "train" else None,
            on_progress=on_progress,
        )
        _collect(counts, split, part, encoders)
        for path in (part.path, *part.texts.values()):
            path.unlink()
    counts["warnings"] = [*_missing_columns(counts), *watch.warnings()]
    return counts


def _collect(
    counts: dict[str, Any], split: str, staged: Staged, encoders: Sequence[Encoder]
) -> None:
    """Adds a split's counts as ``counts[event][split][name]``; zeros of look-ups are kept."""
    for event, by_name in staged.counts.items():
        counts.setdefault(event, {})[split] = dict(by_name)
    for encoder in encoders:
        for event, count in encoder.counts.items():
            counts.setdefault(event, {}).setdefault(split, {})[encoder.use.name] = count


def _missing_columns(counts: Mapping[str, Any]) -> list[str]:
    """A warning for each feature whose column some files lack."""
    return [
        f"feature {name} is null in {rows} rows of {split}: their files lack its column"
        for split, by_name in counts.get("missing_column_rows", {}).items()
        for name, rows in by_name.items()
    ]
