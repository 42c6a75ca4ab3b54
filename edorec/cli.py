"""The edorec command: one small function for each subcommand.

Modules that load torch or DuckDB are imported inside the commands, the one exception to imports at
the top of a module: ``--help`` and everything that is wrong with a configuration must come at once,
and on a machine where torch or FBGEMM do not load.
"""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from edorec import cli_http, cli_planning, cli_serving
from edorec.cli_options import (
    Config,
    Quiet,
    Set,
    Values,
    Verbose,
    path_overrides,
    reported,
    verbosity_of,
)
from edorec.config import load_config, print_config
from edorec.errors import InputError
from edorec.search_space import check_optuna, search_space, without_test
from edorec.versions import check_versions, load_fbgemm

TRAIN_HELP = """Train a model and report its AUC and its memory.

The run folder gets the configuration, metrics, reports, plots and the best
model. docs/config.md describes every key of a configuration.

Examples:

  edorec train --config kuairand

  edorec train --config kuairand train.epochs=2 embedding.dim=8

  edorec train --config my.yaml --set train.seed=1 --run-dir runs/seed-1

  edorec train --config my.yaml --print-config

  edorec train --config my.yaml --run-dir runs/seed-1 --resume

The last one goes on after an interruption, from the newest checkpoint
(docs/checkpoints.md).

  edorec train --config tomorrow.yaml --extend runs/today

goes on from a finished run with another day's data (docs/vocabularies.md).

  edorec train --config my.yaml --nproc 2

trains in two processes (docs/distributed.md, also for several machines).

A name that holds dots is quoted: "features.sparse.'user.id'.column=uid"
"""

PREPARE_HELP = """Count ids and encode the data of a configuration, as training does first.

What has been prepared from the same files and settings is used again.

With --extend the ids of a finished run keep their counts, and those of these
data are added: docs/vocabularies.md.

Examples:

  edorec prepare --config kuairand

  edorec prepare --config tomorrow.yaml --extend runs/today --decay 0.9
"""

EVALUATE_HELP = """Compute the metrics of a trained model, or of scores in a file.

RESULT is the folder of a run, whose model is evaluated on a split or on other
files, or a Parquet file (or glob) of scores made anywhere, with --label.

Examples:

  edorec evaluate runs/first

  edorec evaluate runs/first --split valid

  edorec evaluate runs/first --data "/data/may/*.parquet"

  edorec evaluate scores.parquet --label is_click --score score_click --group user_id
"""

TUNE_HELP = """Search for learning rates, weight decay and epochs on the validation split.

Each trial trains with other values and is judged by the task and metric of
train.early_stopping; the test split is not read. The run folder gets
best.yaml, the whole configuration with the best values, tune.json, all
trials, and study.db, the search itself. Needs Optuna: pip install optuna.

--trials counts all trials of a run folder: the same command with --run-dir
goes on with a search that was interrupted, a larger number extends it.

Searched, unless --set fixes them (docs/tuning.md):

  embedding.learning_rate        0.01..1, logarithmic

  embedding.initial_accumulator  1e-10..1e-3, logarithmic

  embedding.weight_decay         1e-5..0.1, logarithmic, or 0

  train.learning_rate            3e-4..5e-3, logarithmic

  train.epochs                   1..4

Examples:

  edorec tune --config kuairand --trials 30 --run-dir runs/search

  edorec train --config runs/search/best.yaml

  edorec tune --config my.yaml embedding.weight_decay=0 train.epochs=1

  edorec tune --config my.yaml --range embedding.learning_rate=0.05..0.5
"""

INIT_HELP = """Write a first configuration for a log, with its guesses marked as such.

A folder with train, valid and test files or folders is used as it is split.

Examples:

  edorec init /data/log --out my.yaml

  edorec train --config my.yaml
"""

app = typer.Typer(
    help="Train click-through-rate models inside an embedding-memory budget.",
    epilog="A new log: edorec init DATA --out my.yaml, then edorec train --config my.yaml",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
train_app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command(help=TRAIN_HELP)
@train_app.command(help=TRAIN_HELP)
def train(
    config: Config,
    values: Values = None,
    overrides: Set = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir", help="Folder to write, new or empty; default runs/<name>-<time>."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on from the newest complete checkpoint of --run-dir (default the newest run "
            "of this name); from the beginning where there is none.",
        ),
    ] = False,
    extend: Annotated[
        Path | None,
        typer.Option(
            "--extend",
            metavar="RUN",
            help="Go on from a finished run with new data: its vocabularies grow, and its best "
            "model is the start. Sets data.extend and train.warm_start.",
        ),
    ] = None,
    warm_start: Annotated[
        Path | None,
        typer.Option(
            "--warm-start",
            metavar="RUN",
            help="Start from the best model of a finished run, like train.warm_start; says what "
            "fits and what starts anew.",
        ),
    ] = None,
    num_processes: Annotated[
        int,
        typer.Option(
            "--nproc",
            min=1,
            metavar="N",
            help="Train in so many processes on this machine, like torchrun --nproc-per-node N.",
        ),
    ] = 1,
    show: Annotated[
        bool,
        typer.Option("--print-config", help="Print every value and where it came from, then stop."),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Trains a model."""
    with reported():
        start = path_overrides({"data.extend": extend, "train.warm_start": warm_start or extend})
        loaded = load_config(config, [*start, *(overrides or []), *(values or [])])
        if show:
            typer.echo(print_config(loaded), nl=False)
            return
        check_versions()
        from edorec.data.prepare import check_schema

        check_schema(
            data=loaded.config.data, features=loaded.config.features, tasks=loaded.config.tasks
        )
        load_fbgemm()
        from edorec.processes import joined, num_started

        if num_processes > 1 and num_started() == 1:
            from edorec.launch import launch

            raise typer.Exit(launch(num_processes, train_arguments(sys.argv)))
        from edorec.train import run

        with joined(loaded.config.train.device) as processes:
            run(
                loaded.config,
                run_dir=run_dir,
                resume=resume,
                verbosity=verbosity_of(quiet, verbose),
                processes=processes,
            )


@app.command(help=PREPARE_HELP)
def prepare(
    config: Config,
    values: Values = None,
    overrides: Set = None,
    extend: Annotated[
        Path | None,
        typer.Option(
            "--extend",
            metavar="RUN",
            help="Grow the vocabularies of a finished run by these data, like data.extend.",
        ),
    ] = None,
    decay: Annotated[
        float | None,
        typer.Option(
            "--decay",
            metavar="SHARE",
            help="With --extend: share of its earlier count that an id keeps, like data.decay.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Prepares the data of a configuration."""
    with reported():
        given = path_overrides({"data.extend": extend})
        given += [] if decay is None else [f"data.decay={decay}"]
        loaded = load_config(config, [*given, *(overrides or []), *(values or [])])
        from edorec.data.prepare import prepare as prepare_data
        from edorec.progress import StageProgress
        from edorec.summaries import print_prepared

        with StageProgress(unit="rows", verbosity=verbosity_of(quiet, False)) as on_progress:
            prepared = prepare_data(
                data=loaded.config.data,
                features=loaded.config.features,
                vocabularies=loaded.config.vocabularies,
                tasks=loaded.config.tasks,
                on_progress=on_progress,
            )
        if not quiet:
            print_prepared(prepared)


@app.command(help=EVALUATE_HELP)
def evaluate(
    result: Annotated[
        str,
        typer.Argument(metavar="RESULT", help="Folder of a finished run, or a file of scores."),
    ],
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="FILES",
            help="Parquet files in place of a split: a file, folder or glob. May be repeated.",
        ),
    ] = None,
    split: Annotated[
        Literal["train", "valid", "test"], typer.Option("--split", help="Split of the run's data.")
    ] = "test",
    label: Annotated[
        str | None, typer.Option("--label", help="Scores in a file: column of the label.")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            "--score", help="Scores in a file: column of probabilities; default the only score_*."
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="Scores in a file: column of groups, for GAUC.")
    ] = None,
    weight: Annotated[
        str | None, typer.Option("--weight", help="Scores in a file: column of sample weights.")
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Evaluates a finished run, or scores."""
    with reported():
        if label is not None:
            cli_serving.evaluate_file(result, label=label, score=score, group=group, weight=weight)
            return
        run_dir = Path(result)
        if run_dir.is_file():
            raise InputError(f"{result} is a file of scores; name its label with --label")
        check_versions()
        load_fbgemm()
        from edorec.evaluate import evaluate as evaluate_run
        from edorec.summaries import print_evaluation

        verbosity = verbosity_of(quiet, verbose)
        print_evaluation(evaluate_run(run_dir, files=files, split=split, verbosity=verbosity))


@app.command(help=TUNE_HELP)
def tune(
    config: Config,
    values: Values = None,
    trials: Annotated[
        int, typer.Option("--trials", min=1, metavar="N", help="Trials in all.")
    ] = 20,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range", metavar="KEY=LOW..HIGH", help="Another range of a key. May be repeated."
        ),
    ] = None,
    overrides: Set = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir",
            help="Folder to write, or that of a search to go on with; "
            "default runs/<name>-tune-<time>.",
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Searches for better settings."""
    with reported():
        loaded = load_config(config, [*(overrides or []), *(values or [])])
        space = search_space(loaded, ranges or [])
        check_optuna()
        check_versions()
        from edorec.data.prepare import check_schema

        searched = without_test(loaded.config)
        check_schema(data=searched.data, features=searched.features, tasks=searched.tasks)
        load_fbgemm()
        from edorec.tune import tune as run_search

        run_search(
            loaded.config,
            space,
            num_trials=trials,
            run_dir=run_dir,
            verbosity=verbosity_of(quiet, verbose),
        )


@app.command(help=INIT_HELP)
def init(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A Parquet file, a folder of them, or a glob.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write; default the screen.")
    ] = None,
) -> None:
    """Writes a first configuration."""
    with reported():
        from edorec.init import write_config

        text = write_config(data, out=out)
        typer.echo(text if out is None else f"wrote {out}", nl=out is not None)


app.command(help=cli_planning.PLAN_HELP)(cli_planning.plan)
app.command(help=cli_planning.SWEEP_HELP)(cli_planning.sweep)
app.command(help=cli_serving.EXPORT_HELP)(cli_serving.export)
app.command(help=cli_serving.SCORE_HELP)(cli_serving.score)
app.command(name="predict", help="The same as score.")(cli_serving.score)
app.command(help=cli_http.SERVE_HELP)(cli_http.serve)
app.command(name="bench-serve", help=cli_http.BENCH_HELP)(cli_http.bench_serve)


def train_arguments(argv: list[str]) -> list[str]:
    """Arguments of ``edorec`` that do what this command does, which may be ``train.py``."""
    return argv[1:] if argv[1:2] == ["train"] else ["train", *argv[1:]]


def main() -> None:
    """Entry of the ``edorec`` command."""
    app(prog_name="edorec")


def train_main() -> None:
    """Entry of ``train.py``: exactly ``edorec train``."""
    train_app(prog_name=Path(sys.argv[0]).name)


if __name__ == "__main__":
    main()
