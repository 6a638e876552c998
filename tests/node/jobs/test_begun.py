"""What a worker has and did not begin: it is nobody's attempt, whatever happens to the worker."""

from __future__ import annotations

from typing import Any

import anyio

from millpond.node.jobs import Job, task
from tests.node.jobs.place import Place


async def test_jobs_that_wait_for_a_slot_lose_no_attempt_with_the_connection(place: Place) -> None:
    began: list[tuple[Any, int]] = []

    @task(queue="a", attempts=1)
    async def send(payload: Any, job: Job) -> None:
        began.append((payload, job.attempt))
        await anyio.sleep(20)

    async with place.queue("a") as queue:
        async with place.working([send], "a=3", "b", concurrency=1) as worker:
            for number in range(2):
                await queue.put(number)
            await place.until(lambda: worker.subscriptions[0].waiting and began)
            place.network.reset("worker")
            await place.until(lambda: len(place.ended) >= 3)
        counts = await queue.counts()
    assert sorted(began) == [(0, 1), (1, 1)]
    assert sorted(place.whats) == ["done", "lost", "rejected"] and counts.dead == 1


async def test_nothing_is_pushed_before_the_worker_runs(place: Place) -> None:
    attempts: list[int] = []

    async def send(_payload: Any, job: Job) -> None:
        attempts.append(job.attempt)

    async with place.queue() as queue:
        await queue.put("x")
        async with place.worker(send, "mail") as worker, anyio.create_task_group() as tasks:
            await anyio.sleep(2000)
            assert (await queue.counts()).leased == 0
            tasks.start_soon(worker.run)
            await place.until(lambda: place.ended)
            worker.drain()
    assert attempts == [1]


async def test_what_was_on_its_way_to_a_worker_with_several_queues_is_as_new(place: Place) -> None:
    """Pushes that the worker never saw, again and again; then somebody works on them."""
    attempts: list[int] = []

    @task(queue="mail", attempts=1)
    async def send(_payload: Any, job: Job) -> None:
        attempts.append(job.attempt)

    async with place.queue() as queue:
        for _ in range(8):
            async with (
                place.worker([send], "mail", "b") as worker,
                anyio.create_task_group() as tasks,
            ):
                place.network.stall("worker")
                tasks.start_soon(worker.subscriptions[0].widen)
                await anyio.sleep(1)
                await queue.put("x")
                await anyio.sleep(1)
                assert (await queue.counts()).leased >= 1
                place.network.reset("worker")
                place.network.unstall("worker")
        async with place.working([send]):
            await place.until(lambda: len(place.ended) == 8)
        assert (await queue.counts()).dead == 0
    assert attempts == [1] * 8


async def test_a_job_that_ends_every_worker_is_a_dead_letter(place: Place) -> None:
    """It takes the connection with it; in `test_real` its first step ends the whole process."""
    began: list[int] = []

    @task(queue="mail", attempts=3)
    async def poison(_payload: Any, job: Job) -> None:
        began.append(job.attempt)
        await anyio.sleep(0.01)
        place.network.reset("worker")
        await anyio.sleep(3600)

    async with place.queue() as queue, place.working([poison]):
        await queue.put("x")
        await place.until(lambda: "rejected" in place.whats, 600)
        assert (await queue.counts()).dead == 1
    assert began == [1, 2, 3]


async def test_what_is_done_as_the_connection_ends_comes_again(place: Place) -> None:
    """Another worker may have it already: a late ack would take it away from that one."""
    others = Place(place.node, place.network)
    began: list[int] = []

    async def send(_payload: Any, job: Job) -> None:
        began.append(job.attempt)
        if len(began) == 1:
            await anyio.sleep(0.01)
            session = worker.subscriptions[0].channel._link.session
            assert session is not None
            place.network.partition("worker", "pond")
            session.close()  # as when the node says goodbye; nobody has told the worker yet
            return
        place.network.heal("worker", "pond")
        await anyio.sleep(30)

    async with place.queue() as queue, place.working(send, "mail") as worker:
        await queue.put("x")
        await place.until(lambda: place.ended)
        async with others.working(send, "mail", source="other"):
            await anyio.sleep(1)
            place.network.reset("worker")
            await others.until(lambda: others.ended)
    assert began == [1, 2]
    assert (place.whats, others.whats) == (["lost"], ["done"])


async def test_a_worker_that_leaves_takes_no_job_with_it(place: Place) -> None:
    """Jobs are put all the while workers come and go; each has one attempt, and none is lost."""
    attempts: list[int] = []

    @task(queue="mail", attempts=1)
    async def send(_payload: Any, job: Job) -> None:
        attempts.append(job.attempt)

    async with place.queue() as queue, anyio.create_task_group() as tasks:

        async def produce() -> None:
            for number in range(300):
                await queue.put(number)
                await anyio.sleep(0.0007)

        tasks.start_soon(produce)
        for _ in range(40):
            async with place.working([send]):
                await anyio.sleep(0.003)
        async with place.working([send]):
            await place.until(lambda: len(attempts) == 300)
        assert (await queue.counts()).dead == 0
    assert attempts == [1] * 300
