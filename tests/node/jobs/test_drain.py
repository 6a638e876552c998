"""A worker that drains: what runs may end, what cannot is given back, nothing new begins."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from millpond.node.jobs import Job
from tests.node.jobs.place import Place


async def test_running_jobs_end_and_no_other_begins(place: Place) -> None:
    began: list[Any] = []

    async def send(payload: Any) -> None:
        began.append(payload)
        await anyio.sleep(10)

    async with place.queue() as queue:
        for number in range(5):
            await queue.put(number)
        async with place.working(send, "mail", concurrency=2):
            await place.until(lambda: len(began) == 2)
        assert place.whats == ["done", "done"]
        assert len(began) == 2 and len(await place.kept()) == 3


async def test_who_takes_longer_than_the_grace_is_cancelled_and_given_back(place: Place) -> None:
    began: list[int] = []

    async def send(_payload: Any, job: Job) -> None:
        began.append(job.attempt)
        await anyio.sleep(3600 if len(began) == 1 else 1)

    async with place.queue() as queue:
        await queue.put("x")
        began_at = anyio.current_time()
        async with place.working(send, "mail", grace=30):
            await place.until(lambda: began)
        assert anyio.current_time() - began_at == pytest.approx(30, abs=2)
        assert place.whats == ["returned"]
        async with place.working(send, "mail", source="other"):
            await place.until(lambda: len(place.ended) == 2, 5.0)
    assert place.whats == ["returned", "done"]


async def test_stop_waits_for_nobody(place: Place) -> None:
    async def send(_payload: Any) -> None:
        await anyio.sleep(3600)

    async with place.queue() as queue:
        await queue.put("x")
        async with place.working(send, "mail") as worker:
            await place.until(lambda: worker.stats.running)
            before = anyio.current_time()
            worker.stop()
            await place.until(lambda: place.ended, 1.0)
        assert anyio.current_time() - before < 5
        assert len(await place.kept()) == 1


async def test_stop_ends_a_drain_that_waits(place: Place) -> None:
    async def send(_payload: Any) -> None:
        await anyio.sleep(3600)

    async with place.queue() as queue:
        await queue.put("x")
        async with place.working(send, "mail", grace=1000) as worker:
            await place.until(lambda: worker.stats.running)
            worker.drain()
            await anyio.sleep(100)
            assert not place.ended
            worker.stop()
            await place.until(lambda: place.ended, 1.0)


async def test_an_idle_queue_is_left_at_once(place: Place) -> None:
    """What comes while another queue's job still runs is for other workers."""
    seen: list[Any] = []

    async def send(payload: Any) -> None:
        seen.append(payload)
        await anyio.sleep(60 if payload == "long" else 0)

    async with place.queue("slow") as slow, place.queue("mail") as mail:
        await slow.put("long")
        async with place.working(send, "slow", "mail", grace=100) as worker:
            await place.until(lambda: seen)
            worker.drain()
            await anyio.sleep(1)
            async with place.working(send, "mail", source="other"):
                await mail.put("short")
                await place.until(lambda: "short" in seen, 1.0)
    assert sorted(place.whats) == ["done", "done"]


async def test_jobs_that_never_began_lose_no_attempt(place: Place) -> None:
    """What a worker held for another slot, and gave back when it left, is as new."""
    attempts: list[int] = []

    async def send(payload: Any, job: Job) -> None:
        attempts.append(job.attempt)
        await anyio.sleep(payload)

    async with place.queue("a") as queue:
        for _ in range(6):
            await queue.put(20)
        async with place.working(send, "a=3", "b", concurrency=2) as worker:
            await place.until(lambda: worker.stats.running == 2)
            await anyio.sleep(5)
            assert len(worker.subscriptions[0].waiting) >= 1
        async with place.working(send, "a", source="other", concurrency=6):
            await place.until(lambda: len(place.ended) == 6)
    assert attempts == [1] * 6
