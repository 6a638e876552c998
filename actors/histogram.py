"""Histograms: counts by size, from which a monitor computes percentiles."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)
"""Bounds for durations in seconds."""
AMOUNTS = tuple(float(4**power) for power in range(8))
"""Bounds for amounts, up to 16,384."""


class Histogram:
    """`counts` has an element for each of `bounds`, and one for what is above the last."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value. It may be negative, when a clock was set back meanwhile."""
        self.counts[bisect_left(self.bounds, value)] += 1
        if value > 0:
            self.total += value

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)
