"""Subcommands of the serving model: export, score, and metrics of scores in a file."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from edorec.cli_options import Quiet, Verbose, reported, verbosity_of
from edorec.errors import InputError
from edorec.versions import check_versions, load_fbgemm

EXPORT_HELP = """Write the serving model of a run.

The folder holds all that scoring needs: the dense part, the tables in their
serving format, a compact index of ids, checksums and a model card. It is
checked against the run on its test split (or --data): if the AUC of a task
falls by more than --max-auc-loss, nothing is written.

Formats: as-trained, fp32, fp16, int8, int4, int2, sparse28, pq (product
quantization, needs scikit-learn); int8:100:pq is INT8 for ids that training
saw 100 times or more and pq for the others; item=int4 is for one table; auto
tries which are the smallest that keep --max-auc-loss on the validation split.
Rows that take fewer bytes as trained stay so.

Examples:

  edorec export --run runs/first --out models/first

  edorec export --run runs/first --out models/small --format int4

  edorec export --run runs/first --out models/mixed --format int8 --format user=int4

  edorec export --run runs/first --out models/tiny --format int8:100:pq --min-count 2
"""

SCORE_HELP = """Score Parquet files with an exported model.

Writes score_<task> of every row, in order, beside the columns of --keep.

Examples:

  edorec score --model models/first --input "/data/may/*.parquet" --output scores.parquet

  edorec score --model models/first --input may.parquet --output out.parquet --keep user_id
"""


def export(
    run_dir: Annotated[Path, typer.Option("--run", help="Folder of a finished run.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write; must not exist.")],
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", metavar="[TABLE=]FORMAT", help="Serving format. May be repeated."),
    ] = None,
    min_count: Annotated[
        int,
        typer.Option(
            "--min-count", min=1, help="Ids seen less often in training get their bucket's row."
        ),
    ] = 1,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data", metavar="FILES", help="Files with labels to check on. May be repeated."
        ),
    ] = None,
    max_auc_loss: Annotated[
        float, typer.Option("--max-auc-loss", help="Most that the AUC of a task may fall by.")
    ] = 0.002,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Exports a run."""
    with reported():
        check_versions()
        load_fbgemm()
        from edorec.serving.export import export as export_run
        from edorec.serving.export import print_export
        from edorec.serving.formats import parse_formats

        manifest = export_run(
            run_dir,
            out,
            formats=parse_formats(formats or []),
            min_count=min_count,
            data=data,
            max_auc_loss=max_auc_loss,
            verbosity=verbosity_of(quiet, verbose),
        )
        if not quiet:
            print_export(manifest, out)


def score(
    model: Annotated[Path, typer.Option("--model", help="Folder of an exported model.")],
    files: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="FILES",
            help="Parquet files: a file, folder or glob. May be repeated.",
        ),
    ],
    out: Annotated[Path, typer.Option("--output", help="Parquet file to write.")],
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="COLUMN", help="Column to copy. May be repeated."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Scores files."""
    with reported():
        check_versions()
        load_fbgemm()
        from edorec.serving.files import open_files
        from edorec.serving.model import ServingModel
        from edorec.serving.scoring import score as score_files

        rows = score_files(
            ServingModel(model),
            open_files(files, key="--input"),
            out,
            keep=keep or [],
            verbosity=verbosity_of(quiet, False),
        )
        if not quiet:
            typer.echo(f"{rows:,} rows: {out}")


def evaluate_file(
    files: str, *, label: str, score: str | None, group: str | None, weight: str | None
) -> None:
    """Prints the metrics of scores in files."""
    from edorec.serving.evaluation import evaluate_scores
    from edorec.serving.files import open_files
    from edorec.summaries import print_evaluation

    opened = open_files(files, key="RESULT")
    if score is None:
        found = [name for name in opened[0].names if name.startswith("score_")]
        if len(found) != 1:
            have = ", ".join(found) or "none"
            raise InputError(f"{files}: name the column of scores with --score (score_*: {have})")
        score = found[0]
    with tempfile.TemporaryDirectory() as folder:
        metrics = evaluate_scores(
            opened, label=label, score=score, group=group, weight=weight, folder=Path(folder)
        )
    print_evaluation({"tasks": {label: metrics}})
