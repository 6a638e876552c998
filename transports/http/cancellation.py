"""What ends a part of a request from outside, or when it takes too long.

Where asyncio runs, it is asyncio's own cancellation: it reaches the part once, and costs a sixth of
a cancel scope, two of which were a fifth of a small request. Elsewhere it is a cancel scope.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from math import inf
from types import TracebackType
from typing import Protocol

import anyio


class Scope(AbstractContextManager["Scope", bool], Protocol):
    """A block that can be ended; what is under way in it is cancelled, and nothing is raised."""

    def cancel(self) -> None:
        """End it. Before it was entered: at its first wait."""


def cancel_scope(seconds: float = inf) -> Scope:
    """A block that is ended after so many seconds at the latest."""
    loop = running_loop()
    return AsyncioBlock(loop, seconds) if loop is not None else _CancelScope(seconds)


class AsyncioBlock:
    """A block in a task of asyncio, entered once."""

    __slots__ = ("_before", "_is_cancelled", "_is_struck", "_loop", "_seconds", "_task", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float = inf) -> None:
        self._loop = loop
        self._seconds = seconds
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._before = 0
        self._is_cancelled = self._is_struck = False

    def __enter__(self) -> AsyncioBlock:
        task = self._task = asyncio.current_task(self._loop)
        assert task is not None, "a block of a task"
        self._before = task.cancelling()
        if self._is_cancelled:
            self._loop.call_soon(self._strike)
        if self._seconds != inf:
            self._timer = self._loop.call_later(self._seconds, self._strike)
        return self

    def cancel(self) -> None:
        """See `Scope`."""
        if not self._is_cancelled:
            self._is_cancelled = True
            if asyncio.current_task(self._loop) is not self._task:
                self._strike()
            else:  # it waits for nothing now, and might be told behind the block
                self._loop.call_soon(self._strike)

    def _strike(self) -> None:
        """The task waits somewhere in the block: that wait is where it is told."""
        if self._task is not None and not self._is_struck:
            self._is_struck = True
            self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_struck or task is None:
            return False
        # Whoever cancels the task as well wants more to end than this block.
        is_ours = task.uncancel() <= self._before
        return is_ours and isinstance(exc, asyncio.CancelledError)


class _CancelScope:
    """The same by a cancel scope."""

    def __init__(self, seconds: float) -> None:
        self._scope = anyio.move_on_after(None if seconds == inf else seconds)

    def __enter__(self) -> _CancelScope:
        self._scope.__enter__()
        return self

    def cancel(self) -> None:
        self._scope.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return bool(self._scope.__exit__(kind, exc, trace))


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop of asyncio that runs here; None: there is none, as on trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
