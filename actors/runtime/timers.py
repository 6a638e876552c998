"""Timers: one heap with the deadlines of all cells.

Deadlines move far more often than they pass, so entries are never searched for: an outdated one is
skipped when its time comes, and the heap is rebuilt when outdated entries outnumber the live ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, Protocol, TypeVar

SLACK = 64

T = TypeVar("T")


class DeadlineHeap(Generic[T]):
    """Items by deadline. `is_current(when, item)` is False for an entry that was replaced."""

    __slots__ = ("_count", "_heap", "_is_current", "_size_live")

    def __init__(self, is_current: Callable[[float, T], bool]) -> None:
        self._is_current = is_current
        # The counter breaks ties, so that equal times keep their order and items never compare.
        self._heap: list[tuple[float, int, T]] = []
        self._count = 0
        self._size_live = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, when: float, item: T) -> None:
        """Add `item` at `when`; an older entry of it becomes outdated by `is_current`."""
        if len(self._heap) > 2 * self._size_live + SLACK:
            self.purge()
        self._count += 1
        heappush(self._heap, (when, self._count, item))

    def purge(self) -> None:
        """Remove outdated entries."""
        self._heap = [entry for entry in self._heap if self._is_current(entry[0], entry[2])]
        heapify(self._heap)
        self._size_live = len(self._heap)

    @property
    def next_at(self) -> float:
        """The time of the earliest current entry; infinity: there is none."""
        heap = self._heap
        while heap:
            when, _, item = heap[0]
            if self._is_current(when, item):
                return when
            heappop(heap)
        return inf

    def due(self, now: float) -> Iterator[T]:
        """Remove and give the current entries up to `now`, earliest first."""
        while self.next_at <= now:
            yield self.pop()

    def pop(self) -> T:
        """Remove and give the earliest entry, right after `next_at` was read."""
        return heappop(self._heap)[2]


class TimerOwner(Protocol):
    """Something with at most one deadline."""

    deadline: float
    """Kept by `Timers`; infinity = none. Starts as infinity."""

    def wake(self, now: float) -> None:
        """The deadline passed. May come early, never forgotten; arm again for the next one."""


def _is_armed(when: float, owner: TimerOwner) -> bool:
    return owner.deadline == when


class Timers:
    """The deadlines of a node: one entry per owner, the earliest one that it set."""

    __slots__ = ("_deadlines", "_on_earlier")

    def __init__(self, on_earlier: Callable[[float], None]) -> None:
        self._deadlines: DeadlineHeap[TimerOwner] = DeadlineHeap(_is_armed)
        self._on_earlier = on_earlier

    def arm(self, owner: TimerOwner, when: float) -> None:
        """Wake `owner` at `when`, or earlier if it is armed for earlier already."""
        if when >= owner.deadline:
            return
        owner.deadline = when
        self._deadlines.add(when, owner)
        self._on_earlier(when)

    def disarm(self, owner: TimerOwner) -> None:
        owner.deadline = inf

    @property
    def next_at(self) -> float:
        return self._deadlines.next_at

    def __len__(self) -> int:
        return len(self._deadlines)

    def take_due(self, now: float) -> TimerOwner | None:
        """The owner whose deadline passed first, disarmed; None when there is none left."""
        if self._deadlines.next_at > now:
            return None
        owner = self._deadlines.pop()
        owner.deadline = inf
        return owner
