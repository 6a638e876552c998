"""The detector of livelocks: so much happens in so little virtual time that a world never ends.

A node that has something to do again and again moves virtual time by a moment only, or not at all.
Without this such a world would end at the limit of real time, which says less and takes longer.
"""

from __future__ import annotations

from millpond.node.testing.time.asyncio_loop import VirtualLoop
from tests.sim.nodes.simulation import Unending

WITHIN_S = 0.25
TURNS_MAX = 3_000
"""The loop turns so often in that time; in a world as it should be, less than a thousand times."""
READING_TURNS_MAX = 10_000
"""The same in worlds that read all they have at one moment. A request takes nine turns, and a world
of repairs has at most 576 messages to read, and a hundred requests around that."""


class CountingLoop(VirtualLoop):
    """Counts its turns. Unending, out of whatever runs: time hardly passes any more."""

    def __init__(self, turns_max: int = TURNS_MAX) -> None:
        self._turns, self._since = 0, 0.0
        self._turns_max = turns_max
        super().__init__()

    def _run_once(self) -> None:
        self._turns += 1
        if self._now > self._since + WITHIN_S:
            self._turns, self._since = 0, self._now
        elif self._turns == self._turns_max:
            # Not in a task: the livelock would go on while its end is waited for.
            raise Unending(f"{self._turns_max} turns within {WITHIN_S:g} s")
        super()._run_once()  # type: ignore[misc]  # asyncio's own name for a turn


def reading_loop() -> CountingLoop:
    """A loop for worlds that read all they have at one moment."""
    return CountingLoop(READING_TURNS_MAX)
