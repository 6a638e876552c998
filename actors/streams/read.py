"""Reads of a stream: records that the store has, records of this batch, and reads that wait."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

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
from millpond.actors.streams.messages import (
    PackedSlice,
    Read,
    RecordColumns,
    Records,
    RecordSlice,
    Trim,
)
from millpond.actors.streams.read_scan import (
    ChunksLoaded,
    ReadScan,
    pack_chunks,
    scan_chunks,
)
from millpond.actors.streams.record_cache import StreamCache
from millpond.actors.streams.retention import SLICE_BYTES, Retention
from millpond.actors.streams.settings import StreamContext
from millpond.actors.streams.waiters import Waiter, Waiters

log = logging.getLogger(__name__)

SCANS_MAX = 16
"""The ranges that a read scans in one turn; if it has found nothing it continues in the next."""

ReadReply = Records | StreamFailed

NO_COLUMNS: dict[int, tuple[Chunk, RecordColumns]] = {}


class StreamReader:
    """The reads of one stream, and the trims that have to search for their point.

    `now` is the time of the batch, in seconds.
    """

    __slots__ = (
        "_appender",
        "_bounds",
        "_cache",
        "_cell",
        "_context",
        "_fork_log",
        "_ignores_store",
        "_is_draining",
        "_replied",
        "_retention",
        "_scans",
        "found",
        "waiters",
    )

    def __init__(
        self,
        cell: bytes,
        bounds: StreamBounds,
        appender: StreamAppender,
        context: StreamContext,
    ) -> None:
        self._cell = cell
        self._bounds = bounds
        self._appender = appender
        self._context = context
        self._scans: dict[ReadScan, None] = {}
        self._replied: list[tuple[Port, Read | Trim]] = []
        """Requests of earlier batches that this batch replied to: lost, should it fail."""
        self.found = 0
        """Counts replies to reads that had records."""
        self._cache = StreamCache(context.record_cache)
        self._retention = Retention(0, 0)
        self.waiters = Waiters()
        """The reads that wait for a record."""
        self._ignores_store = False
        """True: this batch deleted the stream, so nothing that the store has now counts."""
        self._fork_log: ForkLog | None = None
        self._is_draining = False
        """True: the node drains, and no read waits any more."""

    def configure(self, retention: Retention, parent: ForkParent | None) -> None:
        """Follow the stream's settings. `parent`: the stream is a fork."""
        self._retention = retention
        store = self._context.store
        self._fork_log = None if parent is None else ForkLog(store, self._cell, parent.chain)

    def deleted(self) -> None:
        """This batch deleted the stream."""
        self._ignores_store = True

    def end(self) -> None:
        """The batch is done."""
        self._ignores_store = False
        self._replied.clear()

    @property
    def waiting(self) -> int:
        """The number of reads that wait for a record."""
        return self.waiters.count

    # Reads.

    def read(self, port: Port, request: Read, now: float) -> ReadReply | None:
        """The reply to a read; None: it follows."""
        bounds, start = self._bounds, request.start
        if request.from_start and start.by is SeekBy.SEQUENCE:
            if start.sequence < bounds.trim_point:
                return bounds.failure(request.number, Code.TRIMMED)
        if not bounds.reaches(start):
            return self._wait(port, request, bounds.tail, now)
        if request.count < 1:
            return self._no_records(request, bounds.trim_point)
        return self._scan(ReadScan(port, request, bounds.trim_point), request, now)

    def _scan(self, scan: ReadScan, read: Read, now: float) -> ReadReply | None:
        for _ in range(SCANS_MAX):
            chunks = self._chunks(self._seek(scan, read))
            if isinstance(chunks, Deferred):
                self._await(scan, chunks)
                return None
            reply = self._show(scan, read, chunks, now)
            if reply is not None:
                return reply
            if scan.sequence >= self._bounds.tail:
                return self._wait(scan.port, read, scan.sequence, now)
        self._scans[scan] = None
        self._context.post(self._cell, ChunksLoaded(0, scan, None))
        return None

    def _show(
        self, scan: ReadScan, read: Read, chunks: list[Chunk], now: float
    ) -> ReadReply | None:
        """The reply with records of these chunks; None: go on at `scan.sequence`."""
        sequence = max(scan.sequence, self._bounds.trim_point)
        if not chunks:
            sequence = self._bounds.tail
        old = self._retention.expired(chunks, self._bounds.trim_point, int(now * 1000))
        scan.is_behind = 0 < old == len(chunks)
        if old:
            sequence = max(sequence, chunks[old - 1].end)
            chunks = chunks[old:]
        return self._show_from(scan, read, chunks, sequence)

    def _show_from(
        self, scan: ReadScan, read: Read, chunks: list[Chunk], sequence: int
    ) -> ReadReply | None:
        """The reply with records of these chunks from a sequence on; None: go on at
        `scan.sequence`."""
        bounds, appender = self._bounds, self._appender
        packed = pack_chunks(read, sequence, chunks)
        if packed is not None:
            return self._records(read, (), packed[1], (), packed[0])
        columns = appender.columns if appender.fresh else NO_COLUMNS
        try:
            result = scan_chunks(read, sequence, chunks, columns, self._cache)
        except BadChunk as exc:
            log.error("records not read: name=%r error=%s", self._cell, exc)
            return bounds.failure(read.number, Code.STORAGE_FAILED)
        self._context.counters.skipped += result.skipped
        if result.spans:
            return self._records(read, result.spans, result.next, result.slices)
        scan.is_found = True
        scan.sequence = result.next
        return None

    def _seek(self, scan: ReadScan, read: Read) -> Seek:
        start = read.start
        sequence = max(scan.sequence, start.sequence, self._bounds.trim_point)
        by, timestamp = start.by, start.timestamp
        if scan.is_found or by is SeekBy.SEQUENCE:
            by, timestamp = SeekBy.SEQUENCE, 0
        if scan.is_behind:
            return Seek(by, sequence, timestamp, start.id, max(read.bytes_max, SLICE_BYTES))
        return Seek(by, sequence, timestamp, start.id, read.bytes_max, read.count)

    def _chunks(self, seek: Seek) -> list[Chunk] | Deferred[list[Chunk] | Fault]:
        """The chunks that the store has, and after them those of this batch."""
        fresh = self._appender.fresh
        if self._ignores_store:
            return select_chunks((fresh,), seek, 0)
        chunks = self.stored_chunks(seek)
        if isinstance(chunks, Deferred) or not fresh:
            return chunks
        if not chunks or chunks[-1].end == fresh[0].first:
            chunks = chunks + select_chunks((fresh,), seek, 0)
        return chunks

    def stored_chunks(self, seek: Seek) -> list[Chunk] | Deferred[list[Chunk] | Fault]:
        """The chunks that the store has, those of a fork's ancestors among them."""
        if self._fork_log is not None:
            return self._fork_log.read(seek)
        return self._context.store.read(self._cell, seek)

    def _records(
        self,
        read: Read,
        spans: Sequence[RecordColumns],
        following: int,
        slices: Sequence[RecordSlice],
        packed: Sequence[PackedSlice] = (),
    ) -> Records:
        bounds = self._bounds
        self.found += 1
        return Records(
            read.number,
            spans,
            following,
            bounds.tail,
            bounds.last_timestamp,
            slices,
            bounds.is_closed,
            packed,
        )

    def _wait(self, port: Port, read: Read, sequence: int, now: float) -> Records | None:
        """Wait for a record after `sequence`, or reply that there is none."""
        if self._is_draining or read.wait_until <= now or read.count < 1:
            return self._no_records(read, sequence)
        if read.ends_closed and self._bounds.is_closed:
            return self._no_records(read, sequence)
        self.waiters.add(port, read, sequence)
        return None

    def _no_records(self, read: Read, sequence: int) -> Records:
        start = read.start
        if start.by is SeekBy.SEQUENCE:
            sequence = max(start.sequence, self._bounds.trim_point)
        return self._bounds.no_records(read.number, sequence)

    # Requests that wait for the store.

    def trim_point(self, port: Port, trim: Trim) -> int | StreamFailed | None:
        """The first sequence at or above the id of a trim; None: the store is asked for it."""
        bounds, below = self._bounds, trim.below
        if isinstance(below, int):
            return below
        if below > bounds.last_id or not bounds.tail:
            return bounds.tail
        scan = ReadScan(port, trim, bounds.trim_point)
        chunks = self._chunks(Seek(SeekBy.ID, bounds.trim_point, id=below, bytes_max=1))
        if isinstance(chunks, Deferred):
            self._await(scan, chunks)
            return None
        return self.trim_point_in(scan, chunks)

    def trim_point_in(
        self, scan: ReadScan, chunks: list[Chunk] | Fault | None
    ) -> int | StreamFailed:
        """The same as `trim_point`, with the chunks that the store read."""
        below = scan.request.below  # type: ignore[union-attr]  # only trims come here
        assert not isinstance(below, int), "sequences need no scan"
        if isinstance(chunks, Fault):
            return self._bounds.failure(scan.request.number, Code.STORAGE_FAILED)
        if not chunks:
            return self._bounds.trim_point
        try:
            return chunks[0].first + index_at_id(columns_of(chunks[0]), below)
        except BadChunk as exc:
            log.error("records not read: name=%r error=%s", self._cell, exc)
            return self._bounds.failure(scan.request.number, Code.STORAGE_FAILED)

    def _await(self, scan: ReadScan, chunks: Deferred[list[Chunk] | Fault]) -> None:
        self._scans[scan] = None
        scan.tail = self._bounds.tail
        self.deliver_later(scan, chunks)

    def deliver_later(self, scan: object, chunks: Deferred[list[Chunk] | Fault]) -> None:
        """Post the chunks to the stream's own cell once the store has read them."""
        chunks.when_done(partial(_deliver, self._context.post, self._cell, scan))

    def take_scan(self, scan: object) -> ReadScan | None:
        """A scan whose chunks were delivered; None: it was given up meanwhile."""
        if isinstance(scan, ReadScan) and scan in self._scans:
            del self._scans[scan]
            self._replied.append((scan.port, scan.request))
            return scan
        return None

    def resume(
        self, scan: ReadScan, read: Read, chunks: list[Chunk] | Fault | None, now: float
    ) -> ReadReply | None:
        """The reply to a read whose chunks were delivered; None: it follows.

        `chunks` None: the read had its share of a turn, and goes on.
        """
        if isinstance(chunks, Fault):
            return self._bounds.failure(read.number, Code.STORAGE_FAILED)
        if chunks is None or (not chunks and scan.tail < self._bounds.tail):
            return self._scan(scan, read, now)
        reply = self._show(scan, read, chunks, now)
        if reply is None and scan.sequence >= self._bounds.tail:
            return self._wait(scan.port, read, scan.sequence, now)
        return reply or self._scan(scan, read, now)

    # Reads that wait for records.

    def wake(self, effects: Effects) -> None:
        """Reply to the reads that waited for what this batch appended. Equal reads share their
        records."""
        bounds, waiters = self._bounds, self.waiters
        fresh = self._appender.fresh
        shared: dict[object, Records | int] = {}
        for waiter in waiters.reached(bounds.tail, bounds.last_id, bounds.last_timestamp):
            read = waiter.read
            start = _fresh_start(waiter, fresh[0])
            key = (start, read.count, read.bytes_max, id(read.record_filter), id(read.measure))
            result = shared.get(key)
            if result is None:
                result = shared[key] = self._show_fresh(waiter)
            if isinstance(result, int):
                waiters.again(waiter, result)
                continue
            waiters.end(waiter)
            self._replied.append((waiter.port, read))
            effects.deferred.append((waiter.port, read))
            reply = self._records(read, result.spans, result.next, result.slices, result.packed)
            effects.port_replies.append((waiter.port, reply))

    def _show_fresh(self, waiter: Waiter) -> Records | int:
        """The new records that a read shows, or the sequence from which it goes on waiting. A trim
        of the same batch does not count: who waits at the tail gets an append whole (S2X-71)."""
        scan = ReadScan(waiter.port, waiter.read, waiter.sequence)
        reply = self._show_from(scan, waiter.read, self._appender.fresh, waiter.sequence)
        return reply if isinstance(reply, Records) else scan.sequence

    def expire(self, now: float, effects: Effects) -> None:
        """Reply to the reads that waited long enough."""
        for waiter in self.waiters.expired(now):
            self._dismiss(waiter, effects)

    def finish(self, port: Port, number: int, effects: Effects) -> None:
        """The client waits no longer, but wants the records that there are."""
        waiter = self.waiters.find(port, number)
        if waiter is not None:
            self.waiters.end(waiter)
            self._dismiss(waiter, effects)
        for scan in self._scans:
            request = scan.request
            if scan.port is port and request.number == number and isinstance(request, Read):
                scan.request = msgspec.structs.replace(request, wait_until=0.0)

    def drain(self, effects: Effects) -> None:
        """The node drains: no read waits from now on."""
        self._is_draining = True
        self._dismiss_waiting(effects)

    def close(self, effects: Effects) -> None:
        """The stream is closed: reply to the reads that end with it."""
        self._dismiss_waiting(effects, is_closed=True)

    def _dismiss_waiting(self, effects: Effects, *, is_closed: bool = False) -> None:
        waiters = self.waiters
        for waiter in [each for each in waiters if each.read.ends_closed or not is_closed]:
            waiters.end(waiter)
            self._dismiss(waiter, effects)

    def _dismiss(self, waiter: Waiter, effects: Effects, code: Code | None = None) -> None:
        """Reply without records, or with the reason why there will be none."""
        read, bounds = waiter.read, self._bounds
        self._replied.append((waiter.port, read))
        effects.deferred.append((waiter.port, read))
        reply: ReadReply = self._no_records(read, bounds.tail)
        if code is not None:
            reply = bounds.failure(read.number, code)
        effects.port_replies.append((waiter.port, reply))

    def dismiss_all(self, effects: Effects) -> None:
        """The stream is deleted: reply without records. Reads of this incarnation and no other are
        told that it is gone."""
        self._cache.clear()
        for waiter in [each for each in self.waiters if each.read.incarnation]:
            self.waiters.end(waiter)
            self._dismiss(waiter, effects, Code.UNKNOWN_STREAM)
        self._dismiss_waiting(effects)
        for scan in self._scans:
            request, bounds = scan.request, self._bounds
            reply: ReadReply
            if isinstance(request, Read) and not request.incarnation:
                reply = bounds.no_records(request.number, 0)
            else:
                reply = bounds.failure(request.number, Code.UNKNOWN_STREAM)
            self._replied.append((scan.port, request))
            effects.port_replies.append((scan.port, reply))
        self._scans.clear()

    def cancel(self, port: Port, number: int | None = None) -> None:
        """The client does not want the reply any more; None: to none of its reads."""
        if number is None:
            self.waiters.leave(port)
        else:
            self.waiters.cancel(port, number)
        for scan in list(self._scans):
            if scan.port is port and number in (None, scan.request.number):
                if isinstance(scan.request, Read):
                    del self._scans[scan]

    def unanswered(self) -> Iterator[tuple[Port, Read | Trim]]:
        """Requests that were accepted and have no reply yet."""
        for waiter in self.waiters:
            yield waiter.port, waiter.read
        for scan in self._scans:
            yield scan.port, scan.request
        yield from self._replied

    @property
    def is_idle(self) -> bool:
        """True: no request waits."""
        return not self.waiters.count and not self._scans


def _fresh_start(waiter: Waiter, first: Chunk) -> object:
    """The point from which a read sees new records; equal for all reads that see all of them."""
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


def _deliver(
    post: Callable[[bytes, CellMessage], None],
    cell: bytes,
    scan: object,
    chunks: list[Chunk] | Fault,
) -> None:
    post(cell, ChunksLoaded(0, scan, chunks))
