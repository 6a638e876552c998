"""Virtual time: how time passes in a world, on asyncio and trio; or real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import anyio

from millpond.node.testing.inline_threads import ThreadCounts
from millpond.node.testing.time.asyncio_loop import VirtualLoop
from millpond.node.testing.time.looks import Look

BACKENDS = ("asyncio", "trio")


def virtual(library: str) -> tuple[str, dict[str, object]]:
    """A value of anyio's fixture `anyio_backend` with virtual time.

    Raises ValueError for a library other than asyncio and trio, ImportError without trio.
    """
    match library:
        case "asyncio":
            return library, {"loop_factory": VirtualLoop}
        case "trio":
            from trio.testing import MockClock  # trio is optional

            return library, {"clock": MockClock(autojump_threshold=0.0)}
        case _:
            raise ValueError(f"{library!r} is none of {', '.join(BACKENDS)}")


def reset_clock(backend: object) -> None:
    """Start a value of `virtual` at 0 again: a MockClock continues where its last run ended."""
    match backend:
        case ("trio", dict(options)) if "clock" in options:
            from trio.testing import MockClock  # it is there: the clock is one of trio's

            clock = options["clock"]
            if isinstance(clock, MockClock):
                threshold = clock.autojump_threshold
                options["clock"] = MockClock(clock.rate, autojump_threshold=threshold)
        case _:
            pass


class LoopTime(Protocol):
    """The time of the running loop in seconds; virtual time may be read from any thread."""

    @property
    def is_virtual(self) -> bool: ...

    @property
    def time(self) -> Callable[[], float]: ...

    async def idle(self) -> None:
        """Wait until nothing can happen without the passing of time."""

    async def run(self) -> None:
        """The background task of this time, until cancelled."""

    def watched(self, look: Look) -> AbstractContextManager[None]:
        """Have `look` called now and then while virtual time passes; for the block."""


class VirtualAsyncioTime:
    """The time of a `VirtualLoop`."""

    is_virtual = True

    def __init__(self, loop: VirtualLoop, is_busy: Callable[[], bool]) -> None:
        loop.is_busy = is_busy
        self.watched = loop.looks.by
        self.time = loop.time
        self.idle = loop.idle

    async def run(self) -> None:
        """Do nothing: the loop jumps by itself."""


class RealTime:
    """The real time of any other loop."""

    is_virtual = False

    def __init__(self) -> None:
        try:
            self.time: Callable[[], float] = asyncio.get_running_loop().time
        except RuntimeError:
            self.time = anyio.current_time

    async def idle(self) -> None:
        """Wait until all tasks wait, also those for threads and timers."""
        await anyio.wait_all_tasks_blocked()

    async def run(self) -> None:
        """Do nothing."""

    @contextmanager
    def watched(self, look: Look) -> Generator[None]:
        """Do nothing: such a test has its limit of real time."""
        yield


def time_of_loop(threads: ThreadCounts) -> LoopTime:
    """The time of the running loop and its threads."""
    limiter = anyio.to_thread.current_default_thread_limiter()

    def is_busy() -> bool:
        return threads.at_work > 0 or limiter.borrowed_tokens > 0

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _of_trio(is_busy)
    return VirtualAsyncioTime(loop, is_busy) if isinstance(loop, VirtualLoop) else RealTime()


def _of_trio(is_busy: Callable[[], bool]) -> LoopTime:
    import trio  # it runs, so it is installed
    from trio.testing import MockClock

    from millpond.node.testing.time.trio_clock import VirtualTrioTime

    clock = trio.lowlevel.current_clock()
    return VirtualTrioTime(clock, is_busy) if isinstance(clock, MockClock) else RealTime()
