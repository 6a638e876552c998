"""Trim grace: trims by command records take effect some seconds after their commit (S2X-72).

A writer may end a generation of records with a trim in the same append. Its readers open their
sessions meanwhile, and are to find the records.
"""

from __future__ import annotations

from collections import deque
from math import inf

STEPS = 32
"""Trims within this part of the grace take effect together, so that their number has a limit."""


class TrimGrace:
    """The trims of one stream that wait for the end of their grace, in seconds; the store has the
    highest point of them as metadata, so that a restart ends the grace and loses no trim (S2X-73).

    `point`: of trims that waited when the stream was stored; 0: none.
    """

    __slots__ = ("_grace_s", "waiting")

    def __init__(self, grace_s: float, point: int = 0) -> None:
        self._grace_s = grace_s
        self.waiting: deque[tuple[float, int]] = deque([(-inf, point)] if point else ())
        """The times at which trims take effect, and their points; both ascend."""

    def add(self, point: int, now: float) -> None:
        """Records below `point`, which is above those of all trims that wait, go after the
        grace."""
        due_at, step_s = now + self._grace_s, self._grace_s / STEPS
        waiting = self.waiting
        # The last but one keeps its time, so no stream of trims puts one off for ever.
        if len(waiting) > 1 and due_at - waiting[-2][0] < step_s:
            waiting.pop()
        waiting.append((due_at, point))

    def __len__(self) -> int:
        return len(self.waiting)

    def next_at(self, now: float) -> float:
        """The time at which the next trim takes effect; infinity: none waits. A clock that was set
        back makes no grace longer."""
        waiting = self.waiting
        if not waiting:
            return inf
        due_at, point = waiting[0]
        if due_at - now > self._grace_s:
            due_at = now + self._grace_s
            waiting[0] = due_at, point
        return due_at

    def take_due(self, now: float) -> int:
        """The point of the trims whose grace is over; 0: there is none."""
        point = 0
        while self.waiting and self.waiting[0][0] <= now:
            point = self.waiting.popleft()[1]
        return point

    def clear(self) -> None:
        """The stream is deleted."""
        self.waiting.clear()
