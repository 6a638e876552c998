"""A job that a worker has: from its push until it is settled, given back or lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from millpond.node.client.message import Message
from millpond.node.jobs.payload import JobMessage
from millpond.node.jobs.task import Task

if TYPE_CHECKING:
    from millpond.node.jobs.worker.subscription import QueueSubscription

SURE_S = 0.5
"""For so long after its push a lease is taken for granted, whatever the node's setting is."""
FIRST_S = 0.4
"""Then it is renewed first, if the handler still runs."""
HURRY_S = 2.0
"""A worker that ends has so long to tell the node what became of a job."""


class LeasedJob:
    """Times are those of the running clock, in seconds.

    `until`: the lease lasts at least that long. `was_refused`: the node ended it before that.
    `scope` is there from when the handler begins, `settling` while the node is told of its end.
    """

    __slots__ = (
        "body",
        "feed",
        "is_given_up",
        "is_lost",
        "is_renewing",
        "message",
        "renew_at",
        "scope",
        "settling",
        "taken_at",
        "task",
        "until",
        "was_granted",
        "was_refused",
    )

    def __init__(
        self,
        message: Message,
        body: JobMessage,
        feed: QueueSubscription,
        task: Task[Any],
        now: float,
    ) -> None:
        self.message = message
        self.body = body
        self.feed = feed
        self.task = task
        self.taken_at = now
        self.until = now + SURE_S
        self.renew_at = now + min(FIRST_S, task.lease_s / 3)
        self.was_granted = False
        self.is_renewing = False
        self.is_lost = False
        self.was_refused = False
        self.is_given_up = False
        self.scope: anyio.CancelScope | None = None
        self.settling: anyio.CancelScope | None = None

    @property
    def limit(self) -> int:
        """How many attempts the job has."""
        return self.body.attempts or self.task.attempts

    @property
    def ends_at(self) -> float:
        """When the lease has to be taken for lost; what the node's own one is, nobody knows."""
        return self.until if self.was_granted else self.taken_at + max(SURE_S, self.task.lease_s)

    def granted(self, asked_at: float, seconds: float) -> None:
        """The node prolonged the lease; it counts from when it was asked, to be sure."""
        self.was_granted = True
        self.until = asked_at + seconds
        self.renew_at = asked_at + seconds / 3

    def lose(self) -> None:
        """The lease is over: an async handler is cancelled, another one can look (`cancelled`)."""
        self.is_lost = True
        if self.scope is not None and self.task.is_async:
            self.scope.cancel()

    def give_up(self) -> None:
        """The worker ends: the handler is cancelled, or left to itself if it is in a thread.

        What is still to be said about the job has to be said shortly.
        """
        self.is_given_up = True
        if self.scope is not None:
            self.scope.cancel()
        if self.settling is not None:
            self.hurry(self.settling)

    @staticmethod
    def hurry(settling: anyio.CancelScope) -> None:
        """Nobody waits much longer for this."""
        settling.deadline = min(settling.deadline, anyio.current_time() + HURRY_S)
