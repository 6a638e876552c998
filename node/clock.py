"""The node's one time line: seconds since the Unix epoch that never step back."""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_S_MIN = 1.0


class Clock:
    """Wall time at the start, monotonic from then on, so that deadlines survive a stepped clock.

    A machine that slept finds its monotonic clock behind the wall: `resync` moves the line forward,
    never back. Both sources are arguments, so that virtual time is simply another pair.
    """

    __slots__ = ("_monotonic", "_offset", "_wall")

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._offset = wall() - monotonic()

    def now(self) -> float:
        return self._monotonic() + self._offset

    def resync(self) -> float:
        """Catch up with a wall clock that is ahead; gives by how many seconds."""
        ahead = self._wall() - self._monotonic() - self._offset
        if ahead < STEP_S_MIN:
            return 0.0
        self._offset += ahead
        return ahead
