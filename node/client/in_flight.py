"""Requests that wait for their answers. The table outlives any one connection.

PUTs are matched by key, GETs, TOUCHes and administration by their id, LISTs and PINGs by order
(PA-27). What a lost connection left unanswered is either sent again, oldest first, or, where that
could do harm, told so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from millpond.actors.errors import DataTooLarge, KeyReused, LeaseLost, OutcomeUnknown, RequestError
from millpond.actors.messages import Durability, Get, GetAck, List, Put, PutAck, Touch, TouchAck
from millpond.node.client.flow_limit import FlowLimit
from millpond.node.client.future import ReplyFuture
from millpond.transports.p2p import packets as p
from millpond.transports.p2p import packets as wire
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
"""About the node, peers and jobs, at once; a node answers more than that to nobody."""
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
    __slots__ = ("answer", "packet")

    def __init__(self, packet: bytes) -> None:
        self.packet = packet
        self.answer: ReplyFuture[Receipt] = ReplyFuture()


class _Operation:
    __slots__ = ("answer", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.answer: ReplyFuture[bytes] = ReplyFuture()


class _List:
    __slots__ = ("answer", "packet")

    def __init__(self, packet: bytes) -> None:
        self.packet = packet
        self.answer: ReplyFuture[list[int]] = ReplyFuture()


class _Ping:
    __slots__ = ("answer", "sent_at")

    def __init__(self, sent_at: float) -> None:
        self.sent_at = sent_at
        self.answer: ReplyFuture[float] = ReplyFuture()


REQUESTS_MAX, WAITING_MAX = 64, 48
"""Under way at once, reads that wait among them: those leave room for what is done at once."""
REQUESTS_BYTES_MAX = 8 * 2**20
ANSWER_BYTES_MAX = 32 * 2**20
REQUEST_IDS = 2**32


class _Pending:
    __slots__ = ("answer", "operation", "packet", "parts")

    def __init__(self, operation: Operation, packet: bytes) -> None:
        self.operation = operation
        self.packet = packet
        self.parts = bytearray()
        self.answer: ReplyFuture[bytes] = ReplyFuture()


class PendingStreamRequests:
    """At most as many requests at a time as a node answers: each has taken `room`, and a read that
    waits has taken one place of `waiting` before."""

    def __init__(self) -> None:
        self.room = FlowLimit(REQUESTS_MAX, REQUESTS_BYTES_MAX)
        self.waiting = FlowLimit(WAITING_MAX, WAITING_MAX)
        self._pending: dict[int, _Pending] = {}
        self._number = 0

    @property
    def is_owed(self) -> bool:
        """Something is not answered that must not be asked twice."""
        return any(pending.operation not in REPEATABLE for pending in self._pending.values())

    def add(self, operation: Operation, body: bytes) -> tuple[int, bytes, ReplyFuture[bytes]]:
        """The request's number, its packet, and its answer.

        Room for the packet must have been taken; it is given back with the answer.
        """
        number = self._number = (self._number + 1) % REQUEST_IDS
        packet = p.encode(p.Stream(number, operation, body))
        pending = self._pending[number] = _Pending(operation, packet)
        return number, packet, pending.answer

    def give_up(self, number: int) -> bytes:
        """Nobody waits for this read any more: the packet that says so."""
        self._pop(number)
        return p.encode(p.Stream(number, Operation.CANCEL, b""))

    def answered(self, reply: p.StreamReply) -> None:
        """Take an answer, or a part of one."""
        pending = self._pending.get(reply.request_id)
        if pending is None:
            return
        if len(pending.parts) + len(reply.body) > ANSWER_BYTES_MAX:
            self._pop(reply.request_id)
            pending.answer.fail(RequestError("the node's answer is too large"))
        elif reply.operation & p.MORE:
            pending.parts += reply.body
        else:
            self._pop(reply.request_id)
            pending.answer.resolve(bytes(pending.parts) + reply.body)

    def refused(self, number: int | None) -> ReplyFuture[bytes] | None:
        """The answer to a request that the node refuses; without a number, to the oldest."""
        if number is None:
            number = next(iter(self._pending), None)
        pending = None if number is None else self._pop(number)
        return None if pending is None else pending.answer

    def lost(self) -> None:
        """The connection ended: only what may be asked twice is asked again."""
        for number, pending in list(self._pending.items()):
            pending.parts.clear()
            if pending.answer.abandoned:
                self._pop(number)
            elif pending.operation not in REPEATABLE:
                self._pop(number)
                text = "the connection ended before the answer came: it was done, or not"
                pending.answer.fail(OutcomeUnknown(text))

    def packets(self) -> Iterator[bytes]:
        """What a new connection has to be asked again."""
        for number, pending in list(self._pending.items()):
            if pending.answer.abandoned:
                self._pop(number)
            else:
                yield pending.packet

    def fail(self, error: Exception) -> None:
        """Nothing will be answered any more."""
        for number, pending in list(self._pending.items()):
            self._pop(number)
            pending.answer.fail(error)

    def _pop(self, number: int) -> _Pending | None:
        pending = self._pending.pop(number, None)
        if pending is not None:
            self.room.release(len(pending.packet))
        return pending


class InFlight:
    """Every method that adds a request returns its packet and its answer, in this order."""

    def __init__(self, room: FlowLimit) -> None:
        self.room = room
        self.operations = FlowLimit(OPERATIONS_MAX, OPERATIONS_BYTES_MAX)
        self.streams = PendingStreamRequests()
        self.durability = Durability.MEMORY
        self.receipts = 0
        """So many came with the last read."""
        self._puts: dict[int, _Put] = {}
        self._gets: dict[int, ReplyFuture[bytes]] = {}
        self._lists: deque[_List] = deque()
        self._touches: dict[int, ReplyFuture[float]] = {}
        self._operations: dict[int, _Operation] = {}
        self._pings: deque[_Ping] = deque()
        self._request_id = 0

    def __contains__(self, key: int) -> bool:
        return key in self._puts

    def put(self, put: Put) -> tuple[bytes, ReplyFuture[Receipt]]:
        """Room for `len(packet)` bytes must have been taken; it is given back with the answer.

        The same key with the same bytes joins the request that is in flight, and needs no room of
        its own; with other bytes the two answers could not be told apart, so it is `KeyReused` at
        once. Where this raises, the room is still the caller's to give back.
        """
        packet = encode(put)
        if (pending := self._puts.get(put.key)) is not None:
            if pending.packet != packet:
                raise KeyReused
            self.room.release(len(packet))
            return b"", pending.answer
        pending = self._puts[put.key] = _Put(packet)
        return packet, pending.answer

    def get(self, message_id: int) -> tuple[bytes, ReplyFuture[bytes]]:
        """GETs of one message share one request."""
        if (answer := self._gets.get(message_id)) is not None:
            return b"", answer
        packet = encode(Get(message_id))
        answer = self._gets[message_id] = ReplyFuture()
        return packet, answer

    def listing(self, start: int, end: int, limit: int) -> tuple[bytes, ReplyFuture[list[int]]]:
        pending = _List(encode(List(limit, start, end)))
        self._lists.append(pending)
        return pending.packet, pending.answer

    def touch(self, message_id: int, ms: int) -> tuple[bytes, ReplyFuture[float]]:
        """The answer is the lease in seconds; a later TOUCH of the same message takes over."""
        packet = encode(Touch(message_id, ms))
        return packet, self._touches.setdefault(message_id, ReplyFuture())

    def admin(self, operation: int, body: bytes) -> tuple[bytes, ReplyFuture[bytes]]:
        """Room for the packet was taken from `operations`, as for `peers` and `jobs`."""
        return self._operation(Admin(self._next_id(), operation, body))

    def peers(self, operation: int, body: bytes) -> tuple[bytes, ReplyFuture[bytes]]:
        return self._operation(Peers(self._next_id(), operation, body))

    def jobs(self, operation: int, body: bytes) -> tuple[bytes, ReplyFuture[bytes]]:
        return self._operation(Jobs(self._next_id(), operation, body))

    def _operation(self, request: Admin | Peers | Jobs) -> tuple[bytes, ReplyFuture[bytes]]:
        packet = encode(request)
        pending = self._operations[request.request_id] = _Operation(len(packet))
        return packet, pending.answer

    def _next_id(self) -> int:
        self._request_id = (self._request_id + 1) % REQUEST_IDS
        return self._request_id

    def ping(self, now: float) -> tuple[bytes, ReplyFuture[float]]:
        """The answer is the round trip in seconds."""
        pending = _Ping(now)
        self._pings.append(pending)
        return encode(Ping(None)), pending.answer

    def put_acked(self, ack: PutAck) -> None:
        if (pending := self._puts.pop(ack.key, None)) is not None:
            self.room.release(len(pending.packet))
            self.receipts += 1
            pending.answer.resolve(Receipt(ack.id, ack.ttl, ack.key, self.durability))

    def got(self, ack: GetAck) -> None:
        if (answer := self._gets.pop(ack.id, None)) is not None:
            answer.resolve(ack.data)

    def listed(self, ids: list[int]) -> None:
        if self._lists:
            self._lists.popleft().answer.resolve(ids)

    def touched(self, ack: TouchAck) -> None:
        if (answer := self._touches.pop(ack.id, None)) is not None:
            answer.resolve(ack.ms / 1000)

    def administered(self, reply: AdminReply | PeersReply | JobsReply) -> None:
        if (pending := self._operations.pop(reply.request_id, None)) is not None:
            self.operations.release(pending.size)
            pending.answer.resolve(reply.body)

    def ponged(self, now: float) -> None:
        """A PONG that nobody asked for is ignored (PA-28)."""
        if self._pings:
            pending = self._pings.popleft()
            pending.answer.resolve(now - pending.sent_at)

    def refused(self, refused: Refused) -> None:
        """A NACK fails the request it names; without correlation, the oldest of its type."""
        if (answer := self._refused_answer(refused)) is not None:
            answer.fail(decode_refused(refused))

    def lost(self) -> None:
        """The connection ended: leases are gone, and administration is not repeated blindly."""
        _fail(self._touches, LeaseLost("the connection that held the lease ended"))
        self._fail_operations(OutcomeUnknown("the connection ended before the answer came"))
        self.streams.lost()
        self._forget_abandoned()

    def packets(self, now: float, packet_max: int) -> Iterator[bytes]:
        """What a new connection has to be asked again: PUTs with their keys first, in order.

        What nobody waits for any more is left out. What this node would not take, and break off
        over, fails with `DataTooLarge`.
        """
        self._forget_abandoned()
        for key, put in list(self._puts.items()):
            if len(put.packet) <= packet_max:
                yield put.packet
            else:
                self.room.release(len(self._puts.pop(key).packet))
                put.answer.fail(DataTooLarge())
        for message_id in self._gets:
            yield encode(Get(message_id))
        for pending in self._lists:
            yield pending.packet
        for ping in self._pings:
            ping.sent_at = now
            yield encode(Ping(None))
        yield from self.streams.packets()

    def fail(self, error: Exception) -> None:
        """Nothing will be answered any more."""
        for put in self._puts.values():
            put.answer.fail(error)
            self.room.release(len(put.packet))
        self._puts.clear()
        _fail(self._gets, error)
        _fail(self._touches, error)
        self._fail_operations(error)
        self.streams.fail(error)
        while self._lists:
            self._lists.popleft().answer.fail(error)
        while self._pings:
            self._pings.popleft().answer.fail(error)

    def _fail_operations(self, error: Exception) -> None:
        pending = list(self._operations.values())
        self._operations.clear()
        for each in pending:
            self.operations.release(each.size)
            each.answer.fail(error)

    def _forget_abandoned(self) -> None:
        """Only between connections: on one that stands, the answers still come, in order."""
        for key in [key for key, put in self._puts.items() if put.answer.abandoned]:
            self.room.release(len(self._puts.pop(key).packet))
        for key in [key for key, answer in self._gets.items() if answer.abandoned]:
            del self._gets[key]
        self._lists = deque(pending for pending in self._lists if not pending.answer.abandoned)
        self._pings = deque(pending for pending in self._pings if not pending.answer.abandoned)

    def _refused_answer(
        self, refused: Refused
    ) -> (
        ReplyFuture[Receipt]
        | ReplyFuture[bytes]
        | ReplyFuture[list[int]]
        | ReplyFuture[float]
        | None
    ):
        match refused.packet_type:
            case wire.PUT:
                put = _named(self._puts, refused)
                if put is None:
                    return None
                self.room.release(len(put.packet))
                return put.answer
            case wire.GET:
                return _named(self._gets, refused)
            case wire.LIST:
                return self._lists.popleft().answer if self._lists else None
            case wire.TOUCH:
                return _named(self._touches, refused)
            case wire.ADMIN | wire.PEERS | wire.JOBS:
                operation = _named(self._operations, refused)
                if operation is None:
                    return None
                self.operations.release(operation.size)
                return operation.answer
            case wire.STREAM:
                return self.streams.refused(correlation_number(refused))
            case _:
                return None


def _named(pending: dict[int, T], refused: Refused) -> T | None:
    number = correlation_number(refused)
    if number is not None:
        return pending.pop(number, None)
    return pending.pop(next(iter(pending))) if pending else None


def _fail(pending: dict[int, ReplyFuture[T]], error: Exception) -> None:
    for answer in pending.values():
        answer.fail(error)
    pending.clear()
