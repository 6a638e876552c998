"""Waiting reads: reads that wait for a record, in the order of what they wait for.

An append looks only at those that it may answer: ten thousand that wait for something else cost
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf

from millpond.actors.messages import Port
from millpond.actors.positions import SeekBy
from millpond.actors.runtime.timers import DeadlineHeap
from millpond.actors.store.changes import Position
from millpond.actors.streams.messages import Read

SLACK = 64

Threshold = int | tuple[int, int]


class Waiter:
    """A read, and from which sequence on it looks. `is_waiting` ends for good."""

    __slots__ = ("is_waiting", "port", "read", "sequence")

    def __init__(self, port: Port, read: Read, sequence: int) -> None:
        self.port = port
        self.read = read
        self.sequence = sequence
        self.is_waiting = True


class Waiters:
    """All reads of a stream that wait."""

    __slots__ = ("_agenda", "_by_port", "_entered", "_heaps", "count")

    def __init__(self) -> None:
        self._by_port: dict[Port, dict[int, Waiter]] = {}
        self._agenda: DeadlineHeap[Waiter] = DeadlineHeap(_is_waiting)
        self._heaps: dict[SeekBy, list[tuple[Threshold, int, Waiter]]] = {}
        self._entered = 0
        self.count = 0

    def __iter__(self) -> Iterator[Waiter]:
        for waiters in self._by_port.values():
            yield from waiters.values()

    def add(self, port: Port, read: Read, sequence: int) -> None:
        """`read` waits for a record from `sequence` on."""
        self.cancel(port, read.number)
        waiter = Waiter(port, read, sequence)
        self._by_port.setdefault(port, {})[read.number] = waiter
        self.count += 1
        self._agenda.add(read.wait_until, waiter)
        self._enter(waiter)

    def again(self, waiter: Waiter, sequence: int) -> None:
        """The read that was `reached` found nothing that it wants: it goes on waiting."""
        waiter.sequence = sequence
        self._enter(waiter)

    def _enter(self, waiter: Waiter) -> None:
        start = waiter.read.start
        threshold: Threshold
        match start.by:
            case SeekBy.SEQUENCE:
                threshold = max(start.sequence, waiter.sequence)
            case SeekBy.TIMESTAMP:
                threshold = start.timestamp
            case SeekBy.ID:
                threshold = (start.id.ms, start.id.seq)
        heap = self._heaps.setdefault(start.by, [])
        if len(heap) > 2 * self.count + SLACK:
            _purge(heap)
        self._entered += 1
        heappush(heap, (threshold, self._entered, waiter))

    def reached(self, tail: int, position: Position, timestamp: int) -> list[Waiter]:
        """The reads that may be answered now that the last record is this one. Each is to be
        `end`ed, or to wait `again`."""
        found: list[Waiter] = []
        limits: tuple[tuple[SeekBy, Threshold], ...] = (
            (SeekBy.SEQUENCE, tail - 1),
            (SeekBy.ID, (position.ms, position.seq)),
            (SeekBy.TIMESTAMP, timestamp),
        )
        for where, limit in limits:
            heap = self._heaps.get(where)
            while heap and heap[0][0] <= limit:  # type: ignore[operator]  # of one kind each
                waiter = heappop(heap)[2]
                if waiter.is_waiting:
                    found.append(waiter)
        return found

    def expired(self, now: float) -> list[Waiter]:
        """The reads that waited long enough; they are ended."""
        found = list(self._agenda.due(now))
        for waiter in found:
            self.end(waiter)
        return found

    def end(self, waiter: Waiter) -> None:
        """The read waits no longer."""
        waiter.is_waiting = False
        self.count -= 1
        reads = self._by_port[waiter.port]
        del reads[waiter.read.number]
        if not reads:
            del self._by_port[waiter.port]
        if not self.count:
            self._heaps.clear()
        self._purge_ended()

    def _purge_ended(self) -> None:
        """Hold no more than a few times those that wait: the others hold connections."""
        size_max = 4 * self.count + SLACK
        if len(self._agenda) > size_max:
            self._agenda.purge()
        for heap in self._heaps.values():
            if len(heap) > size_max:
                _purge(heap)

    def find(self, port: Port, number: int) -> Waiter | None:
        """The read of this number, if it waits."""
        return self._by_port.get(port, {}).get(number)

    def cancel(self, port: Port, number: int) -> None:
        """The client does not want the reply any more."""
        waiter = self.find(port, number)
        if waiter is not None:
            self.end(waiter)

    def leave(self, port: Port) -> None:
        """The connection is closed."""
        for waiter in list(self._by_port.get(port, {}).values()):
            self.end(waiter)

    @property
    def next_at(self) -> float:
        """The time at which the next read has waited long enough."""
        return self._agenda.next_at if self.count else inf


def _purge(heap: list[tuple[Threshold, int, Waiter]]) -> None:
    heap[:] = [entry for entry in heap if entry[2].is_waiting]
    heapify(heap)


def _is_waiting(when: float, waiter: Waiter) -> bool:
    return waiter.is_waiting
