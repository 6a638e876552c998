"""A flow limit: so many requests and bytes in flight, admitted first come, first served."""

from __future__ import annotations

from collections import deque

import anyio


class _Waiting:
    __slots__ = ("admitted", "event", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.admitted = False
        self.event = anyio.Event()


class FlowLimit:
    """A limit of the requests in flight. One that is larger than `bytes_max` is admitted alone."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._queue: deque[_Waiting] = deque()
        self._emptied: anyio.Event | None = None
        self.count = 0
        self.size = 0

    def acquire_nowait(self, size: int) -> bool:
        """Admit a request of `size` bytes; False when it does not fit or others wait."""
        if self._queue or not self._fits(size):
            return False
        self.count += 1
        self.size += size
        return True

    async def acquire(self, size: int) -> None:
        """Wait until a request of `size` bytes is admitted."""
        if self.acquire_nowait(size):
            return
        waiting = _Waiting(size)
        self._queue.append(waiting)
        is_admitted = False
        try:
            await waiting.event.wait()
            is_admitted = True
        finally:
            if not is_admitted:
                self._withdraw(waiting)

    def release(self, size: int) -> None:
        """A request of `size` bytes is over: admit those that fit now."""
        self.count -= 1
        self.size -= size
        self._admit()
        if self.count == 0 and self._emptied is not None:
            self._emptied.set()

    async def wait_empty(self) -> None:
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
            waiting = self._queue.popleft()
            waiting.admitted = True
            self.count += 1
            self.size += waiting.size
            waiting.event.set()

    def _withdraw(self, waiting: _Waiting) -> None:
        if waiting.admitted:
            self.release(waiting.size)
        else:
            self._queue.remove(waiting)
            self._admit()
