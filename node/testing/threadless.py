"""Nodes without threads: what a node would have a worker thread do, its own tasks do at once.

So nothing of a node depends on how fast a thread is, and its virtual hours cost little. Everybody
else's `anyio.to_thread.run_sync` is what it always was.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

import anyio.lowlevel
import anyio.to_thread

_is_of_node: ContextVar[bool] = ContextVar("millpond_is_of_node", default=False)


def be_node() -> None:
    """The running task, and those that come of it, belong to a node."""
    _is_of_node.set(True)


def without_threads() -> AbstractContextManager[object]:
    """For the block, tasks of nodes have no worker threads."""
    ordinary = anyio.to_thread.run_sync

    async def run_sync(func: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if not _is_of_node.get():
            return await ordinary(func, *args, **options)
        await anyio.lowlevel.checkpoint()
        return func(*args)

    return patch.object(anyio.to_thread, "run_sync", run_sync)
