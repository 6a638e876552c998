"""RustLog's binary form, both sides: payloads to requests and responses, and these to frames.

Lengths and counts are compared with what is left of the payload before anything is made of them
(RB-08). Bytes behind the last field are ignored (RB-07).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from struct import Struct
from struct import error as StructError
from typing import assert_never

import msgspec

from millpond.actors.streams.messages import (
    MeasureBodies,
    PackedBodies,
    PackedSlice,
    RecordColumns,
)
from millpond.transports.errors import FrameTooLarge, WireError
from millpond.transports.p2p.framing import LengthPrefixed, frame_packets, split_packets
from millpond.transports.rustlog import messages as r
from millpond.transports.rustlog.binary_messages import (
    BinaryError,
    BinaryResponse,
    ErrorCode,
    Kind,
    MetricsText,
    PartitionWatermark,
    RecordRun,
    TopicCreated,
    TopicWatermarks,
)
from millpond.transports.rustlog.codec import RustlogLimits, framed
from millpond.transports.speedups import is_native, native

MESSAGE_BYTES_MAX = 200
"""The longest message of an error (RB-31)."""
FETCH_RECORD_BYTES = 12
"""The cost of a record in `max_bytes`, besides its bytes (RB-18)."""
RECORD_RUN_BYTES = 13
"""An answer to Fetch without records."""
WHITE_SPACE = b"\t\n\r "

_NAME_BYTES_MAX = 2**16 - 1
_TOPIC = re.compile(r"[A-Za-z0-9_-]{1,255}")
_PING = bytes((Kind.PING,))

_U16 = Struct(">H")
_U32 = Struct(">I")
_U64 = Struct(">Q")
_FLAG = Struct(">B")
_PARTITION_COUNT = Struct(">II")
_PARTITION_OFFSET = Struct(">IQ")
_PARTITION_OFFSET_SIZE = Struct(">IQI")
_OFFSET_COUNT = Struct(">QI")
_CODE = Struct(">H")
_PRODUCED = Struct(">IBQI")


class MalformedPayload(WireError):
    """A payload that is no request or response of the binary form."""


def speaks_binary(payload: bytes, *, was_binary: bool = False) -> bool:
    """True: a payload, or what has come of it, is of the binary form (RB-02). `was_binary`: the
    last request of the connection was, so that what is no JSON either is an error in this form."""
    first = payload[0]
    if 0x01 <= first <= 0x08 or first == Kind.PING:
        return True
    if first == Kind.METRICS_FETCH or was_binary:
        return not payload.lstrip(WHITE_SPACE).startswith(b"{")
    return False


def frame_error(error: WireError | None) -> BinaryError:
    """The error of a length that cannot be read on behind (RB-32)."""
    if isinstance(error, FrameTooLarge):
        what = f"frame too large: {error.size} bytes (max: {error.size_max})"
    else:
        what = "invalid protocol: zero-length frame"
    return BinaryError(ErrorCode.FRAME, f"Frame error: {what}")


# Requests.


def decode_error(error: MalformedPayload) -> BinaryError:
    """The answer to a payload that is no request (RB-08, RB-33)."""
    return BinaryError(ErrorCode.DECODE, f"Decode error: {error}")


def decode_request(
    payload: bytes, limits: RustlogLimits
) -> r.Request | r.PackedProduce | BinaryError:
    """The request in the payload of a frame, or the answer if its values are refused.

    Raises MalformedPayload.
    """
    kind, fields = payload[0], _Fields(payload)
    match kind:
        case Kind.PRODUCE:
            topic = fields.text()
            partition, count = fields.take(_PARTITION_COUNT)
            return _decode_produce(topic, partition, count, fields, limits)
        case Kind.FETCH:
            group, topic = fields.text(), fields.text()
            partition, offset, max_bytes = fields.take(_PARTITION_OFFSET_SIZE)
            return r.Fetch(topic, partition, offset, max_bytes, group)
        case Kind.OFFSET_COMMIT:
            group, topic = fields.text(), fields.text()
            partition, offset = fields.take(_PARTITION_OFFSET)
            return r.OffsetCommit(group, topic, partition, offset)
        case Kind.OFFSET_FETCH:
            group, topic = fields.text(), fields.text()
            return r.OffsetFetch(group, topic, *fields.take(_U32))
        case Kind.CREATE_TOPIC:
            topic = fields.text()
            (count,) = fields.take(_U32)
            return _refused_topic(topic, count, limits) or r.CreateTopic(topic, count)
        case Kind.LIST_TOPICS:
            return r.ListTopics()
        case Kind.DESCRIBE_TOPIC:
            return r.DescribeTopic(fields.text())
        case Kind.DESCRIBE_PARTITION:
            return r.DescribePartition(fields.text(), *fields.take(_U32))
        case Kind.METRICS_FETCH:
            return r.MetricsFetch()
        case Kind.PING:
            return r.Ping()
        case _:
            raise MalformedPayload(f"unknown request type: {kind}")  # RB-33


def _decode_produce(
    topic: str, partition: int, count: int, fields: _Fields, limits: RustlogLimits
) -> r.Produce | r.PackedProduce | BinaryError:
    if count > fields.left // 4:
        raise MalformedPayload(f"{count} records do not fit into the frame")
    if count > limits.binary_records_max:  # RB-13
        text = f"at most {limits.binary_records_max} records at a time"
        return BinaryError(ErrorCode.INTERNAL, f"Failed to write record: {text}")
    packed = fields.packed_records(count, limits.record_bytes_max)
    if packed is not None:
        return r.PackedProduce(topic, partition, packed)
    records = fields.records(count)
    size = max(map(len, records), default=0)
    if size > limits.record_bytes_max:  # RB-14
        return BinaryError(
            ErrorCode.INTERNAL, f"Failed to write record: record too large: {size} bytes"
        )
    return r.Produce(topic, partition, records)


def _refused_topic(topic: str, count: int, limits: RustlogLimits) -> BinaryError | None:
    """RB-24: a name or a number of partitions that no topic can have."""
    if _TOPIC.fullmatch(topic) is None:
        text = "a topic has a name of 1 to 255 letters, digits, '_' and '-'"
        return BinaryError(ErrorCode.DECODE, f"Decode error: {text}")
    if not 1 <= count <= limits.partitions_max:
        text = f"a topic has 1 to {limits.partitions_max} partitions, not {count}"
        return BinaryError(ErrorCode.PARTITION_COUNT, text)
    return None


def encode_request(request: r.Request) -> bytes:
    """The request as a frame. Raises ValueError for a value that its field cannot hold."""
    try:
        return framed(b"".join(_request_parts(request)))
    except StructError as error:
        raise ValueError(f"a number does not fit: {error}") from None


def _request_parts(request: r.Request) -> Iterable[bytes]:
    match request:
        case r.Produce(topic=topic, partition=partition, records=records):
            yield from (b"\x01", _text(topic), _PARTITION_COUNT.pack(partition, len(records)))
            yield _records(records)
        case r.Fetch(topic=topic, partition=partition, offset=offset):
            group = "" if request.group_id is msgspec.UNSET else request.group_id
            size = 0 if request.max_bytes is msgspec.UNSET else request.max_bytes
            yield from (b"\x02", _text(group), _text(topic))
            yield _PARTITION_OFFSET_SIZE.pack(partition, offset, size)
        case r.OffsetCommit(group=group, topic=topic, partition=partition, offset=offset):
            yield from (b"\x03", _text(group), _text(topic))
            yield _PARTITION_OFFSET.pack(partition, offset)
        case r.OffsetFetch(group=group, topic=topic, partition=partition):
            yield from (b"\x04", _text(group), _text(topic), _U32.pack(partition))
        case r.CreateTopic(topic=topic, partition_count=count):
            yield from (b"\x05", _text(topic), _U32.pack(count))
        case r.ListTopics():
            yield b"\x06"
        case r.DescribeTopic(topic=topic):
            yield from (b"\x07", _text(topic))
        case r.DescribePartition(topic=topic, partition=partition):
            yield from (b"\x08", _text(topic), _U32.pack(partition))
        case r.MetricsFetch():
            yield b"\x09"
        case r.Ping():
            yield _PING
        case _:
            assert_never(request)


# Responses.


def encode_response(response: BinaryResponse) -> bytes:
    """The response as a frame."""
    return framed(b"".join(_response_parts(response)))


def _response_parts(response: BinaryResponse) -> Iterable[bytes]:
    match response:
        case r.ProduceResponse(base_offset=offset, record_count=count):
            yield from (b"\x01", _OFFSET_COUNT.pack(offset, count))
        case RecordRun(records=records, next_offset=offset):
            yield from (b"\x02", _U32.pack(len(records)), _records(records), _U64.pack(offset))
        case r.OffsetCommitResponse(success=success):
            yield b"\x03\x01" if success else b"\x03\x00"
        case r.OffsetFetchResponse(offset=None):
            yield b"\x04\x00"
        case r.OffsetFetchResponse(offset=int(offset)):
            yield from (b"\x04\x01", _U64.pack(offset))
        case TopicCreated(success=success):
            yield b"\x05\x01" if success else b"\x05\x00"
        case r.ListTopicsResponse(topics=topics):
            yield from (b"\x06", _U32.pack(len(topics)))
            for row in topics:
                yield from (_text(row.name), _U32.pack(row.partition_count))
        case TopicWatermarks(topic=topic, watermarks=rows):
            yield from (b"\x07", _text(topic), _PARTITION_COUNT.pack(len(rows), len(rows)))
            yield from (_PARTITION_OFFSET.pack(*row) for row in rows)
        case PartitionWatermark(topic=topic, partition=partition, high_watermark=offset):
            yield from (b"\x08", _text(topic), _PARTITION_OFFSET.pack(partition, offset))
        case MetricsText(text=text):
            raw = text.encode()
            yield from (b"\x09", _U32.pack(len(raw)), raw)
        case r.Pong():
            yield _PING
        case BinaryError(code=code, message=message):
            raw = message.encode("ascii", "backslashreplace")[:MESSAGE_BYTES_MAX]
            yield from (b"\xfe", _CODE.pack(code), _U16.pack(len(raw)), raw)
        case _:
            raise AssertionError(f"{response} is no response")


def encode_produced(base_offset: int, count: int) -> bytes:
    """The answer to Produce as a frame."""
    return _PRODUCED.pack(_PRODUCED.size - 4, Kind.PRODUCE, base_offset, count)


def record_run(
    spans: Sequence[RecordColumns], start: int, next_offset: int, max_bytes: int, frame_bytes: int
) -> RecordRun:
    """The answer to Fetch, of what a stream found from `start` on; it goes on at `next_offset`.

    The records are those without a gap before them (RB-20), as many as `max_bytes` allows (RB-18)
    and a frame of `frame_bytes` holds (RB-19).
    """
    if not max_bytes:
        return RecordRun([], start)
    records: list[bytes] = []
    end = start
    left, frame_left = max_bytes, frame_bytes - RECORD_RUN_BYTES
    for span in spans:
        if span.first != end:
            break
        bodies = span.bodies
        size, count = sum(map(len, bodies)), len(bodies)
        if size + count * FETCH_RECORD_BYTES > left or size + count * 4 > frame_left:
            count, size = _fitting(bodies, left, frame_left, is_first=not records)
        records += bodies[:count]
        end += count
        left -= size + count * FETCH_RECORD_BYTES
        frame_left -= size + count * 4
        if count < len(bodies):
            break
    if not records:
        return RecordRun(records, spans[0].first if spans else max(next_offset, start))
    return RecordRun(records, end)


MEASURE: MeasureBodies | None = (
    partial(native.measure_bodies, FETCH_RECORD_BYTES) if is_native else None
)
"""Of Fetches: their records come packed where they are written natively."""


def fits_frame(max_bytes: int, limits: RustlogLimits) -> bool:
    """True: a frame holds all that `max_bytes` allows, whatever the records are (RB-18, RB-19)."""
    room = limits.frame_bytes_max - RECORD_RUN_BYTES - 4
    return 0 < max_bytes <= room and limits.record_bytes_max <= room


def encode_packed_run(
    slices: Sequence[PackedSlice], start: int, next_offset: int
) -> tuple[bytes, int, int]:
    """The answer to Fetch as a frame, of records that come as chunks keep them and fit it; how many
    records it has, and how many bytes these. See `record_run`."""
    pieces = [b"", b""]
    end, size = start, 0
    for each in slices:
        if each.first != end:
            break
        pieces.append(native.write_sized_records(each.data, each.offset, each.count))
        end += each.count
        size += len(pieces[-1]) - 4 * each.count
    count = end - start
    following = end if count else slices[0].first if slices else max(next_offset, start)
    pieces[1] = b"\x02" + _U32.pack(count)
    pieces.append(_U64.pack(following))
    pieces[0] = _U32.pack(sum(map(len, pieces)))
    return b"".join(pieces), count, size


def _fitting(
    bodies: Sequence[bytes], left: int, frame_left: int, *, is_first: bool
) -> tuple[int, int]:
    """The number of the bodies that fit, and their bytes. One fits always where none `is_first`."""
    size = 0
    for count, body in enumerate(bodies):
        left -= len(body) + FETCH_RECORD_BYTES
        frame_left -= len(body) + 4
        if frame_left < 0 or (left < 0 and (count or not is_first)):
            return count, size
        size += len(body)
    return len(bodies), size


def decode_response(payload: bytes) -> BinaryResponse:
    """The response in the payload of a frame. Raises MalformedPayload."""
    kind, fields = payload[0], _Fields(payload)
    match kind:
        case Kind.PRODUCE:
            return r.ProduceResponse(*fields.take(_OFFSET_COUNT))
        case Kind.FETCH:
            records = fields.records(fields.count(4))
            return RecordRun(records, *fields.take(_U64))
        case Kind.OFFSET_COMMIT:
            return r.OffsetCommitResponse(fields.take(_FLAG)[0] != 0)  # RB-06
        case Kind.OFFSET_FETCH:
            (flag,) = fields.take(_FLAG)
            return r.OffsetFetchResponse(fields.take(_U64)[0] if flag else None)
        case Kind.CREATE_TOPIC:
            return TopicCreated(fields.take(_FLAG)[0] == 1)  # RB-06
        case Kind.LIST_TOPICS:
            count = fields.count(6)
            rows = [r.TopicRow(fields.text(), *fields.take(_U32)) for _ in range(count)]
            return r.ListTopicsResponse(rows)
        case Kind.DESCRIBE_TOPIC:
            topic = fields.text()
            fields.take(_U32)
            count = fields.count(_PARTITION_OFFSET.size)
            return TopicWatermarks(topic, [fields.pair(_PARTITION_OFFSET) for _ in range(count)])
        case Kind.DESCRIBE_PARTITION:
            return PartitionWatermark(fields.text(), *fields.pair(_PARTITION_OFFSET))
        case Kind.METRICS_FETCH:
            return MetricsText(fields.decoded(fields.take(_U32)[0]))
        case Kind.PING:
            return r.Pong()
        case Kind.ERROR:
            (code,) = fields.take(_CODE)
            return BinaryError(code, fields.text())
        case _:
            raise MalformedPayload(f"unknown response type: {kind}")


class BinaryResponseDecoder:
    """Bytes in, responses out. `error` is set once the connection cannot be read any further."""

    __slots__ = ("_framing", "error")

    def __init__(self, frame_bytes_max: int = r.FRAME_BYTES_MAX) -> None:
        self._framing = LengthPrefixed(frame_bytes_max)
        self.error: WireError | None = None

    def feed(self, data: bytes) -> list[BinaryResponse]:
        """The responses that `data` completes, also those before an error."""
        if self.error is not None:
            return []
        found: list[BinaryResponse] = []
        for payload in self._framing.feed(data):
            try:
                found.append(decode_response(payload))
            except MalformedPayload as error:
                self.error = error
                return found
        self.error = self._framing.error
        return found


class _Fields:
    """The fields of a payload behind its first byte, one after the other."""

    __slots__ = ("_at", "_payload")

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 1

    @property
    def left(self) -> int:
        """The number of bytes that are left."""
        return len(self._payload) - self._at

    def take(self, layout: Struct) -> tuple[int, ...]:
        """Numbers."""
        try:
            values = layout.unpack_from(self._payload, self._at)
        except StructError:
            raise MalformedPayload("the frame ends within a number") from None
        self._at += layout.size
        return values

    def pair(self, layout: Struct) -> tuple[int, int]:
        """Two numbers."""
        first, second = self.take(layout)
        return first, second

    def count(self, size_min: int) -> int:
        """The number of elements that follow, of `size_min` bytes or more each."""
        (count,) = self.take(_U32)
        if count > self.left // size_min:
            raise MalformedPayload(f"{count} elements do not fit into the frame")
        return count

    def text(self) -> str:
        """A `str`."""
        return self.decoded(self.take(_U16)[0])

    def decoded(self, size: int) -> str:
        """So many bytes of UTF-8."""
        if size > self.left:
            raise MalformedPayload("the frame ends within a string")
        start, self._at = self._at, self._at + size
        try:
            return self._payload[start : self._at].decode()
        except UnicodeDecodeError:
            raise MalformedPayload("a string is not UTF-8") from None

    def packed_records(self, count: int, size_max: int) -> PackedBodies | None:
        """So many of `rec`, none above `size_max`, as a chunk keeps them; None: they are few, or
        `records` is to tell what is wrong."""
        if not is_native:
            return None
        return native.read_sized_records(self._payload, self._at, count, size_max, PackedBodies)

    def records(self, count: int) -> list[bytes]:
        """So many of `rec`."""
        found, size = split_packets(self._payload[self._at :], len(self._payload), count)
        self._at += size
        while len(found) < count:  # the next one is empty, or does not fit
            (size,) = self.take(_U32)
            if size > self.left:
                raise MalformedPayload("the frame ends within a record")
            start, self._at = self._at, self._at + size
            found.append(self._payload[start : self._at])
        return found


def _text(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > _NAME_BYTES_MAX:
        raise ValueError(f"a name has at most {_NAME_BYTES_MAX} bytes, not {len(raw)}")
    return _U16.pack(len(raw)) + raw


def _records(records: list[bytes]) -> bytes:
    return frame_packets(records) if records else b""
