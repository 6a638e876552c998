"""A task with a blocking queue: `send = send_mail.bind(queue)`, `send.put(Mail("alice"))`."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from datetime import datetime
from typing import Any, Generic, TypeVar, Unpack, overload

from millpond.node.jobs.sync import Handle, Queue
from millpond.node.jobs.task import P_contra, PutOptions, R_co, Task

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")


class BoundTask(Generic[P_contra, R_co]):
    """A task with the blocking queue that its jobs are put into (`Task.bind`)."""

    def __init__(self, task: Task[P_contra, R_co], queue: Queue) -> None:
        self.task = task
        self.queue = queue

    def __repr__(self) -> str:
        return f"BoundTask({self.task.name!r}, queue={self.queue.name!r})"

    @overload
    def put(
        self: BoundTask[None, Awaitable[T]], payload: None = None, **options: Unpack[PutOptions]
    ) -> Handle[T]: ...

    @overload
    def put(
        self: BoundTask[P, Awaitable[T]], payload: P, **options: Unpack[PutOptions]
    ) -> Handle[T]: ...

    @overload
    def put(
        self: BoundTask[None, R], payload: None = None, **options: Unpack[PutOptions]
    ) -> Handle[R]: ...

    @overload
    def put(self: BoundTask[P, R], payload: P, **options: Unpack[PutOptions]) -> Handle[R]: ...

    def put(self, payload: object = None, **options: Unpack[PutOptions]) -> Handle[Any]:
        """Put a job, which is kept when this returns; options as those of `Queue.put`.

        With `wait=True` the handle has the result. Raises TypeError for a payload that the handler
        would not get.
        """
        self.task.check_payload(payload)
        options.setdefault("name", self.task.name)
        return self.queue.put(payload, **options)

    def put_many(
        self: BoundTask[P, object],
        payloads: Iterable[P],
        *,
        ttl: int = 0,
        due: datetime | float | None = None,
        keep: int | None = None,
    ) -> list[int]:
        """Put a job for each payload, all or none of them; else as `Queue.put_many`."""
        found = list(payloads)
        for each in found:
            self.task.check_payload(each)
        name = self.task.name
        return self.queue.put_many(found, name=name, ttl=ttl, due=due, keep=keep)
