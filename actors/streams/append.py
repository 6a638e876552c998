"""Appends: conditions, room, ids and timestamps, and the chunks that they come to."""

from __future__ import annotations

from millpond.actors.errors import Code
from millpond.actors.messages import StreamFailed
from millpond.actors.store.changes import Change, Chunk, Position
from millpond.actors.streams.bounds import StreamBounds
from millpond.actors.streams.chunks import ChunkBuilder
from millpond.actors.streams.command_records import BadCommandRecord, command_records_of
from millpond.actors.streams.messages import (
    DEFAULT_OPTIONS,
    Append,
    Appended,
    RecordColumns,
    StreamOptions,
    Timestamping,
)
from millpond.actors.streams.metadata import StreamMetadata
from millpond.actors.streams.moment import Moment
from millpond.actors.streams.record_ids import next_id, next_timestamps
from millpond.actors.streams.settings import StreamContext, StreamLimits


class StreamAppender:
    """Collects the records of a batch. `fresh` are its chunks, which the store lacks yet."""

    __slots__ = (
        "_extent",
        "_known",
        "_limits",
        "_moment",
        "_pile",
        "_piles",
        "_properties",
        "_room",
        "_said",
        "_shared",
        "fresh",
        "has_quota",
        "has_terms",
        "is_measured",
        "traits",
    )

    def __init__(
        self,
        extent: StreamBounds,
        properties: StreamMetadata,
        limits: StreamLimits,
        shared: StreamContext,
        moment: Moment,
    ) -> None:
        self._extent = extent
        self._properties = properties
        self._limits = limits
        self._shared = shared
        self._moment = moment
        self._pile: ChunkBuilder | None = None
        self._piles: list[ChunkBuilder] = []
        self._known: dict[int, tuple[Chunk, RecordColumns]] = {}
        self._room = 0
        self._said = 0
        self.is_measured = False
        """False: a batch begins, and the store has to be asked how much room there is."""
        self.has_quota = True
        """False: what is too much goes by itself."""
        self.traits: StreamOptions = DEFAULT_OPTIONS
        self.has_terms = False
        """There is more to ask than whether there is room."""
        self.fresh: list[Chunk] = []

    @property
    def has_news(self) -> bool:
        """Did this batch append anything?"""
        return self._pile is not None or bool(self.fresh)

    @property
    def known(self) -> dict[int, tuple[Chunk, RecordColumns]]:
        """The fresh chunks and what is in them, by their first sequences."""
        for chunk, pile in zip(self.fresh[len(self._known) :], self._piles, strict=True):
            self._known[chunk.first] = (chunk, pile.span())
        self._piles.clear()
        return self._known

    def end(self) -> None:
        """The batch goes to the store."""
        self.fresh = []
        self._piles = []
        if self._known:
            self._known = {}
        self._said = 0

    def _measure(self) -> None:
        """What may still come, in bytes; nothing if the store takes nothing."""
        limits, shared = self._limits, self._shared
        self.is_measured = True
        self._room = limits.node_bytes_max - shared.usage.log_bytes
        if self.has_quota:
            self._room = min(self._room, limits.bytes_max - self._extent.size)
        if limits.is_kept and not shared.health.is_writable:
            self._room = -1

    def append(self, request: Append) -> Appended | StreamFailed:
        """Add the records of a request to a stream that is there."""
        extent, bodies = self._extent, request.bodies
        count = len(bodies)
        size = len(bodies[0]) if count == 1 else sum(map(len, bodies))
        if not self.is_measured:
            self._measure()
        if (
            size > self._room
            or not count
            or request.headers is not None
            or request.timestamps is not None
            or request.fencing_token is not None
            or request.match_sequence is not None
            or self.has_terms
        ):
            refusal = self._refusal(request, size)
            if refusal is not None:
                return extent.refusal(request.number, refusal, self._properties.fence)
        now_ms = self._moment.now_ms
        last = extent.last_id if extent.tail else None
        position = next_id(last, request.ms, now_ms, count)
        if position is None:
            return extent.refusal(request.number, Code.NON_MONOTONIC_ID)
        if request.timestamps is not None:
            given = request.timestamps
            timestamps = next_timestamps(extent.last_timestamp, given, now_ms, self.traits)
        else:
            timestamps = now_ms if now_ms > extent.last_timestamp else extent.last_timestamp
        first = self._add(request, position, timestamps, size)
        final = position if count == 1 else Position(position.ms, position.seq + count - 1)
        extent.last_id = final
        if isinstance(timestamps, int):
            extent.last_timestamp = timestamps
            return Appended(request.number, first, count, final, timestamps, timestamps)
        extent.last_timestamp = timestamps[-1]
        return Appended(request.number, first, count, final, timestamps[0], timestamps[-1])

    def _add(
        self, request: Append, position: Position, timestamps: list[int] | int, size: int
    ) -> int:
        """Pile up what is alike; gives the sequence of the first record."""
        extent, bodies, pile = self._extent, request.bodies, self._pile
        first = extent.tail
        extent.tail = first + len(bodies)
        self._room -= size
        if pile is not None:
            if request.headers is None and isinstance(timestamps, int):
                if pile.add(position, bodies, size, timestamps):
                    return first
            self._close(pile)
        self._pile = ChunkBuilder(first, position, bodies, size, timestamps, request.headers)
        return first

    def _refusal(self, request: Append, size: int) -> Code | None:
        """Why the request cannot be done, whatever its ids are."""
        limits, token = self._limits, request.fencing_token
        if limits.is_kept and not self._shared.health.is_writable:
            return Code.STORAGE_FAILED
        if self._extent.is_closed:
            return Code.CLOSED
        if token is not None and token != self._properties.fence:
            return Code.FENCED
        if request.match_sequence is not None and request.match_sequence != self._extent.tail:
            return Code.SEQUENCE_MISMATCH
        if size > self._room:
            return Code.BUFFER_FULL
        if not request.bodies or not _is_square(request):
            return Code.MALFORMED
        if self.traits.timestamping is Timestamping.REQUIRED:
            if request.timestamps is None or None in request.timestamps:
                return Code.MALFORMED
        return None

    def _close(self, pile: ChunkBuilder) -> None:
        """What was piled up becomes a chunk."""
        self._pile = None
        chunk = pile.chunk()
        self.fresh.append(chunk)
        self._piles.append(pile)
        self._extent.grow(chunk.first, len(chunk.data))
        self._shared.counters.appended += chunk.count

    def flush(self, changes: list[Change]) -> None:
        """Say everything of this batch so far."""
        if self._pile is not None:
            self._close(self._pile)
        if self._said < len(self.fresh):
            changes += self.fresh[self._said :]
            self._said = len(self.fresh)

    def drop(self) -> None:
        """Nothing of it is wanted any more; the store does not hear of what it was not told."""
        self._extent.forgo(sum(len(chunk.data) for chunk in self.fresh[self._said :]))
        self._pile = None
        self.end()


def _is_square(request: Append) -> bool:
    """Is there an element for each body, and does every command record mean something?"""
    count = len(request.bodies)
    if request.timestamps is not None and len(request.timestamps) != count:
        return False
    if request.headers is None:
        return True
    if len(request.headers) != count:
        return False
    try:
        command_records_of(request.bodies, request.headers)
    except BadCommandRecord:
        return False
    return True
