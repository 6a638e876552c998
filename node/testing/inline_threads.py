"""Inline threads: work that a node gives to `anyio.to_thread.run_sync` runs at once in its task.

So a node does not depend on the speed of threads, and virtual hours cost little. Other code has its
threads, which are counted: virtual time must not jump past their work. A world without threads
runs all such work inline.
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
    """The threads at work for one loop, and the number of its worlds that want none."""

    def __init__(self) -> None:
        self.at_work = 0
        self.unwanted = 0


_of_loop: anyio.lowlevel.RunVar[ThreadCounts | None] = anyio.lowlevel.RunVar(
    "millpond_threads", None
)


@contextmanager
def running_as_node() -> Generator[None]:
    """Mark the running task, and tasks started from it, as a node's for the block."""
    token = _is_of_node.set(True)
    try:
        yield
    finally:
        _is_of_node.reset(token)


def mark_as_node() -> None:
    """Mark the running task as a node's from now on."""
    _is_of_node.set(True)


def marked_as_node(make: Callable[[], Made]) -> Callable[[], Made]:
    """A factory that marks the calling task as a node's: an accepted connection belongs to it."""

    def made() -> Made:
        mark_as_node()
        return make()

    return made


@contextmanager
def counted_threads(*, are_wanted: bool = True) -> Generator[ThreadCounts]:
    """Count threads for the block; tasks of nodes, or all without `are_wanted`, run inline."""
    threads = _of_loop.get()
    if threads is None:
        threads = ThreadCounts()
        _of_loop.set(threads)
    threads.unwanted += not are_wanted
    _patch.enter()
    try:
        yield threads
    finally:
        _patch.leave()
        threads.unwanted -= not are_wanted


class _AnyioPatch:
    """Replacements of anyio's functions while any loop has a world."""

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
        if not _is_at_once.get():  # inline work is not cancelled
            self._check_cancelled()


_patch = _AnyioPatch()


def _at_once(func: Callable[..., Any], *args: Any) -> Any:
    token = _is_at_once.set(True)
    try:
        return func(*args)
    finally:
        _is_at_once.reset(token)
