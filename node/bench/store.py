"""The durable store without sockets: how fast the disk lets it be, and whether it gives back the
same. Everything happens in a folder of the benchmark's own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

from millpond.actors.messages import Durability
from millpond.actors.store.changes import PartitionKind, Snapshot, StoredMessage
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.interface import Fault as StoreFault
from millpond.actors.store.partitions.file_pool import FilePool
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.settings import StoreSettings
from millpond.node.bench.course import StoreResult, StoreRun
from millpond.node.bench.payload import Payload
from millpond.node.bench.verify import Fault
from millpond.node.bench.writing import TTL_S, WriterLoad, channel_name
from millpond.node.data_folder import LoopRuntime

WRITERS = (1, 16, 100, 1000)
SYNC_BYTES, SYNC_FILE_BYTES = 4096, 2**20
FLUSHED_CHANNELS, FLUSHED_MESSAGES = 100, 1000
LIVE_EACH = 100
LOADS_MAX = 500
FILL_WRITES = 100
"""So many writes of `LIVE_EACH` messages are on their way at once while a store is filled."""
FIRST_S, POLL_S = 10.0, 0.005
"""How much longer a row may take until the disk has kept anything at all."""


class StoreBench:
    """All rows, in order. `messages` of `size` bytes are alive where recovery is measured.

    `now` is a clock for durations, `time` the world's; rows of no fixed amount take `seconds`.
    """

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        now: Callable[[], float],
        time: Callable[[], float],
        *,
        seconds: float,
        messages: int,
        size: int,
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._now = now
        self._time = time
        self._seconds = seconds
        self._messages = messages
        self._size = size

    def rows(self) -> Iterator[Callable[[], StoreResult]]:
        """What measures each row; `load` needs what `flush` left."""
        yield self.sync
        yield from (partial(self.commit, writers) for writers in WRITERS)
        yield from (self.flush, self.load, self.recovery)

    def sync(self) -> StoreResult:
        """Write 4 KiB into reserved space, and have the disk confirm it."""
        row, page = StoreRun(self._now, "sync", self._size), bytes(SYNC_BYTES)
        file = self._disk.create(self._folder / "sync", SYNC_FILE_BYTES)
        try:
            while not row.count or row.elapsed < self._seconds:
                began = self._now()
                file.write(page, row.count * SYNC_BYTES % SYNC_FILE_BYTES)
                file.sync()
                row.add(began)
        finally:
            file.close()
        self._disk.unlink(self._folder / "sync")
        return row.result(size=SYNC_BYTES, syncs=row.count)

    def commit(self, writers: int) -> StoreResult:
        """So many channels, in each of them one message at a time that waits for the disk."""
        return asyncio.run(self._commit(writers))

    async def _commit(self, writers: int) -> StoreResult:
        folder, row = self._folder / f"commit-{writers}", self._course(f"commit-{writers}")
        store = self._open(folder)
        syncs = store.stats.syncs
        writing = WriterLoad(store, row, writers, self._time, asyncio.get_running_loop().call_soon)
        writing.start()
        await asyncio.sleep(self._seconds)
        # A slow disk, or little time.
        while not row.count and row.elapsed < self._seconds + FIRST_S:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        count, took_s = row.count, row.elapsed
        syncs = store.stats.syncs - syncs
        await writing.stop()
        store.close()
        store = self._open(folder)
        for name, content, number in writing.kept():
            snapshot = await _loaded(store, name)
            row.check(snapshot, [content.make(number)], name)
        store.close()
        shutil.rmtree(folder)
        return row.result(syncs=syncs, count=count, seconds=took_s)

    def flush(self) -> StoreResult:
        """Bring messages to the files of their channels, a thousand to each; counts messages."""
        row, shelf = self._course("flush"), self._shelf()
        expires_at = self._time() + TTL_S
        for number in range(FLUSHED_CHANNELS):
            layer = QueueMemtable(is_base=True)
            layer.fold(self._rows(number, FLUSHED_MESSAGES, expires_at))
            began = self._now()
            shelf.open(channel_name(number), PartitionKind.QUEUE).apply(layer, number + 1)
            row.add(began, FLUSHED_MESSAGES)
        shelf.close()
        return row.result(seconds=row.worked)

    def load(self) -> StoreResult:
        """Open the file of a channel and read what it holds; counts channels."""
        row, shelf = self._course("load"), self._shelf()
        for number in range(FLUSHED_CHANNELS):
            began = self._now()
            snapshot = shelf.open(channel_name(number), PartitionKind.QUEUE).load()
            row.add(began)
            content = Payload(number, self._size)
            row.check(snapshot, map(content.make, range(FLUSHED_MESSAGES)), channel_name(number))
        shelf.close()
        return row.result(seconds=row.worked)

    def recovery(self) -> StoreResult:
        """Open a store with messages in a hundredth as many channels, as a restart does."""
        return asyncio.run(self._recovery())

    async def _recovery(self) -> StoreResult:
        folder, row = self._folder / "recovery", self._course("recovery")
        channels = max(1, self._messages // LIVE_EACH)
        store = self._open(folder)
        await self._fill(store, channels)
        store.close()
        began = self._now()
        store = self._open(folder)
        row.add(began, channels * LIVE_EACH)
        if store.usage.messages != channels * LIVE_EACH:
            text = f"{store.usage.messages} messages of {channels * LIVE_EACH} were recovered"
            row.faults.note(Fault.LOST, text)
        for number in range(0, channels, max(1, channels // LOADS_MAX)):
            content = Payload(number, self._size)
            snapshot = await _loaded(store, channel_name(number))
            row.check(snapshot, map(content.make, range(LIVE_EACH)), channel_name(number))
        store.close()
        shutil.rmtree(folder)
        return row.result(seconds=row.worked)

    async def _fill(self, store: DurableStore, channels: int) -> None:
        expires_at, under_way = self._time() + TTL_S, asyncio.Semaphore(FILL_WRITES)
        for number in range(channels):
            await under_way.acquire()
            commit = store.write(channel_name(number), self._rows(number, LIVE_EACH, expires_at))
            assert commit is not None
            commit.when_done(lambda fault: under_way.release())
        for _ in range(FILL_WRITES):
            await under_way.acquire()

    def _rows(self, channel: int, count: int, expires_at: float) -> list[StoredMessage]:
        content, first = Payload(channel, self._size), (channel + 1) << 32
        return [
            StoredMessage(first + each, each, TTL_S, expires_at, content.make(each))
            for each in range(count)
        ]

    def _open(self, folder: Path) -> DurableStore:
        around = LoopRuntime(self._time, Random())
        store = DurableStore(folder, self._disk, StoreSettings(), around, lambda _: Durability.DISK)
        store.open()
        return store

    def _shelf(self) -> FilePool:
        return FilePool(self._folder / "files", self._disk)

    def _course(self, name: str) -> StoreRun:
        return StoreRun(self._now, name, self._size)


async def _loaded(store: DurableStore, name: bytes) -> Snapshot | StoreFault:
    found = store.load(name)
    if isinstance(found, Snapshot):
        return found
    arrived: asyncio.Future[Snapshot | StoreFault] = asyncio.get_running_loop().create_future()
    found.when_done(arrived.set_result)
    return await arrived
