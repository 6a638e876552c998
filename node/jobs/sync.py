"""The blocking twin of `Queue`, for programs without an event loop.

`with Queue("tcp://127.0.0.1:7400", "mail") as queue: queue.put({"to": "alice"})`. All blocking
clients share one event loop in a thread of its own; any thread may use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from anyio.from_thread import BlockingPortal

from millpond.node.client.sync.portal import LOOP, iterate
from millpond.node.jobs import handle, queue
from millpond.node.jobs.connection_options import ConnectionOptions
from millpond.node.jobs.history import HistoryEntry
from millpond.node.jobs.payload import Headers
from millpond.node.jobs.queue import Due
from millpond.node.jobs.requests import JobInfo, JobState, QueueCounts


class Handle:
    """A job that was put; every method is that of `millpond.node.jobs.handle.Handle`, blocking."""

    def __init__(self, awaited: handle.Handle, portal: BlockingPortal) -> None:
        self.id = awaited.id
        self.ttl = awaited.ttl
        self.existing = awaited.existing
        self._awaited = awaited
        self._portal = portal

    def __repr__(self) -> str:
        return repr(self._awaited)

    def result(self, timeout: float | None = None) -> Any:
        return self._portal.call(self._awaited.result, timeout)

    def progress(self) -> Iterator[Any]:
        return iterate(self._awaited.progress(), self._portal)


class Queue:
    """A queue; every method is that of `millpond.node.jobs.queue.Queue`, blocking."""

    def __init__(self, url: str, name: str, **options: Unpack[ConnectionOptions]) -> None:
        self.name = name
        self._open = partial(queue.Queue, url, name, **options)
        self._stack = ExitStack()
        self._queue: queue.Queue
        self._portal: BlockingPortal

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(LOOP)
            opened = self._portal.wrap_async_context_manager(self._portal.call(self._open))
            self._queue = stack.enter_context(opened)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def put(
        self,
        payload: Any = None,
        *,
        name: str | None = None,
        ttl: int = 0,
        due: Due | None = None,
        unique: str | bytes | None = None,
        attempts: int | None = None,
        headers: Headers | None = None,
        wait: bool = False,
        retry_for: float = 0.0,
    ) -> Handle:
        put = partial(
            self._queue.put,
            payload,
            name=name,
            ttl=ttl,
            due=due,
            unique=unique,
            attempts=attempts,
            headers=headers,
            wait=wait,
            retry_for=retry_for,
        )
        return Handle(self._portal.call(put), self._portal)

    def jobs(self, *states: JobState) -> Iterator[JobInfo]:
        return iterate(self._queue.jobs(*states), self._portal)

    def show(self, job: int) -> JobInfo:
        return self._portal.call(self._queue.show, job)

    def history(self, job: int) -> Iterator[HistoryEntry]:
        return iterate(self._queue.history(job), self._portal)

    def retry(self, job: int) -> None:
        self._portal.call(self._queue.retry, job)

    def cancel(self, job: int) -> None:
        self._portal.call(self._queue.cancel, job)

    def retry_dead(self, ids: Sequence[int] | None = None) -> int:
        return self._portal.call(self._queue.retry_dead, ids)

    def purge_dead(self, ids: Sequence[int] | None = None) -> int:
        return self._portal.call(self._queue.purge_dead, ids)

    def counts(self) -> QueueCounts:
        return self._portal.call(self._queue.counts)
