"""Durability `replicated`: an acknowledgement means that the object store has the records."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import anyio
import pytest

from millpond import connect
from millpond.actors.errors import RequestError
from millpond.actors.messages import Durability
from millpond.node.client.errors import HandshakeRefused
from millpond.node.config import Config, ConfigError
from millpond.node.config_rules import ChannelRule
from millpond.node.node import Node
from millpond.node.replica import service, shipping
from millpond.node.replica.errors import ObjectStoreAway
from millpond.node.replica.object_store import FolderObjects
from millpond.node.replica.objects import JOURNAL, SNAPSHOT
from millpond.node.replica.restoration import ReplicaRestoration
from tests.actors.store.harness import Run
from tests.node.outbox.peer_nodes import until

pytestmark = pytest.mark.anyio

LIMIT_S = 60.0
CHANNEL = "jobs/mail"
QUEUES = {
    "durability": Durability.REPLICATED,
    "channels": (ChannelRule.parse("*=queue"),),
}
CLOSED = dict.fromkeys(("ws", "s3p", "rustlog", "http"), "off")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class GatedFolder(FolderObjects):
    """A folder whose journal objects, or snapshots, are made when the test lets them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.held = ""
        """The beginning of the names of objects that wait."""
        self.waits = Event()
        self.goes_on = Event()
        self.is_away = False

    def create(self, name: str, data: bytes) -> None:
        if self.held and name.startswith(self.held):
            self.waits.set()
            assert self.goes_on.wait(LIMIT_S)
        if self.is_away:
            raise ObjectStoreAway("no answer within 30 s")
        super().create(name, data)


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatedFolder:
    found = GatedFolder(tmp_path / "replica")
    monkeypatch.setattr(service, "open_object_store", lambda url: found)
    monkeypatch.setattr(service, "SNAPSHOT_LOOK_S", 0.01)
    monkeypatch.setattr(shipping, "RETRY_S", 0.01)
    monkeypatch.setattr(shipping, "RETRY_S_MAX", 0.02)
    monkeypatch.setattr(shipping, "WATCH_S", 0.01)
    return found


@asynccontextmanager
async def serving(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Node, str]]:
    config = Config(
        data=str(tmp_path / "data"),
        replica=f"file://{tmp_path}/replica",
        p2p="127.0.0.1:0",
        **(QUEUES | CLOSED | settings),
    )
    async with Node(config) as node:
        yield node, f"tcp://{node.listeners['p2p']}"


def restored_ids(objects: FolderObjects, target: Path) -> int:
    """The messages of a machine that is made of the replica."""
    ReplicaRestoration(objects, target).run(lambda size: None, lambda: None)
    run = Run(target)
    try:
        return run.store.usage.messages
    finally:
        run.close()


async def test_a_receipt_means_that_the_object_store_has_the_message(
    tmp_path: Path, objects: GatedFolder
) -> None:
    async with serving(tmp_path) as (_, url), producer(url) as channel, consumer(url) as reader:
        receipt = await channel.put(b"one")
        assert restored_ids(objects, tmp_path / "first") == 1
        assert receipt.durability is Durability.REPLICATED
        assert await received(reader) == b"one"
        objects.held = JOURNAL
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.put, b"two")
            await anyio.to_thread.run_sync(objects.waits.wait, LIMIT_S)
            with anyio.move_on_after(0.2):
                await reader.receive()
                raise AssertionError("delivered before it is replicated")
            objects.goes_on.set()
        assert await received(reader) == b"two"


def producer(url: str, name: str = CHANNEL) -> Any:
    return connect(url, name, role="producer")


def consumer(url: str, name: str = CHANNEL) -> Any:
    return connect(url, name, role="consumer")


async def received(channel: Any) -> bytes:
    with anyio.fail_after(LIMIT_S):
        message = await channel.receive()
        await message.ack()
        return bytes(message.data)


async def test_nothing_is_acknowledged_before_there_is_a_snapshot(
    tmp_path: Path, objects: GatedFolder
) -> None:
    """Without one the journal cannot be restored."""
    objects.held = SNAPSHOT
    async with serving(tmp_path, replica_ack_s=0.3) as (_, url):
        async with producer(url) as channel:
            with pytest.raises(RequestError, match="the store cannot"):
                await channel.put(b"one")
            objects.held = ""
            objects.goes_on.set()
            await until(lambda: bool(objects.list(SNAPSHOT)), LIMIT_S)
            await _put_soon(channel, b"two")


async def test_an_object_store_that_is_away_refuses_and_recovers(
    tmp_path: Path, objects: GatedFolder
) -> None:
    async with serving(tmp_path, replica_ack_s=1.0) as (node, url):
        async with producer(url) as channel, producer(url, "jobs/other") as other:
            await _put_soon(channel, b"one")
            await _put_soon(other, b"kept")
            objects.is_away = True
            with pytest.raises(RequestError, match="the store cannot"):
                await channel.put(b"two", key=7)
            began = anyio.current_time()
            with pytest.raises(RequestError, match="the store cannot"):
                await channel.put(b"three", key=8)
            assert anyio.current_time() - began < 1.0, "at once"
            # It is on the node's disk, and a repetition must not be told so.
            with pytest.raises(RequestError, match="the store cannot"):
                await channel.put(b"two", key=7)
            async with consumer(url, "jobs/other") as reader:
                assert await received(reader) == b"kept", "reads go on"
            assert node.replica is not None and node.replica.info.is_refusing
            objects.is_away = False
            await _put_soon(channel, b"two", key=7)
            await channel.put(b"three", key=8)
            async with consumer(url) as reader:
                found = [await received(reader) for _ in range(3)]
            assert sorted(found) == [b"one", b"three", b"two"], "each one once"


async def _put_soon(channel: Any, data: bytes, **options: Any) -> None:
    with anyio.fail_after(LIMIT_S):
        while True:
            try:
                await channel.put(data, **options)
                return
            except RequestError:
                await anyio.sleep(0.02)


async def test_a_channel_whose_last_acks_are_on_their_way_is_loaded_when_they_are_there(
    tmp_path: Path, objects: GatedFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """Its consumer has left, and another one comes in that moment."""
    async with serving(tmp_path, passivate_after_s=0.05) as (node, url):
        async with producer(url) as channel:
            await _put_soon(channel, b"one")
            await channel.put(b"two")
        await _unload(node)
        objects.held = JOURNAL
        async with consumer(url) as reader:
            assert await received(reader) == b"one"
        await anyio.to_thread.run_sync(objects.waits.wait, LIMIT_S)
        await _unload(node)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_consume, url, b"two")
            await anyio.sleep(0.3)
            objects.held = ""
            objects.goes_on.set()
        assert not [each for each in caplog.records if "not loaded" in each.message]


async def test_a_channel_that_waits_to_be_loaded_is_refused_in_time(
    tmp_path: Path, objects: GatedFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """That is no error of the node: it says once that the object store is away."""
    async with serving(tmp_path, passivate_after_s=0.05, replica_ack_s=0.5) as (node, url):
        async with producer(url) as channel:
            await _put_soon(channel, b"one")
            await channel.put(b"two")
        await _unload(node)
        objects.held = JOURNAL
        async with consumer(url) as reader:
            assert await received(reader) == b"one"
        await anyio.to_thread.run_sync(objects.waits.wait, LIMIT_S)
        await _unload(node)
        with anyio.fail_after(LIMIT_S), pytest.raises(HandshakeRefused, match="storage failed"):
            async with producer(url):
                pass
        objects.goes_on.set()
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def _unload(node: Node) -> None:
    """Wait until the node has the channel in its store alone."""
    await until(lambda: node.scheduler.view(CHANNEL.encode()) is None, LIMIT_S)


async def _consume(url: str, expected: bytes) -> None:
    async with consumer(url) as reader:
        assert await received(reader) == expected


async def test_a_rule_replicates_some_channels_and_leaves_others_quick(
    tmp_path: Path, objects: GatedFolder
) -> None:
    rules = (ChannelRule.parse("jobs/*=queue,durability=replicated"),)
    settings = {"durability": Durability.DISK, "channels": rules}
    async with serving(tmp_path, **settings) as (_, url):
        async with producer(url) as slow, producer(url, "logs") as quick:
            await slow.put(b"one")
            objects.held = JOURNAL
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(slow.put, b"two")
                await anyio.to_thread.run_sync(objects.waits.wait, LIMIT_S)
                with anyio.fail_after(LIMIT_S):
                    receipt = await quick.put(b"three")
                assert receipt.durability is Durability.DISK
                objects.goes_on.set()


async def test_a_replica_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a replica"):
        Node(Config(data=str(tmp_path / "data"), durability=Durability.REPLICATED))
