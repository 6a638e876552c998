"""Formats of records: as commands print them, and as `append --jsonl` reads them.

    {"sequence": "7", "timestamp": "1763683200000", "id": "1763683200000-0",
     "headers": [["type", "order"]], "data": "hello"}

Numbers of 64 bits are strings. Bytes that are not UTF-8 are in `headers_base64` and `data_base64`.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import msgspec

from millpond.actors.messages import U64_MAX
from millpond.actors.streams.messages import Headers
from millpond.node.cli.jsonl import BadLine
from millpond.node.cli.output import data_field
from millpond.node.client.streams.records import NewRecord, Record

RecordFormat = Callable[[Record], bytes]


class _Fields(msgspec.Struct):
    data: str | None = None
    data_base64: bytes | None = None
    headers: list[tuple[str, str]] = []
    headers_base64: list[tuple[bytes, bytes]] = []
    timestamp: str | None = None


def as_line(record: Record) -> bytes:
    """The body and a newline."""
    return record.data + b"\n"


def as_body(record: Record) -> bytes:
    """The body alone."""
    return record.data


def as_base64(record: Record) -> bytes:
    """The body in base64, and a newline."""
    return b64encode(record.data) + b"\n"


def as_json(record: Record) -> bytes:
    """An object, and a newline."""
    return json.dumps(record_fields(record), ensure_ascii=False).encode() + b"\n"


FORMATS: dict[str, RecordFormat] = {
    "lines": as_line,
    "raw": as_body,
    "base64": as_base64,
    "json": as_json,
}


def record_fields(record: Record) -> dict[str, Any]:
    """The JSON object of a record."""
    return {
        "sequence": str(record.sequence),
        "timestamp": str(record.timestamp),
        "id": f"{record.id.ms}-{record.id.seq}",
        **_headers(record.headers),
        **data_field(record.data),
    }


def read_record(text: bytes, *, keep_timestamp: bool) -> NewRecord:
    """The record of one line. Raises BadLine."""
    try:
        fields = msgspec.json.decode(text, type=_Fields)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise BadLine(str(exc)) from exc
    if (fields.data is None) == (fields.data_base64 is None):
        raise BadLine("one of data and data_base64 is needed")
    body = fields.data.encode() if fields.data is not None else fields.data_base64
    assert body is not None
    headers = [(name.encode(), value.encode()) for name, value in fields.headers]
    timestamp = _timestamp(fields.timestamp) if keep_timestamp else None
    return NewRecord(body, headers or list(fields.headers_base64), timestamp)


def _timestamp(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= U64_MAX):
        raise BadLine("timestamp is not a whole number of milliseconds in a string")
    return int(text)


def _headers(headers: Headers) -> dict[str, Any]:
    if not headers:
        return {"headers": []}
    try:
        return {"headers": [[name.decode(), value.decode()] for name, value in headers]}
    except UnicodeDecodeError:
        pairs = [[b64encode(part).decode("ascii") for part in pair] for pair in headers]
        return {"headers_base64": pairs}
