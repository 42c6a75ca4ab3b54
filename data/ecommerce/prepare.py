"""Makes the shop log: ``python data/ecommerce/prepare.py [--preset default|small|large]``.

Rows come in blocks, each drawn from a generator of its own (seed, first row), so the files do not
depend on threads or on memory. A folder is built under another name and renamed when complete;
its manifest says what made it, and a second run finds it and does nothing. README.md describes
the columns.
"""

import argparse
import json
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from impressions import Impressions, make_impressions
from shop import SYLLABLES, TASKS, Ids, Shop

from edorec.errors import InputError

GENERATOR = 1  # a change of the files' content needs a new number and new published results
SEED = 1
BLOCK_ROWS = 65_536  # rows drawn at a time; a row group
BLOCKS_PER_FILE = 4
START_MS = 1_759_276_800_000  # 2025-10-01 00:00 UTC


@dataclass(frozen=True)
class Preset:
    """A size of the log.

    Attributes:
        folder: where it goes, beside this script.
        train_rows: training rows; a tenth as many to validate, a fifth as many to test.
        scale: factor on the number of users, items, queries, sellers ...
        exponent: of their Zipf distributions; None for each one's own.
    """

    folder: str
    train_rows: int
    scale: float
    exponent: float | None = None


PRESETS = {
    "default": Preset("log", 1_000_000, 1.0),
    "small": Preset("log-small", 20_000, 0.02),
    "large": Preset("log-large", 14_000_000, 60.0, 0.6),
}

INT64_COLUMNS = ("user", "item", "seller", "brand", "category", "campaign", "coupon")
INT32_COLUMNS = ("warehouse", "position", "hour", "weekday")
NUM_WORDS = {"query": 3, "city": 2, "device": 2, "referrer": 2, "department": 1, "region": 1}
MEMBERSHIPS = ("none", "basic", "silver", "gold", "staff")
LISTS = ("viewed", "bought")
NUMBERS = ("price", "discount", "hour_of_day", "rating", "delivery_days", "session_depth")
WORDS = pa.array([first + second for first in SYLLABLES for second in SYLLABLES])
SCHEMA = pa.schema(
    [("time_ms", pa.int64())]
    + [(f"{name}_id", pa.int64()) for name in INT64_COLUMNS]
    + [(name, pa.int32()) for name in INT32_COLUMNS]
    + [(name, pa.string()) for name in (*NUM_WORDS, "membership")]
    + [(name, pa.list_(pa.int64())) for name in LISTS]
    + [(name, pa.float32()) for name in NUMBERS]
    + [(f"label_{task}", pa.int8()) for task in TASKS]
)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Makes a seeded shop log as Parquet.")
    parser.add_argument("--preset", choices=list(PRESETS), default="default")
    parser.add_argument("--rows", type=int, help="training rows instead of the preset's")
    parser.add_argument("--seed", type=int, default=SEED, help=f"default {SEED}")
    parser.add_argument("--out", type=Path, help="folder to write; default beside this script")
    options = parser.parse_args(arguments)
    preset = PRESETS[options.preset]
    try:
        make_log(
            options.out or Path(__file__).parent / preset.folder,
            preset=options.preset,
            train_rows=preset.train_rows if options.rows is None else options.rows,
            seed=options.seed,
        )
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def make_log(folder: Path, *, preset: str, train_rows: int, seed: int) -> dict[str, Any]:
    """Writes train/, valid/, test/ and what belongs to them; returns the manifest.

    Raises:
        InputError: if the number of rows or the seed cannot be, or the folder holds other things.
    """
    if train_rows < 100:
        raise InputError(f"--rows must be at least 100, got {train_rows}")
    if seed < 0:
        raise InputError(f"--seed must be at least 0, got {seed}")
    made_by = {"generator": GENERATOR, "preset": preset, "seed": seed, "train_rows": train_rows}
    manifest = _complete_manifest(folder, made_by)
    if manifest is None:
        started = time.perf_counter()
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        manifest = made_by | _write_log(partial, preset=preset, train_rows=train_rows, seed=seed)
        (partial / "best_auc.json").write_text(json.dumps(manifest["best_auc"], indent=2) + "\n")
        (partial / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
        print(f"{folder}: made in {time.perf_counter() - started:.0f} s")
    else:
        print(f"{folder}: complete, nothing to do")
    _print_summary(manifest)
    return manifest


def _complete_manifest(folder: Path, made_by: dict[str, Any]) -> dict[str, Any] | None:
    """The folder's manifest, if this generator made it with these settings and all is there."""
    path = folder / "manifest.json"
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder} holds something else than a shop log; give another --out")
        return None
    manifest: dict[str, Any] = json.loads(path.read_text())
    if any(manifest.get(key) != value for key, value in made_by.items()):
        return None
    for name, size in manifest["files"].items():
        file = folder / name
        if not file.exists() or file.stat().st_size != size:
            return None
    return manifest


def _write_log(folder: Path, *, preset: str, train_rows: int, seed: int) -> dict[str, Any]:
    shop = Shop(seed=seed, scale=PRESETS[preset].scale, exponent=PRESETS[preset].exponent)
    rows = {"train": train_rows, "valid": train_rows // 10, "test": train_rows // 5}
    total = sum(rows.values())
    first, blocks = 0, []
    for split, num_rows in rows.items():
        (folder / split).mkdir(parents=True)
        last = first + num_rows
        for index, start in enumerate(range(first, last, BLOCK_ROWS * BLOCKS_PER_FILE)):
            end = min(start + BLOCK_ROWS * BLOCKS_PER_FILE, last)
            file = folder / split / f"part-{index:05}.parquet"
            made = _write_file(file, shop, start, end, total=total, seed=seed)
            blocks += made if split == "test" else []
        first = last
    labels = {task: np.concatenate([block[0][task] for block in blocks]) for task in TASKS}
    chances = {task: np.concatenate([block[1][task] for block in blocks]) for task in TASKS}
    sidecar = pa.table({f"prob_{task}": values for task, values in chances.items()})
    pq.write_table(sidecar, folder / "test_probabilities.parquet", compression="zstd")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        "rows": rows,
        "test_rates": {task: float(labels[task].mean()) for task in TASKS},
        "best_auc": {task: auc(labels[task], chances[task]) for task in TASKS},
        "files": {str(path.relative_to(folder)): path.stat().st_size for path in files},
    }


def _write_file(
    file: Path, shop: Shop, first: int, last: int, *, total: int, seed: int
) -> list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Writes rows ``first`` to ``last`` (excluded); returns each block's labels and chances."""
    made = []
    with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for start in range(first, last, BLOCK_ROWS):
            rng = np.random.default_rng((seed, start))
            end = min(start + BLOCK_ROWS, last)
            block = make_impressions(shop, start, end, total=total, rng=rng)
            writer.write_table(_to_table(shop, block))
            made.append((block.labels, block.probabilities))
    return made


def _to_table(shop: Shop, block: Impressions) -> pa.Table:
    columns: dict[str, pa.Array] = {"time_ms": pa.array(block.milliseconds + START_MS)}
    for name in INT64_COLUMNS:
        ids = block.ids[name]
        columns[f"{name}_id"] = pa.array(shop.raw_ids(name, ids), mask=ids < 0)
    for name in INT32_COLUMNS:
        columns[name] = pa.array(block.ids[name].astype(np.int32))
    for name, num_words in NUM_WORDS.items():
        columns[name] = _names(name, block.ids[name], num_words=num_words)
    columns["membership"] = pa.array(MEMBERSHIPS).take(pa.array(block.ids["membership"]))
    for name in LISTS:
        items, is_null = block.lists[name]
        lengths = (items >= 0).sum(1)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        values = pa.array(shop.raw_ids("item", items[items >= 0]))
        columns[name] = pa.ListArray.from_arrays(offsets, values, mask=pa.array(is_null))
    for name in NUMBERS:
        columns[name] = pa.array(block.numbers[name], pa.float32(), from_pandas=True)
    for task in TASKS:
        columns[f"label_{task}"] = pa.array(block.labels[task])
    return pa.table(columns, schema=SCHEMA)


def _names(entity: str, ids: Ids, *, num_words: int) -> pa.Array:
    """A name of a few words for each id, different for each; null for -1."""
    spread = 7_919_273_011 + 4_900 * ord(entity[0])  # shares no factor with the number of words
    number = (ids + ord(entity[1])) * spread % len(WORDS) ** num_words
    words = []
    for _ in range(num_words):
        words.append(WORDS.take(pa.array(number % len(WORDS))))
        number = number // len(WORDS)
    names = pc.binary_join_element_wise(*words, " ")
    return pc.if_else(pa.array(ids < 0), pa.scalar(None, names.type), names)


def auc(labels: np.ndarray, scores: np.ndarray) -> float | None:
    """Chance that a positive scores above a negative (no ties); None without both kinds."""
    positive = labels[np.argsort(scores, kind="stable")] > 0
    num_positive = int(positive.sum())
    below = np.flatnonzero(positive).sum() - num_positive * (num_positive - 1) / 2
    pairs = num_positive * (len(labels) - num_positive)
    return float(below / pairs) if pairs else None


def _print_summary(manifest: dict[str, Any]) -> None:
    print("  ".join(f"{split} {rows:,} rows" for split, rows in manifest["rows"].items()))
    for task, best in manifest["best_auc"].items():
        rate = manifest["test_rates"][task]
        shown = "undefined" if best is None else f"{best:.4f}"
        print(f"{task}: {rate:.1%} of test rows, best reachable test AUC {shown}")


if __name__ == "__main__":
    main()
