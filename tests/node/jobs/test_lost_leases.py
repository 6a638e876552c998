"""Handlers that cannot be cancelled, nodes that do not answer: nobody waits for them for ever."""

from __future__ import annotations

import threading
from dataclasses import replace
from random import Random
from typing import Any

import anyio
import pytest

from millpond.jobs import Handle, Job, Queue, Reject, Worker, task
from millpond.node.client.settings import Dialer, SimulatedSettings
from millpond.node.jobs.handle import PendingResult
from millpond.node.jobs.payload import JobUpdate
from tests.node.jobs.job_setup import URL, JobSetup, job_setup


async def deaf(seconds: float) -> None:
    """As a thread does: it does not hear of its cancellation."""
    with anyio.CancelScope(shield=True):
        await anyio.sleep(seconds)


def slow(setup: JobSetup, source: str) -> Dialer:
    """The first connection is there at once, others come late: those to mailboxes."""
    dials = 0
    near = setup.dialer(source)

    async def dial(*arguments: Any) -> None:
        nonlocal dials
        dials += 1
        await anyio.sleep(8 if dials > 1 else 0)
        await near(*arguments)

    return dial


async def test_no_job_waits_for_a_blocked_slot(setup: JobSetup) -> None:
    """The slot's lease is over, and the node counts on the slot: others get what is pushed."""
    began: list[tuple[str, Any]] = []

    @task(queue="mail", name="t", lease=3.0)
    async def hang(payload: Any) -> None:
        began.append(("a", payload))
        await deaf(300 if payload == "hang" else 0)

    @task(queue="mail", name="t", lease=3.0)
    async def work(payload: Any, job: Job) -> None:
        began.append((f"b{job.attempt}", payload))

    async with setup.queue() as queue, setup.working([hang], source="a", concurrency=1, grace=0):
        await queue.put("hang", name="t")
        await setup.until(lambda: began)
        setup.network.reset("a")
        await anyio.sleep(5)
        async with setup.working([work], source="b", concurrency=1):
            await queue.put("next", name="t")
            await setup.until(lambda: len(began) == 3, 5.0)
        assert began[1:] == [("b2", "hang"), ("b1", "next")]


async def test_a_slot_that_gets_free_again_is_used_again(setup: JobSetup) -> None:
    began: list[Any] = []

    @task(queue="mail", name="t", lease=3.0)
    async def work(payload: Any, job: Job) -> None:
        began.append((payload, job.attempt))
        await deaf(100 if began == [("hang", 1)] else 0)

    async with setup.queue() as queue, setup.working([work], concurrency=1) as worker:
        await queue.put("hang", name="t")
        await setup.until(lambda: began)
        setup.network.reset("worker")
        await queue.put("next", name="t")
        await anyio.sleep(50)
        assert len(began) == 1 and not worker.subscriptions[0].waiting
        assert (await queue.counts()).ready == 2
        await setup.until(lambda: len(began) == 3, 60.0)
        await queue.put("last", name="t")
        await setup.until(lambda: len(began) == 4, 5.0)
    assert sorted(began) == [("hang", 1), ("hang", 2), ("last", 1), ("next", 1)]
    assert setup.outcomes == ["lost", "done", "done", "done"]


async def test_other_slots_go_on_beside_a_blocked_one(setup: JobSetup) -> None:
    done: list[Any] = []

    @task(queue="mail", name="t", lease=3.0, attempts=20)
    async def work(payload: Any, job: Job) -> None:
        if payload == "hang" and job.attempt == 1:
            await deaf(1000)
        await anyio.sleep(1)
        done.append((payload, job.attempt))

    async with setup.queue() as queue, setup.working([work], concurrency=2, grace=2000):
        await queue.put("hang", name="t")
        await anyio.sleep(1)
        setup.network.reset("worker")
        for number in range(20):
            await queue.put(number, name="t")
        await setup.until(lambda: len(done) == 21, 60.0)
        assert set(done) == {("hang", 2), *((number, 1) for number in range(20))}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_thread_without_a_lease_holds_up_no_drain(anyio_backend: str) -> None:
    end, began = threading.Event(), threading.Event()
    seen: list[Any] = []

    @task(queue="mail", name="t", lease=0.9)
    def hang(_payload: Any, job: Job) -> None:
        began.set()
        end.wait(10)
        assert job.cancelled

    @task(queue="mail", name="t")
    async def work(payload: Any) -> None:
        seen.append(payload)

    async with job_setup() as setup:
        async with setup.queue() as queue, setup.working([hang], source="a", concurrency=1):
            await queue.put("hang", name="t")
            await setup.until(began.is_set)
            setup.network.reset("a")
            await anyio.sleep(0.5)
            async with setup.working([work], source="b"):
                await setup.until(lambda: seen == ["hang"], 5.0)
            end.set()


async def test_a_drain_ends_although_the_node_is_gone_for_good(setup: JobSetup) -> None:
    """The session is over, and nobody has said so yet, when the handler ends."""
    gone = False

    @task(queue="mail", name="t")
    async def work() -> None:
        nonlocal gone
        gone = True
        session = worker.subscriptions[0].channel._link._session
        assert session is not None
        session.close()
        raise Reject("no")

    worker = setup.worker([work], grace=1)
    dialer = worker._connector._settings.dialer
    assert dialer is not None

    async def dial(*arguments: Any) -> None:
        if gone:
            raise OSError("nobody is there")
        await dialer(*arguments)

    worker._connector._settings = replace(worker._connector._settings, dialer=dial)
    async with setup.queue() as queue, anyio.create_task_group() as tasks:
        async with worker:
            ran = anyio.Event()

            async def run() -> None:
                await worker.run()
                ran.set()

            tasks.start_soon(run)
            await queue.put(name="t")
            await anyio.sleep(10)
            worker.drain()
            with anyio.fail_after(60):
                await ran.wait()
    assert setup.outcomes == ["lost"]


async def test_the_end_cuts_a_last_failure_short(setup: JobSetup) -> None:
    """Neither the producer nor the node hears of it; the job runs again when its lease is over."""

    @task(queue="mail", name="t", attempts=1)
    async def work() -> None:
        raise RuntimeError("failed")

    dialer, ended = slow(setup, "worker"), setup.ended
    worker = Worker(
        URL, work, settings=SimulatedSettings(rng=Random(3), dialer=dialer), on_end=ended.append
    )
    async with setup.queue() as queue, anyio.create_task_group() as tasks, worker:
        tasks.start_soon(worker.run)
        await queue.put(name="t", wait=True)
        await anyio.sleep(1)
        worker.stop()
        await setup.until(lambda: ended, 3.0)
    assert setup.outcomes == ["lost"]
    assert ended[0].error == "the worker ended before the node was told"


@pytest.mark.parametrize(("error", "what"), [(None, "done"), (Reject("no"), "rejected")])
async def test_the_end_does_not_wait_for_a_slow_mailbox(
    setup: JobSetup, error: Exception | None, what: str
) -> None:
    """A mailbox that cannot be reached costs 5 s; who says stop has not got them. The result is
    lost, and the job is done all the same."""

    async def work() -> None:
        if error is not None:
            raise error

    dialer, ended = slow(setup, "worker"), setup.ended
    worker = Worker(
        URL,
        work,
        queues=["mail"],
        settings=SimulatedSettings(rng=Random(3), dialer=dialer),
        on_end=ended.append,
    )
    async with setup.queue() as queue, anyio.create_task_group() as tasks, worker:
        tasks.start_soon(worker.run)
        await queue.put(wait=True)
        await anyio.sleep(1)
        assert worker.stats.running == 1
        worker.stop()
        await setup.until(lambda: ended, 3.0)
        await anyio.sleep(1)
        assert setup.outcomes == [what] and await setup.kept() == []
        assert len(await setup.dead()) == (what == "rejected")


@pytest.mark.parametrize("error", [RuntimeError("stopped"), Reject("stopped"), None])
async def test_a_drain_loses_no_job_whose_handler_makes_an_error_of_its_end(
    setup: JobSetup, error: Exception | None
) -> None:
    began: list[int] = []

    @task(queue="mail", name="t", attempts=1)
    async def work(_payload: Any, job: Job) -> None:
        began.append(job.attempt)
        try:
            await anyio.sleep(1000 if len(began) == 1 else 0)
        except anyio.get_cancelled_exc_class():
            if error is None:
                raise
            raise error from None

    async with setup.queue() as queue:
        await queue.put(name="t")
        async with setup.working([work], grace=1):
            await setup.until(lambda: began)
        assert setup.outcomes == ["returned"] and await setup.dead() == []
        async with setup.working([work], source="other"):
            await setup.until(lambda: len(setup.ended) == 2)
    assert began == [1, 1] and setup.outcomes == ["returned", "done"]


async def test_two_readers_of_progress_both_come_to_the_end() -> None:
    wait = PendingResult()
    handle = Handle(1, 60, False, wait)
    seen: list[Any] = []

    async def read() -> None:
        seen.extend([value async for value in handle.progress()])

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(read)
            for number in range(3):
                await anyio.sleep(1)
                wait.update(JobUpdate(1, "progress", number))
            await anyio.sleep(1)
            wait.update(JobUpdate(1, "result", 7))
    assert sorted(seen) == [0, 1, 2] and await handle.result() == 7


async def test_a_mailbox_that_is_slow_to_reach_holds_no_cancel_up(setup: JobSetup) -> None:
    """A report that is not received within 5 s is left out, and nothing stays behind."""
    async with setup.queue() as producer:
        put = await producer.put(wait=True)
        async with Queue(
            URL, "mail", settings=SimulatedSettings(rng=Random(4), dialer=slow(setup, "c"))
        ) as queue:
            before = anyio.current_time()
            await queue.cancel(put.id)
            assert anyio.current_time() - before < 6
