"""Room for what is in flight: bounded in number and in bytes, first come, first served."""

from __future__ import annotations

from collections import deque

import anyio


class _Ticket:
    __slots__ = ("admitted", "event", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.admitted = False
        self.event = anyio.Event()


class FlowLimit:
    """A request larger than `bytes_max` is admitted alone, so that it cannot wait for ever."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._queue: deque[_Ticket] = deque()
        self._emptied: anyio.Event | None = None
        self.count = 0
        self.size = 0

    def take_nowait(self, size: int) -> bool:
        """Take room for one request of `size` bytes; False when there is none or others wait."""
        if self._queue or not self._fits(size):
            return False
        self.count += 1
        self.size += size
        return True

    async def take(self, size: int) -> None:
        """Wait for room for one request of `size` bytes."""
        if self.take_nowait(size):
            return
        ticket = _Ticket(size)
        self._queue.append(ticket)
        entered = False
        try:
            await ticket.event.wait()
            entered = True
        finally:
            if not entered:
                self._withdraw(ticket)

    def give(self, size: int) -> None:
        """Give back what one request took, and admit who fits now."""
        self.count -= 1
        self.size -= size
        self._admit()
        if self.count == 0 and self._emptied is not None:
            self._emptied.set()

    async def empty(self) -> None:
        """Wait until nothing is in flight."""
        while self.count:
            if self._emptied is None or self._emptied.is_set():
                self._emptied = anyio.Event()
            await self._emptied.wait()

    def _fits(self, size: int) -> bool:
        if self.count == 0:
            return True
        return self.count < self._count_max and self.size + size <= self._bytes_max

    def _admit(self) -> None:
        while self._queue and self._fits(self._queue[0].size):
            ticket = self._queue.popleft()
            ticket.admitted = True
            self.count += 1
            self.size += ticket.size
            ticket.event.set()

    def _withdraw(self, ticket: _Ticket) -> None:
        if ticket.admitted:
            self.give(ticket.size)
        else:
            self._queue.remove(ticket)
            self._admit()
