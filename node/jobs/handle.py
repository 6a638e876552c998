"""A job that was put: its id, and the wait for its result."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from math import inf
from typing import Any

import anyio
import msgspec

from millpond.node.client.future import ReplyFuture
from millpond.node.jobs.errors import JobCancelled, JobFailed
from millpond.node.jobs.results import JobUpdate

PROGRESS_MAX = 1000


class _Failure(msgspec.Struct):
    reason: str = ""
    error: str = ""


class PendingResult:
    """What came of one job so far. The first result counts: a job that ran twice may have two."""

    def __init__(self) -> None:
        self.answer: ReplyFuture[Any] = ReplyFuture()
        self.progress: deque[Any] = deque(maxlen=PROGRESS_MAX)
        self.changed = anyio.Event()
        self.job = 0
        self.look_at = inf
        """When the node is to be asked about the job; `rest_s` was the rest before that."""
        self.rest_s = 0.0
        self.is_overdue = False
        """The job is gone, and its result has not come yet."""

    def hear(self, news: JobUpdate) -> None:
        """Take what the mailbox brought."""
        match news.kind:
            case "progress":
                self.progress.append(news.value)
            case "result":
                self.answer.resolve(news.value)
            case "failed":
                self.answer.fail(_failure(news.value))
            case "cancelled":
                self.answer.fail(JobCancelled("the job was cancelled"))
        self._wake()

    def fail(self, error: Exception) -> None:
        """Nothing will come any more."""
        self.answer.fail(error)
        self._wake()

    def _wake(self) -> None:
        # Whoever waits has this event; one who comes later has to have another.
        changed, self.changed = self.changed, anyio.Event()
        changed.set()


class Handle:
    """A job that was put: its `id`, and its result where it was put with `wait=True`.

    `existing`: a job of the same unique key was in the queue already, and this is that one.
    """

    id: int
    ttl: int
    existing: bool

    def __init__(self, job: int, ttl: int, existing: bool, wait: PendingResult | None) -> None:
        self.id = job
        self.ttl = ttl
        self.existing = existing
        self._wait = wait

    def __repr__(self) -> str:
        return f"Handle(id={self.id}, existing={self.existing})"

    async def result(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109  as others call it
        """What the handler returned.

        Raises JobFailed, JobCancelled, and TimeoutError after `timeout` seconds: nobody tells when
        a job's time is over, or when it used up the attempts that its queue has. ValueError if the
        job was put without `wait=True`.
        """
        with anyio.fail_after(timeout):
            return await self._waited().answer.wait()

    async def progress(self) -> AsyncIterator[Any]:
        """What the handler tells of its progress, until there is a result.

        Where several tasks read, each value is for one of them.
        """
        wait = self._waited()
        while True:
            while wait.progress:
                yield wait.progress.popleft()
            if wait.answer.done:
                return
            await wait.changed.wait()

    def _waited(self) -> PendingResult:
        if self._wait is None:
            raise ValueError("nobody waits for this job: put it with wait=True")
        return self._wait


def _failure(value: Any) -> JobFailed:
    try:
        failure = msgspec.convert(value, _Failure)
    except msgspec.ValidationError:
        return JobFailed("unknown")
    return JobFailed(failure.reason, failure.error)
