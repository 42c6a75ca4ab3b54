"""Latency over HTTP on loopback: one user with 200 candidates, at stated loads and at the limit.

A server process scores on one core, the client runs on another. Requests start at random moments
(Poisson) and their time counts from there. The same rows with the user repeated in each, as the
rows form takes them, are sent alternately at the middle load. Medians over rounds.

    python -m benchmarks.serving_http --model DIR [--input FILES] [--quick] [--json FILE]
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figures import Figure, write_figures
from edorec.errors import InputError
from edorec.progress import Progress
from edorec.serving.http import load
from edorec.serving.http.bench import read_rows

CANDIDATES = 200
RATES = (10.0, 30.0, 60.0)  # requests a second
PAIRED_RATE = 30.0
MOST_P99_MS = 10.0
USER_COLUMNS = (
    *("user_id", "viewed", "bought", "query", "referrer", "device", "city", "region"),
    *("membership", "hour", "weekday", "hour_of_day", "session_depth"),
)


@contextmanager
def server(model: Path) -> Iterator[str]:
    """URL of a server process on the first core."""
    command = [sys.executable, "-m", "edorec.cli", "serve", "--model", str(model), "--port", "0"]
    core = min(os.sched_getaffinity(0))
    process = subprocess.Popen(
        [*command, "--drain", "0", "--timeout", "30"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    assert process.stderr is not None
    lines = []
    try:
        for line in process.stderr:
            lines.append(line)
            if " serves (" in line:
                break
        else:
            raise InputError("the server does not start:\n" + "".join(lines))
        listening = next(line for line in lines if "listening on " in line)
        yield listening.split("listening on ")[1].split()[0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def measure(model: Path, files: list[str], *, num_rounds: int, seconds: float) -> list[Figure]:
    """Figures of a model; the client keeps off the server's core."""
    cores = os.sched_getaffinity(0)
    with server(model) as url:
        os.sched_setaffinity(0, cores - {min(cores)} or cores)
        try:
            return _figures(url, files, num_rounds=num_rounds, seconds=seconds)
        finally:
            os.sched_setaffinity(0, cores)


def _figures(url: str, files: list[str], *, num_rounds: int, seconds: float) -> list[Figure]:
    rows = read_rows(files, load.get_inputs(url), user_columns=USER_COLUMNS)
    bodies = load.candidates_bodies(
        rows, user_columns=USER_COLUMNS, candidates=CANDIDATES, num=200, seed=0
    )
    repeated = [_as_rows(body) for body in bodies]
    taken: dict[object, list[load.Outcome]] = defaultdict(list)
    for _ in range(num_rounds):
        for rate in RATES:
            taken[rate].append(_send(url, "/v1/candidates", bodies, rate, seconds))
        taken["rows"].append(_send(url, "/v1/score", repeated, PAIRED_RATE, seconds))
        taken["limit"].append(_send(url, "/v1/candidates", bodies, None, seconds))
    figures = []
    for rate in RATES:
        for share in (50, 99):
            value = statistics.median(o.percentile(share) for o in taken[rate])
            bound = MOST_P99_MS if (share, rate) == (99, RATES[0]) else None
            figures.append(Figure(f"p{share}, {rate:g} requests/s", value, "ms", at_most=bound))
    pairs = zip(taken["rows"], taken[PAIRED_RATE], strict=True)
    ratio = statistics.median(a.percentile(50) / b.percentile(50) for a, b in pairs)
    figures.append(
        Figure(f"p50 of the rows form over candidates, {PAIRED_RATE:g} requests/s", ratio, "ratio")
    )
    limit = statistics.median(len(o.milliseconds) / o.seconds for o in taken["limit"])
    figures.append(Figure("limit", limit, "requests/s"))
    figures.append(Figure("limit, rows", limit * CANDIDATES, "rows/s"))
    return figures


def _as_rows(body: bytes) -> bytes:
    """The same request in the rows form."""
    content = json.loads(body)
    columns = content["candidates"]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return json.dumps({"rows": [content["user"] | row for row in rows]}).encode()


def _send(
    url: str, path: str, bodies: list[bytes], rate: float | None, seconds: float
) -> load.Outcome:
    with Progress(total=0, unit="requests", description="send", verbosity=-1) as progress:
        outcome = load.run_load(
            url,
            path,
            bodies,
            rate=rate,
            seconds=seconds,
            connections=8 if rate is None else 32,
            progress=progress,
        )
    if set(outcome.statuses) != {200}:
        raise RuntimeError(f"{dict(outcome.statuses)}: {outcome.first_error}")
    return outcome


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, required=True, help="exported ecommerce model")
    parser.add_argument("--input", action="append", help="default data/ecommerce/log/test")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    files = args.input or ["data/ecommerce/log/test"]
    num_rounds, seconds = (1, 3.0) if args.quick else (3, 10.0)
    figures = measure(args.model, files, num_rounds=num_rounds, seconds=seconds)
    write_figures(figures, json_path=args.json)


if __name__ == "__main__":
    main()
