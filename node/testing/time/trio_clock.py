"""Virtual time on trio: a MockClock, jumped by a task that knows of threads and sockets.

The clock's own `autojump_threshold` jumps while a thread still works, so that timeouts strike which
would not. As long as a pace runs it is off, and a task does the same with more care.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

import anyio
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from millpond.node.testing.time.asyncio_loop import THREAD_S

NAP_S = 20e-6
NAP_S_MAX = 1e-3
SOCKET_S = 0.005
OWN_SOCKETS = 1
"""The loop's own: that by which other threads wake it."""


class VirtualTrioTime:
    """Implements `pace.Pace`; `run` it as a task."""

    is_virtual = True

    def __init__(self, clock: MockClock, is_busy: Callable[[], bool]) -> None:
        self.time = clock.current_time
        self._clock = clock
        self._is_busy = is_busy
        self._idle: list[anyio.Event] = []

    async def idle(self) -> None:
        """Wait until nothing can happen any more unless time passes."""
        event = anyio.Event()
        self._idle.append(event)
        await event.wait()

    async def run(self) -> None:
        """Have time jump whenever there is nothing to do, until cancelled."""
        autojump = self._clock.autojump_threshold
        self._clock.autojump_threshold = inf
        try:
            while True:
                await wait_all_tasks_blocked(0.0)
                await self._rest()
        finally:
            self._clock.autojump_threshold = autojump

    async def _rest(self) -> None:
        if _sockets() > OWN_SOCKETS:
            await self._live()
        elif self._is_busy() and await self._thread_works():
            return
        elif self._idle:
            self._tell_idle()
        elif 0 < _next_timer_s() < inf:
            self._clock.jump(_next_timer_s())

    def _tell_idle(self) -> None:
        idle, self._idle = self._idle, []
        for event in idle:
            event.set()

    async def _live(self) -> None:
        """Real time for a moment. Who waits until nothing can happen waits until nothing comes."""
        is_awaited = bool(self._idle) and not self._is_busy()
        self._clock.rate = 1.0
        try:
            if is_awaited:
                await wait_all_tasks_blocked(SOCKET_S)
            else:
                await anyio.sleep(SOCKET_S)
        finally:
            self._clock.rate = 0.0
        if is_awaited:
            self._tell_idle()

    async def _thread_works(self) -> bool:
        """Give threads as much real time as is left until the next timer, and a little at least;
        False: it is over, and they are still at work."""
        nap_s, began = NAP_S, time.monotonic()
        while self._is_busy():
            if time.monotonic() - began > max(_next_timer_s(), THREAD_S):
                return False
            time.sleep(nap_s)  # noqa: ASYNC251 (nobody else has anything to do)
            nap_s = min(2 * nap_s, NAP_S_MAX)
            await wait_all_tasks_blocked(0.0)
        return True


def _next_timer_s() -> float:
    return trio.lowlevel.current_statistics().seconds_to_next_deadline


def _sockets() -> int:
    """How many tasks wait for a socket."""
    statistics = trio.lowlevel.current_statistics().io_statistics
    waiting = (getattr(statistics, f"tasks_waiting_{what}", 0) for what in ("read", "write"))
    return sum(waiting)
