"""Latencies to the microsecond, in memory that does not grow with their number."""

from __future__ import annotations

from collections import Counter


class Latencies:
    """A histogram with one bucket a microsecond."""

    __slots__ = ("_buckets", "count")

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0

    def add(self, duration_s: float) -> None:
        """Count one."""
        self._buckets[round(duration_s * 1e6)] += 1
        self.count += 1

    def percentiles_us(self, *shares: float) -> list[int]:
        """For each share, ascending, the least latency that so many do not exceed; 0 if empty."""
        found: list[int] = []
        wanted = list(shares)
        seen = bucket = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            while wanted and seen >= wanted[0] * self.count:
                found.append(bucket)
                wanted.pop(0)
        return found + [bucket] * len(wanted)
