"""Retention: the oldest records of a stream are trimmed when they are too old or too many.

The oldest chunks are read, a slice at a time, for their sizes and ages. Reads do not wait for that:
they never show records that are too old. Age counts from the arrival of a record at the node,
whatever its timestamp says (S2X-60, S2X-62). A record has the age that was set when it was appended
(S2X-61), and goes in its turn: one with a shorter age than those before it goes when they have
gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import msgspec

from millpond.actors.store.changes import Chunk, ColdChunk
from millpond.actors.streams.chunks import arrival_of
from millpond.actors.streams.metadata import FormerAge

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
    """The limits of age and size of one stream; 0: no limit. `former`: the ages of records that
    were appended before the age was changed."""

    __slots__ = (
        "_age_ms",
        "_due_ms",
        "_due_point",
        "_former",
        "_has_ages",
        "_paused_until",
        "_stuck_until",
        "has_limits",
        "keep_bytes",
    )

    def __init__(self, age_s: int, keep_bytes: int, former: Sequence[FormerAge] = ()) -> None:
        self.keep_bytes = keep_bytes
        self._age_ms = _milliseconds(age_s)
        self._former = [(each.end, _milliseconds(each.age_s)) for each in former]
        self._has_ages = bool(age_s) or any(each.age_s for each in former)
        self.has_limits = self._has_ages or bool(keep_bytes)
        self._due_ms: float | None = None
        """The time at which the oldest record is too old, or before it; None: unknown."""
        self._due_point = 0
        """The trim point for which that holds. Without former ages it holds for later ones too."""
        self._paused_until = self._stuck_until = -inf

    def pause(self, now: float) -> None:
        """The oldest chunks cannot be read now: try again later."""
        self._paused_until = self._stuck_until = now + RETRY_S

    def expired(self, chunks: list[Chunk], trim_point: int, now_ms: int) -> int:
        """The number of chunks before the first one that is not too old."""
        if not self._has_ages:
            return 0
        due_ms = self._known_due_ms(trim_point)
        if due_ms is not None and due_ms > now_ms:
            return 0
        young = (
            at
            for at, each in enumerate(chunks)
            if self._chunk_due_ms(each, trim_point, now_ms) > now_ms
        )
        return next(young, len(chunks))

    def is_above(self, size: int) -> bool:
        """True: a stream of so many bytes is larger than it may be."""
        return 0 < self.keep_bytes < size

    def next_at(self, trim_point: int, tail: int, size: int) -> float:
        """The time at which a stream with these records and bytes may have something to trim."""
        if trim_point == tail:
            return inf
        if self.is_above(size):
            return self._stuck_until
        if not self._has_ages:
            return inf
        due_ms = self._known_due_ms(trim_point)
        due_at = -inf if due_ms is None else due_ms / 1000
        return max(due_at, self._paused_until)

    def plan(self, chunks: list[Chunk], point: int, tail: int, size: int, now: float) -> TrimPlan:
        """The trim of the oldest `chunks` of a stream from `point` to `tail` with `size` bytes.

        The last chunk of all does not go for its size alone. Cold ones without their data go for
        their size alone.
        """
        now_ms = int(now * 1000)
        is_large = self.is_above(size)
        bytes_max = self.keep_bytes - self.keep_bytes // SLACK_FRACTION if is_large else size
        freed = 0
        self._due_ms = None
        for chunk in chunks:
            is_excess = size - freed > bytes_max and chunk.end < tail
            if not is_excess:
                if isinstance(chunk, ColdChunk):  # its age is in its data
                    break
                due_ms = self._chunk_due_ms(chunk, point, now_ms)
                if due_ms > now_ms:
                    self._due_ms = due_ms
                    break
            point, freed = chunk.end, freed + chunk.size
        self._due_point = point
        if self._due_ms is not None or not chunks:
            self._paused_until = now + PAUSE_S
        if not freed:
            self._stuck_until = now + PAUSE_S
        return TrimPlan(point, freed)

    def _known_due_ms(self, trim_point: int) -> float | None:
        return None if self._former and trim_point != self._due_point else self._due_ms

    def _chunk_due_ms(self, chunk: Chunk, trim_point: int, now_ms: int) -> float:
        """The time at which the records of a chunk are too old; infinity: never."""
        age_ms = self._age_ms_at(chunk.first, trim_point) if self._former else self._age_ms
        return arrival_of(chunk, now_ms) + age_ms

    def _age_ms_at(self, sequence: int, trim_point: int) -> float:
        """The age of a record, or that of earlier ones that are there and have a longer one."""
        longest_ms = 0.0
        for end, age_ms in self._former:
            if end > trim_point:
                longest_ms = max(longest_ms, age_ms)
                if sequence < end:
                    return longest_ms
        return max(longest_ms, self._age_ms)


def _milliseconds(age_s: int) -> float:
    return age_s * 1000 if age_s else inf
