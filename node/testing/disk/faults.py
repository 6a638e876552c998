"""The faults of a simulated disk, and the calls at which they occur."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import Counter
from enum import Enum

import msgspec


class DiskFault(OSError):
    """A call that failed because of the test. To the node it is an ordinary OSError."""


class SqlFault(sqlite3.OperationalError):
    """A call of SQLite that failed because of the test."""


class DiskCall(Enum):
    """A call of a disk; tests use the values as names."""

    CREATE = "create"
    OPEN = "open"
    READ = "read"
    WRITE = "write"
    SYNC = "fdatasync"
    INSTALL = "install"
    NAMES = "list"
    MAKE_FOLDER = "mkdir"
    UNLINK = "unlink"
    SYNC_FOLDER = "fsync folder"
    CONNECT = "sql open"
    SQL_READ = "sql read"
    SQL_CHANGE = "sql change"
    SQL_COMMIT = "sql commit"

    @property
    def is_sql(self) -> bool:
        return self.value.startswith("sql")


SPACE_CALLS = frozenset(
    {
        *(DiskCall.CREATE, DiskCall.WRITE, DiskCall.SYNC, DiskCall.INSTALL, DiskCall.MAKE_FOLDER),
        *(DiskCall.SQL_CHANGE, DiskCall.SQL_COMMIT),
    }
)
"""The calls that fail on a full disk. SQLite has its own error for that."""


_SQL_TEXTS = {
    errno.ENOSPC: "database or disk is full",
    errno.EMFILE: "unable to open database file",
}


class _Fault(msgspec.Struct):
    calls: frozenset[DiskCall]
    errno: int
    left: float
    skipped: int


class Faults:
    """A counter of a disk's calls, which decides for each whether it fails."""

    def __init__(self) -> None:
        self.calls: Counter[DiskCall] = Counter()
        self._faults: list[_Fault] = []

    @property
    def is_failing(self) -> bool:
        """Calls fail, or will fail."""
        return bool(self._faults)

    def add(self, calls: frozenset[DiskCall], number: int, times: float, skipped: int = 0) -> None:
        """Let calls of these kinds fail `times` times, after the first `skipped` ones."""
        self._faults.append(_Fault(calls, number, times, skipped))

    def heal(self) -> None:
        """End all faults."""
        self._faults.clear()

    def enter(self, call: DiskCall | None) -> BaseException | None:
        """Count a call, and return the exception that it has to raise after part of its work.

        `call` is None for a call that cannot fail. A BaseException that is no Exception means that
        the machine stops.
        """
        if call is None:
            return None
        self.calls[call] += 1
        for fault in self._faults:
            if call not in fault.calls:
                continue
            if fault.skipped:
                fault.skipped -= 1
            else:
                fault.left -= 1
                if fault.left <= 0:
                    self._faults.remove(fault)
                return _error(call, fault.errno)
        return None


def _error(call: DiskCall, number: int) -> DiskFault | SqlFault:
    if call.is_sql:
        return SqlFault(_SQL_TEXTS.get(number, "disk I/O error"))
    return DiskFault(number, os.strerror(number))
