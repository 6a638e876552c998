"""Clock files: trusted time as a data folder keeps it, and an operator's confirmation.

`clock.json` has the last reading, for the next start. `clock-confirmed.json` says that an operator
found the wall clock right (`millpond doctor --confirm-clock`); the node uses it once.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TypeVar

import msgspec

from millpond.actors.ids import IdSource
from millpond.node.atomic_files import replace
from millpond.node.clock import IDS_AHEAD_S, IDS_LEAD_S, Clock, ClockReading

log = logging.getLogger(__name__)

READING, CONFIRMATION = "clock.json", "clock-confirmed.json"
CONFIRMED_S_MAX = 86_400.0
"""A confirmation is used within a day by the wall clock that it confirmed, and refused later."""
BYTES_MAX = 4096
IDS_RETRY_S = 10.0
"""Ids go on for so long where their bound could not be stored: another try may hold up the loop."""

Content = TypeVar("Content")


class Confirmation(msgspec.Struct, frozen=True):
    """The time of the wall clock when an operator confirmed it."""

    wall: float


def store_reading(folder: Path, reading: ClockReading) -> None:
    """Store a reading. Raises OSError."""
    replace(folder / READING, msgspec.json.encode(reading) + b"\n")


class ClockStore:
    """The clock file of a running node, which the loop's thread and workers store, one at a time.

    None of them waits for another, whose disk may hang: what that one stores is as good.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._lock = Lock()
        self.was_set_back = False
        """The store may have deadlines of a time that was set back."""

    def store(self, ids_at: float, ids_until: float) -> None:
        """Store trusted time and bounds of ids, unless another thread is storing."""
        if self._lock.acquire(blocking=False):
            try:
                self._write(ids_at, ids_until)
            finally:
                self._lock.release()

    def reserve_ids(self, ids: IdSource) -> None:
        """Store trusted time, and that ids are given out up to some time ahead of it; a later start
        begins behind that where nothing tells what time it is. Where that cannot be stored, or
        another thread is at it, ids go on all the same, and ask again soon."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            now, ids_at = self._clock.now(), ids.time
            # A time that no id can have uses none up.
            lead = 0.0 if ids.has_ended(now) else now + IDS_LEAD_S
            until = max(lead, ids_at + IDS_AHEAD_S)
            if not self._write(ids_at, until):
                until = max(now, ids_at) + IDS_RETRY_S
            ids.bound(until, partial(self.reserve_ids, ids))
        finally:
            self._lock.release()

    def _write(self, ids_at: float, ids_until: float) -> bool:
        """False: the disk failed."""
        try:
            was_set_back = self.was_set_back
            reading = self._clock.reading(ids_at, ids_until, was_set_back=was_set_back)
            store_reading(self._folder, reading)
        except OSError as exc:
            log.warning("clock file not written: error=%s", exc)
            return False
        return True


def stored_reading(folder: Path) -> ClockReading | None:
    """The last reading; None: there is none that can be read."""
    return _read(folder / READING, ClockReading)


def confirm(folder: Path, wall: float) -> None:
    """Confirm the wall clock of this moment. Raises OSError."""
    replace(folder / CONFIRMATION, msgspec.json.encode(Confirmation(wall)) + b"\n")


def take_confirmation(folder: Path, wall: float) -> bool:
    """True, once: an operator confirmed the wall clock, which is at `wall` now."""
    path = folder / CONFIRMATION
    if not path.exists():
        return False
    found = _read(path, Confirmation)
    path.unlink(missing_ok=True)
    if found is not None and 0 <= wall - found.wall + 1 <= CONFIRMED_S_MAX:
        return True
    log.warning("clock not confirmed: file=%s: the clock was set after it was written", path)
    return False


def _read(path: Path, kind: type[Content]) -> Content | None:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(BYTES_MAX), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as exc:
        log.warning("clock file not read: file=%s error=%s", path, exc)
        return None
