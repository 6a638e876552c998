"""A count of the records and headers in an append, made before it is decoded.

A body of a few MiB can have millions of empty records or headers, and objects for them would take
seconds of the loop. A message is scanned only if it has many of the bytes that begin a record or a
header, and only up to the limit.
"""

from __future__ import annotations

import re

from millpond.transports.http.s2.errors import invalid
from millpond.transports.http.s2.model import (
    HEADERS_MAX,
    RECORDS_MAX,
    too_many_headers,
    too_many_records,
)

PROTOBUF_BYTES_MAX = 3 * 2**20
"""No append within the limits is longer, however small what is in it: a header that is metered for
3 bytes takes 7."""
SMALL_BYTES = 2**17
"""Smaller bodies are not scanned: decoding them takes a millisecond at worst."""
FIELD_BYTES_MIN = 2
STRINGS_MAX = 2 * HEADERS_MAX + 8 * RECORDS_MAX
"""In JSON: a name and a value for each header; in each record the names of fields, and a body."""

_RECORD, _HEADER = 0x0A, 0x12
_FIXED = {1: 8, 5: 4}
_TEXT = re.compile(rb'"[^"]*"')
"""Once no text has a quote in it."""


def check_protobuf(data: bytes) -> None:
    """Raises CodedError (422) for an AppendInput with too many records or headers. The records of a
    small one are counted when it is decoded."""
    if len(data) > PROTOBUF_BYTES_MAX:
        raise invalid(f"an append has at most {PROTOBUF_BYTES_MAX} bytes as protobuf")
    size = len(data)
    has_headers = size >= FIELD_BYTES_MIN * HEADERS_MAX and data.count(_HEADER) > HEADERS_MAX
    if not has_headers and (size <= SMALL_BYTES or data.count(_RECORD) <= RECORDS_MAX):
        return
    records = headers = at = 0
    while at < len(data):
        tag, begin, at = _field(data, at)
        if tag == _RECORD:
            records += 1
            if records > RECORDS_MAX:
                raise too_many_records()
            inner = begin
            while has_headers and inner < min(at, len(data)):
                tag, _, inner = _field(data, inner)
                headers += tag == _HEADER
                if headers > HEADERS_MAX:
                    raise too_many_headers()


def _field(data: bytes, at: int) -> tuple[int, int, int]:
    """The field at `at`: its tag, and the begin and end of its content. A malformed field ends
    behind the data; the decoder reports it."""
    if data[at] & 7 == 2 and data[at : at + 2][-1] < 128 > data[at]:  # mostly
        begin = at + 2
        return data[at], begin, begin + data[at:begin][-1]
    tag, at = _varint(data, at)
    match tag & 7:
        case 0:
            return tag, at, _varint(data, at)[1]
        case 2:
            size, at = _varint(data, at)
            return tag, at, at + size
        case kind:
            return tag, at, at + _FIXED.get(kind, len(data))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for each in data[at : at + 10]:
        at += 1
        value |= (each & 127) << shift
        if each < 128:
            return value, at
        shift += 7
    return value, len(data)


def check_json(data: bytes) -> None:
    """Check a JSON body; the inside of strings is not counted."""
    if len(data) <= RECORDS_MAX:
        return  # not even of these
    if data.count(b"{") <= RECORDS_MAX + 1:
        if len(data) <= 2 * STRINGS_MAX:
            return  # a count of the quotes takes longer than the decoder
        quotes = data.count(b'"') - data.count(b'\\"') + data.count(b'\\\\"')
        if quotes <= 2 * STRINGS_MAX:
            return  # there are no more than these which begin or end a text
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if data.count(b'"') > 2 * STRINGS_MAX:
        raise too_many_headers()
    if _TEXT.sub(b"", data).count(b"{") > RECORDS_MAX + 1:
        raise too_many_records()
