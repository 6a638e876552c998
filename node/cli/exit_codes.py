"""Exit codes of commands, the error that carries one, and the signals that end a command."""

from __future__ import annotations

import signal
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import anyio


class ExitCode(IntEnum):
    """The exit codes, which scripts rely on: their meaning never changes."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    TIMEOUT = 3
    NOT_FOUND = 4
    REFUSED = 5
    FENCED = 6
    """Another process took over the replica of the node."""
    HUNG = 7
    """Handlers of a worker hung: the process is to be started again."""
    INTERRUPTED = 130
    """The code that shells give to a command ended by Ctrl-C."""


MEANINGS = {
    ExitCode.OK: "success",
    ExitCode.FAILURE: "failure",
    ExitCode.USAGE: "wrong arguments",
    ExitCode.TIMEOUT: "timeout",
    ExitCode.NOT_FOUND: "not found",
    ExitCode.REFUSED: "access denied",
    ExitCode.FENCED: "another process took over the replica",
    ExitCode.HUNG: "handlers of a worker hung: start it again",
    ExitCode.INTERRUPTED: "ended by Ctrl-C",
}
"""Each exit code in words, as `millpond --help` and the man page have them."""


def exit_codes() -> str:
    """All exit codes, each on a line of its own."""
    return "\n".join(f"  {code:<6}{text}" for code, text in MEANINGS.items())


class Failure(Exception):
    """An error that ends a command: `message` says what failed, `hint` what to do about it, where
    the message does not."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILURE, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.code = code
        self.hint = hint

    def fields(self) -> dict[str, object]:
        """It as an object, for --json."""
        return {
            "code": self.code.name.lower(),
            "message": self.message,
            "hint": self.hint or None,
            "exit_status": int(self.code),
        }


class WrongArguments(Failure):
    """The arguments of a command are not those that it has. `usage` is its line of usage."""

    def __init__(self, prog: str, usage: str, message: str, hint: str) -> None:
        super().__init__(message, ExitCode.USAGE, hint)
        self.prog = prog
        self.usage = usage


def usage_error(text: str, hint: str = "") -> Failure:
    """The failure of a command whose arguments are not valid."""
    return Failure(text, ExitCode.USAGE, hint)


def first_cause(error: BaseException) -> BaseException:
    """The first error inside any nesting of exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def until_signal(scope: anyio.CancelScope) -> None:
    """Cancel the scope when SIGINT or SIGTERM comes."""
    import anyio  # a command without an event loop does not need it

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
            return
