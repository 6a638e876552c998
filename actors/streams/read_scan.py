"""Scans: the records that a read shows of stored chunks, by position, age, filter, count and
size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from millpond.actors.messages import Port, StreamRequest
from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import Chunk
from millpond.actors.store.interface import Fault, Seek
from millpond.actors.streams.chunks import (
    append_end,
    index_after_timestamp,
    index_at_id,
    index_at_timestamp,
)
from millpond.actors.streams.messages import (
    Headers,
    Read,
    RecordColumns,
    RecordFilter,
    RecordSlice,
    Trim,
)
from millpond.actors.streams.record_cache import CachedChunk, CachedSlice, StreamCache


class ReadScan:
    """A request of `port` that needs records of the store; it continues at `sequence`.

    `is_found`: that is at or behind where the request begins. `tail` is the stream's when the store
    was asked last.
    """

    __slots__ = ("is_found", "port", "request", "sequence", "tail")

    def __init__(self, port: Port, request: Read | Trim, sequence: int) -> None:
        self.port = port
        self.request = request
        self.sequence = sequence
        self.is_found = False
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

    def take(self, item: CachedChunk, begin: int, end: int) -> None:
        """The records `begin` to before `end` of an item are to be shown."""
        if begin == 0 and end == item.count:
            self.spans.append(item.span)
            self.slices.append(item)
        elif begin < end:
            part = CachedSlice(item, begin, end)
            self.spans.append(part.span)
            self.slices.append(part)


def scan_chunks(
    read: Read,
    sequence: int,
    chunks: Sequence[Chunk],
    floor_ms: int,
    known: Mapping[int, tuple[Chunk, RecordColumns]],
    row: StreamCache,
) -> ScanResult:
    """Of ascending chunks, what a read shows from `sequence` on and above the timestamp
    `floor_ms`. `known` has spans of chunks by their first sequence. Raises BadChunk."""
    if read.one_append:
        return _show_append(read, sequence, chunks, floor_ms, known, row)
    found = ScanResult([], [], sequence)
    count, bytes_left, view = read.count, read.bytes_max, read.record_filter
    ahead = 0
    while ahead < len(chunks):
        # Who reads by chunk reads a lot, once: others would find nothing else on the shelf.
        item, ahead = row.item(chunks, ahead, known, is_kept=not read.by_chunk)
        # Behind one that is shown, all are asked for.
        begin = at = 0 if found.spans else _begin(read.start, item.span, sequence, floor_ms)
        end = item.count
        fits = end <= count and (item.size <= bytes_left or read.by_chunk)
        if begin == 0 and fits and item.is_plain(view):
            found.spans.append(item.span)
            found.slices.append(item)
            found.next = item.first + end
            count -= end
            bytes_left -= item.size
            if not count or bytes_left <= 0:
                return found
            continue
        for first, last in _runs(item, begin, end, view):
            found.skipped += first - at
            last = min(last, first + count)
            at, bytes_left = _fitting(item, first, last, bytes_left, bool(found.spans))
            found.take(item, first, at)
            count -= at - first
            if not count or not bytes_left:
                found.next = item.first + at
                return found
        found.skipped += max(end - at, 0)
        found.next = item.first + end
    return found


def _show_append(
    read: Read,
    sequence: int,
    chunks: Sequence[Chunk],
    floor_ms: int,
    known: Mapping[int, tuple[Chunk, RecordColumns]],
    row: StreamCache,
) -> ScanResult:
    """The same for what was appended with the first record that is shown; it is in one chunk."""
    found = ScanResult([], [], sequence)
    ahead = 0
    while ahead < len(chunks) and not found.spans:
        item, ahead = row.item(chunks, ahead, known)
        begin = max(_begin(read.start, item.span, sequence, floor_ms), 0)
        runs = list(_runs(item, begin, item.count, read.record_filter))
        found.next = item.first + item.count
        if runs:
            first = item.first + runs[0][0]
            chunk = next(each for each in chunks if each.first <= first < each.end)
            found.next = append_end(chunk, first)
            for begin, end in runs:
                found.take(item, begin, min(end, found.next - item.first))
    return found


def _begin(start: Seek, span: RecordColumns, sequence: int, floor_ms: int) -> int:
    """Within a span, the first record that a read may show."""
    begin = max(sequence - span.first, 0)
    match start.by:
        case SeekBy.SEQUENCE:
            begin = max(begin, start.sequence - span.first)
        case SeekBy.TIMESTAMP:
            begin = max(begin, index_at_timestamp(span, start.timestamp))
        case SeekBy.ID:
            begin = max(begin, index_at_id(span, start.id))
    if floor_ms >= 0:
        begin = max(begin, index_after_timestamp(span, floor_ms))
    return begin


def _runs(item: CachedChunk, begin: int, end: int, view: RecordFilter) -> Iterator[tuple[int, int]]:
    """SeekBy in an item there are records, one after the other, that a view shows."""
    if item.is_plain(view):
        if begin < end:
            yield begin, end
        return
    bodies, headers = item.span.bodies, item.span.headers
    first = begin
    for at in range(begin, end):
        body = bodies[at]
        is_shown = (
            (view.empty or bool(body))
            and len(body) <= view.body_bytes_max
            and (view.commands or headers is None or not is_command(headers[at]))
        )
        if not is_shown:
            if first < at:
                yield first, at
            first = at + 1
    if first < end:
        yield first, end


def _fitting(
    item: CachedChunk, first: int, last: int, bytes_left: int, has_some: bool
) -> tuple[int, int]:
    """Up to where the bodies fit, and how many bytes are left then; 0 when one does not fit.

    The very first one always does.
    """
    bodies = item.span.bodies
    if item.size <= bytes_left:
        return last, bytes_left - sum(map(len, bodies[first:last]))
    for at in range(first, last):
        bytes_left -= len(bodies[at])
        if bytes_left < 0 and (has_some or at > first):
            return at, 0
    return last, max(bytes_left, 0)


def is_command(headers: Headers) -> bool:
    """True: a record with these headers is a command record."""
    return len(headers) == 1 and not headers[0][0]
