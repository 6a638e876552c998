"""Errors that our packages log, and that the event loop reports, for the failures of a test.

Logged errors are captured in `Logger.error` itself. A handler would miss them where a program under
test calls `logging.disable`, sets a level, or has a `dictConfig` disable loggers.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

PACKAGE = "millpond"

OnError = Callable[[BaseException], None]
_callbacks: list[OnError] = []
_log_error = logging.Logger.error


@contextmanager
def capture_errors(on_error: OnError) -> Generator[None]:
    """Call `on_error` with each exception that the package logs as an error, for the block."""
    _callbacks.append(on_error)
    logging.Logger.error = _error  # type: ignore[method-assign]
    try:
        yield
    finally:
        _callbacks.remove(on_error)
        if not _callbacks:
            logging.Logger.error = _log_error  # type: ignore[method-assign]


def _error(self: logging.Logger, msg: object, *args: object, **options: Any) -> None:
    """A wrapper of `Logger.error`, which `Logger.exception` calls, too."""
    error = _exception(options.get("exc_info"))
    if error is not None and self.name.partition(".")[0] == PACKAGE:
        for on_error in _callbacks:
            on_error(error)
    # The caller is the place of the log line, not this function.
    options["stacklevel"] = options.get("stacklevel", 1) + 1
    _log_error(self, msg, *args, **options)


def _exception(exc_info: object) -> BaseException | None:
    match exc_info:
        case BaseException():
            return exc_info
        case (_, BaseException() as error, _):
            return error
        case None | False | ():
            return None
        case _:
            return sys.exc_info()[1]


@contextmanager
def capture_loop_errors(on_error: OnError) -> Generator[None]:
    """Call `on_error` with errors that asyncio's loop reports, for the block; trio raises its own.

    Reports without an exception go to the handler before.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        yield
        return
    before = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            on_error(error)
        elif before is not None:
            before(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        if loop.get_exception_handler() is handle:
            loop.set_exception_handler(before)
