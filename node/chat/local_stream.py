"""A stream of this node, used from inside the process, with the durability of the stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from math import inf
from typing import TypeVar

from millpond.actors.errors import ERRORS, StreamExists
from millpond.actors.messages import Batch, Failed, Port, Reply, StreamReply, StreamRequest
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.runtime.scheduler import Scheduler
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import stream_cell
from millpond.node.client.future import ReplyFuture

PAGE = 1000
PAGE_BYTES = 2**20
REQUEST_ID = 1
"""The id of every request: each has its own port."""

ReplyT = TypeVar("ReplyT", bound=StreamReply)


class _ReplyPort(Port):
    """The port of one request, with a future for its reply."""

    __slots__ = ("answer", "number", "received_at")

    def __init__(self, number: int) -> None:
        self.number = number
        self.received_at = inf
        self.answer: ReplyFuture[StreamReply] = ReplyFuture()

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            match reply:
                case Failed(code=code, delay_ms=delay_ms):
                    self.answer.fail(ERRORS[code]("", delay_ms))
                case m.StreamFailed(code=code):
                    self.answer.fail(ERRORS[code]())
                case StreamReply():
                    self.answer.resolve(reply)
                case _:
                    raise AssertionError(f"{reply} answers no request of a stream")

    def flush(self) -> None:
        """Replies are not buffered."""


class LocalStream:
    """The stream `name`. All methods raise RequestErrors. `number`: a port number of no
    connection."""

    def __init__(
        self, scheduler: Scheduler, now: Callable[[], float], number: int, name: bytes
    ) -> None:
        self.name = name
        self._scheduler = scheduler
        self._now = now
        self._number = number

    async def create(self, bytes_max: int, age_s: int | None = None) -> None:
        """Create the stream if it does not exist; above `bytes_max` bytes the oldest records go,
        and those older than `age_s` (0: never, None: as the configuration says)."""
        settings = m.Settings(age_s=age_s, bytes_max=bytes_max)
        try:
            await self._request(m.Create(REQUEST_ID, settings), m.Done)
        except StreamExists:
            return

    async def append(self, bodies: Sequence[bytes], at: int | None = None) -> int:
        """Append records, all or none; returns the sequence of the first when they are durable.
        `at`: it has to be this one (SEQUENCE_MISMATCH)."""
        request = m.Append(REQUEST_ID, list(bodies), match_sequence=at)
        return (await self._request(request, m.Appended)).first

    async def describe(self) -> m.StreamDescription:
        """The description of the stream."""
        return await self._request(m.Describe(REQUEST_ID), m.StreamDescription)

    async def delete(self) -> None:
        """Delete the stream with all records."""
        await self._request(m.Delete(REQUEST_ID), m.Done)

    async def commit(self, group: bytes, offset: int) -> None:
        """Commit the offset of a group, exclusive."""
        await self._request(m.CommitOffset(REQUEST_ID, group, offset), m.Done)

    async def at_time(self, timestamp_ms: int) -> int:
        """The sequence of the first record at this time or later; else the tail."""
        seek = Seek(SeekBy.TIMESTAMP, timestamp=timestamp_ms)
        found = await self._request(m.Read(REQUEST_ID, seek, 1, 1), m.Records)
        return found.spans[0].first if found.spans else found.tail

    async def read(self, start: int, end: int) -> AsyncGenerator[tuple[int, bytes], None]:
        """Sequences and bodies from `start` to before `end`; trimmed records are skipped."""
        while start < end:
            seek = Seek(SeekBy.SEQUENCE, sequence=start)
            count = min(PAGE, end - start)
            page = await self._request(m.Read(REQUEST_ID, seek, count, PAGE_BYTES), m.Records)
            for span in page.spans:
                for place, body in enumerate(span.bodies, span.first):
                    if place < end:
                        yield place, body
            if not page.spans:
                return
            start = page.next

    async def _request(self, request: StreamRequest, shape: type[ReplyT]) -> ReplyT:
        port = _ReplyPort(self._number)
        self._scheduler.submit(stream_cell(self.name), Batch(port, [request]), self._now())
        reply = await port.answer
        assert isinstance(reply, shape)
        return reply
