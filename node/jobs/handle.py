"""The handle of a job that was put: its id, and its result."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from math import inf
from typing import Any, Generic

import anyio
import msgspec
from typing_extensions import TypeVar

from millpond.node.client.future import ReplyFuture
from millpond.node.jobs.errors import JobCancelled, JobFailed
from millpond.node.jobs.payload import JobUpdate

PROGRESS_MAX = 1000

R = TypeVar("R", default=Any)
"""A queue does not know what a worker returns: its handles have results of any type."""


class _Failure(msgspec.Struct):
    reason: str = ""
    error: str = ""


class PendingResult:
    """The result of one job, as far as it is known.

    The first result counts: a job that ran twice may have two.
    """

    def __init__(self) -> None:
        self.future: ReplyFuture[Any] = ReplyFuture()
        self.progress: deque[Any] = deque(maxlen=PROGRESS_MAX)
        self.changed = anyio.Event()
        self.job = 0
        self.check_at = inf
        """The time of the next check of the job."""
        self.is_overdue = False
        """The job is gone, and its result has not come yet."""
        self._check_delay_s = 0.0

    def watch(self, job: int, check_at: float) -> None:
        """The job's id, and the time of its first check."""
        self.job, self.check_at = job, check_at

    def check_later(self, now: float, first_s: float, max_s: float) -> None:
        """The job is still there: check again after a delay that doubles."""
        self._check_delay_s = min(2 * self._check_delay_s or first_s, max_s)
        self.check_at = now + self._check_delay_s

    def overdue(self, check_at: float) -> None:
        """The job is gone: its result has until then to come."""
        self.is_overdue = True
        self.check_at = check_at

    def update(self, update: JobUpdate) -> None:
        """Take an update from the mailbox."""
        match update.kind:
            case "progress":
                self.progress.append(update.value)
            case "result":
                self.future.resolve(update.value)
            case "failed":
                self.future.fail(_failure(update.value))
            case "cancelled":
                self.future.fail(JobCancelled("the job was cancelled"))
        self._wake()

    def fail(self, error: Exception) -> None:
        """No result will come any more."""
        self.future.fail(error)
        self._wake()

    def _wake(self) -> None:
        # The tasks that wait have this event; later ones need another.
        changed, self.changed = self.changed, anyio.Event()
        changed.set()


class Handle(Generic[R]):
    """A job that was put: its `id`, and its result where it was put with `wait=True`.

    `R` is the type of the result, which `Task.put` takes from the handler.

    `existing`: a job of the same unique key was in the queue already, and this is that one.
    """

    id: int
    ttl: int
    existing: bool

    def __init__(self, job: int, ttl: int, existing: bool, pending: PendingResult | None) -> None:
        self.id = job
        self.ttl = ttl
        self.existing = existing
        self._pending = pending

    def __repr__(self) -> str:
        return f"Handle(id={self.id}, existing={self.existing})"

    async def result(self, timeout: float | None = None) -> R:  # noqa: ASYNC109  as others call it
        """The value that the handler returned.

        Raises JobFailed, JobCancelled, and TimeoutError after `timeout` seconds. That a job expired
        or used up the attempts of its queue is noticed late. ValueError if the job was put without
        `wait=True`.
        """
        with anyio.fail_after(timeout):
            value: R = await self._pending_result().future.wait()
            return value

    async def progress(self) -> AsyncIterator[object]:
        """The progress that the handler reports, until there is a result.

        Where several tasks read, each value is for one of them.
        """
        pending = self._pending_result()
        while True:
            while pending.progress:
                yield pending.progress.popleft()
            if pending.future.done:
                return
            await pending.changed.wait()

    def _pending_result(self) -> PendingResult:
        if self._pending is None:
            raise ValueError("the job has no result: put it with wait=True")
        return self._pending


def _failure(value: Any) -> JobFailed:
    try:
        failure = msgspec.convert(value, _Failure)
    except msgspec.ValidationError:
        return JobFailed("unknown")
    return JobFailed(failure.reason, failure.error)
