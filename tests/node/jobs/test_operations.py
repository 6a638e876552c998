"""Operations on a queue: look at workers, move jobs, select dead letters."""

from __future__ import annotations

import anyio
import pytest

from millpond.actors.errors import BufferFull, LeaseLost
from millpond.jobs import Job, JobFilter, Queue, Reject, task
from millpond.node.jobs.payload import decode_job
from millpond.node.jobs.requests import Operation, ask
from millpond.node.jobs.selection import move_key
from tests.node.jobs.job_setup import JobSetup, job_setup


async def payloads(queue: Queue) -> list[object]:
    return [decode_job(each.data or b"").payload async for each in queue.select(JobFilter())]


async def test_workers_are_listed_with_their_jobs(setup: JobSetup) -> None:
    may_end = anyio.Event()

    @task(name="slow")
    async def slow(payload: int) -> None:
        await may_end.wait()

    async with setup.queue() as queue:
        for number in range(5):
            await queue.put(number, name="slow")
        began_ms = setup.wall() * 1000
        async with setup.working([slow], "mail", concurrency=3, name="worker one"):
            second = {"source": "two", "name": "worker two", "concurrency": 1}
            async with setup.working([slow], "mail", **second):
                await setup.until(lambda: setup.node.scheduler.is_idle)
                await anyio.sleep(20)
                found = [each async for each in queue.workers()]
                assert sorted((each.held, each.name) for each in found) == [
                    (1, b"worker two"),
                    (3, b"worker one"),
                ]
                for worker in found:
                    assert worker.takes and worker.window == worker.held
                    for job in worker.jobs:
                        assert job.begun and 0 <= job.since - began_ms < 1000 < job.until - began_ms
                        assert decode_job(job.data).name == "slow"
                may_end.set()
                await setup.until(lambda: len(setup.ended) == 5)
        assert [each async for each in queue.workers()] == []


@pytest.mark.parametrize("name", ["é" * 100, "\udc80" * 100, "<b>\u202e\0"])
async def test_a_name_of_a_worker_that_is_long_or_odd_is_cut(setup: JobSetup, name: str) -> None:
    async def work(payload: int) -> None:
        pass

    async with setup.queue() as queue, setup.working(work, "mail", name=name):
        (worker,) = [each async for each in queue.workers()]
    whole = name.encode("utf-8", "backslashreplace")
    assert whole.startswith(worker.name) and len(worker.name) in (len(whole), 127, 128)
    worker.name.decode()


async def test_waiting_jobs_move_and_running_ones_stay(setup: JobSetup) -> None:
    may_end = anyio.Event()

    @task(name="slow")
    async def slow(payload: object) -> None:
        await may_end.wait()

    async with setup.queue() as queue, setup.queue("calm", rng=None) as calm:
        await queue.put("running", name="slow")
        async with setup.working([slow], "mail", concurrency=1):
            await anyio.sleep(1)
            for number in range(300):
                await queue.put(number, name="slow", priority=number % 10)
            due = await queue.put("due", name="slow", due=3600, ttl=600, unique="u")
            assert await queue.move("calm") == 301
            assert await queue.move("calm") == 0
            counts = await calm.counts()
            assert (counts.ready, counts.delayed) == (300, 1)
            (late,) = [each async for each in calm.jobs("delayed")]
            assert late.id != due.id and 3590_000 < late.due - setup.wall() * 1000 < 3600_000
            assert 590_000 < late.expires - late.due <= 600_000
            (running,) = [each async for each in queue.jobs()]
            with pytest.raises(LeaseLost):
                await queue.move("calm", [running.id])
            may_end.set()
            await setup.until(lambda: setup.outcomes == ["done"])
        with pytest.raises(ValueError, match="itself"):
            await queue.move("mail")


async def test_jobs_that_do_not_fit_stay_where_they_are() -> None:
    async with job_setup(channel_messages_max=3) as setup:
        async with setup.queue() as queue, setup.queue("calm") as calm:
            for number in range(3):
                await queue.put(number)
            await calm.put("there")
            with pytest.raises(BufferFull):
                await queue.move("calm")
            assert await payloads(calm) == ["there", 0, 1]
            assert await payloads(queue) == [2]
            counts = await queue.counts()
            assert (counts.ready, counts.leased) == (1, 0)


async def test_a_move_that_comes_twice_puts_one_job(setup: JobSetup) -> None:
    """The mover crashed between its put and its removal: the job is in both queues."""
    async with setup.queue() as queue, setup.queue("calm") as calm:
        job = await queue.put("once")
        row = await queue.show(job.id)
        fields = {"key": move_key("mail", job.id), "data": row.data}
        await ask(calm.channel, Operation.PUT, **fields)
        assert await queue.move("calm") == 1
        assert await payloads(calm) == ["once"] and await payloads(queue) == []


async def test_two_moves_of_one_delayed_job_at_once_leave_one(setup: JobSetup) -> None:
    async with setup.queue() as queue, setup.queue("calm", rng=None) as calm:
        for number in range(5):
            await queue.put(number, due=3600)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(queue.move, "calm")
        assert (await queue.counts()).delayed == 0
        assert (await calm.counts()).delayed == 5


async def test_a_taken_job_goes_back_with_its_connection(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        for options in ({}, {"priority": 9}):
            job = await queue.put("x", **options)
            async with queue._connector.join(
                queue._channel_name, "worker", mode="queue", window=0, begins=True
            ) as mover:
                assert (await ask(mover, Operation.TAKE, id=job.id))["id"] == job.id
                assert (await queue.show(job.id)).state == "leased"
                with pytest.raises(LeaseLost):
                    await ask(mover, Operation.TAKE, id=job.id)
            await anyio.sleep(1)
            shown = await queue.show(job.id)
            assert (shown.state, shown.attempt) == ("ready", 0)
            await queue.cancel(job.id)


async def test_dead_letters_are_selected_by_task_error_and_age(setup: JobSetup) -> None:
    @task(name="send", attempts=1)
    async def send(payload: object) -> None:
        raise TimeoutError("no answer from smtp")

    @task(name="sign")
    async def sign(payload: object, job: Job) -> None:
        raise Reject("no key")

    async with setup.queue() as queue:
        async with setup.working([send, sign], "mail"):
            await queue.put("a" * 1000, name="send")
            await queue.put("b", name="sign")
            await setup.until(lambda: len(setup.ended) == 2)
            await anyio.sleep(3600)
            await queue.put("c", name="send")
            await setup.until(lambda: len(setup.ended) == 3)

        async def found(where: JobFilter) -> list[str]:
            dead = queue.select(where, "dead")
            return [str(decode_job(each.data or b"").payload)[:1] async for each in dead]

        assert await found(JobFilter(task="send")) == ["a", "c"]
        assert await found(JobFilter(error="no answer")) == ["a", "c"]
        assert await found(JobFilter(error="no key")) == ["b"]
        assert await found(JobFilter(older_than=1800)) == ["a", "b"]
        assert await found(JobFilter(task="send", older_than=1800)) == ["a"]
        assert await found(JobFilter(task="")) == []
        assert await queue.retry_dead(where=JobFilter(task="send", older_than=1800)) == 1
        assert await queue.purge_dead(where=JobFilter(error="no key")) == 1
        (left,) = [each async for each in queue.jobs("dead")]
        assert await queue.move("calm", [left.id]) == 1
        assert (await queue.counts()).dead == 0
    async with setup.queue("calm") as calm:
        assert await payloads(calm) == ["c"]
