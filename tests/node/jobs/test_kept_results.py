"""Results by id, progress, logs and cancellation of running jobs."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from millpond.actors.errors import NotFound
from millpond.jobs import Job, JobCancelled, JobFailed, Reject, task
from tests.node.jobs.job_setup import JobSetup


async def test_anyone_gets_a_result_by_the_id_of_its_job(setup: JobSetup) -> None:
    async def double(number: int, job: Job) -> int:
        job.log("doubling")
        return 2 * number

    async with setup.queue() as producer, setup.queue() as other:
        kept = await producer.put(21, keep=60)
        (many,) = await producer.put_many([4], keep=60)
        plain = await producer.put(1)
        with pytest.raises(TimeoutError):
            await other.result(kept.id, 1.0)
        async with setup.working(double, "mail"):
            assert await other.result(kept.id, 60) == 42
            assert await other.result(many, 60) == 8
            with pytest.raises(JobFailed, match="gone"):
                await other.result(plain.id, 60)
        assert setup.outcomes == ["done"] * 3
        assert (await other.progress(kept.id)).logs == ["doubling"]
        assert not await setup.kept()
        await anyio.sleep(80)
        with pytest.raises(JobFailed, match="gone"):
            await other.result(kept.id)
        with pytest.raises(NotFound):
            await other.progress(kept.id)


async def test_a_task_says_how_long_its_results_are_kept(setup: JobSetup) -> None:
    @task(queue="mail", keep=100)
    async def double(number: int) -> int:
        return 2 * number

    async with setup.queue() as queue, setup.working([double]):
        kept = await queue.put(1, name="double")
        not_kept = await queue.put(2, name="double", keep=0)
        assert await queue.result(kept.id, 60) == 2
        with pytest.raises(JobFailed, match="gone"):
            await queue.result(not_kept.id, 60)


async def test_progress_and_logs_are_read_while_the_job_runs(setup: JobSetup) -> None:
    async def work(_: Any, job: Job) -> str:
        for number in range(200):
            job.log(f"line {number}")
        job.progress(0.5, "half")
        await anyio.sleep(30)
        job.progress(1.0, "all")
        return "end"

    async with setup.queue() as queue, setup.working(work, "mail"):
        put = await queue.put(None, keep=600)
        await anyio.sleep(2)
        seen = await queue.progress(put.id)
        assert (seen.state, seen.value, seen.text, seen.attempt) == ("leased", 0.5, "half", 1)
        assert seen.logs == [f"line {number}" for number in range(100, 200)]
        assert await queue.result(put.id, 60) == "end"
        last = await queue.progress(put.id)
        assert (last.state, last.value, last.text) == (None, 1.0, "all")


async def test_failures_and_cancellations_are_results(setup: JobSetup) -> None:
    async def work(how: str) -> object:
        if how == "reject":
            raise Reject("no such user")
        return {1, 2} if how == "set" else object()

    async with setup.queue() as queue:
        rejected = await queue.put("reject", keep=60)
        odd = await queue.put("odd", keep=60)
        cancelled = await queue.put("set", keep=60, due=600)
        await queue.cancel(cancelled.id)
        async with setup.working(work, "mail"):
            with pytest.raises(JobFailed, match="no such user"):
                await queue.result(rejected.id, 60)
            with pytest.raises(JobFailed) as caught:
                await queue.result(odd.id, 60)
            assert caught.value.reason == "result"
            with pytest.raises(JobCancelled):
                await queue.result(cancelled.id, 60)
        assert sorted(setup.outcomes) == ["done", "rejected"]


async def test_a_cancelled_job_stops_at_once(setup: JobSetup) -> None:
    """Long before the next renewal of its lease."""
    ends: list[float] = []

    @task(queue="mail", lease=3000)
    async def work() -> None:
        try:
            await anyio.sleep(2000)
        finally:
            ends.append(anyio.current_time())

    async with setup.queue() as queue, setup.working([work]):
        put = await queue.put(None)
        await anyio.sleep(100)
        began = anyio.current_time()
        await queue.cancel(put.id)
        await setup.until(lambda: setup.ended)
        assert ends[0] - began < 1 and setup.outcomes == ["cancelled"]
        with pytest.raises(JobCancelled):
            await queue.result(put.id, 10)
