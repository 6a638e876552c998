"""Virtual time on trio: a MockClock and a task that lets it jump, aware of threads and sockets.

The clock's own `autojump_threshold` jumps while a thread still works, and timeouts would fire. The
task replaces it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

import anyio
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from millpond.node.testing.time.asyncio_loop import THREAD_S
from millpond.node.testing.time.looks import Looks

NAP_S = 20e-6
NAP_S_MAX = 1e-3
SOCKET_S = 0.005
OWN_SOCKETS = 1
"""Sockets of the loop itself: other threads wake it by one."""


class VirtualTrioTime:
    """The time of a trio loop with a MockClock; `run` is its task."""

    is_virtual = True

    def __init__(self, clock: MockClock, is_busy: Callable[[], bool]) -> None:
        self.time = clock.current_time
        self._clock = clock
        self._is_busy = is_busy
        self._idle: list[anyio.Event] = []
        self._looks = Looks()
        self._rests_since = inf
        self.watched = self._looks.by

    async def idle(self) -> None:
        """Wait until nothing can happen without the passing of time."""
        event = anyio.Event()
        self._idle.append(event)
        await event.wait()

    async def run(self) -> None:
        """Let time jump when there is nothing to do, until cancelled."""
        autojump = self._clock.autojump_threshold
        self._clock.autojump_threshold = inf
        try:
            while True:
                await wait_all_tasks_blocked(0.0)
                await self._pass_time()
        finally:
            self._clock.autojump_threshold = autojump

    async def _pass_time(self) -> None:
        if _sockets() > OWN_SOCKETS:
            await self._wait_really()
        elif self._is_busy() and await self._thread_works():
            return
        elif self._idle:
            self._set_idle()
        elif _next_timer_s() == inf:
            self._look_last()
        elif _next_timer_s() > 0:
            self._clock.jump(_next_timer_s())
            self._looks.passed(self.time())

    def _look_last(self) -> None:
        """No timer is left: only a signal, or a thread of the test, can go on."""
        now = time.monotonic()
        self._rests_since = min(self._rests_since, now)
        if now - self._rests_since >= THREAD_S:
            self._rests_since = inf
            self._looks.rests()

    def _set_idle(self) -> None:
        idle, self._idle = self._idle, []
        for event in idle:
            event.set()

    async def _wait_really(self) -> None:
        """Wait in real time for a moment; the loop is idle when nothing arrives."""
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
            self._set_idle()

    async def _thread_works(self) -> bool:
        """Give threads real time until the next timer, or `THREAD_S`; False: they still work."""
        nap_s, began = NAP_S, time.monotonic()
        while self._is_busy():
            if time.monotonic() - began > max(_next_timer_s(), THREAD_S):
                return False
            time.sleep(nap_s)  # noqa: ASYNC251 (no task has anything to do)
            nap_s = min(2 * nap_s, NAP_S_MAX)
            await wait_all_tasks_blocked(0.0)
        return True


def _next_timer_s() -> float:
    return trio.lowlevel.current_statistics().seconds_to_next_deadline


def _sockets() -> int:
    """The number of tasks that wait for a socket."""
    statistics = trio.lowlevel.current_statistics().io_statistics
    waiting = (getattr(statistics, f"tasks_waiting_{what}", 0) for what in ("read", "write"))
    return sum(waiting)
