"""Object stores and disks that are full, refuse or were written by a later version, and things that
happen beside one another, at whole nodes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import anyio
import msgspec
import pytest

from millpond import connect
from millpond.actors.errors import RequestError
from millpond.actors.messages import Durability
from millpond.node.client.errors import HandshakeRefused
from millpond.node.config import Config
from millpond.node.config_rules import ChannelRule
from millpond.node.node import Node
from millpond.node.replica import service, shipping, standby
from millpond.node.replica.errors import BadReplica, ObjectStoreAway, ObjectStoreRefuses
from millpond.node.replica.interface import SnapshotRequest, SnapshotState
from millpond.node.replica.object_store import FolderObjects
from millpond.node.replica.objects import (
    BEAT,
    FORMAT,
    JOURNAL,
    SNAPSHOT,
    decode_format,
    decode_journal_object,
    decode_manifest,
    encode_journal_object,
    encode_json,
    encode_manifest,
)
from millpond.node.replica.restoration import ReplicaRestoration, verify
from millpond.node.replica.snapshots import prune
from millpond.node.replica.standby import Standby
from tests.actors.store.test_disk_failures import Fallible
from tests.node.outbox.peer_nodes import until
from tests.node.replica.test_service import StuckFolder

pytestmark = pytest.mark.anyio

LIMIT_S = 60.0
LATER_S = 2 * 86_400.0
QUEUE, LOCAL = "jobs/mail", "local"
CLOSED = dict.fromkeys(("ws", "s3p", "rustlog", "http"), "off")
RULES = (ChannelRule.parse("local=queue,durability=disk"), ChannelRule.parse("*=queue"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_BEAT_S", "BEAT_S"):
        monkeypatch.setattr(shipping, name, 0.05)
    for name in ("RETRY_S", "RETRY_S_MAX"):
        monkeypatch.setattr(shipping, name, 0.02)
    monkeypatch.setattr(service, "SNAPSHOT_LOOK_S", 0.01)
    monkeypatch.setattr(service, "SNAPSHOT_RETRY_S", 0.01)
    for name in ("LOOK_S", "LOOK_S_MIN", "RETRY_S", "BEAT_S"):
        monkeypatch.setattr(standby, name, 0.05)


def config(tmp_path: Path, name: str = "a") -> Config:
    return Config(
        data=str(tmp_path / name),
        replica=f"file://{tmp_path}/replica",
        replica_ack_s=0.5,
        durability=Durability.REPLICATED,
        channels=RULES,
        p2p="127.0.0.1:0",
        **CLOSED,
    )


def alone(folder: Path) -> Config:
    """A node on a folder that was restored, without a replica."""
    rules = (ChannelRule.parse("*=queue"),)
    return Config(data=str(folder), channels=rules, p2p="127.0.0.1:0", **CLOSED)


def standing_by(tmp_path: Path, objects: FolderObjects | None = None) -> Standby:
    return Standby(
        objects or FolderObjects(tmp_path / "replica"),
        tmp_path / "b",
        1.0,
        now=time.monotonic,
        wall=time.time,
        entropy=Random("b").randbytes,
    )


async def put(node: Node, data: bytes, channel: str = QUEUE) -> None:
    async with connect(f"tcp://{node.listeners['p2p']}", channel, role="producer") as link:
        await link.put(data)


async def put_soon(node: Node, data: bytes) -> None:
    with anyio.fail_after(LIMIT_S):
        while True:
            try:
                await put(node, data)
                return
            except (RequestError, HandshakeRefused):
                await anyio.sleep(0.02)


async def received(node: Node, count: int) -> list[bytes]:
    async with connect(f"tcp://{node.listeners['p2p']}", QUEUE, role="consumer") as link:
        with anyio.fail_after(LIMIT_S):
            return [bytes((await link.receive()).data) for _ in range(count)]


class FailingFolder(FolderObjects):
    """An object store that answers everything with an error, or takes nothing new."""

    error: Exception | None = None

    def create(self, name: str, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        super().create(name, data)

    def put_file(self, name: str, path: Path) -> None:
        if self.error is not None:
            raise self.error
        super().put_file(name, path)


@pytest.mark.parametrize(
    "error",
    (
        ObjectStoreAway("the folder: No space left on device"),
        ObjectStoreAway("503 SlowDown: reduce your request rate"),
        ObjectStoreRefuses("403 InvalidAccessKeyId: the access key is not known"),
    ),
    ids=("full", "throttled", "wrong credentials"),
)
async def test_an_object_store_that_takes_nothing_is_told_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    objects = FailingFolder(tmp_path / "replica")
    monkeypatch.setattr(service, "open_object_store", lambda url: objects)
    async with Node(config(tmp_path)) as node:
        await put_soon(node, b"one")
        objects.error = error
        with pytest.raises(RequestError, match="the store cannot"):
            await put(node, b"two")
        await put(node, b"kept", LOCAL)
        assert node.replica is not None and node.replica.info.error == str(error)
        objects.error = None
        await put_soon(node, b"three")
        assert not node.replica.info.error
        texts = await received(node, 2)
    assert texts[0] == b"one"
    verify(objects, lambda size: None)


async def test_a_node_whose_own_disk_is_full_stays_the_owner(tmp_path: Path) -> None:
    """It refuses writes for a reason that an operator has to see, and delivers what it has."""
    disk, ended = Fallible(), anyio.Event()
    objects = FolderObjects(tmp_path / "replica")

    async def stand() -> None:
        await standing_by(tmp_path).run()
        ended.set()

    async with Node(config(tmp_path), disk=disk) as node, anyio.create_task_group() as tasks:
        await put_soon(node, b"one")
        tasks.start_soon(stand)
        disk.plan = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))] * 100_000
        with pytest.raises(RequestError, match="the store cannot"):
            await put(node, b"two")
        before = objects.list(BEAT)[-1].name
        with anyio.move_on_after(2.5):  # more than twice the time of a takeover
            await ended.wait()
        assert not ended.is_set() and objects.list(BEAT)[-1].name > before
        assert node.replica is not None and not node.replica.info.is_away
        disk.plan = []
        await put_soon(node, b"three")
        tasks.cancel_scope.cancel()
    ReplicaRestoration(objects, tmp_path / "c").run(lambda size: None, lambda: None)
    async with Node(alone(tmp_path / "c")) as node:
        texts = await received(node, 2)
    assert texts[0] == b"one" and texts[-1] in (b"two", b"three")


async def test_a_snapshot_that_the_death_of_the_owner_cuts_short_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = StuckFolder(tmp_path / "replica")
    objects.is_stuck = False
    monkeypatch.setattr(service, "open_object_store", lambda url: objects)
    async with Node(config(tmp_path)) as node:
        await put_soon(node, b"one")
        assert node.replica is not None
        snapshots = len(objects.list(SNAPSHOT))
        objects.is_stuck, objects.requests = True, 0
        found = node.replica.answer(SnapshotRequest())
        assert found.state == SnapshotState.WAITING
        await put(node, b"two")
        await until(lambda: objects.requests > 0, LIMIT_S)
    assert len(objects.list(SNAPSHOT)) == snapshots
    objects.is_stuck = False
    objects.answers.set()  # its thread may end
    with anyio.fail_after(LIMIT_S):
        await standing_by(tmp_path).run()
    async with Node(config(tmp_path, "b")) as node:
        assert await received(node, 2) == [b"one", b"two"]
    prune(objects, 0.0, time.time() + LATER_S)
    verify(objects, lambda size: None)


class PrunedBeside(FolderObjects):
    """An object store in which a node removes what is old, once a restoration has begun."""

    def get_file(self, name: str, path: Path, wrote: Callable[[bytes], None]) -> None:
        super().get_file(name, path, wrote)
        prune(FolderObjects(self._folder), 0.0, time.time() + LATER_S)


async def test_a_restoration_beside_a_removal_is_whole_or_refused(tmp_path: Path) -> None:
    async with Node(config(tmp_path)) as node:
        await put_soon(node, b"one")
        early = time.time()
        await anyio.sleep(0.01)
        for text in (b"two", b"three"):
            await put(node, text)
            assert node.replica is not None
            await node.replica._make_snapshot()
    objects = PrunedBeside(tmp_path / "replica")
    with pytest.raises(BadReplica, match=r"is missing|is not there"):
        ReplicaRestoration(objects, tmp_path / "c", early).run(lambda size: None, lambda: None)
    assert not (tmp_path / "c").exists()
    ReplicaRestoration(objects, tmp_path / "c").run(lambda size: None, lambda: None)
    async with Node(alone(tmp_path / "c")) as node:
        assert await received(node, 3) == [b"one", b"two", b"three"]


async def test_a_replica_of_a_later_version_is_named_and_left_alone(tmp_path: Path) -> None:
    """Its format, a journal object, a manifest: neither restored, followed nor shipped to."""
    async with Node(config(tmp_path)) as node:
        await put_soon(node, b"one")
    folder = tmp_path / "replica"
    objects = FolderObjects(folder)
    journal, manifest = objects.list(JOURNAL)[-1].name, objects.list(SNAPSHOT)[-1].name
    header, body = decode_journal_object(objects.get(journal), journal)
    replace = msgspec.structs.replace
    later = {
        FORMAT: encode_json(replace(decode_format(objects.get(FORMAT)), version=2)),
        journal: encode_journal_object(replace(header, version=2), body),
        manifest: encode_manifest(replace(decode_manifest(objects.get(manifest), ""), version=3)),
    }
    for name, data in later.items():
        intact = objects.get(name)
        (folder / name).write_bytes(data)
        with pytest.raises(BadReplica, match=f"{name}.*version [23]"):
            verify(objects, lambda size: None)
        with pytest.raises(BadReplica, match=f"{name}.*version [23]"):
            ReplicaRestoration(objects, tmp_path / "c").run(lambda size: None, lambda: None)
        if name != manifest:  # the journal goes on beside a manifest that this version cannot read
            async with Node(config(tmp_path)) as node:
                assert node.replica is not None and name in node.replica.info.error
                await put(node, b"kept", LOCAL)
        await _tells(standing_by(tmp_path), name)
        (folder / name).write_bytes(intact)
    verify(objects, lambda size: None)


async def _tells(follower: Standby, name: str) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follower.run)
        await until(lambda: name in follower.state, LIMIT_S)
        tasks.cancel_scope.cancel()
