"""Appends to a stream: conditions, limits, ids and timestamps, and the chunks that records fill."""

from __future__ import annotations

from collections.abc import Sequence

from millpond.actors.errors import Code
from millpond.actors.messages import CellMessage, Port, Reply, StreamFailed
from millpond.actors.store.changes import Change, Chunk, Position
from millpond.actors.streams.bounds import StreamBounds
from millpond.actors.streams.chunks import BYTES_MAX, RECORDS_MAX, ChunkBuilder, plain_chunk
from millpond.actors.streams.command_records import BadCommandRecord, command_records_of
from millpond.actors.streams.messages import (
    DEFAULT_OPTIONS,
    U64_MAX,
    Append,
    Appended,
    PackedBodies,
    RecordColumns,
    SessionAppend,
    StreamOptions,
    Timestamping,
)
from millpond.actors.streams.metadata import StreamMetadata
from millpond.actors.streams.record_ids import next_id, next_timestamps
from millpond.actors.streams.settings import StreamContext, StreamLimits

SEQUENCE_MAX = U64_MAX // 2
"""Ids whose second part is above this are counted one append at a time: they may be used up."""


class StreamAppender:
    """The records of a batch on their way into chunks. `fresh` are the chunks of this batch, which
    the store lacks yet."""

    __slots__ = (
        "_arrived_ms",
        "_bounds",
        "_builder",
        "_builders",
        "_bytes_left",
        "_columns",
        "_context",
        "_flushed",
        "_has_conditions",
        "_has_quota",
        "_is_measured",
        "_limits",
        "_metadata",
        "_now_ms",
        "_options",
        "_whole",
        "fresh",
        "has_appended",
    )

    def __init__(
        self,
        bounds: StreamBounds,
        metadata: StreamMetadata,
        limits: StreamLimits,
        context: StreamContext,
    ) -> None:
        self._bounds = bounds
        self._metadata = metadata
        self._limits = limits
        self._context = context
        self._now_ms = 0
        self._arrived_ms = 0
        """The arrival of the batch's records: its time, but never before that of earlier ones."""
        self._builder: ChunkBuilder | None = None
        self._whole: Chunk | None = None
        """All records of the batch, where it is appends of every day and no read waits."""
        self._builders: list[ChunkBuilder] = []
        self._columns: dict[int, tuple[Chunk, RecordColumns]] = {}
        self._bytes_left = 0
        self._flushed = 0
        """The number of fresh chunks that the store was told of."""
        self._is_measured = False
        """False: a batch begins, and the bytes left have to be computed."""
        self._has_quota = True
        """False: retention removes what is too much."""
        self._options: StreamOptions = DEFAULT_OPTIONS
        self._has_conditions = False
        """True: there is more to check than the bytes left."""
        self.fresh: list[Chunk] = []
        self.has_appended = False
        """This batch appended something."""

    def begin(self, now_ms: int) -> None:
        """A batch begins at this time."""
        self._now_ms = now_ms
        if now_ms > self._arrived_ms:
            self._arrived_ms = now_ms
        self._is_measured = False

    def configure(self, options: StreamOptions, *, has_quota: bool, is_closed: bool) -> None:
        """Follow the stream's settings."""
        self._options = options
        self._has_quota = has_quota
        is_required = options.timestamping is Timestamping.REQUIRED
        self._has_conditions = is_closed or is_required or options.is_encrypted

    def close(self) -> None:
        """Refuse everything from now on."""
        self._has_conditions = True

    @property
    def columns(self) -> dict[int, tuple[Chunk, RecordColumns]]:
        """The fresh chunks with their records, by their first sequences."""
        for chunk, builder in zip(self.fresh[len(self._columns) :], self._builders, strict=True):
            self._columns[chunk.first] = (chunk, builder.span())
        self._builders.clear()
        return self._columns

    def end(self) -> None:
        """The batch goes to the store."""
        self.has_appended = False
        self.fresh = []
        self._builders = []
        if self._columns:
            self._columns = {}
        self._flushed = 0

    def _measure(self) -> None:
        """Compute how many bytes may still come; none if the store takes nothing."""
        limits, context = self._limits, self._context
        self._is_measured = True
        self._bytes_left = limits.node_bytes_max - context.usage.log_bytes
        if self._has_quota:
            self._bytes_left = min(self._bytes_left, limits.bytes_max - self._bounds.size)
        if limits.is_durable and not context.health.is_writable:
            self._bytes_left = -1

    def append_run(
        self, requests: Sequence[CellMessage], replies: list[Reply], *, is_awaited: bool
    ) -> int:
        """Add the records of the appends that a batch begins with and that ask for nothing else,
        to a stream that exists, as far as they share a chunk. Appends their replies to `replies`,
        and gives the number of these appends. One page for the appends of every day; `append`
        judges all others. `is_awaited`: reads wait for records."""
        bounds, last, timestamp = self._bounds, self._bounds.last_id, self._now_ms
        if self._has_conditions or last.seq > SEQUENCE_MAX:
            return 0
        if not self._is_measured:
            self._measure()
        ms, seq = (last.ms, last.seq + 1) if bounds.tail else (timestamp, 0)
        if timestamp > ms:
            ms, seq = timestamp, 0
        if timestamp < bounds.last_timestamp:
            timestamp = bounds.last_timestamp
        appends = total = total_bytes = 0
        first, bytes_left = bounds.tail, self._bytes_left
        all_bodies: list[bytes] | PackedBodies = []
        counts: list[int] = []
        for request in requests:
            if (
                type(request) is not Append
                or request.ms is not None
                or request.headers is not None
                or request.timestamps is not None
                or request.fencing_token is not None
                or request.match_sequence is not None
            ):
                break
            bodies = request.bodies
            if type(bodies) is PackedBodies:
                count, size = bodies.count, bodies.size
            else:
                count = len(bodies)
                size = len(bodies[0]) if count == 1 else sum(map(len, bodies))
            if size > bytes_left or not count:
                break
            if not appends:
                all_bodies = bodies
            elif (
                type(all_bodies) is PackedBodies
                or type(bodies) is PackedBodies
                or total + count > RECORDS_MAX
                or total_bytes + size > BYTES_MAX
            ):
                break
            elif appends == 1:
                all_bodies = all_bodies + bodies  # the list was the request's
            else:
                all_bodies += bodies
            appends += 1
            counts.append(count)
            last = Position(ms, seq + total + count - 1)
            replies.append(
                Appended(
                    request.number,
                    first + total,
                    count,
                    last,
                    timestamp,
                    timestamp,
                    self._options,
                )
            )
            total += count
            total_bytes += size
            bytes_left -= size
        if appends:
            self.has_appended = True
            self._bytes_left = bytes_left
            bounds.append(total, last, timestamp)
            start = last if total == 1 else Position(ms, seq)
            arrived_ms = self._arrived_ms
            if appends == len(requests) and not is_awaited:
                self._whole = plain_chunk(
                    first, all_bodies, counts, (start, last), timestamp, arrived_ms
                )
            else:
                own = counts if appends > 1 else None
                self._builder = ChunkBuilder(
                    first, start, all_bodies, total_bytes, timestamp, None, arrived_ms, own
                )
        return appends

    def append(self, request: Append) -> Appended | StreamFailed:
        """Add the records of a request, all or none, to a stream that exists."""
        bounds, bodies, number = self._bounds, request.bodies, request.number
        count = len(bodies)
        if type(bodies) is PackedBodies:
            size = bodies.size
        else:
            size = len(bodies[0]) if count == 1 else sum(map(len, bodies))
        if not self._is_measured:
            self._measure()
        if (
            size > self._bytes_left
            or not count
            or request.headers is not None
            or request.timestamps is not None
            or request.fencing_token is not None
            or request.match_sequence is not None
            or self._has_conditions
            or request.is_encrypted
        ):
            code = self._check(request, count, size)
            if code is not None:
                return bounds.failure(number, code, self._metadata.fence)
        now_ms, latest = self._now_ms, bounds.last_timestamp
        position = next_id(bounds.last_id if bounds.tail else None, request.ms, now_ms, count)
        if position is None:
            return bounds.failure(number, Code.NON_MONOTONIC_ID)
        timestamps: list[int] | int
        if request.timestamps is None:
            timestamps = first_timestamp = last_timestamp = now_ms if now_ms > latest else latest
        else:
            timestamps = next_timestamps(latest, request.timestamps, now_ms, self._options)
            if isinstance(timestamps, int):
                first_timestamp = last_timestamp = timestamps
            else:
                first_timestamp, last_timestamp = timestamps[0], timestamps[-1]
        self.has_appended = True
        last = position if count == 1 else Position(position.ms, position.seq + count - 1)
        first = bounds.append(count, last, last_timestamp)
        self._bytes_left -= size
        builder = self._builder
        if (
            builder is None
            or request.headers is not None
            or not isinstance(timestamps, int)
            or not builder.add(position, bodies, size, timestamps)
        ):
            if builder is not None:
                self._build(builder)
            self._builder = ChunkBuilder(
                first, position, bodies, size, timestamps, request.headers, self._arrived_ms
            )
        return Appended(number, first, count, last, first_timestamp, last_timestamp, self._options)

    def _check(self, request: Append, count: int, size: int) -> Code | None:
        """The reason to refuse the request, whatever its ids are; None: there is none."""
        limits, token = self._limits, request.fencing_token
        if limits.is_durable and not self._context.health.is_writable:
            return Code.STORAGE_FAILED
        if self._bounds.is_closed:
            return Code.CLOSED
        if self._options.is_encrypted is not request.is_encrypted:
            return Code.ENCRYPTED
        if token is not None and token != self._metadata.fence:
            return Code.FENCED
        if request.match_sequence is not None and request.match_sequence != self._bounds.tail:
            return Code.SEQUENCE_MISMATCH
        if size > self._bytes_left:
            return Code.BUFFER_FULL
        if not count or not _is_well_formed(request, count):
            return Code.MALFORMED
        if self._options.timestamping is Timestamping.REQUIRED:
            if request.timestamps is None or None in request.timestamps:
                return Code.MALFORMED
        return None

    def _build(self, builder: ChunkBuilder) -> None:
        """Make a chunk of the collected records."""
        self._builder = None
        chunk = builder.chunk()
        self.fresh.append(chunk)
        self._builders.append(builder)
        self._bounds.add_chunk(chunk.first, len(chunk.data))
        self._context.counters.appended += chunk.count

    def flush(self, changes: list[Change]) -> None:
        """Add the chunks of this batch so far to the changes for the store."""
        if self._builder is not None:
            self._build(self._builder)
        if self._flushed < len(self.fresh):
            changes += self.fresh[self._flushed :]
            self._flushed = len(self.fresh)

    def hand_over(self, changes: list[Change]) -> None:
        """The batch ends, and nothing looks at its records before the store: the changes of
        `flush`, without a copy for reads."""
        chunk, self._whole = self._whole, None
        if chunk is None:
            builder = self._builder
            if builder is None or self.fresh:
                self.flush(changes)
                self.end()
                return
            self._builder = None
            chunk = builder.chunk()
        self.has_appended = False
        self._bounds.add_chunk(chunk.first, len(chunk.data))
        self._context.counters.appended += chunk.count
        changes.append(chunk)

    def discard(self) -> None:
        """The stream is deleted: the store never hears of what was not flushed."""
        self._bounds.discard(sum(len(chunk.data) for chunk in self.fresh[self._flushed :]))
        self._builder = None
        self.end()


class AppendSessions:
    """The latest append of each session, by number, or the code with which the session failed.

    Once an append of a session failed, every later one of it is refused. A stream that is built
    anew, as after a failed commit, knows no session: then only those go on that have heard of all
    their appends.
    """

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: dict[Port, int | Code] = {}

    def check(self, port: Port, request: SessionAppend) -> Code | None:
        """The reason to refuse an append; None: everything before it was done."""
        latest = self._latest.get(port)
        if isinstance(latest, Code):
            return latest
        if request.previous is not None and request.previous != latest:
            return Code.STORAGE_FAILED
        return None

    def record(self, port: Port, reply: Appended | StreamFailed) -> None:
        """Remember the reply to the session's latest append."""
        self._latest[port] = reply.code if isinstance(reply, StreamFailed) else reply.number

    def end(self, port: Port) -> None:
        """Forget a session."""
        self._latest.pop(port, None)


def _is_well_formed(request: Append, count: int) -> bool:
    """True: there is an element for each of `count` bodies, and every command record is a known
    one."""
    if request.timestamps is not None and len(request.timestamps) != count:
        return False
    if request.headers is None:
        return True
    if len(request.headers) != count or isinstance(request.bodies, PackedBodies):
        return False
    try:
        command_records_of(request.bodies, request.headers)
    except BadCommandRecord:
        return False
    return True
