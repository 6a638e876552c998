"""The benchmark of the durable store without sockets, in a folder of its own.

Each row measures how fast the store is, and checks that it gives back what was written.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import msgspec

from millpond.actors.messages import Durability
from millpond.actors.store.changes import (
    Change,
    MessageRemoved,
    PartitionKind,
    Snapshot,
    StoredMessage,
)
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.interface import Fault as StoreFault
from millpond.actors.store.partitions.file_pool import FilePool
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.settings import StoreSettings
from millpond.node.bench.payload import Payload
from millpond.node.bench.results import Latencies
from millpond.node.bench.verify import Fault, Faults
from millpond.node.data_folder import LoopRuntime

WRITERS = (1, 16, 100, 1000)
SYNC_BYTES, SYNC_FILE_BYTES = 4096, 2**20
FLUSHED_CHANNELS, FLUSHED_MESSAGES = 100, 1000
LIVE_EACH = 100
LOADS_MAX = 500
FILL_WRITES = 100
"""Writes of `LIVE_EACH` messages under way at once while a store is filled."""
FIRST_S, POLL_S = 10.0, 0.005
"""Extra time of a row until the disk has stored a first message."""


class StoreBench:
    """The rows of the store benchmark. `messages` of `size` bytes are stored for recovery.

    `now` is a clock for durations, `time` the wall clock; rows of no fixed amount take `seconds`.
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
        """The measurements in order; `load` needs the files of `flush`."""
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
        """Channels with one message at a time, each of which waits for the disk."""
        return asyncio.run(self._commit(writers))

    async def _commit(self, writers: int) -> StoreResult:
        folder, row = self._folder / f"commit-{writers}", self._run(f"commit-{writers}")
        store = self._open(folder)
        syncs = store.stats.syncs
        load = WriterLoad(store, row, writers, self._time, asyncio.get_running_loop().call_soon)
        load.start()
        await asyncio.sleep(self._seconds)
        # A slow disk, or little time.
        while not row.count and row.elapsed < self._seconds + FIRST_S:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        count, took_s = row.count, row.elapsed
        syncs = store.stats.syncs - syncs
        await load.stop()
        store.close()
        store = self._open(folder)
        for name, payload, number in load.stored():
            snapshot = await _loaded(store, name)
            row.check(snapshot, [payload.make(number)], name)
        store.close()
        shutil.rmtree(folder)
        return row.result(syncs=syncs, count=count, seconds=took_s)

    def flush(self) -> StoreResult:
        """Flush messages to the files of their channels, a thousand to each; counts messages."""
        row, pool = self._run("flush"), self._file_pool()
        expires_at = self._time() + TTL_S
        for number in range(FLUSHED_CHANNELS):
            memtable = QueueMemtable(is_oldest=True)
            memtable.fold(self._rows(number, FLUSHED_MESSAGES, expires_at))
            began = self._now()
            pool.open(channel_name(number), PartitionKind.QUEUE).apply(memtable, number + 1)
            row.add(began, FLUSHED_MESSAGES)
        pool.close()
        return row.result(seconds=row.worked)

    def load(self) -> StoreResult:
        """Open the file of a channel and read its messages; counts channels."""
        row, pool = self._run("load"), self._file_pool()
        for number in range(FLUSHED_CHANNELS):
            began = self._now()
            snapshot = pool.open(channel_name(number), PartitionKind.QUEUE).load()
            row.add(began)
            payload = Payload(number, self._size)
            row.check(snapshot, map(payload.make, range(FLUSHED_MESSAGES)), channel_name(number))
        pool.close()
        return row.result(seconds=row.worked)

    def recovery(self) -> StoreResult:
        """Open a store with 100 messages in each channel, as a restart does."""
        return asyncio.run(self._recovery())

    async def _recovery(self) -> StoreResult:
        folder, row = self._folder / "recovery", self._run("recovery")
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
            payload = Payload(number, self._size)
            snapshot = await _loaded(store, channel_name(number))
            row.check(snapshot, map(payload.make, range(LIVE_EACH)), channel_name(number))
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
        payload, first = Payload(channel, self._size), (channel + 1) << 32
        return [
            StoredMessage(first + each, each, TTL_S, expires_at, payload.make(each))
            for each in range(count)
        ]

    def _open(self, folder: Path) -> DurableStore:
        around = LoopRuntime(self._time, Random())
        store = DurableStore(folder, self._disk, StoreSettings(), around, lambda _: Durability.DISK)
        store.open()
        return store

    def _file_pool(self) -> FilePool:
        return FilePool(self._folder / "files", self._disk)

    def _run(self, name: str) -> StoreRun:
        return StoreRun(self._now, name, self._size)


async def _loaded(store: DurableStore, name: bytes) -> Snapshot | StoreFault:
    found = store.load(name)
    if isinstance(found, Snapshot):
        return found
    arrived: asyncio.Future[Snapshot | StoreFault] = asyncio.get_running_loop().create_future()
    found.when_done(arrived.set_result)
    return await arrived


class StoreResult(msgspec.Struct, frozen=True):
    """The result of a row. `count` operations took `seconds`; latencies are those of one.

    `syncs`: syncs of the disk meanwhile (None: not counted).
    """

    row: str
    count: int
    size: int
    seconds: float
    rate: float
    p50_us: int
    p99_us: int
    max_us: int
    syncs: int | None
    faults: dict[str, int]
    first_fault: str
    ok: bool


class StoreRun:
    """A row under way: its count, latencies and faults."""

    def __init__(self, now: Callable[[], float], name: str, size: int) -> None:
        self.now = now
        self.faults = Faults()
        self.count = 0
        self.size = size
        self.worked = 0.0
        self._name = name
        self._began = now()
        self._latencies = Latencies()

    @property
    def elapsed(self) -> float:
        return self.now() - self._began

    def add(self, began: float, count: int = 1) -> None:
        """Count operations that began at that time."""
        took_s = self.now() - began
        self.worked += took_s
        self.count += count
        self._latencies.add(took_s)

    def check(self, found: Snapshot | StoreFault, expected: Iterable[bytes], name: bytes) -> None:
        """Compare the messages of a channel with those that were put."""
        contents = list(expected)
        if isinstance(found, StoreFault):
            self.faults.note(Fault.LOST, f"{name!r} cannot be read: {found.name}", len(contents))
            return
        missing = len(contents) - len(found.rows)
        if missing > 0:
            self.faults.note(Fault.LOST, f"{missing} messages of {name!r} are gone", missing)
        elif [row.data for row in found.rows] != contents:
            self.faults.note(Fault.DAMAGED, f"{name!r} holds other messages than were put")

    def result(
        self,
        *,
        syncs: int | None = None,
        count: int | None = None,
        seconds: float | None = None,
        size: int | None = None,
    ) -> StoreResult:
        """The result; `count` and `seconds` are those of the whole row by default."""
        count = self.count if count is None else count
        seconds = self.elapsed if seconds is None else seconds
        p50_us, p99_us, max_us = self._latencies.percentiles_us(0.5, 0.99, 1.0)
        return StoreResult(
            row=self._name,
            count=count,
            size=self.size if size is None else size,
            seconds=round(seconds, 3),
            rate=round(count / seconds, 1) if seconds else 0.0,
            p50_us=p50_us,
            p99_us=p99_us,
            max_us=max_us,
            syncs=syncs,
            faults={fault.value: number for fault, number in self.faults.counts.items()},
            first_fault=self.faults.first,
            ok=count > 0 and not self.faults,
        )


TTL_S = 3600


def channel_name(number: int) -> bytes:
    """The name of a channel of the benchmark."""
    return b"bench/%d" % number


class WriterLoad:
    """Writers of one channel each, which put one message at a time and remove the one before."""

    def __init__(
        self,
        store: DurableStore,
        row: StoreRun,
        writers: int,
        time: Callable[[], float],
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._store = store
        self._row = row
        self._time = time
        self._soon = soon
        self._payloads = [Payload(number, row.size) for number in range(writers)]
        self._counts = [0] * writers
        self._ids = [0] * writers
        self._last_id = 0
        self._ready = list(range(writers))
        self._is_over = False
        self._quiet = asyncio.Event()

    def start(self) -> None:
        """Put the first message of each; the next one follows when it is stored."""
        self._put_ready()

    async def stop(self) -> None:
        """Stop, and wait for the messages under way."""
        self._is_over = True
        self._check_quiet()
        await self._quiet.wait()

    def stored(self) -> Iterator[tuple[bytes, Payload, int]]:
        """Each channel with its payload and the number of the message that it has to hold."""
        for number, payload in enumerate(self._payloads):
            yield channel_name(number), payload, self._counts[number] - 1

    def _put_ready(self) -> None:
        if self._is_over:
            return
        ready, self._ready = self._ready, []
        began, expires_at = self._row.now(), self._time() + TTL_S
        for number in ready:
            sequence, old = self._counts[number], self._ids[number]
            self._counts[number] += 1
            self._last_id += 1
            data = self._payloads[number].make(sequence)
            changes: list[Change] = [
                StoredMessage(self._last_id, sequence, TTL_S, expires_at, data)
            ]
            if old:
                changes.insert(0, MessageRemoved(old, sequence - 1, None, self._row.size))
            self._ids[number] = self._last_id
            commit = self._store.write(channel_name(number), changes)
            assert commit is not None
            commit.when_done(partial(self._written, number, began))

    def _written(self, number: int, began: float, fault: StoreFault | None) -> None:
        if fault is not None:
            self._row.faults.note(Fault.REFUSED, f"the store did not store a message: {fault.name}")
            self._is_over = True
        self._row.add(began)
        self._ready.append(number)
        if self._is_over:
            self._check_quiet()
        elif len(self._ready) == 1:
            self._soon(self._put_ready)

    def _check_quiet(self) -> None:
        if len(self._ready) == len(self._payloads):
            self._quiet.set()
