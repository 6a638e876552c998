"""Messages as lines of JSON, for `export` and `import`.

    {"channel": "chat/1", "mode": "pair", "id": "1994170339541856263", "key": "7", "ttl": 60,
     "expires_at": 1763683260.0, "attempts": 0, "data": "hello"}

Numbers of 64 bits are strings. Bytes that are not UTF-8 are in `channel_base64` and `data_base64`.
A dead letter has `origin`, an object of `id`, `attempts` and `reason`. A job that is not due has
`due`, in seconds since 1970, one of a unique name `unique` or `unique_base64`.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Annotated, Any

import msgspec

from millpond.actors.messages import U64_MAX, Mode
from millpond.actors.store.changes import Origin, StoredMessage
from millpond.node.cli.options.node import NAME_BYTES_MAX
from millpond.node.cli.options.units import U32_MAX
from millpond.node.cli.output import data_field
from millpond.transports.p2p.jobs.bodies import UNIQUE_BYTES_MAX

ID_MAX = 2**63 - 1
LINE_BYTES_MAX = 2**25
"""The largest message that a packet can carry, in base64, with room for the rest."""
Due = Annotated[float, msgspec.Meta(ge=0.0, le=2.0**40)]


class BadLine(ValueError):
    """An invalid line; the text says why."""


class MessageLine(msgspec.Struct, frozen=True):
    """A message with its channel and the mode of the channel.

    `due` 0: not later; `unique` empty: by nothing.
    """

    channel: bytes
    row: StoredMessage
    attempts: int = 0
    mode: Mode | None = None
    due: float = 0.0
    unique: bytes = b""


class _Origin(msgspec.Struct):
    id: str
    attempts: int
    reason: str


class _Fields(msgspec.Struct):
    id: str
    key: str
    ttl: int
    expires_at: float
    channel: str | None = None
    channel_base64: bytes | None = None
    mode: str | None = None
    attempts: int = 0
    origin: _Origin | None = None
    due: Due = 0.0
    unique: str | None = None
    unique_base64: bytes | None = None
    data: str | None = None
    data_base64: bytes | None = None


_decoder = msgspec.json.Decoder(_Fields)


def encode_line(line: MessageLine) -> bytes:
    """The line of a message, with its newline."""
    row = line.row
    fields: dict[str, Any] = _channel_field(line.channel)
    if line.mode is not None:
        fields["mode"] = line.mode.name.lower()
    fields |= {
        "id": str(row.id),
        "key": str(row.key),
        "ttl": row.ttl,
        "expires_at": row.expires_at,
        "attempts": line.attempts,
    }
    if row.origin is not None:
        fields["origin"] = {
            "id": str(row.origin.id),
            "attempts": row.origin.attempts,
            "reason": row.origin.reason,
        }
    if line.due:
        fields["due"] = line.due
    if line.unique:
        fields |= data_field(line.unique, "unique")
    return json.dumps(fields | data_field(row.data), ensure_ascii=False).encode() + b"\n"


def decode_line(text: bytes) -> MessageLine:
    """The message in a line. Raises BadLine."""
    try:
        fields = _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise BadLine(str(exc)) from exc
    origin = fields.origin
    row = StoredMessage(
        _number(fields.id, 1, ID_MAX, "id"),
        _number(fields.key, 0, U64_MAX, "key"),
        _within(fields.ttl, 1, U32_MAX, "ttl"),
        fields.expires_at,
        _bytes(fields.data, fields.data_base64, "data"),
        origin=None if origin is None else _origin(origin),
    )
    channel = _bytes(fields.channel, fields.channel_base64, "channel")
    _within(len(channel), 1, NAME_BYTES_MAX, "the length of channel")
    attempts = _within(fields.attempts, 0, U32_MAX, "attempts")
    unique = b""
    if fields.unique is not None or fields.unique_base64 is not None:
        unique = _bytes(fields.unique, fields.unique_base64, "unique")
        _within(len(unique), 1, UNIQUE_BYTES_MAX, "the length of unique")
    return MessageLine(channel, row, attempts, _mode(fields.mode), fields.due, unique)


def _channel_field(name: bytes) -> dict[str, Any]:
    try:
        return {"channel": name.decode()}
    except UnicodeDecodeError:
        return {"channel_base64": b64encode(name).decode("ascii")}


def _origin(origin: _Origin) -> Origin:
    attempts = _within(origin.attempts, 0, U32_MAX, "origin.attempts")
    return Origin(_number(origin.id, 1, ID_MAX, "origin.id"), attempts, origin.reason)


def _mode(name: str | None) -> Mode | None:
    if name is None:
        return None
    if name.upper() not in Mode.__members__:
        raise BadLine(f"mode is {name!r}, not pair, fanout or queue")
    return Mode[name.upper()]


def _bytes(text: str | None, binary: bytes | None, name: str) -> bytes:
    if (text is None) == (binary is None):
        raise BadLine(f"one of {name} and {name}_base64 is needed")
    return binary if text is None else text.encode()  # type: ignore[return-value]  # one is there


def _number(text: str, least: int, most: int, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(U64_MAX))):
        raise BadLine(f"{name} is not a whole number in a string")
    return _within(int(text), least, most, name)


def _within(number: int, least: int, most: int, name: str) -> int:
    if not least <= number <= most:
        raise BadLine(f"{name} is {number}, not within {least}..{most}")
    return number
