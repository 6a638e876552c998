"""The node's own stream API on a P2P connection: packets 0x92 in, requests to streams, 0x93 out.

Sans-I/O: the connection gives packets and replies, and gets back packets and batches for cells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar, assert_never

import msgspec

from millpond.actors.errors import Code, DataTooLarge, Malformed, RequestError
from millpond.actors.messages import Failed, StreamReply, StreamRequest
from millpond.actors.positions import Position, Seek, SeekBy
from millpond.actors.state import messages as s
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import TOPICS, state_cell, state_of, stream_cell, stream_of
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.bodies import read_body
from millpond.transports.p2p.nacks import encode_refusal
from millpond.transports.p2p.streams import bodies as b
from millpond.transports.p2p.streams.operations import (
    LISTED_MAX,
    OF_STATE,
    Operation,
    RightsIn,
    check,
    listed,
)
from millpond.transports.p2p.streams.state import ShowBody, state_answer, state_request
from millpond.transports.server.interface import StreamDirectory

REQUESTS_MAX = 64
ANSWERS_BYTES_MAX = 8 * 2**20
READ_BYTES_MIN, READ_BYTES_MAX = 64 * 1024, 2**20
COUNTED_BYTES_MIN = 2**16
"""The parts of longer appends are counted before they are decoded; a shorter one has less than
HEADERS_MAX headers in any case."""

WAITING = OF_STATE | {Operation.READ}
"""Operations that a cell may not answer for a while."""


_TOPIC = re.compile(rb"[A-Za-z0-9_-]{1,255}")


Row = TypeVar("Row")


class _Request:
    """A request in flight. `body_bytes` are its own, `reserved` those of its answer, `large_bytes`
    the memory that is set apart for it."""

    __slots__ = ("body_bytes", "cell", "large_bytes", "operation", "reserved", "waits")

    def __init__(self, operation: Operation, cell: bytes, body_bytes: int = 0) -> None:
        self.operation = operation
        self.cell = cell
        self.body_bytes = body_bytes
        self.reserved = 0
        self.large_bytes = 2 * READ_BYTES_MIN if operation in OF_STATE else 0
        self.waits = False


class StreamRequests:
    """Requests of one connection, at most 64 at a time, whose answers are about 8 MiB at most.

    A read gets what is left of that, but 64 KiB at least, and always one record if there is any.
    """

    __slots__ = (
        "_answer_bytes",
        "_batches",
        "_directory",
        "_in_flight",
        "_now",
        "_part_bytes",
        "_rights_in",
        "_waiting",
        "held_bytes",
        "large_bytes",
    )

    def __init__(
        self,
        now: Callable[[], float],
        directory: StreamDirectory,
        packet_bytes_max: int,
        rights_in: RightsIn | None = None,
    ) -> None:
        self._now = now
        self._directory = directory
        self._rights_in = rights_in
        self._part_bytes = packet_bytes_max - p.OPERATION_BYTES
        self._in_flight: dict[int, _Request] = {}
        self._answer_bytes = 0
        self.held_bytes = 0
        """The bytes of requests that are not answered."""
        self.large_bytes = 0
        """About the memory that answers take: records, and once more what is written of them. A
        read that waits for records counts until it is submitted: it may never be answered."""
        self._waiting: list[_Request] = []
        """Reads that may wait for records and are not submitted yet."""
        self._batches: dict[bytes, tuple[list[StreamRequest], int]] = {}

    @property
    def is_idle(self) -> bool:
        """Every request is answered."""
        return not self._in_flight

    def take(self, packet: p.Stream) -> list[bytes]:
        """Take a request. Gives the packets that answer at once; the others are in `batches`."""
        number = packet.request_id
        if packet.operation == Operation.CANCEL:
            self._cancel(number)
            return []
        if number in self._in_flight:
            return [self._refusal(number, Code.MALFORMED)]
        if len(self._in_flight) >= REQUESTS_MAX:
            return [self._refusal(number, Code.BUFFER_FULL)]
        try:
            return self._take(packet)
        except RequestError as error:
            return [self._refusal(number, error.code)]

    def batches(self) -> list[tuple[bytes, list[StreamRequest], int]]:
        """The requests for each cell since the last call, and their size in bytes."""
        found = [(cell, requests, size) for cell, (requests, size) in self._batches.items()]
        self._batches.clear()
        for pending in self._waiting:
            self.large_bytes -= pending.large_bytes
            pending.large_bytes = 0
        self._waiting.clear()
        return found

    def answered(self, reply: StreamReply | Failed) -> list[bytes]:
        """The packets that answer one of the requests; none for one that is over."""
        match reply:
            case Failed(request=StreamRequest(number=number)):
                pass
            case StreamReply(number=number):
                pass
            case _:
                raise AssertionError(f"{reply} answers no request of a stream")
        pending = self._forget(number)
        if pending is None:
            return []
        if isinstance(reply, Failed):
            return [self._refusal(number, reply.code, reply.delay_ms)]
        if isinstance(reply, m.StreamFailed):
            return [self._refusal(number, reply.code)]
        return self._parts(number, pending.operation, _body(reply))

    def stop_waiting(self) -> None:
        """The other end sends nothing more: reads that wait are cancelled."""
        for number in [number for number, pending in self._in_flight.items() if pending.waits]:
            self._cancel(number)

    def leave(self) -> list[bytes]:
        """The connection is gone. Gives the cells that may still look for records for it, once."""
        reads = [pending for pending in self._in_flight.values() if pending.operation in WAITING]
        self._in_flight.clear()
        self._batches.clear()
        self._waiting.clear()
        self._answer_bytes = self.held_bytes = self.large_bytes = 0
        return list(dict.fromkeys(pending.cell for pending in reads))

    def _take(self, packet: p.Stream) -> list[bytes]:
        try:
            operation = Operation(packet.operation)
        except ValueError:
            raise Malformed(f"unknown operation {packet.operation}") from None
        number, body = packet.request_id, packet.body
        match operation:
            case Operation.LIST:
                answer = self._list(read_body(body, b.ListBody))
                return self._parts(number, operation, answer)
            case Operation.LIST_TOPICS:
                answer = self._list_topics(read_body(body, b.ListTopicsBody))
                return self._parts(number, operation, answer)
            case Operation.READ:
                read = read_body(body, b.ReadBody)
                self._check(operation, read.stream)
                self._take_read(number, read)
            case Operation.STATE_SHOW:
                show = read_body(body, ShowBody)
                self._check(operation, show.stream)
                self._take_show(number, show, len(body))
            case _:
                cell, request = _request(number, operation, body)
                self._check(operation, _name_of(cell, request))
                self._in_flight[number] = _Request(operation, cell, len(body))
                self.held_bytes += len(body)
                self.large_bytes += self._in_flight[number].large_bytes
                self._ask(cell, request, len(body))
        return []

    def _check(self, operation: Operation, name: bytes) -> None:
        if self._rights_in is not None:
            check(operation, name, self._rights_in)

    def _take_read(self, number: int, read: b.ReadBody) -> None:
        start = _start(read)
        pending = _Request(Operation.READ, stream_cell(read.stream))
        pending.waits = read.wait_ms > 0
        self._reserve(pending, read.bytes_max)
        if pending.waits:
            self._waiting.append(pending)
        wait_until = self._now() + read.wait_ms / 1000 if pending.waits else 0.0
        self._in_flight[number] = pending
        self._ask(pending.cell, m.Read(number, start, read.count, pending.reserved, wait_until), 0)

    def _take_show(self, number: int, show: ShowBody, size: int) -> None:
        pending = _Request(Operation.STATE_SHOW, state_cell(show.stream))
        self._reserve(pending, show.bytes_max)
        self._in_flight[number] = pending
        fields = (show.type, show.after, show.count, pending.reserved)
        self._ask(pending.cell, s.ListValues(number, *fields), size)

    def _reserve(self, pending: _Request, wanted: int) -> None:
        """Set aside what is left of the bytes of answers, for the one to this request."""
        pending.reserved = self._granted(wanted)
        self._answer_bytes += pending.reserved
        pending.large_bytes = 2 * pending.reserved
        self.large_bytes += pending.large_bytes

    def _granted(self, wanted: int) -> int:
        left = ANSWERS_BYTES_MAX - self._answer_bytes
        return max(min(wanted, READ_BYTES_MIN), min(wanted, READ_BYTES_MAX, left))

    def _ask(self, cell: bytes, request: StreamRequest, size: int) -> None:
        requests, before = self._batches.get(cell, ([], 0))
        requests.append(request)
        self._batches[cell] = (requests, before + size)

    def _cancel(self, number: int) -> None:
        """Only a read can be cancelled: other requests are carried out."""
        pending = self._in_flight.get(number)
        if pending is not None and pending.operation is Operation.READ:
            self._forget(number)
            self._ask(pending.cell, m.CancelRead(number), 0)

    def _forget(self, number: int) -> _Request | None:
        pending = self._in_flight.pop(number, None)
        if pending is not None:
            self._answer_bytes -= pending.reserved
            self.large_bytes -= pending.large_bytes
            pending.large_bytes = 0  # one that is cancelled may not be submitted yet
            self.held_bytes -= pending.body_bytes
        return pending

    def _list(self, body: b.ListBody) -> bytes:
        self._directory.check_complete()
        wanted = body.limit if self._rights_in is None else LISTED_MAX
        names = self._directory.names(body.prefix, body.after, wanted + 1)
        page, more = self._page(names, _itself, body.limit)
        return msgspec.msgpack.encode(b.NamesBody(page, more))

    def _page(
        self, rows: list[Row], name_of: Callable[[Row], bytes], limit: int
    ) -> tuple[list[Row], bool]:
        if self._rights_in is None:
            return rows[:limit], len(rows) > limit
        return listed(rows, name_of, limit, self._rights_in)

    def _list_topics(self, body: b.ListTopicsBody) -> bytes:
        topics = self._directory
        topics.check_complete()
        if body.topic is not None:
            self._check(Operation.LIST_TOPICS, body.topic)
            partitions = topics.partitions(body.topic)
            found = [] if partitions is None else [(body.topic, partitions)]
            return msgspec.msgpack.encode(b.TopicsBody(found, more=False))
        later = (each for each in topics.topics() if each[0] > body.after)
        wanted = body.limit if self._rights_in is None else LISTED_MAX
        page, more = self._page(list(islice(later, wanted + 1)), _topic_name, body.limit)
        return msgspec.msgpack.encode(b.TopicsBody(page, more))

    def _parts(self, number: int, operation: Operation, body: bytes) -> list[bytes]:
        if len(body) <= self._part_bytes:
            return [p.encode(p.StreamReply(number, operation, body))]
        starts = range(0, len(body), self._part_bytes)
        parts = [body[start : start + self._part_bytes] for start in starts]
        more = [p.encode(p.StreamReply(number, operation | p.MORE, part)) for part in parts[:-1]]
        return [*more, p.encode(p.StreamReply(number, operation, parts[-1]))]

    def _refusal(self, number: int, code: Code, delay_ms: int | None = None) -> bytes:
        return encode_refusal(p.STREAM, code, number.to_bytes(4, "big"), delay_ms)


def _itself(name: bytes) -> bytes:
    return name


def _topic_name(row: tuple[bytes, int]) -> bytes:
    return row[0]


def _name_of(cell: bytes, request: StreamRequest) -> bytes:
    """The stream or topic that a request is about."""
    if isinstance(request, m.CreateTopic | m.DeleteTopic):
        return request.topic
    return stream_of(cell) or state_of(cell) or b""


def _start(read: b.ReadBody) -> Seek:
    """The position at which a read begins. Raises Malformed."""
    match read:
        case b.ReadBody(id=None, timestamp=None, sequence=sequence):
            return Seek(SeekBy.SEQUENCE, sequence=sequence)
        case b.ReadBody(id=None, timestamp=int(timestamp)):
            return Seek(SeekBy.TIMESTAMP, timestamp=timestamp)
        case b.ReadBody(id=Position() as position, timestamp=None):
            return Seek(SeekBy.ID, id=position)
        case _:
            raise Malformed("a read begins at one position")


def _request(number: int, operation: Operation, body: bytes) -> tuple[bytes, StreamRequest]:
    """The cell of an operation, and the request for it. Raises RequestError."""
    match operation:
        case Operation.CREATE:
            made = read_body(body, b.CreateBody)
            return stream_cell(made.stream), m.Create(number, made.settings)
        case Operation.APPEND:
            appended = _append_body(body)
            return stream_cell(appended.stream), _append(number, appended)
        case Operation.DESCRIBE:
            return stream_cell(read_body(body, b.StreamBody).stream), m.Describe(number)
        case Operation.TRIM:
            trim = read_body(body, b.TrimBody)
            below = trim.sequence if trim.id is None else trim.id
            return stream_cell(trim.stream), m.Trim(number, below)
        case Operation.DELETE:
            return stream_cell(read_body(body, b.StreamBody).stream), m.Delete(number)
        case Operation.CONFIGURE:
            wanted = read_body(body, b.CreateBody)
            return stream_cell(wanted.stream), m.Configure(number, wanted.settings)
        case Operation.COMMIT:
            commit = read_body(body, b.CommitBody)
            if not commit.group:
                raise Malformed("a group has a name")
            return stream_cell(commit.stream), m.CommitOffset(number, commit.group, commit.offset)
        case Operation.COMMITTED:
            committed = read_body(body, b.CommittedBody)
            return stream_cell(committed.stream), m.GetGroupOffset(number, committed.group)
        case Operation.CREATE_TOPIC:
            topic = read_body(body, b.CreateTopicBody)
            return TOPICS, m.CreateTopic(number, _topic(topic.topic), topic.partitions)
        case Operation.DELETE_TOPIC:
            name = read_body(body, b.DeleteTopicBody).topic
            return TOPICS, m.DeleteTopic(number, _topic(name))
        case Operation.STATE | Operation.STATE_GET:
            name, request = state_request(number, operation, body)
            return state_cell(name), request
        case (
            Operation.READ
            | Operation.LIST
            | Operation.LIST_TOPICS
            | Operation.CANCEL
            | Operation.STATE_SHOW
        ):
            raise AssertionError(f"{operation.name} makes no request here")
        case _:
            assert_never(operation)


def _append_body(body: bytes) -> b.AppendBody:
    """The body of an append. Of a long one the parts are counted before they are decoded.

    Raises Malformed, DataTooLarge.
    """
    if len(body) <= COUNTED_BYTES_MIN:
        return read_body(body, b.AppendBody)
    encoded = read_body(body, b.EncodedAppendBody)
    count = b.array_length(encoded.bodies)
    if count is not None:
        _check_columns(count, [b.array_length(encoded.headers), b.array_length(encoded.timestamps)])
    if b.array_length(encoded.headers) is not None:
        of_records = read_body(encoded.headers, list[msgspec.Raw])
        if sum([b.array_length(each) or 0 for each in of_records]) > b.HEADERS_MAX:
            raise DataTooLarge(f"an append has at most {b.HEADERS_MAX} headers")
    return b.AppendBody(
        encoded.stream,
        read_body(encoded.bodies, b.Bodies),
        encoded.ms,
        None if encoded.headers == b.NIL else read_body(encoded.headers, list[m.Headers]),
        None if encoded.timestamps == b.NIL else read_body(encoded.timestamps, b.Timestamps),
        encoded.fence,
        encoded.match,
    )


def _check_columns(count: int, lengths: Sequence[int | None]) -> None:
    """Check the columns of an append of `count` records. Raises Malformed, DataTooLarge."""
    if count > b.RECORDS_MAX:
        raise DataTooLarge(f"an append has at most {b.RECORDS_MAX} records")
    if any(length is not None and length != count for length in lengths):
        raise Malformed("headers and timestamps have an element for each body")


def _append(number: int, body: b.AppendBody) -> m.Append:
    columns = (body.headers, body.timestamps)
    _check_columns(len(body.bodies), [None if each is None else len(each) for each in columns])
    return m.Append(
        number, body.bodies, body.ms, body.headers, body.timestamps, body.fence, body.match
    )


def _topic(name: bytes) -> bytes:
    if _TOPIC.fullmatch(name) is None:
        raise Malformed("a topic's name is of letters, digits, _ and -")
    return name


def _body(reply: StreamReply) -> bytes:
    answer: msgspec.Struct
    match reply:
        case m.Appended():
            answer = b.AppendedBody(
                reply.first, reply.count, reply.id, reply.first_timestamp, reply.timestamp
            )
        case m.Records():
            answer = b.RecordsBody(reply.spans, reply.next, reply.tail, reply.last_timestamp)
        case m.StreamDescription():
            answer = reply.info
        case m.GroupOffset():
            answer = b.OffsetBody(reply.offset)
        case _:
            found = state_answer(reply)
            if found is None:
                return b.EMPTY
            answer = found
    return msgspec.msgpack.encode(answer)
