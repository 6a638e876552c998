"""Cursors: a number that grows with time, so that caches do not hold up live reads (B.4 29)."""

from __future__ import annotations

EPOCH_S = 1_728_432_000
"""2024-10-09T00:00:00Z."""
INTERVAL_S = 20
JITTER_S_MAX = 3600
CURSOR_MAX = 2**53 - 1


def next_cursor(now: float, given: str | None, dice: float) -> bytes:
    """The number of the interval, or more than the client's own. `dice`: at least 0, below 1."""
    current = int(now - EPOCH_S) // INTERVAL_S
    if given is not None and given.isascii() and given.isdigit():
        theirs = int(given[:20])
        if current <= theirs <= CURSOR_MAX - JITTER_S_MAX:
            jitter_s = 1 + int(dice * JITTER_S_MAX)
            return b"%d" % (theirs + -(-jitter_s // INTERVAL_S))
    return b"%d" % current
