"""The connections of one HTTP listener, and the tasks in which its requests are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from functools import partial
from typing import Protocol

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup, TaskStatus

from millpond.transports.http.app import ResponseAborted, TaskGuard
from millpond.transports.http.asgi import AsgiApplication, DirectHandler
from millpond.transports.http.cancellation import running_loop
from millpond.transports.http.server.connection import HttpConnection
from millpond.transports.http.server.exchange import Exchange
from millpond.transports.http.server.head_cache import HeadCache
from millpond.transports.http.server.head_queue import HeadQueue
from millpond.transports.http.server.interface import RejectionHeaders, TrackedConnection
from millpond.transports.http.server.settings import ServerSettings
from millpond.transports.io.interface import Session
from millpond.transports.server.memory_budget import MemoryBudget

STOP_S = 1.0
"""Requests that were cut off have so long to end, and their last words to leave."""


class Clock(Protocol):
    """The clock and timers of the node."""

    @property
    def now(self) -> Callable[[], float]: ...
    @property
    def arm(self) -> Callable[[TrackedConnection, float], None]: ...
    @property
    def disarm(self) -> Callable[[TrackedConnection], None]: ...


class HttpServer:
    """The server of one listener. Implements `interface.Server`.

    `load` calls `use` before the first connection, where the application is not given at once;
    `direct_handler` may answer requests that came whole; `date` gives the header's value at
    a time in seconds since 1970;
    `principal_key` tells clients apart by their address, for their share of `memory`;
    `new_websocket` makes the sessions of WebSockets of channels.
    """

    def __init__(
        self,
        application: AsgiApplication | None,
        settings: ServerSettings,
        clock: Clock,
        task_guard: TaskGuard,
        date: Callable[[float], bytes],
        direct_handler: DirectHandler | None = None,
        rejection_headers: RejectionHeaders = lambda headers: (),
        memory: MemoryBudget | None = None,
        principal_key: Callable[[str], Hashable] = lambda host: None,
        new_websocket: Callable[[], Session] | None = None,
        load: Callable[[HttpServer], None] | None = None,
    ) -> None:
        self.settings = settings
        self.new_websocket = new_websocket
        self.direct_handler = direct_handler
        self.rejection_headers = rejection_headers
        self._load = load
        self.memory = memory
        self.principal_key = principal_key
        self.head_cache = HeadCache()
        self.head_queue = HeadQueue(clock.now, self._call_next_turn)
        self.is_draining = False
        self.now = clock.now
        self.date = date
        self._application = application
        self._clock = clock
        self._task_guard = task_guard
        self._connections: dict[TrackedConnection, None] = {}
        self._tasks_in_flight: set[asyncio.Task[None]] = set()
        self._scope = anyio.CancelScope(shield=True)
        self._tasks: TaskGroup | None = None
        self._emptied: anyio.Event | None = None

    def use(
        self,
        application: AsgiApplication,
        direct_handler: DirectHandler | None,
        rejection_headers: RejectionHeaders,
    ) -> None:
        """Serve this application from now on."""
        self._application = application
        self.direct_handler = direct_handler
        self.rejection_headers = rejection_headers

    def new_connection(self) -> HttpConnection:
        """A session for a connection that was just accepted."""
        if self._load is not None:
            self._load(self)  # once it has succeeded
            self._load = None
        return HttpConnection(self)

    async def run(self, *, task_status: TaskStatus[TaskGroup]) -> None:
        """Run a task group for connections, and report it, until `stop`."""
        with self._scope:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                task_status.started(tasks)
                await anyio.sleep_forever()

    def stop(self) -> None:
        """End at once."""
        for task in self._tasks_in_flight:
            task.cancel()
        self._scope.cancel()

    async def stop_when_cancelled(
        self, cut: Callable[[], None], *, task_status: TaskStatus[None]
    ) -> None:
        """Until cancelled; then `cut` all requests, and give them a moment to say so."""
        try:
            task_status.started()
            await anyio.sleep_forever()
        finally:
            with anyio.move_on_after(STOP_S, shield=True):
                cut()
                self.start_drain()
                await self._ended()
            self.stop()

    def start_drain(self) -> None:
        """Answer the requests in progress, then close the connections; idle ones close at once."""
        self.is_draining = True
        for connection in tuple(self._connections):
            connection.start_drain()

    async def _ended(self) -> None:
        if self._connections:
            self._emptied = anyio.Event()
            await self._emptied.wait()

    # Called by connections: interface.Server.

    def opened(self, connection: TrackedConnection) -> None:
        self._connections[connection] = None
        if self.is_draining:
            connection.wire.close()
        elif len(self._connections) > self.settings.connections_max:
            self._close_idle()

    def _close_idle(self) -> None:
        """The oldest one that is idle goes, so that silence keeps nobody out; the newest is idle in
        any case. It counts no longer, though it takes a moment to end."""
        idle = next(each for each in self._connections if each.is_idle)
        del self._connections[idle]
        idle.wire.close()

    def closed(self, connection: TrackedConnection) -> None:
        self._connections.pop(connection, None)
        self._clock.disarm(connection)
        if self._emptied is not None and not self._connections:
            self._emptied.set()

    def wake_at(self, connection: TrackedConnection, when: float) -> None:
        self._clock.arm(connection, when)

    def serve_in_task(self, exchange: Exchange) -> None:
        loop = running_loop()
        if loop is None:
            assert self._tasks is not None
            self._tasks.start_soon(self._serve_exchange, exchange)
            return
        self._tasks_in_flight.add(loop.create_task(self._serve_exchange(exchange, loop)))

    async def _serve_exchange(
        self, exchange: Exchange, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        try:
            await self._task_guard(partial(self._apply, exchange))
        finally:
            task = None if loop is None else asyncio.current_task(loop)
            if task is not None:
                self._tasks_in_flight.discard(task)  # a callback would cost the loop a turn
            exchange.finish()

    def _call_next_turn(self, callback: Callable[[], None]) -> None:
        """Call back in the next turn of the event loop, once other work has had its turn."""
        loop = running_loop()
        if loop is not None:
            loop.call_soon(callback)
            return
        assert self._tasks is not None
        self._tasks.start_soon(self._call_after_checkpoint, callback)

    async def _call_after_checkpoint(self, callback: Callable[[], None]) -> None:
        await self._task_guard(partial(_after_checkpoint, callback))

    async def _apply(self, exchange: Exchange) -> None:
        assert self._application is not None
        try:
            await self._application(exchange.scope, exchange.receive, exchange.send)
        except ResponseAborted:
            return  # it was logged; the connection is broken off


async def _after_checkpoint(callback: Callable[[], None]) -> None:
    await anyio.lowlevel.checkpoint()
    callback()
