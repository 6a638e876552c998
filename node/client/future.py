"""The future of a reply: one value or one error, for any number of waiting tasks."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

import anyio

T = TypeVar("T")


class _ToldEvent:
    """An event that tells a function before those that wait."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._event = anyio.Event()

    def set(self) -> None:
        self._tell()
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


class ReplyFuture(Generic[T]):
    """A value or an error to come. It is settled once, from synchronous code.

    It may be awaited before and after. `abandoned`: all tasks that waited were cancelled. The event
    exists only while a task waits, so that a future that is settled before costs nothing.
    """

    __slots__ = ("_error", "_event", "_value", "_waiting", "abandoned", "done")

    _value: T

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._event: anyio.Event | _ToldEvent | None = None
        self._waiting = 0
        self.done = False
        self.abandoned = False

    def resolve(self, value: T) -> None:
        """Settle it with a value; only the first time counts."""
        if not self.done:
            self._value = value
            self._settle()

    def fail(self, error: BaseException) -> None:
        """Settle it with an error, which every waiting task raises; only the first time counts."""
        if not self.done:
            self._error = error
            self._settle()

    async def wait(self) -> T:
        """The value. Raises the error that came in its place."""
        if not self.done:
            if self._event is None:
                self._event = anyio.Event()
            self._waiting += 1
            self.abandoned = False
            try:
                await self._event.wait()
            finally:
                self._waiting -= 1
                self.abandoned = not self.done and not self._waiting
        if self._error is not None:
            # Several tasks raise it: each raise would lengthen the traceback of the one before.
            raise self._error.with_traceback(None)
        return self._value

    def observe(self, tell: Callable[[T | None, BaseException | None], None]) -> None:
        """Call `tell` with the value or the error once it is settled. Before anything waits."""

        def told() -> None:
            tell(None if self._error is not None else self._value, self._error)

        if self.done:
            told()
        else:
            self._event = _ToldEvent(told)

    def __await__(self) -> Generator[Any, None, T]:
        return self.wait().__await__()

    def _settle(self) -> None:
        self.done = True
        if self._event is not None:
            self._event.set()
