"""The query of metrics: which set, and which period (seconds since 1970)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import TypeVar

import msgspec

from millpond.transports.http.s2.errors import CodedError, ErrorCode, invalid
from millpond.transports.http.s2.read_query import unique

CLOCKS_S = 60
"""So far apart the clocks of clients and the node may be."""
INTERVALS = ("minute", "hour", "day")

Set = TypeVar("Set", bound=Enum)
_SECONDS = re.compile(r"\d{1,10}", re.ASCII)


class Period(msgspec.Struct, frozen=True, gc=False):
    """From `start` to `end`, both inclusive; None: open."""

    now_s: int
    start: int | None = None
    end: int | None = None

    @property
    def has_now(self) -> bool:
        """Is the value of now a value of this period?"""
        return self.overlaps(self.now_s)

    def overlaps(self, since_s: int) -> bool:
        """Has it anything of the time from `since_s` to now?"""
        is_begun = self.start is None or self.start <= self.now_s + CLOCKS_S
        return is_begun and (self.end is None or self.end >= since_s - CLOCKS_S)


def read_metric_query(
    pairs: Sequence[tuple[str, str]], sets: type[Set], now: float
) -> tuple[Set, Period]:
    """What is asked for. Raises Refused: bad_query; invalid for a set that there is not.

    An interval is read and makes no difference: there is one point at most.
    """
    given = unique(pairs)
    if "set" not in given:
        raise CodedError(ErrorCode.BAD_QUERY, "set: which metrics?")
    start, end = (_seconds(given, name) for name in ("start", "end"))
    if start is not None and end is not None and start > end:
        raise invalid("start: it is behind the end")
    if given.get("interval") not in (None, *INTERVALS):
        raise CodedError(ErrorCode.BAD_QUERY, f"interval: one of {', '.join(INTERVALS)}")
    found = next((each for each in sets if each.value == given["set"]), None)
    if found is None:
        known = ", ".join(str(each.value) for each in sets)
        raise invalid(f"set: here it is one of {known}")
    return found, Period(int(now), start, end)


def _seconds(given: dict[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if _SECONDS.fullmatch(text) is None:
        raise CodedError(ErrorCode.BAD_QUERY, f"{name}: seconds since 1970")
    return int(text)
