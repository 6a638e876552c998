"""Rate limits, in requests a second (P2P-24): token buckets of a connection and of a peer."""

from __future__ import annotations

from collections import OrderedDict


class TokenBucket:
    """Fills at `per_s` tokens a second, up to `burst` (0: one second's worth)."""

    __slots__ = ("_burst", "_per_s", "_tokens", "_updated_at")

    def __init__(self, per_s: int, now: float, burst: int = 0) -> None:
        self._per_s = per_s
        self._burst = burst or per_s
        self._tokens = float(self._burst)
        self._updated_at = now

    def take(self, now: float) -> int:
        """Take a token for a request. Gives 0, or the milliseconds until there is one."""
        self._fill(now)
        if self._tokens >= 1:
            self._tokens -= 1
            return 0
        return self._ms_until(1)

    def spend(self, count: int, now: float) -> None:
        """Take tokens for requests that cannot be refused; the bucket may owe some after that."""
        self._fill(now)
        self._tokens -= count

    def debt_ms(self, now: float) -> int:
        """The milliseconds until nothing is owed any more; 0: nothing is."""
        self._fill(now)
        return 0 if self._tokens >= 0 else self._ms_until(0)

    def _fill(self, now: float) -> None:
        elapsed_s = max(0.0, now - self._updated_at)
        self._updated_at = now
        self._tokens = min(self._burst, self._tokens + elapsed_s * self._per_s)

    def _ms_until(self, tokens: int) -> int:
        return max(1, round((tokens - self._tokens) / self._per_s * 1000))


class RateLimit:
    """The rate limit of one connection: its own bucket and a shared one, as far as there are any.

    `refused` counts the requests that were refused in a row.
    """

    __slots__ = ("_buckets", "refused")

    def __init__(self, *buckets: TokenBucket | None) -> None:
        self._buckets = [each for each in buckets if each is not None]
        self.refused = 0

    def __bool__(self) -> bool:
        """Is there a limit?"""
        return bool(self._buckets)

    def take(self, now: float) -> int:
        """Count one request. Gives 0, or the milliseconds after which it may be sent again."""
        for bucket in self._buckets:
            delay_ms = bucket.take(now)
            if delay_ms:
                self.refused += 1
                return delay_ms
        self.refused = 0
        return 0


class SharedBuckets:
    """One bucket for all connections of a peer, known by its key, or of an address.

    Above `kept_max` buckets those are dropped whose latest connection came longest ago.
    """

    def __init__(self, per_s: int, kept_max: int = 10_000) -> None:
        self.per_s = per_s
        """Tokens a second; 0: there is no limit."""
        self._kept_max = kept_max
        self._buckets: OrderedDict[bytes | str, TokenBucket] = OrderedDict()

    def bucket(self, peer: bytes | str | None, now: float) -> TokenBucket | None:
        """None: there is no limit, or none for a client that is not known."""
        if not self.per_s or peer is None:
            return None
        bucket = self._buckets.get(peer)
        if bucket is None:
            bucket = self._buckets[peer] = TokenBucket(self.per_s, now)
            if len(self._buckets) > self._kept_max:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(peer)
        return bucket
