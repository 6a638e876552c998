"""Writers of the victim's streams: several batches in flight, through S3P and our own API."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import anyio

from millpond.actors.errors import OutcomeUnknown, StorageFailed, StreamExists
from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.client.requests.errors import LimitExceeded, NotDone
from millpond.node.client.s3p.client import S3p, connect_s3p
from millpond.node.client.streams.connect import connect_streams
from millpond.node.client.streams.stream import Stream
from millpond.node.client.streams.streams import Streams
from tests.crash.events import Label
from tests.crash.process import Addresses
from tests.crash.stream_events import Place
from tests.crash.workload import SILENCE_S
from tests.crash.written_streams import WrittenStreams

IN_FLIGHT = 6
LAST_BATCHES = 3
"""So many a task sends at the end of a run, and all must be answered."""
GONE = (ConnectionLost, ChannelClosed, OutcomeUnknown, StorageFailed, LimitExceeded)
"""The errors that a call may raise when the node dies, or its store before it."""


@dataclass(frozen=True)
class AppendPlan:
    """A stream that holds `records_max` is given no more. `ms`: every other id is requested."""

    name: str
    stream: str
    per_s: float
    records_max: int = 2500
    ms: int | None = None


class _Writer:
    """Numbers and pauses of one writer, over its lives."""

    def __init__(self, plan: AppendPlan, written_streams: WrittenStreams) -> None:
        self.plan = plan
        self._written_streams = written_streams
        self._n = 0
        self._again: deque[Label] = deque()
        """To be sent again, in this order, before anything new."""
        self._connection = 0
        self._is_last = False

    async def run(self, to: Addresses, *, is_last: bool = False) -> None:
        """Append until the node is gone; in the last life a few batches only."""
        self._connection = self._written_streams.history.connection()
        self._is_last = is_last
        try:
            await self._work(to)
        except* GONE:
            pass

    async def _work(self, to: Addresses) -> None:
        raise NotImplementedError

    @property
    def _rounds(self) -> range:
        return range(LAST_BATCHES if self._is_last else 2**40)

    def _next(self) -> Label:
        if self._again:
            return self._again.popleft()
        self._n += 1
        return Label(self.plan.name, self._n)

    async def _rest(self, client: S3p | Streams) -> None:
        """Between two appends of one task, and for as long as the stream is full."""
        written = self._written_streams[self.plan.stream]
        while not self._is_last:
            await anyio.sleep(IN_FLIGHT / self.plan.per_s)
            if written.records <= self.plan.records_max or not client.connected:
                return


class S3pWriter(_Writer):
    """Through S3P. An append of unknown outcome is never repeated, for it has no key; one of which
    the client says that it was not done is."""

    async def _work(self, to: Addresses) -> None:
        async with connect_s3p(to.s3p, reconnect=False) as s3p:
            await make(s3p, self.plan.stream)
            async with anyio.create_task_group() as tasks:
                for _ in range(IN_FLIGHT):
                    tasks.start_soon(self._append, s3p)

    async def _append(self, s3p: S3p) -> None:
        stream, written_streams = self.plan.stream, self._written_streams
        for _ in self._rounds:
            label = self._next()
            bodies = written_streams.sends(stream, label, self._connection)
            ms = self.plan.ms if label.n % 2 else None
            try:
                with anyio.fail_after(SILENCE_S):
                    last = await s3p.append(stream, bodies, ms=ms)
            except NotDone:
                written_streams.dropped(stream, label)
                self._again.append(label)
                return
            except OutcomeUnknown:
                return
            written_streams.placed(stream, label, Place(last.ms, last.seq - len(bodies) + 1))
            await self._rest(s3p)


class OwnWriter(_Writer):
    """Through the node's own API, into a stream that others write too: it cannot repeat either."""

    async def _work(self, to: Addresses) -> None:
        async with connect_streams(to.url, reconnect=False) as streams:
            stream = streams.stream(self.plan.stream)
            await stream.create(exist_ok=True)
            async with anyio.create_task_group() as tasks:
                for _ in range(IN_FLIGHT):
                    tasks.start_soon(self._append, streams, stream)

    async def _append(self, streams: Streams, stream: Stream) -> None:
        for _ in self._rounds:
            label = self._next()
            bodies = self._written_streams.sends(self.plan.stream, label, self._connection)
            await self._place(stream, label, bodies, None)
            await self._rest(streams)

    async def _place(
        self, stream: Stream, label: Label, bodies: list[bytes], match: int | None
    ) -> None:
        with anyio.fail_after(SILENCE_S):
            appended = await stream.append(bodies, match=match)
        seq = appended.id.seq - len(bodies) + 1
        place = Place(appended.id.ms, seq, appended.first)
        self._written_streams.placed(self.plan.stream, label, place)


class ExactWriter(OwnWriter):
    """The only writer of its stream: it says where each batch has to begin, so that what had no
    answer is repeated, and kept once all the same."""

    def __init__(self, plan: AppendPlan, written_streams: WrittenStreams) -> None:
        super().__init__(plan, written_streams)
        self._open: dict[Label, int] = {}
        """The first positions of batches without an answer, in the order of the stream."""
        self._end = 0

    async def _work(self, to: Addresses) -> None:
        async with connect_streams(to.url, reconnect=False) as streams:
            stream = streams.stream(self.plan.stream)
            await stream.create(exist_ok=True)
            await self._settle(stream)
            async with anyio.create_task_group() as tasks:
                for _ in range(IN_FLIGHT):
                    tasks.start_soon(self._append, streams, stream)

    async def _settle(self, stream: Stream) -> None:
        """Find which of the batches without an answer are kept; the others are sent again.

        A stream that ends elsewhere than behind one of them has lost something: the checker will
        see it, so the writer just goes on from there.
        """
        tail = (await stream.info()).tail
        for label, first in list(self._open.items()):
            if first + len(self._written_streams.bodies(label)) > tail:
                break
            for record in await stream.read(first, 1):
                place = Place(record.id.ms, record.id.seq, record.sequence)
                self._written_streams.placed(self.plan.stream, label, place, is_told=False)
            del self._open[label]
        if tail != next(iter(self._open.values()), self._end):
            self._open.clear()
            self._end = tail
        self._again = deque(self._open)

    async def _append(self, streams: Streams, stream: Stream) -> None:
        for _ in self._rounds:
            label = self._next()
            bodies = self._written_streams.bodies(label)
            if label not in self._open:
                self._open[label], self._end = self._end, self._end + len(bodies)
            self._written_streams.sends(self.plan.stream, label, self._connection, is_owed=True)
            await self._place(stream, label, bodies, self._open[label])
            del self._open[label]
            await self._rest(streams)


async def make(s3p: S3p, stream: str) -> None:
    """Create a stream, unless it is there."""
    try:
        await s3p.create(stream)
    except StreamExists:
        pass
