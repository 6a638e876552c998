"""Faults of the disk of a simulated store, and the call at which the machine stops."""

from __future__ import annotations

import errno
from enum import Enum
from math import inf

from millpond.node.testing.disk.faults import SPACE_CALLS, DiskCall, Faults

OPENING = frozenset(
    {
        *(DiskCall.CREATE, DiskCall.OPEN, DiskCall.READ, DiskCall.INSTALL, DiskCall.NAMES),
        *(DiskCall.MAKE_FOLDER, DiskCall.SYNC_FOLDER, DiskCall.CONNECT),
    }
)


class Crashed(BaseException):
    """The machine is off. Nothing of the program runs on: not even an `except Exception`."""


class Trouble(Enum):
    """A kind of failure: what its error is, and which calls it befalls."""

    FULL = (errno.ENOSPC, SPACE_CALLS)
    BROKEN = (errno.EIO, frozenset(DiskCall))
    NO_HANDLES = (errno.EMFILE, OPENING)
    SHORT = (errno.ENOSPC, frozenset({DiskCall.WRITE}))

    @property
    def calls(self) -> frozenset[DiskCall]:
        return self.value[1]


class StoreFaults(Faults):
    """One trouble at a time, from the k-th call on; and a crash at the k-th.

    After a crash every call raises `Crashed` until the machine is on again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_down = False
        self._crash_in = 0

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

    def fail_from(self, k: int, trouble: Trouble, calls: float = inf) -> None:
        """So many calls fail, from the k-th on that can, or until `heal`."""
        self.heal()
        self.add(trouble.calls, trouble.value[0], calls, skipped=k - 1)

    def restart(self) -> None:
        """The machine is on again, and planned crashes are forgotten."""
        self.is_down = False
        self._crash_in = 0

    def enter(self, call: DiskCall | None) -> BaseException | None:
        """As the toolkit's. Raises Crashed when the machine is off."""
        if self.is_down:
            raise Crashed
        if call is not None and self._crash_in:
            self._crash_in -= 1
            if self._crash_in == 0:
                self.calls[call] += 1
                self.is_down = True
                return Crashed()
        return super().enter(call)
