"""Settings of a queue that are set while the node runs: a pause."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from millpond import sync
from millpond.actors.errors import NotAQueue
from millpond.actors.messages import CatalogChannel, ChannelChanged, Failed
from millpond.actors.queue_settings import QueueSettings, QueueTable, SetQueue, StoreQueueSettings
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot, MetadataSet
from millpond.actors.streams.catalogs.channels import QUEUES_MAX, ChannelCatalog
from millpond.jobs import Job, Queue, task
from millpond.node.jobs.requests import Operation, ask
from millpond.testing import World
from tests.node.jobs.job_setup import JobSetup
from tests.node.processes import serving

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
        await world.clock.sleep(7200)  # no messages, no connections: no cell
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
