"""An event loop of asyncio whose time jumps to the next timer when there is nothing to do.

It does not jump while a thread works for the loop, so that no timeout fires because of the thread's
work. While a real socket is open, the loop runs in real time, like the peer of the socket.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable
from contextvars import Context
from itertools import count
from time import monotonic
from typing import Any, TypeVarTuple

from millpond.node.testing.time.looks import Looks

Args = TypeVarTuple("Args")

THREAD_S = 0.25
"""Real time that a thread may take before time passes for the loop."""

QUIET_S = 0.02
"""With real sockets, the loop is idle after so much real time without events."""

POLL_EVERY = 64
"""Without sockets, the loop checks for signals once in so many passes."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. Time starts at 0. A World sets `is_busy`: threads work for the loop.

    Timers of equal time, which are common here, fire in the order of their creation.
    """

    _scheduled: list[asyncio.TimerHandle]
    """The heap of asyncio, which sorts by time alone."""

    def __init__(self) -> None:
        self.is_busy: Callable[[], bool] = lambda: False
        self.looks = Looks()
        self._now = 0.0
        self._calls = 0
        self._numbers = count()
        self._idle: list[asyncio.Future[None]] = []
        super().__init__(_JumpingSelector(self._pass_time))

    def time(self) -> float:
        """Seconds since the creation of the loop."""
        return self._now

    def oversleep(self, seconds: float) -> None:
        """Let time pass in which nothing runs, as on an overloaded machine.

        Timers are late; bytes that were to arrive before them still arrive before them.
        """
        self._now += seconds

    def call_at(
        self,
        when: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a timer; timers of equal time keep their order."""
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        timer = _Timer(next(self._numbers), when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        return timer

    async def idle(self) -> None:
        """Wait until nothing can happen without the passing of time."""
        future = self.create_future()
        self._idle.append(future)
        await future

    def run_in_executor(  # type: ignore[override]  # typed like its use
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function in a thread, and count it as at work."""
        future = super().run_in_executor(executor, func, *args)
        self._calls += 1
        future.add_done_callback(self._called)
        return future

    async def shutdown_default_executor(
        self,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> None:
        """Wait for the threads in real time: a limit would be over at once."""
        self._calls += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self._calls -= 1

    def _called(self, _: asyncio.Future[Any]) -> None:
        self._calls -= 1

    def _pass_time(self, timeout_s: float | None, wait: _Wait, has_sockets: bool) -> _Found:
        """Sleep or jump, when nothing is ready; called by the selector."""
        if has_sockets:
            return self._wait_really(timeout_s, wait)
        if self._calls or self.is_busy():
            found = wait(None if timeout_s is None else max(timeout_s, THREAD_S))
            if found or timeout_s is None:
                return found
        if self._idle:
            self._resolve_idle()
        elif timeout_s is None:
            return self._wait_for_signal(wait)
        else:
            self._now += timeout_s
            self.looks.passed(self._now)
        return []

    def _wait_for_signal(self, wait: _Wait) -> _Found:
        """Wait where no timer is left: only a signal, or a thread of the test, can go on."""
        found = wait(THREAD_S if self.looks.are_wanted else None)
        if not found:
            self.looks.rests()
        return found

    def _wait_really(self, timeout_s: float | None, wait: _Wait) -> _Found:
        """Wait in real time; the loop is idle when nothing arrives for a moment."""
        is_awaited = bool(self._idle) and not self._calls and not self.is_busy()
        if is_awaited:
            timeout_s = QUIET_S if timeout_s is None else min(timeout_s, QUIET_S)
        began = monotonic()
        found = wait(timeout_s)
        self._now += monotonic() - began
        if is_awaited and not found:
            self._resolve_idle()
        return found

    def _resolve_idle(self) -> None:
        idle, self._idle = self._idle, []
        for future in idle:
            if not future.done():
                future.set_result(None)


class _Timer(asyncio.TimerHandle):
    """A timer with the number of its creation."""

    __slots__ = ("_number",)
    _when: float

    def __init__(
        self,
        number: int,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._number = number
        self._scheduled = True  # the loop counts cancelled timers

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, _Timer):
            return NotImplemented
        return (self._when, self._number) < (other._when, other._number)


_Found = list[tuple[selectors.SelectorKey, int]]
_Wait = Callable[[float | None], _Found]
_OWN_FILES = 1
"""Files of the loop itself: other threads wake it by one."""


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, pass_time: Callable[[float | None, _Wait, bool], _Found]) -> None:
        super().__init__()
        self._pass_time = pass_time
        self._until_poll = 0

    def select(self, timeout: float | None = None) -> _Found:
        has_sockets = len(self.get_map()) > _OWN_FILES
        self._until_poll -= 1
        if has_sockets or timeout is None or self._until_poll < 0:
            # Calls from threads are found without a poll; signals are not.
            self._until_poll = POLL_EVERY
            found = super().select(0)
            if found:
                return found
        if timeout is not None and timeout <= 0:
            return []
        return self._pass_time(timeout, super().select, has_sockets)
