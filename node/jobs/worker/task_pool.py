"""The tasks that jobs run in, one job after the other: a new task costs more than a short job."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from millpond.node.jobs.worker.cancellation import is_for_all
from millpond.node.jobs.worker.leased_job import LeasedJob

Run = Callable[[LeasedJob], Awaitable[bool]]


class TaskPool:
    """Runs what is begun, each at once beside the others, in tasks of `group`.

    `run` says whether its task is as it was before: only then it takes another job. Who begins has
    to know how many may run. Not empty means that a task is on its way to look: it takes all that
    is there, and wakes the next one first, for the case that a handler waits.
    """

    def __init__(self, group: TaskGroup, run: Run) -> None:
        self._group = group
        self._run = run
        self._ready: deque[LeasedJob] = deque()
        self._parked: list[anyio.Event] = []
        self._is_woken = False
        self._is_closed = False

    def begin(self, held: LeasedJob) -> None:
        """Run this with the next turn of the loop."""
        self._ready.append(held)
        self._wake()

    def close(self) -> None:
        """Tasks end when they have nothing to do."""
        self._is_closed = True
        while self._parked:
            self._parked.pop().set()

    def _wake(self) -> None:
        if self._is_woken:
            return
        self._is_woken = True
        if self._parked:
            self._parked.pop().set()
        else:
            self._group.start_soon(self._work)

    async def _work(self) -> None:
        while True:
            self._is_woken = False
            for _ in range(len(self._ready)):  # what is begun meanwhile: in the next turn
                if not self._ready:
                    break
                held = self._ready.popleft()
                if self._ready:
                    self._wake()
                if not await self._run(held):
                    return
            if self._is_closed:
                return
            await self._park()

    async def _park(self) -> None:
        event = anyio.Event()
        self._parked.append(event)
        try:
            await event.wait()
        except anyio.get_cancelled_exc_class():
            if await is_for_all():
                raise
            if event in self._parked:
                self._parked.remove(event)
