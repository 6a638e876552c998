"""Idempotency keys of a channel: a retried PUT is answered, not stored again (PA-08 to PA-11)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import count as count_up
from itertools import islice
from math import inf

from millpond.actors.store.changes import (
    SENDER_SHIFT,
    KeyExpired,
    KeyRetained,
    StoredKey,
    StoredMessage,
)

MOVE_KEYS = 1 << 63
"""Keys from here on are of moves: this, and the id that the message had before. No message id and
no key of a client is so high."""
SCHEDULE_NUMBERS = 1 << 32
SCHEDULE_KEYS = (1 << 64) - SCHEDULE_NUMBERS
"""Keys from here on are of schedules: this, and the number of the schedule. They are above those of
all moves but the ones of the last second that ids have."""
CLIENT_KEYS = 1 << SENDER_SHIFT
"""Keys of clients without an identity are below this."""
STRANGERS_MAX = 100_000
"""The keys of other messages between those of one run, beyond as many as the run has."""
SWEEP_GAP_S = 1.0
SWEEP_GAP_S_PER_KEY = 1e-4


class IdempotencyKeys:
    """The keys of a channel, oldest first. A key stands for its message, or for the digest of one
    that left.

    When there are too many, forgetting the oldest risks a duplicate; refusing the newest would lose
    a message. Keys of moves are not forgotten for that. `rows` is read from outside; keys whose
    window is over may be in it.
    """

    __slots__ = ("expiry_at", "rows")

    def __init__(self, rows: dict[int, StoredMessage | StoredKey]) -> None:
        self.rows = rows
        self.expiry_at = min((row.until for row in rows.values()), default=inf)
        """No key's window ends before this. Early rather than late, so that sweeps are few."""

    def __len__(self) -> int:
        return len(self.rows)

    def remember(self, row: StoredMessage, until: float) -> KeyExpired | None:
        """Add the key of a new message, whose window ends at `until`. Gives the end of an older
        use."""
        rows, key = self.rows, row.key
        if until < self.expiry_at:
            self.expiry_at = until
        older = rows.setdefault(key, row)
        if older is row:
            return None
        # The window of the older use is over: the key becomes the youngest again.
        del rows[key]
        rows[key] = row
        return _expiry_of(key, older)

    def remember_all(self, rows: Sequence[StoredMessage]) -> None:
        """Add the keys of new messages of one ttl, which nothing else has."""
        self.rows.update([(row.key, row) for row in rows])
        self.expiry_at = min(self.expiry_at, rows[0].until)

    def free_from(self, key: int, count: int) -> list[int]:
        """So many keys of clients that nobody has, from `key` on."""
        rows = self.rows
        run = range(key, key + count)
        if key + count <= CLIENT_KEYS and rows.keys().isdisjoint(run):
            return [*run]
        free = (each for step in count_up() if (each := (key + step) % CLIENT_KEYS) not in rows)
        return [*islice(free, count)]

    def ids_of_run(self, key: int, jobs: Sequence[bytes]) -> list[int] | None:
        """The ids of the messages that got keys from `free_from` with this `key`; None: the key is
        that of something else. Keys between them are of other messages."""
        ids: list[int] = []
        for step in range(2 * len(jobs) + STRANGERS_MAX):
            known = self.rows.get((key + step) % CLIENT_KEYS)
            if known is not None and is_same(known, jobs[len(ids)]):
                ids.append(known.id)
                if len(ids) == len(jobs):
                    return ids
            elif not step:
                return None
        return None

    def replace(self, row: StoredMessage, limited: StoredMessage) -> None:
        """The key of `row`, if it still stands for it, stands for `limited`."""
        if self.rows.get(row.key) is row:
            self.rows[row.key] = limited
            self.expiry_at = min(self.expiry_at, limited.until)

    def retain_digest(self, row: StoredMessage) -> StoredKey | None:
        """The message of a key leaves: retain its digest for later retries."""
        if self.rows.get(row.key) is not row:
            return None
        left = StoredKey(row.id, row.ttl, row.until, sha256(row.data).digest())
        self.rows[row.key] = left
        return left

    def move(self, origin: int, now: float) -> StoredMessage | StoredKey | None:
        """The message that moved here, or the key that is left of it; None: neither."""
        known = self.rows.get(MOVE_KEYS | origin)
        return known if known is not None and known.until > now else None

    @property
    def moved(self) -> list[int]:
        """The origins of all moves that are remembered."""
        return [key ^ MOVE_KEYS for key in self.rows if MOVE_KEYS <= key < SCHEDULE_KEYS]

    def remember_move(
        self, origin: int, row: StoredMessage | StoredKey, until: float
    ) -> KeyRetained:
        """A message moved here: remember it until then, or until `forget_moves`."""
        key = MOVE_KEYS | origin
        digest = row.digest if isinstance(row, StoredKey) else sha256(row.data).digest()
        left = self.rows[key] = StoredKey(row.id, row.ttl, until, digest)
        self.expiry_at = min(self.expiry_at, until)
        return KeyRetained(key, left)

    def scheduled(self, number: int, at_ms: int) -> int | None:
        """The id of the job that a schedule put for this moment; 0: its last job is of a later one;
        None: it put none yet."""
        known = self.rows.get(SCHEDULE_KEYS + number)
        if not isinstance(known, StoredKey):
            return None
        last_ms = int.from_bytes(known.digest, "big")
        return None if last_ms < at_ms else known.id if last_ms == at_ms else 0

    @property
    def schedules(self) -> tuple[int, ...]:
        """The numbers of the schedules whose last job is remembered."""
        return tuple(key - SCHEDULE_KEYS for key in self.rows if key >= SCHEDULE_KEYS)

    def remember_scheduled(self, number: int, at_ms: int, row: StoredMessage) -> KeyRetained:
        """A schedule put this job for that moment. Of each schedule the last one is remembered, in
        the place of a digest, until `forget_moves` of `schedule_origin`."""
        key = SCHEDULE_KEYS + number
        last = self.rows[key] = StoredKey(row.id, row.ttl, inf, at_ms.to_bytes(32, "big"))
        return KeyRetained(key, last)

    def forget_moves(self, origins: Iterable[int]) -> list[KeyExpired]:
        """Forget moves that do not come again. Gives the changes."""
        keys = [key for each in origins if (key := MOVE_KEYS | each) in self.rows]
        return [_expiry_of(key, self.rows.pop(key)) for key in keys]

    def forget_retained(self, count: int | None = None) -> list[KeyExpired]:
        """Forget so many of the retained keys (None: a sixteenth), oldest first. Gives the
        changes."""
        left = [*self._retained()]
        oldest = left[: 1 + len(left) // 16 if count is None else count]
        return [_expiry_of(key, self.rows.pop(key)) for key in oldest]

    @property
    def has_retained(self) -> bool:
        """True: there are keys of puts whose message is removed."""
        return next(self._retained(), None) is not None

    def _retained(self) -> Iterator[int]:
        return (
            key for key, row in self.rows.items() if isinstance(row, StoredKey) and key < MOVE_KEYS
        )

    def forget_oldest(self) -> list[KeyExpired]:
        """Forget a sixteenth of the keys, oldest first. Gives the changes.

        One at a time would be slow: finding the first entry of a dictionary walks over every one
        that was deleted before it.
        """
        oldest = list(islice(filter(MOVE_KEYS.__gt__, self.rows), 1 + len(self.rows) // 16))
        return [_expiry_of(key, self.rows.pop(key)) for key in oldest]

    def sweep(self, now: float) -> list[KeyExpired]:
        """Forget the keys whose window is over. Gives the changes."""
        if now < self.expiry_at:
            return []
        over = [key for key, row in self.rows.items() if row.until <= now]
        expired = [_expiry_of(key, self.rows.pop(key)) for key in over]
        earliest = min((row.until for row in self.rows.values()), default=inf)
        gap_s = SWEEP_GAP_S + SWEEP_GAP_S_PER_KEY * len(self.rows)
        self.expiry_at = max(earliest, now + gap_s) if self.rows else inf
        return expired


def schedule_origin(number: int) -> int:
    """The origin that stands for a schedule among those of moves."""
    return (SCHEDULE_KEYS + number) ^ MOVE_KEYS


def _expiry_of(key: int, row: StoredMessage | StoredKey) -> KeyExpired:
    return KeyExpired(key, isinstance(row, StoredKey))


def is_same(known: StoredMessage | StoredKey, data: bytes) -> bool:
    """Is `data` that with which the key was first used?"""
    if isinstance(known, StoredMessage):
        return known.data == data
    return known.digest == sha256(data).digest()
