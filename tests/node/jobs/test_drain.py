"""A worker that drains: what runs may end, what cannot is given back, nothing new begins."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from millpond.jobs import Job
from tests.node.jobs.job_setup import JobSetup


async def test_running_jobs_end_and_no_other_begins(setup: JobSetup) -> None:
    began: list[Any] = []

    async def send(payload: Any) -> None:
        began.append(payload)
        await anyio.sleep(10)

    async with setup.queue() as queue:
        for number in range(5):
            await queue.put(number)
        async with setup.working(send, "mail", concurrency=2):
            await setup.until(lambda: len(began) == 2)
        assert setup.outcomes == ["done", "done"]
        assert len(began) == 2 and len(await setup.kept()) == 3


async def test_a_handler_beyond_the_grace_period_is_cancelled_and_its_job_returned(
    setup: JobSetup,
) -> None:
    began: list[int] = []

    async def send(_payload: Any, job: Job) -> None:
        began.append(job.attempt)
        await anyio.sleep(3600 if len(began) == 1 else 1)

    async with setup.queue() as queue:
        await queue.put("x")
        began_at = anyio.current_time()
        async with setup.working(send, "mail", grace=30):
            await setup.until(lambda: began)
        assert anyio.current_time() - began_at == pytest.approx(30, abs=2)
        assert setup.outcomes == ["returned"]
        async with setup.working(send, "mail", source="other"):
            await setup.until(lambda: len(setup.ended) == 2, 5.0)
    assert setup.outcomes == ["returned", "done"]


async def test_stop_cancels_running_handlers(setup: JobSetup) -> None:
    async def send(_payload: Any) -> None:
        await anyio.sleep(3600)

    async with setup.queue() as queue:
        await queue.put("x")
        async with setup.working(send, "mail") as worker:
            await setup.until(lambda: worker.stats.running)
            before = anyio.current_time()
            worker.stop()
            await setup.until(lambda: setup.ended, 1.0)
        assert anyio.current_time() - before < 5
        assert len(await setup.kept()) == 1


async def test_stop_ends_a_drain_that_waits(setup: JobSetup) -> None:
    async def send(_payload: Any) -> None:
        await anyio.sleep(3600)

    async with setup.queue() as queue:
        await queue.put("x")
        async with setup.working(send, "mail", grace=1000) as worker:
            await setup.until(lambda: worker.stats.running)
            worker.drain()
            await anyio.sleep(100)
            assert not setup.ended
            worker.stop()
            await setup.until(lambda: setup.ended, 1.0)


async def test_an_idle_queue_is_left_at_once(setup: JobSetup) -> None:
    """Jobs that arrive while another queue's job still runs are for other workers."""
    seen: list[Any] = []

    async def send(payload: Any) -> None:
        seen.append(payload)
        await anyio.sleep(60 if payload == "long" else 0)

    async with setup.queue("slow") as slow, setup.queue("mail") as mail:
        await slow.put("long")
        async with setup.working(send, "slow", "mail", grace=100) as worker:
            await setup.until(lambda: seen)
            worker.drain()
            await anyio.sleep(1)
            async with setup.working(send, "mail", source="other"):
                await mail.put("short")
                await setup.until(lambda: "short" in seen, 1.0)
    assert sorted(setup.outcomes) == ["done", "done"]


async def test_jobs_that_never_began_lose_no_attempt(setup: JobSetup) -> None:
    """A job that a worker held for another slot, and returned when it left, is as new."""
    attempts: list[int] = []

    async def send(payload: Any, job: Job) -> None:
        attempts.append(job.attempt)
        await anyio.sleep(payload)

    async with setup.queue("a") as queue:
        for _ in range(6):
            await queue.put(20)
        async with setup.working(send, "a=3", "b", concurrency=2) as worker:
            await setup.until(lambda: worker.stats.running == 2)
            await anyio.sleep(5)
            assert len(worker.subscriptions[0].waiting) >= 1
        async with setup.working(send, "a", source="other", concurrency=6):
            await setup.until(lambda: len(setup.ended) == 6)
    assert attempts == [1] * 6
