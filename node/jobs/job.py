"""A job as its handler sees it."""

from __future__ import annotations

from collections.abc import Callable

from millpond.node.jobs.payload import Headers
from millpond.node.jobs.records import flow_results
from millpond.node.jobs.worker.subscription import LeasedJob

NOTHING = object()
"""A report of the log alone: it has no value for a producer that waits."""


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
        "results",
        "state",
    )

    def __init__(
        self,
        leased: LeasedJob,
        now: Callable[[], float],
        report: Callable[[LeasedJob, object], None],
        state: object = None,
    ) -> None:
        self.id = leased.message.id
        self.attempt = leased.message.attempt
        self.name = leased.content.name
        self.payload: object = leased.content.payload
        self.queue = leased.subscription.queue
        self.headers: Headers = leased.content.headers
        found = leased.content.results
        self.results: list[object] = [] if found is None else flow_results(found)
        """Of a job in a flow: the results of the jobs that it waited for, in their order; a
        JobFailed in the place of one that failed and is ignored."""
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

    def progress(self, value: object, text: str = "") -> None:
        """Report progress: a number or another small value, and a text (500 characters). Returns
        at once; any thread may call.

        A producer that waits gets the values; those that come faster than they can be sent are
        dropped. `Queue.progress` reads the latest value and text while the job runs. Raises
        TypeError for a value that MessagePack cannot encode.
        """
        self._leased.reporting().set(value, text)
        self._report(self._leased, value)

    def log(self, line: str) -> None:
        """Add a line to the log of the job, which `Queue.progress` reads while it runs: the last
        100 lines of this attempt, of 500 characters each. Any thread may call."""
        self._leased.reporting().log(line)
        self._report(self._leased, NOTHING)
