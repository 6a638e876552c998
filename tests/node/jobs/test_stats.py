"""Stats of queues: counts of attempts and their durations, by the node
(docs/reference/wire-protocol.md)."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from millpond.actors.channels import context
from millpond.actors.queue_stats import JOB_SECONDS
from millpond.jobs import Job, Reject, Retry, task
from millpond.node.jobs.requests import Operation
from millpond.node.jobs.worker.outcome import TaskStats
from tests.node.jobs.job_setup import JobSetup

pytestmark = pytest.mark.anyio
OVERVIEW = 17


async def stats(setup: JobSetup, queue: str = "mail") -> dict[str, Any]:
    async with setup.observed(f"jobs/{queue}") as channel:
        found: dict[str, Any] = (await channel.jobs(Operation.COUNTS, {"stats": True}))["stats"]
        return found


def classes(found: dict[str, Any]) -> list[tuple[float, int]]:
    """The upper bounds of the classes that have attempts, with how many."""
    bounds = [*found["bounds"], float("inf")]
    assert len(bounds) == len(found["durations"])
    return [(bound, n) for bound, n in zip(bounds, found["durations"], strict=True) if n]


async def test_attempts_are_counted_by_outcome_with_their_durations(setup: JobSetup) -> None:
    @task(queue="mail", attempts=3)
    async def send(payload: float, job: Job) -> None:
        await anyio.sleep(payload)
        if payload == 2.0 and job.attempt == 1:
            raise Retry(1.0)
        if payload == 20.0:
            raise Reject("no")

    async with setup.queue() as queue, setup.working([send]):
        for seconds in (0.05, 0.3, 2.0):
            await queue.put(seconds)
        await queue.put(0.3, keep=60)  # ends by a request with its result
        await queue.put(20.0)
        await setup.until(lambda: len(setup.ended) == 6)
        await anyio.sleep(1)
        found = await stats(setup)
    assert {each: found[each] for each in ("put", "done", "failed", "lost", "dead")} == {
        "put": 5,
        "done": 4,
        "failed": 2,
        "lost": 0,
        "dead": 1,
    }
    assert tuple(found["bounds"]) == JOB_SECONDS
    assert classes(found) == [(0.1, 1), (0.5, 2), (2.5, 2), (30.0, 1)]
    assert found["seconds"] == pytest.approx(0.05 + 0.3 + 0.3 + 2 + 2 + 20, abs=0.2)


async def test_lost_attempts_and_cancelled_jobs_have_no_duration(setup: JobSetup) -> None:
    async def send(_payload: Any) -> None:
        await anyio.sleep(60)

    async with setup.queue() as queue:
        async with setup.working(send, "mail"):
            put = await queue.put()
            await anyio.sleep(1)
            await queue.cancel(put.id)
            await setup.until(lambda: setup.outcomes == ["cancelled"])
            await queue.put()
            await anyio.sleep(1)
            setup.network.reset("worker")
            await anyio.sleep(1)
            found = await stats(setup)
    assert (found["done"], found["lost"], sum(found["durations"])) == (0, 1, 0)


async def test_the_overview_has_all_queues_together(setup: JobSetup) -> None:
    async def send(payload: float) -> None:
        await anyio.sleep(payload)

    async with (
        setup.queue() as mail,
        setup.queue("film") as film,
        setup.working(send, "mail", "film"),
    ):
        await mail.put(0.3)
        await film.put(2.0)
        await setup.until(lambda: len(setup.ended) == 2)
        await anyio.sleep(1)
        async with setup.observed("millpond!probe") as probe:
            found = (await probe.admin(OVERVIEW, {}))["jobs"]
        assert (found["put"], found["done"]) == (2, 2)
        assert classes(found) == [(0.5, 1), (2.5, 1)]
        assert classes(await stats(setup, "film")) == [(2.5, 1)]


async def test_queues_beyond_the_limit_have_no_stats(
    setup: JobSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "QUEUES_COUNTED_MAX", 1)
    async with setup.queue() as mail, setup.queue("film") as film:
        await mail.put(1)
        await film.put(1)
        assert (await stats(setup))["put"] == 1
        async with setup.observed("jobs/film") as channel:
            assert "stats" not in await channel.jobs(Operation.COUNTS, {"stats": True})
            assert "stats" not in await channel.jobs(Operation.COUNTS, {})
    assert TaskStats().seconds.bounds == JOB_SECONDS
