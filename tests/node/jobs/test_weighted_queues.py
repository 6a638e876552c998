"""Several queues: each gets its share, none starves, and one alone gets everything."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest

from millpond.jobs import Job
from millpond.node.jobs.worker.weighted_queues import WeightedQueues, parse_queues
from tests.node.jobs.job_setup import JobSetup


def test_each_is_chosen_as_often_as_its_weight() -> None:
    choice = WeightedQueues({"high": 3, "low": 1})
    assert Counter(choice.next(["high", "low"]) for _ in range(400)) == {"high": 300, "low": 100}


def test_a_queue_that_was_empty_does_not_catch_up() -> None:
    choice = WeightedQueues({"high": 3, "low": 1})
    for _ in range(100):
        assert choice.next(["high"]) == "high"
    following = [choice.next(["high", "low"]) for _ in range(8)]
    assert following.count("low") in (2, 3)
    assert choice.next([]) is None


def test_names_and_weights() -> None:
    assert parse_queues(["high=3", "low"]) == {"high": 3, "low": 1}
    for wrong in (["a", "a=2"], ["a=0"], ["a=x"], ["a=1001"]):
        with pytest.raises(ValueError):
            parse_queues(wrong)


async def test_jobs_are_begun_by_weight(setup: JobSetup) -> None:
    order: list[str] = []

    async def send(_payload: Any, job: Job) -> None:
        order.append(job.queue)
        await anyio.sleep(1)

    async with setup.queue("high") as high, setup.queue("low") as low:
        for number in range(60):
            await high.put(number)
            await low.put(number)
        async with setup.working(send, "high=3", "low=1", concurrency=2):
            await setup.until(lambda: len(order) >= 60)
    counted = Counter(order[:60])
    assert 40 <= counted["high"] <= 50 and "low" in order[:8]


async def test_a_queue_alone_uses_all_slots_and_one_more_is_known(setup: JobSetup) -> None:
    running: set[int] = set()
    most = 0

    async def send(_payload: Any, job: Job) -> None:
        nonlocal most
        running.add(job.id)
        most = max(most, len(running))
        await anyio.sleep(5)
        running.discard(job.id)

    async with setup.queue("low") as low:
        for number in range(40):
            await low.put(number)
        async with setup.working(send, "high=3", "low=1", concurrency=8) as worker:
            await anyio.sleep(12)
            subscription = worker.subscriptions[1]
            assert subscription.queue == "low" and len(subscription.waiting) <= 2
    assert most == 8
