"""How time passes in a world: virtual on asyncio and trio, or real where a test wants that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import anyio

from millpond.node.testing.inline_threads import ThreadCounts
from millpond.node.testing.time.asyncio_loop import VirtualLoop

BACKENDS = ("asyncio", "trio")


def virtual(library: str) -> tuple[str, dict[str, Any]]:
    """A value of anyio's fixture `anyio_backend`, on which time is virtual. ValueError for others
    than asyncio and trio; ImportError where trio is not installed."""
    match library:
        case "asyncio":
            return library, {"loop_factory": VirtualLoop}
        case "trio":
            from trio.testing import MockClock  # trio is optional

            return library, {"clock": MockClock(autojump_threshold=0.0)}
        case _:
            raise ValueError(f"{library!r} is none of {', '.join(BACKENDS)}")


def reset_clock(backend: object) -> None:
    """Have a value of `virtual` begin at 0 again: a MockClock goes on where its last run ended."""
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
    """The running loop, as a world sees it. `time` is in seconds, and may be asked in any thread
    where it is virtual."""

    @property
    def is_virtual(self) -> bool: ...

    @property
    def time(self) -> Callable[[], float]: ...

    async def idle(self) -> None:
        """Wait until nothing can happen any more unless time passes."""

    async def run(self) -> None:
        """What has to run beside everything else, until cancelled."""


class VirtualAsyncioTime:
    """Of a `VirtualLoop`."""

    is_virtual = True

    def __init__(self, loop: VirtualLoop, is_busy: Callable[[], bool]) -> None:
        loop.is_busy = is_busy
        self.time = loop.time
        self.idle = loop.idle

    async def run(self) -> None:
        """Nothing: the loop does it by itself."""


class RealTime:
    """Of any other loop: tests take the time they take."""

    is_virtual = False

    def __init__(self) -> None:
        try:
            self.time: Callable[[], float] = asyncio.get_running_loop().time
        except RuntimeError:
            self.time = anyio.current_time

    async def idle(self) -> None:
        """Until all tasks wait, of which those for threads and timers are some."""
        await anyio.wait_all_tasks_blocked()

    async def run(self) -> None:
        """Nothing."""


def time_of_loop(threads: ThreadCounts) -> LoopTime:
    """Of the loop that runs now, and its threads."""
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
