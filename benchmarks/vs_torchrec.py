"""edorec against torchrec on CPU: the same model, rows and order; rows per second, memory, AUC.

The shop log with its configuration. torchrec's EmbeddingBagCollection and
FusedEmbeddingBagCollection have FP32 rows for all ids, FBGEMM's fused tables FP16 ones (torchrec's
fused collection keeps FP16 in FP32), each with SGD, row-wise Adagrad and Adagrad. edorec has
row-wise Adagrad: FP32, INT8, and budgets of 1/4 and 1/10. Every contender runs in a process of its
own, so the peak RSS is its own, and reads the same prepared rows through the same reader. They take
turns; ratios are medians over the rounds, which are also the seeds. The learning rate of an
optimizer is that of the configuration, tuned for row-wise Adagrad, or else the best of
``edorec tune`` with FBGEMM's FP32 tables (``RATES``).

    python -m benchmarks.vs_torchrec [--quick] [--contenders NAME ...] [--json FILE]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.figures import Figure, has_amx, write_figures
from benchmarks.torchrec_tables import TorchrecTables
from edorec.cli_planning import budget_overrides
from edorec.config import RunConfig, load_config
from edorec.evaluate import evaluate_split
from edorec.memory_use import peak_rss_bytes
from edorec.planning.plan import apply_plan
from edorec.planning.planner import make_plan
from edorec.recommender import build_recommender
from edorec.train import fit, prepare_splits, set_up

CONFIG = "ecommerce"
TASK = "click"
# Overrides of each optimizer.
RATES = {
    "rowwise_adagrad": [],
    "adagrad": ["embedding.learning_rate=0.05"],
    "sgd": ["embedding.learning_rate=50"],
}
SAME_AUC = 0.0005
BASELINE = "torchrec FusedEBC fp32 rowwise_adagrad"


@dataclass(frozen=True)
class Contender:
    """Whose tables, and what they change in the configuration.

    Attributes:
        overrides: of the configuration.
        torchrec: ``fused`` or ``plain`` for torchrec's own tables, else None.
    """

    overrides: list[str]
    torchrec: str | None = None


def _contenders() -> dict[str, Contender]:
    found = {}
    for optimizer, rates in RATES.items():
        own = [f"embedding.optimizer={optimizer}", *rates]
        fp32 = [*own, "memory={format: fp32}"]
        found[f"torchrec EBC fp32 {optimizer}"] = Contender(fp32, "plain")
        found[f"torchrec FusedEBC fp32 {optimizer}"] = Contender(fp32, "fused")
        fp16 = [*own, "memory={format: fp16}", "embedding.backend=fbgemm"]
        found[f"FBGEMM fp16 {optimizer}"] = Contender(fp16)
    found["edorec fp32"] = Contender(["memory={format: fp32}"])
    found["edorec int8"] = Contender(["memory={format: int8}"])
    for budget in ("0.25", "0.1"):
        found[f"edorec budget {budget}"] = Contender(budget_overrides(budget))
    return found


CONTENDERS = _contenders()
QUICK = [
    BASELINE,
    "torchrec FusedEBC fp32 sgd",
    "torchrec EBC fp32 sgd",
    "edorec int8",
    "edorec budget 0.1",
]

Result = dict[str, Any]


def load(name: str, common: list[str]) -> RunConfig:
    """The configuration of a contender."""
    return load_config(CONFIG, [*CONTENDERS[name].overrides, *common]).config


def train(name: str, common: list[str]) -> Result:
    """Trains in this process and reports rows per second, bytes and test AUC."""
    config = load(name, common)
    device, _ = set_up(config)
    quiet = Console(quiet=True)
    prepared = prepare_splits(config, console=quiet, verbosity=-1)
    config = apply_plan(config, make_plan(config, prepared))
    recommender = build_recommender(config, prepared.vocabularies, device=device)
    kind = CONTENDERS[name].torchrec
    if kind is not None:
        # It has what training on one device without paging calls, not the whole protocol.
        tables: Any = TorchrecTables(
            recommender, config, lists=prepared.list_features, is_fused=kind == "fused"
        )
        recommender = replace(recommender, tables=tables)
    with tempfile.TemporaryDirectory() as folder:
        state, seconds = fit(
            recommender,
            prepared,
            config,
            run_dir=Path(folder),
            console=quiet,
            verbosity=-1,
            trial=name,
        )
    peak = peak_rss_bytes()
    tasks, _ = evaluate_split(recommender, prepared, "test", config=config, verbosity=-1)
    return {
        "rows_per_second": state.step.num_rows / seconds,
        "peak_rss_bytes": peak,
        "table_bytes": sum(sum(sizes) for sizes in recommender.tables.table_bytes().values()),
        "auc": tasks[TASK]["auc"],
    }


def in_process(name: str, common: list[str]) -> Result:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.vs_torchrec", "--child", name, *common]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


def figures_of(results: dict[str, list[Result]], precision: str) -> list[Figure]:
    """Of one dense precision."""
    figures = []
    for name, runs in results.items():
        for key, unit in (("rows_per_second", "rows/s"), ("auc", "AUC")):
            value = statistics.median(run[key] for run in runs)
            figures.append(Figure(f"{precision}: {name}, {key}", value, unit))
        for key in ("table_bytes", "peak_rss_bytes"):
            value = statistics.median(run[key] for run in runs) / 1e6
            figures.append(Figure(f"{precision}: {name}, {key}", value, "MB"))
    fastest = _fastest_of_torchrec(results)
    for ours in (name for name in results if name.startswith("edorec")):
        for base in dict.fromkeys((BASELINE, fastest)):
            title = f"{precision}: {ours} over {base}"
            pairs = list(zip(results[ours], results[base], strict=True))
            for key, unit in (
                ("rows_per_second", "x"),
                ("table_bytes", "x"),
                ("peak_rss_bytes", "x"),
            ):
                ratio = statistics.median(a[key] / b[key] for a, b in pairs)
                figures.append(Figure(f"{title}, {key}", ratio, unit))
            auc = statistics.mean(a["auc"] - b["auc"] for a, b in pairs)
            figures.append(Figure(f"{title}, auc", auc, "AUC difference"))
    return figures


def _fastest_of_torchrec(results: dict[str, list[Result]]) -> str:
    """The fastest whose mean AUC is no more than ``SAME_AUC`` below that of the baseline."""
    theirs = {name: runs for name, runs in results.items() if not name.startswith("edorec")}
    auc = {name: statistics.mean(run["auc"] for run in runs) for name, runs in theirs.items()}
    same = [name for name in theirs if auc[name] >= auc[BASELINE] - SAME_AUC]
    return max(same, key=lambda n: statistics.median(run["rows_per_second"] for run in theirs[n]))


def main() -> None:
    """Runs the benchmark, or one contender in a child process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows, one round")
    parser.add_argument("--contenders", nargs="*", choices=list(CONTENDERS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    args, overrides = parser.parse_known_args()
    if args.child:
        print(json.dumps(train(args.child, overrides)))
        return
    if overrides:
        parser.error(f"unknown arguments {' '.join(overrides)}")
    names = args.contenders or list(CONTENDERS)
    precisions = ["fp32", "bf16"] if has_amx() else ["fp32"]
    common = [f"train.num_threads={args.threads}", "train.epochs=1"]
    if args.quick:
        names, args.rounds, precisions = args.contenders or QUICK, 1, precisions[-1:]
        common.append("data.train=train/part-00000.parquet")
    if BASELINE not in names:
        names = [BASELINE, *names]
    # Once, so that no contender prepares data or compiles kernels.
    prepare_splits(load(BASELINE, common), console=Console(stderr=True), verbosity=0)
    figures = []
    for precision in precisions:
        results: dict[str, list[Result]] = {name: [] for name in names}
        for seed in range(1, args.rounds + 1):
            for name in names:
                settings = [f"train.matmul_precision={precision}", f"train.seed={seed}"]
                result = in_process(name, [*common, *settings])
                results[name].append(result)
                print(f"{precision}, seed {seed}, {name}: {result}", flush=True)
        figures += figures_of(results, precision)
    write_figures(figures, json_path=args.json)


if __name__ == "__main__":
    main()
