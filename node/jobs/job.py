"""A job as its handler sees it."""

from __future__ import annotations

from collections.abc import Callable

from millpond.node.jobs.payload import Headers
from millpond.node.jobs.worker.subscription import LeasedJob


class Job:
    """A job that runs. `attempt` counts from 1; `id` is the same in each attempt."""

    __slots__ = (
        "_leased",
        "_now",
        "_report",
        "attempt",
        "headers",
        "id",
        "name",
        "payload",
        "queue",
        "state",
    )

    def __init__(
        self,
        leased: LeasedJob,
        now: Callable[[], float],
        report: Callable[[object], None],
        state: object = None,
    ) -> None:
        self.id = leased.message.id
        self.attempt = leased.message.attempt
        self.name = leased.content.name
        self.payload: object = leased.content.payload
        self.queue = leased.subscription.queue
        self.headers: Headers = leased.content.headers
        self.state = state
        """The value of the worker's lifespan: a pool of database connections, for example."""
        self._leased = leased
        self._now = now
        self._report = report

    def __repr__(self) -> str:
        return f"Job(id={self.id}, name={self.name!r}, attempt={self.attempt})"

    @property
    def lease_left(self) -> float:
        """Seconds for which the lease surely lasts. The worker renews it by itself."""
        return 0.0 if self._leased.is_lost else max(0.0, self._leased.until - self._now())

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop: an async one is cancelled, one in a thread has to look.

        True when the lease is lost, the job was cancelled, its attempt took too long, or the worker
        ends.
        """
        leased = self._leased
        return leased.is_lost or leased.is_given_up or leased.is_timed_out

    def progress(self, value: object) -> None:
        """Report progress to the producer that waits. Returns at once; any thread may call.

        Reports that come faster than they can be sent are dropped.
        """
        if self._leased.content.reply_to is not None:
            self._report(value)
