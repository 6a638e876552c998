"""A task pool for jobs: each task runs one job after the other, as a new one costs more."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from millpond.node.jobs.worker.cancellation import is_worker_cancelled
from millpond.node.jobs.worker.subscription import LeasedJob

Run = Callable[[LeasedJob], Awaitable[bool]]


class TaskPool:
    """Runs jobs beside each other in tasks of `group`; the caller bounds their number.

    `run` returns whether its task is unchanged: only then it takes another job. While jobs are
    ready, one task is woken: it takes all of them, and wakes the next task before each job, for the
    case that the handler waits.
    """

    def __init__(self, group: TaskGroup, run: Run) -> None:
        self._group = group
        self._run = run
        self._ready: deque[LeasedJob] = deque()
        self._parked: list[anyio.Event] = []
        self._is_woken = False
        self._is_closed = False

    def start(self, leased: LeasedJob) -> None:
        """Run this in the next pass of the loop."""
        self._ready.append(leased)
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
            for _ in range(len(self._ready)):  # jobs begun meanwhile: in the next pass
                if not self._ready:
                    break
                leased = self._ready.popleft()
                if self._ready:
                    self._wake()
                if not await self._run(leased):
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
            if await is_worker_cancelled():
                raise
            if event in self._parked:
                self._parked.remove(event)
