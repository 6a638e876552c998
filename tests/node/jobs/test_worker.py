"""A worker: handlers, attempts, backoff, dead letters, leases; on the virtual clock."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import anyio
import msgspec
import pytest

from millpond.jobs import Backoff, Job, JobFailed, Reject, Retry, Task, task
from tests.node.jobs.job_setup import JobSetup, job_setup


class Mail(msgspec.Struct):
    to: str
    copies: int = 1


async def test_a_job_is_run_once_and_gone(setup: JobSetup) -> None:
    seen: list[tuple[Any, int, str]] = []

    async def send(payload: Any, job: Job) -> None:
        seen.append((payload, job.attempt, job.queue))

    async with setup.queue() as queue, setup.working(send, "mail"):
        put = await queue.put({"to": "alice"})
        await setup.until(lambda: setup.ended)
        assert seen == [({"to": "alice"}, 1, "mail")]
        assert setup.ended[0].job == put.id and setup.outcomes == ["done"]
        await anyio.sleep(600)
        assert await setup.kept() == []
    assert len(seen) == 1


async def test_the_payload_comes_as_the_annotation_says(setup: JobSetup) -> None:
    seen: list[Mail] = []

    @task(queue="mail")
    async def send(mail: Mail) -> None:
        seen.append(mail)

    async with setup.queue() as queue, setup.working([send]):
        await send.put(queue, Mail("alice", 2))
        await queue.channel.put(b'{"to": "bob"}')
        await setup.until(lambda: len(setup.ended) == 2)
    assert seen == [Mail("alice", 2), Mail("bob")]


async def test_a_payload_that_does_not_fit_is_a_dead_letter_at_once(setup: JobSetup) -> None:
    @task(queue="mail")
    async def send(mail: Mail) -> None:
        raise AssertionError("never called")

    async with setup.queue() as queue, setup.working([send]):
        await queue.put({"too": "bob"})
        await setup.until(lambda: setup.ended)
        assert setup.ended[0].what == "rejected" and "payload" in setup.ended[0].error
        assert len(await setup.dead()) == 1


async def test_an_error_is_retried_after_growing_delays_until_no_attempt_is_left(
    setup: JobSetup,
) -> None:
    at: list[tuple[int, float]] = []

    @task(queue="mail", attempts=4, backoff=Backoff(100.0, 300.0))
    async def send(_payload: Any, job: Job) -> None:
        at.append((job.attempt, anyio.current_time()))
        raise ConnectionError("no such host")

    async with setup.queue() as queue, setup.working([send], rng=Random(5)):
        await queue.put("x")
        await setup.until(lambda: len(setup.ended) == 4)
        assert len(await setup.dead()) == 1
        await anyio.sleep(1000)
    assert [attempt for attempt, _ in at] == [1, 2, 3, 4]
    assert setup.outcomes == ["failed", "failed", "failed", "rejected"]
    assert setup.ended[-1].error == "attempts: ConnectionError: no such host"
    delays = [later - earlier for (_, earlier), (_, later) in pairwise(at)]
    for delay, limit in zip(delays, (100.0, 200.0, 300.0), strict=True):
        assert delay < limit + 1
    assert len({round(delay, 3) for delay in delays}) == 3


async def test_retry_says_when_and_reject_never(setup: JobSetup) -> None:
    at: list[float] = []

    @task(queue="mail")
    async def send(payload: str, job: Job) -> None:
        at.append(anyio.current_time())
        if payload == "never":
            raise Reject("no such user")
        if job.attempt == 1:
            raise Retry(50.0)

    async with setup.queue() as queue, setup.working([send]):
        await queue.put("later")
        await setup.until(lambda: len(setup.ended) == 2)
        assert at[1] - at[0] == pytest.approx(50, abs=1)
        await queue.put("never")
        await setup.until(lambda: len(setup.ended) == 3)
    assert setup.outcomes == ["failed", "done", "rejected"]
    assert setup.ended[-1].error == "no such user"


async def test_a_job_may_have_its_own_number_of_attempts(setup: JobSetup) -> None:
    @task(queue="mail", attempts=5)
    async def send(_payload: Any) -> None:
        raise ValueError("no")

    async with setup.queue() as queue, setup.working([send]):
        await queue.put("x", attempts=1)
        await setup.until(lambda: setup.ended)
    assert setup.outcomes == ["rejected"]


async def test_a_long_job_keeps_its_lease_and_is_run_once() -> None:
    """The lease is renewed while the handler runs, however short the channel's is."""
    async with job_setup(ack_timeout_s=2.0) as setup:
        began: list[int] = []

        async def send(_payload: Any, job: Job) -> None:
            began.append(job.attempt)
            await anyio.sleep(3000)
            assert job.lease_left > 10

        async with (
            setup.queue() as queue,
            setup.working(send, "mail"),
            setup.working(send, "mail", source="other"),
        ):
            await queue.put("x")
            await setup.until(lambda: setup.ended)
        assert began == [1] and setup.outcomes == ["done"]


async def test_a_lost_connection_cancels_the_handler_and_the_job_comes_again(
    setup: JobSetup,
) -> None:
    began: list[int] = []
    cancelled: list[int] = []

    async def send(_payload: Any, job: Job) -> None:
        began.append(job.attempt)
        try:
            await anyio.sleep(60 if job.attempt == 1 else 1)
        except BaseException:
            cancelled.append(job.attempt)
            raise

    async with setup.queue() as queue, setup.working(send, "mail"):
        await queue.put("x")
        await setup.until(lambda: began)
        setup.network.reset("worker")
        await setup.until(lambda: "done" in setup.outcomes)
    assert began == [1, 2] and cancelled == [1]
    assert setup.outcomes == ["lost", "done"]


async def test_a_job_of_one_attempt_is_not_begun_again(setup: JobSetup) -> None:
    """Whether the first attempt got to its end is not known: people decide, not the worker."""
    began: list[int] = []

    @task(queue="mail", attempts=1)
    async def charge(_payload: Any, job: Job) -> None:
        began.append(job.attempt)
        await anyio.sleep(60)

    async with setup.queue() as queue, setup.working([charge]):
        put = await queue.put("x", wait=True)
        await setup.until(lambda: began)
        setup.network.reset("worker")
        with pytest.raises(JobFailed, match="did not come back"):
            await put.result()
        assert len(await setup.dead()) == 1
    assert began == [1] and setup.outcomes == ["lost", "rejected"]


async def test_a_worker_without_replies_gives_its_job_up() -> None:
    """The node's answers do not come through: the lease ends elsewhere, so it ends here."""
    async with job_setup(ack_timeout_s=2.0) as setup:

        async def send(_payload: Any, job: Job) -> None:
            await anyio.sleep(100 if job.attempt == 1 else 1)

        async with setup.queue() as queue, setup.working(send, "mail"):
            await queue.put("x")
            await anyio.sleep(5)
            setup.network.stall("worker")
            await setup.until(lambda: setup.ended)
            assert setup.outcomes == ["lost"]
            setup.network.unstall("worker")
            await setup.until(lambda: len(setup.ended) == 2)
    assert setup.outcomes == ["lost", "done"]


async def test_a_job_done_after_its_lease_is_not_acknowledged() -> None:
    """A handler that does not let itself be cancelled: somebody else has the job by then."""
    async with job_setup(ack_timeout_s=2.0) as setup:
        others = JobSetup(setup.node, setup.network)

        async def deaf(_payload: Any) -> None:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(100)

        async def take(_payload: Any) -> None:
            await anyio.sleep(200)

        async with setup.queue() as queue:
            await queue.put("x")
            async with setup.working(deaf, "mail"):
                await anyio.sleep(5)
                setup.network.partition("worker", "pond")
                async with others.working(take, "mail", source="other", lease=5):
                    await anyio.sleep(60)
                    setup.network.heal("worker", "pond")
                    await setup.until(lambda: setup.ended)
                    assert len(await setup.kept()) == 1
                    await others.until(lambda: others.ended)
        assert (setup.outcomes, others.outcomes) == (["lost"], ["done"])
        assert await setup.kept() == []


async def test_after_a_handler_blocked_the_loop_the_node_is_asked(setup: JobSetup) -> None:
    """No renewal could be sent meanwhile; the lease is still there, so the job is done."""
    clock = anyio.current_time
    late_s = 0.0

    async def compute(_payload: Any) -> None:
        nonlocal late_s
        late_s += 5.0

    async with setup.queue() as queue:
        await queue.put("x")
        async with setup.working(compute, "mail", now=lambda: clock() + late_s):
            await setup.until(lambda: setup.ended)
        assert setup.outcomes == ["done"] and await setup.kept() == []


async def test_no_more_run_at_once_than_there_are_slots(setup: JobSetup) -> None:
    running = most = 0

    async def send(_payload: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(1)
        running -= 1

    async with setup.queue() as queue:
        for number in range(60):
            await queue.put(number)
        async with setup.working(send, "mail", concurrency=20) as worker:
            await setup.until(lambda: len(setup.ended) == 60)
            assert worker.stats.done == 60 and worker.stats.running == 0
    assert most == 20


async def test_tasks_are_found_by_name_and_an_unknown_one_fails_visibly(setup: JobSetup) -> None:
    seen: list[str] = []

    @task(queue="mail")
    async def one() -> None:
        seen.append("one")

    @task(queue="mail", name="second")
    async def two() -> None:
        seen.append("two")

    async with setup.queue() as queue, setup.working([one, two]):
        await one.put(queue)
        await two.put(queue)
        await queue.put(name="three", attempts=1)
        await queue.put(attempts=1)
        await setup.until(lambda: len(setup.ended) == 4)
    assert sorted(seen) == ["one", "two"]
    errors = sorted(each.error for each in setup.ended if each.what == "rejected")
    assert "called 'three'" in errors[0] and "without a name" in errors[1]


async def test_a_job_in_foreign_bytes_is_a_job(setup: JobSetup) -> None:
    seen: list[Any] = []

    async def send(payload: Any) -> None:
        seen.append(payload)

    async with setup.queue() as queue, setup.working(send, "mail", concurrency=1):
        for data in (b'{"to": "alice"}', b"\xff\x00", b"plain"):
            await queue.channel.put(data)
        await setup.until(lambda: len(setup.ended) == 3)
    assert seen == [{"to": "alice"}, b"\xff\x00", b"plain"]


async def test_a_burst_ends_when_nothing_is_due(setup: JobSetup) -> None:
    done: list[Any] = []

    async def send(payload: Any) -> None:
        await anyio.sleep(5)
        done.append(payload)

    async with setup.queue() as queue:
        for number in range(10):
            await queue.put(number)
        with anyio.fail_after(60):
            async with setup.worker(send, "mail", concurrency=3) as worker:
                await worker.run(burst=True)
    assert sorted(done) == list(range(10))


def test_arguments_that_make_no_worker() -> None:
    from millpond.jobs import Worker

    one, two = Task(lambda: None, name="a"), Task(lambda: None, name="a")
    for work, queues in ((lambda: None, ()), ([one, two], ("q",)), ([], ("q",))):
        with pytest.raises(ValueError):
            Worker("tcp://pond:1", work, queues=queues)
    with pytest.raises(TypeError):
        Worker("tcp://pond:1", [print], queues=("q",))  # type: ignore[list-item]
    with pytest.raises(ValueError):
        Worker("tcp://pond:1", one, queues=("q=0",))
    with pytest.raises(TypeError):
        Task(lambda a, b, c: None)
