"""A reconnecting connection to a server: it dials, and dials again when a request needs it.

Requests share one connection. A request that blocks, and would hold up those behind it, gets a
dedicated connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Generic, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup

from millpond.node.client.errors import ClientClosed, ClientForked, ConnectionLost
from millpond.node.client.events import Connected, Disconnected, Event, Retrying
from millpond.node.client.flow_limit import FlowLimit
from millpond.node.client.forks import release_socket, watch
from millpond.node.client.future import ReplyFuture
from millpond.node.client.requests.errors import NotDone, NotSent
from millpond.node.client.requests.pipeline import (
    ClosingError,
    PendingRequest,
    PipelinedClientConnection,
    ReplyDecoder,
)
from millpond.node.client.retry import ReconnectBackoff
from millpond.node.environment import current_environment
from millpond.node.error_groups import single_errors
from millpond.transports.io.interface import Session

LEAVE_S = 1.0
REQUESTS_MAX = 1024
REQUEST_BYTES_MAX = 8 * 2**20
"""The bytes of the requests under way."""

R = TypeVar("R")
T = TypeVar("T")

Dial = Callable[[TaskGroup, Session], Awaitable[None]]


class ReconnectSettings(msgspec.Struct, Generic[R], frozen=True):
    """Settings of a connection: the dialer, the decoder of replies, the timeouts in seconds.

    `requests_max` requests are under way at once, `dedicated_max` of them on dedicated connections.
    """

    dial: Dial
    replies: Callable[[], ReplyDecoder[R]]
    closing_error: ClosingError[R]
    reconnect: bool = True
    wait_s: float = 0.0
    dial_s: float = 10.0
    answer_s: float = 30.0
    requests_max: int = REQUESTS_MAX
    dedicated_max: int = 64
    on_event: Callable[[Event], None] | None = None


class ReconnectingConnection(Generic[R]):
    """The connections of one client. `run` it as a task; everything else is called beside it."""

    def __init__(
        self, settings: ReconnectSettings[R], backoff: ReconnectBackoff, tasks: TaskGroup
    ) -> None:
        self.first: ReplyFuture[None] = ReplyFuture()
        self.error: Exception | None = None
        self._settings = settings
        self._backoff = backoff
        self._tasks = tasks
        self._limit = FlowLimit(settings.requests_max, REQUEST_BYTES_MAX)
        self._current: PipelinedClientConnection[R] | None = None
        self._connections = 0
        self._changed = anyio.Event()
        self._wanted = anyio.Event()
        self._scope = anyio.CancelScope()
        self._idle: list[PipelinedClientConnection[R]] = []
        self._dedicated: dict[PipelinedClientConnection[R], None] = {}
        self._dedicated_limit = anyio.Semaphore(settings.dedicated_max)
        watch(self)

    # Calls of the client.

    @property
    def current(self) -> PipelinedClientConnection[R] | None:
        """The connection that may be used now."""
        current = self._current
        return current if current is not None and current.live else None

    async def live(self) -> PipelinedClientConnection[R]:
        """Wait for a connection that may be used; NotDone when there will be none."""
        while (current := self.current) is None:
            if self.error is not None:
                raise _refused(self.error)
            self._wanted.set()
            if self._changed.is_set():
                self._changed = anyio.Event()
            await self._changed.wait()
        return current

    async def request(self, data: bytes, read: Callable[[R], T], *, has_effect: bool) -> T:
        """Send a request and wait for its reply. A request that was not sent goes with the next
        connection.

        Waits while too many are under way. Raises what `read` raises; NotDone or OutcomeUnknown
        when no reply comes.
        """
        limit, size = self._limit, len(data)
        if self.error is not None:
            raise _refused(self.error)
        while True:
            if not limit.acquire_nowait(size):
                await limit.acquire(size)
            is_sent = False
            try:
                connection = await self.live()
                is_sent = True
            finally:
                if not is_sent:
                    limit.release(size)
            pending = PendingRequest(read, has_effect, partial(limit.release, size))
            connection.send(pending, data)
            try:
                return await pending.future
            except NotSent:
                continue

    async def request_dedicated(self, data: bytes, read: Callable[[R], T], wait_s: float) -> T:
        """Send a request that has no effect and may take `wait_s`, on a dedicated connection."""
        async with self._dedicated_connection() as connection:
            pending = PendingRequest(read, False, _nothing)
            connection.send(pending, data)
            with anyio.move_on_after(wait_s + self._settings.answer_s):
                return await pending.future
        raise NotDone("the server does not answer")

    async def stop(self) -> None:
        """Close, wait shortly until the wire is down, and dial no more."""
        self._give_up(ClientClosed("the client is closed"))
        for connection in (*self._idle, *self._dedicated):
            connection.abort()
        if self._current is not None and self._current.live:
            self._current.close(ConnectionLost("the client is closed"))
            with anyio.move_on_after(LEAVE_S, shield=True):
                await self._current.closed.wait()
        self._scope.cancel()

    def end_in_child(self, error: ClientForked) -> None:
        """See `node.client.forks`."""
        current, self._current = self._current, None
        self.error = error
        for each in (*self._idle, *self._dedicated, *(() if current is None else (current,))):
            release_socket(each.fileno)
        self._idle.clear()

    # The task.

    async def run(self) -> None:
        """Connect, and again as requests need it, until `stop` or `wait_s` is over."""
        give_up_at = anyio.current_time() + self._settings.wait_s
        with self._scope:
            while True:
                connection, lived_s = await self._connect()
                failure = connection.failure or ConnectionLost("the connection ended")
                self._tell(Disconnected(str(failure) or type(failure).__name__, lived_s))
                if self._is_final(give_up_at):
                    self._give_up(failure)
                    return
                if self.first.done:
                    await self._wanted.wait()
                delay_s = self._backoff.delay_s(lived_s)
                self._tell(Retrying(delay_s))
                await anyio.sleep(delay_s)

    async def _connect(self) -> tuple[PipelinedClientConnection[R], float]:
        """One connection from dialling to its end, and how many seconds it was live."""
        connection = self._new_connection()
        lived_s = 0.0
        try:
            async with anyio.create_task_group() as tasks:
                if await self._dial(tasks, connection):
                    live_at = anyio.current_time()
                    await self._serve(tasks, connection)
                    lived_s = anyio.current_time() - live_at
                tasks.cancel_scope.cancel()
        finally:
            connection.abort()
        return connection, lived_s

    async def _dial(self, tasks: TaskGroup, connection: PipelinedClientConnection[R]) -> bool:
        try:
            with anyio.fail_after(self._settings.dial_s):
                await self._settings.dial(tasks, connection)
        except OSError as error:
            connection.fail(error)
            return False
        return True

    async def _serve(self, tasks: TaskGroup, connection: PipelinedClientConnection[R]) -> None:
        self._connections += 1
        self._current = connection
        self._wanted = anyio.Event()
        self._tell(Connected(self._connections))
        tasks.start_soon(connection.keep_flushing)
        tasks.start_soon(connection.watch, self._settings.answer_s)
        self._changed.set()
        self.first.resolve(None)
        await connection.closing.wait()
        with anyio.move_on_after(LEAVE_S):
            await connection.closed.wait()

    @asynccontextmanager
    async def _dedicated_connection(self) -> AsyncIterator[PipelinedClientConnection[R]]:
        """A connection for one request that may take long. Cancelled, it is closed."""
        if self.error is not None:
            raise _refused(self.error)
        async with self._dedicated_limit:
            await self.live()
            connection = self._idle_connection()
            self._dedicated[connection] = None
            try:
                if not connection.live and not await self._dial(self._tasks, connection):
                    raise NotDone(str(connection.failure)) from connection.failure
                yield connection
            finally:
                self._dedicated.pop(connection, None)
                if connection.live and connection.is_idle:
                    self._idle.append(connection)
                else:
                    connection.abort()

    def _idle_connection(self) -> PipelinedClientConnection[R]:
        """A connection that is live and has nothing to do, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.live:
                return connection
        return self._new_connection()

    def _new_connection(self) -> PipelinedClientConnection[R]:
        return PipelinedClientConnection(self._settings.replies(), self._settings.closing_error)

    def _is_final(self, give_up_at: float) -> bool:
        if self.first.done:
            return not self._settings.reconnect
        return anyio.current_time() >= give_up_at

    def _give_up(self, failure: Exception) -> None:
        if self.error is None:
            self.error = failure
        self.first.fail(_refused(self.error))
        self._changed.set()

    def _tell(self, event: Event) -> None:
        if self._settings.on_event is not None:
            self._settings.on_event(event)


@asynccontextmanager
async def open_connection(
    settings: ReconnectSettings[R], rng: Random | None = None
) -> AsyncIterator[ReconnectingConnection[R]]:
    """A reconnecting connection for the block, which begins once it is connected.

    Raises ConnectionLost when no connection is to be had.
    """
    backoff = ReconnectBackoff(rng or current_environment().rng())
    with single_errors():
        async with anyio.create_task_group() as tasks:
            connection = ReconnectingConnection(settings, backoff, tasks)
            tasks.start_soon(connection.run)
            try:
                await connection.first.wait()
                yield connection
            finally:
                await connection.stop()
                tasks.cancel_scope.cancel()


def _refused(error: Exception) -> Exception:
    """The error of a request that is not made any more."""
    if isinstance(error, ClientClosed):
        return error.with_traceback(None)
    raised = NotDone(str(error) or type(error).__name__)
    raised.__cause__ = error
    return raised


def _nothing() -> None:
    """A dedicated connection has one request: there is no limit to release."""
