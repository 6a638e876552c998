"""S2's messages as protobuf (`s2.proto`, A.4): appends in, acks and batches out.

The generated code reads requests. Responses are written here: for records of 1 KiB that takes a
sixth of the time, and the bytes of a span serve every reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import accumulate, repeat

from google.protobuf.message import DecodeError

from millpond.actors.streams.messages import (
    Headers,
    MeasureBodies,
    PackedBodies,
    RecordColumns,
)
from millpond.transports.http.s2 import s2_pb2
from millpond.transports.http.s2.codecs.append_scan import PROTOBUF_BYTES_MAX, check_protobuf
from millpond.transports.http.s2.errors import CodedError, ErrorCode, StreamPosition
from millpond.transports.http.s2.model import (
    RECORD_BYTES,
    RECORDS_MAX,
    AppendAck,
    AppendInput,
    RecordBatch,
    too_many_records,
)
from millpond.transports.speedups import is_native, native

MEDIA_TYPE = b"application/protobuf"

_MEDIA_TYPES = ("application/protobuf", "application/x-protobuf")


def is_protobuf(value: str | None) -> bool:
    """True if a `content-type`, or the first type of an `accept`, names protobuf (A.4)."""
    first = (value or "").partition(",")[0].partition(";")[0]
    return first.strip().lower() in _MEDIA_TYPES


def decode_input(data: bytes, code: ErrorCode = ErrorCode.BAD_PROTO) -> AppendInput:
    """An AppendInput. Raises CodedError: `code` if it cannot be read, 422 for too many records."""
    if is_native and len(data) <= PROTOBUF_BYTES_MAX:
        found = native.read_append_input(data, RECORDS_MAX, PackedBodies)
        if found is not None:
            return AppendInput(found[0], None, found[1])
    return decode_input_in_python(data, code)


def decode_input_in_python(data: bytes, code: ErrorCode) -> AppendInput:
    """The same, with the generated code."""
    check_protobuf(data)
    try:
        found = s2_pb2.AppendInput.FromString(data)
    except DecodeError as error:
        raise CodedError(code, f"the body is not an AppendInput: {error}") from None
    records = found.records
    if len(records) > RECORDS_MAX:
        raise too_many_records()
    bodies = [each.body for each in records]
    headers: list[Headers] | None = None
    timestamps: list[int | None] | None = None
    token = found.fencing_token.encode() if found.HasField("fencing_token") else None
    sequence = found.match_seq_num if found.HasField("match_seq_num") else None
    if len(data) != _bytes_min(bodies) + _condition_bytes(sequence, token):
        headers, timestamps = _other_columns(records)
    return AppendInput(bodies, headers, timestamps, sequence, token)


def _bytes_min(bodies: list[bytes]) -> int:
    """The least length of a message with these bodies. A message of just this length has no other
    fields; to look for them in each record would take twice as long as to decode it."""
    sizes = list(map(len, bodies))
    most, least = max(sizes, default=0), min(sizes, default=0)
    if 0 < least and most < 126:
        return sum(sizes) + 4 * len(sizes)
    if 127 < least and most < 16381:
        return sum(sizes) + 6 * len(sizes)
    return sum(map(_record_bytes_min, sizes))


def _record_bytes_min(size: int) -> int:
    inner = 1 + _varint_bytes(size) + size if size else 0
    return 1 + _varint_bytes(inner) + inner


def _condition_bytes(sequence: int | None, token: bytes | None) -> int:
    size = 0 if sequence is None else 1 + _varint_bytes(sequence)
    return size if token is None else size + 1 + _varint_bytes(len(token)) + len(token)


def _varint_bytes(value: int) -> int:
    return max((value.bit_length() + 6) // 7, 1)


def _other_columns(
    records: Sequence[s2_pb2.AppendRecord],
) -> tuple[list[Headers] | None, list[int | None] | None]:
    """Headers and timestamps of records; None where no record has any."""
    headers: list[Headers] = []
    timestamps: list[int | None] = []
    for each in records:
        headers.append([(pair.name, pair.value) for pair in each.headers])
        timestamps.append(each.timestamp if each.HasField("timestamp") else None)
    has_headers = any(headers)
    has_timestamps = any(each is not None for each in timestamps)
    return headers if has_headers else None, timestamps if has_timestamps else None


def encode_ack(ack: AppendAck) -> bytes:
    """An AppendAck."""
    return b"".join(
        (_field(b"\x0a", ack.start), _field(b"\x12", ack.end), _field(b"\x1a", ack.tail))
    )


MEASURE: MeasureBodies | None = partial(native.measure_bodies, RECORD_BYTES) if is_native else None
"""Of reads whose records are written as protobuf: they come packed where that is native."""


def encode_batch(batch: RecordBatch) -> bytes:
    """A ReadBatch."""
    return b"".join(batch_pieces(batch))


def batch_pieces(batch: RecordBatch) -> list[bytes]:
    """A ReadBatch, in pieces."""
    if batch.packed:
        pieces = [
            native.write_packed_batch(
                each.data, each.offset, each.count, each.first, each.timestamp
            )
            for each in batch.packed
        ]
    else:
        pieces = batch.encoded(RECORDS)
    if batch.tail is not None:
        pieces.append(_field(b"\x12", batch.tail))
    return pieces


class _Records:
    """Elements of a ReadBatch's `records`."""

    def encode(self, span: RecordColumns) -> bytes:
        if is_native and span.headers is None:
            return native.write_batch(span.first, span.timestamp, span.timestamps, span.bodies)
        return self.encode_in_python(span)

    def encode_in_python(self, span: RecordColumns) -> bytes:
        bodies = span.bodies
        if len(bodies) == 1 and span.headers is None and span.timestamps is None:
            (sequence,) = _sequences(span.first, 1)
            return b"".join((*_head(bodies[0], sequence, span.timestamp, ()), bodies[0]))
        pieces: list[bytes] = []
        for head, body in zip(_heads(span), bodies, strict=True):
            pieces += (*head, body)
        return b"".join(pieces)

    def ends(self, span: RecordColumns) -> Sequence[int]:
        heads = (sum(map(len, head)) for head in _heads(span))
        return list(accumulate(map(int.__add__, heads, map(len, span.bodies))))


RECORDS = _Records()

_Head = tuple[bytes, bytes, bytes]


def _heads(span: RecordColumns) -> Sequence[_Head]:
    """The bytes before each body: tags and length, sequence, the rest. Records of a slice resemble
    one another: mostly, only their sequences differ."""
    bodies, timestamps, headers = span.bodies, span.timestamps, span.headers
    sequences = _sequences(span.first, len(bodies))
    if timestamps is not None or headers is not None:
        times = timestamps if timestamps is not None else repeat(span.timestamp)
        pairs = headers if headers is not None else repeat([])
        return [_head(*each) for each in zip(bodies, sequences, times, pairs, strict=False)]
    heads: list[_Head] = []
    known: dict[tuple[int, int], _Head] = {}
    for body, sequence in zip(bodies, sequences, strict=True):
        key = len(body), len(sequence)
        head = known.get(key)
        if head is None:
            head = known[key] = _head(body, sequence, span.timestamp, ())
        heads.append((head[0], sequence, head[2]))
    return heads


def _head(
    body: bytes, sequence: bytes, timestamp: int, pairs: Sequence[tuple[bytes, bytes]]
) -> _Head:
    """The bytes before the body of one record, without fields that are zero or empty (proto3)."""
    after = b"\x10" + _varint(timestamp) if timestamp else b""
    for name, value in pairs:
        pair = _bytes(b"\x0a", name) + _bytes(b"\x12", value)
        after += b"\x1a%b%b" % (_varint(len(pair)), pair)
    if body:
        after += b"\x22" + _varint(len(body))
    if not sequence:
        return b"\x0a" + _varint(len(after) + len(body)), sequence, after
    size = 1 + len(sequence) + len(after) + len(body)
    return b"\x0a%b\x08" % _varint(size), sequence, after


def _field(tag: bytes, place: StreamPosition) -> bytes:
    """A StreamPosition as a field; it is there even if nothing is in it (A.4)."""
    sequence, timestamp = place.seq_num, place.timestamp
    inner = b"\x08" + _varint(sequence) if sequence else b""
    if timestamp:
        inner += b"\x10" + _varint(timestamp)
    return b"%b%c%b" % (tag, len(inner), inner)


def _bytes(tag: bytes, data: bytes) -> bytes:
    return b"%b%b%b" % (tag, _varint(len(data)), data) if data else b""


@lru_cache(256)  # timestamps: three times in an ack, and those of one millisecond
def _long_varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


_LOW_BITS = 14
_LOW = 1 << _LOW_BITS
_SHORT = [_long_varint(value) for value in range(_LOW)]
_CONTINUED = [bytes((value & 127 | 128, value >> 7 | 128)) for value in range(_LOW)]


def _varint(value: int) -> bytes:
    return _SHORT[value] if value < _LOW else _long_varint(value)


def _sequences(first: int, count: int) -> list[bytes]:
    """Varints of consecutive numbers; nothing for zero, which is left out."""
    if first == 0:
        return [b"", *_SHORT[1:count]] if count <= _LOW else [b"", *_sequences(1, count - 1)]
    found: list[bytes] = []
    end = first + count
    while first < end:
        high = first >> _LOW_BITS
        stop = min(end, high + 1 << _LOW_BITS)
        low = first & _LOW - 1
        if high:
            tail = _varint(high)
            found += [each + tail for each in _CONTINUED[low : low + stop - first]]
        else:
            found += _SHORT[first:stop]
        first = stop
    return found
