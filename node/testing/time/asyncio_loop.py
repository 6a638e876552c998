"""An event loop of asyncio whose time jumps to the next timer whenever there is nothing to do.

It does not jump while a thread works for the loop: what the thread does is then as fast as it would
be, and no timeout strikes because of it. Nor while a real socket is open: a peer outside of this
process lives in real time, and so does the loop until the socket is closed.
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

Args = TypeVarTuple("Args")

THREAD_S = 0.25
"""A thread may take so long, in real time, before any time passes for the loop."""

QUIET_S = 0.02
"""With real sockets, nothing can happen any more when nothing came for so long, in real time."""

LOOK_EVERY = 64
"""Without sockets, the loop looks for signals once in so many turns."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time starts at 0. `is_busy` says whether threads work for the loop; a World sets it.

    Timers of equal time, which are the rule here, fire in the order in which they were made.
    """

    _scheduled: list[asyncio.TimerHandle]
    """asyncio's own heap, which it sorts by time alone."""

    def __init__(self) -> None:
        self.is_busy: Callable[[], bool] = lambda: False
        self._now = 0.0
        self._calls = 0
        self._numbers = count()
        self._idle: list[asyncio.Future[None]] = []
        super().__init__(_JumpingSelector(self._rest))

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

    def oversleep(self, seconds: float) -> None:
        """Let time pass in which nothing runs, as on a machine that is too busy: timers are late,
        and what was under way to arrive before them still comes before them."""
        self._now += seconds

    def call_at(
        self,
        when: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """As ever, but for the order of timers of equal time."""
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        timer = _Timer(next(self._numbers), when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        return timer

    async def idle(self) -> None:
        """Wait until nothing can happen any more unless time passes."""
        future = self.create_future()
        self._idle.append(future)
        await future

    def run_in_executor(  # type: ignore[override]  # as loosely typed as it is used
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """As ever; the loop knows that a thread works for it."""
        future = super().run_in_executor(executor, func, *args)
        self._calls += 1
        future.add_done_callback(self._called)
        return future

    def _called(self, _: asyncio.Future[Any]) -> None:
        self._calls -= 1

    def _rest(self, timeout_s: float | None, wait: _Wait, has_sockets: bool) -> _Found:
        """What the selector does where nothing is ready and the loop would sleep."""
        if has_sockets:
            return self._live(timeout_s, wait)
        if self._calls or self.is_busy():
            found = wait(None if timeout_s is None else max(timeout_s, THREAD_S))
            if found or timeout_s is None:
                return found
        if self._idle:
            self._tell_idle()
        elif timeout_s is None:
            return wait(None)  # nothing will ever happen, but for a signal
        else:
            self._now += timeout_s
        return []

    def _live(self, timeout_s: float | None, wait: _Wait) -> _Found:
        """Real time. Who waits until nothing can happen waits until nothing comes for a moment."""
        is_awaited = bool(self._idle) and not self._calls and not self.is_busy()
        if is_awaited:
            timeout_s = QUIET_S if timeout_s is None else min(timeout_s, QUIET_S)
        began = monotonic()
        found = wait(timeout_s)
        self._now += monotonic() - began
        if is_awaited and not found:
            self._tell_idle()
        return found

    def _tell_idle(self) -> None:
        idle, self._idle = self._idle, []
        for future in idle:
            if not future.done():
                future.set_result(None)


class _Timer(asyncio.TimerHandle):
    """Knows which timers were made before it."""

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
        self._scheduled = True  # so that a loop counts it when it is cancelled

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, _Timer):
            return NotImplemented
        return (self._when, self._number) < (other._when, other._number)


_Found = list[tuple[selectors.SelectorKey, int]]
_Wait = Callable[[float | None], _Found]
_OWN_FILES = 1
"""The loop's own: that by which other threads wake it."""


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, rest: Callable[[float | None, _Wait, bool], _Found]) -> None:
        super().__init__()
        self._rest = rest
        self._until_look = 0

    def select(self, timeout: float | None = None) -> _Found:
        has_sockets = len(self.get_map()) > _OWN_FILES
        self._until_look -= 1
        if has_sockets or timeout is None or self._until_look < 0:
            # What threads want done the loop finds without; signals have to be looked for.
            self._until_look = LOOK_EVERY
            found = super().select(0)
            if found:
                return found
        if timeout is not None and timeout <= 0:
            return []
        return self._rest(timeout, super().select, has_sockets)
