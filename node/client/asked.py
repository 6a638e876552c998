"""Requests about streams that wait for their answers. The table outlives any one connection.

What a lost connection left unanswered is sent again where that does no harm; of the rest nobody
knows whether it was done.
"""

from __future__ import annotations

from collections.abc import Iterator

from millpond.actors.errors import OutcomeUnknown, RequestError
from millpond.node.client.flow_limit import FlowLimit
from millpond.node.client.future import ReplyFuture
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.streams.operations import REPEATABLE, Operation

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
            self.room.give(len(pending.packet))
        return pending
