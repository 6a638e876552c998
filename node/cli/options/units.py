"""Durations and sizes, spelled the same in all commands."""

from __future__ import annotations

import argparse
from math import isfinite

from millpond.node.units import byte_count, duration_s

U32_MAX = 2**32 - 1


def seconds(text: str) -> float:
    """A duration, fractions allowed."""
    found = duration_s(text)
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
    found = duration_s(text)
    if found is None or found != int(found) or found > U32_MAX:
        message = (
            f"{text!r} is not a duration of whole seconds: 90, 15m, 1h30m, 7d, up to {U32_MAX}"
        )
        raise argparse.ArgumentTypeError(message)
    return int(found)


def some_seconds(text: str) -> int:
    """A duration of at least one second."""
    found = whole_seconds(text)
    if not found:
        raise argparse.ArgumentTypeError("it is at least 1 second")
    return found


def size(text: str) -> int:
    """Bytes; K, M, G and T, also as KB or KiB, are powers of 1024."""
    number = byte_count(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: 1000, 64KiB, 10M, 2GB")
    return number
