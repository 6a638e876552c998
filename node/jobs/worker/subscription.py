"""A worker's subscription to one queue: takes pushed jobs, and widens the window for more."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Self

import anyio

from millpond.node.client.channel import Channel, Message, link_of
from millpond.node.client.events import Disconnected, Event
from millpond.node.jobs.connector import Connector
from millpond.node.jobs.payload import JobMessage, channel_of
from millpond.node.jobs.task import AnyTask
from millpond.node.jobs.worker.handler_threads import ThreadCall
from millpond.node.jobs.worker.progress import AttemptReport

OnMessage = Callable[["QueueSubscription", Message], None]
OnLost = Callable[["QueueSubscription"], None]
OnTaken = Callable[["QueueSubscription", int], None]


ASSUMED_LEASE_S = 0.5
"""The time in seconds after its push for which a lease is assumed, whatever the node's setting."""
FIRST_RENEWAL_S = 0.4
"""The time in seconds after its push at which a lease is first renewed, if the handler runs."""
HURRY_S = 2.0
"""The time in seconds that a worker that ends has to tell the node the outcome of a job."""


class LeasedJob:
    """A job with its lease. Times are those of the running clock, in seconds.

    `until`: the lease lasts at least that long. `renew_at`: it is renewed then. `was_refused`: the
    node ended it before that. `is_given_up`: the worker ends, and waits no longer for the handler.
    `is_timed_out`: the attempt took too long. `is_hung`: its thread went on all the same, and its
    task wants the process to end then.
    """

    __slots__ = (
        "_completion",
        "_handler",
        "_is_granted",
        "content",
        "is_given_up",
        "is_hung",
        "is_lost",
        "is_renewing",
        "is_timed_out",
        "message",
        "renew_at",
        "report",
        "subscription",
        "taken_at",
        "task",
        "thread",
        "until",
        "was_refused",
    )

    def __init__(
        self,
        message: Message,
        content: JobMessage,
        subscription: QueueSubscription,
        task: AnyTask,
        now: float,
    ) -> None:
        self.message = message
        self.content = content
        self.subscription = subscription
        self.task = task
        self.taken_at = now
        self.until = now + ASSUMED_LEASE_S
        self.renew_at = now + min(FIRST_RENEWAL_S, task.lease_s / 3)
        self.is_renewing = False
        self.is_lost = False
        self.was_refused = False
        self.is_given_up = False
        self.is_timed_out = False
        self.is_hung = False
        self.thread: ThreadCall | None = None
        """The call of a handler that is not async."""
        self.report: AttemptReport | None = None
        """The progress that the handler reported; None: nothing yet."""
        self._is_granted = False
        self._handler: anyio.CancelScope | None = None
        self._completion: anyio.CancelScope | None = None

    def runs_in(self, thread: ThreadCall) -> None:
        """This call, in a thread, is that of its handler."""
        self.thread = thread

    def reporting(self) -> AttemptReport:
        """Where the handler reports its progress."""
        if self.report is None:
            self.report = AttemptReport()
        return self.report

    @property
    def keep_s(self) -> int:
        """The seconds for which the node is to keep the result; 0: it does not."""
        kept = self.content.keep_s
        return self.task.keep_s if kept is None else kept

    @property
    def has_result(self) -> bool:
        """The job ends with its result, which the node keeps, or a flow waits for."""
        return self.keep_s > 0 or self.content.results is not None

    @property
    def attempts_max(self) -> int:
        """The attempts that the job has."""
        return self.content.attempts or self.task.attempts

    @property
    def ends_at(self) -> float:
        """The time at which the lease counts as lost. The node's own setting is not known here."""
        if self._is_granted:
            return self.until
        return self.taken_at + max(ASSUMED_LEASE_S, self.task.lease_s)

    @property
    def next_check_at(self) -> float:
        """The time at which the lease is to be renewed, or counts as lost while it is renewed."""
        return self.ends_at if self.is_renewing else self.renew_at

    # The lease.

    def begin_renewal(self) -> None:
        """The node is asked to extend the lease."""
        self.is_renewing = True

    def end_renewal(self) -> None:
        """The node has answered, or will not."""
        self.is_renewing = False

    def granted(self, now: float, seconds: float) -> None:
        """The node extended the lease, of which so many seconds are left."""
        self._is_granted = True
        self.until = now + seconds
        self.renew_at = now + seconds / 3

    def not_renewed(self, retry_at: float) -> None:
        """The node refused for now: it is asked again then."""
        self.renew_at = retry_at

    def refused(self, now: float) -> None:
        """The node says that the lease is over."""
        # The push may have taken long to arrive: only a lease that was granted here can be early.
        self.was_refused = self._is_granted and now < self.until

    def lose(self) -> None:
        """The lease is over: an async handler is cancelled, one in a thread sees `cancelled`."""
        self.is_lost = True
        if self._handler is not None and self.task.is_async:
            self._handler.cancel()

    # The handler, and the completion behind it.

    def handler_scope(self, scope_type: type[anyio.CancelScope]) -> anyio.CancelScope:
        """The scope, of this type, to run the handler in."""
        scope = self._handler = scope_type()
        return scope

    def completion_scope(self) -> anyio.CancelScope:
        """The scope to tell the node the outcome in."""
        self._completion = anyio.CancelScope()
        if self.is_given_up:
            self._hurry(self._completion)
        return self._completion

    def give_up(self) -> None:
        """The worker ends: the handler is cancelled, or left to itself if it is in a thread.

        The completion has `HURRY_S` from now.
        """
        self.is_given_up = True
        if self._handler is not None:
            self._handler.cancel()
        if self._completion is not None:
            self._hurry(self._completion)

    @staticmethod
    def _hurry(completion: anyio.CancelScope) -> None:
        completion.deadline = min(completion.deadline, anyio.current_time() + HURRY_S)


class QueueSubscription:
    """The connection of a worker to a queue.

    `waiting` are jobs whose handler has not begun, `running` counts those whose handler runs.
    `spare` is above 0 for a worker with several queues: the node pushes so many jobs more than run,
    so that the worker can choose among the queues when a slot gets free. A window never shrinks.
    """

    channel: Channel

    def __init__(
        self,
        queue: str,
        *,
        slots: int,
        spare: int,
        on_message: OnMessage,
        on_lost: OnLost,
        on_taken: OnTaken,
    ) -> None:
        self.queue = queue
        self.name = channel_of(queue)
        self.waiting: deque[LeasedJob] = deque()
        self.running = 0
        self._slots = slots
        self._spare = spare
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_taken = on_taken
        """Called with the id of a job whose lease the node ended: it was cancelled, or is done."""
        self._wanted = spare or slots
        self._window = 0
        self._unreported: list[LeasedJob] = []

    def __repr__(self) -> str:
        return f"QueueSubscription({self.queue!r})"

    @asynccontextmanager
    async def open(self, connector: Connector, worker: str) -> AsyncIterator[Self]:
        """The connection of the worker of this name, for a block. The node pushes nothing before
        `receive`."""
        # Without `spare` no job waits here, and reporting when each begins would cost a tenth.
        begins = bool(self._spare)
        async with connector.join(
            self.name,
            "worker",
            mode="queue",
            window=0,
            begins=begins,
            name=worker,
            on_event=self._on_event,
        ) as self.channel:
            link_of(self.channel).inflight.on_lease_lost = partial(self._on_taken, self)
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

    @property
    def has_unreported(self) -> bool:
        """Handlers begin of which the node was not told."""
        return bool(self._unreported)

    def report_starts(self) -> None:
        """Tell the node which jobs began, before their handlers do anything; in one write."""
        started, self._unreported = self._unreported, []
        for leased in started:
            leased.message.begin(at_once=leased is started[-1])

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
