"""The event loop of all blocking clients of this program: one, in a thread of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import Generic, ParamSpec, Self, TypeVar

from anyio.from_thread import BlockingPortal, BlockingPortalProvider

from millpond.node.client.future import ReplyFuture

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")

LOOP = BlockingPortalProvider()
"""It runs while it is in use: `with LOOP as portal`."""


class SyncFuture(Generic[T]):
    """The result of a message or record that was sent and may not be answered yet."""

    def __init__(self, future: ReplyFuture[T], portal: BlockingPortal) -> None:
        self._future = future
        self._portal = portal

    @property
    def done(self) -> bool:
        """Whether `wait` returns at once."""
        return self._future.done

    def wait(self) -> T:
        """The result. Raises the error that came in its place."""
        return self._portal.call(self._future.wait)


class Blocking(Generic[A]):
    """An object of the async client whose methods run in the shared loop. Any thread may call."""

    _async: A
    _portal: BlockingPortal

    def __init__(self, client: A, portal: BlockingPortal) -> None:
        self._async = client
        self._portal = portal

    def __repr__(self) -> str:
        return repr(self._async)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blocking) and self._async is other._async

    def __hash__(self) -> int:
        return hash(self._async)

    def _call(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain function in the loop's thread."""
        return self._portal.call(partial(call, *args, **kwargs))

    def _await(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a coroutine function. The end of an async iteration is that of a plain one."""
        try:
            return self._portal.call(partial(call, *args, **kwargs))
        except StopAsyncIteration:
            raise StopIteration from None

    def _send(
        self, call: Callable[P, ReplyFuture[T]], *args: P.args, **kwargs: P.kwargs
    ) -> SyncFuture[T]:
        """Call what returns a future, and do not wait for that."""

        # The portal would await a future that is returned to it as it is.
        def send() -> SyncFuture[T]:
            return SyncFuture(call(*args, **kwargs), self._portal)

        return self._portal.call(send)

    def _await_send(
        self, call: Callable[P, Awaitable[ReplyFuture[T]]], *args: P.args, **kwargs: P.kwargs
    ) -> SyncFuture[T]:
        """Await what gives a future, and do not wait for that."""

        async def send() -> SyncFuture[T]:
            return SyncFuture(await call(*args, **kwargs), self._portal)

        return self._portal.call(send)

    def _iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items, each awaited in turn."""
        while True:
            try:
                item = self._portal.call(items.__anext__)
            except StopAsyncIteration:
                return
            yield item

    def _enter(self, context: AbstractAsyncContextManager[T]) -> AbstractContextManager[T]:
        return self._portal.wrap_async_context_manager(context)


class BlockingContext(Blocking[A]):
    """A blocking object that `with` opens; `make` gives the async one, in the loop's thread."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[A]]) -> None:
        self._make = make
        self._stack = ExitStack()

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return repr(getattr(self, "_async", self._make))

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(LOOP)
            opened = self._portal.wrap_async_context_manager(self._portal.call(self._make))
            self._async = stack.enter_context(opened)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def async_of(blocking: Blocking[A]) -> A:
    """The async object behind a blocking one."""
    return blocking._async  # noqa: SLF001  its own module


def portal_of(blocking: Blocking[A]) -> BlockingPortal:
    """The loop that a blocking object runs in."""
    return blocking._portal  # noqa: SLF001  its own module
