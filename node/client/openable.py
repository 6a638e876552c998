"""The life of a client: made, opened, closed; and opened again, as often as its program likes.

A client is made without a connection. There are two ways to open it, with one meaning:

- `async with client:` connects, and closes with the block. Its task runs in a task group of the
  block, so a cancelled block ends it.
- `await client.open()` connects, and `await client.close()` closes: for a client that outlives
  functions, as that of a web application does. A background task of the event loop holds the block
  meanwhile, so both ways run the same code. It ends with the loop at the latest.

Before it is opened and after it is closed a client raises ClientClosed. In a child of `fork` a
client of the parent raises ClientForked, which is a ClientClosed, until it is opened there.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import anyio

from millpond.node.client.errors import ClientClosed
from millpond.node.client.forks import fork_count
from millpond.node.client.future import ReplyFuture

C = TypeVar("C")

log = logging.getLogger("millpond.client")

_background: set[asyncio.Task[None]] = set()
"""asyncio keeps no reference of its own to a running task."""


class OpenTask:
    """A background task of the running loop that holds a client open."""

    def __init__(self, client: AbstractAsyncContextManager[object]) -> None:
        self.started: ReplyFuture[None] = ReplyFuture()
        self.ended = anyio.Event()
        self._client = client
        self._leave = anyio.Event()
        self._scope = anyio.CancelScope()
        self._forks = fork_count()

    @property
    def holds(self) -> bool:
        """Whether the client is open, or about to be, in this process."""
        return self._forks == fork_count() and not (self.ended.is_set() or self._leave.is_set())

    async def run(self) -> None:
        try:
            with self._scope:
                async with self._client:
                    self.started.resolve(None)
                    await self._leave.wait()
        except Exception as error:  # of any client: raised where it is opened, or logged
            if self.started.done:
                log.exception("a client ended with an error")
            self.started.fail(error)
        finally:
            self.started.fail(ClientClosed("the client was closed before it was open"))
            self.ended.set()

    async def stop(self) -> None:
        """Close the client, and wait until it is closed; at once in a child of `fork`."""
        if self._forks != fork_count():
            return
        self._leave.set()
        if not self.started.done:
            self._scope.cancel()
        await self.ended.wait()


class Openable:
    """A client that is open within `async with`, or from `open` to `close`."""

    _open_task: OpenTask | None = None

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    async def open(self) -> Self:
        """Connect, and stay connected until `close`; raises what `async with` raises.

        A client that `open` has opened stays as it is; within `async with`, RuntimeError is raised.
        One that was closed, or opened before a `fork`, is opened anew. The event loop that opens a
        client is the one that uses it.
        """
        task = self._open_task
        if task is None or not task.holds:
            task = self._open_task = OpenTask(self)
            _in_background(task.run)
        try:
            await task.started.wait()
        except BaseException:
            if task.started.abandoned:
                with anyio.CancelScope(shield=True):
                    await task.stop()
            raise
        return self

    async def close(self) -> None:
        """Close it; further calls raise ClientClosed. Waits for what is under way, but shortly."""
        task = self._open_task
        if task is not None and not task.ended.is_set():
            await task.stop()
        else:
            with suppress(ClientClosed):  # it was never open
                await self._end()

    async def aclose(self) -> None:
        """`close`, by the name that `contextlib.aclosing` calls."""
        await self.close()

    @abstractmethod
    async def _end(self) -> None:
        """Close within `async with`, whose own end comes later."""


class Client(Openable, Generic[C]):
    """A client over a connection of type `C`, which `connect` opens and closes."""

    _of_connection: ClassVar[frozenset[str]]
    """The attributes that `_use` sets."""
    _stack: AsyncExitStack | None = None
    _forks = 0

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[C]]) -> None:
        self._connect = connect

    @classmethod
    def over(cls, connection: C) -> Self:
        """A client over a connection that is held open elsewhere."""
        client = cls.__new__(cls)
        client._use(connection)  # noqa: SLF001  its own class
        return client

    async def __aenter__(self) -> Self:
        if self._stack is not None and self._forks == fork_count():
            raise RuntimeError("the client is open already")
        self._forks = fork_count()
        async with AsyncExitStack() as stack:
            self._use(await stack.enter_async_context(self._connect()))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None and self._forks == fork_count():  # else it is the parent's to close
            await stack.__aexit__(kind, error, trace)

    @abstractmethod
    def _use(self, connection: C) -> None:
        """Take the connection that was opened; it stays, closed, until the next one."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The error of an attribute that `_use` sets, as long as the client was never open."""
            if name.startswith("__") or name not in self._of_connection:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise ClientClosed("the client is not open: use `async with`, or call open()")


def _in_background(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run it beside everything else, in the running loop, until that ends."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        from trio.lowlevel import spawn_system_task  # no asyncio, so it is trio that runs

        spawn_system_task(run)
        return
    task = loop.create_task(run())
    _background.add(task)
    task.add_done_callback(_background.discard)
