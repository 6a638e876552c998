"""The clocks of a world: one time line for all, and a wall clock for each node that may be off."""

from __future__ import annotations

from functools import partial

import anyio

from millpond.node.clock import Clock
from millpond.node.testing.time.virtual_time import LoopTime

START_S = 1_763_683_200.0
"""When a world begins, in seconds since 1970: 2025-11-21, 00:00 UTC."""


class WorldClock:
    """Times in seconds. Nothing here is slower or faster than the running loop."""

    def __init__(self, pace: LoopTime) -> None:
        self._pace = pace
        self._began = pace.time()
        self._skews: dict[str, float] = {}

    @property
    def is_virtual(self) -> bool:
        """Does time pass only when everybody waits?"""
        return self._pace.is_virtual

    def elapsed(self) -> float:
        """How long the world exists."""
        return self._pace.time() - self._began

    def now(self) -> float:
        """Seconds since 1970 by the clock that is right."""
        return START_S + self.elapsed()

    def wall(self, name: str) -> float:
        """What the clock on `name`'s wall shows."""
        return self.now() + self._skews.get(name, 0.0)

    def skew(self, name: str, seconds: float) -> None:
        """Set the clock on `name`'s wall so much ahead (or, below 0, behind).

        As a real one, a node reads it when it starts, and from then on looks twice a minute: it
        follows a clock that is set forward, and never steps back.
        """
        self._skews[name] = seconds

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        await anyio.sleep(seconds)

    def of(self, name: str) -> Clock:
        """The clock that a node is given."""
        return Clock(self.elapsed, partial(self.wall, name), self._ticks_ns)

    def _ticks_ns(self) -> int:
        return round(self.elapsed() * 1e9)
