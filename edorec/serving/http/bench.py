"""``edorec bench-serve``: rows of files as load for a server, and what came of it."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from edorec.errors import InputError
from edorec.output_folder import write_file
from edorec.progress import Progress
from edorec.serving.files import chunks, open_files
from edorec.serving.http import load

_NUM_BODIES = 500  # different requests
_SEED = 0


@dataclass(frozen=True)
class Plan:
    """What is sent.

    Attributes:
        url: of the server.
        files: Parquet files, folders or globs.
        user_columns: columns of the user; none: each row stands for itself.
        rows_per_request: rows, or candidates, of a request.
        rate: requests a second, None: back to back.
        seconds: how long.
        connections: most requests under way.
    """

    url: str
    files: Sequence[str]
    user_columns: Sequence[str]
    rows_per_request: int
    rate: float | None
    seconds: float
    connections: int


def run(plan: Plan, *, verbosity: int) -> load.Outcome:
    """Sends the load.

    Raises:
        InputError: if there is no server, or the files do not fit it.
    """
    rows = read_rows(plan.files, load.get_inputs(plan.url), user_columns=plan.user_columns)
    if plan.user_columns:
        path = "/v1/candidates"
        bodies = load.candidates_bodies(
            rows,
            user_columns=plan.user_columns,
            candidates=plan.rows_per_request,
            num=_NUM_BODIES,
            seed=_SEED,
        )
    else:
        path = "/v1/score"
        bodies = load.rows_bodies(
            rows, rows_per_request=plan.rows_per_request, num=_NUM_BODIES, seed=_SEED
        )
    with Progress(
        total=load.planned_requests(plan.rate, plan.seconds),
        unit="requests",
        description="send",
        verbosity=verbosity,
    ) as progress:
        return load.run_load(
            plan.url,
            path,
            bodies,
            rate=plan.rate,
            seconds=plan.seconds,
            connections=plan.connections,
            progress=progress,
        )


def report(plan: Plan, outcome: load.Outcome, *, json_path: Path | None, quiet: bool) -> None:
    """Prints the figures and writes them to ``json_path`` if given."""
    answered = len(outcome.milliseconds)
    figures = {
        "requests": outcome.statuses.total(),
        "answered": answered,
        "requests_per_second": answered / outcome.seconds,
        "rows_per_second": answered * plan.rows_per_request / outcome.seconds,
        **{f"p{share}_ms": outcome.percentile(share) for share in (50, 90, 99)},
        "max_ms": outcome.percentile(100),
    }
    if json_path is not None:
        numbers = {n: v if math.isfinite(v) else None for n, v in figures.items()}
        content = {
            "plan": asdict(plan),
            **numbers,
            "statuses": {str(status): count for status, count in outcome.statuses.items()},
        }
        write_file(json_path, json.dumps(content, indent=2) + "\n")
    if quiet:
        return
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}" if isinstance(value, float) else f"{value:,}")
    for status, count in sorted(outcome.statuses.items()):
        name = f"status {status}" if status else "broken connections"
        table.add_row(name, f"{count:,}")
    Console().print(table)
    if outcome.first_error:
        Console().print(f"first error: {outcome.first_error}", markup=False)


def read_rows(
    files: Sequence[str], inputs: Sequence[str], *, user_columns: Sequence[str]
) -> pa.Table:
    """The first rows of files, in the columns that are inputs of the model.

    Raises:
        InputError: if the files do not fit the model.
    """
    opened = open_files(files, key="--input")
    unknown = [name for name in user_columns if name not in inputs]
    if unknown:
        raise InputError(f"--user {unknown[0]}: the model has no such input; {', '.join(inputs)}")
    wanted = [name for name in inputs if name in opened[0].names]
    if set(wanted) <= set(user_columns):
        raise InputError(f"--input: no column of {opened[0].path} is an input besides --user")
    absent = [name for name in user_columns if name not in wanted]
    if absent:
        raise InputError(f"--user {absent[0]}: {opened[0].path} has no such column")
    for _, rows in chunks(opened, wanted):
        return rows
    raise InputError("--input: the files hold no rows")
