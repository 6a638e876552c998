"""How long a stream lives: for a time after it was used last, or until a time (B.5 32)."""

from __future__ import annotations

from math import inf

from millpond.actors.store.changes import Change
from millpond.actors.streams.durable.metadata import DurableMetadata

GRAIN_MS_MIN = 1000
GRAIN_PART = 16
"""A use is noted once the one that is noted is older than this part of the TTL."""


class Tenure:
    """Uses are noted now and then, so that not every read costs a change. What is built from the
    notes counts them as late as they may have been: it never goes too early."""

    __slots__ = ("_notes", "_used_ms", "slides")

    def __init__(self, notes: DurableMetadata, now_ms: int | None = None) -> None:
        """`now_ms`: the stream is made now; None: it is built from what is noted."""
        self._notes = notes
        self.slides = notes.lifetime.ttl_s is not None
        """Does a use put off the end?"""
        self._used_ms = notes.touched_ms + self._grain_ms if now_ms is None else now_ms

    @property
    def _grain_ms(self) -> int:
        return max(GRAIN_MS_MIN, (self._notes.lifetime.ttl_s or 0) * 1000 // GRAIN_PART)

    def use(self, now_ms: int, changes: list[Change], *, may_note: bool) -> None:
        """The stream is read, or written to. `may_note`: the store takes changes."""
        self._used_ms = max(self._used_ms, now_ms)
        if may_note and now_ms - self._notes.touched_ms >= self._grain_ms:
            changes.append(self._notes.touch(now_ms))

    @property
    def ends_at(self) -> float:
        """When the stream goes; infinity: never."""
        lifetime = self._notes.lifetime
        if lifetime.ttl_s is not None:
            return self._used_ms / 1000 + lifetime.ttl_s
        return inf if lifetime.expires_ms is None else lifetime.expires_ms / 1000
