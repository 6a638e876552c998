"""An event loop of asyncio whose time jumps to the next timer whenever there is nothing to do.

It does not jump while a thread works for the loop: what the thread does is then as fast as it would
be, and no timeout strikes because of it. Nor while a real socket is open: a peer outside of this
process lives in real time, and so does the loop until the socket is closed.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from time import monotonic
from typing import Any

THREAD_S = 0.25
"""A thread may take so long, in real time, before any time passes for the loop."""

LOOK_EVERY = 64
"""Without sockets, the loop looks for signals once in so many turns."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time starts at 0. `is_busy` says whether threads work for the loop; a World sets it."""

    def __init__(self) -> None:
        self.is_busy: Callable[[], bool] = lambda: False
        self._now = 0.0
        self._calls = 0
        self._idle: list[asyncio.Future[None]] = []
        super().__init__(_JumpingSelector(self._rest))

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

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
            began = monotonic()
            found = wait(timeout_s)
            self._now += monotonic() - began
            return found
        if self._calls or self.is_busy():
            found = wait(None if timeout_s is None else max(timeout_s, THREAD_S))
            if found or timeout_s is None:
                return found
        if self._idle:
            idle, self._idle = self._idle, []
            for future in idle:
                if not future.done():
                    future.set_result(None)
        elif timeout_s is None:
            return wait(None)  # nothing will ever happen, but for a signal
        else:
            self._now += timeout_s
        return []


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
