"""Middleware around handlers, and the lifespan of a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from millpond.jobs import Backoff, Job, Next, Retry, task
from tests.node.jobs.job_setup import JobSetup

SHORT = Backoff(0.01, 0.02)


def noting(name: str, seen: list[str]) -> Callable[[Job, Next], Awaitable[object]]:
    async def around(job: Job, call: Next) -> object:
        seen.append(f"{name} before {job.attempt}")
        try:
            value = await call()
        except Exception as exc:
            seen.append(f"{name} {type(exc).__name__}")
            raise
        seen.append(f"{name} {value}")
        return value

    return around


@pytest.mark.parametrize("is_async", [True, False])
async def test_middleware_is_called_around_each_attempt_the_first_outermost(
    setup: JobSetup, is_async: bool
) -> None:
    seen: list[str] = []

    @task(queue="mail", name="send", backoff=SHORT)
    async def send(payload: int, job: Job) -> int:
        return handled(payload, job)

    def handled(payload: int, job: Job) -> int:
        if job.attempt == 1:
            raise KeyError("first")
        return payload + 1

    in_thread = task(queue="mail", name="send", backoff=SHORT)(handled)
    middleware = [noting("a", seen), noting("b", seen)]
    work = [send if is_async else in_thread]
    async with setup.queue() as queue, setup.working(work, middleware=middleware):
        handle = await queue.put(1, name="send", wait=True)
        assert await handle.result() == 2
    assert seen == [
        "a before 1",
        "b before 1",
        "b KeyError",
        "a KeyError",
        "a before 2",
        "b before 2",
        "b 2",
        "a 2",
    ]


async def test_middleware_decides_as_a_handler_does(setup: JobSetup) -> None:
    runs: list[int] = []

    @task(queue="mail")
    async def send(payload: int) -> str:
        runs.append(payload)
        return "sent"

    async def later_once(job: Job, call: Next) -> object:
        if job.attempt == 1:
            raise Retry(30.0)
        return f"{await call()}, and told"

    async with setup.queue() as queue, setup.working([send], middleware=[later_once]):
        before = anyio.current_time()
        handle = await queue.put(7, name="send", wait=True)
        assert await handle.result() == "sent, and told"
        assert anyio.current_time() - before >= 30
    assert runs == [7]


async def test_the_lifespan_is_entered_once_and_its_value_is_with_each_job(setup: JobSetup) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def pool() -> AsyncIterator[list[str]]:
        events.append("open")
        try:
            yield events
        finally:
            await anyio.sleep(1)
            events.append("closed")

    @task(queue="mail")
    async def send(payload: int, job: Job) -> None:
        assert job.state is events
        events.append(f"job {payload}")

    async with setup.queue() as queue:
        async with setup.working([send], lifespan=pool):
            for number in range(3):
                handle = await queue.put(number, name="send", wait=True)
                await handle.result()
    assert events == ["open", "job 0", "job 1", "job 2", "closed"]


async def test_a_lifespan_that_fails_starts_no_job(setup: JobSetup) -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise OSError("no database")
        yield

    @task(queue="mail")
    async def send(_payload: int) -> None: ...

    async with setup.queue() as queue:
        await queue.put(1, name="send")
        async with setup.worker([send], lifespan=broken) as worker:
            with pytest.raises(OSError, match="no database"):
                await worker.run()
        assert (await queue.counts()).ready == 1
