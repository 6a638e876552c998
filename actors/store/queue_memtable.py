"""The memtable of a queue: what the journal has and the partition's file has not.

It holds the net effect of the changes, over a file or over an older memtable. Where there is
neither (`is_oldest`), what is removed is simply not there, so a message acked before it was flushed
leaves no trace but its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import assert_never

import msgspec

from millpond.actors.messages import Mode
from millpond.actors.store.changes import (
    AttemptsSet,
    DeadlineSet,
    KeyExpired,
    KeyRetained,
    MessageRemoved,
    ModeSet,
    QueueChange,
    Snapshot,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.message_attributes import (
    AttributeChange,
    DueAt,
    MessageAttributes,
    UniqueKey,
    attributes_of,
)
from millpond.actors.store.subscribers import (
    SUBSCRIBER_CHANGES,
    SubscriberChange,
    SubscriberTable,
    subscribers_of,
)

ROW_BYTES = 64
KEY_BYTES = 64
"""The sizes of a message and a key in the journal besides their data, about."""


class QueueMemtable:
    """The rows, keys, attempts, subscribers and attributes that changed.

    `deadlines` are of rows that the file or an older memtable has. `removed` and `expired_keys` are
    tombstones: rows (with the size of their data) and keys that these may still have.
    """

    __slots__ = (
        "attempts",
        "attributes",
        "deadlines",
        "expired_keys",
        "is_oldest",
        "keys",
        "may_overlap",
        "mode",
        "removed",
        "removed_bytes",
        "row_bytes",
        "rows",
        "subscribers",
    )

    def __init__(self, *, is_oldest: bool) -> None:
        self.is_oldest = is_oldest
        self.may_overlap = False
        """True: the file or an older memtable may have the messages as well, as after a crash
        during compaction."""
        self.rows: dict[int, StoredMessage] = {}
        self.row_bytes = 0
        self.removed: dict[int, int] = {}
        self.removed_bytes = 0
        self.keys: dict[int, StoredKey] = {}
        self.expired_keys: set[int] = set()
        self.attempts: dict[int, int] = {}
        self.deadlines: dict[int, float] = {}
        self.mode: Mode | None = None
        self.subscribers: SubscriberTable | None = None
        """The changes to subscribers; None for the many queues that have none."""
        self.attributes: MessageAttributes | None = None
        """The changes to attributes of messages; None where there are none."""

    def __bool__(self) -> bool:
        """True: there is something that a restart needs."""
        known = (
            self.keys or self.expired_keys or self.attempts or self.subscribers or self.attributes
        )
        return bool(self.rows or self.removed or self.deadlines or known)

    @property
    def size(self) -> int:
        """The approximate size in bytes of a rewrite of it in the journal."""
        return self.row_bytes + ROW_BYTES * len(self.rows) + self.lesser_size

    @property
    def lesser_size(self) -> int:
        """The part of `size` that is not rows."""
        count = len(self.keys) + len(self.expired_keys) + len(self.removed)
        size = KEY_BYTES * count + 16 * (len(self.attempts) + len(self.deadlines))
        return size + sum(
            each.size for each in (self.subscribers, self.attributes) if each is not None
        )

    @property
    def keys_added(self) -> int:
        """The number of keys and subscribers that are added to older ones."""
        added = len(self.keys) - len(self.expired_keys)
        if self.subscribers is not None:
            added += len(self.subscribers.by_number) - len(self.subscribers.removed)
        return added

    @property
    def deadline(self) -> float:
        """Nothing in the memtable expires before this."""
        rows = min((min(row.expires_at, row.until) for row in self.rows.values()), default=inf)
        rows = min(rows, *self.deadlines.values(), inf)
        members = inf if self.subscribers is None else min(self.subscribers.deadlines, default=inf)
        return min(rows, members, min((key.until for key in self.keys.values()), default=inf))

    def fold(self, changes: Iterable[QueueChange]) -> bool:
        """Apply changes that were written to the journal. True: a restart needs something of it."""
        rows, added = self.rows, 0
        for change in changes:
            # The usual cases first, with the fewest calls.
            if type(change) is StoredMessage and change.id not in rows:
                rows[change.id] = change
                added += len(change.data)
                if self.keys:
                    self._use_key(change)
            elif type(change) is MessageRemoved:
                self._remove(change)
            else:
                self._fold(change)
        self.row_bytes += added
        return bool(rows or self)

    def add(self, row: StoredMessage) -> None:
        """Add a stored message."""
        old = self.rows.get(row.id)
        if old is not None:
            self.row_bytes -= len(old.data)
        self.rows[row.id] = row
        self.row_bytes += len(row.data)
        self._use_key(row)

    def _use_key(self, row: StoredMessage) -> None:
        """The younger use of a key counts."""
        left = self.keys.get(row.key)
        if left is not None and left.id < row.id:
            del self.keys[row.key]

    def _fold(self, change: QueueChange) -> None:
        match change:
            case StoredMessage():
                self.add(change)
            case MessageRemoved():
                raise AssertionError("handled where it arrives")
            case KeyRetained():
                self.keys[change.key] = change.left
            case KeyExpired():
                own = self.keys.pop(change.key, None)
                may_be_in_older = not self.is_oldest and (own is None or self.may_overlap)
                if may_be_in_older and change.was_left:
                    self.expired_keys.add(change.key)
            case AttemptsSet():
                if change.id in self.rows or not self.is_oldest:
                    self.attempts[change.id] = change.attempts
            case DeadlineSet():
                self._set_deadline(change)
            case ModeSet():
                self.mode = change.mode
            case DueAt() | UniqueKey():
                self._fold_attribute(change)
            case _ if isinstance(change, SUBSCRIBER_CHANGES):
                self._fold_subscriber(change)
            case _:
                assert_never(change)

    def _set_deadline(self, change: DeadlineSet) -> None:
        row = self.rows.get(change.id)
        if row is not None:
            self.rows[row.id] = msgspec.structs.replace(row, expires_at=change.expires_at)
        elif not self.is_oldest:
            self.deadlines[change.id] = change.expires_at

    def _fold_attribute(self, change: AttributeChange) -> None:
        is_oldest = self.is_oldest or (change.id in self.rows and not self.may_overlap)
        if change.id in self.rows or not self.is_oldest:
            if self.attributes is None:
                self.attributes = MessageAttributes()
            self.attributes.fold(change, is_oldest=is_oldest)
            self.attributes = self.attributes or None

    def _fold_subscriber(self, change: SubscriberChange) -> None:
        if self.subscribers is None:
            self.subscribers = SubscriberTable()
        self.subscribers.fold(change, is_oldest=self.is_oldest, may_overlap=self.may_overlap)
        if not self.subscribers:
            self.subscribers = None

    def _remove(self, change: MessageRemoved) -> None:
        row = self.rows.pop(change.id, None)
        if row is not None:
            self.row_bytes -= len(row.data)
        may_be_in_older = not self.is_oldest and (row is None or self.may_overlap)
        if may_be_in_older and change.id not in self.removed:
            self.removed[change.id] = change.size
            self.removed_bytes += change.size
        self.attempts.pop(change.id, None)
        self.deadlines.pop(change.id, None)
        if self.subscribers is not None:
            self.subscribers.forget(change.id)
        if self.attributes is not None:
            self.attributes.forget(change.id)
            self.attributes = self.attributes or None
        if change.left is not None:
            self.keys[change.key] = change.left

    def forget_removed(self, *, above: int) -> None:
        """Forget removals above this id: no file or older memtable has such rows."""
        for message_id in [each for each in self.removed if each > above]:
            self.removed_bytes -= self.removed.pop(message_id)

    def changes(self) -> Iterator[QueueChange]:
        """The changes that make this memtable again."""
        if self.mode is not None:
            yield ModeSet(self.mode)
        for message_id, size in self.removed.items():
            yield MessageRemoved(message_id, 0, None, size)
        for key in sorted(self.expired_keys):
            yield KeyExpired(key)
        if self.subscribers is not None:
            yield from self.subscribers.changes()
        yield from self.rows.values()
        for key, left in self.keys.items():
            yield KeyRetained(key, left)
        for message_id, attempts in self.attempts.items():
            yield AttemptsSet(message_id, attempts)
        for message_id, expires_at in self.deadlines.items():
            yield DeadlineSet(message_id, expires_at)
        if self.attributes is not None:
            yield from self.attributes.changes()

    def split(self, settled_id: int, *, keys_stay: bool) -> tuple[QueueMemtable, QueueMemtable]:
        """The part to flush, and the part that stays: messages from `settled_id` on, and keys if
        `keys_stay`.

        Both are new; removals of older messages are always flushed.
        """
        moved, stays = QueueMemtable(is_oldest=self.is_oldest), QueueMemtable(is_oldest=False)
        moved.mode = stays.mode = self.mode
        moved.removed, moved.removed_bytes = dict(self.removed), self.removed_bytes
        for row in self.rows.values():
            (moved if row.id < settled_id else stays).add(row)
        for message_id, attempts in self.attempts.items():
            (stays if message_id in stays.rows else moved).attempts[message_id] = attempts
        moved.deadlines = dict(self.deadlines)
        moved.expired_keys = set(self.expired_keys)
        (stays if keys_stay else moved).keys = dict(self.keys)
        if self.subscribers is not None:
            parts = self.subscribers.split(stays.rows.keys(), keys_stay=keys_stay)
            moved.subscribers, stays.subscribers = (each or None for each in parts)
        if self.attributes is not None:
            halves = self.attributes.split(stays.rows.keys())
            moved.attributes, stays.attributes = (each or None for each in halves)
        return moved, stays

    def apply_to(self, older: Snapshot) -> Snapshot:
        """A snapshot of `older` and this memtable together; `older` may be changed."""
        rows = {row.id: row for row in older.rows}
        keys = {key: row for key, row in older.keys.items() if isinstance(row, StoredKey)}
        for message_id in self.removed:
            rows.pop(message_id, None)
        rows.update(self.rows)
        for message_id, expires_at in self.deadlines.items():
            if (row := rows.get(message_id)) is not None:
                rows[message_id] = msgspec.structs.replace(row, expires_at=expires_at)
        for key in self.expired_keys:
            keys.pop(key, None)
        keys.update(self.keys)
        attempts = {**older.attempts, **self.attempts}
        subscribers = older.subscribers
        if self.subscribers is not None:
            subscribers = self.subscribers.apply_to(
                SubscriberTable() if subscribers is None else subscribers
            )
        mode = self.mode if self.mode is not None else older.mode
        attributes = older.attributes
        if self.attributes is not None:
            attributes = self.attributes.apply_to(
                MessageAttributes() if attributes is None else attributes
            )
        return snapshot_of(rows, keys, attempts, mode, subscribers, attributes)


def snapshot_of(
    rows: dict[int, StoredMessage],
    keys: dict[int, StoredKey],
    attempts: dict[int, int],
    mode: Mode | None,
    subscribers: SubscriberTable | None = None,
    attributes: MessageAttributes | None = None,
) -> Snapshot:
    """Put a snapshot together: rows by id, keys by age; a younger use of a key counts."""
    ordered = sorted(rows.values(), key=_row_id)
    keyed: list[tuple[int, StoredMessage | StoredKey]] = [(row.key, row) for row in ordered]
    keyed += keys.items()
    keyed.sort(key=lambda pair: pair[1].id)
    by_age = dict(keyed)
    if len(by_age) < len(keyed):
        # An entry stays where it was first put: only its latest use may be.
        by_age = {key: row for key, row in keyed if by_age[key] is row}
    return Snapshot(
        rows=ordered,
        keys=by_age,
        attempts={each: count for each, count in attempts.items() if each in rows},
        mode=mode,
        subscribers=None if subscribers is None else subscribers_of(subscribers, rows.keys()),
        attributes=None if attributes is None else attributes_of(attributes, rows.keys()),
    )


def _row_id(row: StoredMessage) -> int:
    return row.id
