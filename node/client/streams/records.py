"""Records as users of the stream API hold them, and what a node tells of a stream."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millpond.actors.store.changes import Position
from millpond.actors.streams.messages import Headers, RecordColumns
from millpond.actors.streams.messages import StreamInfo as StreamInfo


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record of a stream. `timestamp` is in milliseconds, `id` is its id in S3P."""

    sequence: int
    timestamp: int
    id: Position
    headers: Headers
    data: bytes


class NewRecord(msgspec.Struct, frozen=True, gc=False):
    """A record to append that is more than its data. `timestamp` None: the time of its arrival.

    One header of an empty name makes it a command: `fence` sets the stream's fencing token to the
    data, `trim` trims below the sequence that the data is, in eight bytes.
    """

    data: bytes
    headers: Headers = []
    timestamp: int | None = None


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The receipt of an append: `count` records are kept from sequence `first` on.

    They are as durable as the stream promises. `id` and `timestamp` are those of the last one.
    """

    first: int
    count: int
    id: Position
    first_timestamp: int
    timestamp: int

    @property
    def tail(self) -> int:
        """The sequence after the last one."""
        return self.first + self.count


def records_of(span: RecordColumns) -> Iterator[Record]:
    """The records of columns."""
    ids, timestamps, headers = span.ids, span.timestamps, span.headers
    for index, body in enumerate(span.bodies):
        yield Record(
            span.first + index,
            span.timestamp if timestamps is None else timestamps[index],
            Position(span.id.ms, span.id.seq + index) if ids is None else ids[index],
            [] if headers is None else headers[index],
            body,
        )
