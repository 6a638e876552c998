"""Bulk puts: many jobs in one call, stored all or none."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from millpond.actors.errors import BufferFull, DataTooLarge, KeyReused, NotFound
from millpond.jobs import Job
from millpond.node.jobs.payload import JobMessage, encode_job
from millpond.node.jobs.requests import Operation, ask
from tests.node.jobs.job_setup import JobSetup, job_setup


async def test_all_jobs_run_once_in_the_order_of_their_ids(setup: JobSetup) -> None:
    seen: list[tuple[int, Any]] = []

    async def work(payload: Any, job: Job) -> None:
        seen.append((job.id, payload))

    async with setup.queue() as queue:
        ids = await queue.put_many([{"n": n} for n in range(3000)], headers={"a": "b"})
        async with setup.working(work, "mail", concurrency=1):
            await setup.until(lambda: len(seen) == 3000)
    assert seen == [(each, {"n": n}) for n, each in enumerate(ids)]


async def test_none_is_a_bulk_put_as_well(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        assert await queue.put_many([]) == []
        assert (await queue.counts()).ready == 0


async def test_jobs_of_several_packets_are_due_together(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        ids = await queue.put_many(["x" * 300_000] * 12, due=600, ttl=60)
        assert len(set(ids)) == 12 and ids == sorted(ids)
        assert (await queue.counts()).delayed == 12
        shown = await queue.show(ids[-1])
        assert shown.expires - shown.due == 60_000


async def test_too_many_jobs_for_one_call_are_refused(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        with pytest.raises(ValueError, match="10001 jobs"):
            await queue.put_many(range(10_001))
        with pytest.raises(ValueError, match="bytes at most"):
            await queue.put_many(["x" * 900_000] * 10)
        with pytest.raises(DataTooLarge):
            await queue.put_many(["x" * 2**20])
        # The node has the same limits, whatever a client counts.
        with pytest.raises(BufferFull):
            await ask(queue.channel, Operation.PUT_MANY, key=7, jobs=[b"x"] * 10_001)
        big = {"key": 8, "jobs": [b"x" * 900_000], "more": True}
        for part in range(9):
            await ask(queue.channel, Operation.PUT_MANY, at=part, **big)
        with pytest.raises(BufferFull):
            await ask(queue.channel, Operation.PUT_MANY, at=9, **big)
        # The third bulk put takes the place of the first.
        for key in (1, 2, 3):
            await ask(queue.channel, Operation.PUT_MANY, key=key, jobs=[b"x"], more=True)
        with pytest.raises(NotFound):
            await ask(queue.channel, Operation.PUT_MANY, key=1, jobs=[b"x"], at=1)
        await ask(queue.channel, Operation.PUT_MANY, key=3, jobs=[b"x"], at=1)
        assert (await queue.counts()).ready == 2


async def test_jobs_that_do_not_all_fit_are_not_stored() -> None:
    async with job_setup(channel_messages_max=10) as setup, setup.queue() as queue:
        with pytest.raises(BufferFull):
            await queue.put_many(range(11))
        assert (await queue.counts()).ready == 0
        assert len(await queue.put_many(range(10))) == 10


async def test_a_repeated_bulk_put_has_the_same_ids(setup: JobSetup) -> None:
    """Keys of other jobs are between its own, and one of its jobs is done."""
    async with setup.queue() as queue:
        data = [encode_job(JobMessage(n)) for n in range(6)]
        for key in (101, 103):
            await ask(queue.channel, Operation.PUT, key=key, data=b"another")
        first = await ask(queue.channel, Operation.PUT_MANY, key=100, jobs=data)
        await queue.cancel(first["runs"][0][0])
        assert await ask(queue.channel, Operation.PUT_MANY, key=100, jobs=data) == first
        with pytest.raises(KeyReused):
            await ask(queue.channel, Operation.PUT_MANY, key=100, jobs=data[1:])
        with pytest.raises(KeyReused):
            await ask(queue.channel, Operation.PUT_MANY, key=101, jobs=data)
        assert (await queue.counts()).ready == 7


async def test_a_lost_connection_stores_each_job_once(setup: JobSetup) -> None:
    async with setup.queue() as queue, anyio.create_task_group() as tasks:
        ids: list[int] = []

        async def put() -> None:
            ids.extend(await queue.put_many(["x" * 200_000] * 20))

        tasks.start_soon(put)
        for _ in range(3):
            await anyio.sleep(0.003)
            setup.network.reset("producer")
    async with setup.queue() as queue:
        assert [each.id async for each in queue.jobs()] == ids and len(ids) == 20
