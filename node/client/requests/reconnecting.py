"""Keeps a server within reach: dials, and dials again when a call needs it.

Calls share one connection. What blocks, and would hold up what is behind it, gets one of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup

from millpond.node.client.errors import ConnectionLost
from millpond.node.client.events import Connected, Disconnected, Event, Retrying
from millpond.node.client.future import ReplyFuture
from millpond.node.client.requests.errors import NotDone
from millpond.node.client.requests.pipeline import (
    CallOutcome,
    Ends,
    PipelinedClientConnection,
    Replies,
)
from millpond.node.client.retry import ReconnectBackoff
from millpond.node.error_groups import single_errors
from millpond.transports.io.interface import Session

LEAVE_S = 1.0

R = TypeVar("R")

Dial = Callable[[TaskGroup, Session], Awaitable[None]]


class ReconnectSettings(msgspec.Struct, Generic[R], frozen=True):
    """How to reach the server, and how its replies are read. Times in seconds."""

    dial: Dial
    replies: Callable[[], Replies[R]]
    ends: Ends[R]
    reconnect: bool = True
    wait_s: float = 0.0
    dial_s: float = 10.0
    answer_s: float = 30.0
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
        self._line: PipelinedClientConnection[R] | None = None
        self._connections = 0
        self._changed = anyio.Event()
        self._wanted = anyio.Event()
        self._scope = anyio.CancelScope()
        self._idle: list[PipelinedClientConnection[R]] = []
        self._waiting: dict[PipelinedClientConnection[R], None] = {}
        self._asides = anyio.Semaphore(settings.dedicated_max)

    @property
    def line(self) -> PipelinedClientConnection[R] | None:
        """The connection that may be used now."""
        line = self._line
        return line if line is not None and line.live else None

    async def live(self) -> PipelinedClientConnection[R]:
        """Wait for a connection that may be used; NotDone when there will be none."""
        while (line := self.line) is None:
            if self.error is not None:
                raise _given_up(self.error)
            self._wanted.set()
            if self._changed.is_set():
                self._changed = anyio.Event()
            await self._changed.wait()
        return line

    @asynccontextmanager
    async def aside(self) -> AsyncIterator[PipelinedClientConnection[R]]:
        """A connection for one call that may take long. Cancelled, it is closed."""
        async with self._asides:
            await self.live()
            line = self._idle_line()
            self._waiting[line] = None
            try:
                if not line.live and not await self._dial(self._tasks, line):
                    raise NotDone(str(line.failure)) from line.failure
                yield line
            finally:
                self._waiting.pop(line, None)
                if line.live and line.is_idle:
                    self._idle.append(line)
                else:
                    line.abort()

    async def run(self) -> None:
        """Connect, and again as calls need it, until `stop` or the end of the patience."""
        give_up_at = anyio.current_time() + self._settings.wait_s
        with self._scope:
            while True:
                line, lived_s = await self._connect()
                failure = line.failure or ConnectionLost("the connection ended")
                self._tell(Disconnected(str(failure) or type(failure).__name__, lived_s))
                if self._is_final(give_up_at):
                    self._give_up(failure)
                    return
                if self.first.done:
                    await self._wanted.wait()
                delay_s = self._backoff.delay_s(lived_s)
                self._tell(Retrying(delay_s))
                await anyio.sleep(delay_s)

    async def stop(self) -> None:
        """Close, wait shortly until the wire is down, and dial no more."""
        self._give_up(ConnectionLost("the client is closed"))
        for line in (*self._idle, *self._waiting):
            line.abort()
        if self._line is not None and self._line.live:
            self._line.close(ConnectionLost("the client is closed"), CallOutcome.UNKNOWN)
            with anyio.move_on_after(LEAVE_S, shield=True):
                await self._line.gone.wait()
        self._scope.cancel()

    async def _connect(self) -> tuple[PipelinedClientConnection[R], float]:
        """Carry one connection from dialling to its end; how many seconds it stood."""
        line = self._new_line()
        lived_s = 0.0
        try:
            async with anyio.create_task_group() as tasks:
                if await self._dial(tasks, line):
                    began = anyio.current_time()
                    await self._stay(tasks, line)
                    lived_s = anyio.current_time() - began
                tasks.cancel_scope.cancel()
        finally:
            line.abort()
        return line, lived_s

    async def _dial(self, tasks: TaskGroup, line: PipelinedClientConnection[R]) -> bool:
        try:
            with anyio.fail_after(self._settings.dial_s):
                await self._settings.dial(tasks, line)
        except OSError as error:
            line.failure = error
            return False
        return True

    async def _stay(self, tasks: TaskGroup, line: PipelinedClientConnection[R]) -> None:
        self._connections += 1
        self._line = line
        self._wanted = anyio.Event()
        self._tell(Connected(self._connections))
        tasks.start_soon(line.keep_flushing)
        tasks.start_soon(line.watch, self._settings.answer_s)
        self._changed.set()
        self.first.resolve(None)
        await line.leaving.wait()
        with anyio.move_on_after(LEAVE_S):
            await line.gone.wait()

    def _idle_line(self) -> PipelinedClientConnection[R]:
        """One that stands and has nothing to do, or a new one."""
        while self._idle:
            line = self._idle.pop()
            if line.live:
                return line
        return self._new_line()

    def _new_line(self) -> PipelinedClientConnection[R]:
        return PipelinedClientConnection(self._settings.replies(), self._settings.ends)

    def _is_final(self, give_up_at: float) -> bool:
        if self.first.done:
            return not self._settings.reconnect
        return anyio.current_time() >= give_up_at

    def _give_up(self, failure: Exception) -> None:
        if self.error is None:
            self.error = failure
        self.first.fail(_given_up(self.error))
        self._changed.set()

    def _tell(self, event: Event) -> None:
        if self._settings.on_event is not None:
            self._settings.on_event(event)


@asynccontextmanager
async def running(
    settings: ReconnectSettings[R], backoff: ReconnectBackoff
) -> AsyncIterator[ReconnectingConnection[R]]:
    """A trunk as a task beside the block, which starts once the first connection stands.

    Raises ConnectionLost when none is to be had. What the block raises comes out as it is.
    """
    with single_errors():
        async with anyio.create_task_group() as tasks:
            trunk = ReconnectingConnection(settings, backoff, tasks)
            tasks.start_soon(trunk.run)
            try:
                await trunk.first.wait()
                yield trunk
            finally:
                await trunk.stop()
                tasks.cancel_scope.cancel()


def _given_up(error: Exception) -> NotDone:
    text = str(error) or type(error).__name__
    raised = NotDone(text)
    raised.__cause__ = error
    return raised
