"""``edorec bench-serve`` against a real server."""

import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from tests.serving.http.process import Server
from tests.toy import toy_rows


@pytest.fixture(scope="module")
def server(exported):
    with Server(exported, "--timeout", "60", "--max-rows", "50") as running:
        yield running


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(toy_rows(200), path)
    return path


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edorec.cli", "bench-serve", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize(
    ("options", "rows_per_request"),
    [
        (["--rate", "30", "--user", "user", "--user", "viewed", "--candidates", "20"], 20),
        (["--connections", "2", "--rows", "3"], 3),
    ],
)
def test_figures_of_a_load(server, rows, tmp_path, options, rows_per_request):
    out = tmp_path / "load.json"
    common = ["--url", server.url, "--input", str(rows), "--seconds", "1", "--json", str(out)]
    done = bench(*common, *options)
    assert done.returncode == 0, done.stderr + done.stdout
    figures = json.loads(out.read_text())
    assert figures["requests"] == figures["answered"] == figures["statuses"]["200"] > 0
    assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["max_ms"]
    rate = figures["rows_per_second"] / figures["requests_per_second"]
    assert rate == pytest.approx(rows_per_request)
    assert "p99_ms" in done.stdout


def test_refusals_are_counted_and_the_exit_code_tells(server, rows):
    options = ["--rows", "51", "--rate", "5", "--seconds", "1"]
    done = bench("--url", server.url, "--input", str(rows), *options)
    assert done.returncode == 1
    assert "status 413" in done.stdout
    assert "first error: 413: 51 rows in one request; at most 50 are allowed" in done.stdout


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--user", "usr"], "--user usr: the model has no such input; item, user, viewed, price"),
        (["--url", "http://127.0.0.1:9"], "--url http://127.0.0.1:9: no edorec server answers"),
        (["--url", "ftp://x"], "--url ftp://x: wanted http://HOST:PORT"),
    ],
)
def test_what_does_not_fit_is_named(server, rows, options, text):
    done = bench("--url", server.url, "--input", str(rows), *options)
    assert done.returncode == 2
    assert text in done.stderr
