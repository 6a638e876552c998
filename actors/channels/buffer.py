"""A channel's messages in the order of their ids, with their deadlines.

Expiry is lazy: every read checks the message it touches, and one lower bound of the earliest
deadline decides when a sweep, in slices, gives the space back. No message has a timer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from math import inf

from millpond.actors.store.changes import StoredMessage

SWEEP_SLICE = 2_000
SWEEP_GAP_S_PER_MESSAGE = 1e-5
"""Sweeps of a full buffer keep this distance, so that they cost a few per cent of a core."""


class Buffer:
    """Rows by id. Ids only ever ascend, so the order of entry is the order of ids.

    `rows` is for reading: by id, expired ones included.
    """

    __slots__ = (
        *("_order", "_survivor_expiry", "_sweep_at"),
        *("bytes", "expiry_at", "last_id", "rows"),
    )

    def __init__(self, rows: Iterable[StoredMessage] = ()) -> None:
        self.rows: dict[int, StoredMessage] = {}
        self._order: list[int] = []
        self.last_id = 0
        """The highest id that was here, as far as anyone can still see; 0: none."""
        self.bytes = 0
        self.expiry_at = inf
        """No message expires before this; where a sweep is worth its cost."""
        self._sweep_at = 0
        self._survivor_expiry = inf
        self.add_all(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, message_id: int) -> bool:
        return message_id in self.rows

    def add(self, row: StoredMessage) -> None:
        self.add_all((row,))

    def add_all(self, added: Iterable[StoredMessage]) -> None:
        """Add rows, lowest id first."""
        rows, order, size = self.rows, self._order, self.bytes
        for row in added:
            message_id, expires_at = row.id, row.expires_at
            rows[message_id] = row
            order.append(message_id)
            size += len(row.data)
            if expires_at < self.expiry_at:
                self.expiry_at = expires_at
            if expires_at < self._survivor_expiry:
                self._survivor_expiry = expires_at
        self.bytes = size
        if order:
            self.last_id = order[-1]

    def replace(self, row: StoredMessage) -> None:
        """Put a row with an earlier deadline in the place of the one with its id."""
        self.rows[row.id] = row
        self.expiry_at = min(self.expiry_at, row.expires_at)
        self._survivor_expiry = min(self._survivor_expiry, row.expires_at)

    def remove(self, message_id: int) -> StoredMessage | None:
        row = self.rows.pop(message_id, None)
        if row is None:
            return None
        self.bytes -= len(row.data)
        if not self.rows:
            self._order.clear()
            self.last_id = 0
            self.expiry_at = inf
        elif len(self._order) > 2 * len(self.rows) + 64:
            self._order = list(self.rows)
            self.last_id = self._order[-1]
        else:
            return row
        # A sweep begins anew.
        self._survivor_expiry = inf
        self._sweep_at = 0
        return row

    def get(self, message_id: int, now: float) -> StoredMessage | None:
        """The message, unless its deadline passed (P2P-14)."""
        row = self.rows.get(message_id)
        return row if row is not None and row.expires_at > now else None

    def after(self, message_id: int, now: float) -> Iterator[StoredMessage]:
        """Messages above an id that did not expire, ascending; the buffer must not change."""
        order = self._order
        if not order or order[-1] <= message_id:
            return
        rows = self.rows
        for at in range(bisect_right(order, message_id), len(order)):
            row = rows.get(order[at])
            if row is not None and row.expires_at > now:
                yield row

    def next_after(self, message_id: int, now: float) -> StoredMessage | None:
        """The first message above an id that did not expire."""
        order = self._order
        if not order or order[-1] <= message_id:
            return None
        rows = self.rows
        for at in range(bisect_right(order, message_id), len(order)):
            row = rows.get(order[at])
            if row is not None and row.expires_at > now:
                return row
        return None

    def between(self, low: int, high: int, now: float, *, newest_first: bool) -> Iterator[int]:
        """Ids from `low` to `high`, both inclusive, of messages that did not expire."""
        order = self._order
        span = range(bisect_left(order, low), bisect_right(order, high))
        for at in reversed(span) if newest_first else span:
            row = self.rows.get(order[at])
            if row is not None and row.expires_at > now:
                yield row.id

    def sweep(self, now: float) -> list[StoredMessage]:
        """Expired messages found in the next slice; the caller removes them.

        Call again at `expiry_at`, which is `now` until the sweep has seen every message.
        """
        if now < self.expiry_at:
            return []
        if self._sweep_at == 0:
            self._survivor_expiry = inf
        end = min(self._sweep_at + SWEEP_SLICE, len(self._order))
        expired = []
        for at in range(self._sweep_at, end):
            row = self.rows.get(self._order[at])
            if row is None:
                continue
            if row.expires_at <= now:
                expired.append(row)
            elif row.expires_at < self._survivor_expiry:
                self._survivor_expiry = row.expires_at
        if end < len(self._order):
            self._sweep_at = end
        else:
            self._sweep_at = 0
            gap_s = len(self.rows) * SWEEP_GAP_S_PER_MESSAGE
            self.expiry_at = max(self._survivor_expiry, now + gap_s)
        return expired
