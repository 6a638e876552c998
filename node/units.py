"""Durations and sizes as people write them: in options, the environment and configuration files."""

from __future__ import annotations

import re

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604_800.0}
SIZE_MAX = 2**62
_PART = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(ms|[smhdw])")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_PLAIN = re.compile(r"\d{1,15}(?:\.\d{1,9})?")
_SIZE = re.compile(r"(\d{1,15})(?:([KMGT])(?:i?B)?|B)?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def duration_s(text: str) -> float | None:
    """The seconds of `90`, `90s`, `1.5h`, `1h30m` or `7d`; None: the text is none of these."""
    if _PLAIN.fullmatch(text):
        return float(text)
    if _DURATION.fullmatch(text):
        return sum(float(count) * SECONDS[unit] for count, unit in _PART.findall(text))
    return None


def byte_count(text: str) -> int | None:
    """The bytes of `1000`, `64KiB`, `10M` or `2GB`, in powers of 1024; None: the text is none of
    these, or beyond 2^62."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    number = int(found[1]) * 1024 ** _POWERS[(found[2] or "").upper()]
    return number if number <= SIZE_MAX else None
