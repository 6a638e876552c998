"""Message ids: 64-bit snowflakes that ascend whatever the clock does (P2P-08, PA-31).

41 bits of milliseconds since EPOCH_MS, 10 bits of node instance, 12 bits of sequence; the top bit
stays 0 because SQLite's integers are signed. The `snowflake-id` package composes and takes apart
the values; its generator is not used, because it answers None when a millisecond is full or the
clock steps back, and reads a clock of its own.
"""

from __future__ import annotations

from snowflake import MAX_INSTANCE, MAX_SEQ, Snowflake

from millpond.actors.errors import IdsExhausted

EPOCH_MS = 1_288_834_974_657
AHEAD_MS_MAX = 5_000


class IdSource:
    """The ascending ids of one node. `instance` is the node's 10 bits."""

    __slots__ = ("_ahead_ms_max", "_asked_at", "_instance", "_last", "_last_of_ms", "_ms")

    def __init__(self, instance: int, *, last_id: int = 0, ahead_ms_max: int = AHEAD_MS_MAX):
        if not 0 <= instance <= MAX_INSTANCE:
            raise ValueError(f"instance must be within 0..{MAX_INSTANCE}, not {instance}")
        self._instance = instance
        self._ahead_ms_max = ahead_ms_max
        self._ms = int(Snowflake.parse(last_id, EPOCH_MS).timestamp)
        self._last = self._last_of_ms = 0
        self._asked_at = 0.0

    def resume(self, instance: int, last_id: int) -> None:
        """Continue behind a former run of the node: nothing up to `last_id` comes again."""
        self.__init__(instance, last_id=last_id, ahead_ms_max=self._ahead_ms_max)  # type: ignore[misc]

    def next(self, now: float) -> int:
        """The next id at `now` (seconds since the Unix epoch).

        A clock that stands or steps back keeps the last millisecond and counts on; a full
        millisecond borrows the next one. Raises IdsExhausted more than 5 s ahead of `now`.
        """
        if now != self._asked_at:
            self._asked_at = now
            ms = int(now * 1000) - EPOCH_MS
            if ms > self._ms:
                self._enter(ms)
        if self._last == self._last_of_ms:
            ahead_of_ms = int(now * 1000) - EPOCH_MS + self._ahead_ms_max
            if self._ms + 1 > ahead_of_ms:
                raise IdsExhausted
            self._enter(self._ms + 1)
        self._last += 1
        return self._last

    def _enter(self, ms: int) -> None:
        first = int(Snowflake(ms, self._instance, EPOCH_MS, 0).value)
        self._ms = ms
        self._last = first - 1
        self._last_of_ms = first + MAX_SEQ


def created_ms(message_id: int) -> int:
    """The time at which an id was issued, in milliseconds since the Unix epoch."""
    return int(Snowflake.parse(message_id, EPOCH_MS).milliseconds)
