"""The limits of a read while it goes on, and the batches that its records come in (A.5)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from millpond.actors.positions import Position
from millpond.actors.streams.messages import (
    U64_MAX,
    PackedSlice,
    RecordColumns,
    RecordFormat,
    RecordSlice,
)
from millpond.transports.http.s2.codecs.sse import EventId
from millpond.transports.http.s2.errors import StreamPosition
from millpond.transports.http.s2.model import (
    METERED_MAX,
    RECORD_BYTES,
    RECORDS_MAX,
    RecordBatch,
    metered_sizes,
    metered_span,
)

BULK_BYTES = METERED_MAX // 8 * 7
"""The bytes that a bulk read asks for: with the chunk that reaches them a batch is about full."""


class ReadBudget:
    """The rest that a read may show: `count` records, `size` metered bytes of them, and none at or
    above the timestamp `until`; None: no limit.

    With the first record that it may not show it `is_over`, whatever comes behind that one.
    """

    __slots__ = (
        "_count_max",
        "_metered_max",
        "_records_max",
        "_until",
        "count",
        "is_over",
        "last",
        "metered",
    )

    def __init__(
        self,
        count: int | None = None,
        size: int | None = None,
        until: int | None = None,
        records_max: int = RECORDS_MAX,
    ) -> None:
        self._records_max = records_max
        self._count_max = U64_MAX if count is None else count
        self._metered_max = U64_MAX if size is None else size
        self._until = until
        self.count = 0
        """Records so far."""
        self.metered = 0
        """Their metered bytes."""
        self.last = 0
        """The sequence of the last one."""
        self.is_over = until == 0
        self._end_if_spent(0, 0)

    def resume(self, event: EventId) -> None:
        """Count what an earlier session of the same reader has shown."""
        self.last, self.count, self.metered = event.last, event.count, event.metered
        self._end_if_spent(0, 0)

    @property
    def count_left(self) -> int:
        """The records to ask for at once."""
        return min(self._count_max - self.count, self._records_max)

    @property
    def bytes_left(self) -> int:
        """The bytes to ask for at once."""
        size = BULK_BYTES if self.is_bulk else METERED_MAX
        return min(self._metered_max - self.metered, size)

    @property
    def is_bulk(self) -> bool:
        """True for batches larger than S2's: chunks are read, not single records."""
        return self._records_max > RECORDS_MAX

    @property
    def takes_packed(self) -> bool:
        """True: a read for `count_left` and `bytes_left` finds no record that may not be shown, so
        its records need not be looked at."""
        return self._until is None and not self.is_bulk

    @property
    def event_id(self) -> EventId:
        """The position of the read after the last batch."""
        return EventId(self.last, self.count, self.metered)

    def admitted(self, records: Iterable[tuple[int, int]]) -> int:
        """How many of the next records, each by its timestamp and metered size, may be shown."""
        count, metered, shown = self.count, self.metered, 0
        for timestamp, size in records:
            count += 1
            metered += size
            if count > self._count_max or metered > self._metered_max or self.is_over:
                break
            if self._until is not None and timestamp >= self._until:
                break
            shown += 1
        return shown

    def batches(
        self,
        spans: Sequence[RecordColumns],
        slices: Sequence[RecordSlice] = (),
        tail: StreamPosition | None = None,
    ) -> Iterator[RecordBatch]:
        """The next records, as far as they may be shown, in batches of at most 1000 records, or
        as many as were said, and 1 MiB metered; only a record that is larger by itself makes a
        larger one. `tail` goes into each. `slices` are the same as `spans`, or there are none.
        """
        filling = _Filling(self._records_max)
        for at, span in enumerate(spans):
            if self.is_over:
                break
            size = metered_span(span)
            piece = slices[at] if slices else _Plain(span)
            end = self._end(span, size, filling)
            if end < len(span.bodies):
                self.is_over = True
                span = part_of(span, 0, end)
                size, piece = metered_span(span), _Plain(span)
            while not filling.holds(span, size):
                end = filling.fitting(span)
                if end:
                    filling.add_part(part_of(span, 0, end))
                    span = part_of(span, end, len(span.bodies))
                    size, piece = metered_span(span), _Plain(span)
                yield self._give(filling, tail)
                filling = _Filling(self._records_max)
            filling.add(span, size, piece)
            self._end_if_spent(filling.count, filling.metered)
        if filling.count:
            yield self._give(filling, tail)

    def packed_batch(
        self, slices: Sequence[PackedSlice], tail: StreamPosition | None = None
    ) -> RecordBatch:
        """The next records as chunks keep them, as a read for `count_left` and `bytes_left` found
        them: one batch."""
        last = slices[-1]
        self.count += sum([each.count for each in slices])
        self.metered += sum([each.size for each in slices])
        self.last = last.first + last.count - 1
        self._end_if_spent(0, 0)
        return RecordBatch(tail=tail, packed=slices)

    def _end(self, span: RecordColumns, size: int, filling: _Filling) -> int:
        """Up to where records of a span may be shown behind those that are not given yet."""
        end = min(len(span.bodies), self._count_max - self.count - filling.count)
        if self._until is not None:
            end = min(end, _before(span, self._until))
        left = self._metered_max - self.metered - filling.metered
        return end if size <= left else min(end, _fitting(span, left))

    def _give(self, filling: _Filling, tail: StreamPosition | None) -> RecordBatch:
        self.count += filling.count
        self.metered += filling.metered
        self.last = filling.last
        return RecordBatch(filling.spans, tail, filling.slices)

    def _end_if_spent(self, count: int, metered: int) -> None:
        """Mark the budget as spent if no record fits beside this many more."""
        count += self.count
        metered += self.metered
        if count >= self._count_max or metered + RECORD_BYTES > self._metered_max:
            self.is_over = True


class _Filling:
    """A batch that grows."""

    __slots__ = ("_records_max", "count", "last", "metered", "slices", "spans")

    def __init__(self, records_max: int) -> None:
        self._records_max = records_max
        self.spans: list[RecordColumns] = []
        self.slices: list[RecordSlice] = []
        self.count = self.metered = self.last = 0

    def holds(self, span: RecordColumns, size: int) -> bool:
        """True if the whole slice fits, or is one record in an empty batch."""
        count = len(span.bodies)
        if self.count + count <= self._records_max and self.metered + size <= METERED_MAX:
            return True
        return not self.count and count == 1

    def fitting(self, span: RecordColumns) -> int:
        """The number of records of the slice that fit; at least one in an empty batch."""
        end = min(_fitting(span, METERED_MAX - self.metered), self._records_max - self.count)
        return end if self.count else max(end, 1)

    def add(self, span: RecordColumns, size: int, piece: RecordSlice) -> None:
        """A span whose `piece` it is."""
        if span.bodies:
            self.spans.append(span)
            self.slices.append(piece)
            self.count += len(span.bodies)
            self.metered += size
            self.last = span.first + len(span.bodies) - 1

    def add_part(self, span: RecordColumns) -> None:
        """A part of a span."""
        self.add(span, metered_span(span), _Plain(span))


class _Plain:
    """A span, written for this reader alone."""

    __slots__ = ("_span",)

    def __init__(self, span: RecordColumns) -> None:
        self._span = span

    def encoded(self, record_format: RecordFormat) -> bytes:
        """The records as `record_format` writes them."""
        return record_format.encode(self._span)


def _before(span: RecordColumns, until: int) -> int:
    """The number of records of a slice before a timestamp."""
    if span.timestamps is not None:
        return bisect_left(span.timestamps, until)
    return len(span.bodies) if span.timestamp < until else 0


def _fitting(span: RecordColumns, metered: int) -> int:
    """The number of records of a slice that fit into so many metered bytes."""
    ends = list(accumulate(metered_sizes(span.bodies, span.headers)))
    return bisect_right(ends, metered)


def part_of(span: RecordColumns, begin: int, end: int) -> RecordColumns:
    """The records `begin` to before `end` of a span, counted within it."""
    timestamps, ids, headers = span.timestamps, span.ids, span.headers
    first_id = Position(span.id.ms, span.id.seq + begin) if ids is None else span.id
    return RecordColumns(
        span.first + begin,
        span.bodies[begin:end],
        span.timestamp,
        first_id,
        None if timestamps is None else timestamps[begin:end],
        None if ids is None else ids[begin:end],
        None if headers is None else headers[begin:end],
    )
