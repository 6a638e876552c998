"""Reads: what the store has, what this batch adds, and who waits for what is to come."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import CellMessage, Port, StreamFailed
from millpond.actors.positions import SeekBy
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import Chunk
from millpond.actors.store.interface import Deferred, Fault, Seek
from millpond.actors.store.reads import select_chunks
from millpond.actors.streams.append import StreamAppender
from millpond.actors.streams.bounds import StreamBounds
from millpond.actors.streams.chunks import BadChunk, columns_of, index_at_id
from millpond.actors.streams.durable.fork_log import ForkLog
from millpond.actors.streams.durable.messages import ForkParent
from millpond.actors.streams.messages import Read, RecordColumns, Records, RecordSlice, Trim
from millpond.actors.streams.moment import Moment
from millpond.actors.streams.read_scan import ChunksLoaded, ReadScan, scan_chunks
from millpond.actors.streams.record_cache import StreamCache
from millpond.actors.streams.retention import Retention
from millpond.actors.streams.settings import StreamContext
from millpond.actors.streams.waiters import Waiter, Waiters

log = logging.getLogger(__name__)

LOOKS_MAX = 16
"""A read that finds nothing it can show goes on in the next turn after so many ranges."""

Answer = Records | StreamFailed

NOTHING_KNOWN: dict[int, tuple[Chunk, RecordColumns]] = {}


class StreamReader:
    """The reads of one stream. `retention` is asked what is too old to be shown."""

    __slots__ = (
        "_answered",
        "_appender",
        "_cell",
        "_extent",
        "_lineage",
        "_moment",
        "_row",
        "_searches",
        "_shared",
        "is_new",
        "is_stopped",
        "retention",
        "waiters",
    )

    def __init__(
        self,
        cell: bytes,
        extent: StreamBounds,
        appender: StreamAppender,
        shared: StreamContext,
        moment: Moment,
    ) -> None:
        self._cell = cell
        self._extent = extent
        self._appender = appender
        self._shared = shared
        self._searches: dict[ReadScan, None] = {}
        self._answered: list[tuple[Port, Read | Trim]] = []
        """What this batch answered of what others waited for: lost, should it fail."""
        self._moment = moment
        self._row = StreamCache(shared.shelf)
        self.retention = Retention(0, 0)
        self.waiters = Waiters()
        self.is_new = False
        """Nothing that the store has now counts: this batch deleted it."""
        self._lineage: ForkLog | None = None
        self.is_stopped = False
        """Nobody waits any more: the node drains."""

    def end(self) -> None:
        """The batch is done."""
        self.is_new = False
        self._answered.clear()

    # Reads.

    def read(self, port: Port, request: Read) -> Answer | None:
        """The answer; None: it follows."""
        extent, start = self._extent, request.start
        if request.from_start and start.by is SeekBy.SEQUENCE:
            if start.sequence < extent.trim_point:
                return extent.refusal(request.number, Code.TRIMMED)
        if not extent.reaches(start):
            return self._nothing(port, request, extent.tail)
        if request.count < 1:
            return self._empty(request, extent.trim_point)
        return self._look(ReadScan(port, request, extent.trim_point), request)

    def _look(self, search: ReadScan, read: Read) -> Answer | None:
        for _ in range(LOOKS_MAX):
            chunks = self._chunks(self._seek(search, read))
            if isinstance(chunks, Deferred):
                self._await(search, chunks)
                return None
            answer = self._show(search, read, chunks)
            if answer is not None:
                return answer
            if search.sequence >= self._extent.tail:
                return self._nothing(search.port, read, search.sequence)
        self._searches[search] = None
        self._shared.post(self._cell, ChunksLoaded(0, search, None))
        return None

    def _show(self, search: ReadScan, read: Read, chunks: list[Chunk]) -> Answer | None:
        """The answer that chunks give; None: go on at `search.sequence`."""
        extent = self._extent
        sequence = max(search.sequence, extent.trim_point)
        floor_ms = self.retention.floor_ms(self._moment.now_ms)
        try:
            appender = self._appender
            known = appender.known if appender.fresh else NOTHING_KNOWN
            shown = scan_chunks(read, sequence, chunks, floor_ms, known, self._row)
        except BadChunk as exc:
            log.error("records not read: name=%r error=%s", self._cell, exc)
            return extent.refusal(read.number, Code.STORAGE_FAILED)
        self._shared.counters.skipped += shown.skipped
        if shown.spans:
            return self._records(read, shown.spans, shown.next, shown.slices)
        search.is_found = True
        search.sequence = shown.next if chunks else extent.tail
        return None

    def _seek(self, search: ReadScan, read: Read) -> Seek:
        start = read.start
        floor_ms = self.retention.floor_ms(self._moment.now_ms)
        sequence = max(search.sequence, start.sequence, self._extent.trim_point)
        where, timestamp = start.by, start.timestamp
        if search.is_found or where is SeekBy.SEQUENCE:
            where, timestamp = SeekBy.SEQUENCE, 0
        if floor_ms >= 0 and where is not SeekBy.ID:
            where, timestamp = SeekBy.TIMESTAMP, max(timestamp, floor_ms + 1)
        return Seek(where, sequence, timestamp, start.id, read.bytes_max, read.count)

    def _chunks(self, seek: Seek) -> list[Chunk] | Deferred[list[Chunk] | Fault]:
        """What the store has, and behind it what it is about to get."""
        fresh = self._appender.fresh
        if self.is_new:
            return select_chunks((fresh,), seek, 0)
        chunks = self.kept(seek)
        if isinstance(chunks, Deferred) or not fresh:
            return chunks
        if not chunks or chunks[-1].end == fresh[0].first:
            chunks = chunks + select_chunks((fresh,), seek, 0)
        return chunks

    def descend(self, parentage: ForkParent | None) -> None:
        """The stream is a fork, or none."""
        store = self._shared.store
        self._lineage = None if parentage is None else ForkLog(store, self._cell, parentage.lineage)

    def kept(self, seek: Seek) -> list[Chunk] | Deferred[list[Chunk] | Fault]:
        """What the store has."""
        if self._lineage is not None:
            return self._lineage.read(seek)
        return self._shared.store.read(self._cell, seek)

    def _records(
        self,
        read: Read,
        spans: Sequence[RecordColumns],
        following: int,
        slices: Sequence[RecordSlice],
    ) -> Records:
        extent = self._extent
        return Records(
            read.number,
            spans,
            following,
            extent.tail,
            extent.last_timestamp,
            slices,
            extent.is_closed,
        )

    def _nothing(self, port: Port, read: Read, sequence: int) -> Records | None:
        """There is nothing yet: wait for it, or say so."""
        if self.is_stopped or read.wait_until <= self._moment.now or read.count < 1:
            return self._empty(read, sequence)
        if read.ends_closed and self._extent.is_closed:
            return self._empty(read, sequence)
        self.waiters.add(port, read, sequence)
        return None

    def _empty(self, read: Read, sequence: int) -> Records:
        start = read.start
        if start.by is SeekBy.SEQUENCE:
            sequence = max(start.sequence, self._extent.trim_point)
        return self._extent.nothing(read.number, sequence)

    # What the store looks for.

    def trim_point(self, port: Port, trim: Trim) -> int | StreamFailed | None:
        """The first sequence at or above the id of a trim; None: it follows."""
        extent, below = self._extent, trim.below
        if isinstance(below, int):
            return below
        if below > extent.last_id or not extent.tail:
            return extent.tail
        search = ReadScan(port, trim, extent.trim_point)
        seek = Seek(SeekBy.ID, extent.trim_point, id=below, bytes_max=1)
        chunks = self._chunks(seek)
        if isinstance(chunks, Deferred):
            self._await(search, chunks)
            return None
        return self.point_in(search, chunks)

    def point_in(self, search: ReadScan, chunks: list[Chunk] | Fault | None) -> int | StreamFailed:
        """SeekBy a trim points to, now that its chunks are there."""
        below = search.request.below  # type: ignore[union-attr]  # only trims come here
        assert not isinstance(below, int), "sequences need no search"
        if isinstance(chunks, Fault):
            return self._extent.refusal(search.request.number, Code.STORAGE_FAILED)
        if not chunks:
            return self._extent.trim_point
        try:
            return chunks[0].first + index_at_id(columns_of(chunks[0]), below)
        except BadChunk as exc:
            log.error("records not read: name=%r error=%s", self._cell, exc)
            return self._extent.refusal(search.request.number, Code.STORAGE_FAILED)

    def _await(self, search: ReadScan, chunks: Deferred[list[Chunk] | Fault]) -> None:
        self._searches[search] = None
        search.tail = self._extent.tail
        self.bring(search, chunks)

    def bring(self, search: object, chunks: Deferred[list[Chunk] | Fault]) -> None:
        """Have the stream find what the store looks for in its mail."""
        chunks.when_done(partial(_bring, self._shared.post, self._cell, search))

    def take(self, search: object) -> ReadScan | None:
        """A search whose chunks are there; None: it was given up meanwhile."""
        if isinstance(search, ReadScan) and search in self._searches:
            del self._searches[search]
            self._answered.append((search.port, search.request))
            return search
        return None

    def found(
        self, search: ReadScan, read: Read, chunks: list[Chunk] | Fault | None
    ) -> Answer | None:
        """The answer to a read, now that its chunks are there; None: it follows.

        `chunks` None: it had its share of a turn, and goes on.
        """
        if isinstance(chunks, Fault):
            return self._extent.refusal(read.number, Code.STORAGE_FAILED)
        if chunks is None or (not chunks and search.tail < self._extent.tail):
            return self._look(search, read)
        answer = self._show(search, read, chunks)
        if answer is None and search.sequence >= self._extent.tail:
            return self._nothing(search.port, read, search.sequence)
        return answer or self._look(search, read)

    # Who waits.

    def answer_reached(self, effects: Effects) -> None:
        """Answer who waited for what this batch appended. Alike reads share their spans."""
        extent, waiters = self._extent, self.waiters
        fresh = self._appender.fresh
        if not fresh or not waiters.count:
            return
        alike: dict[object, Records | int] = {}
        for waiter in waiters.reached(extent.tail, extent.last_id, extent.last_timestamp):
            read = waiter.read
            key = (_first_of(waiter, fresh[0]), read.count, read.bytes_max, id(read.view))
            result = alike.get(key)
            if result is None:
                result = alike[key] = self._show_fresh(waiter)
            if isinstance(result, int):
                waiters.again(waiter, result)
                continue
            waiters.end(waiter)
            self._answered.append((waiter.port, read))
            effects.deferred.append((waiter.port, read))
            answer = self._records(read, result.spans, result.next, result.slices)
            effects.replies.append((waiter.port, answer))

    def _show_fresh(self, waiter: Waiter) -> Records | int:
        """What is new for a waiter, or where it goes on waiting."""
        search = ReadScan(waiter.port, waiter.read, waiter.sequence)
        shown = self._show(search, waiter.read, self._appender.fresh)
        return shown if isinstance(shown, Records) else search.sequence

    def expire(self, now: float, effects: Effects) -> None:
        """Answer who waited long enough."""
        for waiter in self.waiters.expired(now):
            self._dismiss(waiter, effects)

    def conclude(self, port: Port, number: int, effects: Effects) -> None:
        """The asker waits no longer, but wants what there is."""
        waiter = self.waiters.find(port, number)
        if waiter is not None:
            self.waiters.end(waiter)
            self._dismiss(waiter, effects)
        for search in self._searches:
            request = search.request
            if search.port is port and request.number == number and isinstance(request, Read):
                search.request = msgspec.structs.replace(request, wait_until=0.0)

    def dismiss_waiting(self, effects: Effects, *, is_closed: bool = False) -> None:
        """Answer with nothing who waits; `is_closed`: only who waits for nothing else."""
        for waiter in [each for each in self.waiters if each.read.ends_closed or not is_closed]:
            self.waiters.end(waiter)
            self._dismiss(waiter, effects)

    def _dismiss(self, waiter: Waiter, effects: Effects, code: Code | None = None) -> None:
        """Answer with nothing, or with why there will be nothing."""
        read, extent = waiter.read, self._extent
        self._answered.append((waiter.port, read))
        effects.deferred.append((waiter.port, read))
        answer: Answer = self._empty(read, extent.tail)
        if code is not None:
            answer = extent.refusal(read.number, code)
        effects.replies.append((waiter.port, answer))

    def dismiss_all(self, effects: Effects) -> None:
        """The stream is deleted: what was asked of it finds nothing; what was asked of this one and
        no other of its name hears that it is gone."""
        self._row.clear()
        for waiter in [each for each in self.waiters if each.read.incarnation]:
            self.waiters.end(waiter)
            self._dismiss(waiter, effects, Code.UNKNOWN_STREAM)
        self.dismiss_waiting(effects)
        for search in self._searches:
            request, extent = search.request, self._extent
            answer: Answer
            if isinstance(request, Read) and not request.incarnation:
                answer = extent.nothing(request.number, 0)
            else:
                answer = extent.refusal(request.number, Code.UNKNOWN_STREAM)
            self._answered.append((search.port, request))
            effects.replies.append((search.port, answer))
        self._searches.clear()

    def cancel(self, port: Port, number: int | None = None) -> None:
        """The asker does not want it any more; None: it wants nothing any more."""
        if number is None:
            self.waiters.leave(port)
        else:
            self.waiters.cancel(port, number)
        for search in list(self._searches):
            if search.port is port and number in (None, search.request.number):
                if isinstance(search.request, Read):
                    del self._searches[search]

    def unanswered(self) -> Iterator[tuple[Port, Read | Trim]]:
        """Requests that were taken and are not answered."""
        for waiter in self.waiters:
            yield waiter.port, waiter.read
        for search in self._searches:
            yield search.port, search.request
        yield from self._answered

    @property
    def is_idle(self) -> bool:
        """Nobody waits for anything."""
        return not self.waiters.count and not self._searches

    @property
    def next_at(self) -> float:
        """When somebody waited long enough."""
        return self.waiters.next_at if self.waiters.count else inf


def _first_of(waiter: Waiter, first: Chunk) -> object:
    """From where on a waiter sees what is new; the same for all who see all of it."""
    start = waiter.read.start
    sequence = max(waiter.sequence, start.sequence)
    match start.by:
        case SeekBy.SEQUENCE:
            is_before = True
        case SeekBy.TIMESTAMP:
            is_before = start.timestamp <= first.first_timestamp
        case SeekBy.ID:
            is_before = start.id <= first.first_id
    if is_before:
        return max(sequence, first.first)
    return sequence, start.timestamp, start.id.ms, start.id.seq


def _bring(
    post: Callable[[bytes, CellMessage], None],
    cell: bytes,
    search: object,
    chunks: list[Chunk] | Fault,
) -> None:
    post(cell, ChunksLoaded(0, search, chunks))
