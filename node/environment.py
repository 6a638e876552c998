"""Where chance and time come from when nobody says: the system, or the world of a test.

`node.testing.World` gives the running loop a source of its own, so that a program which only says
`connect(url)` does the same for the same seed.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from random import Random

import anyio
import anyio.lowlevel
import msgspec


class Environment(msgspec.Struct, frozen=True):
    """`rng` makes a source of chance, `entropy` so many unpredictable bytes. Times in seconds:
    `wall` since 1970, in any thread; `monotonic` since whenever, in the loop. `name` tells this
    program from others.
    """

    rng: Callable[[], Random]
    entropy: Callable[[int], bytes]
    monotonic: Callable[[], float]
    wall: Callable[[], float]
    name: Callable[[], str]


# With asyncio the clock below the loop's own: uvloop's stands still within a turn of the loop.
SYSTEM = Environment(
    rng=Random,
    entropy=os.urandom,
    monotonic=time.monotonic,
    wall=time.time,
    name=lambda: f"{os.uname().nodename}:{os.getpid()}",
)
_ON_TRIO = msgspec.structs.replace(SYSTEM, monotonic=anyio.current_time)

_given: anyio.lowlevel.RunVar[Environment | None] = anyio.lowlevel.RunVar("millpond_outside", None)


def current_environment() -> Environment:
    """What the running loop was given, or the system; the system also where no loop runs."""
    try:
        given = _given.get()
    except RuntimeError:
        return SYSTEM
    if given is not None:
        return given
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _ON_TRIO
    return SYSTEM


@contextmanager
def use_environment(source: Environment) -> Generator[None]:
    """For the block, the running loop has this source."""
    before = _given.get()
    _given.set(source)
    try:
        yield
    finally:
        _given.set(before)


def loop_time() -> Callable[[], float]:
    """The running loop's own time, asked directly: anyio's way there costs as much as a packet.

    It may be asked in any thread: those of the store do.
    """
    try:
        return asyncio.get_running_loop().time
    except RuntimeError:
        anyio.current_time()  # raises where no loop runs
        from trio.lowlevel import current_clock  # it runs, so it is installed

        return current_clock().current_time


def installed_version() -> str:
    """The version of the installed package; a bare checkout has none."""
    try:
        return version("millpond")
    except PackageNotFoundError:
        return "unknown"


def rss_bytes() -> int:
    """The memory this process holds now, or its peak where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()
