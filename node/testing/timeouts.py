"""The end of a test that takes too long, in real time, whatever it is that keeps it from ending.

A thread looks at the clock, so it also sees a loop whose tasks are always ready, and code that
never gives way to others. First the test is interrupted, at its next `await`; where that does not
end it, the exception is raised in the loop's thread at whatever is executed there.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import isinf
from types import FrameType
from typing import Protocol

from millpond.node.testing.task_dump import frames_of, place_of, running_place, waiting_places

GRACE_S = 5.0
"""An interrupted test may take so long to end."""
LINES_MAX = 12
LOOK_S = 0.05
"""So long it is looked at what runs."""
DEBUGGERS = frozenset({"bdb", "cmd", "pdb", "pydevd"})

CallSoon = Callable[[Callable[[], None]], object]


class TookTooLong(Exception):
    """A test waits for something that does not happen, or is busy for ever."""


class ErrorSink(Protocol):
    """Who is told; `failures.Failures`."""

    @property
    def is_guarded(self) -> bool: ...

    def add(self, error: BaseException) -> None: ...


def call_soon_of_loop() -> CallSoon:
    """Has a callback run soon by the loop that runs now, from any thread."""
    try:
        return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        import trio  # it runs, so it is installed

        return trio.lowlevel.current_trio_token().run_sync_soon


@contextmanager
def time_limit(hearer: ErrorSink, seconds: float) -> Generator[None]:
    """Tell `hearer` once the block takes longer than `seconds` of real time; inf: never."""
    if isinf(seconds):
        yield
        return
    watch = _Watch(hearer, seconds)
    thread = threading.Thread(target=watch.run, name="millpond-patience", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watch.end()


class _Watch:
    def __init__(self, hearer: ErrorSink, seconds: float) -> None:
        self._hearer = hearer
        self._seconds = seconds
        self._post = call_soon_of_loop()
        self._thread = threading.get_ident()
        self._is_over = threading.Event()
        self._is_told = False
        self._ran: Counter[str] = Counter()
        self._lock = threading.Lock()

    def end(self) -> None:
        """In the loop's thread."""
        self._look_away()
        with self._lock:  # nothing is raised in the thread from here on
            self._is_over.set()

    def run(self) -> None:
        """In a thread of its own."""
        if self._is_over.wait(self._seconds):
            return
        self._tell_soon(self._look)
        self._is_over.wait(LOOK_S)
        self._tell_soon(self._tell)
        while not self._is_over.wait(GRACE_S):
            if self._hearer.is_guarded and not self._is_debugged():
                with self._lock:
                    self._strike()

    def _tell_soon(self, tell: Callable[[], None]) -> None:
        try:
            self._post(tell)
        except RuntimeError:  # the loop is closed, so there is nobody to be told
            self._is_over.set()

    def _look(self) -> None:
        """Count what is called, and what goes on after an await; in the loop."""
        if not self._is_over.is_set() and sys.getprofile() is None:
            sys.setprofile(self._count)

    def _count(self, frame: FrameType, event: str, _: object) -> None:
        place = place_of(frame) if event == "call" else None
        if place is not None:
            self._ran[place] += 1

    def _look_away(self) -> None:
        if sys.getprofile() == self._count:
            sys.setprofile(None)

    def _tell(self) -> None:
        """In the loop."""
        self._look_away()
        if not self._is_over.is_set() and not self._is_told:
            self._is_told = True
            self._hearer.add(TookTooLong(self._message(waiting_places())))

    def _message(self, waits: Counter[str]) -> str:
        lines = [f"the test is not over after {self._seconds:g} s of real time"]
        if self._ran:
            lines += ["what runs:", *_listed(self._ran)]
        if waits:
            lines += ["where its tasks are:", *_listed(waits)]
        return "\n".join(lines)

    def _strike(self) -> None:
        """Raise in the loop's thread, at whatever it does."""
        if self._is_over.is_set():
            return
        self._is_told = True
        place = running_place(self._frame())
        self._ran.update([place] if place else [])
        text = self._message(Counter())
        kind = type("TookTooLong", (TookTooLong,), {"__str__": lambda _: text})
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self._thread), ctypes.py_object(kind)
        )
        self._tell_soon(lambda: None)  # a loop that sleeps does nothing

    def _is_debugged(self) -> bool:
        """Does somebody look at it with a debugger?"""
        frames = frames_of(self._frame())
        return any(frame.f_globals.get("__name__") in DEBUGGERS for frame in frames)

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread)  # noqa: SLF001 (documented)


def _listed(places: Counter[str]) -> list[str]:
    lines = [
        f"  {place}" + (f" ({count} times)" if count > 1 else "")
        for place, count in places.most_common(LINES_MAX)
    ]
    return lines + ([f"  and {len(places) - LINES_MAX} more"] if len(places) > LINES_MAX else [])
