"""Message ids: 64-bit snowflakes that ascend whatever the clock does (P2P-08, PA-31).

41 bits of milliseconds since EPOCH_MS, 10 bits of node instance, 12 bits of sequence; the top bit
stays 0 because SQLite's integers are signed. The `snowflake-id` package takes the values apart; its
generator is not used, because it answers None when a millisecond is full or the clock steps back,
and reads a clock of its own.

The time part is a hybrid logical clock: the node's time, or that of the highest id where this is
later. Ids behind the highest one of the folder count on in its sequence part, and use 1 ms of the
future for 4096 ids. So a clock that is set back stops no PUT, for however long it stays behind.
"""

from __future__ import annotations

from collections.abc import Callable

from snowflake import MAX_INSTANCE, MAX_SEQ, MAX_TS, Snowflake

from millpond.actors.errors import IdsExhausted

EPOCH_MS = 1_288_834_974_657
INSTANCE_SHIFT, TIME_SHIFT = 12, 22
END_MS = EPOCH_MS + MAX_TS
"""The last millisecond that ids can have, in 2080, since the Unix epoch."""


class IdSource:
    """The ascending ids of one node. `instance` is the node's 10 bits."""

    __slots__ = (
        "_asked_at",
        "_instance",
        "_last",
        "_last_of_ms",
        "_ms",
        "_reserve_more",
        "_reserved_ms",
    )

    def __init__(self, instance: int, *, last_id: int = 0):
        self._reserve_more: Callable[[], None] | None = None
        self._reserved_ms = MAX_TS
        self._begin(instance, last_id)

    def _begin(self, instance: int, last_id: int) -> None:
        if not 0 <= instance <= MAX_INSTANCE:
            raise ValueError(f"instance must be within 0..{MAX_INSTANCE}, not {instance}")
        self._instance = instance
        self._asked_at = 0.0
        last = Snowflake.parse(last_id, EPOCH_MS)
        self._ms = int(last.timestamp)
        self._last = self._last_of_ms = last_id
        if last_id and last.instance == instance:
            # The rest of that millisecond is free: a restart need not use another one.
            self._last_of_ms = last_id | MAX_SEQ

    def resume(self, instance: int, last_id: int) -> None:
        """Continue behind a former run of the node: nothing up to `last_id` comes again."""
        self._begin(instance, last_id)

    def bound(self, until: float, reserve_more: Callable[[], None]) -> None:
        """Give out no id that is later than `until` before `reserve_more` was called, which calls
        `bound` again: a bound is stored before ids reach it."""
        self._reserved_ms = min(int(until * 1000) - EPOCH_MS, MAX_TS)
        self._reserve_more = reserve_more

    @property
    def last(self) -> int:
        """The last id of the node: those that come are above it. 0: there was none."""
        return self._last

    def next(self, now: float) -> int:
        """The next id at `now` (seconds since the Unix epoch).

        A clock that stands or steps back keeps the last millisecond and counts on; a full
        millisecond borrows the next one. Raises IdsExhausted where the next id would be later than
        END_MS, and changes nothing: ids go on once the clock is right.
        """
        ms = self._ms
        if now != self._asked_at:
            asked_ms = int(now * 1000) - EPOCH_MS
            if asked_ms > ms:
                ms = asked_ms
        if ms == self._ms:
            if self._last != self._last_of_ms:
                self._asked_at = now
                self._last += 1
                return self._last
            ms += 1
        if ms > self._reserved_ms:
            self._pass_bound(ms)
        first = ms << TIME_SHIFT | self._instance << INSTANCE_SHIFT
        self._asked_at = now
        self._ms = ms
        self._last = first
        self._last_of_ms = first + MAX_SEQ
        return first

    @property
    def time(self) -> float:
        """The time of the last id, in seconds since the Unix epoch; 0: there is none."""
        return (self._ms + EPOCH_MS) / 1000 if self._ms else 0.0

    def ahead_s(self, now: float) -> float:
        """Seconds from `now` to the time of the last id, if that is later; else 0."""
        return max(0.0, self.time - now)

    def has_ended(self, now: float) -> bool:
        """True: there is no id left at this time."""
        is_last_ms = self._ms >= MAX_TS and self._last == self._last_of_ms
        return is_last_ms or int(now * 1000) > END_MS

    def _pass_bound(self, ms: int) -> None:
        if ms > MAX_TS:
            raise IdsExhausted
        if self._reserve_more is not None:
            self._ms = ms
            self._reserve_more()


def last_id_at(seconds: float) -> int:
    """The highest id of any node that has this time; 0 for times before there were ids."""
    ms = int(seconds * 1000) - EPOCH_MS
    if ms < 0:
        return 0
    return int(Snowflake(min(ms, MAX_TS), MAX_INSTANCE, EPOCH_MS, MAX_SEQ).value)


def created_ms(message_id: int) -> int:
    """The time at which an id was issued, in milliseconds since the Unix epoch."""
    return int(Snowflake.parse(message_id, EPOCH_MS).milliseconds)
