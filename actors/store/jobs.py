"""Jobs of the lane that reads and writes partitions' files."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Any

from millpond.actors.store.interface import Fault
from millpond.actors.store.partitions.partition import Damaged

log = logging.getLogger(__name__)


class FileJob:
    """Runs off the loop; `done` gets its result, or the fault that the disk had, in the loop.

    `name` is the partition's, for the log; None if it is for all of them.
    """

    __slots__ = ("_done", "_name", "_result", "_run")

    def __init__(
        self,
        run: Callable[[], Any],
        done: Callable[[Any], None] | None = None,
        *,
        name: bytes | None = None,
    ) -> None:
        self._run = run
        self._done = done
        self._name = name
        self._result: Any = None

    def attempt(self) -> None:
        """Foreign errors become faults here."""
        try:
            self._result = self._run()
        except Damaged as exc:
            log.error("partition damaged: name=%r error=%s", self._name, exc)
            self._result = Fault.DAMAGED
        except (sqlite3.Error, OSError) as exc:
            log.error("partition not read or written: name=%r error=%s", self._name, exc)
            self._result = Fault.UNREADABLE

    def report(self) -> None:
        if self._done is not None:
            self._done(self._result)

    def fail(self) -> None:
        """It crashed."""
        self._result = Fault.UNREADABLE
        self.report()
