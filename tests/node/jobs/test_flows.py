"""Flows: jobs that wait for other jobs, what becomes of failures, and what a crash leaves."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from millpond.actors.errors import BufferFull, Malformed, NotFound
from millpond.actors.jobs import flows
from millpond.jobs import Job, JobCancelled, JobFailed, Reject, Step, Task, chain, join, task
from millpond.node.client.connect import connect
from millpond.node.client.settings import SimulatedSettings
from millpond.node.jobs.requests import Operation, ask
from tests.node.jobs.job_setup import URL, JobSetup

SEEN: list[tuple[str, Any, list[Any]]] = []


@task(queue="mail")
async def add(number: int, job: Job) -> int:
    SEEN.append(("add", number, job.results))
    return number + 1


@task(queue="mail")
async def total(numbers: list[int | None], job: Job) -> int:
    SEEN.append(("total", numbers, job.results))
    return sum(each or 0 for each in numbers)


@task(queue="mail", attempts=1)
async def refuse(reason: str) -> None:
    if BROKEN:
        raise Reject(reason)


BROKEN: list[bool] = []
TASKS: list[Task[Any, Any]] = [add, total, refuse]


@pytest.fixture(autouse=True)
def fresh() -> None:
    SEEN.clear()
    BROKEN[:] = [True]


async def test_a_chain_passes_each_result_on(setup: JobSetup) -> None:
    async with setup.queue() as queue, setup.working(TASKS):
        flow = await queue.put_flow(chain(Step(add, 1), Step(add), Step(add)))
        assert await queue.flow_result(flow, 60) == 4
        assert SEEN == [("add", 1, []), ("add", 2, [2]), ("add", 3, [3])]
        info = await queue.flow(flow)
        assert info.state == "done" and info.ended and info.last == [2]
        assert [each.state for each in info.steps] == ["done"] * 3
        assert [(each.id, each.steps, each.ended) async for each in queue.flows()] == [(flow, 3, 3)]
        assert (await queue.counts()).ready == 0


async def test_a_join_sees_the_results_of_its_group_in_their_order(setup: JobSetup) -> None:
    async with setup.queue() as queue, setup.working(TASKS, concurrency=3):
        group = [Step(add, number) for number in (30, 10, 20)]
        flow = await queue.put_flow(join(Step(total), group))
        assert await queue.flow_result(flow, 60) == 63
        assert SEEN[-1] == ("total", [31, 11, 21], [31, 11, 21])


async def test_steps_of_other_queues(setup: JobSetup) -> None:
    async def double(number: int) -> int:
        return 2 * number

    other: Task[Any, Any] = Task(double, name="double", queue="other")
    async with setup.queue() as queue, setup.working([*TASKS, other]):
        flow = await queue.put_flow(chain(Step(add, 1), Step(other), Step(add)))
        assert await queue.flow_result(flow, 60) == 5
        assert [each.queue for each in (await queue.flow(flow)).steps] == ["mail", "other", "mail"]


async def test_what_a_failure_does_to_those_that_wait(setup: JobSetup) -> None:
    async with setup.queue() as queue, setup.working(TASKS):
        flow = await queue.put_flow(chain(Step(refuse, "no"), Step(add, 1), Step(add)))
        with pytest.raises(JobFailed, match="no"):
            await queue.flow_result(flow, 60)
        assert [each.state for each in (await queue.flow(flow)).steps] == [
            "failed",
            "skipped",
            "skipped",
        ]
        ignored = Step(refuse, "no", on_failure="ignore")
        flow = await queue.put_flow(join(Step(total), [ignored, Step(add, 1)]))
        assert await queue.flow_result(flow, 60) == 2
        (_, payload, results) = SEEN[-1]
        assert payload == [None, 2] and isinstance(results[0], JobFailed) and results[1] == 2


async def test_a_step_that_waits_goes_on_once_the_flow_is_retried(setup: JobSetup) -> None:
    async with setup.queue() as queue, setup.working(TASKS):
        flow = await queue.put_flow(chain(Step(refuse, "no", on_failure="wait"), Step(add, 1)))
        with pytest.raises(TimeoutError):
            await queue.flow_result(flow, 100)
        assert (await queue.flow(flow)).state == "blocked"
        BROKEN.clear()
        await queue.retry_flow(flow)
        assert await queue.flow_result(flow, 60) == 2


async def test_a_cancelled_flow_ends(setup: JobSetup) -> None:
    ends: list[str] = []

    @task(queue="mail")
    async def long() -> None:
        try:
            await anyio.sleep(10_000)
        finally:
            ends.append("end")

    async with setup.queue() as queue, setup.working([long, add]):
        flow = await queue.put_flow(chain(Step(long), Step(add, 1)))
        await anyio.sleep(5)
        await queue.cancel_flow(flow)
        with pytest.raises(JobCancelled):
            await queue.flow_result(flow, 10)
        await setup.until(lambda: ends)
        assert [each.state for each in (await queue.flow(flow)).steps] == ["failed", "skipped"]
        assert not SEEN and not [each async for each in queue.jobs()]


async def test_a_job_that_is_cancelled_or_purged_fails_its_step(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        flow = await queue.put_flow([Step(add, 1), Step(add, 2)])
        await anyio.sleep(1)
        jobs = [each.id async for each in queue.jobs()]
        await queue.cancel(jobs[0])
        await queue.channel.channels.purge("jobs/mail")  # nobody tells the flow of it
        with pytest.raises(JobFailed):
            await queue.flow_result(flow, 2 * flows.CHECK_S)
        assert sorted(each.reason for each in (await queue.flow(flow)).steps) == [
            "cancelled",
            "gone",
        ]


async def test_a_flow_is_put_once_and_forgotten_after_its_time(setup: JobSetup) -> None:
    async with setup.queue() as queue, setup.working(TASKS):
        step = {"data": b'"x"', "after": []}
        first = await ask(queue.channel, Operation.PUT_FLOW, key=7, steps=[step], keep=50)
        again = await ask(queue.channel, Operation.PUT_FLOW, key=7, steps=[step], keep=50)
        assert first["flow"] == again["flow"]
        await queue.cancel_flow(first["flow"])
        await anyio.sleep(100)
        with pytest.raises(NotFound):
            await queue.flow(first["flow"])
        assert [each async for each in queue.flows()] == []


async def test_flows_that_cannot_be_are_refused(
    setup: JobSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with setup.queue() as queue:
        one, two = Step("a", 1), Step("b", 2)
        one.after.append(two)
        two.after.append(one)
        with pytest.raises(ValueError, match="waits for itself"):
            await queue.put_flow(one)
        with pytest.raises(ValueError, match="1000 steps"):
            await queue.put_flow([Step("a", 1) for _ in range(1001)])
        with pytest.raises(ValueError, match="not served from"):
            Step(add, 1, queue="other")
        with pytest.raises(Malformed):
            late = {"data": b"x", "after": [0]}
            await ask(queue.channel, Operation.PUT_FLOW, key=1, steps=[late])
        with pytest.raises(Malformed):
            chat = {"data": b"x", "channel": b"chat/1"}
            await ask(queue.channel, Operation.PUT_FLOW, key=1, steps=[chat])
        with pytest.raises(Malformed):
            await queue.put(1, unique=b"\0flow")
        monkeypatch.setattr(flows, "FLOWS_MAX", 1)
        await queue.put_flow(Step("a", 1))
        with pytest.raises(BufferFull):
            await queue.put_flow(Step("a", 1))


async def test_a_dead_letter_that_is_put_back_is_the_job_of_its_step_again(
    setup: JobSetup,
) -> None:
    async with setup.queue() as queue, setup.working(TASKS):
        flow = await queue.put_flow(chain(Step(refuse, "no"), Step(add, 1), Step(add)))
        with pytest.raises(JobFailed, match="no"):
            await queue.flow_result(flow, 60)
        (dead,) = [each async for each in queue.jobs("dead")]
        assert (dead.flow, dead.step) == (flow, 0)
        assert await queue.retry_dead() == 1
        with pytest.raises(JobFailed, match="no"):
            await queue.flow_result(flow, 60)
        assert [each.state for each in (await queue.flow(flow)).steps][1:] == ["skipped"] * 2
        BROKEN.clear()
        assert await queue.retry_dead() == 1
        assert await queue.flow_result(flow, 60) == 3
        assert (await queue.flow(flow)).state == "done"
        assert [each async for each in queue.jobs()] == []


async def test_a_dead_letter_that_somebody_takes_away_is_not_a_step_that_is_done(
    setup: JobSetup,
) -> None:
    async with setup.queue() as queue, setup.working(TASKS):
        flow = await queue.put_flow(chain(Step(refuse, "no"), Step(add, 1)))
        with pytest.raises(JobFailed, match="no"):
            await queue.flow_result(flow, 60)
        dialer = setup.dialer("digger")
        async with connect(
            URL, "jobs/mail!dead", role="consumer", settings=SimulatedSettings(dialer=dialer)
        ) as letters:
            async for letter in letters:
                await letter.ack()
                break
            await anyio.sleep(1)
            assert await letters.list() == []
        assert [each.state for each in (await queue.flow(flow)).steps] == ["failed", "skipped"]
        assert not SEEN


async def test_a_flow_that_is_cancelled_and_retried_at_once_goes_on(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        flow = await queue.put_flow(chain(Step(add, 1), Step(add)))
        await queue.cancel_flow(flow)
        await queue.retry_flow(flow)
        async with setup.working(TASKS):
            assert await queue.flow_result(flow, 60) == 3
        assert [each.state for each in (await queue.flow(flow)).steps] == ["done", "done"]
        assert [payload for _, payload, _ in SEEN] == [1, 2]


async def test_a_dead_letter_beside_a_retried_flow_puts_no_step_twice(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        async with setup.working(TASKS):
            flow = await queue.put_flow(chain(Step(refuse, "no"), Step(add, 1)))
            with pytest.raises(JobFailed, match="no"):
                await queue.flow_result(flow, 60)
        await queue.retry_flow(flow)
        await anyio.sleep(1)
        assert await queue.retry_dead() == 1
        jobs = [each async for each in queue.jobs()]
        assert sorted(each.flow for each in jobs) == [0, flow], "the other is outside of the flow"
        BROKEN.clear()
        async with setup.working(TASKS):
            assert await queue.flow_result(flow, 60) == 2
        assert [name for name, *_ in SEEN] == ["add"]


async def test_jobs_of_flows_stay_in_their_queue(setup: JobSetup) -> None:
    async with setup.queue() as queue, setup.queue("other") as other:
        flow = await queue.put_flow(Step(add, 1))
        await anyio.sleep(1)
        (job,) = [each async for each in queue.jobs()]
        lone = await queue.put(7)
        with pytest.raises(ValueError, match=f"step 0 of flow {flow}"):
            await queue.move("other", [job.id])
        assert await queue.move("other") == 1
        assert [each.id async for each in queue.jobs()] == [job.id]
        (moved,) = [each async for each in other.jobs()]
        assert moved.id != lone.id and moved.flow == 0


async def test_a_delayed_job_that_a_worker_does_while_it_moves_is_not_in_the_other_queue(
    setup: JobSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []

    async def handler(_: int, job: Job) -> None:
        done.append(job.id)

    async with setup.queue() as queue, setup.queue("other") as other:
        put = await queue.put(1, due=30)
        (job,) = [each async for each in queue.jobs()]
        async with setup.working(handler, "mail"):
            await setup.until(lambda: done)
            found = monkeypatch.context()
            with found as patch:

                async def shown(_: int) -> object:
                    return job  # as it was before its time

                patch.setattr(queue, "show", shown)
                with pytest.raises(NotFound):
                    await queue.move("other", [put.id])
        assert [each async for each in other.jobs()] == []
