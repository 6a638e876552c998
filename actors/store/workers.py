"""Worker threads of the store: blocking work runs off the event loop, one item after the other,
and reports back in order.

`StoreWorker` is the interface. One implementation is a thread; the other runs a step at a time,
for the simulator.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")
ItemIn = TypeVar("ItemIn", contravariant=True)


class StoreWorker(Protocol[ItemIn]):
    """Takes items in the loop's thread."""

    def submit(
        self, item: ItemIn, *, urgent: bool = False, quick: bool = False, lazy: bool = False
    ) -> None:
        """Queue an item: an urgent one before those that wait, others behind them. A quick one
        takes no long time: if nothing else waits, it may be done in the calling thread. A lazy one
        may wait `lazy_s` for others, with which it goes.
        """

    def end(self) -> None:
        """Take nothing more, and report nothing more, in the loop's thread. `close` follows."""

    def close(self) -> None:
        """Return when everything submitted has been worked on, in any thread. Nothing is reported
        after."""


class WorkerTask(Generic[Item, Result]):
    """The work of a worker: `run` off the loop, then `done` in the loop's thread.

    `run` gets up to `batch_max` items that wait, and an empty list when none came for `idle_s()`
    seconds (None: it is not woken). An exception of `run` is given to `crashed`, in the loop's
    thread. Lazy items wait up to `lazy_s` seconds.
    """

    __slots__ = ("batch_max", "crashed", "done", "idle_s", "lazy_s", "run")

    def __init__(
        self,
        run: Callable[[list[Item]], Result],
        done: Callable[[list[Item], Result], None],
        crashed: Callable[[list[Item], Exception], None],
        *,
        idle_s: Callable[[], float | None] = lambda: None,
        batch_max: int = 2**30,
        lazy_s: float = 0.0,
    ) -> None:
        self.run = run
        self.done = done
        self.crashed = crashed
        self.idle_s = idle_s
        self.batch_max = batch_max
        self.lazy_s = lazy_s

    def attempt(self, items: list[Item]) -> Callable[[], None]:
        """Run, and give what is to be called in the loop's thread."""
        try:
            result = self.run(items)
        except Exception as exc:  # any error fails these items, and not those that come later
            log.exception("worker crashed: items=%d", len(items))
            return partial(self.crashed, items, exc)
        return partial(self.done, items, result)


class TaskQueue(Generic[Item]):
    """Items that wait, urgent ones apart; they go first, but not for ever."""

    __slots__ = ("_was_urgent", "items", "urgent")

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.urgent: deque[Item] = deque()
        self._was_urgent = False

    def __bool__(self) -> bool:
        return bool(self.items or self.urgent)

    def add(self, item: Item, *, urgent: bool) -> None:
        (self.urgent if urgent else self.items).append(item)

    def take(self, count_max: int) -> list[Item]:
        """At most so many; other threads may add meanwhile."""
        items, urgent = self.items, self.urgent
        queues = (items, urgent) if self._was_urgent else (urgent, items)
        self._was_urgent = not self._was_urgent and bool(urgent)
        taken: list[Item] = []
        for queue in queues:
            while queue and len(taken) < count_max:
                taken.append(queue.popleft())
        return taken


class WorkerThread(Generic[Item, Result]):
    """A thread of its own. `post` has a callback run in the loop's thread, from any thread."""

    def __init__(
        self,
        name: str,
        work: WorkerTask[Item, Result],
        post: Callable[[Callable[[], None]], object],
    ) -> None:
        self._work = work
        self._post = post
        self._waiting: TaskQueue[Item] = TaskQueue()
        # Unlocked = there is something to look at. A lock costs a tenth of a semaphore here.
        self._wake = threading.Lock()
        self._wake.acquire()
        self._working = threading.Lock()
        self._sleeps_deep = False
        self._sleeps_briefly = False
        """It looks at what waits within `lazy_s` by itself."""
        # One is counted here and the other there, so neither needs a lock.
        self._attempts = 0
        self._reports = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"millpond-{name}", daemon=True)
        self._thread.start()

    def submit(
        self, item: Item, *, urgent: bool = False, quick: bool = False, lazy: bool = False
    ) -> None:
        waiting = self._waiting
        is_alone = not (waiting.items or waiting.urgent)
        if not (quick and is_alone and self._attempt_here(item)):
            (waiting.urgent if urgent else waiting.items).append(item)
            if lazy and self._sleeps_briefly:
                return  # read after the item was added: the thread clears it before it takes items
            if self._wake.locked():  # as `_wake_thread` has it
                self._wake.release()

    def end(self) -> None:
        self._is_closed = True
        self._wake_thread()

    def close(self) -> None:
        if not self._is_closed:
            self.end()
        self._thread.join()

    def _attempt_here(self, item: Item) -> bool:
        """False: the thread is at work, or what it did last is still to be reported."""
        if not self._working.acquire(blocking=False):
            return False
        try:
            if self._attempts != self._reports:
                return False
            report = self._work.attempt([item])
        finally:
            self._working.release()
        if self._sleeps_deep and self._work.idle_s() is not None:
            self._wake_thread()  # there is something to be done after a while now
        report()
        return True

    def _report(self, report: Callable[[], None]) -> None:
        self._reports += 1
        report()

    def _wake_thread(self) -> None:
        # No caller but the loop's thread unlocks, so it cannot be unlocked twice.
        if self._wake.locked():
            self._wake.release()

    def _sleep_briefly(self) -> None:
        """Sleep until something comes that is not lazy, but for `lazy_s` at most."""
        self._sleeps_briefly = True
        if not self._waiting:
            self._wake.acquire(timeout=self._work.lazy_s)
        self._sleeps_briefly = False

    def _run(self) -> None:
        work, waiting = self._work, self._waiting
        while waiting.items or waiting.urgent or not self._is_closed:
            if work.lazy_s and self._attempts:
                self._sleep_briefly()
            self._sleeps_deep = True  # said first: what is done here meanwhile must wake it
            idle_s = work.idle_s()
            self._sleeps_deep = idle_s is None
            is_woken = bool(waiting.items or waiting.urgent) or self._wake.acquire(
                timeout=-1 if idle_s is None else idle_s
            )
            with self._working:
                items = waiting.take(work.batch_max)
                if not items and is_woken:
                    continue
                report = work.attempt(items)
                self._attempts += 1
            if not self._is_closed:
                self._post(partial(self._report, report))


class SteppedWorker(Generic[Item, Result]):
    """No thread: what was submitted waits for `step`."""

    def __init__(self, work: WorkerTask[Item, Result]) -> None:
        self._work = work
        self._waiting: TaskQueue[Item] = TaskQueue()

    def submit(
        self, item: Item, *, urgent: bool = False, quick: bool = False, lazy: bool = False
    ) -> None:
        self._waiting.add(item, urgent=urgent)

    def step(self, *, idle: bool = False) -> bool:
        """Work on what waits, or do what is done when nothing waits. False: there was nothing."""
        items = self._waiting.take(self._work.batch_max)
        if not items and (not idle or self._work.idle_s() is None):
            return False
        self._work.attempt(items)()
        return True

    def end(self) -> None:
        pass

    def close(self) -> None:
        while self._waiting:
            self._work.run(self._waiting.take(self._work.batch_max))
