"""The queue: what waits is scored together, in order, within bounds."""

import asyncio
import threading

import numpy as np
import pyarrow as pa
import pytest

from edorec.serving.http.batcher import Batcher
from edorec.serving.http.errors import RequestError
from edorec.serving.http.metrics import Metrics
from edorec.serving.http.rows import Rows


class GatedVersion:
    """Doubles x, when the gate is open; stands for a model whose batches take long."""

    outputs = ("score",)

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.batches: list[list[int]] = []

    def score(self, shared: pa.Table, table: pa.Table, shared_of_R: np.ndarray) -> dict:
        self.begun.release()
        assert self.gate.wait(60)
        values = table["x"].to_numpy() + shared["y"].to_numpy()[shared_of_R]
        self.batches.append(np.bincount(shared_of_R).tolist())
        if (values < 0).any():
            raise ZeroDivisionError
        return {"score": (2 * values).astype(np.float32)}


def rows(*values: int, shared: int = 0) -> Rows:
    table = pa.table({"x": pa.array(values, pa.int64())})
    return Rows(pa.table({"y": [shared]}), table, len(values), [], [])


def run(test, **limits: int) -> GatedVersion:
    """Runs ``test(batcher, version)`` beside the batcher's loop."""
    version = GatedVersion()

    async def both() -> None:
        settings = {"batch_rows": 100, "queue_rows": 100, **limits}
        batcher = Batcher(**settings, num_threads=1, metrics=Metrics())
        loop = asyncio.create_task(batcher.run())
        try:
            await test(batcher, version)
        finally:
            version.gate.set()
            loop.cancel()
            batcher.close()

    asyncio.run(both())
    return version


async def occupied(batcher: Batcher, version: GatedVersion) -> asyncio.Task:
    """A request that is being scored until the gate opens."""
    task = asyncio.create_task(batcher.score(version, rows(0), timeout_seconds=60))
    assert await asyncio.to_thread(version.begun.acquire, timeout=60)
    return task


def ask(batcher: Batcher, version: GatedVersion, asked: Rows, seconds: float = 60) -> asyncio.Task:
    return asyncio.create_task(batcher.score(version, asked, timeout_seconds=seconds))


def test_what_waits_is_one_batch_and_each_gets_its_own():
    async def test(batcher: Batcher, version: GatedVersion) -> None:
        first = await occupied(batcher, version)
        waiting = [ask(batcher, version, rows(*range(n), shared=100 * n)) for n in (1, 2, 3)]
        await asyncio.sleep(0)
        version.gate.set()
        await first
        for n, task in zip((1, 2, 3), waiting, strict=True):
            assert (await task)["score"].tolist() == [2 * (x + 100 * n) for x in range(n)]

    assert run(test).batches == [[1], [1, 2, 3]]


def test_batches_stay_within_their_rows_unless_one_request_is_larger():
    async def test(batcher: Batcher, version: GatedVersion) -> None:
        first = await occupied(batcher, version)
        waiting = [ask(batcher, version, rows(*range(n))) for n in (4, 5, 30, 2)]
        await asyncio.sleep(0)
        version.gate.set()
        await asyncio.gather(first, *waiting)

    assert run(test, batch_rows=10).batches == [[1], [4, 5], [30], [2]]


def test_a_full_queue_refuses_with_429_and_a_single_large_request_is_taken():
    async def test(batcher: Batcher, version: GatedVersion) -> None:
        first = await occupied(batcher, version)
        large = ask(batcher, version, rows(*range(50)))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="50 rows wait already, at most 20 may") as refused:
            await batcher.score(version, rows(1), timeout_seconds=60)
        assert refused.value.status == 429
        version.gate.set()
        assert len((await large)["score"]) == 50
        await first
        assert len((await batcher.score(version, rows(1), timeout_seconds=60))["score"]) == 1

    run(test, queue_rows=20)


def test_a_request_that_waits_too_long_is_given_up_with_503_and_not_scored():
    async def test(batcher: Batcher, version: GatedVersion) -> None:
        first = await occupied(batcher, version)
        with pytest.raises(RequestError, match=r"no scores within 0\.01 seconds") as refused:
            await batcher.score(version, rows(1, 2), timeout_seconds=0.01)
        assert refused.value.status == 503
        later = ask(batcher, version, rows(1))
        await asyncio.sleep(0)
        version.gate.set()
        await asyncio.gather(first, later)

    assert run(test).batches == [[1], [1]]


def test_versions_are_not_mixed_in_a_batch():
    other = GatedVersion()
    other.gate.set()

    async def test(batcher: Batcher, version: GatedVersion) -> None:
        first = await occupied(batcher, version)
        waiting = [ask(batcher, v, rows(1)) for v in (version, other, other, version)]
        await asyncio.sleep(0)
        version.gate.set()
        await asyncio.gather(first, *waiting)

    assert run(test).batches == [[1], [1], [1]]
    assert other.batches == [[1, 1]]


def test_a_fault_of_the_model_reaches_its_batch_and_the_next_is_scored():
    async def test(batcher: Batcher, version: GatedVersion) -> None:
        version.gate.set()
        with pytest.raises(ZeroDivisionError):
            await batcher.score(version, rows(-1), timeout_seconds=60)
        assert (await batcher.score(version, rows(3), timeout_seconds=60))["score"].tolist() == [6]

    run(test)
