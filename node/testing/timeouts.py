"""Time limits of tests in real time, also for loops that are always busy and code that blocks.

A thread watches the clock. It interrupts the test at its next `await`. Where that does not end the
test, it raises the exception in the loop's thread at the running code of a task; if no task runs,
nothing is shielded from the interruption any more.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from math import isinf
from types import FrameType
from typing import Any, Protocol

import anyio

from millpond.node.testing.task_dump import (
    frame_location,
    frames_of,
    running_location,
    tasks_of_loop,
    waiting_locations,
)

GRACE_S = 5.0
"""Time for an interrupted test to end."""
LINES_MAX = 12
SAMPLE_S = 0.05
"""Time for which running functions are counted."""
THREAD = "millpond-time-limit"
DEBUGGERS = frozenset({"bdb", "cmd", "pdb", "pydevd"})

CallSoon = Callable[[Callable[[], None]], object]


class TookTooLong(Exception):
    """The test waits for an event that does not happen, or never ends."""


class Stalled(TookTooLong):
    """The test waits for an event that does not happen, and only timers of nodes are left."""


class ErrorSink(Protocol):
    """The receiver of errors: `failures.Failures`."""

    @property
    def is_guarded(self) -> bool: ...

    @property
    def is_interrupting(self) -> bool: ...

    def add(self, error: BaseException) -> None: ...


def call_soon_of_loop() -> CallSoon:
    """A function that schedules a callback in the running loop, from any thread."""
    try:
        return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        import trio  # it runs, so it is installed

        return trio.lowlevel.current_trio_token().run_sync_soon


def _is_trio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


def unshield() -> None:
    """Have the cancellations of the running loop pass all shields of its tasks.

    The scopes of another loop are left alone: objects of earlier tests are among those of the
    process until they are collected, and a scope of asyncio's raises an error on trio.
    """
    for scope in list(_scopes_of_loop()):
        if scope.shield:
            scope.shield = False


def _scopes_of_loop() -> Iterator[Any]:
    """The scopes in which tasks of the running loop are; neither library tells of them."""
    tasks = {task for task, _ in tasks_of_loop()}
    if _is_trio():
        for task in tasks:
            status = getattr(task, "_cancel_status", None)
            while status is not None:
                yield status._scope  # noqa: SLF001
                status = status.parent
        return
    for each in gc.get_objects():
        if isinstance(each, anyio.CancelScope) and getattr(each, "_host_task", None) in tasks:
            yield each


@contextmanager
def time_limit(sink: ErrorSink, seconds: float) -> Generator[None]:
    """Give `sink` a TookTooLong if the block takes longer than `seconds` of real time."""
    if isinf(seconds):
        yield
        return
    watch = _Watch(sink, seconds)
    thread = threading.Thread(target=watch.run, name=THREAD, daemon=True)
    try:
        thread.start()
        watch.may_raise = True
        yield
    finally:
        watch.end()


class _Watch:
    def __init__(self, sink: ErrorSink, seconds: float) -> None:
        self._sink = sink
        self._seconds = seconds
        self._call_soon = call_soon_of_loop()
        self._is_trio = _is_trio()
        self._thread = threading.get_ident()
        self._is_over = threading.Event()
        # An exception inside a function of `threading` would leave its lock taken for ever, so none
        # is raised while the loop's thread starts this one's, or ends it.
        self.may_raise = False
        self._is_reported = False
        self._is_unshielded = False
        self._ran: Counter[str] = Counter()
        self._lock = threading.Lock()

    def end(self) -> None:
        """Stop watching; in the loop's thread. Raises TookTooLong if the thread does at this very
        moment."""
        try:
            self._raise_no_more()
        except TookTooLong:
            self._raise_no_more()
            raise
        finally:
            self._is_over.set()

    def _raise_no_more(self) -> None:
        self.may_raise = False
        with self._lock:  # what is raised in the thread was raised when this was left
            self._stop_sampling()

    def run(self) -> None:
        """Watch the clock, in a thread of its own."""
        if self._is_over.wait(self._seconds):
            return
        self._schedule(self._sample)
        self._is_over.wait(SAMPLE_S)
        self._schedule(self._report)
        while not self._is_over.wait(GRACE_S):
            if self._sink.is_guarded and not self._is_debugged():
                self._interrupt()

    def _interrupt(self) -> None:
        """Raise TookTooLong where a task runs, or have the interruption pass all shields.

        Raised in the loop's own code it would end the loop of asyncio, which is the last resort,
        and lose a step of trio's, so that nothing ever ended.
        """
        if not self._is_unshielded and running_location(self._frame()) is None:
            self._is_unshielded = True
            self._schedule(unshield)
            return
        self._is_unshielded = False
        with self._lock:
            self._raise_in_thread()

    def _schedule(self, callback: Callable[[], None]) -> None:
        try:
            self._call_soon(callback)
        except RuntimeError:  # the loop is closed
            self._is_over.set()

    def _sample(self) -> None:
        """Start counting calls and resumed coroutines; in the loop."""
        if not self._is_over.is_set() and sys.getprofile() is None:
            sys.setprofile(self._count)

    def _count(self, frame: FrameType, event: str, _: object) -> None:
        location = frame_location(frame) if event == "call" else None
        if location is not None:
            self._ran[location] += 1

    def _stop_sampling(self) -> None:
        if sys.getprofile() == self._count:
            sys.setprofile(None)

    def _report(self) -> None:
        """Report the timeout, in the loop."""
        self._stop_sampling()
        if not self._is_over.is_set() and not self._is_reported:
            self._is_reported = True
            self._sink.add(TookTooLong(self._message(waiting_locations())))

    def _message(self, waits: Counter[str]) -> str:
        lines = [f"the test has not ended after {self._seconds:g} s of real time"]
        if self._ran:
            lines += ["running functions:", *_listed(self._ran)]
        if waits:
            lines += ["its tasks wait at:", *_listed(waits)]
        return "\n".join(lines)

    def _raise_in_thread(self) -> None:
        """Raise TookTooLong in the loop's thread, at the running code."""
        if not self.may_raise:
            return
        location = running_location(self._frame())
        if location is None and self._is_trio:
            return
        self._is_reported = True
        self._ran.update([location] if location else [])
        text = self._message(Counter())
        kind = type("TookTooLong", (TookTooLong,), {"__str__": lambda _: text})
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self._thread), ctypes.py_object(kind)
        )
        self._schedule(lambda: None)  # wakes a loop that sleeps

    def _is_debugged(self) -> bool:
        """The loop's thread is inside a debugger."""
        frames = frames_of(self._frame())
        return any(frame.f_globals.get("__name__") in DEBUGGERS for frame in frames)

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread)  # noqa: SLF001 (documented)


def _listed(locations: Counter[str]) -> list[str]:
    lines = [
        f"  {location}" + (f" ({count} times)" if count > 1 else "")
        for location, count in locations.most_common(LINES_MAX)
    ]
    return lines + (
        [f"  and {len(locations) - LINES_MAX} more"] if len(locations) > LINES_MAX else []
    )
