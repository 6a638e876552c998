"""Stalls: a test in virtual time that waits for what never comes.

The timers of nodes keep virtual time going, so that such a test would go on until its limit of real
time. A stall is told by the test's own tasks, those with a line of a program on their stack: none
of them moves for `stall_s` of virtual time, none sleeps, and none has a deadline. Then nothing but
the timers of nodes and clients is left to move them.

Tasks are looked at a few times in that span, by the places at which they wait; nothing is counted
in between. A test that waits longer for a node sets a time limit of its own (`anyio.fail_after`).
"""

from __future__ import annotations

import asyncio
import gc
import linecache
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf, isfinite
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any

import anyio

from millpond.actors.channels.context import ChannelInfo
from millpond.node.testing.task_dump import awaited_frames, is_library, tasks_of_loop
from millpond.node.testing.timeouts import THREAD, ErrorSink, Stalled, unshield

STALL_S = 600.0
"""Virtual time in which a test that is not stalled moves."""
LOOKS = 4
"""Times that tasks are looked at in this span."""
ENDING_S = 10.0
"""Virtual time that an interrupted test stands still before shields no longer hold."""
POLL_PART = 1000
"""A sleep is a poll if the span is so many times as long; a test that polls alone is stalled."""
SHOWN_MAX = 64
"""The most variables of a frame, or of an object in them, by which a poll that goes on is told."""
CLOCKS = frozenset(
    {"current_time", "elapsed", "monotonic", "now", "perf_counter", "time", "time_ns"}
    | {"timestamp", "today", "utcnow"}
)
"""A function that has one of these names may wait for a time: it is not said to poll."""
PRODUCT = "millpond."
TESTING = "millpond.node.testing."
WAITS_MAX, CHANNELS_MAX = 4, 3
THREADS = (THREAD, "AnyIO worker thread", "asyncio_", "Trio thread")
"""The beginnings of the names of threads that a loop has at rest."""

Channels = Callable[[], Iterator[tuple[str, ChannelInfo]]]
"""The channels of the nodes, with the names of their nodes."""
_Position = tuple[tuple[int, int], ...]
_Deadline = tuple[int, float]


class StallWatch:
    """The watch over the tasks of a test; the loop's time calls `look`."""

    def __init__(
        self, sink: ErrorSink, stall_s: float, now: Callable[[], float], channels: Channels
    ) -> None:
        self._sink = sink
        self._stall_s = stall_s
        self._now = now
        self._channels = channels
        self._threads = set(threading.enumerate())
        self._poll_s = stall_s / POLL_PART
        self._positions: dict[int, object] = {}
        self._moved_at = now()
        self._deadlines: set[_Deadline] = set()
        self._is_reported = False

    def look(self, *, is_last: bool = False) -> float:
        """Look at the tasks, and report a stall. Returns the virtual time of the next look.

        `is_last`: no timer is left, so that nothing can move any task.
        """
        now, tasks = self._now(), _tasks_of_test()
        positions: dict[int, object] = {id(task): _position(frames) for task, frames in tasks}
        sleeping = [(id(task), frames) for task, frames in tasks if _is_sleeping(frames)]
        polls = [(task, _poll_state(frames, self._poll_s)) for task, frames in sleeping]
        positions |= {task: (positions[task], state) for task, state in polls}
        if positions != self._positions or any(state is None for _, state in polls):
            self._positions, self._moved_at = positions, now
            self._deadlines = set()
        if self._is_reported and not self._sink.is_interrupting:
            self._is_reported = False
        if self._is_reported:
            if now >= self._moved_at + ENDING_S:
                unshield()
        elif is_last or now >= self._moved_at + self._stall_s:
            self._judge(tasks)
        return now + (ENDING_S if self._is_reported else self._stall_s / LOOKS)

    def _judge(self, tasks: Sequence[tuple[object, list[FrameType]]]) -> None:
        """Report a stall, unless the test waits with a time limit, or for a thread of its own."""
        if not tasks or self._has_threads():
            return
        seen = self._deadlines
        self._deadlines = _deadlines({task for task, _ in tasks})
        if self._deadlines and (not seen or self._deadlines & seen):
            return  # a client's own, which it sets for each of its requests, differ each time
        if self._sink.is_guarded:
            self._is_reported = True
            frames = [each for _, each in tasks]
            self._sink.add(Stalled(report(frames, self._channels(), self._stall_s)))

    def _has_threads(self) -> bool:
        """The test has started threads of its own, which may call into the loop."""
        return any(
            not thread.name.startswith(THREADS)
            for thread in threading.enumerate()
            if thread not in self._threads
        )


def report(
    tasks: Sequence[list[FrameType]], channels: Iterable[tuple[str, ChannelInfo]], stall_s: float
) -> str:
    """A stall in ten lines: the tasks and what each waits for, and what the channels hold."""
    counts = Counter(_wait_of(frames) for frames in tasks)
    waits = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    rows = [_row(node, info) for node, info in channels]
    lines = [
        f"the test waits for what does not come: for {stall_s:g} s of its time nothing moved it",
        *_first([wait + _times(count) for wait, count in waits], WAITS_MAX),
        *_first(rows, CHANNELS_MAX),
        "A longer wait for a node needs a time limit: with anyio.fail_after(SECONDS)",
    ]
    return "\n".join(lines)


def _first(rows: list[str], limit: int) -> list[str]:
    shown = [f"  {row}" for row in rows[:limit]]
    return shown + ([f"  and {len(rows) - limit} more"] if len(rows) > limit else [])


def _times(count: int) -> str:
    return f" ({count} tasks)" if count > 1 else ""


def _wait_of(frames: list[FrameType]) -> str:
    """Where a task waits in the program, that line of it, and the call of ours it waits in."""
    last = max(n for n, frame in enumerate(frames) if _is_of_program(frame))
    frame, calls = frames[last], (each for each in frames[last + 1 :] if not is_library(each))
    path, line = frame.f_code.co_filename, frame.f_lineno
    place = min(path, os.path.relpath(path), key=len)
    call = next((f" in {each.f_code.co_qualname}" for each in calls), "")
    text = linecache.getline(path, line).strip()
    return f"{frame.f_code.co_qualname} waits{call}, {place}:{line}: {text}"


def _row(node: str, info: ChannelInfo) -> str:
    name = info.name.decode(errors="replace")
    return (
        f"{node} has {info.messages} messages in {name!r} ({info.mode}), {info.leased} of them "
        f"leased, and {info.connections} connections with credit for {info.credit} more"
    )


def _tasks_of_test() -> list[tuple[object, list[FrameType]]]:
    """The tasks of the loop that have a frame of the program, and their frames, outermost first."""
    found = [(task, list(awaited_frames(coroutine))) for task, coroutine in tasks_of_loop()]
    return [(task, frames) for task, frames in found if any(map(_is_of_program, frames))]


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_of_program(frame: FrameType) -> bool:
    return not is_library(frame) and not _module(frame).startswith(PRODUCT)


def _position(frames: list[FrameType]) -> _Position:
    return tuple((id(frame), frame.f_lasti) for frame in frames if _is_of_program(frame))


def _is_sleeping(frames: list[FrameType]) -> bool:
    """The program, and not a client on its behalf, waits for time to pass."""
    return isfinite(_slept_s(frames))


def _slept_s(frames: list[FrameType]) -> float:
    caller = ""
    for frame in frames:
        if not is_library(frame):
            caller = _module(frame)
        elif not caller.startswith(PRODUCT) or caller.startswith(TESTING):
            found = _sleeps_s(frame)
            if isfinite(found):
                return found
    return inf


def _poll_state(frames: list[FrameType], poll_s: float) -> object | None:
    """The state that a poll looks at: all that functions of the program see. None: no poll, but a
    sleep of some length, or one that may wait for a time."""
    if _slept_s(frames) > poll_s:
        return None
    shown: list[object] = []
    for frame in filter(_is_of_program, frames):
        seen = {name: frame.f_globals.get(name) for name in frame.f_code.co_names}
        seen |= frame.f_locals
        functions = [each for each in seen.values() if isinstance(each, FunctionType)]
        codes = [frame.f_code, *(each.__code__ for each in functions)]
        if any(not CLOCKS.isdisjoint(code.co_names) for code in codes):
            return None
        for each in functions:
            seen |= {name: each.__globals__.get(name) for name in each.__code__.co_names}
            cells = zip(each.__code__.co_freevars, each.__closure__ or (), strict=False)
            seen |= {name: _contents(cell) for name, cell in cells}
        shown.append([(name, _shown(each)) for name, each in list(seen.items())[:SHOWN_MAX]])
    return repr(shown)


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was bound to it yet
        return None


def _shown(value: object, depth: int = 1) -> object:
    """A value as far as a change of it shows, without keeping it."""
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return value
        case list() | tuple() | dict() | set() | frozenset() | deque():
            return type(value).__name__, len(value)
        case _ if depth and hasattr(value, "__dict__") and not isinstance(value, type | ModuleType):
            fields = list(vars(value).items())[:SHOWN_MAX]
            return type(value).__name__, [(name, _shown(each, 0)) for name, each in fields]
        case _:
            return type(value).__name__


def _sleeps_s(frame: FrameType) -> float:
    """The time that a frame of a library sleeps, or waits at most; infinite: it does not."""
    names, code = frame.f_locals, frame.f_code.co_name
    match code:
        case "sleep" | "sleep_until" | "wait_for":
            found = (names.get(each) for each in ("delay", "seconds", "deadline", "timeout"))
            return next((float(each) for each in found if isinstance(each, (int, float))), inf)
        case _:
            return inf


def _deadlines(tasks: set[object]) -> set[_Deadline]:
    """The time limits in which these tasks are."""
    found: set[_Deadline] = set()
    for scope in gc.get_objects():
        if isinstance(scope, asyncio.Timeout):
            when, owners = scope.when(), {getattr(scope, "_task", None)}
        elif isinstance(scope, anyio.CancelScope):
            when, owners = scope.deadline, {getattr(scope, "_host_task", None)}
        elif "trio" in sys.modules and isinstance(scope, sys.modules["trio"].CancelScope):
            when, owners = scope.deadline, set(_trio_tasks(getattr(scope, "_cancel_status", None)))
        else:
            continue
        if when is not None and isfinite(when) and not tasks.isdisjoint(owners):
            found.add((id(scope), when))
    return found


def _trio_tasks(status: Any) -> Iterator[object]:
    """The tasks in a scope of trio's, whose public interface tells of none."""
    if status is not None:
        yield from status._tasks  # noqa: SLF001
        for child in status._children:  # noqa: SLF001
            yield from _trio_tasks(child)
