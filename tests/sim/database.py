"""SQLite on a simulated disk: a real connection whose statements can fail, and crash.

What a COMMIT returned for is there after a crash, what had none is not; of one that failed or was
interrupted either may be true.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from random import Random
from typing import Any

from tests.sim.faults import Crashed, Faults

READS = ("select", "pragma", "begin", "explain", "with")


def call_of(sql: str) -> str:
    """What kind of call a statement is to `Faults`; a ROLLBACK is none, it always succeeds."""
    word = sql.lstrip().split(None, 1)[0].rstrip(";").lower() if sql.strip() else ""
    if word in ("commit", "end"):
        return "sql commit"
    if word == "rollback":
        return ""
    return "sql read" if word in READS else "sql change"


class SimConnection(sqlite3.Connection):
    """A connection that asks `faults` before each statement."""

    faults: Faults
    rng: Random
    is_open = True

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(SimCursor)

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
        """What was not committed never happened."""
        if self.is_open and self.in_transaction:
            # A cursor that some traceback still holds would keep the transaction, and its lock.
            super().cursor().execute("ROLLBACK")
        self.is_open = False
        super().close()

    def run(self, call: str, work: Callable[[], Any], undo: Callable[[], Any]) -> Any:
        """Do `work`, unless it fails or the machine does: before it, or after it took effect."""
        error = self.faults.enter(call) if call else None
        if error is None:
            if self.faults.is_down:
                raise Crashed
            return work()
        if call in ("sql commit", "sql change") and self.rng.random() < 0.5:
            work()
        if not isinstance(error, Crashed) and self.in_transaction and self.rng.random() < 0.3:
            undo()  # as SQLite may do by itself when the disk is full or broken
        raise error


class SimCursor(sqlite3.Cursor):
    """Its connection's statements come here as well."""

    connection: SimConnection

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        if sql.lower().startswith("pragma synchronous"):
            sql = "PRAGMA synchronous = OFF"
        return self.connection.run(
            call_of(sql), lambda: super(SimCursor, self).execute(sql, parameters), self._undo
        )

    def executemany(self, sql: str, parameters: Any) -> Any:
        return self.connection.run(
            call_of(sql), lambda: super(SimCursor, self).executemany(sql, parameters), self._undo
        )

    def executescript(self, script: str) -> Any:
        return self.connection.run(
            "sql change", lambda: super(SimCursor, self).executescript(script), self._undo
        )

    def _undo(self) -> None:
        super().execute("ROLLBACK")
