"""The cost of a commit: one sync for all waiting writes of any number of channels."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from millpond.actors.messages import Durability
from millpond.actors.store.changes import MessageRemoved, StoredMessage
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.filesystem import File, OsDisk
from millpond.actors.store.interface import Commit
from millpond.actors.store.settings import Item, Result, StoreSettings
from millpond.actors.store.workers import StoreWorker, WorkerTask, WorkerThread

NOW = 1_700_000_000.0
CHANNELS = 100


class CountedFile:
    def __init__(self, file: File, calls: Counter[str]) -> None:
        self._file = file
        self._calls = calls

    def write(self, data: bytes, offset: int) -> None:
        self._calls["write"] += 1
        self._file.write(data, offset)

    def sync(self) -> None:
        self._calls["sync"] += 1
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class CountedDisk(OsDisk):
    """The disk of this machine; `calls` are those on the journal, and connections to files."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def create(self, path: Path, size: int) -> File:  # type: ignore[override]
        return CountedFile(super().create(path, size), self.calls)

    def connect(self, path: Path) -> sqlite3.Connection:
        self.calls["connect"] += 1
        return super().connect(path)


class Around:
    """The running loop, at a time that stands still."""

    def now(self) -> float:
        return NOW

    def soon(self, callback) -> None:
        asyncio.get_running_loop().call_soon(callback)

    def worker(self, name: str, work: WorkerTask[Item, Result]) -> StoreWorker[Item]:
        loop = asyncio.get_running_loop()
        return WorkerThread(name, work, lambda callback: loop.call_soon_threadsafe(callback))

    def salt(self) -> int:
        return Random(1).getrandbits(32)


def opened(folder: Path, disk: OsDisk, durability: Durability) -> DurableStore:
    store = DurableStore(folder, disk, StoreSettings(), Around(), lambda name: durability)
    store.open()
    return store


def row(message_id: int) -> StoredMessage:
    return StoredMessage(message_id, message_id, 600, NOW + 600, b"%d" % message_id)


def put(store: DurableStore, channel: int, message_id: int) -> Commit:
    commit = store.write(b"channel/%d" % channel, [row(message_id)])
    assert commit is not None
    return commit


async def kept(commits: list[Commit]) -> None:
    all_kept = asyncio.get_running_loop().create_future()
    waiting = len(commits)

    def done(fault: object) -> None:
        nonlocal waiting
        assert fault is None
        waiting -= 1
        if not waiting:
            all_kept.set_result(None)

    for commit in commits:
        commit.when_done(done)
    await asyncio.wait_for(all_kept, 10)


@pytest.fixture
def anyio_backend() -> str:
    """The workers above report to asyncio."""
    return "asyncio"


async def test_100_channels_with_one_message_each_cost_one_sync(tmp_path: Path):
    disk = CountedDisk()
    store = opened(tmp_path, disk, Durability.DISK)
    await kept([put(store, 0, 1)])  # the first one makes the segment
    before = Counter(disk.calls)
    for turn in range(1, 11):
        await kept([put(store, channel, turn * 1000 + channel) for channel in range(CHANNELS)])
    cost = disk.calls - before
    assert cost["sync"] <= 20, "one for each pass, not one for each message"
    assert cost["write"] <= 20
    assert cost["connect"] == 0, "a message that is acked soon never sees its channel's file"
    store.close()


async def test_what_comes_during_a_sync_waits_for_the_next_one_together(tmp_path: Path):
    """Each channel goes on as soon as its message is kept; nobody tells them to go together."""
    disk = CountedDisk()
    store = opened(tmp_path, disk, Durability.DISK)

    async def write(channel: int) -> None:
        for turn in range(1, 11):
            await kept([put(store, channel, turn * 1000 + channel)])

    await asyncio.gather(*map(write, range(CHANNELS)))
    assert disk.calls["sync"] < CHANNELS * 10 / 5
    assert store.usage.messages == CHANNELS * 10
    store.close()


async def test_without_a_promise_of_the_disk_nothing_is_synced(tmp_path: Path):
    disk = CountedDisk()
    store = opened(tmp_path, disk, Durability.OS)
    await kept([put(store, 0, 1)])
    before = Counter(disk.calls)
    await kept([put(store, channel, 1000 + channel) for channel in range(CHANNELS)])
    assert (disk.calls - before)["sync"] == 0
    store.close()


async def test_an_ack_alone_causes_no_sync(tmp_path: Path):
    """PS-13: it rides with the next commit."""
    disk = CountedDisk()
    store = opened(tmp_path, disk, Durability.DISK)
    await kept([put(store, 0, 1)])
    before = Counter(disk.calls)
    assert store.write(b"channel/0", [MessageRemoved(1, 1, None, 1)]) is None
    await asyncio.sleep(0.02)
    assert (disk.calls - before)["sync"] == 0
    store.close()
