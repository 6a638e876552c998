"""Idempotency keys of a channel: a retried PUT is answered, not stored again (PA-08 to PA-11)."""

from __future__ import annotations

from hashlib import sha256
from math import inf

from actors.store.seam import KeyRow, Row

WINDOW_S_MIN = 600
WINDOW_S_MAX = 86_400
SWEEP_GAP_S = 1.0


class Keys:
    """Keys by value, oldest first. When there are too many, forgetting the oldest risks a
    duplicate; refusing the newest would lose a message."""

    __slots__ = ("_rows", "expiry_at")

    def __init__(self, rows: dict[int, KeyRow]) -> None:
        self._rows = rows
        self.expiry_at = min((row.until for row in rows.values()), default=inf)
        """No key's window ends before this; where a sweep is worth its cost."""

    def __len__(self) -> int:
        return len(self._rows)

    def recall(self, key: int, now: float) -> KeyRow | None:
        """What the key stands for, unless its window is over."""
        row = self._rows.get(key)
        return row if row is not None and row.until > now else None

    def remember(self, row: Row, now: float) -> KeyRow:
        """Enter the key of a new message, for max(ttl, 10 min), at most a day."""
        until = now + min(max(row.ttl, WINDOW_S_MIN), WINDOW_S_MAX)
        # A key whose window is over may still stand here; the new one is the youngest again.
        self._rows.pop(row.key, None)
        kept = self._rows[row.key] = KeyRow(row.id, row.ttl, until)
        if until < self.expiry_at:
            self.expiry_at = until
        return kept

    def settle(self, row: Row) -> bytes | None:
        """The message of a key leaves: keep its digest for later retries, and tell it."""
        kept = self._rows.get(row.key)
        if kept is None or kept.id != row.id:
            return None
        digest = sha256(row.data).digest()
        self._rows[row.key] = KeyRow(kept.id, kept.ttl, kept.until, digest)
        return digest

    def forget_oldest(self) -> int:
        key = next(iter(self._rows))
        del self._rows[key]
        return key

    def sweep(self, now: float) -> list[int]:
        """Forget the keys whose window is over, and tell which."""
        if now < self.expiry_at:
            return []
        over = [key for key, row in self._rows.items() if row.until <= now]
        for key in over:
            del self._rows[key]
        earliest = min((row.until for row in self._rows.values()), default=inf)
        self.expiry_at = max(earliest, now + SWEEP_GAP_S) if self._rows else inf
        return over


def is_same(kept: KeyRow, stored: Row | None, data: bytes) -> bool:
    """Is `data` what the key was first used with? `stored` is that message if it is still here."""
    if stored is not None:
        return stored.data == data
    return kept.digest is not None and kept.digest == sha256(data).digest()
