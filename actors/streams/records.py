"""Records as bytes of a chunk, and back, by columns (`Span`).

A chunk's data is MessagePack: `[bodies, timestamps | nil, ids | nil, headers | nil]`. Without
timestamps all have the chunk's first one; without ids they go up by one from its first; without
headers none has any.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import msgspec

from actors.store.changes import Chunk, Position
from actors.streams.messages import Headers, Span

RECORDS_MAX = 1000
BYTES_MAX = 2**20
"""Appends of one batch share a chunk up to here; one append may be larger."""


class _Columns(msgspec.Struct, array_like=True, gc=False):
    bodies: list[bytes]
    timestamps: list[int] | None = None
    ids: list[tuple[int, int]] | None = None
    headers: list[Headers] | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Columns).decode


class BadChunk(Exception):
    """The data of a chunk, which has the right checksum, is not a stream's."""


class Pile:
    """Records on their way into one chunk."""

    __slots__ = (
        "_is_own",
        "bodies",
        "count",
        "first",
        "headers",
        "id",
        "size",
        "timestamp",
        "timestamps",
    )

    def __init__(
        self,
        first: int,
        position: Position,
        bodies: list[bytes],
        size: int,
        timestamps: list[int] | int,
        headers: list[Headers] | None,
    ) -> None:
        self.first = first
        self.id = position
        self.bodies = bodies
        self._is_own = False
        """False: the list is the request's, and stays as it is."""
        self.size = size
        self.headers = headers
        self.count = len(bodies)
        if isinstance(timestamps, int):
            self.timestamp, self.timestamps = timestamps, None
        else:
            self.timestamp, self.timestamps = timestamps[0], timestamps

    def add(self, position: Position, bodies: list[bytes], size: int, timestamp: int) -> bool:
        """Take the records of another append, which have no headers. False: they do not fit."""
        count, mine = self.count, self.id
        if (
            timestamp != self.timestamp
            or self.timestamps is not None
            or self.headers is not None
            or count + len(bodies) > RECORDS_MAX
            or self.size + size > BYTES_MAX
            or position.ms != mine.ms
            or position.seq != mine.seq + count
        ):
            return False
        if self._is_own:
            self.bodies += bodies
        else:
            self.bodies, self._is_own = self.bodies + bodies, True
        self.count = count + len(bodies)
        self.size += size
        return True

    def span(self) -> Span:
        """The records by columns."""
        return Span(
            self.first,
            self.bodies,
            self.timestamp,
            self.id,
            self.timestamps,
            None,
            self.headers,
        )

    def chunk(self) -> Chunk:
        """The records as the store keeps them."""
        timestamps, first, count = self.timestamps, self.id, self.count
        return Chunk(
            self.first,
            count,
            self.timestamp,
            self.timestamp if timestamps is None else timestamps[-1],
            first,
            first if count == 1 else Position(first.ms, first.seq + count - 1),
            _encode((self.bodies, timestamps, None, self.headers)),
        )


def span_of(chunk: Chunk) -> Span:
    """The records of a chunk. Raises BadChunk."""
    try:
        columns = _decode(chunk.data)
    except msgspec.MsgspecError as exc:
        raise BadChunk(f"chunk {chunk.first}: {exc}") from exc
    ids = columns.ids
    if len(columns.bodies) != chunk.count:
        raise BadChunk(f"chunk {chunk.first}: not {chunk.count} records")
    for column in (columns.timestamps, ids, columns.headers):
        if column is not None and len(column) != chunk.count:
            raise BadChunk(f"chunk {chunk.first}: not {chunk.count} records")
    return Span(
        chunk.first,
        columns.bodies,
        chunk.first_timestamp,
        chunk.first_id,
        columns.timestamps,
        None if ids is None else [Position(*each) for each in ids],
        columns.headers,
    )


def part_of(span: Span, begin: int, end: int) -> Span:
    """The records `begin` to before `end` of a span, counted within it."""
    if begin <= 0 and end >= len(span.bodies):
        return span
    timestamps, ids, headers = span.timestamps, span.ids, span.headers
    position = span.id
    return Span(
        span.first + begin,
        span.bodies[begin:end],
        span.timestamp if timestamps is None else timestamps[begin],
        Position(position.ms, position.seq + begin) if ids is None else ids[begin],
        None if timestamps is None else timestamps[begin:end],
        None if ids is None else ids[begin:end],
        None if headers is None else headers[begin:end],
    )


def joined(spans: Sequence[Span]) -> Span:
    """Spans without headers, which follow one another, as one."""
    bodies: list[bytes] = []
    timestamps: list[int] = []
    ids: list[Position] = []
    for span in spans:
        count = len(span.bodies)
        bodies += span.bodies
        timestamps += span.timestamps or [span.timestamp] * count
        ids += span.ids or _ids(span.id, count)
    first = spans[0]
    return Span(first.first, bodies, timestamps[0], ids[0], timestamps, ids)


def _ids(first: Position, count: int) -> list[Position]:
    if count == 1:
        return [first]
    return [Position(first.ms, first.seq + at) for at in range(count)]


def at_timestamp(span: Span, timestamp: int) -> int:
    """Within a span, the first record at or above a timestamp; its length if there is none."""
    if span.timestamps is not None:
        return bisect_left(span.timestamps, timestamp)
    return 0 if span.timestamp >= timestamp else len(span.bodies)


def after_timestamp(span: Span, timestamp: int) -> int:
    """Within a span, the first record above a timestamp."""
    if span.timestamps is not None:
        return bisect_right(span.timestamps, timestamp)
    return 0 if span.timestamp > timestamp else len(span.bodies)


def at_id(span: Span, position: Position) -> int:
    """Within a span, the first record at or above an id."""
    first, count = span.id, len(span.bodies)
    if span.ids is not None:
        return bisect_left(span.ids, position)
    if position.ms != first.ms:
        return 0 if position.ms < first.ms else count
    return min(max(position.seq - first.seq, 0), count)
