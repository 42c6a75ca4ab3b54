"""Load for a server: requests made of the rows of files, sent at a stated rate or back to back.

At a rate, requests start at random moments (a Poisson process), whether or not earlier ones are
answered, and the time of a request counts from the moment at which it should have started: a server
that falls behind cannot hide it.
"""

import http.client
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from edorec.errors import InputError
from edorec.progress import Progress

_TIMEOUT_SECONDS = 30
_REPORT_SECONDS = 0.2


@dataclass
class Outcome:
    """What came back.

    Attributes:
        milliseconds: time of each request that was answered with status 200.
        statuses: answers by status; 0 stands for a connection that broke.
        first_error: text of the first answer with another status than 200.
        seconds: how long it all took.
    """

    milliseconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    first_error: str = ""
    seconds: float = 0.0

    def percentile(self, share: float) -> float:
        """Milliseconds that this share of the answered requests (in percent) kept to."""
        return float(np.percentile(self.milliseconds, share)) if self.milliseconds else np.nan


def get_inputs(url: str) -> list[str]:
    """Names of the inputs of the model that a server has.

    Raises:
        InputError: if there is no such server.
    """
    connection = _connect(url)
    try:
        connection.request("GET", "/v1/model")
        answer = connection.getresponse()
        content = orjson.loads(answer.read())
        if answer.status != 200:
            raise InputError(f"--url {url}: {content['error']}")
    except (OSError, http.client.HTTPException, orjson.JSONDecodeError) as error:
        raise InputError(f"--url {url}: no edorec server answers there ({error})") from error
    finally:
        connection.close()
    return [source["name"] for source in content["inputs"]]


def rows_bodies(rows: pa.Table, *, rows_per_request: int, num: int, seed: int) -> list[bytes]:
    """Bodies of ``/v1/score``, of random rows."""
    rng = np.random.default_rng(seed)
    return [_json({"rows": _pick(rows, rng, rows_per_request).to_pylist()}) for _ in range(num)]


def candidates_bodies(
    rows: pa.Table, *, user_columns: Sequence[str], candidates: int, num: int, seed: int
) -> list[bytes]:
    """Bodies of ``/v1/candidates``: a random row's user, and the other columns of random rows."""
    rng = np.random.default_rng(seed)
    others = rows.drop_columns(list(user_columns))
    return [
        _json(
            {
                "user": _pick(rows.select(user_columns), rng, 1).to_pylist()[0],
                "candidates": _pick(others, rng, candidates).to_pydict(),
            }
        )
        for _ in range(num)
    ]


def run_load(
    url: str,
    path: str,
    bodies: Sequence[bytes],
    *,
    rate: float | None,
    seconds: float,
    connections: int,
    progress: Progress,
    seed: int = 0,
) -> Outcome:
    """Sends bodies in turn for some seconds.

    Args:
        url: of the server.
        path: to post to.
        bodies: what to post.
        rate: requests a second on average; None sends back to back on every connection.
        seconds: how long.
        connections: most requests under way.
        progress: advances by one for each request.
        seed: of the moments.
    """
    starts = _moments(rate, seconds, seed)
    outcome = Outcome()
    lock = threading.Lock()
    numbers = iter(range(len(starts) if starts is not None else 1 << 62))
    began = time.perf_counter()

    def client() -> None:
        connection = _connect(url)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                break
            now = time.perf_counter() - began
            if starts is None and now >= seconds:
                break
            start = now if starts is None else starts[number]
            time.sleep(max(0.0, start - now))
            status, text = _post(connection, path, bodies[number % len(bodies)])
            taken = 1000 * (time.perf_counter() - began - start)
            with lock:
                _count(outcome, status, text, taken)

    threads = [threading.Thread(target=client, daemon=True) for _ in range(connections)]
    for thread in threads:
        thread.start()
    shown = 0
    while any(thread.is_alive() for thread in threads):
        time.sleep(_REPORT_SECONDS)
        done = outcome.statuses.total()
        progress.advance(done - shown)
        shown = done
    outcome.seconds = time.perf_counter() - began
    return outcome


def planned_requests(rate: float | None, seconds: float, seed: int = 0) -> int:
    """Requests that ``run_load`` sends at a rate; 0 if it depends on the server."""
    starts = _moments(rate, seconds, seed)
    return 0 if starts is None else len(starts)


def _moments(rate: float | None, seconds: float, seed: int) -> npt.NDArray[np.float64] | None:
    if rate is None:
        return None
    rng = np.random.default_rng(seed)
    # Given their number, the moments of a Poisson process are uniform.
    return np.sort(rng.uniform(0, seconds, rng.poisson(rate * seconds)))


def _json(content: object) -> bytes:
    return orjson.dumps(content, default=float)  # decimals


def _pick(rows: pa.Table, rng: np.random.Generator, num: int) -> pa.Table:
    return rows.take(rng.integers(0, len(rows), num))


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise InputError(f"--url {url}: wanted http://HOST:PORT")
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_SECONDS)


def _post(connection: http.client.HTTPConnection, path: str, body: bytes) -> tuple[int, str]:
    """Status and, unless it is 200, text of an answer."""
    try:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return 0, str(error)
    return answer.status, "" if answer.status == 200 else _error_text(content)


def _error_text(content: bytes) -> str:
    try:
        answer: Any = orjson.loads(content)
        return str(answer["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "the answer is not one of edorec"


def _count(outcome: Outcome, status: int, text: str, milliseconds: float) -> None:
    outcome.statuses[status] += 1
    if status == 200:
        outcome.milliseconds.append(milliseconds)
    elif not outcome.first_error:
        outcome.first_error = f"{status or 'broken connection'}: {text}"
