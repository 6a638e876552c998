"""Records as bytes of a chunk, and back, by columns (`RecordColumns`).

A chunk's data is MessagePack: `[bodies, timestamps | nil, ids | nil, headers | nil, appends |
nil, arrived_ms]`. Without timestamps all have the chunk's first one; without ids they go up by one
from its first; without headers none has any. `appends` says how many records each append had; 1:
each had one; nil or missing: they were one append, or nobody knows. `arrived_ms` is the node's time
at which all of them arrived, in milliseconds; missing: it is that of the id and of the timestamp,
or the chunk is of a version that did not keep it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Annotated

import msgspec

from millpond.actors.store.changes import Chunk, Position
from millpond.actors.streams.messages import Headers, PackedBodies, RecordColumns

RECORDS_MAX = 1000
BYTES_MAX = 2**20
"""Appends of one batch share a chunk up to here; one append may be larger."""


class _Columns(msgspec.Struct, array_like=True, gc=False):
    bodies: list[bytes]
    timestamps: list[int] | None = None
    ids: list[tuple[int, int]] | None = None
    headers: list[Headers] | None = None
    appends: list[Annotated[int, msgspec.Meta(ge=0)]] | int | None = None
    arrived_ms: int | None = None


class _Arrival(msgspec.Struct, array_like=True, gc=False):
    """The same columns, of which only the arrival is made an object."""

    bodies: msgspec.Raw
    timestamps: msgspec.Raw = msgspec.Raw()
    ids: msgspec.Raw = msgspec.Raw()
    headers: msgspec.Raw = msgspec.Raw()
    appends: msgspec.Raw = msgspec.Raw()
    arrived_ms: int | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Columns).decode
_decode_bodies = msgspec.msgpack.Decoder(list[bytes]).decode
_decode_arrival = msgspec.msgpack.Decoder(_Arrival).decode


class BadChunk(Exception):
    """The data of a chunk, which has the right checksum, is not a stream's."""


class ChunkBuilder:
    """Records on their way into one chunk. `counts`: the records of each append, where there are
    several; then the list of bodies is the builder's own."""

    __slots__ = (
        "_appends",
        "_arrived_ms",
        "_bodies",
        "_is_own",
        "_packed",
        "_sizes",
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
        bodies: list[bytes] | PackedBodies,
        size: int,
        timestamps: list[int] | int,
        headers: list[Headers] | None,
        arrived_ms: int,
        counts: list[int] | None = None,
    ) -> None:
        self.first = first
        self._arrived_ms = arrived_ms
        self.id = position
        self._is_own = counts is not None
        """False: the list is the request's, and stays as it is."""
        if type(bodies) is PackedBodies:
            self._bodies: list[bytes] = []
            self._packed: list[bytes] | None = [bodies.data]
            """Packed bodies, in pieces; there are no others."""
        else:
            self._bodies, self._packed = bodies, None
        self.size = size
        self.headers = headers
        self.count = bodies.count if type(bodies) is PackedBodies else len(bodies)
        self._appends = 1 if counts is None else len(counts)
        self._sizes = counts if self._appends < self.count else None
        """The number of records of each append; None: there is one append, or each has one
        record."""
        if isinstance(timestamps, int):
            self.timestamp, self.timestamps = timestamps, None
        else:
            self.timestamp, self.timestamps = timestamps[0], timestamps

    def add(
        self, position: Position, bodies: list[bytes] | PackedBodies, size: int, timestamp: int
    ) -> bool:
        """Take the records of another append, which have no headers, of `size` bytes. False: they
        do not fit."""
        count, more, mine = self.count, len(bodies), self.id
        if (
            timestamp != self.timestamp
            or self.timestamps is not None
            or self.headers is not None
            or count + more > RECORDS_MAX
            or self.size + size > BYTES_MAX
            or position.ms != mine.ms
            or position.seq != mine.seq + count
        ):
            return False
        if self._packed is not None or type(bodies) is PackedBodies:
            self._add_packed(bodies)
        elif self._is_own:
            self._bodies += bodies
        else:
            self._bodies, self._is_own = self._bodies + bodies, True
        if self._sizes is not None:
            self._sizes.append(more)
        elif more != 1 or count != self._appends:
            self._sizes = [*([count] if self._appends == 1 else [1] * count), more]
        self._appends += 1
        self.count = count + more
        self.size += size
        return True

    def _add_packed(self, bodies: list[bytes] | PackedBodies) -> None:
        if self._packed is None:
            self._packed = [_pack(self._bodies)]
            self._bodies = []
        self._packed.append(bodies.data if isinstance(bodies, PackedBodies) else _pack(bodies))

    def span(self) -> RecordColumns:
        """The records by columns."""
        packed = self._packed
        return RecordColumns(
            self.first,
            self._bodies if packed is None else _decode_bodies(_array_of(packed, self.count)),
            self.timestamp,
            self.id,
            self.timestamps,
            None,
            self.headers,
        )

    def chunk(self) -> Chunk:
        """The records as the store keeps them."""
        timestamps, first, count = self.timestamps, self.id, self.count
        packed = self._packed
        bodies: object = self._bodies
        if packed is not None:
            bodies = msgspec.Raw(_array_of(packed, count))
        return _chunk_of(
            self.first,
            count,
            (self.timestamp, self.timestamp if timestamps is None else timestamps[-1]),
            first,
            first if count == 1 else Position(first.ms, first.seq + count - 1),
            (bodies, timestamps, None, self.headers),
            None if self._appends == 1 else self._sizes or 1,
            self._arrived_ms,
        )


def plain_chunk(
    first: int,
    bodies: list[bytes] | PackedBodies,
    counts: list[int],
    ids: tuple[Position, Position],
    timestamp: int,
    arrived_ms: int,
) -> Chunk:
    """The chunk that a `ChunkBuilder` makes of appends of bodies alone, all of one timestamp.
    `counts` has the records of each append, `ids` the first and the last one."""
    appends = len(counts)
    if type(bodies) is PackedBodies:
        count, column = bodies.count, msgspec.Raw(_array_of([bodies.data], bodies.count))
        columns: tuple[object, ...] = column, None, None, None
    else:
        count, columns = len(bodies), (bodies, None, None, None)
    return _chunk_of(
        first,
        count,
        (timestamp, timestamp),
        ids[0],
        ids[1],
        columns,
        None if appends == 1 else 1 if appends == count else counts,
        arrived_ms,
    )


def _chunk_of(
    first: int,
    count: int,
    timestamps: tuple[int, int],
    first_id: Position,
    last_id: Position,
    columns: tuple[object, ...],
    appends: list[int] | int | None,
    arrived_ms: int,
) -> Chunk:
    """A chunk with these columns: bodies, timestamps, ids and headers. `timestamps` are the first
    and the last one."""
    timestamp, last_timestamp = timestamps
    if columns[1] is not None or not arrived_ms == timestamp == first_id.ms:
        columns = (*columns, appends, arrived_ms)
    elif appends is not None:
        columns = (*columns, appends)
    data = _encode(columns)
    return Chunk(first, count, timestamp, last_timestamp, first_id, last_id, data)


def _pack(bodies: list[bytes]) -> bytes:
    """Bodies as MessagePack strings, one behind the other."""
    return _encode(bodies)[len(_array_head(len(bodies))) :]


def _array_of(packed: list[bytes], count: int) -> bytes:
    """The MessagePack array of so many packed bodies."""
    return b"".join([_array_head(count), *packed])


def _array_head(count: int) -> bytes:
    """How a MessagePack array of so many elements begins."""
    if count < 2**4:
        return bytes((0x90 | count,))
    if count < 2**16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


def columns_of(chunk: Chunk) -> RecordColumns:
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
    sizes = columns.appends
    if isinstance(sizes, list) and (sum(sizes) != chunk.count or 0 in sizes):
        raise BadChunk(f"chunk {chunk.first}: its appends are not of {chunk.count} records")
    return RecordColumns(
        chunk.first,
        columns.bodies,
        chunk.first_timestamp,
        chunk.first_id,
        columns.timestamps,
        None if ids is None else [Position(*each) for each in ids],
        columns.headers,
    )


def arrival_of(chunk: Chunk, now_ms: int) -> int:
    """The time in milliseconds at which the records of a chunk arrived.

    Chunks of versions that did not keep it have it as the time of their ids or as their timestamps,
    one of which a client may have chosen: the later one, as long as that is not in the future.
    """
    try:
        arrived_ms = _decode_arrival(chunk.data).arrived_ms
    except msgspec.MsgspecError:
        arrived_ms = None  # what cannot be read grows old like the rest
    if arrived_ms is not None:
        return arrived_ms
    id_ms, timestamp = chunk.last_id.ms, chunk.last_timestamp
    latest_ms = max(id_ms, timestamp)
    return latest_ms if latest_ms <= now_ms else min(id_ms, timestamp)


def append_end(chunk: Chunk, sequence: int) -> int:
    """Behind the append that a record of a readable chunk belongs to."""
    appends = _decode(chunk.data).appends
    if appends is None:
        return chunk.end
    if isinstance(appends, int):
        return sequence + 1
    ends = list(accumulate(appends, initial=chunk.first))
    return ends[bisect_right(ends, sequence)]


def truncate_chunk(chunk: Chunk, end: int) -> Chunk:
    """The records of a chunk below a sequence within it. A chunk that cannot be read stays so."""
    count = end - chunk.first
    try:
        span = slice_columns(columns_of(chunk), 0, count)
    except BadChunk:
        return msgspec.structs.replace(chunk, count=count)
    columns = _decode(chunk.data)
    appends, arrived_ms = columns.appends, columns.arrived_ms
    timestamps, ids = span.timestamps, span.ids
    first = chunk.first_id
    if isinstance(appends, list):
        bounds = [min(each, count) for each in accumulate(appends, initial=0)]
        appends = [after - before for before, after in pairwise(bounds) if before < after]
    return msgspec.structs.replace(
        chunk,
        count=count,
        last_timestamp=chunk.first_timestamp if timestamps is None else timestamps[-1],
        last_id=Position(first.ms, first.seq + count - 1) if ids is None else ids[-1],
        data=_encode((span.bodies, timestamps, ids, span.headers, appends, arrived_ms)),
    )


def slice_columns(span: RecordColumns, begin: int, end: int) -> RecordColumns:
    """The records `begin` to before `end` of a span, counted within it."""
    if begin <= 0 and end >= len(span.bodies):
        return span
    timestamps, ids, headers = span.timestamps, span.ids, span.headers
    position = span.id
    return RecordColumns(
        span.first + begin,
        span.bodies[begin:end],
        span.timestamp if timestamps is None else timestamps[begin],
        Position(position.ms, position.seq + begin) if ids is None else ids[begin],
        None if timestamps is None else timestamps[begin:end],
        None if ids is None else ids[begin:end],
        None if headers is None else headers[begin:end],
    )


def join_columns(spans: Sequence[RecordColumns]) -> RecordColumns:
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
    return RecordColumns(first.first, bodies, timestamps[0], ids[0], timestamps, ids)


def _ids(first: Position, count: int) -> list[Position]:
    if count == 1:
        return [first]
    return [Position(first.ms, first.seq + at) for at in range(count)]


def index_at_timestamp(span: RecordColumns, timestamp: int) -> int:
    """Within a span, the first record at or above a timestamp; its length if there is none."""
    if span.timestamps is not None:
        return bisect_left(span.timestamps, timestamp)
    return 0 if span.timestamp >= timestamp else len(span.bodies)


def index_at_id(span: RecordColumns, position: Position) -> int:
    """Within a span, the first record at or above an id."""
    first, count = span.id, len(span.bodies)
    if span.ids is not None:
        return bisect_left(span.ids, position)
    if position.ms != first.ms:
        return 0 if position.ms < first.ms else count
    return min(max(position.seq - first.seq, 0), count)
