"""The outermost layer: reads bodies within limits, counts and logs requests, reports bugs.

A line of the log holds the route, the status and the time, not the path as it came, nor a query,
nor the text of an exception: any of them may hold raw ids.
"""

import asyncio
import logging
import time
import traceback
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edorec.serving.http.errors import RequestError
from edorec.serving.http.metrics import Metrics

_LOG = logging.getLogger("edorec.serve")
CLIENT_CLOSED = 499  # nginx's status of a request whose client has gone; nobody receives it


@dataclass
class ServerState:
    """What changes while the server runs.

    Attributes:
        is_draining: whether it is about to stop: not ready, and connections end with their answer.
    """

    is_draining: bool = False


class Edge:
    """Wraps an application."""

    def __init__(
        self, app: ASGIApp, *, state: ServerState, metrics: Metrics, log_requests: bool
    ) -> None:
        self._app = app
        self._state = state
        self._metrics = metrics
        self._log_requests = log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._state.is_draining:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        except ClientDisconnect:
            status = CLIENT_CLOSED
        except Exception as error:  # the answer, status 500, has been sent
            _LOG.error(
                "internal error %s at\n%s",
                type(error).__name__,
                "".join(traceback.format_tb(error.__traceback__)),
            )
        route = getattr(scope.get("route"), "path", "unknown")
        seconds = time.perf_counter() - started
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        if self._log_requests:
            _LOG.info("%s %s %d %.1f ms", scope["method"], route, status, 1000 * seconds)


async def read_body(request: Request, *, max_bytes: int, timeout_seconds: float) -> bytes:
    """The body of a request.

    Raises:
        RequestError: status 413 if it is too large, 408 if it does not arrive in time, 415 if it is
            compressed.
    """
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RequestError(415, "compressed bodies are not read; send it without Content-Encoding")
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    chunks, size = [], 0
    try:
        async with asyncio.timeout(timeout_seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                chunks.append(chunk)
    except TimeoutError:
        raise RequestError(
            408, f"the body did not arrive within {timeout_seconds:g} seconds"
        ) from None
    return b"".join(chunks)


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(413, f"the body is larger than {max_bytes} bytes")
