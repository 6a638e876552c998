"""One queue's connection of a worker: takes what is pushed, and asks for more when that helps."""

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
    """`waiting` are jobs whose handler has not begun, `running` is how many have.

    `spare`: with several queues so many jobs more than run here are asked for, so that there is a
    choice when slots get free. A window never shrinks, so it stays as large as it ever was.
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
        self._begun: list[LeasedJob] = []

    def __repr__(self) -> str:
        return f"Feed({self.queue!r})"

    @asynccontextmanager
    async def joined(self, way: Connector) -> AsyncIterator[Self]:
        """The connection, for a block. Nothing is pushed before `receive`."""
        # Without `spare` nothing waits here, and saying when each job begins would cost a tenth.
        begins = bool(self._spare)
        async with way.join(
            self.name, "worker", mode="queue", window=0, begins=begins, on_event=self._hear
        ) as self.channel:
            yield self

    async def receive(self) -> None:
        """Take what is pushed. Raises why the channel is lost, if it is lost for good."""
        await self.widen()
        while True:
            self._on_message(self, await self.channel.receive())

    async def take_rest(self) -> None:
        """Take what is here already, without waiting for more."""
        with suppress(TimeoutError):
            while True:
                self._on_message(self, await self.channel.receive(0))

    async def widen(self) -> None:
        """Ask for as many as can run; with `spare` for so many more than do."""
        if self._spare:
            self._wanted = max(self._wanted, min(self.running, self._slots) + self._spare)
        missing = self._wanted - self._window
        if missing > 0:
            self._window += missing
            await self.channel.credit(missing)

    def begin(self, held: LeasedJob) -> None:
        """The node shall hear that the handler begins, with `tell`."""
        self.running += 1
        if self._spare:
            self._begun.append(held)

    def tell(self) -> None:
        """The node has to hear it before a handler can do any harm; one write tells of many."""
        begun, self._begun = self._begun, []
        for held in begun:
            held.message.begin(at_once=held is begun[-1])

    async def leave(self) -> None:
        """Close the connection in good order."""
        await self.channel.aclose()

    @property
    def is_short(self) -> bool:
        """Would `widen` ask for more?"""
        return bool(self._spare) and self.running + self._spare > self._wanted

    def _hear(self, event: Event) -> None:
        if isinstance(event, Disconnected):
            self.waiting.clear()
            self._on_lost(self)
