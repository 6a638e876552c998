"""Scans: the records that a read shows of stored chunks, by position, age, filter, count and
size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from millpond.actors.messages import Port, StreamRequest
from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import Chunk
from millpond.actors.store.interface import Fault, Seek
from millpond.actors.streams.chunks import append_end, index_at_id, index_at_timestamp
from millpond.actors.streams.messages import (
    Headers,
    PackedSlice,
    Read,
    RecordColumns,
    RecordFilter,
    RecordSlice,
    Trim,
)
from millpond.actors.streams.record_cache import (
    SMALL_RECORDS_MAX,
    CachedChunk,
    CachedSlice,
    StreamCache,
)


class ReadScan:
    """A request of `port` that needs records of the store; it continues at `sequence`.

    `is_found`: that is at or behind where the request begins. `is_behind`: all chunks of the last
    look were too old, so the next one takes more at once. `tail` is the stream's when the store was
    asked last.
    """

    __slots__ = ("is_behind", "is_found", "port", "request", "sequence", "tail")

    def __init__(self, port: Port, request: Read | Trim, sequence: int) -> None:
        self.port = port
        self.request = request
        self.sequence = sequence
        self.is_found = self.is_behind = False
        self.tail = 0


class ChunksLoaded(StreamRequest, frozen=True):
    """Chunks that the store has read, sent to the stream's own cell.

    `chunks` None: it had its share of a turn, and goes on.
    """

    scan: object
    chunks: list[Chunk] | Fault | None


class ScanResult(msgspec.Struct, gc=False):
    """The records that a scan found; `slices` are the same as `spans`; continue at `next`.
    `skipped` records cannot be shown."""

    spans: list[RecordColumns]
    slices: list[RecordSlice]
    next: int
    skipped: int = 0

    def take(self, cached: CachedChunk, begin: int, end: int) -> None:
        """The records `begin` to before `end` of a cached chunk are to be shown."""
        if begin == 0 and end == cached.count:
            self.spans.append(cached.span)
            self.slices.append(cached)
        elif begin < end:
            part = CachedSlice(cached, begin, end)
            self.spans.append(part.span)
            self.slices.append(part)


def scan_chunks(
    read: Read,
    sequence: int,
    chunks: Sequence[Chunk],
    columns: Mapping[int, tuple[Chunk, RecordColumns]],
    cache: StreamCache,
) -> ScanResult:
    """Of ascending chunks, what a read shows from `sequence` on. `columns` has spans of chunks by
    their first sequence. Raises BadChunk."""
    if read.one_append:
        return _show_append(read, sequence, chunks, columns, cache)
    found = ScanResult([], [], sequence)
    count, bytes_left, record_filter = read.count, read.bytes_max, read.record_filter
    ahead = 0
    while ahead < len(chunks):
        # A reader by chunks reads much data once: it would push everything else out of the cache.
        cached, ahead = cache.cached(chunks, ahead, columns, is_kept=not read.by_chunk)
        # Behind one that is shown, all are asked for.
        begin = at = 0 if found.spans else _begin(read.start, cached.span, sequence)
        end = cached.count
        fits = end <= count and (cached.size <= bytes_left or read.by_chunk)
        if begin == 0 and fits and cached.is_plain(record_filter):
            found.spans.append(cached.span)
            found.slices.append(cached)
            found.next = cached.first + end
            count -= end
            bytes_left -= cached.size
            if not count or bytes_left <= 0:
                return found
            continue
        for first, last in _runs(cached, begin, end, record_filter):
            found.skipped += first - at
            last = min(last, first + count)
            at, bytes_left = _fitting(cached, first, last, bytes_left, bool(found.spans))
            found.take(cached, first, at)
            count -= at - first
            if not count or not bytes_left:
                found.next = cached.first + at
                return found
        found.skipped += max(end - at, 0)
        found.next = cached.first + end
    return found


def pack_chunks(
    read: Read, sequence: int, chunks: Sequence[Chunk]
) -> tuple[list[PackedSlice], int] | None:
    """Of ascending chunks, what a read shows from `sequence` on, as they keep it, and where
    to continue. None: `scan_chunks` is to find it."""
    measure, start = read.measure, read.start
    if measure is None or not chunks or start.by is SeekBy.TIMESTAMP:
        return None
    count_left, bytes_left = read.count, read.bytes_max
    found: list[PackedSlice] = []
    chunk = chunks[0]
    begin = max(sequence, start.sequence) - chunk.first
    if begin < 0:
        begin = 0
    if start.by is SeekBy.ID:
        first_id, wanted = chunk.first_id, start.id
        if first_id.ms < wanted.ms:
            return None  # its records have other ids than these, or none is wanted
        if first_id.ms == wanted.ms and wanted.seq - first_id.seq > begin:
            begin = wanted.seq - first_id.seq
    if begin >= chunk.count:
        return None
    for chunk in chunks:
        count = chunk.count
        end = begin + count_left
        if end > count:
            end = count
        if count <= SMALL_RECORDS_MAX:
            return None  # small chunks are read together, by columns
        data, first_id = chunk.data, chunk.first_id
        measured = measure(data, count, begin, end, bytes_left)
        if measured is None:
            return None
        offset, taken, size = measured
        if taken:
            first, timestamp = chunk.first + begin, chunk.first_timestamp
            ms, seq = first_id.ms, first_id.seq + begin
            found.append(PackedSlice(data, offset, taken, size, first, timestamp, ms, seq))
            sequence = first + taken
            count_left -= taken
            bytes_left -= size
        if begin + taken < count or not count_left or not bytes_left:
            break
        begin = 0
    return (found, sequence) if found else None


def _show_append(
    read: Read,
    sequence: int,
    chunks: Sequence[Chunk],
    columns: Mapping[int, tuple[Chunk, RecordColumns]],
    cache: StreamCache,
) -> ScanResult:
    """The same for what was appended with the first record that is shown; it is in one chunk."""
    found = ScanResult([], [], sequence)
    ahead = 0
    while ahead < len(chunks) and not found.spans:
        cached, ahead = cache.cached(chunks, ahead, columns)
        begin = max(_begin(read.start, cached.span, sequence), 0)
        runs = list(_runs(cached, begin, cached.count, read.record_filter))
        found.next = cached.first + cached.count
        if runs:
            first = cached.first + runs[0][0]
            chunk = next(each for each in chunks if each.first <= first < each.end)
            found.next = append_end(chunk, first)
            for begin, end in runs:
                found.take(cached, begin, min(end, found.next - cached.first))
    return found


def _begin(start: Seek, span: RecordColumns, sequence: int) -> int:
    """Within a span, the first record that a read may show."""
    begin = max(sequence - span.first, 0)
    match start.by:
        case SeekBy.SEQUENCE:
            begin = max(begin, start.sequence - span.first)
        case SeekBy.TIMESTAMP:
            begin = max(begin, index_at_timestamp(span, start.timestamp))
        case SeekBy.ID:
            begin = max(begin, index_at_id(span, start.id))
    return begin


def _runs(
    cached: CachedChunk, begin: int, end: int, record_filter: RecordFilter
) -> Iterator[tuple[int, int]]:
    """The ranges of consecutive records in a cached chunk that a filter passes."""
    if cached.is_plain(record_filter):
        if begin < end:
            yield begin, end
        return
    bodies, headers = cached.span.bodies, cached.span.headers
    first = begin
    for at in range(begin, end):
        body = bodies[at]
        is_shown = (
            (record_filter.empty or bool(body))
            and len(body) <= record_filter.body_bytes_max
            and (record_filter.commands or headers is None or not is_command(headers[at]))
        )
        if not is_shown:
            if first < at:
                yield first, at
            first = at + 1
    if first < end:
        yield first, end


def _fitting(
    cached: CachedChunk, first: int, last: int, bytes_left: int, has_some: bool
) -> tuple[int, int]:
    """Up to where the bodies fit, and how many bytes are left then; 0 when one does not fit.

    The very first one always does.
    """
    bodies = cached.span.bodies
    if cached.size <= bytes_left:
        return last, bytes_left - sum(map(len, bodies[first:last]))
    for at in range(first, last):
        bytes_left -= len(bodies[at])
        if bytes_left < 0 and (has_some or at > first):
            return at, 0
    return last, max(bytes_left, 0)


def is_command(headers: Headers) -> bool:
    """True: a record with these headers is a command record."""
    return len(headers) == 1 and not headers[0][0]
