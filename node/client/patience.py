"""For how long a node is asked again that is full, in trouble, or asks to slow down."""

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
