"""A channel of a node, as users have it: it stays open over any number of connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from math import inf
from operator import index
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self

import anyio
import msgspec

from millpond.actors.errors import DataTooLarge, EmptyData, LeaseLost, NotNegotiated
from millpond.actors.messages import (
    U64_MAX,
    AttemptStarted,
    Durability,
    Mode,
    Nack,
    NackReason,
    Put,
)
from millpond.node.client.errors import ClientClosed
from millpond.node.client.future import ReplyFuture
from millpond.node.client.idempotency import KEYS, KeyCounter
from millpond.node.client.in_flight import Receipt
from millpond.node.client.inbox import Counts, Delivery
from millpond.node.client.link import Link
from millpond.node.client.node_requests import Request, send_operation
from millpond.node.client.openable import Client
from millpond.node.client.payload import Data, as_bytes
from millpond.node.client.questions import AnswerMailbox, answer, payload_of, question_of
from millpond.node.client.retry import RETRYABLE, RetryBudget
from millpond.node.client.tracing import hook
from millpond.node.jobs.payload import JobUpdate, ReplyTo
from millpond.transports.p2p.packets import (
    ADMIN,
    BEGUN,
    CREDIT,
    JOBS,
    PEERS,
    TOUCH,
    encode,
)

if TYPE_CHECKING:
    from millpond.node.client.channels import Channels
    from millpond.node.client.streams.streams import Streams

PUT_BYTES = 9
OPERATION_MAX = 2**8 - 1
TTL_MAX = 2**32 - 1
CREDIT_MAX = 2**16 - 1
LIST_LIMIT_MAX = 2**16 - 1
DRAIN_S = 5.0
MS_MAX = 2**32 - 1

Ids = list[int]
RoleName = Literal["producer", "consumer", "both", "worker"]
ModeName = Literal["pair", "fanout", "queue"]


class Message:
    """A pushed message. `async with message` acknowledges it on success, returns it on an error.

    Cancellation does neither: the node pushes the message again once its lease is over.
    """

    __slots__ = (
        "_connection",
        "_link",
        "_processing",
        "_settled",
        "_untraced",
        "attempt",
        "channel",
        "data",
        "id",
    )

    id: int
    data: bytes
    attempt: int
    channel: Channel
    _untraced: bool

    def __init__(self, delivery: Delivery, channel: Channel, link: Link) -> None:
        self.id = delivery.msg.id
        self.data = delivery.msg.data
        self.attempt = delivery.msg.attempt
        self.channel = channel
        self._connection = delivery.connection
        self._link = link
        self._settled = False

    def __repr__(self) -> str:
        return f"Message(id={self.id}, attempt={self.attempt}, data={self.data[:40]!r})"

    async def ack(self) -> None:
        """Acknowledge: the node forgets the message. Also sent on a later connection."""
        self._settled = True
        if hook.active is None or hasattr(self, "_untraced"):
            await self.channel.ack(self.id)
        else:
            with hook.active.settle(self.channel.name, self.id, "ack"):
                await self.channel.ack(self.id)

    async def nack(self, delay: float | None = None, *, reject: bool = False) -> None:
        """Return the message: for another attempt, in `delay` seconds, or as a dead letter."""
        delay_ms = None if delay is None or reject else _milliseconds(delay)
        reason = NackReason.REJECT if reject else NackReason.LATER
        if hook.active is None or hasattr(self, "_untraced"):
            self._return(reason, delay_ms)
        else:
            with hook.active.settle(self.channel.name, self.id, "reject" if reject else "nack"):
                self._return(reason, delay_ms)

    @property
    def payload(self) -> bytes:
        """The data, or what was asked where the message is a question (`Channel.ask`)."""
        question = question_of(self.data)
        return self.data if question is None else payload_of(question)

    @property
    def wants_reply(self) -> bool:
        """Whether the message is a question."""
        return question_of(self.data) is not None

    async def reply(self, data: bytes) -> None:
        """Answer a question, and acknowledge it. Needs the right to put into the mailbox,
        `CHANNEL/r/...`. Raises ValueError where no reply is wanted."""
        await self._answer("result", _bytes(data))

    async def reply_error(self, text: str) -> None:
        """Answer a question with an error, which `ask` raises as AskFailed; else as `reply`."""
        await self._answer("failed", {"reason": "error", "error": text})

    async def _answer(self, kind: Literal["result", "failed"], value: object) -> None:
        question = question_of(self.data)
        if question is None or question.reply_to is None:
            raise ValueError("the message is no question: no reply is wanted")
        to = question.reply_to
        await self.channel._reply(to, JobUpdate(to.number, kind, value))  # noqa: SLF001
        await self.ack()

    async def decline(self) -> None:
        """Refuse a message that cannot be read here: it is kept, and not pushed here again."""
        self._return(NackReason.CANNOT_DECRYPT, None)

    def _return(self, reason: NackReason, delay_ms: int | None) -> None:
        self._settled = True
        if self._link.error is not None:
            raise self._link.error.with_traceback(None)
        session = self._link.session
        # The lease ended with the connection: the node pushes the message again anyway.
        if session is not None and session.number == self._connection:
            self._link.send(encode(Nack(self.id, reason, delay_ms)))

    @property
    def leased(self) -> bool:
        """Whether its connection is live: the lease ends with that, at the latest."""
        session = self._link.session
        return session is not None and session.number == self._connection

    def begin(self, *, at_once: bool = True) -> None:
        """Tell the node that work begins: from now on, losing the lease is a failed attempt.

        For channels opened with `begins`; for others every push counts as begun. Not `at_once`: it
        is sent together with what else this pass of the loop sends.
        """
        session = self._link.session
        if session is not None and session.number == self._connection:
            if session.negotiated(BEGUN):
                self._link.send(encode(AttemptStarted(self.id)), at_once=at_once)

    async def touch(self, seconds: float) -> float:
        """Extend the lease to so many seconds from now. Gives those that are left of it.

        The lease counts from the request, to be sure. Raises LeaseLost, also where its time was
        over before the answer was read: the program or the node hung.
        """
        session = await self._link.live()
        if session.number != self._connection:
            raise LeaseLost("the connection that held the lease ended")
        if not session.negotiated(TOUCH):
            raise NotNegotiated
        packet, reply = self._link.inflight.touch(self.id, _milliseconds(seconds))
        sent_at = self._link.now()
        self._link.send(packet, at_once=True)
        granted_s = await reply.wait()
        left_s = granted_s - (self._link.now() - sent_at)
        if left_s <= 0 < granted_s:
            raise LeaseLost("the lease was extended, and over before the answer was read")
        return max(0.0, left_s)

    async def __aenter__(self) -> Self:
        if hook.active is not None:
            name, number, attempt = self.channel.name, self.id, self.attempt
            question = question_of(self.data)
            carrier = {} if question is None else question.headers
            self._processing = hook.active.process(name, number, carrier, "", attempt)
            self._processing.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        processing = getattr(self, "_processing", None)
        try:
            if self._settled:
                return
            if error is None:
                await self.ack()
            elif isinstance(error, Exception) and self._link.error is None:
                await self.nack()
        finally:
            if processing is not None:
                del self._processing
                try:
                    processing.__exit__(kind, error, trace)
                except BaseException as raised:
                    if raised is not error:  # the block's own error goes on by itself
                        raise


def _milliseconds(seconds: float) -> int:
    milliseconds = round(seconds * 1000)
    if not 0 <= milliseconds <= MS_MAX:
        raise ValueError(f"{seconds} seconds cannot be sent")
    return milliseconds


class Join(Protocol):
    """Makes a client of another channel of the same node, with the credentials of this one."""

    def __call__(
        self,
        name: bytes,
        /,
        *,
        role: RoleName = "consumer",
        mode: ModeName | None = None,
        window: int | None = None,
        resume_after: int | None = None,
    ) -> Channel: ...


class ChannelConnection(NamedTuple):
    """The parts of an open channel."""

    link: Link
    keys: KeyCounter
    rng: Random
    answers: AnswerMailbox
    join: Join


class Channel(Client[ChannelConnection]):
    """A channel of a node; see `connect`. Tasks may share it. Iterating gives the pushed messages.

    It is open within `async with`, or from `open` to `close`; then methods raise ClientClosed.
    """

    name: str | bytes
    _of_connection = frozenset({"_link", "_keys", "_rng", "_answers", "_join"})

    def __init__(
        self,
        name: str | bytes,
        connect: Callable[[], AbstractAsyncContextManager[ChannelConnection]],
    ) -> None:
        super().__init__(connect)
        self.name = name
        self._link: Link
        self._keys: KeyCounter
        self._rng: Random
        self._answers: AnswerMailbox
        self._join: Join

    def _use(self, connection: ChannelConnection) -> None:
        self._link, self._keys, self._rng, self._answers, self._join = connection

    async def _end(self) -> None:
        if not self.closed:
            await self.flush()
        await self._link.stop()

    def __repr__(self) -> str:
        return f"Channel({self.name!r})"

    @property
    def mode(self) -> Mode | None:
        """The mode of the channel; None where the other end has no handshake."""
        return self._link.mode

    @property
    def durability(self) -> Durability:
        """The durability that receipts promise now; MEMORY without a handshake."""
        return self._link.inflight.durability

    @property
    def window(self) -> int:
        """The number of messages that the node pushes ahead of their acknowledgements."""
        return self._link.window

    @property
    def connected(self) -> bool:
        """Whether a connection is live now."""
        return not self.closed and self._link.session is not None

    @property
    def has_messages(self) -> bool:
        """Whether pushed messages wait: `receive` returns at once."""
        return bool(self._link.inbox)

    @property
    def silent_s(self) -> float:
        """Seconds since the node was last heard from; infinity without a connection."""
        session = self._link.session
        return inf if session is None else self._link.now() - session.received_at

    @property
    def closed(self) -> bool:
        """Not open yet, closed here, or lost for good."""
        return "_link" not in self.__dict__ or self._link.error is not None

    @property
    def counts(self) -> Counts:
        """Counts since `connect`: connections, messages, duplicates."""
        return self._link.counts

    @property
    def streams(self) -> Streams:
        """The node's streams, over this connection. Needs the right to administer it."""
        from millpond.node.client.streams.streams import Streams  # few need it; it costs to load

        return Streams.over(self._link)

    @property
    def channels(self) -> Channels:
        """The node's channels by name, over this connection."""
        from millpond.node.client.channels import Channels, ChannelsConnection  # few need them

        return Channels.over(ChannelsConnection(self._link, self._join))

    async def put(
        self, data: bytes, *, ttl: int = 0, key: int | None = None, retry_for: float = 0.0
    ) -> Receipt:
        """Have the node keep `data` for `ttl` seconds (0: the channel's default).

        Returns the receipt, once the message is kept; waits while too much is in flight. `key` is
        the idempotency key of a retry by the caller; after a lost connection the put is repeated
        here, with one key. While the node is full, failing or asks to slow down, the put is retried
        for `retry_for` seconds. Raises RequestErrors, ConnectionLost and ClientClosed; TypeError
        and ValueError for arguments.
        """
        data = _bytes(data)
        if hook.active is None:
            return await self._put_untraced(data, ttl, key, retry_for)
        with hook.active.send(self.name, 1, len(data)) as span:
            receipt = await self._put_untraced(data, ttl, key, retry_for)
            span.sent(receipt.id)
        return receipt

    async def _put_untraced(
        self, data: bytes, ttl: int, key: int | None, retry_for: float
    ) -> Receipt:
        """The same without a span of its own."""
        if retry_for > 0:
            return await self._put_with_retries(data, ttl, self._key(key), retry_for)
        size = self._check(data, ttl)
        if not self._link.inflight.limit.acquire_nowait(size):
            await self._link.inflight.limit.acquire(size)
        return await self._put(data, ttl, key, size)

    def put_nowait(
        self, data: bytes, *, ttl: int = 0, key: int | None = None
    ) -> ReplyFuture[Receipt]:
        """Send without waiting; the future of the receipt. See `put`.

        Raises anyio.WouldBlock when too much is in flight.
        """
        data = _bytes(data)
        if hook.active is None:
            return self._put_nowait_untraced(data, ttl, key)
        span = hook.active.begin_send(self.name, 1, len(data))
        try:
            future = self._put_nowait_untraced(data, ttl, key)
        except BaseException as error:
            span.end(None, error)
            raise
        future.observe(
            lambda receipt, error: span.end(None if receipt is None else receipt.id, error)
        )
        return future

    def _put_nowait_untraced(
        self, data: bytes, ttl: int = 0, key: int | None = None
    ) -> ReplyFuture[Receipt]:
        """The same without a span of its own."""
        size = self._check(data, ttl)
        if not self._link.inflight.limit.acquire_nowait(size):
            raise anyio.WouldBlock
        return self._put(data, ttl, key, size)

    async def ask(self, data: bytes, timeout_s: float = 10.0) -> bytes:
        """Put a question, and wait for its answer at most `timeout_s` seconds; TimeoutError then.

        A connection that receives in the channel answers, with `Message.reply`; in queue mode one
        of them gets the question, else all do, and the first answer counts. A client that asks does
        best as a `producer`, so that it is not asked itself. The first question opens a second
        connection, to a mailbox of this client, `NAME/r/...`. Raises NoListener where no other
        connection receives in the channel, AskFailed for an answer that says so, and RequestErrors.
        """
        data = _bytes(data)
        self._check_open()
        if not data:
            raise EmptyData
        if hook.active is None:
            return await self._answers.ask(data, timeout_s, {})
        with hook.active.send(self.name, 1, len(data)) as span:
            return await self._answers.ask(data, timeout_s, span.carrier)

    async def receive(self, timeout_s: float | None = None) -> Message:
        """The next message; TimeoutError after `timeout_s` seconds without any."""
        delivery = self._link.inbox.take_nowait()
        if delivery is None and timeout_s is None:
            delivery = await self._link.inbox.take()
        elif delivery is None:
            with anyio.fail_after(timeout_s):
                delivery = await self._link.inbox.take()
        return Message(delivery, self, self._link)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except ClientClosed:
            raise StopAsyncIteration from None

    async def get(self, message_id: int) -> bytes:
        """The data of a message that is kept; `ack` is still to do. Raises NotFound."""
        message_id = _number(message_id, U64_MAX, "an id")
        self._check_open()
        packet, reply = self._link.inflight.get(message_id)
        if packet:
            self._link.send(packet, at_once=True)
        return await reply.wait()

    async def list(self, start: int = 0, end: int = 0, limit: int = 0) -> Ids:
        """Ids from `start` to `end`, both included, at most `limit` (0: the node's page).

        `end` 0 is no end; `start` above `end` lists the newest first, as does the highest id.
        """
        start, end = _number(start, U64_MAX, "start"), _number(end, U64_MAX, "end")
        limit = _number(limit, LIST_LIMIT_MAX, "limit")
        self._check_open()
        packet, reply = self._link.inflight.list_ids(start, end, limit)
        self._link.send(packet, at_once=True)
        return await reply.wait()

    async def ids(self, start: int = 0, end: int = 0) -> AsyncIterator[int]:
        """All ids from `start` to `end`, read page by page; order and ends as in `list`."""
        newest_first = start > end > 0 or (start == U64_MAX and end == 0)
        if newest_first:
            end = max(end, 1)
        while page := await self.list(start, end):
            for message_id in page:
                yield message_id
            last = page[-1]
            if last == end or last == (0 if newest_first else U64_MAX):
                return
            start = last - 1 if newest_first else last + 1

    async def ack(self, message_id: int) -> None:
        """Let the node forget a message, pushed or not."""
        message_id = _number(message_id, U64_MAX, "an id")
        self._check_open()
        self._link.ack(message_id)

    async def credit(self, count: int) -> None:
        """Let the node push `count` more messages ahead of their acknowledgements.

        0: push again, after a job was returned.
        """
        if not 0 <= index(count) <= CREDIT_MAX:
            raise ValueError(f"credit must be within 0..{CREDIT_MAX}")
        session = await self._link.live()
        if not session.negotiated(CREDIT):
            raise NotNegotiated
        self._link.credit(count)

    async def ping(self) -> float:
        """The round trip to the node in seconds."""
        self._check_open()
        packet, reply = self._link.inflight.ping(self._link.now())
        self._link.send(packet, at_once=True)
        return await reply.wait()

    async def admin(self, operation: int, body: Mapping[str, object]) -> dict[str, object]:
        """Request an operation of the node itself (docs/reference/wire-protocol.md); needs the
        right to administer it.

        Waits while too many are under way. Raises RequestErrors, DataTooLarge among them;
        OutcomeUnknown when the connection ends before the reply.
        """
        return await self._operation(ADMIN, self._link.inflight.admin, operation, body)

    async def peers(self, operation: int, body: Mapping[str, object]) -> dict[str, object]:
        """Request an operation on peers (docs/reference/wire-protocol.md); else as `admin`."""
        return await self._operation(PEERS, self._link.inflight.peers, operation, body)

    async def jobs(self, operation: int, body: Mapping[str, object]) -> dict[str, object]:
        """Request an operation on the jobs of this channel; else as `admin`.

        Raises NotAQueue where the channel is not in queue mode.
        """
        return await self._operation(JOBS, self._link.inflight.jobs, operation, body)

    async def _reply(self, to: ReplyTo, update: JobUpdate) -> None:
        self._check_open()
        name = self.name.encode() if isinstance(self.name, str) else self.name
        await answer(self._link, self._keys, name, to, update)

    async def flush(self, timeout_s: float = DRAIN_S) -> None:
        """Wait until every put is answered, at most `timeout_s` seconds."""
        await self._link.drain(timeout_s)

    async def _operation(
        self, packet_type: int, request: Request, operation: int, body: Mapping[str, object]
    ) -> dict[str, object]:
        operation = _number(operation, OPERATION_MAX, "operation")
        data = msgspec.msgpack.encode(body)
        reply = await send_operation(self._link, packet_type, request, operation, data)
        return msgspec.msgpack.decode(reply, type=dict[str, object])

    def _check_open(self) -> None:
        self._link.check_open()

    def _check(self, data: bytes, ttl: int) -> int:
        self._check_open()
        if not data:
            raise EmptyData
        _number(ttl, TTL_MAX, "ttl")
        size = PUT_BYTES + len(data)
        self._check_size(size)
        return size

    def _check_size(self, size: int) -> None:
        if size > self._link.packet_max:
            raise DataTooLarge(f"the node takes packets of {self._link.packet_max} bytes at most")

    def _key(self, key: int | None) -> int:
        if key is None:
            key = self._keys.next()
            while key in self._link.inflight:
                key = self._keys.next()
            return key
        return _number(key, KEYS - 1, "a key")

    def _put(self, data: bytes, ttl: int, key: int | None, size: int) -> ReplyFuture[Receipt]:
        """Send a put whose `size` was acquired; it is released here if the put is not sent."""
        link = self._link
        is_taken = False
        try:
            self._check_open()
            packet, reply = link.inflight.put(Put(self._key(key), ttl, data))
            is_taken = True
        finally:
            if not is_taken:
                link.inflight.limit.release(size)
        if packet:
            # Alone in flight, it gains nothing by waiting for others of this pass of the loop. But
            # where the last read brought several receipts, their tasks are about to put again.
            is_alone = link.inflight.limit.count == 1 and link.inflight.receipts <= 1
            link.send(packet, at_once=is_alone)
        return reply

    async def _put_with_retries(self, data: bytes, ttl: int, key: int, retry_for: float) -> Receipt:
        budget = RetryBudget(retry_for, self._rng, self._link.now)
        while True:
            try:
                return await self._put_untraced(data, ttl, key, 0.0)
            except RETRYABLE as error:
                await budget.wait(error)


def join_of(channel: Channel) -> Join:
    """The function of an open channel that makes clients of others."""
    return channel._join  # noqa: SLF001  its own module


def acknowledge_now(message: Message) -> None:
    """`Message.ack` without a span, for a message whose connection is live."""
    message._settled = True  # noqa: SLF001  its own module
    message._link.ack(message.id)  # noqa: SLF001


def settle_untraced(message: Message) -> None:
    """Settle the message without a span: the caller has one."""
    message._untraced = True  # noqa: SLF001  its own module


def put_untraced(
    channel: Channel, data: bytes, ttl: int, retry_for: float
) -> Coroutine[Any, Any, Receipt]:
    """`Channel.put` without a span: the caller has one."""
    return channel._put_untraced(data, ttl, None, retry_for)  # noqa: SLF001  its own module


def link_of(channel: Channel) -> Link:
    """The connections of an open channel."""
    return channel._link  # noqa: SLF001  its own module


def _number(value: int, most: int, name: str) -> int:
    """`value` as it fits the wire. Raises TypeError and ValueError."""
    number = index(value)
    if not 0 <= number <= most:
        raise ValueError(f"{name} must be within 0..{most}, not {number}")
    return number


def _bytes(data: Data) -> bytes:
    """A copy, unless it is immutable. Raises TypeError where there are no bytes."""
    return data if isinstance(data, bytes) else as_bytes(data)
