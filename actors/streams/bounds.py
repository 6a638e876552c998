"""From where to where a stream goes: all that it knows of its records itself."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

from millpond.actors.errors import Code
from millpond.actors.messages import StreamFailed
from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import LogDeleted, LogSnapshot, LogTrimmed, Position
from millpond.actors.store.interface import Seek
from millpond.actors.streams.durable.messages import ForkParent
from millpond.actors.streams.messages import Records

EMPTY = Position(0, 0)
_sequence = itemgetter(0)


MARKS_MAX = 64


class StreamBounds:
    """Records from `trim_point` to before `tail`. `size` is that of their chunks, in bytes; those
    below `base` are in partitions of others, and weigh nothing here.

    What a trim gives back is told by marks: how much was written before some of the records. Their
    number is bounded, so it is told about right.
    """

    __slots__ = (
        "_marks",
        "base",
        "is_closed",
        "last_id",
        "last_timestamp",
        "size",
        "tail",
        "trim_point",
    )

    def __init__(self, outline: LogSnapshot) -> None:
        self.base = 0
        self.is_closed = False
        """No record comes any more."""
        self.tail = outline.tail
        self.trim_point = min(outline.trim_point, outline.tail)
        self.last_id = outline.last_id
        self.last_timestamp = outline.last_timestamp
        self.size = outline.bytes
        self._marks: list[tuple[int, int]] = []
        """First sequences of chunks and the size before them; the first record is one without."""

    def descend(self, parentage: ForkParent, trim_point: int = 0) -> None:
        """The stream is a fork: it goes on where it left its source."""
        self.base = parentage.point
        if self.tail <= self.base:
            self.tail = self.base
            self.last_id = Position(parentage.last_ms, parentage.last_seq)
            self.last_timestamp = parentage.last_timestamp
        self.trim_point = min(trim_point, self.tail)

    def grow(self, first: int, size: int) -> None:
        """The store gets a chunk that begins there."""
        marks = self._marks
        if len(marks) >= MARKS_MAX:
            del marks[::2]
        marks.append((first, self.size))
        self.size += size

    def forgo(self, size: int) -> None:
        """Chunks of so many bytes do not get to the store after all."""
        self.size -= size

    def reaches(self, start: Seek) -> bool:
        """Is there a record at or behind `start`, kept or trimmed?"""
        match start.by:
            case SeekBy.SEQUENCE:
                return self.tail > start.sequence
            case SeekBy.TIMESTAMP:
                return self.tail > 0 and self.last_timestamp >= start.timestamp
            case SeekBy.ID:
                return self.tail > 0 and self.last_id >= start.id

    def trim(self, point: int, size: int | None = None) -> LogTrimmed | None:
        """Records below `point` go; `size` says what that gives back, None: unknown."""
        point = min(point, self.tail)
        if point <= self.trim_point:
            return None
        if point <= self.base:
            freed = 0
        elif point == self.tail:
            freed = self.size
        else:
            freed = self._size_before(point) if size is None else min(size, self.size)
        self.trim_point = point
        self.size -= freed
        self._marks = [(first, before - freed) for first, before in self._marks if first > point]
        return LogTrimmed(point, freed)

    def _size_before(self, point: int) -> int:
        """What lies before a record, as if all between two marks weighed the same."""
        at = bisect_right(self._marks, point, key=_sequence)
        low, before = self._marks[at - 1] if at else (self.trim_point, 0)
        high, after = self._marks[at] if at < len(self._marks) else (self.tail, self.size)
        low = max(low, self.trim_point, self.base)
        return max(before + (after - before) * (point - low) // (high - low), 0)

    def drop(self) -> LogDeleted:
        """A stream from the beginning."""
        dropped = LogDeleted(self.size)
        self.tail = self.trim_point = self.last_timestamp = self.size = self.base = 0
        self.is_closed = False
        self.last_id = EMPTY
        self._marks = []
        return dropped

    def nothing(self, number: int, following: int) -> Records:
        """The answer to a read that found nothing."""
        return Records(number, (), following, self.tail, self.last_timestamp, (), self.is_closed)

    def refusal(self, number: int, code: Code, fence: bytes = b"") -> StreamFailed:
        """The answer to a request that is refused."""
        return StreamFailed(number, code, self.trim_point, self.tail, self.last_id, fence)
