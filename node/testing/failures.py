"""Failures in the background of a test: collected, and raised in the test."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from traceback import format_exception
from typing import Any, ClassVar

import anyio

from millpond.node.testing.disk.faults import DiskFault, SqlFault
from millpond.node.testing.log_capture import capture_errors
from millpond.node.testing.timeouts import (
    CallSoon,
    Stalled,
    TookTooLong,
    call_soon_of_loop,
    time_limit,
)

NOTE = "Failed in the background before this was raised:"


@dataclass(eq=False)
class Guard:
    """A block of a test that a failure interrupts while the guard is active."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    is_active: bool = True
    has_failed: bool = False
    """The block raised before a background failure."""


class Failures:
    """The exceptions of background tasks, and those that nodes caught and logged.

    A node survives the crash of a channel or a connection and logs it; in a test it is a failure.
    Errors caused by a disk fault of the test are none.
    """

    active: ClassVar[list[Failures]] = []
    """The failures of the existing worlds."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self._expected: tuple[type[BaseException], ...] = (DiskFault, SqlFault)
        self._guards: list[Guard] = []
        self._thread = threading.get_ident()
        self._call_soon: CallSoon | None = None

    @property
    def is_guarded(self) -> bool:
        """A block is under way that a failure interrupts."""
        return any(guard.is_active for guard in self._guards)

    @property
    def is_interrupting(self) -> bool:
        """A block that a failure interrupted has not ended yet."""
        return any(guard.is_active and guard.scope.cancel_called for guard in self._guards)

    def expect(self, *kinds: type[BaseException]) -> None:
        """Ignore errors of these kinds, also as causes of others, and inside groups."""
        self._expected += kinds
        rest = [self._unexpected(error) for error in self.errors]
        self.errors = [error for error in rest if error is not None]

    def add(self, error: BaseException) -> None:
        """Add an error, unless it was expected, and interrupt the test. From any thread."""
        unexpected = self._unexpected(error)
        if unexpected is None or unexpected in self.errors:
            return
        self.errors.append(unexpected)
        if threading.get_ident() == self._thread:
            self._interrupt()
        elif self._call_soon is not None:
            self._call_soon(self._interrupt)

    @contextmanager
    def captured(self) -> Generator[None]:
        """Capture errors that nodes log, for the block; of the running loop."""
        self._thread, self._call_soon = threading.get_ident(), call_soon_of_loop()
        Failures.active.append(self)
        try:
            with capture_errors(self.add):
                yield
        finally:
            Failures.active.remove(self)
            self._call_soon = None

    @contextmanager
    def guard(self) -> Generator[Guard]:
        """A block that a failure interrupts, and out of which it is raised.

        The innermost active guard is the one. An error of the block itself gets notes on failures.
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

    def deactivate_guards(self) -> None:
        """Let failures wait for the next check: no code runs in the guarded blocks now."""
        for guard in self._guards:
            guard.is_active = False

    def check(self) -> None:
        """Raise the failures since the last check: a single error, or a group."""
        errors, self.errors = self.errors, []
        match errors:
            case []:
                return
            case [Stalled() as stalled]:
                raise stalled from None  # its report is all there is to know
            case [error]:
                raise error
            case _:
                raise BaseExceptionGroup("several background tasks failed", errors)

    async def run(self, work: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run a background task; its exceptions fail the test, also that of pytest.fail()."""
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
    def limit_time(self, seconds: float) -> Generator[None]:
        """Fail if the block takes longer than this, in real time."""
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
        """The unexpected part of an error."""
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


def guarded_test(active: Sequence[Failures], test: Callable[..., Any]) -> Callable[..., Any]:
    """An async test with guards around it; any other test as it is."""
    if not inspect.iscoroutinefunction(test):
        return test

    @wraps(test)
    async def guarded(*args: Any, **kwargs: Any) -> Any:
        with _guards(active):
            return await test(*args, **kwargs)

    return guarded


def guarded_fixture(
    active: Sequence[Failures], func: Callable[..., Any], instance: object
) -> Callable[..., Any]:
    """An async fixture with guards around it; `instance` is the test's object, if it has one."""
    if inspect.ismethod(func) and type(func.__self__) is type(instance):
        func = func.__func__.__get__(instance)
    if inspect.isasyncgenfunction(func):
        return _generator(active, func)
    return guarded_test(active, func)


def _generator(
    active: Sequence[Failures], func: Callable[..., AsyncGenerator[Any, None]]
) -> Callable[..., AsyncGenerator[Any, None]]:
    @wraps(func)
    async def guarded(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        # One guard for the whole fixture: scopes that it opens are inside.
        with _guards(active) as guards:
            async with aclosing(func(*args, **kwargs)) as values:
                async for value in values:
                    if any(guard.scope.cancel_called for guard in guards):
                        break
                    _set_active(guards, False)
                    yield value
                    _set_active(guards, True)

    return guarded


@contextmanager
def _guards(active: Sequence[Failures]) -> Iterator[list[Guard]]:
    with ExitStack() as stack:
        yield [stack.enter_context(failures.guard()) for failures in active]


def _set_active(guards: list[Guard], is_active: bool) -> None:
    for guard in guards:
        guard.is_active = is_active


__all__ = ["Failures", "Guard", "TookTooLong", "guarded_fixture", "guarded_test"]
