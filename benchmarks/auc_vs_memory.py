"""Test AUC over bytes while training: three lines, over paired seeds.

FP32 rows for all ids; FP32 rows under the best admission cut at each size; edorec at each budget.
A cut is one ``min_count`` for all vocabularies and a share of bucket rows: at each size every share
of ``BUCKETS`` is tried with the smallest ``min_count`` that fits, and validation AUC decides. The
floor, for the share of embedding value kept, gives each vocabulary one row.

Every line gets the same search of learning rate, initial accumulator and epochs on the validation
split (``--trials``; 0 takes the configuration's values for all). Then all train on the same seeds,
and the test split is read. Seeds are added until the 95 % interval of every difference between
edorec and FP32 is no wider than the margin, or ``--seeds`` is reached. Runs are kept in
``runs/claims`` and reused, so the command can be stopped and taken up again.

    python -m benchmarks.auc_vs_memory [--config ecommerce] [--quick] [--out FOLDER] [--json FILE]
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.claims.row import interval, trained
from benchmarks.figures import Figure, command, machine, versions, write_figures
from benchmarks.formats_auc import EPOCHS, FIXED, Storage, best_values, overrides
from edorec.config import RunConfig, load_config
from edorec.data.prepare import prepare
from edorec.data.prepared import Prepared
from edorec.output_folder import write_file
from edorec.planning.plan import apply_plan
from edorec.planning.planner import make_plan, measure

FP32 = Storage("{format: fp32}", "{}", {}, {})
FLOOR = Storage("{format: fp32}", "{max_rows: 0, buckets: 1}", {}, {})
BUDGETS = (0.25, 0.1, 0.04, 0.02, 0.01)
BUCKETS = (0.001, 0.01, 0.03, 0.08)  # of the ids
# By configuration and budget, the AUC that edorec may lose.
MARGINS = {
    "ecommerce": {0.25: 0.0005, 0.1: 0.0005, 0.04: 0.0015},
    "kuairand": {0.25: 0.001, 0.1: 0.003},
}
LINES = {"edorec": "o-", "FP32, best admission cut": "s--"}

Report = dict[str, Any]


@dataclass
class Contender:
    """One point of a line.

    Attributes:
        line: edorec, FP32 with a cut, ...
        budget: share of FP32's bytes that it may take; None for all ids and the floor.
        config: without a seed.
        what: how rows are given, for people.
        reports: of its runs, by seed.
    """

    line: str
    budget: float | None
    config: RunConfig
    what: str
    reports: dict[int, Report]

    def train(self, seed: int) -> Report:
        """The report of a seed; trained once."""
        train = self.config.train.model_copy(update={"seed": seed})
        report = self.reports[seed] = trained(self.config.model_copy(update={"train": train}))
        return report

    @property
    def of_fp32(self) -> float:
        """Bytes while training, of FP32's for all ids."""
        memory = next(iter(self.reports.values()))["memory"]
        return float(memory["total_bytes"] / memory["baseline_bytes"])


class Bench:
    """A configuration and its data."""

    def __init__(self, name: str, *, num_trials: int, store: Path) -> None:
        self.name = name
        self._num_trials = num_trials
        self._store = store
        first = self._load(FP32)
        self.task = next(iter(first.tasks))
        self.prepared: Prepared = prepare(
            data=first.data,
            features=first.features,
            vocabularies=first.vocabularies,
            tasks=first.tasks,
        )
        self._worth = measure(first, self.prepared)

    def _load(self, storage: Storage, *more: str) -> RunConfig:
        return load_config(self.name, [*overrides(self.name, storage), *more]).config

    def _tuned(self, storage: Storage, folder: str) -> RunConfig:
        """With the best values of the search."""
        if not self._num_trials:
            return self._load(storage)
        path = self._store / self.name / folder
        path.mkdir(parents=True, exist_ok=True)
        values = best_values(self.name, storage, path, self._num_trials)
        print(f"{self.name}, {folder}: {values}", flush=True)
        return self._load(storage, *[f"{key}={value}" for key, value in values.items()])

    def fp32(self) -> Contender:
        """FP32 rows for all ids."""
        return Contender("FP32, all ids", None, self._tuned(FP32, "fp32"), "all ids", {})

    def floor(self) -> Contender:
        """One row a vocabulary."""
        return Contender("floor", None, self._load(FLOOR), "one row a vocabulary", {})

    def edorec(self, budget: float) -> Contender:
        """What the planner decides."""
        storage = Storage(f"{{budget: {budget}}}", "{}", {}, {})
        config = self._tuned(storage, f"budget-{budget}")
        planned = apply_plan(config, make_plan(config, self.prepared, worth=self._worth))
        return Contender("edorec", budget, planned, "planned", {})

    def best_cut(self, budget: float) -> Contender:
        """The admission cut of at most this size that is best on validation rows."""
        cuts = [cut for share in BUCKETS if (cut := self._cut(budget, share)) is not None]
        for cut in cuts:
            auc = self._validation_auc(cut)
            print(f"{self.name}, {budget:g}, cut {cut.what}: validation AUC {auc:.4f}", flush=True)
        best = max(cuts, key=self._validation_auc)
        if not self._num_trials:
            return best
        storage = Storage("{format: fp32}", _vocabulary(best.config), {}, {})
        tuned = self._tuned(storage, f"cut-{budget}")
        return Contender(best.line, budget, tuned, best.what, {})

    def _validation_auc(self, contender: Contender) -> float:
        return float(contender.train(1)["validation"][self.task]["auc"])

    def _cut(self, budget: float, share: float) -> Contender | None:
        """The smallest ``min_count`` that fits beside a share of buckets; None if none does."""
        most = max(int(v.counts.max(initial=0)) for v in self.prepared.vocabularies.values()) + 1
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            if self._cut_of(middle, share)[1] <= budget:
                high = middle
            else:
                low = middle + 1
        config, size = self._cut_of(low, share)
        if size > budget:
            return None
        what = f"ids seen {low} times or more, buckets for {share:.1%}"
        return Contender("FP32, best admission cut", budget, config, what, {})

    def _cut_of(self, min_count: int, share: float) -> tuple[RunConfig, float]:
        """A configuration, and its share of FP32's bytes."""
        vocabulary = f"{{min_count: {min_count}, buckets: {share}}}"
        config = self._load(Storage("{format: fp32}", vocabulary, {}, {}))
        plan = make_plan(config, self.prepared)
        return config, plan.total_bytes / plan.baseline_bytes


def _vocabulary(config: RunConfig) -> str:
    """The settings that a cut gives every vocabulary."""
    settings = next(iter(config.vocabularies.values()))
    return f"{{min_count: {settings.min_count}, buckets: {settings.buckets}}}"


def train_all(bench: Bench, contenders: list[Contender], *, least: int, most: int) -> None:
    """Trains seeds of all until the intervals are narrow enough."""
    ours = [contender for contender in contenders if contender.line == "edorec"]
    for seed in range(1, most + 1):
        for contender in contenders:
            auc = contender.train(seed)["tasks"][bench.task]["auc"]
            size = contender.of_fp32
            print(f"seed {seed}, {contender.line}, {size:.4f}: test AUC {auc:.4f}", flush=True)
        if seed >= max(least, 2):
            widths = [
                (interval(differences(c, contenders[0], bench.task)), margin(bench.name, c.budget))
                for c in ours
            ]
            if all(width <= allowed for width, allowed in widths):
                return


def margin(config: str, budget: float | None) -> float:
    """Half the width of interval that is asked for."""
    return MARGINS.get(config, {}).get(budget or 0.0, 0.001)


def differences(ours: Contender, base: Contender, task: str) -> list[float]:
    """Test AUC minus that of ``base``, by seed."""
    return [
        report["tasks"][task]["auc"] - base.reports[seed]["tasks"][task]["auc"]
        for seed, report in ours.reports.items()
        if seed in base.reports
    ]


def mean_auc(contender: Contender, task: str) -> float:
    """Mean test AUC."""
    return statistics.mean(r["tasks"][task]["auc"] for r in contender.reports.values())


def figures_of(bench: Bench, contenders: list[Contender]) -> list[Figure]:
    """AUC of all ids and of the floor, then each budget."""
    fp32, floor, *others = contenders
    task, name = bench.task, bench.name
    figures = [
        Figure(f"{name}: {c.line}, {task} AUC", mean_auc(c, task), "AUC") for c in (fp32, floor)
    ]
    figures.append(Figure(f"{name}: seeds", len(fp32.reports), "runs"))
    for ours, cut in zip(others[::2], others[1::2], strict=True):
        assert ours.budget is not None
        title = f"{name} at {ours.budget:g}"
        bound = MARGINS.get(name, {}).get(ours.budget)
        least = None if bound is None else -bound
        figures += _differences(f"{title}: edorec minus FP32", ours, fp32, task, at_least=least)
        figures += _differences(f"{title}: best cut minus FP32", cut, fp32, task)
        figures += _differences(f"{title}: edorec minus best cut", ours, cut, task, at_least=0.0)
        for contender, who in ((ours, "edorec"), (cut, "best cut")):
            kept = (mean_auc(contender, task) - mean_auc(floor, task)) / (
                mean_auc(fp32, task) - mean_auc(floor, task)
            )
            figures.append(Figure(f"{title}: bytes of {who}", contender.of_fp32, "of FP32"))
            figures.append(Figure(f"{title}: value kept by {who}", kept, "ratio"))
        speeds = [
            ours.reports[seed]["speed"]["train_rows_per_second"]
            / fp32.reports[seed]["speed"]["train_rows_per_second"]
            for seed in ours.reports
        ]
        speed = statistics.median(speeds)
        figures.append(Figure(f"{title}: rows per second over FP32's", speed, "x"))
    return figures


def _differences(
    name: str, ours: Contender, base: Contender, task: str, *, at_least: float | None = None
) -> list[Figure]:
    """The mean difference and its 95 % interval; one seed has none, and is held to no bound."""
    values = differences(ours, base, task)
    if len(values) == 1:
        return [Figure(f"{name}, {task} AUC", values[0], "AUC")]
    return [
        Figure(f"{name}, {task} AUC", statistics.mean(values), "AUC", at_least),
        Figure(f"{name}, 95 % interval +-", interval(values), "AUC"),
    ]


def plot(bench: Bench, contenders: list[Contender], path: Path) -> None:
    """Draws the three lines; bars are 95 % intervals of the difference to FP32 of all ids."""
    fp32, _floor, *others = contenders
    base = mean_auc(fp32, bench.task)
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.axhline(base, color="tab:gray", label="FP32, all ids")
    for line, style in LINES.items():
        points = [c for c in others if c.line == line]
        pairs = [differences(c, fp32, bench.task) for c in points]
        axes.errorbar(
            [c.of_fp32 for c in points],
            [base + statistics.mean(pair) for pair in pairs],
            yerr=[interval(pair) if len(pair) > 1 else 0.0 for pair in pairs],
            fmt=style,
            capsize=3,
            label=line,
        )
    sizes = sorted({c.budget for c in others if c.budget is not None})
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("bytes of tables and optimizer state while training, of FP32's for all ids")
    axes.set_ylabel(f"test AUC of {bench.task}")
    axes.set_title(f"{bench.name}, {len(fp32.reports)} seeds")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def markdown(bench: Bench, contenders: list[Contender]) -> str:
    """A table of all points, and where they were measured."""
    fp32 = contenders[0]
    tasks = list(fp32.config.tasks)
    lines = [
        f"# AUC over memory: {bench.name}",
        "",
        f"`{command()}`, {date.today():%Y-%m-%d}, {len(fp32.reports)} seeds.",
        f"{machine()['processor']}, {machine()['num_cpus']} CPUs; "
        + ", ".join(f"{name} {version}" for name, version in versions().items()),
        "",
        "Bytes of rows and optimizer state while training, of FP32's for all ids. AUC minus that "
        "of FP32 for all ids on the same seeds, with its 95 % interval.",
        "",
        f"![AUC over memory](auc_vs_memory_{bench.name}.png)",
        "",
        "| line | rows | bytes | rows/s | " + " | ".join(tasks) + " |",
        "|---|---|---|---|" + "---|" * len(tasks),
    ]
    for c in contenders:
        rate = statistics.median(r["speed"]["train_rows_per_second"] for r in c.reports.values())
        cells = [
            f"{mean_auc(c, task):.4f}" if c is fp32 else _cell(differences(c, fp32, task))
            for task in tasks
        ]
        lines.append(
            f"| {c.line} | {c.what} | {c.of_fp32:.4f} | {rate:,.0f} | {' | '.join(cells)} |"
        )
    return "\n".join(lines) + "\n"


def _cell(values: Sequence[float]) -> str:
    spread = f" +- {interval(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):+.4f}{spread}"


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--config", default="ecommerce", choices=sorted(EPOCHS))
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS)
    parser.add_argument("--trials", type=int, default=8, help="of each search; 0: none")
    parser.add_argument("--seeds", type=int, nargs=2, default=(5, 12), help="least and most")
    parser.add_argument("--store", type=Path, default=Path("runs/auc_vs_memory"))
    parser.add_argument("--quick", action="store_true", help="one budget, no search, one seed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for a page and a plot")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    budgets, (least, most) = args.budgets, args.seeds
    if args.quick:
        budgets, args.trials, least, most = [0.04], 0, 1, 1
    FIXED.append(f"train.num_threads={args.threads}")
    bench = Bench(args.config, num_trials=args.trials, store=args.store)
    contenders = [bench.fp32(), bench.floor()]
    for budget in budgets:
        contenders += [bench.edorec(budget), bench.best_cut(budget)]
    train_all(bench, contenders, least=least, most=most)
    if args.out:
        name = f"auc_vs_memory_{bench.name}"
        plot(bench, contenders, args.out / f"{name}.png")
        write_file(args.out / f"{name}.md", markdown(bench, contenders))
    write_figures(figures_of(bench, contenders), json_path=args.json)


if __name__ == "__main__":
    main()
