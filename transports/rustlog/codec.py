"""RustLog's JSON form, the server's side: payloads to requests; responses to frames.

Requests are read by msgspec into their types at once; what is not surely the one request that it
seems to be, the judge reads again (docs/internals/performance-notes.md).
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, repeat

import msgspec

from millpond.actors.streams.messages import (
    U64_MAX,
    MeasureBodies,
    PackedBodies,
    PackedSlice,
    RecordColumns,
    RecordSlice,
)
from millpond.transports.rustlog.json_fallback import DecodedJson, decode_fallback
from millpond.transports.rustlog.messages import (
    FRAME_BYTES_MAX,
    INVALID_REQUEST,
    RECORD_TOO_LARGE,
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Error,
    Fetch,
    FetchedRecord,
    FetchResponse,
    ListTopics,
    MetricsFetch,
    OffsetCommit,
    OffsetFetch,
    PackedProduce,
    Ping,
    Produce,
    Request,
    Response,
)
from millpond.transports.speedups import is_native, native

ENVELOPE_BYTES = 1024
"""Of a record's bytes so much is left to what is around it in a frame (RLA-05)."""

_ROW_BYTES = 78
"""At most what a record of a FetchResponse has besides its payload."""

_TOPIC = re.compile(r"[A-Za-z0-9_-]{1,255}")


class RustlogLimits(msgspec.Struct, frozen=True, gc=False):
    """Limits of what is read and written; docs/reference/limits.md."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    records_max: int = 1000
    binary_records_max: int = 65_536
    partitions_max: int = 1000
    group_bytes_max: int = 256

    @property
    def record_bytes_max(self) -> int:
        """The largest record that a FetchResponse can carry (RLA-05)."""
        return self.frame_bytes_max * 3 // 4 - ENVELOPE_BYTES


COUNTED_BYTES_MIN = 2**16
"""The strings of longer payloads are counted before they are decoded."""

_decode: Callable[[bytes], Request] = msgspec.json.Decoder(Request).decode
_encode = msgspec.json.Encoder().encode

# The least number of quotes in the payload of a request: two for each key and each string. With
# exactly this number a payload has no key twice and no field that is ignored.
_QUOTES: dict[type[Request], int] = {
    Produce: 12,
    Fetch: 12,
    OffsetCommit: 16,
    OffsetFetch: 14,
    CreateTopic: 10,
    ListTopics: 4,
    DescribeTopic: 8,
    DescribePartition: 10,
    MetricsFetch: 4,
    Ping: 4,
}


class RepeatedProduce:
    """The native path of a client that appends many records at a time: Produces that differ from
    the last one in their records alone."""

    __slots__ = ("_head", "_limits", "_partition", "_size_max", "_tail", "_topic")

    def __init__(self, limits: RustlogLimits) -> None:
        self._limits = limits
        self._size_max = limits.frame_bytes_max - 2 * ENVELOPE_BYTES
        """No record of a payload up to here can be too large."""
        self._head = self._tail = b""
        """All bytes of the last Produce before its records, and behind them; empty: there was
        none."""
        self._topic = ""
        self._partition = 0

    def remember(self, payload: bytes, request: DecodedJson) -> None:
        """`payload` was read as this request."""
        if not is_native or type(request) is not Produce:
            return
        before, found, rest = payload.partition(_RECORDS)
        records, _, after = rest.rpartition(b"]")
        head, tail = before + found, b"]" + after
        if head.count(b"records") != 1 or b"\\" in head or b'"' in after:
            return  # something else of it may decide
        texts = [b'"%b"' % b2a_base64(each, newline=False) for each in request.records]
        if b",".join(texts) == records:
            self._head, self._tail = head, tail
            self._topic, self._partition = request.topic, request.partition

    def take(self, data: bytes, start: int = 0) -> PackedProduce | None:
        """The request in the payload that begins at `start` of `data` and ends with it; None: it is
        another one, or not plainly right."""
        head, tail = self._head, self._tail
        first, end = start + len(head), len(data) - len(tail)
        if not head or end < first or len(data) - start > self._size_max:
            return None
        if not data.startswith(head, start) or not data.endswith(tail):
            return None
        packed = native.read_base64_records(
            data, first, end, self._limits.records_max, PackedBodies
        )
        return None if packed is None else PackedProduce(self._topic, self._partition, packed)


class RepeatedFetch:
    """The fast path of a client that walks over a partition: Fetches that differ from the last one
    in their offset alone."""

    __slots__ = ("_fetch", "_head", "_tail")

    def __init__(self) -> None:
        self._head = self._tail = b""
        """All bytes of the last Fetch before its offset, and behind it; empty: there was none."""
        self._fetch: Fetch | None = None

    def remember(self, payload: bytes, request: DecodedJson) -> None:
        """`payload` was read as this request."""
        if type(request) is not Fetch or b"\\" in payload or payload.count(b'"offset"') != 1:
            return
        before, key, rest = payload.partition(_OFFSET)
        digits = b"%d" % request.offset
        after = rest[len(digits) :]
        if key and rest.startswith(digits) and after[:1] in _ENDS_OF_NUMBERS:
            self._head, self._tail, self._fetch = before + key, after, request

    def take(self, data: bytes, start: int) -> Fetch | None:
        """The request in the payload that begins at `start` of `data` and ends with it; None: it is
        another one, or not plainly right."""
        head, tail, last = self._head, self._tail, self._fetch
        if last is None or not data.startswith(head, start) or not data.endswith(tail):
            return None
        digits = data[start + len(head) : len(data) - len(tail)]
        if not 0 < len(digits) < _OFFSET_DIGITS or not digits.isdigit():
            return None
        if digits[0] == _ZERO and len(digits) > 1:
            return None  # JSON has no such number
        return Fetch(last.topic, last.partition, int(digits), last.max_bytes, last.group_id)


_OFFSET = b'"offset":'
_ENDS_OF_NUMBERS = (b",", b"}")
_OFFSET_DIGITS = 20
"""A number of fewer digits is below 2^64."""
_ZERO = ord("0")
_RECORDS = b'"records":['


def decode_request(payload: bytes, limits: RustlogLimits) -> DecodedJson:
    """The request in the payload of a frame, or the answer if its values are refused.

    Raises MalformedJson where the connection has to end, MalformedRequest.
    """
    found: DecodedJson
    is_long = len(payload) > COUNTED_BYTES_MIN
    if is_long and payload.count(b'"') > 2 * limits.records_max + _QUOTES[Produce]:
        found = decode_fallback(payload, limits.records_max)
        return (found if type(found) is Error else _refusal(found, limits)) or found
    try:
        found = request = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = decode_fallback(payload, limits.records_max)
    else:
        quotes = _QUOTES[type(request)]
        if type(request) is Produce:
            quotes += 2 * len(request.records)
        elif type(request) is Fetch:
            quotes += (request.max_bytes is not msgspec.UNSET) * 2
            quotes += (request.group_id is not msgspec.UNSET) * 4
        if payload.count(b'"') != quotes:
            found = decode_fallback(payload, limits.records_max)
    if type(found) is Produce:
        records = found.records
        is_short = len(payload) <= limits.frame_bytes_max - 2 * ENVELOPE_BYTES
        if is_short and 0 < len(records) <= limits.records_max:
            return found  # no record of it can be too large
    return _refusal(found, limits) or found


def _refusal(found: DecodedJson, limits: RustlogLimits) -> Error | None:
    """Check the constraints of fields that types do not express."""
    match found:
        case Produce(records=[]):
            return _invalid("records: at least one")  # RLA-21
        case Produce(records=records) if len(records) > limits.records_max:
            return _invalid(f"records: at most {limits.records_max}")  # RLA-22
        case Produce(records=records):
            return _large_record(records, limits.record_bytes_max)
        case Fetch(offset=offset, max_bytes=max_bytes):
            is_large = max_bytes is not msgspec.UNSET and max_bytes > U64_MAX
            if offset > U64_MAX or is_large:
                return _invalid("offset and max_bytes: at most 2^64 - 1")
            group = found.group_id
            return None if group is msgspec.UNSET or not group else _bad_group(group, limits)
        case OffsetCommit(group=group, offset=offset):
            if offset > U64_MAX:
                return _invalid("offset: at most 2^64 - 1")
            return _bad_group(group, limits)
        case OffsetFetch(group=group):
            return _bad_group(group, limits)
        case CreateTopic(topic=topic, partition_count=count):
            if _TOPIC.fullmatch(topic) is None:  # RLA-23
                return _invalid("topic: 1 to 255 of letters, digits, '_' and '-'")
            if not 1 <= count <= limits.partitions_max:
                return _invalid(f"partition_count: 1 to {limits.partitions_max}")
    return None


def _large_record(records: list[bytes], size_max: int) -> Error | None:
    for index, record in enumerate(records):
        if len(record) > size_max:
            details = {"index": index, "size": len(record), "size_max": size_max}
            return Error(RECORD_TOO_LARGE, "record too large", details)
    return None


def _bad_group(group: str, limits: RustlogLimits) -> Error | None:
    if not 0 < len(group.encode()) <= limits.group_bytes_max:
        return _invalid(f"group: 1 to {limits.group_bytes_max} bytes")
    return None


def _invalid(message: str) -> Error:
    return Error(INVALID_REQUEST, message)


_PREFIXES = [size.to_bytes(4, "big") for size in range(128)]


def framed(payload: bytes) -> bytes:
    """The payload behind its length."""
    return len(payload).to_bytes(4, "big") + payload


def encode_response(response: Response) -> bytes:
    """The response as a frame."""
    return framed(_encode(response))


def encode_produced(base_offset: int, record_count: int) -> bytes:
    """A ProduceResponse as a frame."""
    payload = b'{"type":"ProduceResponse","base_offset":%d,"record_count":%d}' % (
        base_offset,
        record_count,
    )
    return _PREFIXES[len(payload)] + payload


def encode_fetched(
    spans: Sequence[RecordColumns],
    next_offset: int,
    frame_bytes_max: int = FRAME_BYTES_MAX,
    slices: Sequence[RecordSlice] = (),
) -> tuple[bytes, int, int]:
    """A FetchResponse as a frame, how many records it has, and how many bytes these.

    No more than a frame can carry (RLA-06), at least one if there is any. `slices` are the same
    as `spans`, or there are none.
    """
    count = size = 0
    for span in spans:
        count += len(span.bodies)
        size += sum(map(len, span.bodies))
    fits = fits_frame(count, size, frame_bytes_max)
    if fits and slices:
        pieces = [b"", _OPENING, *(each.encoded(ROWS) for each in slices)]
        return _response_of(pieces, next_offset), count, size
    rows = list(chain.from_iterable(map(_rows, spans)))
    if not fits:
        fitting = _fitting(rows, frame_bytes_max)
        if fitting < len(rows):
            next_offset = rows[fitting].offset
            size -= sum(len(row.data) for row in rows[fitting:])
            del rows[fitting:]
    return framed(_encode(FetchResponse(rows, next_offset))), len(rows), size


_OPENING = b'{"type":"FetchResponse","records":['


MEASURE: MeasureBodies | None = partial(native.measure_bodies, 0) if is_native else None
"""Of Fetches: their records come packed where they are written natively."""


def fits_frame(records_max: int, bytes_max: int, frame_bytes_max: int) -> bool:
    """True: a frame can carry so many records of so many bytes, whatever their offsets are."""
    return bytes_max * 4 // 3 + records_max * (_ROW_BYTES + 4) + ENVELOPE_BYTES <= frame_bytes_max


def encode_packed(slices: Sequence[PackedSlice], next_offset: int) -> tuple[bytes, int, int]:
    """The same as `encode_fetched` of records that come as chunks keep them, and fit a frame."""
    count = size = 0
    pieces = [b"", _OPENING]
    for each in slices:
        count += each.count
        size += each.size
        micros = _micros(each.timestamp)
        pieces.append(
            native.write_packed_rows(each.data, each.offset, each.count, each.first, micros)
        )
    return _response_of(pieces, next_offset), count, size


def _response_of(pieces: list[bytes], next_offset: int) -> bytes:
    """The frame of a FetchResponse. The last piece ends with a comma, the first one is empty."""
    pieces[-1] = pieces[-1][:-1]
    pieces.append(b'],"next_offset":%d}' % next_offset)
    pieces[0] = sum(map(len, pieces)).to_bytes(4, "big")
    return b"".join(pieces)


class _Rows:
    """Elements of a FetchResponse's array, each with the comma behind it."""

    def encode(self, span: RecordColumns) -> bytes:
        if is_native and span.timestamps is None:
            return native.write_rows(span.first, _micros(span.timestamp), span.bodies)
        return self.encode_in_python(span)

    def encode_in_python(self, span: RecordColumns) -> bytes:
        return b"%b," % _encode(list(_rows(span)))[1:-1]

    def ends(self, span: RecordColumns) -> Sequence[int]:
        return list(accumulate(len(_encode(row)) + 1 for row in _rows(span)))


ROWS = _Rows()


def _rows(span: RecordColumns) -> Iterator[FetchedRecord]:
    bodies = span.bodies
    offsets = range(span.first, span.first + len(bodies))
    if span.timestamps is None:
        return map(FetchedRecord, offsets, repeat(_micros(span.timestamp)), bodies)
    return map(FetchedRecord, offsets, map(_micros, span.timestamps), bodies)


def _micros(ms: int) -> int:
    return min(ms * 1000, U64_MAX)


def _fitting(rows: list[FetchedRecord], frame_bytes_max: int) -> int:
    """The number of rows that fit into a frame, one at least."""
    left = frame_bytes_max - ENVELOPE_BYTES
    for count, row in enumerate(rows):
        left -= (len(row.data) + 2) // 3 * 4 + _ROW_BYTES
        if left < 0:
            return max(count, 1)
    return len(rows)
