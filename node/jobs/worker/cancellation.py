"""Cancellations that are not the worker's: handlers may cancel their own task by asyncio's means.

They must not get into the group of the jobs: there they count as the group's, and end all of them
without a word.
"""

from __future__ import annotations

import asyncio
from math import inf

import anyio
import anyio.lowlevel


def is_cancelled_around() -> bool:
    """Is a scope around this cancelled?"""
    return anyio.current_effective_deadline() == -inf


async def is_for_all() -> bool:
    """Is the cancellation that was caught one of the whole worker?

    A handler has one of its own where it awaits what somebody cancelled.
    """
    if is_cancelled_around():
        return True
    task = _task()
    if task is not None and task.cancelling():
        # Somebody cancelled this task by asyncio's own means. At the end of `asyncio.run` that
        # happens to all tasks at once: then the group cancels this one again within two turns.
        while task.cancelling():
            task.uncancel()
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
    return False


async def shed() -> None:
    """The handler cancelled its task and went on: what of it is still to come is nobody's."""
    task = _task()
    if task is None or not task.cancelling():
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
    except RuntimeError:  # trio, where nobody cancels but scopes
        return None
