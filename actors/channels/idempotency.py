"""Idempotency keys of a channel: a retried PUT is answered, not stored again (PA-08 to PA-11)."""

from __future__ import annotations

from hashlib import sha256
from itertools import islice
from math import inf

from millpond.actors.store.changes import KeyExpired, StoredKey, StoredMessage

SWEEP_GAP_S = 1.0
SWEEP_GAP_S_PER_KEY = 1e-4


class IdempotencyKeys:
    """The keys of a channel, oldest first. A key stands for its message, or for the digest of one
    that left.

    When there are too many, forgetting the oldest risks a duplicate; refusing the newest would lose
    a message. `rows` is read from outside; keys whose window is over may be in it.
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
        rows = self.rows
        # If the window of an older use is over, the key becomes the youngest again.
        older = rows.pop(row.key, None) if row.key in rows else None
        rows[row.key] = row
        if until < self.expiry_at:
            self.expiry_at = until
        return _expiry_of(row.key, older) if older is not None else None

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

    def forget_retained(self) -> list[KeyExpired]:
        """Forget a sixteenth of the retained keys, oldest first. Gives the changes."""
        left = [key for key, row in self.rows.items() if isinstance(row, StoredKey)]
        oldest = left[: 1 + len(left) // 16]
        return [_expiry_of(key, self.rows.pop(key)) for key in oldest]

    def forget_oldest(self) -> list[KeyExpired]:
        """Forget a sixteenth of the keys, oldest first. Gives the changes.

        One at a time would be slow: finding the first entry of a dictionary walks over every one
        that was deleted before it.
        """
        oldest = list(islice(self.rows, 1 + len(self.rows) // 16))
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


def _expiry_of(key: int, row: StoredMessage | StoredKey) -> KeyExpired:
    return KeyExpired(key, isinstance(row, StoredKey))


def is_same(known: StoredMessage | StoredKey, data: bytes) -> bool:
    """Is `data` that with which the key was first used?"""
    if isinstance(known, StoredMessage):
        return known.data == data
    return known.digest == sha256(data).digest()
