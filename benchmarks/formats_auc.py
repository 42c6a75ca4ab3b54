"""AUC of each storage of the tables against FP32's, both tuned alike, over paired seeds.

Every storage gets the same search (``edorec tune``: learning rate and initial accumulator of the
tables, epochs; same number of trials, same ranges) on the validation split. Then storage and FP32
train with their best values on the same seeds (same data order, same initial values), and the test
split is read. Seeds are added until the 95 % interval of the mean difference is no wider than the
storage's margin on either side, or ``--seeds`` is reached. Everything that was run is kept in
``--store`` and reused, so the command can be stopped and taken up again.

Dense arithmetic is bf16 on all sides, which changes no AUC here and halves the time.

    python -m benchmarks.formats_auc [--config ecommerce] [--storages int8 ...] [--quick]
                                     [--plot FILE.png] [--json FILE]
"""

import argparse
import json
import math
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from scipy import stats

from benchmarks.figures import Figure, write_figures
from edorec.config import RunConfig, load_config
from edorec.output_folder import write_file
from edorec.search_space import search_space
from edorec.train import run
from edorec.tune import tune

HOT = "{min_count: 100, format: int8, state: log8}"
COLD = "{format: int2, state: log8}"


@dataclass(frozen=True)
class Storage:
    """One way to store the tables.

    Attributes:
        memory: the section ``memory``.
        vocabulary: settings of every vocabulary.
        margins: by configuration, the AUC that it may lose.
        bytes_at_most: by configuration, the fraction of the baseline's bytes that it may take.
    """

    memory: str
    vocabulary: str
    margins: dict[str, float]
    bytes_at_most: dict[str, float]


def _bands(hot: str, min_count: int, cold: str = COLD) -> str:
    return f"{{bands: [{{min_count: {min_count}, {hot}}}, {cold}]}}"


def _storages() -> dict[str, Storage]:
    storages = {
        "fp32": Storage("{format: fp32}", "{}", {}, {}),
        "fp16": Storage("{format: fp16}", "{}", {}, {}),
        "int8": Storage("{format: int8}", "{}", {"ecommerce": 0.0005, "kuairand": 0.001}, {}),
        "int4 by qat": Storage(
            "{format: int8, qat: int4}", "{}", {"ecommerce": 0.001, "kuairand": 0.0015}, {}
        ),
        "sparse28 by qat": Storage("{format: int8, qat: sparse28}", "{}", {"kuairand": 0.006}, {}),
    }
    for count in (300, 100, 30, 10):
        storages[f"int8 from {count}, int2"] = Storage(_bands("format: int8", count), "{}", {}, {})
    for count in (100, 30):
        storages[f"int8 from {count}, fp32"] = Storage(
            _bands("format: int8", count, "{format: fp32}"), "{}", {}, {}
        )
    storages["int8 from 100, int4"] = Storage(
        _bands("format: int8", 100, "{format: int4}"), "{}", {}, {}
    )
    storages["int4"] = Storage("{format: int4}", "{}", {}, {})
    storages["three bands"] = Storage(
        f"{{bands: [{HOT}, {{min_count: 5, format: int4, state: log8}}, {COLD}]}}",
        "{}",
        {"ecommerce": 0.0005},
        {"ecommerce": 1 / 7},
    )
    # The planner chooses rows and formats; auc_vs_memory has more budgets.
    storages["budget 0.05"] = Storage(
        "{budget: 0.05}", "{}", {"ecommerce": 0.001}, {"ecommerce": 0.05}
    )
    return storages


STORAGES = _storages()
# Ranges of the search; each extra epoch of the shop log costs 0.01 AUC whatever the storage.
EPOCHS = {"ecommerce": 1, "kuairand": 3}
RANGES = ["embedding.learning_rate=0.02..0.8", "embedding.initial_accumulator=1e-10..1e-4"]
FIXED = ["embedding.weight_decay=0", "train.matmul_precision=bf16"]


def overrides(config: str, storage: Storage) -> list[str]:
    """What a storage changes in a configuration."""
    features = load_config(config, []).config.features.sparse
    names = sorted({feature.vocabulary or name for name, feature in features.items()})
    vocabularies = [f"vocabularies.{name}={storage.vocabulary}" for name in names]
    return [f"memory={storage.memory}", *vocabularies, *FIXED]


def best_values(config: str, storage: Storage, folder: Path, num_trials: int) -> dict[str, float]:
    """The best values of the search, which goes on where it was stopped."""
    fixed = [*overrides(config, storage), f"train.learning_rate={dense_rate(config)}"]
    epochs = EPOCHS[config]
    ranges = list(RANGES)
    if epochs == 1:
        fixed.append("train.epochs=1")
    else:
        ranges.append(f"train.epochs=1..{epochs}")
    loaded = load_config(config, fixed)
    result = tune(
        loaded.config,
        search_space(loaded, ranges),
        num_trials=num_trials,
        run_dir=folder / "tune",
        verbosity=-1,
    )
    trial = next(t for t in result["trials"] if t["trial"] == result["best"])
    values: dict[str, float] = trial["values"]
    return values


def dense_rate(config: str) -> float:
    """The dense learning rate of a configuration."""
    return load_config(config, []).config.train.learning_rate


def tested(config: RunConfig, folder: Path, seed: int) -> dict[str, Any]:
    """Test AUC by task, and memory, of one seed; trained once, then kept."""
    path = folder / f"seed-{seed}.json"
    if not path.exists():
        with tempfile.TemporaryDirectory() as temporary:
            report = run(config, run_dir=Path(temporary) / "run", verbosity=-1)
        kept = {
            "auc": {task: metrics["auc"] for task, metrics in report["tasks"].items()},
            "total_bytes": report["memory"]["total_bytes"],
            "baseline_bytes": report["memory"]["baseline_bytes"],
            "rows_per_second": report["speed"]["train_rows_per_second"],
        }
        write_file(path, json.dumps(kept) + "\n")
    result: dict[str, Any] = json.loads(path.read_text())
    return result


class Contender:
    """A storage with its best values."""

    def __init__(self, config: str, name: str, *, store: Path, num_trials: int) -> None:
        self.name = name
        self.storage = STORAGES[name]
        self._config = config
        self._folder = store / config / name.replace(", ", "-").replace(" ", "-")
        self._folder.mkdir(parents=True, exist_ok=True)
        values = best_values(config, self.storage, self._folder, num_trials)
        self.values = values
        self._settings = [f"{key}={value}" for key, value in values.items()]
        print(f"{config}, {name}: best of {num_trials} trials {values}", flush=True)

    def test(self, seed: int) -> dict[str, Any]:
        """What one seed gives."""
        settings = [*overrides(self._config, self.storage), *self._settings, f"train.seed={seed}"]
        return tested(load_config(self._config, settings).config, self._folder, seed)


def interval(differences: list[float]) -> float:
    """Half the width of the 95 % interval of the mean (Student's t)."""
    if len(differences) < 2:
        return math.inf
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return float(stats.t.ppf(0.975, len(differences) - 1)) * error


def compare(
    ours: Contender, baseline: Contender, *, least: int, most: int, margin: float
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of results, as many as the margin needs."""
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    task = ""
    while len(pairs) < most:
        seed = len(pairs) + 1
        pairs.append((ours.test(seed), baseline.test(seed)))
        task = task or next(iter(pairs[0][0]["auc"]))
        width = interval([a["auc"][task] - b["auc"][task] for a, b in pairs])
        if len(pairs) >= least and width <= margin:
            break
    return pairs


def figures_of(
    config: str, ours: Contender, pairs: list[tuple[dict[str, Any], dict[str, Any]]]
) -> list[Figure]:
    """Differences by task, with intervals, and bytes."""
    figures = []
    storage = ours.storage
    for number, task in enumerate(pairs[0][0]["auc"]):
        differences = [a["auc"][task] - b["auc"][task] for a, b in pairs]
        margin = storage.margins.get(config) if number == 0 else None
        bound = None if margin is None else -margin
        name = f"{config}, {ours.name}: {task} AUC minus FP32's"
        figures.append(Figure(name, statistics.mean(differences), "AUC", bound))
        figures.append(
            Figure(f"{name}, 95 % interval +-", interval(differences), "AUC", at_most=margin)
        )
    first = pairs[0][0]
    figures.append(
        Figure(
            f"{config}, {ours.name}: bytes of FP32's",
            first["total_bytes"] / first["baseline_bytes"],
            "ratio",
            at_most=storage.bytes_at_most.get(config),
        )
    )
    figures.append(Figure(f"{config}, {ours.name}: seeds", len(pairs), "runs"))
    return figures


def plot(figures: list[Figure], config: str, path: Path) -> None:
    """Loss of AUC of the first task over bytes, with intervals."""
    values = {figure.name: figure.value for figure in figures}
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for name in STORAGES:
        key = next((k for k in values if k.startswith(f"{config}, {name}: ")), None)
        if key is None:
            continue
        fraction = values[f"{config}, {name}: bytes of FP32's"]
        axes.errorbar(
            fraction, values[key], yerr=values[f"{key}, 95 % interval +-"], fmt="o", capsize=3
        )
        axes.annotate(name, (fraction, values[key]), xytext=(5, 5), textcoords="offset points")
    axes.axhline(0, color="tab:gray", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("bytes of tables and optimizer state, of FP32's")
    axes.set_ylabel("test AUC minus FP32's, paired seeds")
    axes.margins(x=0.25, y=0.15)
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--config", default="ecommerce", choices=sorted(EPOCHS))
    parser.add_argument("--storages", nargs="*", choices=list(STORAGES), help="default: all")
    parser.add_argument("--trials", type=int, default=12, help="of each search")
    parser.add_argument("--seeds", type=int, nargs=2, default=(8, 20), help="least and most")
    parser.add_argument("--store", type=Path, default=Path("runs/formats_auc"))
    parser.add_argument("--quick", action="store_true", help="INT8 alone, 2 trials, 2 seeds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    names = args.storages or [name for name in STORAGES if name != "fp32"]
    least, most = args.seeds
    if args.quick:
        names, args.trials, least, most = ["int8"], 2, 2, 2
        args.store = args.store / "quick"
    FIXED.append(f"train.num_threads={args.threads}")
    baseline = Contender(args.config, "fp32", store=args.store, num_trials=args.trials)
    figures = []
    for name in names:
        ours = Contender(args.config, name, store=args.store, num_trials=args.trials)
        margin = ours.storage.margins.get(args.config, 0.001)
        pairs = compare(ours, baseline, least=least, most=most, margin=margin)
        figures += figures_of(args.config, ours, pairs)
        for figure in figures[-2 * len(pairs[0][0]["auc"]) - 2 :][:2]:
            print(f"{figure.name}: {figure.value:.5f}", flush=True)
    write_figures(figures, json_path=args.json)
    if args.plot:
        plot(figures, args.config, args.plot)


if __name__ == "__main__":
    main()
