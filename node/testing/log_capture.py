"""Hear the errors that the project's rooms catch and log, however logging is set up.

A handler would not do: `logging.disable`, a level, or a `dictConfig` that disables the loggers it
does not name would silence it, and a program under test may do any of these.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

PACKAGE = "millpond"

Hear = Callable[[BaseException], None]
_hearers: list[Hear] = []
_log_error = logging.Logger.error


@contextmanager
def capture_errors(hear: Hear) -> Generator[None]:
    """For the block, `hear` is called with each exception that a room logs as an error."""
    _hearers.append(hear)
    logging.Logger.error = _error  # type: ignore[method-assign]
    try:
        yield
    finally:
        _hearers.remove(hear)
        if not _hearers:
            logging.Logger.error = _log_error  # type: ignore[method-assign]


def _error(self: logging.Logger, msg: object, *args: object, **options: Any) -> None:
    """`Logger.error`, which `Logger.exception` calls as well."""
    error = _exception(options.get("exc_info"))
    if error is not None and self.name.partition(".")[0] == PACKAGE:
        for hear in _hearers:
            hear(error)
    # This function is no place where something was logged.
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
