"""Subcommands of the memory budget: plan and sweep."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from edorec.cli_options import Config, Quiet, Set, Values, Verbose, reported, verbosity_of
from edorec.config import load_config
from edorec.versions import check_versions, load_fbgemm

PLAN_HELP = """Show what a memory budget decides, without training.

Reads how often each id was seen and what ids are worth, then chooses for each
table which ids have rows of their own and in which formats, so that rows and
optimizer state fit. The data are prepared first if the cache lacks them.

The column "kept" is the share of what a table's ids are worth that the plan
keeps, as far as can be told without training.

What the configuration gives (vocabularies.NAME.min_count, max_rows, buckets,
memory.tables.NAME) stays as it is. Training with the same budget does what the
plan says; without a budget, the tables as configured are shown.

Examples:

  edorec plan --config ecommerce --budget 0.25

  edorec plan --config my.yaml --budget 800MB memory.tables.item.format=int8

  edorec train --config ecommerce memory='{budget: 0.25}'
"""

SWEEP_HELP = """Train at several memory budgets: AUC over bytes, as a table and plots.

Every budget is a whole run in the run folder, beside a baseline: FP32 rows for
all ids in FBGEMM's tables, which torchrec uses. Seeds are paired: run K of each
has seed train.seed + K - 1. The data are prepared once. The same command with
--run-dir goes on where it was stopped, and takes more budgets or seeds.

Written to the run folder: sweep.md, sweep.json, sweep.png, sweep.svg.

Examples:

  edorec sweep --config ecommerce --budgets 1.0,0.5,0.25,0.125,0.0625,0.03

  edorec sweep --config my.yaml --budgets 0.25,64MB --seeds 3 --run-dir runs/sweep
"""

Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="SHARE|SIZE",
        help="In place of the configuration's memory.budget, format, state and bands.",
    ),
]


def budget_overrides(budget: str) -> list[str]:
    """Overrides under which a budget decides the formats of all tables."""
    return [
        f"memory.budget={budget}",
        "memory.format=null",
        "memory.state=null",
        "memory.bands=[]",
    ]


def plan(
    config: Config,
    values: Values = None,
    budget: Budget = None,
    overrides: Set = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File to write the plan to; default runs/<name>-plan.json."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Plans the tables of a configuration."""
    with reported():
        given = [*(overrides or []), *(values or [])]
        loaded = load_config(config, given + ([] if budget is None else budget_overrides(budget)))
        from edorec.data.prepare import prepare
        from edorec.planning.plan import write_plan
        from edorec.planning.planner import make_plan
        from edorec.planning.show import print_plan
        from edorec.progress import StageProgress

        with StageProgress(unit="rows", verbosity=verbosity_of(quiet, False)) as on_progress:
            prepared = prepare(
                data=loaded.config.data,
                features=loaded.config.features,
                vocabularies=loaded.config.vocabularies,
                tasks=loaded.config.tasks,
                on_progress=on_progress,
            )
        made = make_plan(loaded.config, prepared)
        path = out or Path("runs") / f"{loaded.config.name}-plan.json"
        write_plan(path, made)
        if not quiet:
            print_plan(made, Console())
            typer.echo(f"plan: {path}")


def sweep(
    config: Config,
    values: Values = None,
    budgets: Annotated[
        str,
        typer.Option(
            "--budgets",
            metavar="B,B,...",
            help="Shares of FP32's bytes (above 0, at most 1) or sizes, such as 64MB.",
        ),
    ] = "1.0,0.5,0.25,0.125,0.0625,0.03",
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, metavar="N", help="Runs of each; paired.")
    ] = 1,
    overrides: Set = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir",
            help="Folder to write, or that of a sweep to go on with; "
            "default runs/<name>-sweep-<time>.",
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Trains at several budgets."""
    with reported():
        given = [*(overrides or []), *(values or [])]
        names = [budget.strip() for budget in budgets.split(",")]
        loaded = {name: load_config(config, given + budget_overrides(name)) for name in names}
        check_versions()
        from edorec.data.prepare import check_schema

        first = next(iter(loaded.values())).config
        check_schema(data=first.data, features=first.features, tasks=first.tasks)
        load_fbgemm()
        from edorec.sweep import sweep as run_sweep

        run_sweep(
            {name: of_budget.config for name, of_budget in loaded.items()},
            num_seeds=seeds,
            run_dir=run_dir,
            verbosity=verbosity_of(quiet, verbose),
        )
