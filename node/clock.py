"""The node's one time line: seconds since the Unix epoch that never step back."""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_S_MIN = 1.0


class Clock:
    """Wall time at the start, monotonic from then on, so that deadlines survive a stepped clock.

    A machine that slept finds its monotonic clock behind the wall: `resync` moves the line forward,
    never back. The sources are arguments, so that virtual time is simply another set of them.
    `wall` may be asked in any thread; `ticks_ns` is for how long something took, in nanoseconds.
    """

    __slots__ = ("_monotonic", "_offset", "ticks_ns", "wall")

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        ticks_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._monotonic = monotonic
        self.wall = wall
        self.ticks_ns = ticks_ns
        self._offset = wall() - monotonic()

    def now(self) -> float:
        return self._monotonic() + self._offset

    def resync(self) -> float:
        """Catch up with a wall clock that is ahead; gives by how many seconds."""
        ahead = self.wall() - self._monotonic() - self._offset
        if ahead < STEP_S_MIN:
            return 0.0
        self._offset += ahead
        return ahead
