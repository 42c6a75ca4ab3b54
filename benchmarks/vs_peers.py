"""edorec against CTR libraries on CPU: rows per second, memory and AUC of a DeepFM, one epoch.

DeepCTR-Torch, torch-rechub and FuxiCTR, each with its own model, loader and trainer and with Adam,
in an environment that this makes in ``.cache/peers`` (0.7 GB of downloads each). All train on
the click of the shop log, its scalar ids (rows of the same tables, all ids) and dense features, in
the order of edorec's first epoch where they do not shuffle themselves. Embeddings have 16 values,
the MLP 256 and 128. edorec has the configuration's row-wise Adagrad, with FP32 and with INT8 rows.
Peers hold all rows in memory as their loaders want them, edorec streams Parquet. ``--rates`` are
Adam's learning rates to choose from by validation AUC; edorec was tuned the same way
(``edorec tune``). Every run is a process of its own; runs take turns.

    python -m benchmarks.vs_peers [--quick] [--peers NAME ...] [--json FILE]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from ruamel.yaml import YAML

from benchmarks.figures import Figure, write_figures
from edorec.config import RunConfig, load_config
from edorec.data.batch import Batch
from edorec.data.prepared import Prepared
from edorec.data.reader import Reader
from edorec.embedding.admission import RowMap
from edorec.recommender import table_maps
from edorec.train import prepare_splits, run

CONFIG, TASK = "ecommerce", "click"
ENVIRONMENTS = Path(".cache/peers")
TORCH = "torch==2.13.0"
# By name: script, then what pip installs besides torch.
PEERS = {
    "DeepCTR-Torch": ("deepctr", ["deepctr-torch==0.2.9", "tensorflow-cpu"]),
    "torch-rechub": ("rechub", ["torch-rechub==0.9.0"]),
    "FuxiCTR": ("fuxi", ["fuxictr==2.3.10"]),
}
FORMATS = ("fp32", "int8")
RATES = (5e-4, 1e-3, 3e-3)

Result = dict[str, Any]


def write_config(folder: Path) -> str:
    """The configuration with one task and scalar ids; returns its path."""
    content = load_config(CONFIG, []).config.model_dump(mode="json", exclude_unset=True)
    content["tasks"] = {TASK: content["tasks"][TASK]}
    content["features"]["sparse"] = {
        name: feature or {}
        for name, feature in content["features"]["sparse"].items()
        if not (feature or {}).get("pooling")
    }
    content["model"] = {
        "backbone": {"name": "deepfm", "hidden": [256, 128]},
        "head": {"name": "shared_bottom", "tower_hidden": []},
    }
    content["data"]["folder"] = str(Path(content["data"]["folder"]).resolve())
    path = folder / "scalar.yaml"
    YAML(typ="safe").dump(content, path)
    return str(path)


def write_rows(config: RunConfig, prepared: Prepared, path: Path) -> None:
    """What edorec's model would see, as arrays (``benchmarks/peers/common.py``)."""
    row_maps = table_maps(config, prepared.vocabularies).row_maps
    arrays: dict[str, Any] = {}
    for split in ("train", "valid", "test"):
        batches = list(_batches(config, prepared, split, row_maps))
        arrays[f"{split}_rows"] = np.concatenate(
            [b.sparse.values().view(-1, len(b)).numpy().T for b in batches]
        )
        arrays[f"{split}_dense"] = np.concatenate([b.dense_BN.numpy() for b in batches])
        arrays[f"{split}_labels"] = np.concatenate([b.labels_BT[:, 0].numpy() for b in batches])
        keys = batches[0].sparse.keys()
    vocabularies = [config.features.sparse[name].vocabulary or name for name in keys]
    sizes = np.array([row_maps[name].num_rows for name in vocabularies])
    np.savez(path, sizes=sizes, **arrays)


def _batches(
    config: RunConfig, prepared: Prepared, split: str, row_maps: dict[str, RowMap]
) -> Iterator[Batch]:
    is_training = split == "train"
    reader = Reader(
        prepared,
        split,
        batch_size=config.train.batch_size,
        row_maps=row_maps,
        shuffle=is_training,
        shuffle_rows=config.data.shuffle_rows,
        seed=config.train.seed,
        training=is_training,
    )
    return iter(reader.batches(0))


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, which is made if it is not there.

    Raises:
        subprocess.CalledProcessError: if it cannot be installed.
    """
    script, packages = PEERS[peer]
    folder = ENVIRONMENTS / script
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        print(f"installing {peer} into {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", TORCH, *packages]
        subprocess.run(install, check=True)
        done.touch()
    return python


def run_peer(peer: str, rows: Path, config: RunConfig, *, rate: float, seed: int) -> Result:
    """One epoch of a peer."""
    script = Path(__file__).with_name("peers") / f"{PEERS[peer][0]}.py"
    hidden = config.model.backbone.hidden
    settings = {
        "batch_size": config.train.batch_size,
        "dim": config.embedding.dim,
        "threads": config.train.num_threads,
        "seed": seed,
        "learning_rate": rate,
    }
    options = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    return _last_line(
        [str(python_of(peer)), str(script), str(rows), *options, "--hidden", *map(str, hidden)]
    )


def run_edorec(path: str, overrides: list[str]) -> Result:
    """One epoch of edorec in a process of its own."""
    return _last_line([sys.executable, "-m", "benchmarks.vs_peers", "--child", path, *overrides])


def _last_line(command: list[str]) -> Result:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


def child(path: str, overrides: list[str]) -> Result:
    """What ``run_edorec`` wants, in this process."""
    config = load_config(path, overrides).config
    with tempfile.TemporaryDirectory() as folder:
        report = run(config, run_dir=Path(folder) / "run", verbosity=-1)
    return {
        "rows_per_second": report["speed"]["train_rows_per_second"],
        "peak_rss_bytes": report["memory"]["peak_rss_bytes"],
        "table_bytes": report["memory"]["total_bytes"],
        "valid_auc": report["validation"][TASK]["auc"],
        "auc": report["tasks"][TASK]["auc"],
    }


def figures_of(results: dict[str, list[Result]]) -> list[Figure]:
    """Each contender, then edorec over the fastest peer and over the most accurate one."""
    figures = []
    for name, runs in results.items():
        for key, unit, scale in (
            ("rows_per_second", "rows/s", 1.0),
            ("auc", "AUC", 1.0),
            ("table_bytes", "MB", 1e6),
            ("peak_rss_bytes", "MB", 1e6),
        ):
            value = statistics.median(run[key] for run in runs) / scale
            figures.append(Figure(f"{name}: {key}", value, unit))
    peers = [name for name in results if name in PEERS]
    for row_format in FORMATS:
        ours = results[f"edorec {row_format}"]
        fastest = max(peers, key=lambda p: _median(results[p], "rows_per_second"))
        best = max(peers, key=lambda p: _median(results[p], "auc"))
        pairs = list(zip(ours, results[fastest], strict=True))
        speed = statistics.median(a["rows_per_second"] / b["rows_per_second"] for a, b in pairs)
        memory = statistics.median(a["peak_rss_bytes"] / b["peak_rss_bytes"] for a, b in pairs)
        auc = statistics.mean(a["auc"] - b["auc"] for a, b in zip(ours, results[best], strict=True))
        title = f"edorec {row_format}"
        figures.append(Figure(f"{title} over {fastest}: rows per second", speed, "x", 10))
        figures.append(Figure(f"{title} over {fastest}: peak RSS", memory, "x", at_most=1))
        figures.append(Figure(f"{title} minus {best}: AUC", auc, "AUC", 0.0))
    return figures


def _median(runs: list[Result], key: str) -> float:
    return statistics.median(run[key] for run in runs)


def best_rate(peer: str, rows: Path, config: RunConfig, rates: list[float]) -> float:
    """The learning rate with the best validation AUC."""
    if len(rates) == 1:
        return rates[0]
    aucs = {}
    for rate in rates:
        aucs[rate] = run_peer(peer, rows, config, rate=rate, seed=0)["valid_auc"]
        print(f"{peer}, learning rate {rate:g}: validation AUC {aucs[rate]:.4f}", flush=True)
    return max(aucs, key=lambda rate: aucs[rate])


def main() -> None:
    """Runs the benchmark, or edorec in a child process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows, one round")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    args, overrides = parser.parse_known_args()
    if args.child:
        print(json.dumps(child(args.child, overrides)))
        return
    if overrides:
        parser.error(f"unknown arguments {' '.join(overrides)}")
    common = [f"train.num_threads={args.threads}", "train.epochs=1"]
    if args.quick:
        args.rounds, args.rates = 1, [1e-3]
        common.append("data.train=train/part-00000.parquet")
    for peer in args.peers:
        python_of(peer)
    with tempfile.TemporaryDirectory() as folder:
        path, rows = write_config(Path(folder)), Path(folder) / "rows.npz"
        config = load_config(path, common).config
        write_rows(config, prepare_splits(config, console=Console(), verbosity=0), rows)
        rates = {peer: best_rate(peer, rows, config, args.rates) for peer in args.peers}
        results: dict[str, list[Result]] = {}
        for seed in range(1, args.rounds + 1):
            for peer in args.peers:
                result = run_peer(peer, rows, config, rate=rates[peer], seed=seed)
                results.setdefault(peer, []).append(result)
                print(f"seed {seed}, {peer}: {result}", flush=True)
            for row_format in FORMATS:
                settings = [f"memory={{format: {row_format}}}", f"train.seed={seed}"]
                result = run_edorec(path, [*common, *settings])
                results.setdefault(f"edorec {row_format}", []).append(result)
                print(f"seed {seed}, edorec {row_format}: {result}", flush=True)
    write_figures(figures_of(results), json_path=args.json)


if __name__ == "__main__":
    main()
