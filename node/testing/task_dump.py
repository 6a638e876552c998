"""A dump of tasks: the locations at which the tasks of a loop run or wait, as in a traceback."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType

LIBRARIES = sys.stdlib_module_names | frozenset(
    "anyio trio sniffio outcome _pytest pytest pluggy hypothesis".split()
)
"""Libraries whose code does not show what a test waits for."""
MACHINERY = (
    "millpond.node.testing.",
    "millpond.transports.io.anyio_wire",
    "millpond.node.client.requests.reconnecting",
    "millpond.node.client.link",
)
LOOPS = frozenset({"_run_once", "unrolled_run"})
"""The functions of asyncio and trio below which tasks are executed."""


def frames_of(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames from the innermost outwards."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def running_location(frame: FrameType | None) -> str | None:
    """The location at which a loop's thread runs a task."""
    locations = (
        location for each in _below_loop(frame) if (location := frame_location(each)) is not None
    )
    return next(locations, None)


def _below_loop(frame: FrameType | None) -> list[FrameType]:
    found: list[FrameType] = []
    for each in frames_of(frame):
        if each.f_code.co_name in LOOPS:
            return found
        found.append(each)
    return []


def waiting_locations() -> Counter[str]:
    """The locations at which tasks of the running loop wait, with the number of tasks."""
    locations = (_location_of(coroutine) for _, coroutine in tasks_of_loop())
    return Counter(location for location in locations if location is not None)


def tasks_of_loop() -> Iterator[tuple[object, object]]:
    """The tasks of the running loop, each with its coroutine."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        yield from _trio_tasks()
    else:
        for task in asyncio.all_tasks(loop):
            yield task, task.get_coro()


def _trio_tasks() -> Iterator[tuple[object, object]]:
    import trio  # it runs, so it is installed

    root = trio.lowlevel.current_root_task()
    tasks = [] if root is None else [root]
    while tasks:
        task = tasks.pop()
        yield task, task.coro
        for nursery in task.child_nurseries:
            tasks += nursery.child_tasks


def _location_of(coroutine: object) -> str | None:
    """The innermost location in code that is worth showing."""
    found: str | None = None
    for frame in awaited_frames(coroutine):
        found = frame_location(frame) or found
    return found


def awaited_frames(coroutine: object) -> Iterator[FrameType]:
    """The frames of a chain of awaits, from the outermost inwards."""
    while True:
        match coroutine:
            case CoroutineType(cr_frame=FrameType() as frame, cr_await=awaited):
                pass
            case GeneratorType(gi_frame=FrameType() as frame, gi_yieldfrom=awaited):
                pass
            case AsyncGeneratorType(ag_frame=FrameType() as frame, ag_await=awaited):
                pass
            case _:
                return
        yield frame
        coroutine = awaited


def frame_location(frame: FrameType) -> str | None:
    """The location of a frame; None for libraries and the machinery of tests."""
    if is_library(frame) or str(frame.f_globals.get("__name__", "")).startswith(MACHINERY):
        return None
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def is_library(frame: FrameType) -> bool:
    """The frame is of a library, and shows nothing of the test."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in LIBRARIES
