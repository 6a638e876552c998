"""The driver interface: requests of a protocol as bytes, and bytes as answers in order."""

from __future__ import annotations

from collections import deque
from typing import Protocol, assert_never

import msgspec

from millpond.actors.store.changes import Position
from millpond.node.bench.scenarios import StreamKind
from millpond.node.client.rustlog.forms import BINARY, JSON, Form
from millpond.transports.rustlog import messages as r
from millpond.transports.rustlog.binary_codec import FETCH_RECORD_BYTES
from millpond.transports.s3p import client_codec as s3p

RecordPosition = tuple[int, int]
"""The position of a record: milliseconds and number of its id, or 0 and its offset."""

START: RecordPosition = (0, 0)
REPLY_BYTES_MAX = 64 * 2**20


class Created(msgspec.Struct, frozen=True, gc=False):
    """The answer to `create`: the stream exists."""


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The answer to `append`: the positions of the first and last of `count` records."""

    first: RecordPosition
    last: RecordPosition
    count: int


class Records(msgspec.Struct, frozen=True):
    """The answer to `read`: records in ascending order."""

    records: list[tuple[RecordPosition, bytes]]


class Refused(msgspec.Struct, frozen=True, gc=False):
    """An error in place of an answer."""

    text: str


Answer = Created | Appended | Records | Refused


class Driver(Protocol):
    """The client's side of a protocol on one connection. Answers come in the order of requests.

    `error` is the reason why no more can be read. `kinds` are the rows that it can measure. If it
    `polls`, a read cannot wait for a record.
    """

    kinds: frozenset[StreamKind]
    polls: bool
    error: str

    def create(self, name: str) -> bytes:
        """The request that creates a stream."""

    def append(self, name: str, bodies: list[bytes]) -> bytes:
        """The request that appends records, or several where the protocol takes one record each."""

    def read(self, name: str, start: RecordPosition, count: int, size: int, wait_ms: int) -> bytes:
        """The request for about `count` records of `size` bytes from `start` on."""

    def feed(self, data: bytes) -> list[Answer]:
        """The answers that these bytes complete."""

    def due(self) -> bytes:
        """Bytes to send without a request: a handshake, a heartbeat."""


def after(position: RecordPosition) -> RecordPosition:
    """The next position in the same stream."""
    return (position[0], position[1] + 1)


class S3pDriver:
    """The driver of S3P v0.2.0."""

    kinds = frozenset(StreamKind)
    polls = False

    def __init__(self) -> None:
        limits = s3p.ReplyLimits(reply_bytes_max=REPLY_BYTES_MAX)
        self.error = ""
        self._decoder = s3p.ReplyDecoder(limits)
        self._counts: deque[int] = deque()

    def create(self, name: str) -> bytes:
        return s3p.encode_create(name.encode())

    def append(self, name: str, bodies: list[bytes]) -> bytes:
        self._counts.append(len(bodies))
        return s3p.encode_append(name.encode(), bodies)

    def read(self, name: str, start: RecordPosition, count: int, size: int, wait_ms: int) -> bytes:
        min_id = Position(*start)
        return s3p.encode_read(name.encode(), count=count, block_ms=wait_ms, min_id=min_id)

    def feed(self, data: bytes) -> list[Answer]:
        found = [self._answer(reply) for reply in self._decoder.feed(data)]
        if self._decoder.error is not None:
            self.error = str(self._decoder.error)
        return found

    def due(self) -> bytes:
        return b""

    def _answer(self, reply: s3p.Reply) -> Answer:
        match reply:
            case s3p.Ok():
                return Created()
            case s3p.Id(id=last):
                return self._appended(last)
            case s3p.Records(pairs=pairs):
                return Records([((id.ms, id.seq), body) for id, body in pairs])
            case s3p.ErrorReply(code=code, text=text):
                return Refused(f"{code} {text}")
            case _:
                assert_never(reply)

    def _appended(self, last: Position) -> Answer:
        """The answer to an append: consecutive ids of one millisecond (S3A-15)."""
        if not self._counts:
            return Refused(f"an id {last.ms}-{last.seq} that no append waits for")
        count = self._counts.popleft()
        return Appended((last.ms, last.seq - count + 1), (last.ms, last.seq), count)


class RustlogDriver:
    """The driver of RustLog in one of its forms; a stream is a topic of one partition."""

    kinds = frozenset(StreamKind)
    polls = True

    def __init__(self, form: Form = JSON) -> None:
        self.error = ""
        self._form = form
        self._decoder = form.decoder()
        self._record_bytes = FETCH_RECORD_BYTES if form is BINARY else 0

    def create(self, name: str) -> bytes:
        return self._form.encode(r.CreateTopic(name, 1))

    def append(self, name: str, bodies: list[bytes]) -> bytes:
        return self._form.encode(r.Produce(name, 0, bodies))

    def read(self, name: str, start: RecordPosition, count: int, size: int, wait_ms: int) -> bytes:
        max_bytes = count * (size + self._record_bytes)
        return self._form.encode(r.Fetch(name, 0, start[1], max_bytes))

    def feed(self, data: bytes) -> list[Answer]:
        found = [_answer(self._form.read(None, each)) for each in self._decoder.feed(data)]
        if self._decoder.error is not None:
            self.error = str(self._decoder.error)
        return found

    def due(self) -> bytes:
        return b""


def _answer(response: r.Response) -> Answer:
    match response:
        case r.ProduceResponse(base_offset=base, record_count=count):
            return Appended((0, base), (0, base + count - 1), count)
        case r.FetchResponse(records=records):
            return Records([((0, each.offset), each.data) for each in records])
        case r.CreateTopicResponse(success=True):
            return Created()
        case r.Error(code=code, message=message):
            return Refused(f"{code} {message}")
        case _:
            return Refused(f"a {type(response).__name__} that no append waits for")
