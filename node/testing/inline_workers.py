"""Inline workers: the store's worker threads run as tasks of the loop, step by step.

Nothing races, and a hanging disk holds up only the work of the threads.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Generic, TypeVar

import anyio
import anyio.lowlevel

from millpond.actors.store.workers import StoreWorker, TaskQueue, WorkerTask
from millpond.node.data_folder import LoopRuntime

Item = TypeVar("Item")
Result = TypeVar("Result")


class InlineWorker(Generic[Item, Result]):
    """A worker that runs as a task of the loop; it does nothing while `is_held` is true."""

    def __init__(self, work: WorkerTask[Item, Result], is_held: Callable[[], bool]) -> None:
        self._work = work
        self._waiting: TaskQueue[Item] = TaskQueue()
        self._is_held = is_held
        self._is_killed = False
        self._woken = anyio.Event()

    def submit(
        self, item: Item, *, urgent: bool = False, quick: bool = False, lazy: bool = False
    ) -> None:
        self._waiting.add(item, urgent=urgent)
        self.wake()

    def wake(self) -> None:
        """Wake the task: there is work."""
        self._woken.set()

    def kill(self) -> None:
        """Drop waiting work: the process is gone."""
        self._is_killed = True

    def end(self) -> None:
        pass

    def close(self) -> None:
        """As a thread's: what waits is done, errors are logged, and nothing is reported."""
        if not self._is_killed:
            self._is_killed = True
            while self._waiting:
                self._work.attempt(self._waiting.take(self._work.batch_max))

    async def run(self) -> None:
        """Do the work, until cancelled."""
        while not self._is_killed:
            self._woken = anyio.Event()
            if not self._is_held() and self._step():
                await anyio.lowlevel.checkpoint()
                continue
            # A held worker is woken by `wake`, and has no work before.
            idle_s = None if self._is_held() else self._work.idle_s()
            with anyio.move_on_after(idle_s) as rest:
                await self._woken.wait()
            if rest.cancelled_caught and not self._is_held() and not self._is_killed:
                self._step(is_idle=True)

    def _step(self, *, is_idle: bool = False) -> bool:
        """Work on what waits, or do what is done when nothing does. False: there was nothing."""
        items = self._waiting.take(self._work.batch_max)
        if not items and (not is_idle or self._work.idle_s() is None):
            return False
        self._work.attempt(items)()
        return True


class InlineRuntime(LoopRuntime):
    """The runtime of a store without threads."""

    def __init__(self, now: Callable[[], float], rng: Random, is_held: Callable[[], bool]) -> None:
        super().__init__(now, rng)
        self._is_held = is_held
        self._workers: list[InlineWorker[Any, Any]] = []
        self._woken = anyio.Event()

    def worker(self, name: str, work: WorkerTask[Item, Result]) -> StoreWorker[Item]:
        worker = InlineWorker(work, self._is_held)
        self._workers.append(worker)
        return worker

    def wake(self) -> None:
        """Wake all workers: the disk has resumed."""
        self._woken.set()
        self._woken = anyio.Event()
        for worker in self._workers:
            worker.wake()

    def kill(self) -> None:
        """Drop the waiting work of all workers."""
        for worker in self._workers:
            worker.kill()

    async def resumed(self) -> None:
        """Wait until the disk does not hang."""
        while self._is_held():
            await self._woken.wait()

    async def run(self) -> None:
        """Run all workers, until cancelled."""
        async with anyio.create_task_group() as tasks:
            for worker in self._workers:
                tasks.start_soon(worker.run)
