"""Durations and sizes, spelled the same in all commands."""

from __future__ import annotations

import argparse
import re
from math import isfinite

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604_800.0}
U32_MAX = 2**32 - 1
SIZE_MAX = 2**62
_PART = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(ms|[smhdw])")
_SPAN = re.compile(rf"(?:{_PART.pattern})+")
_PLAIN = re.compile(r"\d{1,15}(?:\.\d{1,9})?")
_SIZE = re.compile(r"(\d{1,15})(?:([KMGT])(?:i?B)?|B)?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def span(text: str) -> float | None:
    """The seconds of `90`, `90s`, `1.5h`, `1h30m` or `7d`; None: the text is none of these."""
    if _PLAIN.fullmatch(text):
        return float(text)
    if _SPAN.fullmatch(text):
        return sum(float(count) * SECONDS[unit] for count, unit in _PART.findall(text))
    return None


def seconds(text: str) -> float:
    """A duration, fractions allowed."""
    found = span(text)
    if found is None:
        try:
            found = float(text)  # 1e3
        except ValueError:
            found = -1.0
    if not (isfinite(found) and found >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: 90, 15m, 1h30m, 7d")
    return found


def whole_seconds(text: str) -> int:
    """A duration of whole seconds."""
    found = span(text)
    if found is None or found != int(found) or found > U32_MAX:
        told = f"{text!r} is not a duration of whole seconds: 90, 15m, 1h30m, 7d, up to {U32_MAX}"
        raise argparse.ArgumentTypeError(told)
    return int(found)


def some_seconds(text: str) -> int:
    """A duration of at least one second."""
    found = whole_seconds(text)
    if not found:
        raise argparse.ArgumentTypeError("it is at least 1 second")
    return found


def size(text: str) -> int:
    """Bytes; K, M, G and T, also as KB or KiB, are powers of 1024."""
    found = _SIZE.fullmatch(text)
    number = int(found[1]) * 1024 ** _POWERS[(found[2] or "").upper()] if found else 0
    if not 0 < number <= SIZE_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: 1000, 64KiB, 10M, 2GB")
    return number
