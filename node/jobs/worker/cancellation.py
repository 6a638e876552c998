"""Cancellation that does not come from the worker: a handler may cancel its own asyncio task.

It must not reach the task group of the jobs: there it counts as the group's, and ends all of them.
"""

from __future__ import annotations

import asyncio
from math import inf

import anyio
import anyio.lowlevel


def scope_type() -> type[anyio.CancelScope]:
    """The type that `anyio.CancelScope()` gives in this loop: it looks for the loop each time."""
    return type(anyio.CancelScope())


def is_cancelled_around() -> bool:
    """Whether a scope around the caller is cancelled."""
    return anyio.current_effective_deadline() == -inf


async def is_worker_cancelled() -> bool:
    """Whether the cancellation that was caught is that of the whole worker.

    A handler has one of its own where it awaits a task that was cancelled.
    """
    if is_cancelled_around():
        return True
    task = _task()
    if task is not None and task.cancelling():
        # The task was cancelled by asyncio's own means. At the end of `asyncio.run` that happens to
        # all tasks at once: then the group cancels this one again within two passes of the loop.
        while task.cancelling():
            task.uncancel()
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
    return False


def has_own_cancellation() -> bool:
    """Whether the handler's own task was cancelled, and it went on."""
    task = _task()
    return task is not None and task.cancelling() > 0


async def drop_own_cancellation() -> None:
    """Forget a cancellation of the handler's own task that it went on after."""
    task = _task()
    if task is None:
        return
    while task.cancelling():
        task.uncancel()
    try:
        await anyio.lowlevel.checkpoint()
    except anyio.get_cancelled_exc_class():
        if is_cancelled_around():
            raise


def _task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # trio: only scopes cancel
        return None
