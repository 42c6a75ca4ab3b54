"""Micro-batching: rows of requests that wait at the same time are scored together.

Nothing waits for company. While one batch is scored, what arrives makes up the next, so a lone
request is scored at once and batches grow with the load. One thread scores; the event loop stays
free to read and answer.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from edorec.serving.http.errors import RequestError
from edorec.serving.http.metrics import Metrics
from edorec.serving.http.rows import Rows
from edorec.serving.http.versions import Version

Scores = dict[str, npt.NDArray[np.float32]]


@dataclass(eq=False)
class _Job:
    """Rows of one request."""

    version: Version
    rows: Rows
    scores: asyncio.Future[Scores]
    arrived: float = field(default_factory=time.perf_counter)


class Batcher:
    """A bounded queue of rows and the thread that scores them.

    Args:
        batch_rows: most rows of a batch of several requests; a larger request is a batch of its
            own.
        queue_rows: most rows that may wait; a request that finds the queue empty always may.
        num_threads: threads of the arithmetic within a batch.
        metrics: where waits, sizes and times go.
    """

    def __init__(
        self, *, batch_rows: int, queue_rows: int, num_threads: int, metrics: Metrics
    ) -> None:
        self._batch_rows = batch_rows
        self._queue_rows = queue_rows
        self._metrics = metrics
        self._jobs: deque[_Job] = deque()
        self._waiting_rows = 0
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(
            1, "score", initializer=torch.set_num_threads, initargs=(num_threads,)
        )

    async def score(self, version: Version, rows: Rows, *, timeout_seconds: float) -> Scores:
        """Scores of a request's rows by output name, float32 of shape (rows,).

        Raises:
            RequestError: status 429 if the queue is full, 503 if no scores came in time.
        """
        if not rows.num_rows:
            return {name: np.empty(0, np.float32) for name in version.outputs}
        self.check_room(rows.num_rows)
        job = _Job(version, rows, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._count_waiting(rows.num_rows)
        self._arrived.set()
        try:
            async with asyncio.timeout(timeout_seconds):
                return await job.scores
        except TimeoutError:
            raise RequestError(
                503, f"no scores within {timeout_seconds:g} seconds; the server is overloaded"
            ) from None

    def check_room(self, num_rows: int) -> None:
        """Refuses rows that the queue has no room for.

        Raises:
            RequestError: status 429.
        """
        if self._jobs and self._waiting_rows + num_rows > self._queue_rows:
            raise RequestError(
                429, f"{self._waiting_rows} rows wait already, at most {self._queue_rows} may"
            )

    async def run(self) -> None:
        """Scores batch after batch until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if not batch:
                self._arrived.clear()
                continue
            try:
                scores = await loop.run_in_executor(self._thread, _score, batch)
            except Exception as error:  # of the model: the requests report it, the server goes on
                for job in batch:
                    if not job.scores.done():
                        job.scores.set_exception(error)
            else:
                self._deliver(batch, scores)

    def close(self) -> None:
        """Ends the thread, after the batch it works on."""
        self._thread.shutdown()

    def _count_waiting(self, num_rows: int) -> None:
        self._waiting_rows += num_rows
        self._metrics.queue_rows.set(self._waiting_rows)

    def _next_batch(self) -> list[_Job]:
        """The oldest waiting requests that go together: one version, one schema."""
        batch: list[_Job] = []
        num_rows = 0
        while self._jobs:
            job = self._jobs[0]
            if not job.scores.done():  # done already: timed out, or the client has gone
                is_full = num_rows + job.rows.num_rows > self._batch_rows
                if batch and (is_full or not _go_together(job, batch[0])):
                    break
                batch.append(job)
                num_rows += job.rows.num_rows
                self._metrics.queue_seconds.observe(time.perf_counter() - job.arrived)
            self._jobs.popleft()
            self._count_waiting(-job.rows.num_rows)
        return batch

    def _deliver(self, batch: Sequence[_Job], scores: tuple[Scores, float]) -> None:
        columns, seconds = scores
        start = 0
        for job in batch:
            end = start + job.rows.num_rows
            if not job.scores.done():
                job.scores.set_result({name: values[start:end] for name, values in columns.items()})
            start = end
        self._metrics.rows.inc(start)
        self._metrics.batch_rows.observe(start)
        self._metrics.score_seconds.observe(seconds)


def _go_together(job: _Job, other: _Job) -> bool:
    """Whether two requests can be one batch: the same version, the same columns in each table."""
    return (
        job.version is other.version
        and job.rows.shared.schema == other.rows.shared.schema
        and job.rows.table.schema == other.rows.table.schema
    )


def _score(batch: Sequence[_Job]) -> tuple[Scores, float]:
    """Scores of all rows of a batch, and the seconds it took; runs on the scoring thread."""
    started = time.perf_counter()
    scores = batch[0].version.score(
        pa.concat_tables(job.rows.shared for job in batch),
        pa.concat_tables(job.rows.table for job in batch),
        np.repeat(np.arange(len(batch)), [job.rows.num_rows for job in batch]),
    )
    return scores, time.perf_counter() - started
