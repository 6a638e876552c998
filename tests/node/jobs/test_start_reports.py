"""Jobs that a worker has and did not begin use up no attempt, whatever happens to the worker."""

from __future__ import annotations

from typing import Any

import anyio

from millpond.jobs import Job, task
from tests.node.jobs.job_setup import JobSetup


async def test_jobs_that_wait_for_a_slot_lose_no_attempt_with_the_connection(
    setup: JobSetup,
) -> None:
    began: list[tuple[Any, int]] = []

    @task(queue="a", attempts=1)
    async def send(payload: Any, job: Job) -> None:
        began.append((payload, job.attempt))
        await anyio.sleep(20)

    async with setup.queue("a") as queue:
        async with setup.working([send], "a=3", "b", concurrency=1) as worker:
            for number in range(2):
                await queue.put(number)
            await setup.until(lambda: worker.subscriptions[0].waiting and began)
            setup.network.reset("worker")
            await setup.until(lambda: len(setup.ended) >= 3)
        counts = await queue.counts()
    assert sorted(began) == [(0, 1), (1, 1)]
    assert sorted(setup.outcomes) == ["done", "lost", "rejected"] and counts.dead == 1


async def test_nothing_is_pushed_before_the_worker_runs(setup: JobSetup) -> None:
    attempts: list[int] = []

    async def send(_payload: Any, job: Job) -> None:
        attempts.append(job.attempt)

    async with setup.queue() as queue:
        await queue.put("x")
        async with setup.worker(send, "mail") as worker, anyio.create_task_group() as tasks:
            await anyio.sleep(2000)
            assert (await queue.counts()).leased == 0
            tasks.start_soon(worker.run)
            await setup.until(lambda: setup.ended)
            worker.drain()
    assert attempts == [1]


async def test_a_job_on_its_way_to_a_worker_with_several_queues_uses_no_attempt(
    setup: JobSetup,
) -> None:
    """Pushes that the worker never saw, again and again; then somebody works on them."""
    attempts: list[int] = []

    @task(queue="mail", attempts=1)
    async def send(_payload: Any, job: Job) -> None:
        attempts.append(job.attempt)

    async with setup.queue() as queue:
        for _ in range(8):
            async with (
                setup.worker([send], "mail", "b") as worker,
                anyio.create_task_group() as tasks,
            ):
                setup.network.stall("worker")
                tasks.start_soon(worker.subscriptions[0].widen)
                await anyio.sleep(1)
                await queue.put("x")
                await anyio.sleep(1)
                assert (await queue.counts()).leased >= 1
                setup.network.reset("worker")
                setup.network.unstall("worker")
        async with setup.working([send]):
            await setup.until(lambda: len(setup.ended) == 8)
        assert (await queue.counts()).dead == 0
    assert attempts == [1] * 8


async def test_a_job_that_ends_every_worker_is_a_dead_letter(setup: JobSetup) -> None:
    """It takes the connection with it; in `test_real` its first step ends the whole process."""
    began: list[int] = []

    @task(queue="mail", attempts=3)
    async def poison(_payload: Any, job: Job) -> None:
        began.append(job.attempt)
        await anyio.sleep(0.01)
        setup.network.reset("worker")
        await anyio.sleep(3600)

    async with setup.queue() as queue, setup.working([poison]):
        await queue.put("x")
        await setup.until(lambda: "rejected" in setup.outcomes, 600)
        assert (await queue.counts()).dead == 1
    assert began == [1, 2, 3]


async def test_a_job_that_is_done_as_the_connection_ends_runs_again(setup: JobSetup) -> None:
    """Another worker may have it already: a late ack would take it away from that one."""
    others = JobSetup(setup.node, setup.network)
    began: list[int] = []

    async def send(_payload: Any, job: Job) -> None:
        began.append(job.attempt)
        if len(began) == 1:
            await anyio.sleep(0.01)
            session = worker.subscriptions[0].channel._link.session
            assert session is not None
            setup.network.partition("worker", "pond")
            session.close()  # as when the node says goodbye; nobody has told the worker yet
            return
        setup.network.heal("worker", "pond")
        await anyio.sleep(30)

    async with setup.queue() as queue, setup.working(send, "mail") as worker:
        await queue.put("x")
        await setup.until(lambda: setup.ended)
        async with others.working(send, "mail", source="other"):
            await anyio.sleep(1)
            setup.network.reset("worker")
            await others.until(lambda: others.ended)
    assert began == [1, 2]
    assert (setup.outcomes, others.outcomes) == (["lost"], ["done"])


async def test_a_worker_that_leaves_takes_no_job_with_it(setup: JobSetup) -> None:
    """Jobs are put all the while workers come and go; each has one attempt, and none is lost."""
    attempts: list[int] = []

    @task(queue="mail", attempts=1)
    async def send(_payload: Any, job: Job) -> None:
        attempts.append(job.attempt)

    async with setup.queue() as queue, anyio.create_task_group() as tasks:

        async def produce() -> None:
            for number in range(300):
                await queue.put(number)
                await anyio.sleep(0.0007)

        tasks.start_soon(produce)
        for _ in range(40):
            async with setup.working([send]):
                await anyio.sleep(0.003)
        async with setup.working([send]):
            await setup.until(lambda: len(attempts) == 300)
        assert (await queue.counts()).dead == 0
    assert attempts == [1] * 300
