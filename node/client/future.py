"""What the other end will say: one value or one error, for any number of waiting tasks."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar

import anyio

T = TypeVar("T")


class ReplyFuture(Generic[T]):
    """Settled once, from synchronous code; awaitable before and after.

    The event exists only while somebody waits, so an answer that is in before anybody asks is free.
    """

    __slots__ = ("_error", "_event", "_value", "_waiting", "abandoned", "done")

    _value: T

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._event: anyio.Event | None = None
        self._waiting = 0
        self.done = False
        self.abandoned = False

    def resolve(self, value: T) -> None:
        """Give the value; later answers are ignored."""
        if not self.done:
            self._value = value
            self._settle()

    def fail(self, error: BaseException) -> None:
        """Give an error, which every waiting task raises; later answers are ignored."""
        if not self.done:
            self._error = error
            self._settle()

    async def wait(self) -> T:
        """The value, or the error raised. Once all who waited were cancelled it is abandoned."""
        if not self.done:
            await self._until_done()
        if self._error is not None:
            # Raised by many: each raise would lengthen the traceback of the one before.
            raise self._error.with_traceback(None)
        return self._value

    def __await__(self) -> Generator[Any, None, T]:
        return self.wait().__await__()

    def _settle(self) -> None:
        self.done = True
        if self._event is not None:
            self._event.set()

    async def _until_done(self) -> None:
        if self._event is None:
            self._event = anyio.Event()
        self._waiting += 1
        self.abandoned = False
        try:
            await self._event.wait()
        finally:
            self._waiting -= 1
            self.abandoned = not self.done and not self._waiting
