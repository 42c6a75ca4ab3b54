"""The process: uvicorn, signals, the life of the parts."""

import asyncio
import contextlib
import logging
import math
import signal
import socket
import sys
from collections.abc import Iterator, Sequence

import prometheus_client
import uvicorn
import uvloop

from edorec.serving.http.app import Service, build_app
from edorec.serving.http.batcher import Batcher
from edorec.serving.http.edge import Edge, ServerState
from edorec.serving.http.listener import listen, stop_new_connections
from edorec.serving.http.metrics import Metrics
from edorec.serving.http.settings import ServeSettings
from edorec.serving.http.versions import Versions

_LOG = logging.getLogger("edorec.serve")
# Scoring and answering take turns on Python's lock; by default one may keep it for 5 ms.
_SWITCH_SECONDS = 0.0005
# Longer than the minute after which proxies drop idle connections, so that they do it first.
_KEEP_ALIVE_SECONDS = 75
# How often the loop turns for requests that are on their way when listening stops.
_LAST_TURNS, _TURN_SECONDS = 20, 0.05


def serve(settings: ServeSettings) -> None:
    """Serves until SIGTERM or SIGINT.

    The health routes answer from the start; the model is loaded and warmed meanwhile. SIGTERM ends
    the process without losing a request: for ``drain_seconds`` it says that it is not ready, closes
    every connection after its answer and still takes new ones; then it stops listening, gives open
    connections a second for a last request, and ends when the last answer is sent. A second signal
    ends it at once. SIGHUP looks for a new version.

    Raises:
        InputError: if the port cannot be had or the model does not load.
    """
    _start_logging()
    sys.setswitchinterval(_SWITCH_SECONDS)
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    listener = listen(settings.host, settings.port)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, listener))


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers, and with an end that loses no connection.

    uvicorn closes its listening sockets with connections in their queue, and then every connection
    that has no request under way, also one whose request is in its buffer, or on its way. Their
    clients would get a reset in place of an answer.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to ``_serve``."""
        yield

    async def shutdown(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Accepts what has connected, waits for a last request of each, then ends as uvicorn."""
        for listener in sockets or []:
            stop_new_connections(listener)
        await asyncio.sleep(_TURN_SECONDS)  # the loop accepts all that wait in a turn
        for server in self.servers:
            server.close()
        _LOG.info("does not listen any more; open connections may send a last request")
        for _ in range(_LAST_TURNS):  # turns, not a time: a busy machine may take that away
            if not self.server_state.connections or self.force_exit:
                break
            await asyncio.sleep(_TURN_SECONDS)
        await super().shutdown(list(sockets or []))


async def _serve(settings: ServeSettings, listener: socket.socket) -> None:
    metrics = Metrics()
    service = Service(
        settings=settings,
        versions=Versions(settings.path, metrics, verify=settings.verify),
        batcher=Batcher(
            batch_rows=settings.batch_rows,
            queue_rows=settings.queue_rows,
            num_threads=settings.num_threads,
            metrics=metrics,
        ),
        metrics=metrics,
        state=ServerState(),
    )
    app = Edge(
        build_app(service),
        state=service.state,
        metrics=metrics,
        log_requests=settings.log_requests,
    )
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(2 * settings.timeout_seconds) + 1,
    )
    server = _Server(config)
    background = [
        asyncio.create_task(service.batcher.run()),
        asyncio.create_task(_load_and_watch(service)),
    ]
    for task in background:
        task.add_done_callback(lambda _: _end(server))  # neither ends but by an error
    _handle_signals(server, service, background)
    host, port = listener.getsockname()[:2]
    _LOG.info("listening on http://%s:%d (documentation at /docs)", host, port)
    await server.serve([listener])
    for task in background:
        task.cancel()
    outcomes = await asyncio.gather(*background, return_exceptions=True)
    service.batcher.close()
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    _LOG.info("stopped")


def _end(server: uvicorn.Server) -> None:
    server.should_exit = True


async def _load_and_watch(service: Service) -> None:
    """Loads the first version, then follows the path."""
    await service.versions.load()
    await service.versions.watch(every_seconds=service.settings.watch_seconds)


def _handle_signals(
    server: uvicorn.Server, service: Service, tasks: list[asyncio.Task[None]]
) -> None:
    """Tasks of signals are added to ``tasks``."""

    async def drain() -> None:
        seconds = service.settings.drain_seconds
        _LOG.info("not ready from now on; stops listening in %g seconds", seconds)
        await asyncio.sleep(seconds)
        server.should_exit = True

    def stop() -> None:
        if service.state.is_draining:
            server.should_exit = server.force_exit = True
            return
        service.state.is_draining = True
        tasks.append(asyncio.create_task(drain()))

    def reload() -> None:
        tasks.append(asyncio.create_task(service.versions.reload()))

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, stop)
    loop.add_signal_handler(signal.SIGHUP, reload)


def _start_logging() -> None:
    """Lines of the server, and warnings of uvicorn, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for logger, level in ((_LOG, logging.INFO), (logging.getLogger("uvicorn"), logging.WARNING)):
        logger.setLevel(level)
        logger.addHandler(handler)
        logger.propagate = False
