"""What goes wrong behind a test's back is brought before it: nothing fails unheard."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from traceback import format_exception
from typing import ClassVar

import anyio

from millpond.node.testing.disk.faults import DiskFault, SqlFault
from millpond.node.testing.log_capture import capture_errors
from millpond.node.testing.timeouts import CallSoon, TookTooLong, call_soon_of_loop, time_limit

NOTE = "In the background failed, before this was raised:"


@dataclass(eq=False)
class Guard:
    """A block of a test that is interrupted when something fails; not while it is inactive."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    is_active: bool = True
    has_failed: bool = False
    """It raised before anything else failed."""


class Failures:
    """Collects the exceptions of background tasks, and those that nodes caught and logged.

    A node survives a crash of a channel or a connection, as it should, and says so in its log: here
    that is a failure of the test. What follows from a disk that a test let fail is none.
    """

    living: ClassVar[list[Failures]] = []
    """Those of the worlds that there are now."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self._expected: tuple[type[BaseException], ...] = (DiskFault, SqlFault)
        self._guards: list[Guard] = []
        self._thread = threading.get_ident()
        self._post: CallSoon | None = None

    @property
    def is_guarded(self) -> bool:
        """Is a block under way that a failure interrupts?"""
        return any(guard.is_active for guard in self._guards)

    def expect(self, *kinds: type[BaseException]) -> None:
        """Errors of these kinds are no failures, neither themselves nor as the cause of others:
        what was raised `from` them. Of a group they are taken out."""
        self._expected += kinds
        rest = [self._unexpected(error) for error in self.errors]
        self.errors = [error for error in rest if error is not None]

    def add(self, error: BaseException) -> None:
        """Something failed, unless it was expected: the test is interrupted. From any thread."""
        unexpected = self._unexpected(error)
        if unexpected is None or unexpected in self.errors:
            return
        self.errors.append(unexpected)
        if threading.get_ident() == self._thread:
            self._interrupt()
        elif self._post is not None:
            self._post(self._interrupt)

    @contextmanager
    def listening(self) -> Generator[None]:
        """Hear what the project's rooms catch, for the block; of the running loop."""
        self._thread, self._post = threading.get_ident(), call_soon_of_loop()
        Failures.living.append(self)
        try:
            with capture_errors(self.add):
                yield
        finally:
            Failures.living.remove(self)
            self._post = None

    @contextmanager
    def guard(self) -> Generator[Guard]:
        """Interrupt the block when something fails, and raise that out of it. The innermost active
        one of several guards does. An error that the block itself raises is told what else failed.
        """
        guard = Guard()
        self._guards.append(guard)
        try:
            with guard.scope:
                if self.errors:
                    guard.scope.cancel()
                yield guard
        except Exception as error:
            if guard.scope.cancel_called and not guard.has_failed:
                self.check()  # the interruption is why the block raised
            self._explain(error)
            raise
        finally:
            self._guards.remove(guard)
        self.check()

    def rest(self) -> None:
        """Nobody is in the guarded blocks now: what fails waits for the next check."""
        for guard in self._guards:
            guard.is_active = False

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
        """Run a background task; what it raises is the test's, also what pytest.fail() raises."""
        cancelled = anyio.get_cancelled_exc_class()
        try:
            await work(*args)
        except (cancelled, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseExceptionGroup as group:
            ours, rest = group.split(cancelled)
            if rest is not None:
                self.add(rest)
            if ours is not None:
                raise ours from None
        except BaseException as error:  # it must not end the world's tasks
            self.add(error)

    @contextmanager
    def patience(self, seconds: float) -> Generator[None]:
        """Fail once the block takes longer than so many seconds of real time."""
        with time_limit(self, seconds):
            yield

    def _interrupt(self) -> None:
        for guard in reversed(self._guards):
            if guard.is_active:
                guard.scope.cancel()
                return

    def _explain(self, error: Exception) -> None:
        errors, self.errors = self.errors, []
        for each in errors:
            if each is not error:
                error.add_note(f"{NOTE}\n{''.join(format_exception(each)).rstrip()}")

    def _unexpected(self, error: BaseException) -> BaseException | None:
        """What of it a test did not expect."""
        if isinstance(error, BaseExceptionGroup):
            # Python 3.11 takes a function there, and no method.
            rest: BaseException | None = error.split(lambda each: self._is_expected(each))[1]
            return rest
        return None if self._is_expected(error) else error

    def _is_expected(self, error: BaseException) -> bool:
        # Not by __context__: a bug in the handling of a failure is a bug.
        each: BaseException | None = error
        while each is not None:
            if isinstance(each, self._expected):
                return True
            each = each.__cause__
        return False


__all__ = ["Failures", "Guard", "TookTooLong"]
