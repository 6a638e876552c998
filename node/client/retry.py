"""How long to wait before dialling again."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import anyio

from millpond.actors.errors import (
    BufferFull,
    IdsExhausted,
    OutcomeUnknown,
    RequestError,
    SlowDown,
    StorageFailed,
)

DOUBLINGS_MAX = 32


class ReconnectBackoff:
    """Full jitter per attempt: uniform between 0 and `base_s` * 2^n, at most `max_s`.

    A connection that stood longer than `stable_s` forgives what went before it, and its first
    successor is tried at once, unless the node asked everybody to leave.
    """

    def __init__(
        self, rng: Random, base_s: float = 0.1, max_s: float = 30.0, stable_s: float = 10.0
    ) -> None:
        self._rng = rng
        self._base_s = base_s
        self._max_s = max_s
        self._stable_s = stable_s
        self._failures = 0

    def delay_s(self, lived_s: float, told_to_leave: bool = False) -> float:
        """Seconds to wait after a connection that lived `lived_s` (0: it never stood)."""
        if lived_s > self._stable_s:
            self._failures = 0
            if not told_to_leave:
                return 0.0
        ceiling_s = min(self._max_s, self._base_s * 2.0 ** min(self._failures, DOUBLINGS_MAX))
        self._failures += 1
        return self._rng.uniform(0.0, ceiling_s)


RETRY_S = 0.05, 2.0
TEMPORARY = (BufferFull, SlowDown, IdsExhausted, StorageFailed)
RETRYABLE = (*TEMPORARY, OutcomeUnknown)


class RetryBudget:
    """Of one request: `retry_for` seconds from now. Rests are random, and grow."""

    def __init__(self, retry_for: float, rng: Random, now: Callable[[], float]) -> None:
        self._give_up_at = now() + retry_for
        self._rng = rng
        self._now = now
        self._ceiling_s, self._ceiling_max_s = RETRY_S

    async def rest(self, error: RequestError) -> None:
        """Wait before it is asked again; raises `error` where that would be too late."""
        delay_s = self._rng.uniform(0, self._ceiling_s)
        if error.delay_ms is not None:
            delay_s += error.delay_ms / 1000
        if self._now() + delay_s > self._give_up_at:
            raise error
        await anyio.sleep(delay_s)
        self._ceiling_s = min(2 * self._ceiling_s, self._ceiling_max_s)
