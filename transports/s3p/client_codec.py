"""S3P v0.2.0 as a client speaks it: commands into bytes, replies out of bytes (specs/s3p 3-9)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from millpond.actors.positions import Position
from millpond.transports.errors import WireError
from millpond.transports.s3p.commands import FIRST_ID, S3pError, bad_format, parse_id, printable
from millpond.transports.s3p.scanner import ARRAY, BULK, CRLF, ERROR, SIMPLE, InputBuffer

ID_BYTES_MAX = 41

_HEADS: list[bytes | None] = [None, *(b"$%d" % size for size in range(1, 1025))]
_ID_HEADS = _HEADS[: ID_BYTES_MAX + 1]
_COUNTS = {b"*%d" % (2 * count): count for count in range(1001)}


class ReplyLimits(msgspec.Struct, frozen=True, gc=False):
    """Limits of a client for its server: records of one READ, the bytes of each and of all
    together, and the bytes of a line."""

    records_max: int = 1000
    record_bytes_max: int = 2**20
    reply_bytes_max: int = 16 * 2**20
    line_bytes_max: int = 1024


class MalformedReply(WireError):
    """The server sent what is no reply; nothing behind it can be read."""


class Ok(msgspec.Struct, frozen=True, gc=False):
    """`+OK`, for CREATE, TRIM and DELETE."""


class Id(msgspec.Struct, frozen=True, gc=False):
    """The id of the last record that an APPEND added."""

    id: Position


class Records(msgspec.Struct, frozen=True, gc=False):
    """The answer to a READ: ids and records, ascending; empty if there are none."""

    pairs: list[tuple[Position, bytes]]


class ErrorReply(msgspec.Struct, frozen=True, gc=False):
    """A refusal: the code up to the first space, and what is behind it, for people."""

    code: str
    text: str


Reply = Ok | Id | Records | ErrorReply


def encode_create(name: bytes) -> bytes:
    """CREATE (8.1)."""
    return b"*3\r\n$6\r\nCREATE\r\n$%d\r\n%b\r\n*0\r\n" % (len(name), name)


def encode_append(name: bytes, records: Sequence[bytes], ms: int | None = None) -> bytes:
    """APPEND (8.2): at least one record, none of them empty."""
    options = b"*0\r\n" if ms is None else _options(b"ID", b"%d" % ms)
    head = b"*4\r\n$6\r\nAPPEND\r\n$%d\r\n%b\r\n%b" % (len(name), name, options)
    if len(records) == 1:
        return b"%b*1\r\n$%d\r\n%b\r\n" % (head, len(records[0]), records[0])
    pieces = [head, b"*%d\r\n" % len(records)]
    for record in records:
        pieces += (b"$%d\r\n" % len(record), record, CRLF)
    return b"".join(pieces)


def encode_read(
    name: bytes, count: int | None = None, block_ms: int = 0, min_id: Position = FIRST_ID
) -> bytes:
    """READ (8.3); what is None or the default is left out."""
    words: list[bytes] = []
    if count is not None:
        words += (b"COUNT", b"%d" % count)
    if block_ms:
        words += (b"BLOCK", b"%d" % block_ms)
    if min_id != FIRST_ID:
        words += (b"MIN_ID", _id(min_id))
    return b"*3\r\n$4\r\nREAD\r\n$%d\r\n%b\r\n%b" % (len(name), name, _options(*words))


def encode_trim(name: bytes, min_id: Position) -> bytes:
    """TRIM (8.4)."""
    options = _options(b"MIN_ID", _id(min_id))
    return b"*3\r\n$4\r\nTRIM\r\n$%d\r\n%b\r\n%b" % (len(name), name, options)


def encode_delete(name: bytes) -> bytes:
    """DELETE (8.5)."""
    return b"*3\r\n$6\r\nDELETE\r\n$%d\r\n%b\r\n*0\r\n" % (len(name), name)


def _id(position: Position) -> bytes:
    return b"%d-%d" % (position.ms, position.seq)


def _options(*words: bytes) -> bytes:
    pieces = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"*%d\r\n%b" % (len(words), b"".join(pieces))


class ReplyDecoder:
    """Bytes in, replies out, alike for any split of the input.

    Replies that are complete before an error are given out; nothing after it.
    """

    __slots__ = ("_limits", "_source", "_steps", "error")

    def __init__(self, limits: ReplyLimits | None = None) -> None:
        self._limits = limits or ReplyLimits()
        self._source = InputBuffer()
        self._steps: Iterator[Reply | None] | None = None
        self.error: MalformedReply | None = None

    @property
    def is_midway(self) -> bool:
        """A reply has begun and is not complete."""
        return self._steps is not None

    def feed(self, data: bytes) -> list[Reply]:
        """The replies that `data` completes; `error` is set if the stream broke after them."""
        found: list[Reply] = []
        if self.error is not None:
            return found
        try:
            self._read(data, found)
        except S3pError as error:
            self.error = MalformedReply(error.text)
        return found

    def _read(self, data: bytes, found: list[Reply]) -> None:
        source = self._source
        if self._steps is None:
            data = _take_replies(data, self._limits, found)
        if not source.feed(data):
            return
        while self._steps is not None or not source.is_empty:
            steps = self._steps or _parse_reply(source, self._limits)
            self._steps = steps
            if (reply := next(steps)) is None:
                break
            self._steps = None
            found.append(reply)
        source.compact()


def _take_replies(data: bytes, limits: ReplyLimits, found: list[Reply]) -> bytes:
    """Put whole replies into `found`, as long as they are plainly right, as `fast_parser` does
    it with commands; gives the bytes from the first one on that is not."""
    parts = data.split(CRLF)
    end = len(parts) - 1
    at = 0
    try:
        while at < end:
            head = parts[at]
            if head[:1] == b"$":
                text = parts[at + 1]
                if at + 2 > end or head != _ID_HEADS[len(text)]:
                    break
                found.append(Id(parse_id(text)))
                at += 2
            elif head == b"+OK":
                found.append(Ok())
                at += 1
            elif after := _take_records(parts, at, limits, found):
                at = after
            else:
                break
    except (LookupError, S3pError):
        pass
    return CRLF.join(parts[at:])


def _take_records(parts: list[bytes], at: int, limits: ReplyLimits, found: list[Reply]) -> int:
    """The reply to a READ that begins with the part `at`; gives the part behind it, 0: not sure."""
    count = _COUNTS[parts[at]]
    first = at + 1
    after = first + 4 * count
    if after >= len(parts) or count > limits.records_max:
        return 0
    texts = parts[first + 1 : after : 2]
    if list(map(_HEADS.__getitem__, map(len, texts))) != parts[first:after:2]:
        return 0
    ids, records = texts[::2], texts[1::2]
    sizes = list(map(len, records))
    if (
        sum(sizes) > limits.reply_bytes_max
        or max(sizes, default=0) > limits.record_bytes_max
        or max(map(len, ids), default=0) > ID_BYTES_MAX
    ):
        return 0
    found.append(Records(list(zip(map(parse_id, ids), records, strict=True))))
    return after


def _parse_reply(source: InputBuffer, limits: ReplyLimits) -> Iterator[Reply | None]:
    """Read one reply; gives None as often as more bytes are needed, then the reply."""
    type_byte = source.type_byte
    if type_byte == BULK:
        while (text := source.bulk("id", ID_BYTES_MAX, _id_too_long)) is None:
            yield None
        yield Id(parse_id(text))
    elif type_byte == ARRAY:
        pairs: list[tuple[Position, bytes]] = []
        yield from _parse_pairs(source, limits, pairs)
        yield Records(pairs)
    elif type_byte in (SIMPLE, ERROR):
        while (line := source.line(limits.line_bytes_max)) is None:
            yield None
        yield _parse_line(type_byte, line)
    else:
        raise bad_format(f"expected a reply, got {printable(bytes((type_byte,)))}")


def _parse_line(type_byte: int, line: bytes) -> Reply:
    if type_byte == SIMPLE:
        if line != b"OK":
            raise bad_format(f"expected OK, got {printable(line)}")
        return Ok()
    code, _, text = printable(line).partition(" ")
    return ErrorReply(code, text)


def _parse_pairs(
    source: InputBuffer, limits: ReplyLimits, pairs: list[tuple[Position, bytes]]
) -> Iterator[None]:
    while (count := source.number(ARRAY, "records")) < 0:
        yield None
    if count % 2 or count > 2 * limits.records_max:
        raise bad_format(f"an array of {count} elements, at most {2 * limits.records_max} in pairs")
    left = limits.reply_bytes_max
    for _ in range(count // 2):
        while (text := source.bulk("id", ID_BYTES_MAX, _id_too_long)) is None:
            yield None
        size_max = min(left, limits.record_bytes_max)
        while (record := source.bulk("record", size_max, _record_too_large)) is None:
            yield None
        left -= len(record)
        pairs.append((parse_id(text), record))


def _id_too_long(size: int, size_max: int) -> S3pError:
    return bad_format(f"an id of {size} bytes")


def _record_too_large(size: int, size_max: int) -> S3pError:
    return bad_format(f"a record of {size} bytes, at most {size_max} are allowed")
