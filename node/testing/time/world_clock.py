"""The clocks of a world: one time for all, and a wall clock for each node that may be wrong."""

from __future__ import annotations

from functools import partial

import anyio

from millpond.node.clock import Boot, Clock
from millpond.node.testing.time.virtual_time import LoopTime

START_S = 1_763_683_200.0
"""The start of a world in seconds since 1970: 2025-11-21, 00:00 UTC."""


class WorldClock:
    """The clocks, in seconds. All run as fast as the running loop."""

    def __init__(self, loop_time: LoopTime) -> None:
        self._loop_time = loop_time
        self._began = loop_time.time()
        self._skews: dict[str, float] = {}
        self._slept: dict[str, float] = {}
        self._boots: dict[str, int] = {}

    @property
    def is_virtual(self) -> bool:
        """Time passes only when all tasks wait."""
        return self._loop_time.is_virtual

    def elapsed(self) -> float:
        """Seconds since the start of the world."""
        return self._loop_time.time() - self._began

    def now(self) -> float:
        """Seconds since 1970 by the right clock."""
        return START_S + self.elapsed()

    def wall(self, name: str) -> float:
        """Seconds since 1970 by the clock of `name`."""
        return self.now() + self._skews.get(name, 0.0) + self._slept.get(name, 0.0)

    def skew(self, name: str, seconds: float) -> None:
        """Set the clock of `name` ahead of the right one (below 0: behind).

        A node looks at it at the start and then twice a minute. It never steps back, and follows a
        clock that is set forward by up to 5 minutes. Larger jumps it follows once they are
        confirmed (setting `clock_confirm_s`).
        """
        self._skews[name] = seconds

    def suspend(self, name: str, seconds: float) -> None:
        """The machine of `name` was asleep for so long, and woke in this moment: its monotonic
        clock stood meanwhile. For the rest of the world no time passed."""
        self._slept[name] = self._slept.get(name, 0.0) + seconds

    def reboot(self, name: str) -> None:
        """The machine of `name` boots: how long it was off is known from its wall clock alone."""
        self._boots[name] = self._boots.get(name, 0) + 1

    async def sleep(self, seconds: float) -> None:
        """Wait while time passes."""
        await anyio.sleep(seconds)

    def of(self, name: str) -> Clock:
        """The clock of a node."""
        boot = Boot(f"{name} {self._boots.get(name, 0)}", partial(self._uptime, name))
        return Clock(self.elapsed, partial(self.wall, name), self._ticks_ns, boot)

    def _uptime(self, name: str) -> float:
        return self.elapsed() + self._slept.get(name, 0.0)

    def _ticks_ns(self) -> int:
        return round(self.elapsed() * 1e9)
