"""Requests in flight: they wait for their replies, over any number of connections.

PUTs are matched by key, GETs, TOUCHes and operations by id, LISTs and PINGs by order (PA-27).
Requests that a lost connection leaves unanswered are sent again, oldest first. Those that must not
be done twice fail with OutcomeUnknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from millpond.actors.errors import DataTooLarge, KeyReused, LeaseLost, OutcomeUnknown, RequestError
from millpond.actors.messages import Durability, Get, GetAck, List, Put, PutAck, Touch, TouchAck
from millpond.node.client.flow_limit import FlowLimit
from millpond.node.client.future import ReplyFuture
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.nacks import correlation_number, decode_refused
from millpond.transports.p2p.packets import (
    Admin,
    AdminReply,
    Jobs,
    JobsReply,
    Peers,
    PeersReply,
    Ping,
    Refused,
    encode,
)
from millpond.transports.p2p.streams.operations import REPEATABLE, Operation

T = TypeVar("T")

REQUEST_IDS = 2**32
OPERATIONS_MAX = 512
CHANNEL_REQUESTS_MAX = 64
"""Requests about channels by name; a node refuses more."""
"""Operations about the node, peers and jobs under way; a node answers no more at a time."""
OPERATIONS_BYTES_MAX = 8 * 2**20


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """A message is kept under `id` for `ttl` seconds, as durably as `durability` says.

    A peer without the handshake promises nothing more than MEMORY.
    """

    id: int
    ttl: int
    key: int
    durability: Durability


class _Put:
    __slots__ = ("future", "packet")

    def __init__(self, packet: bytes) -> None:
        self.packet = packet
        self.future: ReplyFuture[Receipt] = ReplyFuture()


class _Operation:
    __slots__ = ("future", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.future: ReplyFuture[bytes] = ReplyFuture()


class _List:
    __slots__ = ("future", "packet")

    def __init__(self, packet: bytes) -> None:
        self.packet = packet
        self.future: ReplyFuture[list[int]] = ReplyFuture()


class _Ping:
    __slots__ = ("future", "sent_at")

    def __init__(self, sent_at: float) -> None:
        self.sent_at = sent_at
        self.future: ReplyFuture[float] = ReplyFuture()


REQUESTS_MAX, WAITING_MAX = 64, 48
"""Stream requests at once, and blocking reads among them: the others are not held up."""
REQUESTS_BYTES_MAX = 8 * 2**20
ANSWER_BYTES_MAX = 32 * 2**20


class _StreamRequest:
    __slots__ = ("future", "operation", "packet", "parts")

    def __init__(self, operation: Operation, packet: bytes) -> None:
        self.operation = operation
        self.packet = packet
        self.parts = bytearray()
        self.future: ReplyFuture[bytes] = ReplyFuture()


class PendingStreamRequests:
    """Stream requests in flight, at most as many as a node answers at a time.

    Each has acquired `limit`, and a blocking read one of `waiting_limit` before.
    """

    def __init__(self) -> None:
        self.limit = FlowLimit(REQUESTS_MAX, REQUESTS_BYTES_MAX)
        self.waiting_limit = FlowLimit(WAITING_MAX, WAITING_MAX)
        self._pending: dict[int, _StreamRequest] = {}
        self._number = 0

    @property
    def has_unrepeatable(self) -> bool:
        """A request is in flight that must not be repeated."""
        return any(pending.operation not in REPEATABLE for pending in self._pending.values())

    def add(self, operation: Operation, body: bytes) -> tuple[int, bytes, ReplyFuture[bytes]]:
        """The request's number, its packet, and the future of its reply.

        The packet's size must have been acquired from `limit`; the reply releases it.
        """
        number = self._number = (self._number + 1) % REQUEST_IDS
        packet = p.encode(p.Stream(number, operation, body))
        pending = self._pending[number] = _StreamRequest(operation, packet)
        return number, packet, pending.future

    def cancel(self, number: int) -> bytes:
        """Cancel a read that no task waits for any more. Returns the packet for that."""
        self._pop(number)
        return p.encode(p.Stream(number, Operation.CANCEL, b""))

    def replied(self, reply: p.StreamReply) -> None:
        """Take a reply, or a part of one."""
        pending = self._pending.get(reply.request_id)
        if pending is None:
            return
        if len(pending.parts) + len(reply.body) > ANSWER_BYTES_MAX:
            self._pop(reply.request_id)
            pending.future.fail(RequestError("the node's reply is too large"))
        elif reply.operation & p.MORE:
            pending.parts += reply.body
        else:
            self._pop(reply.request_id)
            pending.future.resolve(bytes(pending.parts) + reply.body)

    def refused(self, number: int | None) -> ReplyFuture[bytes] | None:
        """The future of a request that the node refuses; without a number, of the oldest."""
        if number is None:
            number = next(iter(self._pending), None)
        pending = None if number is None else self._pop(number)
        return None if pending is None else pending.future

    def lost(self) -> None:
        """The connection ended: requests that must not be repeated fail."""
        for number, pending in list(self._pending.items()):
            pending.parts.clear()
            if pending.future.abandoned:
                self._pop(number)
            elif pending.operation not in REPEATABLE:
                self._pop(number)
                text = "the connection ended before the reply: the request was done or not"
                pending.future.fail(OutcomeUnknown(text))

    def packets(self) -> Iterator[bytes]:
        """The requests to send again on a new connection."""
        for number, pending in list(self._pending.items()):
            if pending.future.abandoned:
                self._pop(number)
            else:
                yield pending.packet

    def fail(self, error: Exception) -> None:
        """No reply will come any more."""
        for number, pending in list(self._pending.items()):
            self._pop(number)
            pending.future.fail(error)

    def _pop(self, number: int) -> _StreamRequest | None:
        pending = self._pending.pop(number, None)
        if pending is not None:
            self.limit.release(len(pending.packet))
        return pending


class InFlight:
    """The table of requests in flight. A method that adds one returns its packet and its future.

    `limit` bounds PUTs, `operations_limit` operations; `streams` has requests about streams.
    """

    def __init__(self, limit: FlowLimit) -> None:
        self.limit = limit
        self.operations_limit = FlowLimit(OPERATIONS_MAX, OPERATIONS_BYTES_MAX)
        self.channels_limit = FlowLimit(CHANNEL_REQUESTS_MAX, OPERATIONS_BYTES_MAX)
        self.streams = PendingStreamRequests()
        self.durability = Durability.MEMORY
        self.receipts = 0
        """Receipts of the last read."""
        self._puts: dict[int, _Put] = {}
        self._gets: dict[int, ReplyFuture[bytes]] = {}
        self._lists: deque[_List] = deque()
        self._touches: dict[int, deque[ReplyFuture[float]]] = {}
        self.on_lease_lost: Callable[[int], None] | None = None
        """Called with the id of a message whose lease the node ended."""
        self._operations: dict[int, _Operation] = {}
        self._pings: deque[_Ping] = deque()
        self._request_id = 0

    def promise(self, durability: Durability) -> None:
        """Receipts of the present connection promise this."""
        self.durability = durability

    def begin_read(self) -> None:
        """A read begins: `receipts` counts those that it brings."""
        self.receipts = 0

    def __contains__(self, key: int) -> bool:
        return key in self._puts

    def put(self, put: Put) -> tuple[bytes, ReplyFuture[Receipt]]:
        """Add a PUT. Its size must have been acquired from `limit`; the reply releases it.

        The same key with the same bytes joins the request in flight. With other bytes the two
        receipts could not be told apart: KeyReused is raised, and the caller releases the size.
        """
        packet = encode(put)
        if (pending := self._puts.get(put.key)) is not None:
            if pending.packet != packet:
                raise KeyReused
            self.limit.release(len(packet))
            return b"", pending.future
        pending = self._puts[put.key] = _Put(packet)
        return packet, pending.future

    def get(self, message_id: int) -> tuple[bytes, ReplyFuture[bytes]]:
        """GETs of one message share one request."""
        if (future := self._gets.get(message_id)) is not None:
            return b"", future
        packet = encode(Get(message_id))
        future = self._gets[message_id] = ReplyFuture()
        return packet, future

    def list_ids(self, start: int, end: int, limit: int) -> tuple[bytes, ReplyFuture[list[int]]]:
        pending = _List(encode(List(limit, start, end)))
        self._lists.append(pending)
        return pending.packet, pending.future

    def touch(self, message_id: int, ms: int) -> tuple[bytes, ReplyFuture[float]]:
        """The reply is the lease in seconds. TOUCHes of one message are answered in order."""
        future: ReplyFuture[float] = ReplyFuture()
        self._touches.setdefault(message_id, deque()).append(future)
        return encode(Touch(message_id, ms)), future

    def admin(self, operation: int, body: bytes) -> tuple[bytes, ReplyFuture[bytes]]:
        """Add an operation whose size was acquired from `operations_limit`."""
        return self._operation(Admin(self._next_id(), operation, body))

    def peers(self, operation: int, body: bytes) -> tuple[bytes, ReplyFuture[bytes]]:
        return self._operation(Peers(self._next_id(), operation, body))

    def jobs(self, operation: int, body: bytes) -> tuple[bytes, ReplyFuture[bytes]]:
        return self._operation(Jobs(self._next_id(), operation, body))

    def _operation(self, request: Admin | Peers | Jobs) -> tuple[bytes, ReplyFuture[bytes]]:
        packet = encode(request)
        pending = self._operations[request.request_id] = _Operation(len(packet))
        return packet, pending.future

    def _next_id(self) -> int:
        self._request_id = (self._request_id + 1) % REQUEST_IDS
        return self._request_id

    def ping(self, now: float, *, is_awaited: bool = True) -> tuple[bytes, ReplyFuture[float]]:
        """The reply is the round trip in seconds. Not `is_awaited`: it is not sent again."""
        pending = _Ping(now)
        pending.future.abandoned = not is_awaited
        self._pings.append(pending)
        return encode(Ping(None)), pending.future

    def put_acked(self, ack: PutAck) -> None:
        if (pending := self._puts.pop(ack.key, None)) is not None:
            self.limit.release(len(pending.packet))
            self.receipts += 1
            pending.future.resolve(Receipt(ack.id, ack.ttl, ack.key, self.durability))

    def get_acked(self, ack: GetAck) -> None:
        if (future := self._gets.pop(ack.id, None)) is not None:
            future.resolve(ack.data)

    def list_acked(self, ids: list[int]) -> None:
        if self._lists:
            self._lists.popleft().future.resolve(ids)

    def touch_acked(self, ack: TouchAck) -> None:
        if (future := self._answered_touch(ack.id)) is not None:
            future.resolve(ack.ms / 1000)

    def _answered_touch(self, message_id: int | None) -> ReplyFuture[float] | None:
        """The TOUCH that an answer is for; without an id, that of the oldest message."""
        if message_id is None:
            message_id = next(iter(self._touches), None)
        futures = None if message_id is None else self._touches.get(message_id)
        if message_id is None or futures is None:
            return None
        future = futures.popleft()
        if not futures:
            del self._touches[message_id]
        return future

    def _fail_touches(self, error: Exception) -> None:
        for futures in self._touches.values():
            for future in futures:
                future.fail(error)
        self._touches.clear()

    def operation_replied(self, reply: AdminReply | PeersReply | JobsReply) -> None:
        if (pending := self._operations.pop(reply.request_id, None)) is not None:
            self.operations_limit.release(pending.size)
            pending.future.resolve(reply.body)

    def ponged(self, now: float) -> None:
        """A PONG without a PING is ignored (PA-28)."""
        if self._pings:
            pending = self._pings.popleft()
            pending.future.resolve(now - pending.sent_at)

    def refused(self, refused: Refused) -> None:
        """A NACK fails the request it names; without correlation, the oldest of its type. That of a
        TOUCH that nobody sent tells that a lease has ended."""
        if (future := self._refused_future(refused)) is not None:
            future.fail(decode_refused(refused))
        elif refused.packet_type == p.TOUCH and self.on_lease_lost is not None:
            if (message_id := correlation_number(refused)) is not None:
                self.on_lease_lost(message_id)

    def lost(self) -> None:
        """The connection ended: its leases are lost, and operations are not repeated."""
        self._fail_touches(LeaseLost("the connection that held the lease ended"))
        self._fail_operations(OutcomeUnknown("the connection ended before the reply came"))
        self.streams.lost()
        self._forget_abandoned()

    def packets(self, now: float, packet_max: int) -> Iterator[bytes]:
        """The requests to send again on a new connection: first PUTs with their keys, in order.

        Requests that no task waits for are left out. A PUT above `packet_max` fails with
        DataTooLarge.
        """
        self._forget_abandoned()
        for key, put in list(self._puts.items()):
            if len(put.packet) <= packet_max:
                yield put.packet
            else:
                self.limit.release(len(self._puts.pop(key).packet))
                put.future.fail(DataTooLarge())
        for message_id in self._gets:
            yield encode(Get(message_id))
        for pending in self._lists:
            yield pending.packet
        for ping in self._pings:
            ping.sent_at = now
            yield encode(Ping(None))
        yield from self.streams.packets()

    def fail(self, error: Exception) -> None:
        """No reply will come any more."""
        for put in self._puts.values():
            put.future.fail(error)
            self.limit.release(len(put.packet))
        self._puts.clear()
        _fail(self._gets, error)
        self._fail_touches(error)
        self._fail_operations(error)
        self.streams.fail(error)
        while self._lists:
            self._lists.popleft().future.fail(error)
        while self._pings:
            self._pings.popleft().future.fail(error)

    def _fail_operations(self, error: Exception) -> None:
        pending = list(self._operations.values())
        self._operations.clear()
        for each in pending:
            self.operations_limit.release(each.size)
            each.future.fail(error)

    def _forget_abandoned(self) -> None:
        """Only between connections: on a live one the replies still come, in order."""
        for key in [key for key, put in self._puts.items() if put.future.abandoned]:
            self.limit.release(len(self._puts.pop(key).packet))
        for key in [key for key, future in self._gets.items() if future.abandoned]:
            del self._gets[key]
        self._lists = deque(pending for pending in self._lists if not pending.future.abandoned)
        self._pings = deque(pending for pending in self._pings if not pending.future.abandoned)

    def _refused_future(
        self, refused: Refused
    ) -> (
        ReplyFuture[Receipt]
        | ReplyFuture[bytes]
        | ReplyFuture[list[int]]
        | ReplyFuture[float]
        | None
    ):
        match refused.packet_type:
            case p.PUT:
                put = _named(self._puts, refused)
                if put is None:
                    return None
                self.limit.release(len(put.packet))
                return put.future
            case p.GET:
                return _named(self._gets, refused)
            case p.LIST:
                return self._lists.popleft().future if self._lists else None
            case p.TOUCH:
                return self._answered_touch(correlation_number(refused))
            case p.ADMIN | p.PEERS | p.JOBS:
                operation = _named(self._operations, refused)
                if operation is None:
                    return None
                self.operations_limit.release(operation.size)
                return operation.future
            case p.STREAM:
                return self.streams.refused(correlation_number(refused))
            case _:
                return None


def _named(pending: dict[int, T], refused: Refused) -> T | None:
    number = correlation_number(refused)
    if number is not None:
        return pending.pop(number, None)
    return pending.pop(next(iter(pending))) if pending else None


def _fail(pending: dict[int, ReplyFuture[T]], error: Exception) -> None:
    for future in pending.values():
        future.fail(error)
    pending.clear()
