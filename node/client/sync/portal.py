"""The event loop of all blocking clients of this program, in a thread of its own.

It runs as long as a client is open. A blocking client is opened by `with` or by `open`; its methods
run in the loop while the calling thread waits. At the end of the program clients that are still
open are closed.

A child of `fork` has neither the thread nor the connections of its parent. A client that the parent
opened connects anew when it is used in the child, with a loop of the child's own. Objects of a
connection of the parent (messages, streams, handles, iterators) raise ClientForked there.
"""

from __future__ import annotations

import atexit
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from functools import partial
from threading import Lock
from types import TracebackType
from typing import Any, Generic, NamedTuple, ParamSpec, Self, TypeVar, overload
from weakref import WeakSet

from anyio.from_thread import BlockingPortal, BlockingPortalProvider

from millpond.node.client.errors import ClientClosed, ClientForked
from millpond.node.client.forks import after_fork, client_forked, fork_count
from millpond.node.client.future import ReplyFuture

log = logging.getLogger("millpond.client")

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")

NOT_RUNNING = "This portal is not running"
"""The text of anyio's error for a loop that has ended."""


class Portal:
    """The way into the loop, for the threads of the process that started it."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._forks = fork_count()

    @property
    def is_ours(self) -> bool:
        """Whether the loop runs in this process, and not in a parent of it."""
        return self._forks == fork_count()

    @overload
    def call(self, call: Callable[..., Awaitable[T]], *args: object) -> T: ...

    @overload
    def call(self, call: Callable[..., T], *args: object) -> T: ...

    def call(self, call: Callable[..., object], *args: object) -> object:
        """Call in the loop's thread, and wait for what it returns.

        Raises ClientClosed where the loop has ended, ClientForked in a child of its process.
        """
        if not self.is_ours:
            raise client_forked()
        try:
            return self._portal.call(call, *args)
        except RuntimeError as error:
            if str(error) != NOT_RUNNING:
                raise
            raise ClientClosed("the client is closed") from None

    def enter(self, context: AbstractAsyncContextManager[T]) -> AbstractContextManager[T]:
        """An async context manager as a plain one, of one task of the loop."""
        if not self.is_ours:
            raise client_forked()
        return self._portal.wrap_async_context_manager(context)


class _Loop:
    """The loop of this process. `with` keeps it running."""

    def __init__(self) -> None:
        self._provider = BlockingPortalProvider()
        self._of_parents: list[object] = []
        """Never freed: its end would stop a loop that does not run here."""

    def renew(self) -> None:
        """Leave the loop to the parent."""
        self._of_parents.append(self._provider)
        self._provider = BlockingPortalProvider()

    def keep(self, opened: object) -> None:
        """Leave a client to the parent."""
        self._of_parents.append(opened)

    def enter(self, stack: ExitStack) -> Portal:
        """Keep it running until the end of the stack."""
        return Portal(stack.enter_context(self._provider))


LOOP = _Loop()


class SyncFuture(Generic[T]):
    """The result of a message or record that was sent and may not be answered yet."""

    def __init__(self, future: ReplyFuture[T], portal: Portal) -> None:
        self._future = future
        self._portal = portal

    @property
    def done(self) -> bool:
        """Whether `wait` returns at once."""
        return self._future.done

    def wait(self) -> T:
        """The result. Raises the error that came in its place."""
        return self._portal.call(self._future.wait)


class BlockingCalls(Generic[A]):
    """An object of the async client whose methods run in the shared loop. Any thread may call."""

    @property
    @abstractmethod
    def _async(self) -> A: ...

    @property
    @abstractmethod
    def _portal(self) -> Portal: ...

    def _call(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain function in the loop's thread."""
        return self._portal.call(partial(call, *args, **kwargs))

    def _await(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a coroutine function."""
        awaited: Callable[[], Awaitable[T]] = partial(call, *args, **kwargs)
        return self._portal.call(awaited)

    def _next(self, call: Callable[[], Awaitable[T]]) -> T:
        """The next item. The end of an async iteration, or of the client, is StopIteration."""
        try:
            return self._portal.call(call)
        except ClientForked:
            raise
        except (StopAsyncIteration, ClientClosed):
            raise StopIteration from None

    def _send(
        self, call: Callable[P, ReplyFuture[T]], *args: P.args, **kwargs: P.kwargs
    ) -> SyncFuture[T]:
        """Call what returns a future, and do not wait for that."""
        portal = self._portal

        # The portal would await a future that is returned to it as it is.
        def send() -> SyncFuture[T]:
            return SyncFuture(call(*args, **kwargs), portal)

        return portal.call(send)

    def _await_send(
        self, call: Callable[P, Awaitable[ReplyFuture[T]]], *args: P.args, **kwargs: P.kwargs
    ) -> SyncFuture[T]:
        """Await what gives a future, and do not wait for that."""
        portal = self._portal

        async def send() -> SyncFuture[T]:
            return SyncFuture(await call(*args, **kwargs), portal)

        return portal.call(send)

    def _iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items, each awaited in turn."""
        portal = self._portal
        while True:
            try:
                item: T = portal.call(items.__anext__)
            except StopAsyncIteration:
                return
            yield item

    def _enter(self, context: AbstractAsyncContextManager[T]) -> AbstractContextManager[T]:
        return self._portal.enter(context)


class Blocking(BlockingCalls[A]):
    """An object that a client gave. It ends with that client, and is not opened by itself."""

    def __init__(self, client: A, portal: Portal) -> None:
        self._client = client
        self._loop = portal

    @property
    def _async(self) -> A:
        return self._client

    @property
    def _portal(self) -> Portal:
        return self._loop

    def __repr__(self) -> str:
        return repr(self._client)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockingCalls) and self._client is other._async

    def __hash__(self) -> int:
        return hash(self._client)


class _Opened(NamedTuple):
    """An open client. The stack closes it."""

    client: Any
    portal: Portal
    stack: ExitStack


class BlockingContext(BlockingCalls[A]):
    """A client that `with` opens, or `open`; `make` gives the async one, in the loop's thread."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[A]]) -> None:
        self._set(make, None)
        _clients.add(self)

    @classmethod
    def over(cls, client: A, portal: Portal) -> Self:
        """One over an async client that another keeps open."""
        blocking = cls.__new__(cls)
        blocking._set(None, _Opened(client, portal, ExitStack()))  # noqa: SLF001  its own class
        return blocking

    def _set(
        self, make: Callable[[], AbstractAsyncContextManager[A]] | None, opened: _Opened | None
    ) -> None:
        self._make = make
        self._opened = opened
        """The client that was opened last; it stays when it is closed."""
        self._is_open = opened is not None
        self._lock = Lock()

    @property
    def _async(self) -> A:
        client: A = self._current().client
        return client

    @property
    def _portal(self) -> Portal:
        return self._current().portal

    def _current(self) -> _Opened:
        opened = self._opened
        if opened is None:
            raise ClientClosed("the client is not open: use `with`, or call open()")
        if opened.portal.is_ours or not self._is_open:
            return opened
        self.open()
        return self._current()

    def __repr__(self) -> str:
        return repr(self._make if self._opened is None else self._opened.client)

    def __eq__(self, other: object) -> bool:
        if self._opened is None or not isinstance(other, BlockingCalls):
            return self is other
        if isinstance(other, BlockingContext) and other._opened is None:
            return False
        return self._opened.client is other._async

    def __hash__(self) -> int:
        return object.__hash__(self) if self._opened is None else hash(self._opened.client)

    def open(self) -> Self:
        """Connect, and stay connected until `close`; raises what `with` raises.

        A client that is open stays as it is. One that was closed is opened anew. A client that was
        opened before a `fork` connects in the child when it is used there.
        """
        with self._lock:
            if self._holds:
                return self
            if self._make is None:
                raise client_forked()
            if self._opened is not None and not self._opened.portal.is_ours:
                LOOP.keep(self._opened)
            with ExitStack() as stack:
                portal = LOOP.enter(stack)
                client = stack.enter_context(portal.enter(portal.call(self._make)))
                self._opened = _Opened(client, portal, stack.pop_all())
                self._is_open = True
        return self

    @property
    def _holds(self) -> bool:
        return self._is_open and self._opened is not None and self._opened.portal.is_ours

    def close(self) -> None:
        """Close it; further calls raise ClientClosed. Waits for what is under way, but shortly."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        with self._lock:
            if self._holds:
                raise RuntimeError("the client is open already")
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            stack = self._opened.stack if self._opened is not None and self._holds else None
            self._is_open = False
        if stack is not None:
            stack.__exit__(kind, error, trace)

    def forked(self) -> None:
        """This is a child of `fork`: a thread that the parent has may have held the lock."""
        self._lock = Lock()


_clients: WeakSet[BlockingContext[Any]] = WeakSet()


def _in_child() -> None:
    LOOP.renew()
    for client in list(_clients):
        client.forked()


def _close_all() -> None:
    for client in list(_clients):
        try:
            client.close()
        except Exception as exc:  # at the exit nobody is left to be told but the log
            log.warning("a client was not closed in order: error=%r", exc)


after_fork(_in_child)
atexit.register(_close_all)


def async_of(blocking: BlockingCalls[A]) -> A:
    """The async object behind a blocking one."""
    return blocking._async  # noqa: SLF001  its own module


def portal_of(blocking: BlockingCalls[A]) -> Portal:
    """The loop that a blocking object runs in."""
    return blocking._portal  # noqa: SLF001  its own module
