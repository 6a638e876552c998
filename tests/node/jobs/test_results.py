"""Results, progress and failures reach who waits; history tells what happened."""

from __future__ import annotations

from random import Random
from typing import Any

import anyio
import pytest

from millpond.jobs import Job, JobCancelled, JobFailed, Reject, Retry, task
from millpond.node.client.errors import ChannelClosed
from millpond.node.jobs.history import HistoryEntry, entries_of
from millpond.node.jobs.payload import (
    JobUpdate,
    channel_of,
    decode_update,
    encode_update,
    mailbox_name,
)
from tests.node.jobs.job_setup import JobSetup


async def test_a_result_and_its_progress_come_in_order(setup: JobSetup) -> None:
    async def add(payload: list[int], job: Job) -> int:
        for number in range(5):
            job.progress(number)
            await anyio.sleep(1)
        return sum(payload)

    async with setup.queue() as queue, setup.working(add, "mail"):
        put = await queue.put([1, 2, 3], wait=True)
        assert [value async for value in put.progress()] == [0, 1, 2, 3, 4]
        assert await put.result() == 6 and await put.result(0.0) == 6


async def test_each_waiter_gets_its_own_result(setup: JobSetup) -> None:
    async def double(payload: int) -> int:
        await anyio.sleep(10 - payload)
        return 2 * payload

    async with (
        setup.queue() as one,
        setup.queue(rng=Random(9)) as two,
        setup.working(double, "mail"),
    ):
        puts = [await (one, two)[number % 2].put(number, wait=True) for number in range(8)]
        assert [await put.result() for put in puts] == [2 * number for number in range(8)]


async def test_a_dead_letter_is_a_failure_with_reason_and_error(setup: JobSetup) -> None:
    @task(queue="mail", attempts=2)
    async def send(payload: str) -> None:
        if payload == "reject":
            raise Reject("no such user")
        raise ConnectionError("down")

    async with setup.queue() as queue, setup.working([send]):
        rejected = await queue.put("reject", wait=True)
        failed = await queue.put("fail", wait=True)
        with pytest.raises(JobFailed) as caught:
            await rejected.result()
        assert caught.value.reason == "no such user"
        with pytest.raises(JobFailed, match="ConnectionError: down") as caught:
            await failed.result()
        assert caught.value.reason == "attempts"


async def test_a_result_that_cannot_be_encoded_is_a_failure(setup: JobSetup) -> None:
    async def send(_payload: Any) -> object:
        return object()

    async with setup.queue() as queue, setup.working(send, "mail"):
        put = await queue.put(wait=True)
        with pytest.raises(JobFailed, match="cannot be encoded"):
            await put.result()
        assert setup.outcomes == ["done"]


async def test_waiting_ends_with_the_time_and_with_the_queue(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        put = await queue.put(wait=True)
        with pytest.raises(TimeoutError):
            await put.result(5.0)
        plain = await queue.put()
        with pytest.raises(ValueError, match="wait=True"):
            await plain.result()
    with pytest.raises(ChannelClosed):
        await put.result()


async def test_results_wait_for_a_producer_that_is_away_for_a_moment(setup: JobSetup) -> None:
    async def slow(_payload: Any) -> str:
        await anyio.sleep(5)
        return "done"

    async with setup.queue() as queue, setup.working(slow, "mail"):
        put = await queue.put(wait=True)
        await anyio.sleep(4.5)
        setup.network.partition("producer", "pond")
        setup.network.reset("producer")
        await setup.until(lambda: setup.ended)
        setup.network.heal("producer", "pond")
        assert await put.result(60) == "done"


async def test_history_tells_of_each_attempt_that_did_not_succeed(setup: JobSetup) -> None:
    @task(queue="mail", attempts=3)
    async def send(_payload: Any, job: Job) -> None:
        if job.attempt < 3:
            raise Retry(1.0, "not yet")

    async with setup.queue() as queue, setup.working([send], name="w1", log_done=True):
        put = await queue.put()
        other = await queue.put()
        await setup.until(lambda: setup.outcomes.count("done") == 2)
        await anyio.sleep(1)
        found = [each async for each in queue.history(put.id)]
        more = [each async for each in queue.history(other.id)]
    assert [(each.attempt, each.what) for each in found] == [
        (1, "failed"),
        (2, "failed"),
        (3, "done"),
    ]
    assert {each.worker for each in found} == {"w1"} and "not yet" in found[0].error
    assert {each.job for each in more} == {str(other.id)}


async def test_there_is_no_history_where_nothing_happened(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        put = await queue.put()
        assert [each async for each in entries_of(queue.channel.streams, "mail", put.id)] == []


def test_updates_are_read_back_and_other_bytes_are_none() -> None:
    news = JobUpdate(7, "result", {"a": [1, b"x", None]})
    assert decode_update(encode_update(news)) == news
    for data in (b"", b"hello", b"\x80", encode_update(news)[:-1], b'{"k": "result"}'):
        assert decode_update(data) is None


def test_names_of_mailboxes_are_names_of_channels() -> None:
    """docs/reference/wire-protocol.md: a channel's name has 250 bytes at most."""
    longest = "q" * 210
    assert len(mailbox_name(longest, bytes(16))) <= 250
    with pytest.raises(ValueError):
        channel_of("q" * 211)
    for name in ("", "a!dead"):
        with pytest.raises(ValueError):
            channel_of(name)


def test_errors_say_what_they_know() -> None:
    assert str(JobFailed("payload", "no `to`")) == "payload: no `to`"
    assert str(JobFailed("payload")) == "payload"
    assert HistoryEntry("1", 1, 0, "lost").worker == "" and issubclass(JobCancelled, Exception)
