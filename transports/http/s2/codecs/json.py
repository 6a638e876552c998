"""S2's messages as JSON (A.3): appends in, acks, batches and tails out.

Bytes are text as they are (`S2-Format: raw`), or Base64 (`base64`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from itertools import accumulate, repeat
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from millpond.actors.streams.messages import (
    Headers,
    PackedBodies,
    RecordColumns,
    RecordFormat,
)
from millpond.transports.http.s2.codecs.append_scan import check_json
from millpond.transports.http.s2.errors import (
    ErrorCode,
    StreamPosition,
    bad_header,
    bad_json,
    invalid,
)
from millpond.transports.http.s2.model import (
    FENCE_BYTES_MAX,
    RECORDS_MAX,
    AppendAck,
    AppendInput,
    RecordBatch,
    check_u64,
)
from millpond.transports.speedups import is_native, native

MEDIA_TYPE = b"application/json"

Read = TypeVar("Read")
_encode = msgspec.json.Encoder().encode


class Format(Enum):
    """The encoding of bytes in JSON."""

    RAW = "raw"
    BASE64 = "base64"


_FORMATS = {
    "raw": Format.RAW,
    "json": Format.RAW,
    "base64": Format.BASE64,
    "json-binsafe": Format.BASE64,
}


def format_of(value: str | None) -> Format:
    """The encoding that the header `s2-format` asks for. Raises CodedError (bad_header)."""
    if value is None:
        return Format.RAW
    found = _FORMATS.get(value.strip().lower())
    if found is None:
        raise bad_header(f"s2-format: 'raw' or 'base64', not {value[:40]!r}")
    return found


def decode_json(decode: Callable[[bytes], Read], data: bytes) -> Read:
    """The body, decoded by a msgspec decoder. Raises CodedError (bad_json) with the location."""
    try:
        return decode(data)
    except msgspec.ValidationError as error:
        raise bad_json(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_json(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise bad_json("the body is nested too deeply") from None


class _TextRecord(msgspec.Struct, gc=False):
    timestamp: int | None = None
    headers: list[tuple[str, str]] | None = None
    body: str | None = None


class _TextInput(msgspec.Struct, gc=False):
    records: list[_TextRecord]
    match_seq_num: int | None = None
    fencing_token: str | None = None


class _BytesRecord(msgspec.Struct, gc=False):
    timestamp: int | None = None
    headers: list[tuple[bytes, bytes]] | None = None
    body: bytes | None = None


class _BytesInput(msgspec.Struct, gc=False):
    records: list[_BytesRecord]
    match_seq_num: int | None = None
    fencing_token: str | None = None


_decode_text = msgspec.json.Decoder(_TextInput).decode
_decode_bytes = msgspec.json.Decoder(_BytesInput).decode


def decode_input(data: bytes, encoding: Format) -> AppendInput:
    """An AppendInput. Raises CodedError: bad_json, or invalid for what is not Base64."""
    if is_native:
        bodies = native.read_json_input(data, encoding is Format.BASE64, RECORDS_MAX, PackedBodies)
        if bodies is not None:
            return AppendInput(bodies)
    return decode_input_in_python(data, encoding)


def decode_input_in_python(data: bytes, encoding: Format) -> AppendInput:
    """The same, by msgspec."""
    check_json(data)
    match encoding:
        case Format.RAW:
            return _columns(decode_json(_decode_text, data))
        case Format.BASE64:
            return _columns(_decode_base64(data))


def _decode_base64(data: bytes) -> _BytesInput:
    try:
        return _decode_bytes(data)
    except msgspec.ValidationError as error:
        # As text it is what it has to be: then it is Base64 that it is not.
        decode_json(_decode_text, data)
        raise invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decode_json(_decode_bytes, data)


def _columns(found: _TextInput | _BytesInput) -> AppendInput:
    """The records by columns, and the conditions; one pass, as most records have a body only."""
    bodies: list[bytes] = []
    has_headers = has_timestamps = False
    for each in found.records:
        body = each.body
        bodies.append(body.encode() if isinstance(body, str) else body or b"")
        if each.headers:
            has_headers = True
        if each.timestamp is not None:
            has_timestamps = True
    timestamps: list[int | None] | None = None
    if has_timestamps:
        timestamps = [each.timestamp for each in found.records]
        for timestamp in timestamps:
            check_u64(timestamp, "timestamp", ErrorCode.BAD_JSON)
    if found.match_seq_num is not None:
        check_u64(found.match_seq_num, "match_seq_num", ErrorCode.BAD_JSON)
    token = None if found.fencing_token is None else found.fencing_token.encode()
    if token is not None and len(token) > FENCE_BYTES_MAX:
        raise bad_json(f"fencing_token: at most {FENCE_BYTES_MAX} bytes")
    return AppendInput(
        bodies,
        _headers_of(found) if has_headers else None,
        timestamps,
        found.match_seq_num,
        token,
    )


def _headers_of(found: _TextInput | _BytesInput) -> list[Headers]:
    """The headers of each record."""
    if isinstance(found, _BytesInput):
        return [each.headers or [] for each in found.records]
    return [
        [(name.encode(), value.encode()) for name, value in each.headers or ()]
        for each in found.records
    ]


def encode_ack(ack: AppendAck) -> bytes:
    """An AppendAck."""
    return _encode(ack)


def encode_tail(tail: StreamPosition) -> bytes:
    """The answer to a check of the tail."""
    return _encode({"tail": tail})


def encode_batch(batch: RecordBatch, encoding: Format) -> bytes:
    """A ReadBatch."""
    records = b"".join(batch.encoded(_FORMS[encoding]))[:-1]
    if batch.tail is None:
        return b'{"records":[%b]}' % records
    return b'{"records":[%b],"tail":%b}' % (records, _encode(batch.tail))


class _Row(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A SequencedRecord: what is empty is left out (A.3). Bytes are written as Base64."""

    seq_num: int
    timestamp: int
    headers: list[tuple[Any, Any]] | UnsetType = UNSET
    body: str | bytes = ""


class _Rows:
    """Elements of a ReadBatch's `records`, each with the comma behind it."""

    def __init__(self, encoding: Format) -> None:
        self._encoding = encoding

    def encode(self, span: RecordColumns) -> bytes:
        return b"%b," % _encode(list(self._rows(span)))[1:-1]

    def ends(self, span: RecordColumns) -> Sequence[int]:
        return list(accumulate(len(_encode(row)) + 1 for row in self._rows(span)))

    def _rows(self, span: RecordColumns) -> Iterator[_Row]:
        sequences = range(span.first, span.first + len(span.bodies))
        timestamps = repeat(span.timestamp) if span.timestamps is None else span.timestamps
        bodies = map(self._body, span.bodies)
        if span.headers is None:
            return map(_Row, sequences, timestamps, repeat(UNSET), bodies)
        return map(_Row, sequences, timestamps, map(self._headers, span.headers), bodies)

    def _body(self, body: bytes) -> str | bytes:
        if not body:
            return ""
        match self._encoding:
            case Format.RAW:
                return body.decode("utf-8", "replace")
            case Format.BASE64:
                return body

    def _headers(self, pairs: Headers) -> list[tuple[Any, Any]] | UnsetType:
        if not pairs:
            return UNSET
        match self._encoding:
            case Format.RAW:
                return [(_text(name), _text(value)) for name, value in pairs]
            case Format.BASE64:
                return pairs


def _text(data: bytes) -> str:
    """Lossy where it is not UTF-8 (A.3)."""
    return data.decode("utf-8", "replace")


RAW_ROWS: RecordFormat = _Rows(Format.RAW)
BASE64_ROWS: RecordFormat = _Rows(Format.BASE64)

_FORMS = {Format.RAW: RAW_ROWS, Format.BASE64: BASE64_ROWS}
