"""What goes wrong behind a test's back is brought before it: nothing fails unheard."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager

import anyio

from node.testing.disk.faults import DiskFault, SqlFault

ROOMS = ("actors", "transports", "node")
LOOK_S = 5.0


class TookTooLong(Exception):
    """A test waits for something that does not happen."""


class Failures(logging.Handler):
    """Collects the exceptions of background tasks, and those that nodes caught and logged.

    A node survives a crash of a channel or a connection, as it should, and says so in its log: here
    that is a failure of the test. What follows from a disk that a test let fail is none.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[BaseException] = []
        self._expected: tuple[type[BaseException], ...] = (DiskFault, SqlFault)
        self._guards: list[anyio.CancelScope] = []

    def expect(self, *kinds: type[BaseException]) -> None:
        """Errors of these kinds are no failures, neither themselves nor as the cause of others."""
        self._expected += kinds
        self.errors = [error for error in self.errors if not self._is_expected(error)]

    def add(self, error: BaseException) -> None:
        """Something failed, unless it was expected: the test is interrupted."""
        if not self._is_expected(error):
            self.errors.append(error)
            if self._guards:
                self._guards[-1].cancel()

    def emit(self, record: logging.LogRecord) -> None:
        """What a node caught. Records without an exception tell of something else."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self.add(error)

    @contextmanager
    def listening(self) -> Generator[None]:
        """Hear the project's log, for the block."""
        logs = [logging.getLogger(room) for room in ROOMS]
        for log in logs:
            log.addHandler(self)
        try:
            yield
        finally:
            for log in logs:
                log.removeHandler(self)

    @contextmanager
    def guard(self) -> Generator[None]:
        """Interrupt the block when something fails, and raise that out of it. The inner one of two
        guards does."""
        with anyio.CancelScope() as scope:
            self._guards.append(scope)
            if self.errors:
                scope.cancel()
            try:
                yield
            finally:
                self._guards.remove(scope)
        self.check()

    def check(self) -> None:
        """Raise what failed since the last time: the error itself, or a group of several."""
        errors, self.errors = self.errors, []
        match errors:
            case []:
                return
            case [error]:
                raise error
            case _:
                raise BaseExceptionGroup("several things failed in the background", errors)

    async def run(self, work: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run a background task; what it raises is the test's."""
        try:
            await work(*args)
        except Exception as error:  # it belongs to the test, and must not end the world's tasks
            self.add(error)

    async def watch(self, patience_s: float) -> None:
        """Fail once `patience_s` seconds of real time are over."""
        give_up_at = time.monotonic() + patience_s
        while time.monotonic() < give_up_at:  # noqa: ASYNC110 (another clock than `sleep` has)
            await anyio.sleep(min(LOOK_S, patience_s))
        self.add(TookTooLong(f"the test is not over after {patience_s:g} s of real time"))

    def _is_expected(self, error: BaseException) -> bool:
        return any(isinstance(each, self._expected) for each in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
