"""``edorec sweep``: AUC over memory, from runs at several budgets beside FP32.

The baseline has FP32 rows for every id of the training data in FBGEMM's fused tables, which
torchrec uses; where FBGEMM cannot (another optimizer, un-pooled lists), in edorec's own. Each seed
trains all of them, so differences are paired. A run whose report is there is not trained again.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console

from edorec.config import RunConfig, dump_config
from edorec.data.prepared import Prepared
from edorec.data.schema import is_sequence
from edorec.data.vocabulary import read_hashes
from edorec.embedding.build import fbgemm_has
from edorec.embedding.tables import MemoryConfig
from edorec.errors import InputError
from edorec.output_folder import work_folder, write_file
from edorec.planning.plan import Plan, apply_plan
from edorec.planning.planner import make_plan, measure
from edorec.plots import plot_sweep
from edorec.serving.index import build_index
from edorec.summaries import print_sweep, sweep_markdown
from edorec.train import prepare_splits, run, set_up

RESULT = "sweep.json"
BASELINE = "FP32"


def sweep(
    configs: Mapping[str, RunConfig], *, num_seeds: int, run_dir: Path | None, verbosity: int
) -> dict[str, Any]:
    """Trains at every budget, or goes on with the sweep in ``run_dir``.

    Args:
        configs: by budget as it was given; they differ in ``memory.budget`` alone.
        num_seeds: runs of each.
        run_dir: folder to write, new, empty or that of a sweep; default
            ``runs/<name>-sweep-<time>``.
        verbosity: -1 quiet, 0 normal, 1 verbose.

    Returns:
        The content of sweep.json.

    Raises:
        ConfigError: if a budget is too small, before anything is trained.
        InputError: if data are bad, or ``run_dir`` holds something else.
    """
    first = next(iter(configs.values()))
    if run_dir is None:
        run_dir = Path("runs") / f"{first.name or 'run'}-sweep-{datetime.now():%Y%m%d-%H%M%S}"
    console = Console(stderr=True, quiet=verbosity < 0)
    with work_folder(run_dir, holds=RESULT, what="sweep"):
        set_up(first)
        prepared = prepare_splits(first, console=console, verbosity=verbosity)
        _check_data(run_dir, prepared)
        contenders = _contenders(configs, prepared)
        total = num_seeds * len(contenders)
        console.print(
            f"{total} runs; if interrupted, the same command with --run-dir {run_dir} goes on",
            highlight=False,
            soft_wrap=True,
        )
        for number in range(total):
            contender = contenders[number % len(contenders)]
            seed = first.train.seed + number // len(contenders)
            label = f"run {number + 1} of {total}: {contender.name}, seed {seed}"
            contender.train(seed, run_dir=run_dir, label=label, console=console)
            result = _result(run_dir, prepared, contenders, first)
            _write(run_dir, result)
    print_sweep(result, Console(quiet=verbosity < 0))
    return result


class _Contender:
    """A budget, or the baseline, with the reports of its runs by seed."""

    def __init__(self, name: str, config: RunConfig, prepared: Prepared, plan: Plan) -> None:
        self.name = name
        self.reports: dict[int, dict[str, Any]] = {}
        self.serving_bytes = _serving_bytes(plan, prepared)
        self._config = config
        self._plan = plan

    def train(self, seed: int, *, run_dir: Path, label: str, console: Console) -> None:
        """Trains with a seed, unless that has been done."""
        folder = run_dir / self.name.replace(" ", "-") / f"seed-{seed}"
        train = self._config.train.model_copy(update={"seed": seed})
        config = self._config.model_copy(update={"train": train})
        path = folder / "report.json"
        if path.exists():
            if (folder / "config.yaml").read_text() != dump_config(apply_plan(config, self._plan)):
                raise InputError(
                    f"{folder} holds a run with other settings; give another --run-dir"
                )
        else:
            console.print(label, highlight=False)
            # A run that was cut off goes on from its newest checkpoint.
            run(config, run_dir=folder, verbosity=-1, resume=True, plan=self._plan)
        self.reports[seed] = json.loads(path.read_text())


def _contenders(configs: Mapping[str, RunConfig], prepared: Prepared) -> list[_Contender]:
    """The baseline, then the budgets, all planned."""
    first = next(iter(configs.values()))
    fp32 = _baseline(first)
    contenders = [_Contender(BASELINE, fp32, prepared, make_plan(fp32, prepared))]
    worth = measure(first, prepared)
    for name, config in configs.items():
        plan = make_plan(config, prepared, worth=worth)
        contenders.append(_Contender(f"budget {name}", config, prepared, plan))
    return contenders


def _baseline(config: RunConfig) -> RunConfig:
    """The same run with FP32 rows for all ids."""
    open_ = {"min_count": None, "max_rows": None, "buckets": None}
    vocabularies = {
        name: settings.model_copy(update=open_) for name, settings in config.vocabularies.items()
    }
    memory = MemoryConfig()
    features = config.features.sparse
    names = {feature.vocabulary or name for name, feature in features.items()}
    pooled = not any(is_sequence(feature) for feature in features.values())
    has = pooled and fbgemm_has(config.embedding, memory, names)
    backend = "fbgemm" if has else "edorec"
    embedding = config.embedding.model_copy(update={"backend": backend})
    return config.model_copy(
        update={"vocabularies": vocabularies, "memory": memory, "embedding": embedding}
    )


def _serving_bytes(plan: Plan, prepared: Prepared) -> int:
    """Rows as trained and the index of ids that an export of them has."""
    total = 0
    for table in plan.tables:
        total += table.weights_bytes
        if table.name != table.vocabulary:  # a task's rows are found by the same index
            continue
        hashes = read_hashes(prepared.vocabularies[table.vocabulary].path)
        ends = [sum(band.rows for band in table.bands[: k + 1]) for k in range(len(table.bands))]
        parts = [hashes[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        index, _ = build_index(parts)
        total += sum(array.nbytes for array in index.arrays().values())
    return total


def _check_data(run_dir: Path, prepared: Prepared) -> None:
    """Refuses to go on with runs on other data."""
    path = run_dir / RESULT
    if not path.exists():
        write_file(path, json.dumps({"data": prepared.key}) + "\n")
    if json.loads(path.read_text())["data"] != prepared.key:
        raise InputError(f"{run_dir} holds a sweep over other data; give another --run-dir")


def _result(
    run_dir: Path, prepared: Prepared, contenders: list[_Contender], config: RunConfig
) -> dict[str, Any]:
    """The content of sweep.json."""
    tasks = list(config.tasks)
    base = contenders[0].reports
    return {
        "run": str(run_dir),
        "data": prepared.key,
        "tasks": tasks,
        "task": config.train.early_stopping.task or tasks[0],
        "baseline": f"FP32 rows for all ids, {'FBGEMM' if _is_fbgemm(config) else 'edorec'}",
        "contenders": [_entry(c, base, tasks) for c in contenders if c.reports],
    }


def _is_fbgemm(config: RunConfig) -> bool:
    return _baseline(config).embedding.backend == "fbgemm"


def _entry(
    contender: _Contender, base: Mapping[int, dict[str, Any]], tasks: list[str]
) -> dict[str, Any]:
    """Figures of a contender: means over seeds, standard deviations where there are several."""
    reports = contender.reports
    memory = next(iter(reports.values()))["memory"]
    paired = [seed for seed in reports if seed in base]
    return {
        "name": contender.name,
        "seeds": sorted(reports),
        "total_bytes": memory["total_bytes"],
        "of_fp32": memory["total_bytes"] / memory["baseline_bytes"],
        "serving_bytes": contender.serving_bytes,
        "rows_per_second": mean(r["speed"]["train_rows_per_second"] for r in reports.values()),
        "auc": {task: _spread([_auc(r, task) for r in reports.values()]) for task in tasks},
        "auc_minus_fp32": {
            task: _spread([_difference(reports[s], base[s], task) for s in paired])
            for task in tasks
        },
    }


def _auc(report: dict[str, Any], task: str) -> float | None:
    auc: float | None = report["tasks"][task]["auc"]
    return auc


def _difference(report: dict[str, Any], base: dict[str, Any], task: str) -> float | None:
    ours, theirs = _auc(report, task), _auc(base, task)
    return None if ours is None or theirs is None else ours - theirs


def _spread(values: list[float | None]) -> dict[str, float | None]:
    """Mean and standard deviation; None where undefined."""
    known = [value for value in values if value is not None]
    return {
        "mean": mean(known) if known else None,
        "sd": stdev(known) if len(known) > 1 else None,
    }


def _write(run_dir: Path, result: dict[str, Any]) -> None:
    write_file(run_dir / RESULT, json.dumps(result, indent=2, allow_nan=False) + "\n")
    plot_sweep(run_dir, result)
    write_file(run_dir / "sweep.md", sweep_markdown(result))
