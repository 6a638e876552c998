"""The threads that handlers run in, and those that were left behind.

A handler in a thread cannot be stopped: after its time-out, or when its worker ends, the thread is
left to itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import anyio
import anyio.to_thread

HANG_S = 1.0
"""The time that a thread has to end after its time-out; then its handler counts as hung."""
POLL_S = 0.02


class ThreadCall:
    """A call of a handler that runs in a thread, once."""

    __slots__ = ("__weakref__", "_call", "_has_ended", "_has_started", "_is_left", "_lock")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._has_started = self._has_ended = self._is_left = False
        self._lock = threading.Lock()
        """Guards the moment at which the call begins or ends, or is left behind."""

    def __call__(self) -> Any:
        with self._lock:
            self._has_started = True
        try:
            return self._call()
        finally:
            with self._lock:
                self._has_ended = True

    @property
    def is_left_behind(self) -> bool:
        """Nothing waits for it any more, and it goes on."""
        with self._lock:
            return self._is_left and self._has_started and not self._has_ended

    def leave_behind(self) -> None:
        """Wait for it no more."""
        with self._lock:
            self._is_left = True

    async def hangs(self) -> bool:
        """Whether it is left behind, and does not end within `HANG_S`."""
        ends_at = anyio.current_time() + HANG_S
        while not self._has_ended and anyio.current_time() < ends_at:  # noqa: ASYNC110  a thread
            await anyio.sleep(POLL_S)
        return self.is_left_behind


class HandlerThreads:
    """The threads of a worker, as many as it has slots, and those that were left behind."""

    def __init__(self, slots: int) -> None:
        self._limiter = anyio.CapacityLimiter(slots)
        self._left: WeakSet[ThreadCall] = WeakSet()
        """Those that go on have a thread that keeps them; one that never begins vanishes."""

    @property
    def left_behind(self) -> int:
        """The number of threads that were left behind and whose handler has not returned."""
        return sum(each.is_left_behind for each in self._left)

    async def run(self, call: ThreadCall) -> Any:
        """The value of the call."""
        try:
            return await anyio.to_thread.run_sync(
                call, abandon_on_cancel=True, limiter=self._limiter
            )
        except anyio.get_cancelled_exc_class():
            call.leave_behind()
            self._left.add(call)
            raise
