"""States as JSON. Numbers of 64 bits are strings; values are as they were written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from millpond.actors.state.messages import StateDescribed, Value, Values
from millpond.transports.http.response import Response

_JSON = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))
_encode = msgspec.json.Encoder().encode
_COUNTS = ("changes", "controls", "resets", "snapshots", "unmatched", "missed", "bytes")


def response(content: object, status: int = 200) -> Response:
    """An answer that no cache keeps."""
    return Response(status, _JSON, _encode(content))


def described(name: bytes, reply: StateDescribed) -> dict[str, Any]:
    """A state by its counts."""
    info = reply.info
    return {
        "stream": name.decode("utf-8", "replace"),
        "position": str(info.position),
        "first": str(info.first),
        "types": info.types,
        "type_count": info.type_count,
        **{name: str(getattr(info, name)) for name in _COUNTS},
        "in_snapshot": info.in_snapshot,
        "rejected": info.rejected,
    }


def one_value(reply: Value) -> dict[str, Any]:
    """A value that is there."""
    return {"position": str(reply.position), "value": _value(reply.value or b"null")}


def values_of_type(reply: Values) -> dict[str, Any]:
    """Values of a type by their keys; behind the last one there may be `more`."""
    return {
        "position": str(reply.position),
        "values": {key: _value(value) for _, key, value in reply.rows},
        "more": reply.more,
    }


def rows(reply: Values, *, is_first: bool) -> bytes:
    """A part of the whole state, on one line."""
    table = [[kind, key, _value(value)] for kind, key, value in reply.rows]
    return _encode({"first": is_first, "rows": table})


def events(bodies: Iterable[bytes], position: int) -> bytes:
    """Events as they stand in the stream, on one line, and how far that is."""
    return _encode({"position": str(position), "events": [_value(body) for body in bodies]})


def _value(written: bytes) -> msgspec.Raw:
    """JSON as it was written, but on one line."""
    if b"\n" in written or b"\r" in written:
        written = msgspec.json.format(written, indent=-1)
    return msgspec.Raw(written)
