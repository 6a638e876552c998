"""Nodes without threads: what a node would have a worker thread do, its own tasks do at once.

So nothing of a node depends on how fast a thread is, and its virtual hours cost little. Everybody
else's `anyio.to_thread.run_sync` has a thread as ever, and is counted meanwhile whatever its
limiter: time must not jump past what a thread does. In a world that wants no threads at all, theirs
is done at once, too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any, TypeVar

import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

Made = TypeVar("Made")

_is_of_node: ContextVar[bool] = ContextVar("millpond_is_of_node", default=False)
_is_at_once: ContextVar[bool] = ContextVar("millpond_is_at_once", default=False)


class ThreadCounts:
    """Those that work for one loop, and how many of its worlds want none."""

    def __init__(self) -> None:
        self.at_work = 0
        self.unwanted = 0


_of_loop: anyio.lowlevel.RunVar[ThreadCounts | None] = anyio.lowlevel.RunVar(
    "millpond_threads", None
)


@contextmanager
def running_as_node() -> Generator[None]:
    """For the block, the running task belongs to a node, and so do those that come of it."""
    token = _is_of_node.set(True)
    try:
        yield
    finally:
        _is_of_node.reset(token)


def mark_as_node() -> None:
    """From now on it does."""
    _is_of_node.set(True)


def marked_as_node(make: Callable[[], Made]) -> Callable[[], Made]:
    """The same factory, and whatever task calls it belongs to a node: a connection is the node's
    own, whoever dialled."""

    def made() -> Made:
        mark_as_node()
        return make()

    return made


@contextmanager
def counted_threads(*, are_wanted: bool = True) -> Generator[ThreadCounts]:
    """For the block, threads are counted, and tasks of nodes have none: nobody, unless wanted."""
    threads = _of_loop.get()
    if threads is None:
        threads = ThreadCounts()
        _of_loop.set(threads)
    threads.unwanted += not are_wanted
    _border.enter()
    try:
        yield threads
    finally:
        _border.leave()
        threads.unwanted -= not are_wanted


class _AnyioPatch:
    """Our functions in the place of anyio's, as long as there is a world in any loop; the last one
    to end takes them away, in whichever order they do."""

    def __init__(self) -> None:
        self._worlds = 0
        self._lock = Lock()
        self._to_thread: Callable[..., Any] = anyio.to_thread.run_sync
        self._from_thread: Callable[..., Any] = anyio.from_thread.run_sync
        self._check_cancelled: Callable[[], None] = anyio.from_thread.check_cancelled

    def enter(self) -> None:
        with self._lock:
            self._worlds += 1
            if self._worlds == 1:
                self._to_thread = anyio.to_thread.run_sync
                self._from_thread = anyio.from_thread.run_sync
                self._check_cancelled = anyio.from_thread.check_cancelled
                self._put(self.to_thread, self.from_thread, self.check_cancelled)

    def leave(self) -> None:
        with self._lock:
            self._worlds -= 1
            if not self._worlds:
                self._put(self._to_thread, self._from_thread, self._check_cancelled)

    @staticmethod
    def _put(
        to_thread: Callable[..., Any],
        from_thread: Callable[..., Any],
        check_cancelled: Callable[[], None],
    ) -> None:
        vars(anyio.to_thread)["run_sync"] = to_thread
        vars(anyio.from_thread)["run_sync"] = from_thread
        vars(anyio.from_thread)["check_cancelled"] = check_cancelled

    async def to_thread(self, func: Callable[..., Any], *args: Any, **options: Any) -> Any:
        threads = _of_loop.get()
        if threads is None:
            return await self._to_thread(func, *args, **options)
        if _is_of_node.get() or threads.unwanted:
            await anyio.lowlevel.checkpoint()
            return _at_once(func, *args)
        threads.at_work += 1
        try:
            return await self._to_thread(func, *args, **options)
        finally:
            threads.at_work -= 1

    def from_thread(self, func: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if _is_at_once.get():
            return func(*args)
        return self._from_thread(func, *args, **options)

    def check_cancelled(self) -> None:
        if not _is_at_once.get():  # who is in the loop is not cancelled meanwhile
            self._check_cancelled()


_border = _AnyioPatch()


def _at_once(func: Callable[..., Any], *args: Any) -> Any:
    token = _is_at_once.set(True)
    try:
        return func(*args)
    finally:
        _is_at_once.reset(token)
