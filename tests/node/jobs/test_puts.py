"""Putting jobs: what is too large, too much at once, or put under an identity of one's own."""

from __future__ import annotations

import gc
from typing import Any

import anyio
import pytest

from millpond.actors.channels.settings import TTL_UNLIMITED
from millpond.actors.errors import BufferFull, DataTooLarge
from millpond.jobs import Job, JobFailed, Queue, Worker, task
from tests.node.client.test_identity import serving, url_of
from tests.node.jobs.job_setup import JobSetup, job_setup
from tests.transports.p2p.identity_packets import ALICE, NODE

MANY = 3000


@pytest.mark.parametrize("more", [{}, {"due": 60.0}, {"unique": "a"}])
async def test_a_job_that_no_packet_holds_is_refused_and_nothing_else_is_lost(
    setup: JobSetup, more: dict[str, Any]
) -> None:
    async with setup.queue() as queue:
        with anyio.fail_after(60), pytest.raises(DataTooLarge):
            await queue.put("x" * 2**20, **more)
        await queue.put("x" * (2**20 - 1000), **more)
        assert queue.channel.counts.connections == 1


async def test_more_puts_at_once_than_a_node_answers_wait_for_their_turn(setup: JobSetup) -> None:
    async with setup.queue() as queue, anyio.create_task_group() as tasks:
        for number in range(MANY):
            tasks.start_soon(lambda number=number: queue.put(number, due=600))
    async with setup.queue() as queue:
        assert (await queue.counts()).delayed == MANY


async def test_a_full_queue_is_asked_again_for_as_long_as_is_said() -> None:
    async with job_setup(channel_messages_max=1) as setup, setup.queue() as queue:
        await queue.put("first", ttl=30)
        with pytest.raises(BufferFull):
            await queue.put("second", due=1)
        await queue.put("third", due=600, retry_for=60)
        assert (await queue.counts()).delayed == 1


async def test_a_dropped_handle_leaves_nothing_behind(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        for number in range(50):
            handle = await queue.put(number, wait=True, ttl=1)
            with pytest.raises(TimeoutError):
                await handle.result(0.001)
        del handle
        await anyio.sleep(60)
        gc.collect()
        assert not queue._pending


async def test_the_producer_learns_that_a_job_expired(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        put = await queue.put("x", wait=True, ttl=60)
        later = await queue.put("x", wait=True, due=500, ttl=60)
        before = anyio.current_time()
        with pytest.raises(JobFailed) as caught:
            await put.result()
        assert caught.value.reason == "expired" and anyio.current_time() - before < 130
        with pytest.raises(JobFailed, match="expired"):
            await later.result()
        assert 560 < anyio.current_time() - before < 640


async def test_an_expired_job_is_a_dead_letter_that_a_producer_finds_and_retries(
    setup: JobSetup,
) -> None:
    async with setup.queue() as queue:
        put = await queue.put("x", ttl=60)
        kept = await queue.put("y")
        assert (put.ttl, kept.ttl) == (60, TTL_UNLIMITED)
        assert (await queue.show(kept.id)).expires == 0
        await anyio.sleep(61)
        (dead,) = [each async for each in queue.jobs("dead")]
        assert (dead.origin, dead.reason, dead.attempt) == (put.id, "expired", 0)
        (entry,) = [each async for each in queue.history(put.id)]
        assert (entry.job, entry.what, entry.worker) == (str(put.id), "expired", "")
        assert abs(entry.at / 1000 - setup.wall()) < 5
        assert [each async for each in queue.history(kept.id)] == []
        assert await queue.retry_dead([dead.id]) == 1
        again = [each async for each in queue.jobs("ready")]
        assert [each.expires for each in again] == [0, 0]


async def test_the_producer_learns_that_the_attempts_of_the_queue_were_used_up() -> None:
    async with job_setup(attempts_max=2) as setup, setup.queue() as queue:

        @task(queue="mail", attempts=9)
        async def send(_payload: Any) -> None:
            raise ValueError("no")

        async with setup.working([send]):
            put = await queue.put("x", wait=True)
            with pytest.raises(JobFailed) as caught:
                await put.result(600)
        assert caught.value.reason == "later" and setup.outcomes == ["failed", "failed"]


async def test_a_result_that_takes_long_is_a_result(setup: JobSetup) -> None:
    """The node is asked meanwhile, and the job is there."""

    async def slow(_payload: Any) -> str:
        await anyio.sleep(3000)
        return "done"

    async with setup.queue() as queue, setup.working(slow, "mail"):
        put = await queue.put("x", wait=True)
        assert await put.result() == "done"


async def test_producer_and_worker_may_have_one_identity() -> None:
    """PA-18 keeps messages from who put them; a job is for whoever works."""
    seen: list[Any] = []

    async def take(payload: Any, job: Job) -> None:
        seen.append((payload, job.attempt))

    async with serving() as node:
        url, who = url_of(node, "p2p"), {"identity": ALICE, "peer": NODE.public}
        async with Queue(url, "mail", **who) as queue:
            await queue.put("plain")
            await queue.put("unique", unique="a")
            async with Worker(url, take, queues=["mail"], **who) as worker:
                with anyio.fail_after(60):
                    await worker.run(burst=True)
            assert (await queue.counts()).ready == 0
    assert sorted(seen) == [("plain", 1), ("unique", 1)]


async def test_a_burst_ends_although_a_job_is_not_for_this_worker(setup: JobSetup) -> None:
    """It waits for somebody who takes packets of its size; the node is asked seldom meanwhile."""
    asked = 0

    async def send(_payload: Any) -> None: ...

    async with setup.queue() as queue:
        await queue.put("x")
        async with setup.worker(send, "mail") as worker:
            jobs = worker.subscriptions[0].channel.jobs

            async def counted(*words: Any) -> Any:
                nonlocal asked
                asked += 1
                answer = await jobs(*words)
                return answer | {"ready": 1} if "ready" in answer else answer

            worker.subscriptions[0].channel.jobs = counted  # type: ignore[method-assign, assignment]
            with anyio.fail_after(60):
                await worker.run(burst=True)
    assert setup.outcomes == ["done"] and asked < 50


async def test_a_burst_survives_a_lost_connection(setup: JobSetup) -> None:
    async def send(_payload: Any) -> None:
        await anyio.sleep(0.1)

    async with setup.queue() as queue:
        async with setup.worker(send, "mail") as worker, anyio.create_task_group() as tasks:

            async def run() -> None:
                await worker.run(burst=True)
                tasks.cancel_scope.cancel()

            tasks.start_soon(run)
            for number in range(20):
                await queue.put(number)
                await anyio.sleep(0.0207)
                setup.network.reset("worker")
            with anyio.fail_after(600):
                await anyio.sleep_forever()
        counts = await queue.counts()
    assert (counts.ready, counts.leased) == (0, 0)


async def test_a_worker_that_drains_while_it_asks_for_more_just_ends(setup: JobSetup) -> None:
    """With several queues it asks for more as more run; here the node is away, and stays away."""

    async def send(_payload: Any) -> None:
        await anyio.sleep(10)

    async with setup.queue("a") as queue:
        await queue.put("x")
        async with setup.working(send, "a=3", "b", concurrency=4, grace=1.0) as worker:
            await setup.until(lambda: worker.stats.running)
            setup.network.partition("worker", "pond")
            setup.network.reset("worker")
            await setup.until(lambda: setup.ended)
            worker.subscriptions[0]._wanted += 1
            worker._background.start_soon(worker._widen, worker.subscriptions[0])
    assert setup.outcomes == ["lost"]
