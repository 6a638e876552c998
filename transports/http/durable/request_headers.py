"""Headers and query of requests for Durable Streams. Everything here raises DurableError (400)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from typing import Literal

import msgspec

from millpond.actors.streams.durable.messages import Lifetime, Producer
from millpond.transports.http.durable import protocol
from millpond.transports.http.durable.errors import bad_request
from millpond.transports.http.durable.offsets import minted_sequence_of, sequence_of
from millpond.transports.http.request import HasHeaders, Request

_DECIMAL = re.compile(rb"0|[1-9][0-9]*")
_DIGITS = re.compile(rb"[0-9]+")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


class Live(Enum):
    """The live mode of a read."""

    NO = ""
    LONG_POLL = "long-poll"
    EVENTS = "sse"


Start = int | Literal["now"] | None
"""The start of a read: a sequence, the tail, or the oldest record (None)."""


class ReadQuery(msgspec.Struct, frozen=True, gc=False):
    """A read's query."""

    start: Start
    live: Live
    cursor: str | None


def read_query(pairs: Sequence[tuple[str, str]]) -> ReadQuery:
    """The query of a GET."""
    offsets = [value for name, value in pairs if name == "offset"]
    values = dict(pairs)
    if len(offsets) > 1:
        raise bad_request("offset: given more than once")
    try:
        live = Live(values.get("live", ""))
    except ValueError:
        raise bad_request("live: expected long-poll or sse") from None
    if live is not Live.NO and not offsets:
        raise bad_request("offset: required for a live read")
    return ReadQuery(_start(offsets[0]) if offsets else None, live, values.get("cursor"))


def _start(offset: str) -> Start:
    if offset == "-1":
        return None
    if offset == "now":
        return "now"
    sequence = sequence_of(offset)
    if sequence is None:
        raise bad_request("offset: expected -1, now, or an offset from a response")
    return sequence


def is_closing(request: HasHeaders) -> bool:
    """True if the request closes the stream; only `true` counts."""
    return (request.header(protocol.CLOSED) or b"").strip().lower() == protocol.TRUE


def lifetime(request: Request) -> Lifetime | None:
    """The lifetime of a new stream; None: it is not given."""
    ttl, expires = request.header(protocol.TTL), request.header(protocol.EXPIRES_AT)
    if ttl is not None and expires is not None:
        raise bad_request("Stream-TTL or Stream-Expires-At, not both")
    if ttl is not None:
        return Lifetime(_decimal(ttl, "Stream-TTL"))
    if expires is not None:
        return Lifetime(None, _time_ms(expires), expires)
    return None


def _decimal(value: bytes, name: str) -> int:
    if not _DECIMAL.fullmatch(value) or len(value) > 16 or int(value) > protocol.NUMBER_MAX:
        raise bad_request(f"{name}: expected a whole number")
    return int(value)


def _time_ms(value: bytes) -> int:
    found = _TIME.fullmatch(value.decode("latin-1"))
    try:
        if found is not None:
            base, fraction, zone = found.groups()
            moment = datetime.fromisoformat(f"{base.upper()}{zone.upper().replace('Z', '+00:00')}")
            return int(moment.timestamp()) * 1000 + int(((fraction or "") + "000")[:3])
    except (ValueError, OverflowError):
        pass
    raise bad_request("Stream-Expires-At: expected a time of RFC 3339 with a time zone")


def stream_seq(request: HasHeaders) -> bytes | None:
    """`Stream-Seq`."""
    value = request.header(protocol.SEQ)
    if value is not None and len(value) > protocol.TOKEN_BYTES_MAX:
        raise bad_request(f"Stream-Seq: at most {protocol.TOKEN_BYTES_MAX} bytes")
    return value


def producer(request: HasHeaders) -> Producer | None:
    """The producer of an append; None: it is not given."""
    names = (protocol.PRODUCER_ID, protocol.PRODUCER_EPOCH, protocol.PRODUCER_SEQ)
    name, epoch, seq = (request.header(each) for each in names)
    if name is None and epoch is None and seq is None:
        return None
    if name is None or epoch is None or seq is None:
        raise bad_request("Producer-Id, Producer-Epoch and Producer-Seq: all or none")
    if not 0 < len(name) <= protocol.TOKEN_BYTES_MAX:
        raise bad_request(f"Producer-Id: 1 to {protocol.TOKEN_BYTES_MAX} bytes")
    return Producer(name, _number(epoch, "Producer-Epoch"), _number(seq, "Producer-Seq"))


def _number(value: bytes, name: str) -> int:
    if not _DIGITS.fullmatch(value) or len(value) > 32 or int(value) > protocol.NUMBER_MAX:
        raise bad_request(f"{name}: expected a number up to {protocol.NUMBER_MAX}")
    return int(value)


class ForkHeaders(msgspec.Struct, frozen=True, gc=False):
    """The source of a fork: its path, and the offset in it."""

    path: bytes
    at: int | None
    sub: int


def fork(request: Request) -> ForkHeaders | None:
    """The source of a fork; None: the request is not for a fork."""
    path, offset, sub = (
        request.header(each)
        for each in (protocol.FORKED_FROM, protocol.FORK_OFFSET, protocol.FORK_SUB_OFFSET)
    )
    if path is None or not path.strip():
        if offset is not None or sub is not None:
            raise bad_request("Stream-Fork-Offset requires Stream-Forked-From")
        return None
    at = None
    if offset is not None:
        at = minted_sequence_of(offset.decode("latin-1"))
        if at is None:
            raise bad_request("Stream-Fork-Offset: expected an offset from a response")
    behind = 0 if sub is None else _decimal(sub, "Stream-Fork-Sub-Offset")
    if behind and at is None:
        raise bad_request("Stream-Fork-Sub-Offset requires Stream-Fork-Offset")
    return ForkHeaders(path.strip(), at, behind)
