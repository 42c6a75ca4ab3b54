"""Subcommands of the HTTP server: serve and bench-serve."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from edorec.cli_options import Quiet, reported, verbosity_of
from edorec.errors import InputError
from edorec.kernel_cache import VARIABLE, load_kernels, use_kernel_cache
from edorec.versions import check_versions, load_fbgemm

_PACKAGES = ("fastapi", "httptools", "orjson", "prometheus_client", "uvicorn", "uvloop")

SERVE_HELP = """Serve an exported model over HTTP.

DIR is a folder that edorec export has written or a symlink to one. Switch the
symlink to another version (ln -s v2 next && mv -T next current), or replace
the folder, and the server takes the new version up without dropping a request;
SIGHUP makes it look at once. SIGTERM ends it when every request is answered.

/docs describes the routes: JSON rows, one user with many candidates, and the
Open Inference Protocol (KServe v2). /metrics is for Prometheus.

One process uses one core and a little of a second; run one for each core, on
ports of their own behind a balancer. They share the memory of the tables.

Examples:

  edorec serve --model models/first --port 8000

  edorec serve --model models/current --name shop --host 0.0.0.0 --timeout 0.5

  curl localhost:8000/v1/score -d '{"rows": [{"user_id": 7, "item_id": 42}]}'
"""


BENCH_HELP = """Measure a running server: latency at a rate, or its limit.

Requests hold rows of --input. With --user they are one user with --candidates
candidates: the columns of --user from one row, the others from random rows.
Without --rate each connection sends back to back, which finds the limit.

Examples:

  edorec bench-serve --input test.parquet --rate 100

  edorec bench-serve --input test.parquet --user user_id --user city --rate 50

  edorec bench-serve --input test.parquet --rows 100 --connections 32 --json load.json
"""


def serve(
    model: Annotated[
        Path, typer.Option("--model", metavar="DIR", help="An exported model, or a symlink to one.")
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the model in paths; default that of DIR."),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 is any free one.")
    ] = 8000,
    threads: Annotated[
        int, typer.Option("--threads", min=1, help="Threads that score a batch.")
    ] = 1,
    max_body: Annotated[
        float, typer.Option("--max-body-mb", min=0.001, help="Largest body of a request, in MB.")
    ] = 4.0,
    max_rows: Annotated[
        int, typer.Option("--max-rows", min=1, help="Most rows of a request.")
    ] = 10_000,
    batch_rows: Annotated[
        int, typer.Option("--batch-rows", min=1, help="Most rows of requests scored together.")
    ] = 2048,
    queue_rows: Annotated[
        int, typer.Option("--queue-rows", min=1, help="Most rows that wait; beyond: status 429.")
    ] = 20_000,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            min=0.001,
            help="Seconds until a body is read, and again until it is "
            "scored; beyond: status 408 and 503.",
        ),
    ] = 2.0,
    drain: Annotated[
        float,
        typer.Option(
            "--drain", min=0, help="Seconds after SIGTERM in which requests are still taken."
        ),
    ] = 1.0,
    watch: Annotated[
        float, typer.Option("--watch", min=0.05, help="Seconds between looks for a new version.")
    ] = 2.0,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read tables against their checksums at each load.")
    ] = False,
    log_requests: Annotated[
        bool, typer.Option("--log-requests", help="A line in the log for each request.")
    ] = False,
    kernel_cache: Annotated[
        Path | None,
        typer.Option(
            "--kernel-cache",
            envvar=VARIABLE,
            metavar="DIR",
            help="Folder for compiled kernels; needed where the installation is read-only.",
        ),
    ] = None,
) -> None:
    """Serves a model."""
    with reported():
        check_packages()
        use_kernel_cache(kernel_cache)
        check_versions()
        load_fbgemm()
        load_kernels()
        from edorec.serving.http.server import serve as run_server
        from edorec.serving.http.settings import ServeSettings

        run_server(
            ServeSettings(
                path=model,
                name=name or model.absolute().name,
                host=host,
                port=port,
                num_threads=threads,
                max_body_bytes=int(1_000_000 * max_body),
                max_rows=max_rows,
                batch_rows=batch_rows,
                queue_rows=queue_rows,
                timeout_seconds=timeout,
                drain_seconds=drain,
                watch_seconds=watch,
                verify=verify,
                log_requests=log_requests,
            )
        )


def bench_serve(
    files: Annotated[
        list[str],
        typer.Option(
            "--input", metavar="FILES", help="Parquet files with rows to send. May be repeated."
        ),
    ],
    url: Annotated[str, typer.Option("--url", help="Of the server.")] = "http://127.0.0.1:8000",
    user: Annotated[
        list[str] | None,
        typer.Option("--user", metavar="COLUMN", help="Column of the user. May be repeated."),
    ] = None,
    candidates: Annotated[
        int, typer.Option("--candidates", min=1, help="Candidates of a request, with --user.")
    ] = 200,
    rows: Annotated[
        int, typer.Option("--rows", min=1, help="Rows of a request, without --user.")
    ] = 1,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0.001, help="Requests a second; default back to back."),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="How long.")] = 10.0,
    connections: Annotated[
        int, typer.Option("--connections", min=1, help="Most requests under way.")
    ] = 16,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here too.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Measures a running server."""
    with reported():
        check_packages()
        from edorec.serving.http import bench

        plan = bench.Plan(
            url=url,
            files=files,
            user_columns=user or [],
            rows_per_request=candidates if user else rows,
            rate=rate,
            seconds=seconds,
            connections=connections,
        )
        outcome = bench.run(plan, verbosity=verbosity_of(quiet, False))
        bench.report(plan, outcome, json_path=json_path, quiet=quiet)
        if set(outcome.statuses) != {200}:
            raise typer.Exit(1)


def check_packages() -> None:
    """Imports what only the server needs.

    Raises:
        InputError: naming a package that is not installed, or does not load.
    """
    for package in _PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise InputError(
                f"edorec serve needs the package {package} ({error}): pip install 'edorec[serve]', "
                "or in a checkout pip install -r requirements/serve.txt"
            ) from error
