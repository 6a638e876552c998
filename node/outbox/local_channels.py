"""The channels of this node, used from inside the process: puts, and consumers.

Replies and pushed messages are as durable as the channel promises, as for any connection.
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
    """The port of one request, with a future for its reply."""

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
        """Replies are not buffered."""


class LocalConsumer(Port):
    """A consumer of one channel. At most `window` messages are unacknowledged."""

    __slots__ = ("_arrived", "_local", "_pushed", "channel", "number", "received_at")

    def __init__(self, local: LocalChannels, channel: bytes, number: int) -> None:
        self.channel = channel
        self.number = number
        self.received_at = inf  # always alive: no heartbeat is needed
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
    def has_messages(self) -> bool:
        """True if pushed messages wait for `receive`."""
        return bool(self._pushed)

    @property
    def expects_messages(self) -> bool:
        """True if messages wait for `receive` or are being stored."""
        return self.has_messages or self._local.is_storing(self.channel)

    async def receive(self) -> Msg:
        """The next message. A message comes again after its lease has expired."""
        while not self._pushed:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return self._pushed.popleft()

    def settle(self, message: Ack | Nack) -> None:
        """Acknowledge or reject a message."""
        self._local.submit(self.channel, Batch(self, [message]))


class LocalChannels:
    """The channels of this node by name. `number` gives port numbers that no connection has."""

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
        """Send a batch to the cell of the channel."""
        self._scheduler.submit(channel, batch, self.now())

    def put_nowait(self, channel: bytes, put: Put) -> ReplyFuture[Reply]:
        """Put a message, in the order of the calls; the future has a PutAck or a RequestError."""
        return self._request(channel, put)

    async def put(self, channel: bytes, put: Put) -> PutAck:
        """Put a message; it is durable when this returns. Raises RequestErrors."""
        answer = await self._request(channel, put)
        assert isinstance(answer, PutAck)
        return answer

    async def list(self, channel: bytes) -> list[int]:
        """The first page of the ids of the messages in a channel. Raises RequestErrors."""
        answer = await self._request(channel, List(0, 0, 0))
        assert isinstance(answer, ListAck)
        return answer.ids

    async def get(self, channel: bytes, message_id: int) -> bytes:
        """The data of a message. Raises NotFound and other RequestErrors."""
        answer = await self._request(channel, Get(message_id))
        assert isinstance(answer, GetAck)
        return answer.data

    def discard(self, channel: bytes, message_ids: Sequence[int]) -> None:
        """Acknowledge messages by id, which removes them."""
        if message_ids:
            with self.consumer(channel, 0) as consumer:
                acks: list[CellMessage] = [Ack(each) for each in message_ids]
                self.submit(channel, Batch(consumer, acks))

    def dead_letter(self, channel: bytes, message: Msg, reason: str) -> None:
        """Move a message to the dead letters of its channel, atomically."""
        relayed = DeadLetter(channel, message.id, message.attempt, reason, message.data)
        self.submit(channel + DEAD_SUFFIX, Batch(None, [relayed]))

    @contextmanager
    def consumer(self, channel: bytes, window: int) -> Iterator[LocalConsumer]:
        """A consumer for the block. Afterwards its unacknowledged messages are ready again."""
        consumer = LocalConsumer(self, channel, self._number())
        join = Attach(role=Role.CONSUMER, window=window)
        self._scheduler.attach(channel, consumer, join, self.now())
        try:
            yield consumer
        finally:
            self._scheduler.detach(channel, consumer)

    def count(self, channel: bytes) -> int:
        """The number of messages in a channel."""
        behaviour = self._scheduler.view(channel)
        if isinstance(behaviour, Channel):
            return behaviour.info.messages
        return self._store.partition_usage(channel).messages

    def is_storing(self, channel: bytes) -> bool:
        """True while the channel has messages that are not durable yet."""
        cell = self._scheduler.cells.get(channel)
        return cell is not None and cell.unstored_from < U64_MAX

    def messages(self, channel: bytes) -> Iterator[StoredMessage]:
        """The messages of a channel in memory, valid until it changes; none if it is not in
        memory."""
        behaviour = self._scheduler.view(channel)
        if isinstance(behaviour, Channel):
            for row, _ in behaviour.export(0, self._scheduler.cells[channel].unstored_from):
                yield row

    def message(self, channel: bytes, message_id: int) -> StoredMessage | None:
        """One stored message of a channel in memory."""
        behaviour = self._scheduler.view(channel)
        if not isinstance(behaviour, Channel):
            return None
        return next((row for row, _ in behaviour.export(message_id - 1, message_id + 1)), None)

    def _request(self, channel: bytes, request: Put | Get | List) -> ReplyFuture[Reply]:
        port = _ReplyPort(self._own_number)
        self.submit(channel, Batch(port, [request]))
        if isinstance(request, Put) and not request.data:
            port.answer.fail(OutcomeUnknown("an empty message is ignored"))
        return port.answer


def seconds_left(deadline: float, now: float) -> int:
    """The time to live until a deadline, rounded up to seconds; at least 1."""
    return max(1, ceil(deadline - now))
