"""A worker's subscription to one queue: takes pushed jobs, and widens the window for more."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Self

from millpond.node.client.channel import Channel
from millpond.node.client.events import Disconnected, Event
from millpond.node.client.message import Message
from millpond.node.jobs.connector import Connector
from millpond.node.jobs.payload import channel_of

if TYPE_CHECKING:
    from millpond.node.jobs.worker.leased_job import LeasedJob

OnMessage = Callable[["QueueSubscription", Message], None]
OnLost = Callable[["QueueSubscription"], None]


class QueueSubscription:
    """The connection of a worker to a queue.

    `waiting` are jobs whose handler has not begun, `running` counts those whose handler runs.
    `spare`: with several queues, so many jobs more than run here are asked for, so that there is a
    choice when slots get free. A window never shrinks.
    """

    channel: Channel

    def __init__(
        self, queue: str, *, slots: int, spare: int, on_message: OnMessage, on_lost: OnLost
    ) -> None:
        self.queue = queue
        self.name = channel_of(queue)
        self.waiting: deque[LeasedJob] = deque()
        self.running = 0
        self._slots = slots
        self._spare = spare
        self._on_message = on_message
        self._on_lost = on_lost
        self._wanted = spare or slots
        self._window = 0
        self._unreported: list[LeasedJob] = []

    def __repr__(self) -> str:
        return f"Feed({self.queue!r})"

    @asynccontextmanager
    async def open(self, connector: Connector) -> AsyncIterator[Self]:
        """The connection, for a block. The node pushes nothing before `receive`."""
        # Without `spare` no job waits here, and reporting when each begins would cost a tenth.
        begins = bool(self._spare)
        async with connector.join(
            self.name, "worker", mode="queue", window=0, begins=begins, on_event=self._on_event
        ) as self.channel:
            yield self

    async def receive(self) -> None:
        """Take pushed jobs. Raises the error of a channel that is lost for good."""
        await self.widen()
        while True:
            self._on_message(self, await self.channel.receive())

    async def take_pushed(self) -> None:
        """Take the jobs that are here already, without waiting for more."""
        with suppress(TimeoutError):
            while True:
                self._on_message(self, await self.channel.receive(0))

    async def widen(self) -> None:
        """Ask for as many jobs as can run; with `spare` for so many more than do."""
        if self._spare:
            self._wanted = max(self._wanted, min(self.running, self._slots) + self._spare)
        missing = self._wanted - self._window
        if missing > 0:
            self._window += missing
            await self.channel.credit(missing)

    def next(self) -> LeasedJob:
        """The job that has waited longest."""
        return self.waiting.popleft()

    def withdraw(self, leased: LeasedJob) -> bool:
        """The job waits no more; False: it did not."""
        if leased not in self.waiting:
            return False
        self.waiting.remove(leased)
        return True

    def started(self, leased: LeasedJob) -> None:
        """A handler begins; `report_starts` tells the node."""
        self.running += 1
        if self._spare:
            self._unreported.append(leased)

    def report_starts(self) -> None:
        """Tell the node which jobs began, before their handlers do anything; in one write."""
        started, self._unreported = self._unreported, []
        for leased in started:
            leased.message.begin(at_once=leased is started[-1])

    def ended(self) -> None:
        """A handler has ended."""
        self.running -= 1

    async def leave(self) -> None:
        """Close the connection."""
        await self.channel.aclose()

    @property
    def is_short(self) -> bool:
        """`widen` would ask for more."""
        return bool(self._spare) and self.running + self._spare > self._wanted

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Disconnected):
            self.waiting.clear()
            self._on_lost(self)
