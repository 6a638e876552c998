"""Stream bounds: the range of sequences that a stream has, its size, and its latest record."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

from millpond.actors.errors import Code
from millpond.actors.messages import StreamFailed
from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import (
    Chunk,
    LogChange,
    LogDeleted,
    LogSnapshot,
    LogTrimmed,
    Position,
)
from millpond.actors.store.interface import Seek
from millpond.actors.streams.durable.messages import ForkParent
from millpond.actors.streams.messages import Records

EMPTY = Position(0, 0)
MARKS_MAX = 64
_sequence = itemgetter(0)


def beginning(first: int) -> list[LogChange]:
    """The changes with which a new log begins whose records begin at `first`, because a lost log of
    its name may have had the sequences before: these count as trimmed."""
    return [Chunk(first - 1, 1, 0, 0, EMPTY, EMPTY, b""), LogTrimmed(first)]


class StreamBounds:
    """Records from `trim_point` to before `tail`. `size` is that of their chunks in bytes; records
    below `base` are in the partitions of other streams, and do not count.

    How much a trim frees is estimated from marks: the size before some of the records. The number
    of marks is bounded, so the estimate is about right.
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

    def __init__(self, snapshot: LogSnapshot) -> None:
        self.base = 0
        self.is_closed = False
        """True: the stream takes no more records."""
        self.tail = snapshot.tail
        self.trim_point = min(snapshot.trim_point, snapshot.tail)
        self.last_id = snapshot.last_id
        self.last_timestamp = snapshot.last_timestamp
        self.size = snapshot.bytes
        self._marks: list[tuple[int, int]] = []
        """First sequences of chunks and the size before them; the first record is one without."""

    def begin_at(self, first: int) -> None:
        """The stream is empty, and its first record gets this sequence."""
        self.delete()
        self.tail = self.trim_point = first

    def start_at_fork(self, parent: ForkParent, trim_point: int = 0) -> None:
        """The stream is a fork: its own records begin where it left its source, or above."""
        self.base = parent.first
        if self.tail <= self.base:
            self.tail = self.base
            self.last_id = Position(parent.last_ms, parent.last_seq)
            self.last_timestamp = parent.last_timestamp
        self.trim_point = min(trim_point, self.tail)

    def set_closed(self, *, is_closed: bool) -> None:
        """The stream takes no more records, or is open."""
        self.is_closed = is_closed

    def append(self, count: int, last_id: Position, last_timestamp: int) -> int:
        """Add records at the end; gives the sequence of the first one."""
        first = self.tail
        self.tail = first + count
        self.last_id = last_id
        self.last_timestamp = last_timestamp
        return first

    def add_chunk(self, first: int, size: int) -> None:
        """Count a chunk of `size` bytes that begins with the sequence `first`."""
        marks = self._marks
        if len(marks) >= MARKS_MAX:
            del marks[::2]
        marks.append((first, self.size))
        self.size += size

    def discard(self, size: int) -> None:
        """Chunks of so many bytes do not get to the store after all."""
        self.size -= size

    def reaches(self, start: Seek) -> bool:
        """True: there is a record at or after `start`, stored or trimmed."""
        match start.by:
            case SeekBy.SEQUENCE:
                return self.tail > start.sequence
            case SeekBy.TIMESTAMP:
                return self.tail > 0 and self.last_timestamp >= start.timestamp
            case SeekBy.ID:
                return self.tail > 0 and self.last_id >= start.id

    def trim(self, point: int, size: int | None = None) -> LogTrimmed | None:
        """Remove records below `point`, which have `size` bytes (None: unknown). Gives the change
        for the store; None: there is nothing to remove."""
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
        """The size before a record, as if all records between two marks had the same size."""
        at = bisect_right(self._marks, point, key=_sequence)
        low, before = self._marks[at - 1] if at else (self.trim_point, 0)
        high, after = self._marks[at] if at < len(self._marks) else (self.tail, self.size)
        low = max(low, self.trim_point, self.base)
        return max(before + (after - before) * (point - low) // (high - low), 0)

    def delete(self) -> LogDeleted:
        """Begin anew as an empty stream."""
        dropped = LogDeleted(self.size)
        self.tail = self.trim_point = self.last_timestamp = self.size = self.base = 0
        self.is_closed = False
        self.last_id = EMPTY
        self._marks = []
        return dropped

    def no_records(self, number: int, following: int) -> Records:
        """The reply to a read that found nothing."""
        return Records(number, (), following, self.tail, self.last_timestamp, (), self.is_closed)

    def failure(self, number: int, code: Code, fence: bytes = b"") -> StreamFailed:
        """The reply to a request that is refused."""
        return StreamFailed(number, code, self.trim_point, self.tail, self.last_id, fence)
