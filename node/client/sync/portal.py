"""The event loop of all blocking clients of this program: one, in a thread of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import wraps
from typing import Generic, ParamSpec, TypeVar

from anyio.from_thread import BlockingPortal, BlockingPortalProvider

from millpond.node.client.future import ReplyFuture

A = TypeVar("A")
B = TypeVar("B")
P = ParamSpec("P")
T = TypeVar("T")

LOOP = BlockingPortalProvider()
"""Runs while somebody uses it: `with LOOP as portal`."""


class SyncFuture(Generic[T]):
    """A message or record that was taken and may have no result yet."""

    def __init__(self, answer: ReplyFuture[T], portal: BlockingPortal) -> None:
        self._answer = answer
        self._portal = portal

    @property
    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._answer.done

    def wait(self) -> T:
        """The result, or the error raised that became of it."""
        return self._portal.call(self._answer.wait)


def posted(post: Callable[[], ReplyFuture[T]], portal: BlockingPortal) -> SyncFuture[T]:
    """Post in the loop's thread, without waiting for the result."""

    # The portal would await an answer that is returned to it as it is.
    def take() -> SyncFuture[T]:
        return SyncFuture(post(), portal)

    return portal.call(take)


def iterate(items: AsyncIterator[T], portal: BlockingPortal) -> Iterator[T]:
    """The items, each awaited in the loop's thread."""
    while True:
        try:
            item = portal.call(items.__anext__)
        except StopAsyncIteration:
            return
        yield item


def blocking(
    opener: Callable[P, AbstractAsyncContextManager[A]], twin: Callable[[A, BlockingPortal], B]
) -> Callable[P, AbstractContextManager[B]]:
    """The opener of a client, for `with`; the block gets the client's blocking twin."""

    @wraps(opener)
    @contextmanager
    def connect(*args: P.args, **kwargs: P.kwargs) -> Generator[B]:
        with LOOP as portal, portal.wrap_async_context_manager(opener(*args, **kwargs)) as client:
            yield twin(client, portal)

    return connect
