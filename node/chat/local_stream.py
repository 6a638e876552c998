"""One stream of this node, used from within: what is answered here is as durable as it promises."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
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
NUMBER = 1
"""Of every request: each is asked by a slip of its own."""

Told = TypeVar("Told", bound=StreamReply)


class _ReplyPort(Port):
    """Stands at the counter for one answer."""

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
        """Nothing is held back."""


class LocalStream:
    """The stream `name`. Everything raises RequestErrors. `number`: one that no connection has."""

    def __init__(
        self, scheduler: Scheduler, now: Callable[[], float], number: int, name: bytes
    ) -> None:
        self.name = name
        self._scheduler = scheduler
        self._now = now
        self._number = number

    async def create(self, bytes_max: int) -> None:
        """Make the stream, unless it is there; above `bytes_max` the oldest records go."""
        try:
            await self._ask(m.Create(NUMBER, m.Settings(bytes_max=bytes_max)), m.Done)
        except StreamExists:
            return

    async def append(self, bodies: Sequence[bytes]) -> int:
        """Add records, all or none; gives the sequence of the first once they are kept."""
        return (await self._ask(m.Append(NUMBER, list(bodies)), m.Appended)).first

    async def describe(self) -> m.StreamDescription:
        """What there is of it."""
        return await self._ask(m.Describe(NUMBER), m.StreamDescription)

    async def commit(self, group: bytes, offset: int) -> None:
        """A group got as far as `offset`, exclusive."""
        await self._ask(m.CommitOffset(NUMBER, group, offset), m.Done)

    async def at_time(self, timestamp_ms: int) -> int:
        """The sequence of the first record of this time or later; the tail if there is none."""
        seek = Seek(SeekBy.TIMESTAMP, timestamp=timestamp_ms)
        found = await self._ask(m.Read(NUMBER, seek, 1, 1), m.Records)
        return found.spans[0].first if found.spans else found.tail

    async def read(self, start: int, end: int) -> AsyncIterator[tuple[int, bytes]]:
        """Sequences and bodies from `start` to before `end`; what is trimmed is passed over."""
        while start < end:
            seek = Seek(SeekBy.SEQUENCE, sequence=start)
            page = await self._ask(m.Read(NUMBER, seek, PAGE, PAGE_BYTES), m.Records)
            for span in page.spans:
                for place, body in enumerate(span.bodies, span.first):
                    if place < end:
                        yield place, body
            if not page.spans:
                return
            start = page.next

    async def _ask(self, request: StreamRequest, shape: type[Told]) -> Told:
        slip = _ReplyPort(self._number)
        self._scheduler.submit(stream_cell(self.name), Batch(slip, [request]), self._now())
        told = await slip.answer
        assert isinstance(told, shape)
        return told
