"""Subscriptions to the changes of a followed state: bounded, and they report lost changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType

import anyio
import msgspec

from millpond.actors.state.fold import Changed, ControlApplied

SIZE_MAX = 1000


class Missed(msgspec.Struct, frozen=True):
    """The number of changes that were dropped before the next one: read the state again."""

    count: int


StateUpdate = Changed | ControlApplied | Missed


class Changes:
    """Changes from now on, as a context, for `async for`. At most `size_max` wait; the oldest go,
    and a `Missed` stands in their place. Resets and snapshots come as `ControlApplied`."""

    def __init__(
        self,
        kind: str | None,
        key: str | None,
        size_max: int,
        subscribers: dict[Changes, None],
        failure: Callable[[], Exception | None],
    ) -> None:
        self._kind = kind
        self._key = key
        self._subscribers = subscribers
        self._failure = failure
        self._waiting: deque[Changed | ControlApplied] = deque(maxlen=size_max)
        self._missed = 0
        self._has_news = anyio.Event()
        self._is_over = False

    def __enter__(self) -> Changes:
        self._subscribers[self] = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._subscribers.pop(self, None)
        self.end()

    def tell(self, change: Changed | ControlApplied) -> None:
        """A change was applied."""
        if isinstance(change, Changed) and (
            self._kind not in (None, change.type) or self._key not in (None, change.key)
        ):
            return
        self._missed += len(self._waiting) == self._waiting.maxlen
        self._waiting.append(change)
        self._has_news.set()

    def end(self) -> None:
        """No change comes any more."""
        self._is_over = True
        self._has_news.set()

    def __aiter__(self) -> Changes:
        return self

    async def next(self, timeout_s: float | None = None) -> StateUpdate:
        """The next change. Raises TimeoutError, and StopAsyncIteration at the end."""
        with anyio.fail_after(timeout_s):
            return await anext(self)

    async def __anext__(self) -> StateUpdate:
        """The next change. Raises the error that ended the following, after all changes."""
        while not self._waiting:
            if self._is_over:
                failure = self._failure()
                if failure is not None:
                    raise failure
                raise StopAsyncIteration
            self._has_news = anyio.Event()
            await self._has_news.wait()
        if self._missed:
            missed, self._missed = self._missed, 0
            return Missed(missed)
        return self._waiting.popleft()
