"""Settings of a queue that are set while the node runs: a pause, and limits."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from millpond import sync
from millpond.actors.errors import NotAQueue
from millpond.actors.messages import CatalogChannel, ChannelChanged, Failed
from millpond.actors.queue_settings import QueueSettings, QueueTable, SetQueue, StoreQueueSettings
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot, MetadataSet
from millpond.actors.streams.catalogs.channels import QUEUES_MAX, ChannelCatalog
from millpond.jobs import Job, Limits, Queue, QueueState, RateLimit, task
from millpond.node.jobs.payload import decode_job
from millpond.node.jobs.requests import Operation, ask
from millpond.testing import World
from tests.node.jobs.job_setup import JobSetup
from tests.node.processes import serving

MINUTE = timedelta(minutes=1)
PAUSED = QueueSettings(is_paused=True)


@task(name="note")
async def note(payload: int, job: Job) -> None:
    """Work that takes no time."""


async def test_a_paused_queue_takes_jobs_and_gives_none(setup: JobSetup) -> None:
    async with setup.queue() as queue, setup.working([note], "mail"):
        await queue.put(1)
        await setup.until(lambda: setup.outcomes == ["done"])
        assert not (await queue.state()).paused
        await queue.pause()
        assert (await queue.state()).paused
        for number in range(20):
            await queue.put(number)
        await anyio.sleep(3600)
        counts = await queue.counts()
        assert (counts.ready, counts.paused) == (20, True)
        assert setup.outcomes == ["done"]
        await queue.resume()
        await setup.until(lambda: setup.outcomes == ["done"] * 21)
        assert not (await queue.counts()).paused


async def test_running_jobs_finish_and_retries_wait_for_the_end_of_a_pause(
    setup: JobSetup,
) -> None:
    began, may_end = anyio.Event(), anyio.Event()

    @task(name="slow")
    async def slow(payload: str, job: Job) -> None:
        began.set()
        await may_end.wait()
        if payload == "fails" and job.attempt == 1:
            raise ValueError("once")

    async with setup.queue() as queue, setup.working([slow], "mail", concurrency=2):
        await queue.put("works")
        await queue.put("fails")
        await began.wait()
        await queue.pause()
        may_end.set()
        await anyio.sleep(3600)
        assert sorted(setup.outcomes) == ["done", "failed"]
        await queue.resume()
        await setup.until(lambda: len(setup.ended) == 3)
        assert setup.outcomes[-1] == "done"


async def test_a_worker_that_leaves_when_nothing_is_left_leaves_a_paused_queue(
    setup: JobSetup,
) -> None:
    async with setup.queue() as queue:
        await queue.put(1)
        await queue.pause()
        async with setup.worker([note], "mail") as worker:
            with anyio.fail_after(60):
                await worker.run(burst=True)
        assert (await queue.counts()).ready == 1


async def test_only_queues_have_settings(setup: JobSetup) -> None:
    async with setup.observed("jobs/mail") as pair:
        for operation in (Operation.SHOW_QUEUE, Operation.SET_QUEUE):
            with pytest.raises(NotAQueue):
                await ask(pair, operation)


@pytest.mark.anyio
async def test_a_pause_outlives_a_loss_of_power_and_ends_with_the_channel() -> None:
    async with World() as world:
        node = await world.node("a")
        settings = node.settings()
        async with Queue(node.url, "mail", settings=settings) as queue:
            await queue.put(1)
            await queue.pause()
            await node.crash(power=True)
        await node.start()
        mail = Queue(node.url, "mail", settings=settings)
        async with mail as queue, node.connect("other") as channel:
            assert (await queue.state()).paused
            assert (await channel.channels.describe("jobs/mail")).paused
            await channel.channels.delete("jobs/mail")
            assert not (await queue.state()).paused
            await queue.pause()
        await world.clock.sleep(180)  # no messages, no connections: no cell
        async with node.connect("other") as channel:
            (info,) = [each async for each in channel.channels.list("jobs/*")]
            assert (info.name, info.mode, info.paused) == (b"jobs/mail", "queue", True)
            await node.crash()
        await node.start()
        async with Queue(node.url, "mail", settings=settings) as queue:
            assert (await queue.state()).paused


def test_a_pause_outlives_a_kill(tmp_path: Path) -> None:
    words = ("--data", str(tmp_path / "data"))
    with serving(*words) as node:
        with sync.Queue(node.urls["tcp"], "mail") as queue:
            queue.put(1)
            queue.pause()
            node.process.kill()
            node.process.wait()
    with serving(*words) as node, sync.Queue(node.urls["tcp"], "mail") as queue:
        assert queue.state().paused
        with sync.connect(node.urls["tcp"], "jobs/mail", role="worker") as worker:
            with pytest.raises(TimeoutError):
                worker.receive(0.2)
            queue.resume()
            assert worker.receive(10).id


def _set(channel: bytes, change: SetQueue) -> StoreQueueSettings:
    return StoreQueueSettings(change.number, channel, change)


def test_the_catalog_has_a_limit_and_forgets_queues_without_settings() -> None:
    effects, table = Effects(), QueueTable()
    catalog = ChannelCatalog(LogSnapshot(), {}, table)
    for number in range(QUEUES_MAX):
        catalog.answer(None, _set(b"q%d" % number, SetQueue(1, is_paused=True)), 0.0, effects)
    more = _set(b"more", SetQueue(2, is_paused=True))
    assert isinstance(catalog.answer(None, more, 0.0, effects), Failed)
    catalog.answer(None, _set(b"q7", SetQueue(3, is_paused=False)), 0.0, effects)
    assert effects.changes[-1] == MetadataSet(b"queue\0q7", None)
    assert not isinstance(catalog.answer(None, more, 0.0, effects), Failed)
    gone = CatalogChannel(b"more", None, ChannelChanged())
    catalog.answer(None, gone, 0.0, effects)
    assert table.of(b"more") == QueueSettings() and table.of(b"q8") == PAUSED


def test_what_the_disk_refused_is_undone_and_its_queues_are_told() -> None:
    effects, table = Effects(), QueueTable()
    first = ChannelCatalog(LogSnapshot(), {}, table)
    first.answer(None, _set(b"mail", SetQueue(1, is_paused=True)), 0.0, Effects())
    again = ChannelCatalog(LogSnapshot(), {}, table)
    assert table.of(b"mail") == QueueSettings() and again.deadline == 0.0
    again.wake(0.0, effects)
    assert [name for name, _ in effects.posts] == [b"mail"]


# Limits and priorities.


async def test_a_rate_is_that_of_all_workers(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        state = await queue.set_limits(Limits(rate="60/m", concurrency=50))
        assert (state.rate, state.concurrency) == (RateLimit(60, 60.0), 50)
        await queue.set_limits(Limits(rate=RateLimit(60, per=60.0, burst=10)))
        for number in range(40):
            await queue.put(number)
        began = anyio.current_time()
        async with setup.working([note], "mail"), setup.working([note], "mail", source="two"):
            await setup.until(lambda: len(setup.ended) == 10)
            await anyio.sleep(began + 9.95 - anyio.current_time())
            assert len(setup.ended) == 19
            counts = await queue.counts()
            assert counts.ready == counts.limited == 21
            await setup.until(lambda: len(setup.ended) == 40)
        assert 29.9 < anyio.current_time() - began < 32.0


async def test_tasks_name_limits_of_their_queue(setup: JobSetup) -> None:
    running: dict[str, int] = {}
    most = 0

    @task(name="sync", limits=Limits(key_concurrency=1))
    async def sync(customer: str) -> None:
        nonlocal most
        running[customer] = running.get(customer, 0) + 1
        most = max(most, sum(running.values()))
        assert running[customer] == 1
        await anyio.sleep(1)
        running[customer] -= 1

    async with setup.queue() as queue:
        async with setup.working([sync], "mail", concurrency=10):
            for customer in "aabbccaabbcc":
                await queue.put(customer, limit_key=customer)
            await setup.until(lambda: len(setup.ended) == 12)
        assert (await queue.state()).key_concurrency == 1
    assert setup.outcomes == ["done"] * 12 and most == 3


async def test_two_tasks_of_a_queue_cannot_have_different_limits(setup: JobSetup) -> None:
    one = task(name="one", queue="mail", limits=Limits(rate="1/s"))(lambda: None)
    two = task(name="two", queue="mail", limits=Limits(rate="2/s"))(lambda: None)
    with pytest.raises(ValueError, match="different limits"):
        setup.worker([one, two])


async def test_jobs_start_by_priority_and_within_their_time(setup: JobSetup) -> None:
    started: list[object] = []

    @task(name="note")
    async def take(payload: object) -> None:
        started.append(payload)

    async with setup.queue() as queue:
        await queue.put("late", start_within=5)
        await queue.put("due", due=30, start_within=5, priority=9)
        for priority in (0, 9, 4):
            await queue.put(priority, priority=priority)
        await anyio.sleep(6)
        counts = await queue.counts()
        assert (counts.dead, counts.ready, counts.delayed) == (1, 3, 1)
        (dead,) = [each async for each in queue.jobs("dead")]
        assert dead.reason == "not started"
        async with setup.working([take], "mail"):
            await setup.until(lambda: len(started) == 4)
    assert started == [9, 4, 0, "due"]


async def test_a_schedule_and_a_retried_dead_letter_keep_their_options(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        await queue.schedule("tidy", MINUTE, "x", priority=7, limit_key="k")
        await anyio.sleep(61)
        (row,) = [each async for each in queue.jobs()]
        body = decode_job((await queue.show(row.id)).data or b"")
        assert (body.priority, body.limit_key) == (7, b"k")


@pytest.mark.anyio
async def test_limits_outlive_a_loss_of_power() -> None:
    limits = Limits(concurrency=2, rate="10/h", key_concurrency=1, key_rate="1/s", ageing=5)
    async with World() as world:
        node = await world.node("a")
        async with Queue(node.url, "mail", settings=node.settings()) as queue:
            before = await queue.set_limits(limits)
            for number in range(20):
                await queue.put(number)
            await node.crash(power=True)
        await node.start()
        async with Queue(node.url, "mail", settings=node.settings()) as queue:
            assert await queue.state() == before
            async with node.connect("jobs/mail", role="worker", window=20) as worker:
                first = await worker.receive(60)
                await first.ack()
                with pytest.raises(TimeoutError):
                    await worker.receive(355)  # after a restart a bucket has one token
                await (await worker.receive(10)).ack()
            cleared = await queue.set_limits(
                Limits(concurrency=0, rate=0, key_concurrency=0, key_rate=0, ageing=60)
            )
            assert cleared == QueueState()


@pytest.mark.parametrize(
    "given",
    [
        {"rate": "5"}, {"rate": "0/s"}, {"rate": "x/s"}, {"rate": "5/0"}, {"rate": 3},
        {"concurrency": -1}, {"key_concurrency": 2**32}, {"ageing": -1}, {"rate": "1/400d"},
    ],
)  # fmt: skip
def test_limits_that_nobody_can_have(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"rate|per|count|number|ageing|seconds"):
        Limits(**given)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("5/s", RateLimit(5)), ("100/m", RateLimit(100, 60.0)), ("10/30s", RateLimit(10, 30.0)),
        ("1/1h30m", RateLimit(1, 5400.0)), ("2/d", RateLimit(2, 86_400.0)),
    ],
)  # fmt: skip
def test_rates_as_people_write_them(text: str, rate: RateLimit) -> None:
    assert RateLimit.parse(text) == rate
    assert RateLimit.parse(str(rate)) == rate
