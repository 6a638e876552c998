"""Recurrences: the moments at which a schedule puts a job, by a cron expression or an interval.

Cron expressions have five fields (minute, hour, day of the month, month, day of the week), or six
with the seconds before them, and are read in a time zone of the IANA database as Debian's cron
reads them. Where clocks are set forward, a time that does not exist comes right after the gap;
where they are set back, a time of five fields that comes twice counts once, and `*` in minutes or
hours goes on with each passing minute or hour.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from functools import lru_cache

import msgspec

EVERY_MS_MIN = 1000
"""The shortest interval."""
EVERY_MS_MAX = 3660 * 86_400_000
"""The longest one: ten years. The calendar of `datetime` has an end."""
CRON_CHARACTERS_MAX = 200


class BadRecurrence(ValueError):
    """A cron expression, an interval or a time zone that cannot be read; the text says which."""


class Recurrence(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Either `cron`, in the time zone `zone`, or an interval of `every_ms`, counted from
    `anchor_ms` (ms since 1970)."""

    cron: str = ""
    zone: str = "UTC"
    every_ms: int = 0
    anchor_ms: int = 0

    def check(self, now: float) -> None:
        """Raises BadRecurrence where it cannot be read, or has no moment after `now`."""
        if bool(self.cron) == bool(self.every_ms):
            raise BadRecurrence("a schedule has either a cron expression or an interval")
        if self.every_ms and self.every_ms < EVERY_MS_MIN:
            raise BadRecurrence(f"the shortest interval is {EVERY_MS_MIN} ms, not {self.every_ms}")
        if self.every_ms > EVERY_MS_MAX:
            raise BadRecurrence(f"the longest interval is {EVERY_MS_MAX} ms, not {self.every_ms}")
        if len(self.cron) > CRON_CHARACTERS_MAX:
            raise BadRecurrence(f"a cron expression has at most {CRON_CHARACTERS_MAX} characters")
        if self.next_after(now) is None:
            raise BadRecurrence(f"{self.cron!r} names no moment that ever comes")

    def next_after(self, moment: float) -> float | None:
        """The first moment after this one, in seconds since 1970; None: there is none.

        Raises BadRecurrence.
        """
        if self.every_ms:
            return _multiple(self, int((moment * 1000 - self.anchor_ms) // self.every_ms) + 1)
        return _step(self, moment, is_back=False)

    def last_until(self, moment: float) -> float | None:
        """The last moment that is not after this one; None: there is none. Raises BadRecurrence."""
        if self.every_ms:
            count = int((moment * 1000 - self.anchor_ms) // self.every_ms)
            return _multiple(self, count) if count >= 0 else None
        # The library's steps back leave out the moment that they begin at.
        return _step(self, int(moment) + 1.0, is_back=True)


def _multiple(recurrence: Recurrence, count: int) -> float:
    return (recurrence.anchor_ms + count * recurrence.every_ms) / 1000


def _step(recurrence: Recurrence, moment: float, *, is_back: bool) -> float | None:
    # Most nodes have no schedules, and need not load it.
    from cronsim import CronSim, CronSimError

    zone = zone_of(recurrence.zone)
    try:
        start = datetime.fromtimestamp(moment, UTC).astimezone(zone)
        for found in CronSim(recurrence.cron, start, reverse=is_back):
            at = found.timestamp()
            # In an hour that comes twice the library goes by its first time.
            if at < moment if is_back else at > moment:
                return at
    except CronSimError as exc:
        raise BadRecurrence(f"not a cron expression: {recurrence.cron!r} ({exc})") from exc
    except (OverflowError, ValueError, OSError):
        pass  # the end of the calendar
    return None


@lru_cache(maxsize=100)
def zone_of(name: str) -> tzinfo:
    """The time zone of this name. Raises BadRecurrence."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # it takes time to load

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:  # ZoneInfoNotFoundError is a KeyError
        raise BadRecurrence(f"no such time zone: {name!r}") from exc
