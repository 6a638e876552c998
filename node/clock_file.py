"""Clock files: trusted time as a data folder keeps it, and an operator's confirmation.

`clock.json` has the last reading, for the next start. `clock-confirmed.json` says that an operator
found the wall clock right (`millpond doctor --confirm-clock`); the node uses it once.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TypeVar

import msgspec

from millpond.node.atomic_files import replace
from millpond.node.clock import ClockReading

log = logging.getLogger(__name__)

READING, CONFIRMATION = "clock.json", "clock-confirmed.json"
CONFIRMED_S_MAX = 86_400.0
"""A confirmation is used within a day by the wall clock that it confirmed, and refused later."""
BYTES_MAX = 4096

Content = TypeVar("Content")


class Confirmation(msgspec.Struct, frozen=True):
    """The time of the wall clock when an operator confirmed it."""

    wall: float


def store_reading(folder: Path, reading: ClockReading) -> None:
    """Store a reading. Raises OSError."""
    replace(folder / READING, msgspec.json.encode(reading) + b"\n")


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
