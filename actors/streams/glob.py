"""Globs over the names of streams, as subscriptions use them (docs/reference/durable-streams.md).

Segments are split at `/`: `*` is exactly one segment, `**` any number of them, everything else is
literal. `%2A` in a pattern is a literal `*`.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

PATTERN_BYTES_MAX = 1024
SEGMENTS_MAX = 64
DEEP_MAX = 8
"""The most `**` of a pattern."""

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ANY = None
_DEEP = ...


class BadGlob(ValueError):
    """A pattern that is no glob, or beyond the limits; the text says why."""


class Glob:
    """A pattern, ready to be matched. The time is at most the product of the segments."""

    __slots__ = ("_parts", "first")

    def __init__(self, pattern: bytes) -> None:
        """Raises BadGlob."""
        if not 0 < len(pattern) <= PATTERN_BYTES_MAX:
            raise BadGlob(f"a pattern has 1 to {PATTERN_BYTES_MAX} bytes")
        if _BAD_ESCAPE.search(pattern):
            raise BadGlob("a percent sign of a pattern begins an escape such as %2A")
        segments = pattern.split(b"/")
        if len(segments) > SEGMENTS_MAX:
            raise BadGlob(f"a pattern has at most {SEGMENTS_MAX} segments")
        if segments.count(b"**") > DEEP_MAX:
            raise BadGlob(f"a pattern has at most {DEEP_MAX} times **")
        self._parts = [_part(each) for each in segments]
        first = self._parts[0]
        self.first = first if isinstance(first, bytes) else None
        """The first segment of all names that match; None: it may be any."""

    def matches(self, name: bytes) -> bool:
        """True: the whole name matches."""
        parts, segments = self._parts, name.split(b"/")
        count, end = len(segments), len(parts)
        at = part = 0
        deep, resumed = -1, 0
        while at < count:
            here = parts[part] if part < end else b"\0/"  # no segment has a slash
            if here is _DEEP:
                deep, resumed = part, at
                part += 1
            elif here is _ANY or here == segments[at]:
                at, part = at + 1, part + 1
            elif deep >= 0:
                resumed += 1
                at, part = resumed, deep + 1
            else:
                return False
        return all(each is _DEEP for each in parts[part:])


def _part(segment: bytes) -> object:
    match segment:
        case b"*":
            return _ANY
        case b"**":
            return _DEEP
        case _:
            return unquote_to_bytes(segment)
