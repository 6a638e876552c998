"""What goes wrong on a simulated disk, and at which call."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import Counter
from enum import Enum

import msgspec


class DiskFault(OSError):
    """A call failed because a test said so. To the node it is an OSError like any other."""


class SqlFault(sqlite3.OperationalError):
    """The same, from SQLite."""


class DiskCall(Enum):
    """What is asked of a disk; the values are the names by which tests call them."""

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
"""The calls that a full disk fails. SQLite reports the full disk with its own error."""


_SQL_TEXTS = {
    errno.ENOSPC: "database or disk is full",
    errno.EMFILE: "unable to open database file",
}


class _Trouble(msgspec.Struct):
    calls: frozenset[DiskCall]
    errno: int
    left: float
    skipped: int


class Faults:
    """Counts the calls of a disk, and says of each whether it fails."""

    def __init__(self) -> None:
        self.calls: Counter[DiskCall] = Counter()
        self._troubles: list[_Trouble] = []

    @property
    def is_troubled(self) -> bool:
        """Do calls fail now, or are they going to?"""
        return bool(self._troubles)

    def add(self, calls: frozenset[DiskCall], number: int, times: float, skipped: int = 0) -> None:
        """Have the next calls of these kinds fail, so many of them, but for the first `skipped`."""
        self._troubles.append(_Trouble(calls, number, times, skipped))

    def heal(self) -> None:
        """Nothing fails any more."""
        self._troubles.clear()

    def enter(self, call: DiskCall | None) -> BaseException | None:
        """Count a call (None: one that cannot fail); what it is to raise, once it has done any
        part of its work. What is no Exception means that the machine stops here."""
        if call is None:
            return None
        self.calls[call] += 1
        for trouble in self._troubles:
            if call not in trouble.calls:
                continue
            if trouble.skipped:
                trouble.skipped -= 1
            else:
                trouble.left -= 1
                if trouble.left <= 0:
                    self._troubles.remove(trouble)
                return _error(call, trouble.errno)
        return None


def _error(call: DiskCall, number: int) -> DiskFault | SqlFault:
    if call.is_sql:
        return SqlFault(_SQL_TEXTS.get(number, "disk I/O error"))
    return DiskFault(number, os.strerror(number))
