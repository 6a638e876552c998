"""Tracebacks of attempts: the frames of the user's code, as text of bounded size.

A traceback begins at the handler: the frames of the worker and of its event loop say nothing about
the job. It has lines of code and texts of errors, and no values of variables.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from types import TracebackType

import millpond
from millpond.node.jobs.errors import Retry

TRACEBACK_BYTES_MAX = 4096
"""The largest traceback in bytes of UTF-8."""
FRAMES_MAX = 100
"""The most frames of one error: the first and the last ones."""
ERRORS_MAX = 5
"""The most errors of a chain, and of each group."""
OWN_FRAMES = 10
"""So many are kept where all do not fit."""
EVENT_LIBRARIES = ("anyio", "asyncio", "concurrent", "trio", "outcome")
"""The frames of these before those of a handler are left out of its traceback."""

_LEFT_OUT = "(frames of libraries are left out)\n"
_CUT = "\n(... left out ...)\n"
_PACKAGES = ("site-packages", "dist-packages")
_LIBRARIES = tuple(
    {
        *(sysconfig.get_path(each) for each in ("stdlib", "platstdlib")),
        str(Path(millpond.__file__).resolve().parent),
    }
)


def trimmed(error: BaseException) -> BaseException | None:
    """The error with the traceback of the handler alone; None for a retry that it asked for."""
    if isinstance(error, Retry):
        return None
    trace = error.__traceback__
    while trace is not None and _is_internal(trace):
        trace = trace.tb_next
    return error.with_traceback(trace)


def traceback_text(error: BaseException) -> str:
    """The traceback of a trimmed error with its causes; empty if it has no frames.

    Of one that is too long the frames of libraries are left out, then those in the middle, then
    text in the middle.
    """
    try:
        if error.__traceback__ is None and error.__cause__ is None and error.__context__ is None:
            return ""
        return _text(error)
    except Exception as exc:  # the border to code that is not ours: an error may be broken itself
        return f"no traceback: to make it raises {type(exc).__name__}"


def _text(error: BaseException) -> str:
    trace = TracebackException.from_exception(
        error, compact=True, lookup_lines=False, max_group_width=ERRORS_MAX, max_group_depth=2
    )
    _cut_chain(trace, ERRORS_MAX)
    _filter(trace, partial(_ends, FRAMES_MAX))
    text = _encodable(trace)
    if len(text.encode()) > TRACEBACK_BYTES_MAX:
        _filter(trace, _without_libraries)
        text = _LEFT_OUT + _encodable(trace)
    if len(text.encode()) > TRACEBACK_BYTES_MAX:
        _filter(trace, partial(_ends, OWN_FRAMES))
        text = _LEFT_OUT + _encodable(trace)
    return _cut(text)


def _encodable(trace: TracebackException) -> str:
    text = "".join(trace.format()).rstrip()
    return text.encode("utf-8", "backslashreplace").decode()


def _cut(text: str) -> str:
    """The beginning and the end of a text that is too long."""
    data = text.encode()
    if len(data) <= TRACEBACK_BYTES_MAX:
        return text
    half = (TRACEBACK_BYTES_MAX - len(_CUT)) // 2
    begin, end = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return begin + _CUT + end


def _cut_chain(trace: TracebackException, left: int) -> None:
    for each in _parts(trace):
        if left <= 1:
            each.__cause__ = each.__context__ = None
            each.exceptions = None
        left -= 1


def _filter(trace: TracebackException, kept: Callable[[StackSummary], list[FrameSummary]]) -> None:
    for each in _parts(trace):
        each.stack = StackSummary.from_list(kept(each.stack))


def _parts(trace: TracebackException) -> Iterator[TracebackException]:
    """An error, its causes and the errors of its groups."""
    waiting = [trace]
    while waiting:
        each = waiting.pop(0)
        yield each
        nexts = (each.__cause__, each.__context__, *(each.exceptions or ()))
        waiting += [error for error in nexts if error is not None]


def _without_libraries(stack: StackSummary) -> list[FrameSummary]:
    """The user's frames; all of an error that has none."""
    return [each for each in stack if not _is_library(each.filename)] or list(stack)


def _ends(count: int, stack: StackSummary) -> list[FrameSummary]:
    half = count // 2
    return list(stack) if len(stack) <= count else [*stack[:half], *stack[-half:]]


def _is_library(path: str) -> bool:
    is_package = any(each in path for each in _PACKAGES) or path.startswith("<frozen")
    return is_package or path.startswith(_LIBRARIES)


def _is_internal(trace: TracebackType) -> bool:
    name = str(trace.tb_frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in EVENT_LIBRARIES or name.startswith("millpond.node.jobs")
