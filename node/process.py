"""What a process knows of itself: its loop's time, its version, its memory."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import anyio


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
