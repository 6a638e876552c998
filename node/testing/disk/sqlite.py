"""SQLite on a simulated disk: real connections whose statements can fail.

A transaction is durable once its COMMIT has returned. After a COMMIT that failed or was interrupted
it may be there or not.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from random import Random
from typing import Any
from weakref import WeakSet

from millpond.node.testing.disk.faults import DiskCall, Faults

READS = ("select", "pragma", "begin", "explain", "with")


def _call_of(sql: str) -> DiskCall | None:
    """The call of a statement; None for a ROLLBACK, which always succeeds."""
    word = sql.lstrip().split(None, 1)[0].rstrip(";").lower() if sql.strip() else ""
    if word in ("commit", "end"):
        return DiskCall.SQL_COMMIT
    if word == "rollback":
        return None
    return DiskCall.SQL_READ if word in READS else DiskCall.SQL_CHANGE


class SimulatedConnection(sqlite3.Connection):
    """A connection whose statements fail as `faults` decides."""

    faults: Faults
    rng: Random
    is_open = True

    def __init__(self, *args: Any, **options: Any) -> None:
        self._cursors: WeakSet[SimulatedCursor] = WeakSet()
        super().__init__(*args, **options)

    def cursor(self, factory: Any = None) -> Any:
        cursor = super().cursor(SimulatedCursor)
        self._cursors.add(cursor)
        return cursor

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any) -> Any:
        return self.cursor().executemany(sql, parameters)

    def executescript(self, script: str) -> Any:
        return self.cursor().executescript(script)

    def commit(self) -> None:
        if self.in_transaction:
            self.execute("COMMIT")

    def rollback(self) -> None:
        if self.in_transaction:
            self.execute("ROLLBACK")

    def close(self) -> None:
        """Roll back and close, also the cursors: one that some traceback has would keep the file
        and its log open."""
        if self.is_open and self.in_transaction:
            # Such a cursor would keep the transaction and its lock as well.
            super().cursor().execute("ROLLBACK")
        for cursor in list(self._cursors) if self.is_open else ():
            cursor.close()
        self.is_open = False
        super().close()

    def run(self, call: DiskCall | None, work: Callable[[], Any], undo: Callable[[], Any]) -> Any:
        """Do `work`, or fail before it or after it took effect."""
        error = self.faults.enter(call)
        if error is None:
            return work()
        if call in (DiskCall.SQL_COMMIT, DiskCall.SQL_CHANGE) and self.rng.random() < 0.5:
            work()
        fails = isinstance(error, Exception)
        if fails and self.in_transaction and self.rng.random() < 0.3:
            undo()  # as SQLite may do by itself when the disk is full or broken
        raise error


class SimulatedCursor(sqlite3.Cursor):
    """A cursor; the statements of its connection run here, too."""

    connection: SimulatedConnection

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        if sql.lower().startswith("pragma synchronous"):
            sql = "PRAGMA synchronous = OFF"
        work = super().execute
        return self.connection.run(_call_of(sql), lambda: work(sql, parameters), self._undo)

    def executemany(self, sql: str, parameters: Any) -> Any:
        work = super().executemany
        return self.connection.run(_call_of(sql), lambda: work(sql, parameters), self._undo)

    def executescript(self, script: str) -> Any:
        work = super().executescript
        return self.connection.run(DiskCall.SQL_CHANGE, lambda: work(script), self._undo)

    def _undo(self) -> None:
        super().execute("ROLLBACK")
