"""Retries: the delay before dialling again, and the budget of one request."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import anyio

from millpond.actors.errors import (
    BufferFull,
    OutcomeUnknown,
    RequestError,
    SlowDown,
    StorageFailed,
)

DOUBLINGS_MAX = 32


class ReconnectBackoff:
    """Backoff of reconnects, full jitter: uniform between 0 and `base_s` * 2^n, at most `max_s`.

    A connection that was live for longer than `stable_s` starts the count again, and its successor
    is dialled at once, unless the node asked the client to leave.
    """

    def __init__(
        self, rng: Random, base_s: float = 0.1, max_s: float = 30.0, stable_s: float = 10.0
    ) -> None:
        self._rng = rng
        self._base_s = base_s
        self._max_s = max_s
        self._stable_s = stable_s
        self._failures = 0

    def delay_s(self, lived_s: float, closed_by_node: bool = False) -> float:
        """Seconds to wait after a connection that was live for `lived_s` (0: it never was)."""
        if lived_s > self._stable_s:
            self._failures = 0
            if not closed_by_node:
                return 0.0
        ceiling_s = min(self._max_s, self._base_s * 2.0 ** min(self._failures, DOUBLINGS_MAX))
        self._failures += 1
        return self._rng.uniform(0.0, ceiling_s)


RETRY_S = 0.05, 2.0
"""The first and the highest bound of the delays."""
TEMPORARY = (BufferFull, SlowDown, StorageFailed)
RETRYABLE = (*TEMPORARY, OutcomeUnknown)


class RetryBudget:
    """Retries of one request for `retry_for` seconds from now. Delays are random, and grow."""

    def __init__(self, retry_for: float, rng: Random, now: Callable[[], float]) -> None:
        self._give_up_at = now() + retry_for
        self._rng = rng
        self._now = now
        self._ceiling_s, self._ceiling_max_s = RETRY_S

    async def wait(self, error: RequestError) -> None:
        """Wait before the next try. Raises `error` where that would be too late."""
        delay_s = self._rng.uniform(0, self._ceiling_s)
        if error.delay_ms is not None:
            delay_s += error.delay_ms / 1000
        if self._now() + delay_s > self._give_up_at:
            raise error
        await anyio.sleep(delay_s)
        self._ceiling_s = min(2 * self._ceiling_s, self._ceiling_max_s)
