"""The environment of a program: its sources of chance and time, and facts about its process.

By default they are the system's.

`node.testing.World` gives the running loop a source of its own, so that a program which only calls
`connect(url)` does the same for the same seed.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random

import anyio
import anyio.lowlevel
import msgspec

from millpond.node.clock import Boot


class Environment(msgspec.Struct, frozen=True):
    """Sources of chance and time. `rng` makes a random generator, `entropy` unpredictable bytes.

    Times are in seconds: `wall` since 1970, in any thread; `monotonic` from any start, in the loop.
    `name` is unique to this process; `boot` is the boot of the machine, if it can be told.
    """

    rng: Callable[[], Random]
    entropy: Callable[[int], bytes]
    monotonic: Callable[[], float]
    wall: Callable[[], float]
    name: Callable[[], str]
    boot: Boot | None = None


def system_boot() -> Boot | None:
    """The boot of this machine; None where the system does not tell."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, ValueError):
        return None
    return Boot(name, lambda: time.clock_gettime(time.CLOCK_BOOTTIME))


# With asyncio the clock below the loop's own: uvloop's stands still within a pass of the loop.
SYSTEM = Environment(
    rng=Random,
    entropy=os.urandom,
    monotonic=time.monotonic,
    wall=time.time,
    name=lambda: f"{os.uname().nodename}:{os.getpid()}",
    boot=system_boot(),
)
_ON_TRIO = msgspec.structs.replace(SYSTEM, monotonic=anyio.current_time)

_given: anyio.lowlevel.RunVar[Environment | None] = anyio.lowlevel.RunVar("millpond_outside", None)


def current_environment() -> Environment:
    """The environment that the running loop was given, else the system's."""
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
    """Give the running loop this environment for the block."""
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


@cache
def installed_version() -> str:
    """The version of the installed package; a bare checkout has none."""
    # Imported late: it takes longer than all of a command that needs no loop.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("millpond")
    except PackageNotFoundError:
        return "unknown"


def rss_bytes() -> int:
    """The memory that this process holds now in bytes, or its peak where only that is known."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()
