"""The tasks that jobs run in: shared by many jobs, and none of them sees that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from millpond.jobs import Backoff, task
from millpond.node.jobs.worker.executor import run_in_context
from tests.node.jobs.job_setup import JobSetup, job_setup

ON_BOTH = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])

colour: ContextVar[str] = ContextVar("colour", default="none")


def this_task() -> asyncio.Task[Any]:
    this = asyncio.current_task()
    assert this is not None
    return this


async def cancels_itself() -> None:
    this_task().cancel()


async def cancels_itself_and_takes_it_back() -> None:
    this_task().cancel()
    this_task().uncancel()


async def cancels_itself_and_fails() -> None:
    this_task().cancel()
    raise ValueError("no")


@ON_ASYNCIO
@pytest.mark.parametrize(
    ("bad", "wait", "whats"),
    [
        (cancels_itself, False, ["done"]),
        (cancels_itself, True, ["done"]),
        (cancels_itself_and_takes_it_back, False, ["done"]),
        (cancels_itself_and_fails, False, ["failed", "rejected"]),
        (cancels_itself_and_fails, True, ["failed", "rejected"]),
    ],
)
async def test_a_handler_that_cancels_its_own_task_and_goes_on_harms_no_other_job(
    anyio_backend: str, bad: Callable[[], Awaitable[None]], wait: bool, whats: list[str]
) -> None:
    @task(queue="mail", attempts=2, backoff=Backoff(0.01, 0.02))
    async def work(payload: str) -> None:
        if payload == "bad":
            await bad()

    async with job_setup() as setup:
        async with setup.queue() as queue, setup.working([work], concurrency=1):
            await queue.put("bad", wait=wait)
            await setup.until(lambda: len(setup.ended) == len(whats), 5.0)
            for count in range(1, 4):
                await queue.put("good")
                await setup.until(lambda count=count: len(setup.ended) == len(whats) + count, 5.0)
    assert setup.outcomes == [*whats, "done", "done", "done"]


@ON_BOTH
async def test_a_context_variable_of_a_handler_is_seen_by_no_other_job(anyio_backend: str) -> None:
    seen: list[str] = []

    @task()
    async def paint(payload: str) -> None:
        seen.append(colour.get())
        token = colour.set(payload)
        await anyio.sleep(0.05)
        assert colour.get() == payload
        if payload == "red":
            colour.reset(token)

    async with job_setup() as setup:
        async with setup.queue("a") as queue:
            for each in ("blue", "red", "green", "blue", "white"):
                await queue.put(each)
            async with setup.working([paint], "a", "b", concurrency=1):
                await setup.until(lambda: len(setup.ended) == 5, 5.0)
    assert seen == ["none"] * 5 and setup.outcomes == ["done"] * 5


async def test_jobs_that_wait_run_beside_one_another(setup: JobSetup) -> None:
    here: list[int] = []
    all_here = anyio.Event()

    async def meet(number: int) -> None:
        here.append(number)
        if len(here) == 8:
            all_here.set()
        await all_here.wait()

    async with setup.queue() as queue:
        for number in range(8):
            await queue.put(number)
        async with setup.working(meet, "mail", concurrency=8):
            await setup.until(lambda: len(setup.ended) == 8, 10.0)
    assert here == list(range(8))


@ON_ASYNCIO
async def test_short_jobs_share_a_few_tasks(anyio_backend: str) -> None:
    tasks: set[int] = set()
    kept: list[Any] = []

    async def note() -> None:
        kept.append(this_task())  # so that no id is used twice
        tasks.add(id(this_task()))

    async with job_setup() as setup:
        async with setup.queue() as queue:
            for _ in range(100):
                await queue.put()
            async with setup.working(note, "mail", concurrency=10):
                await setup.until(lambda: len(setup.ended) == 100, 10.0)
    assert len(tasks) <= 11


@ON_BOTH
async def test_a_coroutine_in_a_context_gets_errors_and_cancellation(anyio_backend: str) -> None:
    received: list[str] = []

    async def inner(step: str) -> str:
        colour.set(step)
        try:
            await anyio.sleep(0 if step == "short" else 60)
        except anyio.get_cancelled_exc_class():
            received.append("cancelled")
            raise
        if step == "short":
            raise LookupError(step)
        return step

    with pytest.raises(LookupError, match="short"):
        await run_in_context(inner("short"))
    with anyio.move_on_after(0.01):
        await run_in_context(inner("long"))
    assert received == ["cancelled"] and colour.get() == "none"

    async def value() -> int:
        return 5

    assert await run_in_context(value()) == 5


def test_a_coroutine_in_a_context_is_closed_with_the_outer_one() -> None:
    closed: list[bool] = []

    async def inner() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            closed.append(True)

    async def around() -> None:
        await run_in_context(inner())

    async def drive() -> None:
        coroutine = around()
        coroutine.send(None)
        coroutine.close()

    asyncio.run(drive())
    assert closed == [True]
