"""Streams on a clock that the test moves, in memory or in a folder that can be opened again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec

from millpond.actors.messages import (
    Attach,
    Batch,
    CellMessage,
    Durability,
    Failed,
    Port,
    Reply,
    StreamRequest,
)
from millpond.actors.positions import SeekBy
from millpond.actors.runtime.cell import Behaviour, CellSnapshot
from millpond.actors.runtime.scheduler import Scheduler, SchedulerSettings
from millpond.actors.store.changes import Change, LogSnapshot, Position
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.interface import Commit, Fault, Seek
from millpond.actors.store.memory import MemoryStore
from millpond.actors.store.settings import StoreSettings
from millpond.actors.streams import messages as m
from millpond.actors.streams.catalogs.basins import BasinCatalog, BasinDirectories
from millpond.actors.streams.catalogs.catalog import CatalogCell
from millpond.actors.streams.catalogs.topics import TopicCatalog
from millpond.actors.streams.directory import Directory
from millpond.actors.streams.names import BASINS, TOPICS, basin_stream_of, stream_cell, stream_of
from millpond.actors.streams.settings import StreamContext, StreamCounters, StreamLimits
from millpond.actors.streams.stream import Stream
from millpond.actors.streams.subscription_index import SubscriptionIndex
from tests.actors.recording_port import RecordingPort
from tests.sim.loop import Clock, Loop

START_S = 1_763_683_200.0
WAIT_S = 60.0
START_MS = int(START_S * 1000)
NAME = b"orders"
OWN_BASIN = b"own-basin"
TURNS_MAX = 20_000
SMALL = StoreSettings(
    segment_bytes=8192, journal_bytes_max=8192, rewrite_bytes_max=0, settle_s=1.0, stall_factor=100
)
"""Settings with which the journal is soon flushed to files."""

R = TypeVar("R", bound=Reply)


class SlowMemory(MemoryStore):
    """Applies changes at once, unless they are doomed, and promises or refuses them when the test
    says."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[Commit] = []
        self.is_slow = self.is_doomed = False

    def write(self, name: bytes, changes: Sequence[Change]) -> Commit | None:  # type: ignore[override]
        if not self.is_doomed:
            super().write(name, changes)
        if not self.is_slow:
            return None
        self.commits.append(Commit())
        return self.commits[-1]

    def finish(self, fault: Fault | None = None) -> None:
        """Everything written so far is kept, or not."""
        commits, self.commits = self.commits, []
        for commit in commits:
            commit.finish(fault)


class StreamHarness:
    """A node's streams. `folder` None: in memory."""

    def __init__(
        self,
        folder: Path | None = None,
        limits: StreamLimits | None = None,
        *,
        store: MemoryStore | None = None,
        settings: StoreSettings | None = None,
        runtime: SchedulerSettings | None = None,
    ) -> None:
        self.clock = Clock(START_S)
        self.folder = folder
        self.limits = limits or StreamLimits()
        self.crash_on: set[type[StreamRequest]] = set()
        self._memory = store
        self._settings = settings or SMALL
        self._runtime = runtime or SchedulerSettings()
        self._ports = 0
        self.open()

    # Its life.

    def open(self) -> None:
        """Start, with what there is."""
        self.loop: Loop | None = None
        if self.folder is None:
            self.store: Any = self._memory or MemoryStore()
        else:
            self.loop = Loop(self.clock, Random(1))
            self.store = DurableStore(
                self.folder, OsDisk(), self._settings, self.loop, lambda name: Durability.DISK
            )
            self.store.open()
        self.directory = Directory()
        self.basins = BasinDirectories(OWN_BASIN, self.directory, self.now_ms)
        self.counters = StreamCounters()
        self.shared = StreamContext(
            self.store,
            self.post,
            self.directory,
            self.store.usage,
            self.store.health,
            self.counters,
            subscriptions=SubscriptionIndex(self.post_later),
        )
        self.scheduler = Scheduler(
            self.store,
            self._spawn,
            lambda: self.now,
            Random(1),
            self._runtime,
            self.store.log_snapshot,
        )
        for cell in self.store.logs():
            if (name := stream_of(cell)) is not None:
                self.directory.sync_stream(name, is_created=True)
            elif (found := basin_stream_of(cell)) is not None:
                self.basins.other_streams(found[0]).sync_stream(found[1], is_created=True)
        self.post(TOPICS, m.PartitionDeleted(0, b""))
        self.post(BASINS, m.BasinStreamDeleted(0, b"", b""))
        self.settle()

    def close(self) -> None:
        self.settle()
        if self.folder is not None:
            self.store.close()

    def restart(self) -> None:
        """Nothing of it is lost, unless it is in memory."""
        self.close()
        self.open()

    def _spawn(self, cell: bytes, kept: CellSnapshot, attachments: dict[Port, Attach]) -> Behaviour:
        assert isinstance(kept, LogSnapshot)
        name = stream_of(cell)
        if cell == TOPICS:
            return CatalogCell(TopicCatalog(kept, self.directory, self.limits.node_groups_max))
        if cell == BASINS:
            return CatalogCell(BasinCatalog(kept, self.basins))
        shared = self.shared
        if name is None:
            basin, name = basin_stream_of(cell) or (b"", b"")
            streams = self.basins.other_streams(basin)
            shared = msgspec.structs.replace(shared, directory=streams)
        return FailingStream(self, name, kept, self.limits, shared)

    # Time.

    @property
    def now(self) -> float:
        return self.clock.now

    @property
    def now_ms(self) -> int:
        return int(self.now * 1000)

    def advance(self, seconds: float) -> None:
        """Let time pass; whatever is due happens when it is due."""
        end = self.now + seconds
        for _ in range(TURNS_MAX):
            self.work()
            if self.scheduler.is_idle:
                due = self.scheduler.timers.next_at
                if due > end:
                    break
                self.clock.now = due
            self.scheduler.turn(self.now)
        else:
            raise AssertionError("the scheduler never comes to rest")
        self.clock.now = end

    def settle(self) -> None:
        self.advance(0)

    def work(self) -> None:
        """The disk does all that it was asked for."""
        if self.loop is None:
            return
        self.loop.finish_pass()
        for _ in range(1000):
            if not self.loop.work(idle=False):
                return
        raise AssertionError("the workers never become idle")

    # Requests.

    def port(self) -> RecordingPort:
        self._ports += 1
        return RecordingPort(self._ports, self.now)

    def post(self, cell: bytes, message: CellMessage) -> None:
        self.scheduler.submit(cell, Batch(None, [message]), self.now)

    def post_later(self, cell: bytes, message: CellMessage) -> None:
        self.scheduler.submit_later(cell, Batch(None, [message]), self.now)

    def say(self, port: RecordingPort, *messages: CellMessage, name: bytes = NAME) -> None:
        """One read of a connection, which may wait for its answers."""
        self.scheduler.submit(stream_cell(name), Batch(port, list(messages)), self.now)

    def ask(self, *messages: StreamRequest, name: bytes = NAME) -> list[Reply]:
        """The replies to requests, in the order of their numbers."""
        port = self.port()
        self.say(port, *messages, name=name)
        self.settle()
        return sorted(port.take(), key=number_of)

    def one(self, message: StreamRequest, kind: type[R], name: bytes = NAME) -> R:
        (reply,) = self.ask(message, name=name)
        assert isinstance(reply, kind), reply
        return reply

    def create(self, name: bytes = NAME, **settings: Any) -> None:
        self.one(m.Create(0, m.Settings(**settings)), m.Done, name)

    def append(self, *bodies: bytes, name: bytes = NAME, **fields: Any) -> m.Appended:
        return self.one(m.Append(0, list(bodies), **fields), m.Appended, name)

    def read(
        self, start: int | Position | Seek = 0, *, name: bytes = NAME, **fields: Any
    ) -> m.Records:
        return self.one(read_of(start, **fields), m.Records, name)

    def bodies(self, start: int | Position | Seek = 0, **fields: Any) -> list[bytes]:
        return bodies_of(self.read(start, **fields))

    def refused(self, message: StreamRequest, name: bytes = NAME) -> m.StreamFailed:
        return self.one(message, m.StreamFailed, name)

    def describe(self, name: bytes = NAME) -> m.StreamDescription:
        return self.one(m.Describe(0), m.StreamDescription, name)

    def catalog(self, message: StreamRequest) -> Reply:
        """The reply of the catalog of topics."""
        return self.ask_cell(TOPICS, message)

    def ask_cell(self, cell: bytes, message: StreamRequest) -> Reply:
        """The reply of a cell to one request."""
        port = self.port()
        self.scheduler.submit(cell, Batch(port, [message]), self.now)
        self.settle()
        (reply,) = port.take()
        return reply


class FailingStream(Stream):
    """A stream that fails at requests of the test's choice, after it did what they ask."""

    def __init__(self, streams: StreamHarness, *args: Any) -> None:
        self.streams = streams
        self.fails = False
        super().__init__(*args)

    def handle(self, batch: Batch, now: float) -> Any:
        self.fails = any(type(each) in self.streams.crash_on for each in batch.messages)
        return super().handle(batch, now)

    def _next_deadline(self) -> float:
        if self.fails:
            raise RuntimeError("this stream cannot do that")
        return super()._next_deadline()


def number_of(reply: Reply) -> int:
    request = reply.request if isinstance(reply, Failed) else reply
    return request.number  # type: ignore[union-attr]  # streams answer nothing else


def read_of(start: int | Position | Seek = 0, *, number: int = 0, **fields: Any) -> m.Read:
    """A read that gives all there is, unless told otherwise."""
    if isinstance(start, int):
        start = Seek(SeekBy.SEQUENCE, start)
    elif isinstance(start, Position):
        start = Seek(SeekBy.ID, id=start)
    return m.Read(number, start, **{"count": 2**40, "bytes_max": 2**40, **fields})


def at_timestamp(timestamp: int) -> Seek:
    return Seek(SeekBy.TIMESTAMP, timestamp=timestamp)


def bodies_of(records: m.Records) -> list[bytes]:
    return [body for span in records.spans for body in span.bodies]


def rows_of(records: m.Records) -> Iterator[tuple[int, int, Position, bytes]]:
    """Sequence, timestamp, id and body of each record."""
    for span in records.spans:
        for at, body in enumerate(span.bodies):
            timestamp = span.timestamp if span.timestamps is None else span.timestamps[at]
            position = Position(span.id.ms, span.id.seq + at) if span.ids is None else span.ids[at]
            yield span.first + at, timestamp, position, body


def waiting(
    streams: StreamHarness,
    start: int | Position | Seek = 0,
    *,
    wait_s: float = WAIT_S,
    **fields: object,
) -> RecordingPort:
    """A connection whose read waits."""
    port = streams.port()
    streams.say(port, read_of(start, wait_until=streams.now + wait_s, **fields))
    streams.settle()
    assert port.take() == []
    return port


@contextmanager
def streams_in(folder: Path | None, **options: Any) -> Iterator[StreamHarness]:
    streams = StreamHarness(folder, **options)
    try:
        yield streams
    finally:
        streams.close()
