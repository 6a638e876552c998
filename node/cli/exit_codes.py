"""How a command ends: the exit codes, and the one line that explains a failure."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Others build on these numbers (architecture.md, "Command line and defaults")."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    TIMEOUT = 3
    NOT_FOUND = 4
    REFUSED = 5
    INTERRUPTED = 130
    """What a shell expects of a command that Ctrl-C ended."""


class Failure(Exception):
    """The command cannot go on; the text says what failed and what to do about it."""

    def __init__(self, text: str, code: ExitCode = ExitCode.FAILURE) -> None:
        super().__init__(text)
        self.code = code


def usage_error(text: str) -> Failure:
    """The command was asked for something that cannot be."""
    return Failure(text, ExitCode.USAGE)


def first_cause(error: BaseException) -> BaseException:
    """The first error inside any nesting of groups: one is enough for one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
