"""A limit of requests a second for one connection (P2P-24): a bucket of tokens."""

from __future__ import annotations


class Bucket:
    """Fills at `per_s` tokens a second, up to one second's worth; `refused` counts in a row."""

    __slots__ = ("_per_s", "_tokens", "_updated_at", "refused")

    def __init__(self, per_s: int, now: float) -> None:
        self._per_s = per_s
        self._tokens = float(per_s)
        self._updated_at = now
        self.refused = 0

    def take(self, now: float) -> int:
        """Take a token for a request. Gives 0, or after how many milliseconds there will be one."""
        elapsed_s = now - self._updated_at
        self._updated_at = now
        self._tokens = min(self._per_s, self._tokens + elapsed_s * self._per_s)
        if self._tokens >= 1:
            self._tokens -= 1
            self.refused = 0
            return 0
        self.refused += 1
        return max(1, round((1 - self._tokens) / self._per_s * 1000))
