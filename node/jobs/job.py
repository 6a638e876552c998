"""What a handler sees of its job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millpond.node.jobs.payload import Headers
from millpond.node.jobs.worker.leased_job import LeasedJob


class Job:
    """A job that is being worked on. `attempt` counts from 1; `id` is the same in each of them."""

    __slots__ = ("_held", "_now", "_report", "attempt", "headers", "id", "name", "payload", "queue")

    def __init__(
        self, held: LeasedJob, now: Callable[[], float], report: Callable[[Any], None]
    ) -> None:
        self.id = held.message.id
        self.attempt = held.message.attempt
        self.name = held.body.name
        self.payload = held.body.payload
        self.queue = held.feed.queue
        self.headers: Headers = held.body.headers
        self._held = held
        self._now = now
        self._report = report

    def __repr__(self) -> str:
        return f"Job(id={self.id}, name={self.name!r}, attempt={self.attempt})"

    @property
    def lease_left(self) -> float:
        """Seconds for which the job is surely ours; it is renewed on its own."""
        return 0.0 if self._held.is_lost else max(0.0, self._held.until - self._now())

    @property
    def cancelled(self) -> bool:
        """Should the handler stop? An async one is cancelled; one in a thread looks now and then.

        True when the lease is lost, the job was cancelled, or the worker cannot wait any longer.
        """
        return self._held.is_lost or self._held.is_given_up

    def progress(self, value: Any) -> None:
        """Tell who waits for the result, if anybody does. Never waits, may be called in a thread.

        What is told faster than it can be carried is dropped.
        """
        if self._held.body.reply_to is not None:
            self._report(value)
