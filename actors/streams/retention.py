"""Retention: the oldest records of a stream are trimmed when they are too old or too many.

The oldest chunks are read, a slice at a time, for their sizes and ages. Reads do not wait for that:
they never show records that are too old. Age counts from the arrival of a record at the node,
whatever its timestamp says (S2X-60, S2X-62).
"""

from __future__ import annotations

from math import inf

import msgspec

from millpond.actors.store.changes import Chunk
from millpond.actors.streams.chunks import arrival_of

SLICE_BYTES = 2**20
PAUSE_S = 1.0
"""Between two looks at what is too old, unless there is more to do at once."""
RETRY_S = 5.0
SLACK_FRACTION = 16
"""Above its size a stream is trimmed by a sixteenth of it, so that not every append trims."""


class TrimPlan(msgspec.Struct, frozen=True, gc=False):
    """The records below `point`, with `size` bytes of chunks, are to be trimmed."""

    point: int
    size: int


class Retention:
    """The limits of age and size of one stream; 0: no limit."""

    __slots__ = (
        "_oldest_ms",
        "_paused_until",
        "_stuck_until",
        "age_ms",
        "keep_bytes",
    )

    def __init__(self, age_ms: int, keep_bytes: int) -> None:
        self.age_ms = age_ms
        self.keep_bytes = keep_bytes
        self._oldest_ms: int | None = None
        """The arrival of the oldest record, or before it; None: unknown."""
        self._paused_until = self._stuck_until = -inf

    def pause(self, now: float) -> None:
        """The oldest chunks cannot be read now: try again later."""
        self._paused_until = self._stuck_until = now + RETRY_S

    def floor_ms(self, now_ms: int) -> int:
        """The arrival at or before which records are too old; -1: none is."""
        return now_ms - self.age_ms if self.age_ms else -1

    def expired(self, chunks: list[Chunk], now_ms: int) -> int:
        """The number of chunks before the first one that is not too old."""
        floor_ms, oldest_ms = self.floor_ms(now_ms), self._oldest_ms
        if floor_ms < 0 or (oldest_ms is not None and oldest_ms > floor_ms):
            return 0
        young = (at for at, each in enumerate(chunks) if arrival_of(each, now_ms) > floor_ms)
        return next(young, len(chunks))

    def next_at(self, count: int, size: int) -> float:
        """The time at which a stream of so many records and bytes may have something to trim."""
        if not count:
            return inf
        if self.keep_bytes and size > self.keep_bytes:
            return self._stuck_until
        if not self.age_ms:
            return inf
        oldest_ms = self._oldest_ms
        due_at = -inf if oldest_ms is None else (oldest_ms + self.age_ms) / 1000
        return max(due_at, self._paused_until)

    def plan(self, chunks: list[Chunk], point: int, tail: int, size: int, now: float) -> TrimPlan:
        """The trim of the oldest `chunks` of a stream from `point` to `tail` with `size` bytes.

        The last chunk of all does not go for its size alone.
        """
        now_ms = int(now * 1000)
        floor_ms = self.floor_ms(now_ms)
        is_large = bool(self.keep_bytes) and size > self.keep_bytes
        bytes_max = self.keep_bytes - self.keep_bytes // SLACK_FRACTION if is_large else size
        freed = 0
        self._oldest_ms = None
        for chunk in chunks:
            is_excess = size - freed > bytes_max and chunk.end < tail
            if not is_excess:
                arrived_ms = arrival_of(chunk, now_ms)
                if arrived_ms > floor_ms:
                    self._oldest_ms = arrived_ms
                    break
            point, freed = chunk.end, freed + len(chunk.data)
        if self._oldest_ms is not None or not chunks:
            self._paused_until = now + PAUSE_S
        if not freed:
            self._stuck_until = now + PAUSE_S
        return TrimPlan(point, freed)
