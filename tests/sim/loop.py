"""The loop of a simulated store, and the handler that captures its log."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from millpond.actors.store.workers import SteppedWorker, StoreWorker, WorkerTask

Item = TypeVar("Item")
Result = TypeVar("Result")

FOREIGN = (OSError, sqlite3.Error)
"""The errors that a failing disk may raise."""


class Clock:
    """A clock that moves when told."""

    def __init__(self, now: float) -> None:
        self.now = now


class Loop:
    """The `Surroundings` of one boot: workers that step when told, and callbacks."""

    def __init__(self, clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._rng = rng
        self.workers: list[SteppedWorker[Any, Any]] = []
        self._waiting: list[Callable[[], None]] = []

    def now(self) -> float:
        return self._clock.now

    def soon(self, callback: Callable[[], None]) -> None:
        self._waiting.append(callback)

    def salt(self) -> int:
        return self._rng.getrandbits(32)

    def worker(self, name: str, work: WorkerTask[Item, Result]) -> StoreWorker[Item]:
        worker = SteppedWorker(work)
        self.workers.append(worker)
        return worker

    def finish_pass(self) -> None:
        """Run the callbacks that wait."""
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()

    def work(self, *, idle: bool) -> bool:
        """Step each worker once. False: none had work, and nothing is left."""
        worked = [worker.step(idle=idle) for worker in self.workers]
        self.finish_pass()
        return any(worked)


class LogCapture(logging.Handler):
    """A handler of the project's log, which remembers failures that are not the disk's."""

    def __init__(self) -> None:
        super().__init__()
        self.surprise: logging.LogRecord | None = None
        self._has_failed = False
        self._log = logging.getLogger("millpond.actors")

    def __enter__(self) -> LogCapture:
        self._log.addHandler(self)
        self._log.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        self._log.removeHandler(self)
        self._log.propagate = True

    def take_failure(self) -> bool:
        """Did the journal fail since the last call?"""
        has_failed, self._has_failed = self._has_failed, False
        return has_failed

    def emit(self, record: logging.LogRecord) -> None:
        self._has_failed |= record.getMessage().startswith("journal failed")
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, FOREIGN):
            self.surprise = record
