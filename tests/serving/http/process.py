"""A server as an operator runs it: a process of its own, with its log."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

import urllib3

START_SECONDS = 240


class Server:
    """``edorec serve`` on a free port, as a context manager; ready when entered."""

    def __init__(self, model: Path, *options: str, **popen: Any) -> None:
        command = [sys.executable, "-m", "edorec.cli", "serve", "--model", str(model)]
        self._command = [*command, "--port", "0", *options]
        self._popen = popen
        self.log: list[str] = []

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command, stderr=subprocess.PIPE, text=True, **self._popen
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        listening = self.wait_for_line("listening on ")
        self.url = listening.split("listening on ")[1].split()[0]
        self.wait_for_line(" serves (")
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.end()

    def end(self) -> int:
        """Waits until the process has ended; its exit code."""
        code = self.process.wait(START_SECONDS)
        self._reader.join()
        return code

    def wait_for_line(self, text: str, *, start: int = 0) -> str:
        """The first line of the log, from line ``start``, that holds ``text``."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            has_ended = self.process.poll() is not None and not self._reader.is_alive()
            for line in self.log[start:]:
                if text in line:
                    return line
            assert not has_ended, "\n".join(self.log)
            time.sleep(0.02)
        raise AssertionError(f"no line with {text!r} in\n" + "\n".join(self.log))

    def client(self) -> urllib3.PoolManager:
        """A client that repeats nothing."""
        return urllib3.PoolManager(retries=False, timeout=60, maxsize=32)

    def post(self, path: str, content: Any) -> urllib3.BaseHTTPResponse:
        """Posts JSON, or bytes as they are."""
        how = {"body": content} if isinstance(content, bytes) else {"json": content}
        with self.client() as client:
            return client.request("POST", self.url + path, **how)

    def get(self, path: str) -> urllib3.BaseHTTPResponse:
        with self.client() as client:
            return client.request("GET", self.url + path)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))
