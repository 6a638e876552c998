"""What a node's threads would do is done in the loop, step by step: nothing races, and a disk that
hangs holds up no more than the threads would."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Generic, TypeVar

import anyio
import anyio.lowlevel

from actors.store.lanes import InlineLane, Lane, Work
from node.storage import LoopSurroundings

Item = TypeVar("Item")
Result = TypeVar("Result")


class SteppedLane(Generic[Item, Result]):
    """A lane whose work a task does while `is_held` does not say otherwise."""

    def __init__(self, work: Work[Item, Result], is_held: Callable[[], bool]) -> None:
        self._work = work
        self._lane: InlineLane[Item, Result] = InlineLane(work)
        self._is_held = is_held
        self._is_cut = False
        self._woken = anyio.Event()

    def submit(self, item: Item, *, urgent: bool = False, quick: bool = False) -> None:
        self._lane.submit(item, urgent=urgent, quick=quick)
        self.wake()

    def wake(self) -> None:
        """There is something to do."""
        self._woken.set()

    def cut(self) -> None:
        """The process is gone: what waits is never done."""
        self._is_cut = True

    def close(self) -> None:
        if not self._is_cut:
            self._is_cut = True
            self._lane.close()

    async def run(self) -> None:
        """Work, until cancelled."""
        while not self._is_cut:
            self._woken = anyio.Event()
            if not self._is_held() and self._lane.step():
                await anyio.lowlevel.checkpoint()
                continue
            idle_s = self._work.idle_s()
            with anyio.move_on_after(idle_s) as rest:
                await self._woken.wait()
            if rest.cancelled_caught and not self._is_held() and not self._is_cut:
                self._lane.step(idle=True)


class SteppedSurroundings(LoopSurroundings):
    """The running loop as the store sees it, without threads."""

    def __init__(self, now: Callable[[], float], rng: Random, is_held: Callable[[], bool]) -> None:
        super().__init__(now, rng)
        self._is_held = is_held
        self._lanes: list[SteppedLane[Any, Any]] = []

    def lane(self, name: str, work: Work[Item, Result]) -> Lane[Item]:
        lane = SteppedLane(work, self._is_held)
        self._lanes.append(lane)
        return lane

    def wake(self) -> None:
        """The disk does not hang any more."""
        for lane in self._lanes:
            lane.wake()

    def cut(self) -> None:
        """The process is gone."""
        for lane in self._lanes:
            lane.cut()

    async def run(self) -> None:
        """Do the work of all lanes, until cancelled."""
        async with anyio.create_task_group() as tasks:
            for lane in self._lanes:
                tasks.start_soon(lane.run)
