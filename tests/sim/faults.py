"""What goes wrong on a simulated disk, and at which call."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import Counter
from enum import Enum

CHANGING = frozenset(
    {"create", "write", "sync", "install", "make_folder", "sql change", "sql commit"}
)
READING = frozenset({"open", "read", "names", "unlink", "sync_folder", "connect", "sql read"})
OPENING = frozenset(
    {"create", "open", "read", "install", "names", "make_folder", "sync_folder", "connect"}
)


class Crashed(BaseException):
    """The machine is off. Nothing of the program runs on: not even an `except Exception`."""


class Trouble(Enum):
    """A kind of failure: which calls it befalls, and what they raise."""

    FULL = (errno.ENOSPC, "database or disk is full", CHANGING)
    BROKEN = (errno.EIO, "disk I/O error", CHANGING | READING)
    NO_HANDLES = (errno.EMFILE, "unable to open database file", OPENING)
    SHORT = (errno.ENOSPC, "database or disk is full", frozenset({"write"}))

    @property
    def calls(self) -> frozenset[str]:
        return self.value[2]

    def error(self, call: str) -> Exception:
        number, text, _ = self.value
        if call == "connect" or call.startswith("sql"):
            return sqlite3.OperationalError(text)
        return OSError(number, os.strerror(number))


class Faults:
    """Counts the calls of a disk, and says of each whether it fails.

    After a crash every call raises `Crashed` until the machine is on again.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.is_down = False
        self._crash_in = 0
        self._trouble: Trouble | None = None
        self._starts_in = 0
        self._left: float = 0

    @property
    def total(self) -> int:
        """Calls since the start."""
        return self.calls.total()

    def crash_at(self, k: int) -> None:
        """The k-th call from now (1 = the next) ends in a power failure; 0: none does."""
        self._crash_in = k

    def fail(self, k: int, trouble: Trouble) -> None:
        """The k-th call from now that can fail this way fails, and no other."""
        self.fail_from(k, trouble, calls=1)

    def fail_from(self, k: int, trouble: Trouble, calls: float = float("inf")) -> None:
        """So many calls fail, from the k-th on that can, or until `heal`."""
        self._trouble, self._starts_in, self._left = trouble, k, calls

    def heal(self) -> None:
        self._trouble = None

    @property
    def is_troubled(self) -> bool:
        """Do calls fail now, or are they going to?"""
        return self._trouble is not None

    def enter(self, call: str) -> BaseException | None:
        """Count a call. What it is to raise, once it has done any part of its work."""
        if self.is_down:
            raise Crashed
        self.calls[call] += 1
        if self._crash_in:
            self._crash_in -= 1
            if self._crash_in == 0:
                self.is_down = True
                return Crashed()
        return self._fail(call)

    def _fail(self, call: str) -> Exception | None:
        trouble = self._trouble
        if trouble is None or call not in trouble.calls:
            return None
        if self._starts_in > 1:
            self._starts_in -= 1
            return None
        self._left -= 1
        if self._left <= 0:
            self._trouble = None
        return trouble.error(call)

    def restart(self) -> None:
        """The machine is on again, and planned crashes are forgotten."""
        self.is_down = False
        self._crash_in = 0
