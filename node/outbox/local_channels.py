"""The channels of this node, used from inside the process: puts, and consumers.

Replies and pushed messages are as durable as the channel promises, as for any connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from math import ceil, inf

import anyio

from millpond.actors.channels.channel import Channel
from millpond.actors.errors import ERRORS, NotFound, OutcomeUnknown
from millpond.actors.messages import (
    U64_MAX,
    Ack,
    Attach,
    Batch,
    CellMessage,
    DeadLetter,
    Durability,
    Failed,
    FindMove,
    Get,
    GetAck,
    List,
    ListAck,
    Move,
    MovesDone,
    Msg,
    Nack,
    OpenMoves,
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


class _RepliesPort(Port):
    """The port of several requests, with a future for each reply, in order."""

    __slots__ = ("_waiting", "answers", "number", "received_at")

    def __init__(self, number: int, count: int) -> None:
        self.number = number
        self.received_at = inf
        self.answers: list[ReplyFuture[Reply]] = [ReplyFuture() for _ in range(count)]
        self._waiting = iter(self.answers)

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None:
        for reply, answer in zip(replies, self._waiting, strict=False):
            if isinstance(reply, Failed):
                answer.fail(ERRORS[reply.code]("", reply.delay_ms))
            else:
                answer.resolve(reply)

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

    async def receive_all(self) -> list[Msg]:
        """The next message, and those that wait behind it."""
        messages = [await self.receive(), *self._pushed]
        self._pushed.clear()
        return messages

    def settle(self, *messages: Ack | Nack) -> None:
        """Acknowledge or reject messages."""
        if messages:
            self._local.submit(self.channel, Batch(self, list(messages)))


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
        self.own_source = number()
        """The number of the connection that all puts come from."""

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

    def put_all_nowait(
        self, channel: bytes, messages: Sequence[Put | Move]
    ) -> list[ReplyFuture[Reply]]:
        """Put messages into a channel, in this order; each future has a PutAck or a RequestError.
        A message and the memory of its move are stored together."""
        port = _RepliesPort(self.own_source, len(messages))
        self.submit(channel, Batch(port, list(messages)))
        return port.answers

    async def has_moved(self, channel: bytes, origin: int) -> bool:
        """True if the channel remembers a move with this origin. Raises RequestErrors."""
        try:
            await self._request(channel, FindMove(origin))
        except NotFound:
            return False
        return True

    def moves_done(self, channel: bytes, origins: Sequence[int]) -> None:
        """Have the channel forget moves that do not come again."""
        self.submit(channel, Batch(None, [MovesDone(tuple(origins))]))

    def forget_other_moves(self, channel: bytes, origins: Collection[int]) -> None:
        """Have the channel forget all moves but those with these origins."""
        self.submit(channel, Batch(None, [OpenMoves(tuple(origins))]))

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

    def size(self, channel: bytes) -> int:
        """The bytes of the messages in a channel."""
        behaviour = self._scheduler.view(channel)
        if isinstance(behaviour, Channel):
            return behaviour.info.bytes
        return self._store.partition_usage(channel).bytes

    def is_stored(self, channel: bytes) -> bool:
        """True if the channel outlives the process."""
        return self._store.durability(channel) is not Durability.MEMORY

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

    def _request(self, channel: bytes, request: Put | FindMove | Get | List) -> ReplyFuture[Reply]:
        port = _RepliesPort(self.own_source, 1)
        self.submit(channel, Batch(port, [request]))
        (answer,) = port.answers
        if isinstance(request, Put) and not request.data:
            answer.fail(OutcomeUnknown("an empty message is ignored"))
        return answer


def seconds_left(deadline: float, now: float) -> int:
    """The time to live until a deadline, rounded up to seconds; at least 1."""
    return max(1, ceil(deadline - now))
