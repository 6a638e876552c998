"""Which task a job is for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millpond.node.jobs.errors import Retry
from millpond.node.jobs.payload import JobMessage
from millpond.node.jobs.task import Handler, Task


class TaskRegistry:
    """The tasks of a worker.

    Raises ValueError where two have the same name, TypeError where one's annotation is unusable.
    """

    def __init__(self, work: Handler | Task[Any] | Iterable[Task[Any]], lease_s: float) -> None:
        self._only: Task[Any] | None = None
        if isinstance(work, Iterable):
            tasks = list(work)
        else:
            only = work if isinstance(work, Task) else None
            tasks = [only or Task(work, lease=lease_s, any_name=True)]
        if not tasks:
            raise ValueError("a worker needs a handler, or a task at least")
        for task in tasks:
            if not isinstance(task, Task):
                raise TypeError(f"{task!r} is no task: give one handler, or tasks")
        self._tasks: dict[tuple[str | None, str], Task[Any]] = {}
        for task in tasks:
            if (task.queue, task.name) in self._tasks:
                raise ValueError(f"two tasks of queue {task.queue!r} are called {task.name!r}")
            task.resolve()
            self._tasks[task.queue, task.name] = task
        if len(tasks) == 1:
            self._only = tasks[0]
        self._unknown: Task[Any] = Task(_unknown, name="unknown")

    @property
    def queues(self) -> list[str]:
        """The queues that the tasks name."""
        return sorted({task.queue for task in self._tasks.values() if task.queue is not None})

    def task_for(self, queue: str, body: JobMessage) -> Task[Any]:
        """The task; for a job that none is for, one that fails and says so.

        Such a job is tried again: it may be for a newer worker than this one.
        """
        if self._only is not None and (body.name is None or self._only.takes_any_name):
            return self._only
        if body.name is not None:
            for where in (queue, None):
                if (task := self._tasks.get((where, body.name))) is not None:
                    return task
            return self._unknown
        of_queue = [task for task in self._tasks.values() if task.queue in (queue, None)]
        return of_queue[0] if len(of_queue) == 1 else self._unknown


async def _unknown(_payload: Any, job: Any) -> None:
    name = "without a name" if job.name is None else f"called {job.name!r}"
    raise Retry(text=f"there is no task here for a job {name}")
