"""What a read shows of the chunks that the store gives: by position, age, view, count and size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from actors.messages import Port, StreamRequest
from actors.store.changes import Chunk
from actors.store.seam import Fault, Seek, Where
from actors.streams.messages import Headers, Read, Span, Trim, View
from actors.streams.records import after_timestamp, at_id, at_timestamp, part_of, span_of


class Search:
    """A request of `port` that needs records of the store; it looks from `sequence` on.

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


class Found(StreamRequest, frozen=True):
    """To the stream itself: what it looks for is there.

    `chunks` None: it had its share of a turn, and goes on.
    """

    search: object
    chunks: list[Chunk] | Fault | None


class Slice(msgspec.Struct, gc=False):
    """`spans` were found; go on at `next`. `skipped` records cannot be shown."""

    spans: list[Span]
    next: int
    skipped: int = 0


def show(
    read: Read,
    sequence: int,
    chunks: Sequence[Chunk],
    floor_ms: int,
    known: dict[int, tuple[Chunk, Span]],
) -> Slice:
    """What `read` shows of consecutive chunks, from `sequence` on and above the timestamp
    `floor_ms`. `known` has spans of chunks by their first sequence. Raises BadChunk."""
    found = Slice([], sequence)
    count, bytes_left = read.count, read.bytes_max
    for chunk in chunks:
        entry = known.get(chunk.first)
        span = entry[1] if entry is not None and entry[0] is chunk else span_of(chunk)
        begin = at = _begin(read.start, span, sequence, floor_ms)
        end = chunk.count
        if begin == 0 and end <= count and len(chunk.data) <= bytes_left:
            if _is_plain(span, chunk, read.view):
                found.spans.append(span)
                found.next = chunk.end
                count -= end
                bytes_left -= len(chunk.data)
                if not count or not bytes_left:
                    return found
                continue
        for first, last in _runs(span, begin, end, read.view):
            found.skipped += first - at
            last = min(last, first + count)
            at, bytes_left = _fitting(span.bodies, first, last, bytes_left, bool(found.spans))
            if at > first:
                found.spans.append(part_of(span, first, at))
                count -= at - first
            if not count or not bytes_left:
                found.next = chunk.first + at
                return found
        found.skipped += max(end - at, 0)
        found.next = chunk.end
    return found


def _begin(start: Seek, span: Span, sequence: int, floor_ms: int) -> int:
    """Within a span, the first record that a read may show."""
    begin = max(sequence - span.first, 0)
    match start.where:
        case Where.SEQUENCE:
            begin = max(begin, start.sequence - span.first)
        case Where.TIMESTAMP:
            begin = max(begin, at_timestamp(span, start.timestamp))
        case Where.ID:
            begin = max(begin, at_id(span, start.id))
    if floor_ms >= 0:
        begin = max(begin, after_timestamp(span, floor_ms))
    return begin


def _is_plain(span: Span, chunk: Chunk, view: View) -> bool:
    """Does the view show all records of a span?"""
    return (
        (view.commands or span.headers is None)
        and (view.empty or b"" not in span.bodies)
        and len(chunk.data) <= view.body_bytes_max
    )


def _runs(span: Span, begin: int, end: int, view: View) -> Iterator[tuple[int, int]]:
    """Where in a span there are records, one after the other, that a view shows."""
    bodies, headers = span.bodies, span.headers
    if view.empty and (view.commands or headers is None) and begin < end:
        if max(map(len, bodies)) <= view.body_bytes_max:
            yield begin, end
            return
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
    bodies: list[bytes], first: int, last: int, bytes_left: int, has_some: bool
) -> tuple[int, int]:
    """Up to where the bodies fit, and how many bytes are left then; 0 when one does not fit.

    The very first one always does.
    """
    for at in range(first, last):
        bytes_left -= len(bodies[at])
        if bytes_left < 0 and (has_some or at > first):
            return at, 0
    return last, max(bytes_left, 0)


def is_command(headers: Headers) -> bool:
    """A record with one header whose name is empty is an order to the stream."""
    return len(headers) == 1 and not headers[0][0]
