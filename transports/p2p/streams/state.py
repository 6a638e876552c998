"""Requests about the state of a stream on packets 0x92, and the answers
(docs/reference/wire-protocol.md)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from millpond.actors.messages import StreamReply, StreamRequest
from millpond.actors.state import messages as s
from millpond.transports.p2p.bodies import read_body
from millpond.transports.p2p.streams.bodies import Limit, Name, Positive
from millpond.transports.p2p.streams.operations import Operation

READ_BYTES_MAX = 2**20


class StateBody(msgspec.Struct, frozen=True):
    """STATE."""

    stream: Name


class GetBody(msgspec.Struct, frozen=True):
    """STATE_GET."""

    stream: Name
    type: str
    key: str


class ShowBody(msgspec.Struct, frozen=True):
    """STATE_SHOW: of one type or all, behind a pair of type and key."""

    stream: Name
    type: str | None = None
    after: tuple[str, str] | None = None
    count: Limit = 1000
    bytes_max: Annotated[Positive, msgspec.Meta(le=READ_BYTES_MAX)] = 256 * 1024


class ValueBody(msgspec.Struct, frozen=True):
    """JSON as it was written, or nil."""

    position: int
    value: bytes | None


class ValuesBody(msgspec.Struct, frozen=True):
    """Rows of type, key and JSON; while there is `more`, ask again with the last one."""

    position: int
    rows: list[tuple[str, str, bytes]]
    more: bool


def state_request(number: int, operation: Operation, body: bytes) -> tuple[bytes, StreamRequest]:
    """The stream that a request is about, and what its state's cell is asked. Raises Malformed."""
    match operation:
        case Operation.STATE_GET:
            get = read_body(body, GetBody)
            return get.stream, s.GetValue(number, get.type, get.key)
        case Operation.STATE:
            return read_body(body, StateBody).stream, s.DescribeState(number)
        case _:
            raise AssertionError(f"{operation.name} is not about states")


def state_answer(reply: StreamReply) -> msgspec.Struct | None:
    """The body that answers; None: the reply is not a state's."""
    match reply:
        case s.Value():
            return ValueBody(reply.position, reply.value)
        case s.Values():
            return ValuesBody(reply.position, reply.rows, reply.more)
        case s.StateDescribed():
            return reply.info
        case _:
            return None
