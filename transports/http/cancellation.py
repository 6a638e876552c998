"""Cancellation of a part of a request, from outside or after a timeout.

On asyncio this is asyncio's own cancellation: it reaches the task once, and costs a sixth of an
anyio cancel scope, two of which were a fifth of a small request. On trio it is a cancel scope.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from math import inf
from types import TracebackType
from typing import Protocol

import anyio


class CancelBlock(AbstractContextManager["CancelBlock", bool], Protocol):
    """A block of code that can be cancelled; its end raises nothing."""

    def cancel(self) -> None:
        """Cancel the block; one that was not entered yet ends at its first wait."""


def cancel_scope(seconds: float = inf) -> CancelBlock:
    """A block that is cancelled after `seconds` at the latest."""
    loop = running_loop()
    return AsyncioBlock(loop, seconds) if loop is not None else _AnyioBlock(seconds)


class AsyncioBlock:
    """A block in an asyncio task; it is entered once."""

    __slots__ = (
        "_before",
        "_is_cancelled",
        "_is_delivered",
        "_loop",
        "_seconds",
        "_task",
        "_timer",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float = inf) -> None:
        self._loop = loop
        self._seconds = seconds
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._before = 0
        self._is_cancelled = self._is_delivered = False

    def __enter__(self) -> AsyncioBlock:
        task = self._task = asyncio.current_task(self._loop)
        assert task is not None, "a block of a task"
        self._before = task.cancelling()
        if self._is_cancelled:
            self._loop.call_soon(self._deliver)
        if self._seconds != inf:
            self._timer = self._loop.call_later(self._seconds, self._deliver)
        return self

    def cancel(self) -> None:
        """See `CancelBlock`."""
        if not self._is_cancelled:
            self._is_cancelled = True
            if asyncio.current_task(self._loop) is not self._task:
                self._deliver()
            else:  # the task runs now: a cancellation might reach it behind the block
                self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Cancel the wait of the task, which is somewhere in the block."""
        if self._task is not None and not self._is_delivered:
            self._is_delivered = True
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
        if not self._is_delivered or task is None:
            return False
        # A second cancellation, by somebody else, is to end more than this block.
        is_ours = task.uncancel() <= self._before
        return is_ours and isinstance(exc, asyncio.CancelledError)


class _AnyioBlock:
    """A block that is cancelled by a scope of anyio."""

    def __init__(self, seconds: float) -> None:
        self._scope = anyio.move_on_after(None if seconds == inf else seconds)

    def __enter__(self) -> _AnyioBlock:
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
    """The running asyncio loop; None on trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
