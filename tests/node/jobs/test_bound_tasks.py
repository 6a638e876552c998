"""Tasks at the producer: their queue, and payloads that the handler would not get."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from millpond import sync
from millpond.jobs import Step, Worker, task
from tests.node.jobs.job_setup import JobSetup
from tests.node.processes import serving


class Mail(msgspec.Struct):
    to: str


@task(queue="mail", keep=60)
async def send(mail: Mail) -> int:
    return len(mail.to)


@task(queue="mail")
async def tidy() -> None:
    """Nothing."""


async def test_a_task_with_its_queue_puts_jobs(setup: JobSetup) -> None:
    async with setup.queue() as queue, setup.working([send, tidy]):
        bound = send.bind(queue)
        put = await bound.put(Mail("alice"))
        many = await bound.put_many([Mail("a"), Mail("bc")], keep=30)
        nothing = await tidy.bind(queue).put(wait=True)
        assert await queue.result(put.id, 60) == 5
        assert [await queue.result(each, 60) for each in many] == [1, 2]
        await nothing.result(60)
    assert setup.outcomes == ["done"] * 4


async def test_a_payload_that_does_not_fit_is_refused_at_the_producer(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        with pytest.raises(TypeError, match="does not take this payload"):
            await send.put(queue, {"from": "alice"})  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="does not take"):
            await send.bind(queue).put_many([Mail("a"), 7])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="takes no payload"):
            await tidy.put(queue, 1)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="does not take"):
            Step(send, 7)
        assert (await queue.counts()).ready == 0


async def test_a_queue_that_a_task_is_not_served_from(setup: JobSetup) -> None:
    async with setup.queue("other") as queue:
        with pytest.raises(ValueError, match="not served from queue 'other'"):
            await send.put(queue, Mail("alice"))
        with pytest.raises(ValueError, match="not served"):
            send.bind(queue)


def test_a_task_with_a_blocking_queue_puts_jobs() -> None:
    async def work(url: str) -> None:
        async with Worker(url, [send, tidy], history=False) as worker:
            await worker.run(burst=True)

    with serving() as node, sync.Queue(node.urls["tcp"], "mail") as queue:
        bound = send.bind(queue)
        assert isinstance(bound, sync.BoundTask)
        put = bound.put(Mail("alice"))
        many = bound.put_many([Mail("a"), Mail("bc")])
        nothing = tidy.bind(queue).put(unique="tidy")
        assert tidy.bind(queue).put(unique="tidy").id == nothing.id
        with pytest.raises(TypeError, match="does not take this payload"):
            bound.put("alice")  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="does not take"):
            bound.put_many([Mail("a"), 7])  # type: ignore[list-item]
        anyio.run(work, node.urls["tcp"])
        assert queue.result(put.id, 60) == 5
        assert [queue.result(each, 60) for each in many] == [1, 2]
        with sync.Queue(node.urls["tcp"], "other") as other, pytest.raises(ValueError):
            send.bind(other)
