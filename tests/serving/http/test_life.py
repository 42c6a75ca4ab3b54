"""A server's life: faults at its start, new versions under load, an end with open requests."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import urllib3

import edorec
from tests.serving.http.process import Server
from tests.toy import toy_rows

ROWS = toy_rows(30, seed=3).select(["item", "price", "user", "viewed"])
BODY = {"rows": ROWS.to_pylist()}
PATIENT = ["--timeout", "60"]  # the machine may be busy with other tests


class Clients:
    """Threads that post ``BODY`` again and again on connections of their own, as a context."""

    def __init__(self, server: Server, num: int) -> None:
        self.answers: list[tuple[int, dict]] = []
        self.broken: list[Exception] = []
        self._server = server
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(num)]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.join()

    def join(self) -> None:
        """Waits until the clients have stopped or found nobody listening."""
        for thread in self._threads:
            thread.join(60)

    def _run(self) -> None:
        with self._server.client() as client:
            while not self._stop.is_set():
                try:
                    answer = client.request("POST", self._server.url + "/v1/score", json=BODY)
                except urllib3.exceptions.NewConnectionError:
                    return  # nobody listens any more: nothing was sent
                except urllib3.exceptions.HTTPError as error:
                    self.broken.append(error)
                    return
                self.answers.append((answer.status, answer.json()))


def switch(link: Path, target: Path) -> None:
    """Points ``link`` to ``target`` at once, as ``ln -s`` and ``mv -T`` do."""
    new = link.with_name("next")
    new.symlink_to(target)
    new.replace(link)


def test_versions_change_under_load_without_a_lost_request(exported, exported_int2, tmp_path):
    root, current = tmp_path, tmp_path / "current"
    shutil.copytree(exported, root / "v1")
    shutil.copytree(exported_int2, root / "v2")
    shutil.copytree(exported, root / "broken")
    tables = sorted((root / "broken" / "tables").iterdir())
    os.truncate(tables[0], 1)
    wanted = {
        v: edorec.load(root / v).predict(ROWS)["score_click"].to_numpy() for v in ("v1", "v2")
    }
    assert not np.allclose(wanted["v1"], wanted["v2"], atol=1e-4)
    switch(current, root / "v1")
    with Server(current, "--watch", "0.1", "--name", "shop", *PATIENT) as server:
        with Clients(server, 4) as clients:
            for version in ("v2", "v1"):
                switch(current, root / version)
                server.wait_for_line(f"version {version} serves", start=2)
            switch(current, root / "broken")
            failed = server.wait_for_line("the new version does not load, the old one goes on")
            assert tables[0].name in failed
            lines = len(server.log)
            server.process.send_signal(signal.SIGHUP)
            server.wait_for_line("the new version does not load", start=lines)
            shutil.rmtree(root / "v2")  # of a version that is not in use
            switch(current, root / "v1")
            server.wait_for_line("version v1 serves", start=lines)
            assert server.get("/v2/models/shop").json()["versions"] == ["v1"]
        metrics = server.get("/metrics").data.decode()
    assert not clients.broken
    assert {status for status, _ in clients.answers} == {200}
    assert {answer["version"] for _, answer in clients.answers} == {"v1", "v2"}
    for _, answer in clients.answers:
        found = [row["score_click"] for row in answer["rows"]]
        np.testing.assert_allclose(found, wanted[answer["version"]], atol=1e-6)
    assert 'edorec_model_info{version="v1"} 1.0' in metrics
    assert 'version="v2"' not in metrics
    assert 'edorec_reloads_total{outcome="failed"} 2.0' in metrics


def test_sigterm_answers_what_was_asked_and_ends_with_code_0(exported):
    with Server(exported, "--drain", "1", *PATIENT) as server, Clients(server, 6) as clients:
        while len(clients.answers) < 20:
            threading.Event().wait(0.02)
        before = len(clients.answers)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_line("not ready from now on")
        assert server.get("/v2/health/ready").status == 503
        assert server.get("/v2/health/live").status == 200
        assert server.end() == 0
        clients.join()
    assert not clients.broken
    assert len(clients.answers) > before
    assert Counter(status for status, _ in clients.answers) == {200: len(clients.answers)}
    assert "stopped" in server.log[-1]


def request() -> bytes:
    body = json.dumps(BODY).encode()
    head = f"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def answer(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_the_end_loses_no_connection_in_the_queue_and_none_that_is_about_to_ask(exported):
    """Clients that connect while the process stands still, and ask only after listening ended."""
    with Server(exported, "--drain", "0.5", *PATIENT) as server:
        address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        accepted = [socket.create_connection(address, timeout=60) for _ in range(3)]
        assert server.get("/v2/health/ready").status == 200  # accepted, too, by now
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_line("not ready from now on")
        server.process.send_signal(signal.SIGSTOP)
        queued = [socket.create_connection(address, timeout=60) for _ in range(10)]
        for connection in (accepted[0], *queued[:5]):
            connection.sendall(request())
        server.process.send_signal(signal.SIGCONT)
        server.wait_for_line("does not listen any more")
        for connection in (accepted[1], *queued[5:]):
            connection.sendall(request())
        for connection in (*accepted[:2], *queued):
            found = answer(connection)
            assert found.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in found
        assert answer(accepted[2]) == b""  # an idle one ends in order
        assert server.end() == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=60)


def test_an_overloaded_server_refuses_with_429_or_503_only(exported):
    """Eight clients, room for one waiting request, and little time."""
    options = ["--queue-rows", "30", "--batch-rows", "1", "--timeout", "0.2"]
    with Server(exported, *options) as server:
        with Clients(server, 8) as clients:
            while len(clients.answers) < 300:
                threading.Event().wait(0.02)
        statuses = Counter(status for status, _ in clients.answers)
        assert not clients.broken
        assert set(statuses) <= {200, 429, 503}
        assert statuses[200]
        assert statuses[429]
        for status, answer in clients.answers:
            assert status == 200 or "error" in answer
        assert server.get("/v2/health/ready").status == 200


def refused(*options: str, **popen) -> str:
    """What a server says that does not start."""
    command = [sys.executable, "-m", "edorec.cli", "serve", *options]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, **popen
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_folder_that_is_no_model_ends_the_start(tmp_path):
    said = refused("--model", str(tmp_path), "--port", "0")
    assert str(tmp_path) in said.splitlines()[-1]


def test_a_port_in_use_ends_the_start(exported):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("--model", str(exported), "--port", str(port))
    assert f"cannot listen on 127.0.0.1, port {port}" in said


@pytest.fixture
def read_only(tmp_path):
    """Environment of an installation without places for compiled kernels."""
    package = tmp_path / "installed" / "edorec"
    shutil.copytree(
        Path(edorec.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    # Root may write to any folder, but nobody makes one where there is a file.
    for folder in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").touch()
    nowhere = "/dev/null/home"
    return {
        **os.environ,
        "PYTHONPATH": str(package.parent),
        "HOME": nowhere,
        "XDG_CACHE_HOME": nowhere,
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def test_a_read_only_installation_asks_for_a_kernel_cache(exported, read_only, tmp_path):
    read_only.pop("NUMBA_CACHE_DIR", None)
    said = refused("--model", str(exported), "--port", "0", env=read_only, cwd=tmp_path)
    assert "name a folder that can be written to with --kernel-cache or NUMBA_CACHE_DIR" in said


@pytest.mark.slow  # compiles every kernel
def test_a_read_only_installation_serves_with_a_kernel_cache(exported, read_only, tmp_path):
    kernels = tmp_path / "kernels"
    options = ["--kernel-cache", str(kernels)]
    with Server(exported, *options, env=read_only, cwd=tmp_path) as server:
        assert server.post("/v1/score", BODY).status == 200
    assert list(kernels.rglob("*.nbi"))
