"""This node's own channels, used from within: awaitable puts, and a guest that is pushed messages.

What is answered or pushed here is as durable as the channel promises, as for any connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil, inf

import anyio

from millpond.actors.channels.channel import Channel
from millpond.actors.errors import ERRORS, OutcomeUnknown
from millpond.actors.messages import (
    U64_MAX,
    Ack,
    Attach,
    Batch,
    CellMessage,
    DeadLetter,
    Failed,
    Get,
    GetAck,
    List,
    ListAck,
    Msg,
    Nack,
    Port,
    Put,
    PutAck,
    Reply,
    Role,
)
from millpond.actors.runtime.scheduler import Scheduler
from millpond.actors.store.changes import StoredMessage
from millpond.actors.store.interface import Store
from millpond.node.client.future import ReplyFuture

DEAD_SUFFIX = b"!dead"


class _ReplyPort(Port):
    """Stands at the counter for one answer."""

    __slots__ = ("answer", "number", "received_at")

    def __init__(self, number: int) -> None:
        self.number = number
        self.received_at = inf
        self.answer: ReplyFuture[Reply] = ReplyFuture()

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            if isinstance(reply, Failed):
                self.answer.fail(ERRORS[reply.code]("", reply.delay_ms))
            else:
                self.answer.resolve(reply)

    def flush(self) -> None:
        """Nothing is held back."""


class LocalConsumer(Port):
    """Is pushed the messages of one channel, at most `window` that are not acknowledged."""

    __slots__ = ("_arrived", "_local", "_pushed", "channel", "number", "received_at")

    def __init__(self, local: LocalChannels, channel: bytes, number: int) -> None:
        self.channel = channel
        self.number = number
        self.received_at = inf  # never silent, so never asked whether it is there
        self._local = local
        self._pushed: deque[Msg] = deque()
        self._arrived = anyio.Event()

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None:
        self._pushed.extend(each for each in replies if isinstance(each, Msg))

    def flush(self) -> None:
        if self._pushed:
            self._arrived.set()

    @property
    def has_mail(self) -> bool:
        """Were messages pushed that nobody received yet?"""
        return bool(self._pushed)

    @property
    def awaits_mail(self) -> bool:
        """Were messages pushed that nobody received yet, or are some kept just now?"""
        return self.has_mail or self._local.is_keeping(self.channel)

    async def receive(self) -> Msg:
        """The next message; one whose lease ran out comes again."""
        while not self._pushed:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return self._pushed.popleft()

    def tell(self, message: Ack | Nack) -> None:
        """Acknowledge a message, or give it back."""
        self._local.submit(self.channel, Batch(self, [message]))


class LocalChannels:
    """The channels of this node, by name. `number` gives numbers that no connection has."""

    def __init__(
        self,
        scheduler: Scheduler,
        store: Store,
        now: Callable[[], float],
        number: Callable[[], int],
    ) -> None:
        self.now = now
        self._scheduler = scheduler
        self._store = store
        self._number = number
        self._own_number = number()

    def submit(self, channel: bytes, batch: Batch) -> None:
        """Hand a batch to the channel's cell."""
        self._scheduler.submit(channel, batch, self.now())

    def put_soon(self, channel: bytes, put: Put) -> ReplyFuture[Reply]:
        """Put, in the order of the calls; the answer is a PutAck, or raises a RequestError."""
        return self._ask(channel, put)

    async def put(self, channel: bytes, put: Put) -> PutAck:
        """Have the channel keep a message. Raises RequestErrors."""
        answer = await self._ask(channel, put)
        assert isinstance(answer, PutAck)
        return answer

    async def list(self, channel: bytes) -> list[int]:
        """The ids of the channel's messages, the first page of them. Raises RequestErrors."""
        answer = await self._ask(channel, List(0, 0, 0))
        assert isinstance(answer, ListAck)
        return answer.ids

    async def get(self, channel: bytes, message_id: int) -> bytes:
        """Raises NotFound, and other RequestErrors."""
        answer = await self._ask(channel, Get(message_id))
        assert isinstance(answer, GetAck)
        return answer.data

    def forget(self, channel: bytes, message_ids: Sequence[int]) -> None:
        """Let go of messages."""
        if message_ids:
            with self.consumer(channel, 0) as guest:
                acks: list[CellMessage] = [Ack(each) for each in message_ids]
                self.submit(channel, Batch(guest, acks))

    def dead_letter(self, channel: bytes, message: Msg, reason: str) -> None:
        """Have a message moved to the dead letters of its channel, in one of them at any time."""
        letter = DeadLetter(channel, message.id, message.attempt, reason, message.data)
        self.submit(channel + DEAD_SUFFIX, Batch(None, [letter]))

    @contextmanager
    def consumer(self, channel: bytes, window: int) -> Iterator[LocalConsumer]:
        """A consumer in the channel, for the block. What it did not acknowledge is ready again."""
        guest = LocalConsumer(self, channel, self._number())
        join = Attach(role=Role.CONSUMER, window=window)
        self._scheduler.attach(channel, guest, join, self.now())
        try:
            yield guest
        finally:
            self._scheduler.detach(channel, guest)

    def count(self, channel: bytes) -> int:
        """How many messages the channel holds."""
        behaviour = self._scheduler.view(channel)
        if isinstance(behaviour, Channel):
            return behaviour.info.messages
        return self._store.partition_usage(channel).messages

    def is_keeping(self, channel: bytes) -> bool:
        """Does the channel hold messages that are not as durable as it promises yet?"""
        cell = self._scheduler.cells.get(channel)
        return cell is not None and cell.unkept_from < U64_MAX

    def rows(self, channel: bytes) -> Iterator[StoredMessage]:
        """The channel's messages, as long as nothing changes and it is in memory; else nothing."""
        behaviour = self._scheduler.view(channel)
        if isinstance(behaviour, Channel):
            for row, _ in behaviour.export(0, self._scheduler.cells[channel].unkept_from):
                yield row

    def row(self, channel: bytes, message_id: int) -> StoredMessage | None:
        """One message of it."""
        behaviour = self._scheduler.view(channel)
        if not isinstance(behaviour, Channel):
            return None
        return next((row for row, _ in behaviour.export(message_id - 1, message_id + 1)), None)

    def _ask(self, channel: bytes, request: Put | Get | List) -> ReplyFuture[Reply]:
        slip = _ReplyPort(self._own_number)
        self.submit(channel, Batch(slip, [request]))
        if isinstance(request, Put) and not request.data:
            slip.answer.fail(OutcomeUnknown("an empty message is ignored"))
        return slip.answer


def seconds_left(deadline: float, now: float) -> int:
    """A time to live that ends at the deadline, rounded up; at least a second."""
    return max(1, ceil(deadline - now))
