"""Requests to a queue besides puts: later, once, look, retry, cancel, dead letters."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from millpond.actors.errors import NotFound
from millpond.errors import ClientClosed
from millpond.jobs import Backoff, Job, JobCancelled, Queue, Reject, task
from millpond.node.jobs.payload import decode_job
from tests.node.jobs.job_setup import JobSetup


async def test_a_job_is_not_begun_before_it_is_due(setup: JobSetup) -> None:
    at: dict[str, float] = {}

    async def send(payload: str) -> None:
        at[payload] = anyio.current_time()

    async with setup.queue() as queue, setup.working(send, "mail"):
        now = anyio.current_time()
        await queue.put("in an hour", due=3600.0)
        await queue.put("then", due=datetime.fromtimestamp(setup.wall() + 600, UTC))
        await queue.put("now")
        assert [row.state async for row in queue.jobs("delayed")] == ["delayed", "delayed"]
        await setup.until(lambda: len(at) == 3)
    assert at["now"] - now < 1
    assert at["then"] - now == pytest.approx(600, abs=2)
    assert at["in an hour"] - now == pytest.approx(3600, abs=2)


async def test_a_unique_job_is_there_once_until_it_is_done(setup: JobSetup) -> None:
    seen: list[str] = []

    async def send(payload: str) -> None:
        seen.append(payload)

    async with setup.queue() as queue:
        first = await queue.put("a", unique="alice")
        again = await queue.put("b", unique="alice")
        other = await queue.put("c", unique="bob")
        assert (again.id, again.existing) == (first.id, True)
        assert not first.existing and not other.existing and other.id != first.id
        async with setup.working(send, "mail"):
            await setup.until(lambda: len(seen) == 2)
            await anyio.sleep(1)
            assert not (await queue.put("d", unique="alice")).existing
            await setup.until(lambda: "d" in seen)
    assert sorted(seen) == ["a", "c", "d"]


async def test_the_states_of_jobs(setup: JobSetup) -> None:
    @task(queue="mail", attempts=2, backoff=Backoff(1000.0))
    async def send(payload: str) -> None:
        if payload == "long":
            await anyio.sleep(500)
        if payload == "bad":
            raise Reject("no such user")

    async with setup.queue() as queue:
        bad = await queue.put("bad")
        long = await queue.put("long")
        async with setup.working([send], concurrency=1):
            await setup.until(lambda: setup.ended)
            later = await queue.put("later", due=1000.0)
            waiting = await queue.put("waiting")
            rows = {row.id: row async for row in queue.jobs()}
            assert rows[long.id].state == "leased" and rows[long.id].leased_until
            assert rows[later.id].state == "delayed" and rows[later.id].due
            assert rows[waiting.id].state == "ready"
            dead = [row async for row in queue.jobs("dead")]
            assert [(row.origin, row.reason) for row in dead] == [(bad.id, "no such user")]
            counts = await queue.counts()
            told = (counts.ready, counts.delayed, counts.leased, counts.dead, counts.workers)
            assert told == (1, 1, 1, 1, 1)
            shown = await queue.show(waiting.id)
            assert shown.data is not None and decode_job(shown.data).payload == "waiting"
            with pytest.raises(NotFound):
                await queue.show(1)


async def test_a_delayed_job_is_retried_now(setup: JobSetup) -> None:
    at: list[float] = []

    @task(queue="mail", backoff=Backoff(3000.0, 3000.0))
    async def send(_payload: Any, job: Job) -> None:
        at.append(anyio.current_time())
        if job.attempt == 1:
            raise ConnectionError

    async with setup.queue() as queue, setup.working([send]):
        put = await queue.put("x")
        await setup.until(lambda: setup.ended)
        await queue.retry(put.id)
        await setup.until(lambda: len(setup.ended) == 2)
    assert at[1] - at[0] < 5


async def test_a_cancelled_job_is_gone_and_its_producer_is_told(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        put = await queue.put("x", wait=True)
        await queue.cancel(put.id)
        with pytest.raises(JobCancelled):
            await put.result(10)
        with pytest.raises(NotFound):
            await queue.cancel(put.id)
        assert await setup.kept() == []


async def test_a_cancelled_job_stops_its_handler(setup: JobSetup) -> None:
    stopped: list[float] = []

    async def send(_payload: Any) -> None:
        try:
            await anyio.sleep(3600)
        finally:
            stopped.append(anyio.current_time())

    async with setup.queue() as queue, setup.working(send, "mail", lease=30):
        put = await queue.put("x")
        await anyio.sleep(60)
        before = anyio.current_time()
        await queue.cancel(put.id)
        await setup.until(lambda: setup.ended)
        assert stopped[0] - before <= 11
    assert setup.outcomes == ["cancelled"]


async def test_dead_letters_are_put_back_or_deleted(setup: JobSetup) -> None:
    attempts: list[int] = []
    mended = False

    @task(queue="mail", attempts=1)
    async def send(_payload: Any, job: Job) -> None:
        attempts.append(job.attempt)
        if not mended:
            raise LookupError("no such user")

    async with setup.queue() as queue, setup.working([send]):
        for number in range(3):
            await queue.put(number)
        await setup.until(lambda: len(setup.ended) == 3)
        dead = [row.id async for row in queue.jobs("dead")]
        mended = True
        assert await queue.retry_dead(dead[:1]) == 1
        await setup.until(lambda: len(setup.ended) == 4)
        assert await queue.purge_dead(dead[1:2]) == 1
        assert await queue.retry_dead() == 1
        await setup.until(lambda: len(setup.ended) == 5)
        assert await queue.purge_dead() == 0
        assert [row async for row in queue.jobs()] == []
    assert attempts == [1] * 5 and setup.outcomes.count("done") == 2


async def test_a_burst_leaves_what_is_due_later(setup: JobSetup) -> None:
    seen: list[str] = []

    async def send(payload: str) -> None:
        seen.append(payload)

    async with setup.queue() as queue:
        await queue.put("now")
        await queue.put("later", due=3600.0)
        async with setup.worker(send, "mail") as worker:
            with anyio.fail_after(60):
                await worker.run(burst=True)
    assert seen == ["now"]


async def test_a_lost_connection_puts_no_job_twice(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_put_later, queue)
            await anyio.lowlevel.checkpoint()
            setup.network.reset("producer")
        assert len([row async for row in queue.jobs()]) == 1


async def _put_later(queue: Queue) -> None:
    await queue.put("x", due=60.0)


async def test_many_jobs_are_listed_page_by_page(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        ids = [(await queue.put(number)).id for number in range(250)]
        assert [row.id async for row in queue.jobs()] == ids


async def test_arguments_that_make_no_request(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        with pytest.raises(ValueError):
            await queue.put(unique="x" * 65)
        with pytest.raises(ValueError, match="wait"):
            await queue.put(unique="x", wait=True)
    with pytest.raises(ClientClosed, match="not open"):
        await setup.queue().put("x")
