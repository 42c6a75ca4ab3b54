"""The edorec command: one small function for each subcommand.

Modules that load torch or DuckDB are imported inside the commands, the one exception to imports at
the top of a module: ``--help`` and everything that is wrong with a configuration must come at once,
and on a machine where torch or FBGEMM do not load.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from edorec.config import load_config, print_config
from edorec.errors import InputError
from edorec.search_space import check_optuna, search_space, without_test
from edorec.versions import check_versions, load_fbgemm

USER_ERROR, INTERRUPTED = 2, 130

Config = Annotated[
    str,
    typer.Option(
        "--config",
        metavar="NAME|FILE",
        help="A YAML file, or the name of one in configs/ (with or without .yaml).",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a value of the file: a dotted key, a value in YAML. May be repeated.",
    ),
]
Values = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Overrides, like --set.", show_default=False),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print more.")]

TRAIN_HELP = """Train a model and report its AUC and its memory.

The run folder gets the configuration, metrics, reports, plots and the best
model. docs/config.md describes every key of a configuration.

Examples:

  edorec train --config kuairand

  edorec train --config kuairand train.epochs=2 embedding.dim=8

  edorec train --config my.yaml --set train.seed=1 --run-dir runs/seed-1

  edorec train --config my.yaml --print-config

A name that holds dots is quoted: "features.sparse.'user.id'.column=uid"
"""

PREPARE_HELP = """Count ids and encode the data of a configuration, as training does first.

What has been prepared from the same files and settings is used again.

Example:

  edorec prepare --config kuairand
"""

EVALUATE_HELP = """Compute the metrics of a trained model on a split or on other files.

Examples:

  edorec evaluate runs/first

  edorec evaluate runs/first --split valid

  edorec evaluate runs/first --data "/data/may/*.parquet"
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


@contextmanager
def _reported() -> Iterator[None]:
    """Ends the command with a plain message where the user, not the program, has to act."""
    try:
        yield
    except InputError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(USER_ERROR) from error
    except KeyboardInterrupt as error:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from error


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
    show: Annotated[
        bool,
        typer.Option("--print-config", help="Print every value and where it came from, then stop."),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Trains a model."""
    with _reported():
        loaded = load_config(config, [*(overrides or []), *(values or [])])
        if show:
            typer.echo(print_config(loaded), nl=False)
            return
        check_versions()
        from edorec.data.prepare import check_schema

        check_schema(
            data=loaded.config.data, features=loaded.config.features, tasks=loaded.config.tasks
        )
        load_fbgemm()
        from edorec.train import run

        run(loaded.config, run_dir=run_dir, verbosity=_verbosity(quiet, verbose))


@app.command(help=PREPARE_HELP)
def prepare(
    config: Config,
    values: Values = None,
    overrides: Set = None,
    quiet: Quiet = False,
) -> None:
    """Prepares the data of a configuration."""
    with _reported():
        loaded = load_config(config, [*(overrides or []), *(values or [])])
        from edorec.data.prepare import prepare as prepare_data
        from edorec.progress import StageProgress
        from edorec.summaries import print_prepared

        with StageProgress(unit="rows", verbosity=_verbosity(quiet, False)) as on_progress:
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
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of a finished run.")],
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
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Evaluates a finished run."""
    with _reported():
        check_versions()
        load_fbgemm()
        from edorec.evaluate import evaluate as evaluate_run
        from edorec.summaries import print_evaluation

        verbosity = _verbosity(quiet, verbose)
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
    with _reported():
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
            verbosity=_verbosity(quiet, verbose),
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
    with _reported():
        from edorec.init import write_config

        text = write_config(data, out=out)
        typer.echo(text if out is None else f"wrote {out}", nl=out is not None)


def _verbosity(quiet: bool, verbose: bool) -> int:
    """-1 quiet, 0 normal, 1 verbose."""
    return int(verbose) - int(quiet)


def main() -> None:
    """Entry of the ``edorec`` command."""
    app(prog_name="edorec")


def train_main() -> None:
    """Entry of ``train.py``: exactly ``edorec train``."""
    train_app(prog_name=Path(sys.argv[0]).name)


if __name__ == "__main__":
    main()
