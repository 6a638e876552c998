"""A model of a channel as its store sees it, in plain dictionaries, for memtables and files."""

from __future__ import annotations

from hashlib import sha256
from random import Random

import msgspec

from millpond.actors.messages import Mode
from millpond.actors.store.changes import (
    AttemptsSet,
    DeadlineSet,
    KeyExpired,
    MessageRemoved,
    ModeSet,
    Origin,
    QueueChange,
    Snapshot,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.message_attributes import DueAt, MessageAttributes, UniqueKey
from millpond.actors.store.subscribers import (
    Acked,
    AckedUpTo,
    Subscriber,
    SubscriberRemoved,
    SubscriberTable,
    SubscriberTouched,
)


class Queue:
    """The rows of a channel, and its changes of them."""

    def __init__(self, rng: Random, last_id: int = 0, step: int = 1) -> None:
        self.rng = rng
        self.rows: dict[int, StoredMessage] = {}
        self.keys: dict[int, StoredMessage | StoredKey] = {}
        """The rows that a channel remembers; a row whose key was forgotten has none here."""
        self.attempts: dict[int, int] = {}
        self.mode: Mode | None = None
        self.by_number: dict[int, Subscriber] = {}
        self.floors: dict[int, int] = {}
        self.acked: set[tuple[int, int]] = set()
        """Numbers of subscribers, and messages that are there."""
        self.due: dict[int, float] = {}
        self.names: dict[int, bytes] = {}
        self.id = last_id
        self.id_step = step

    def step(self) -> list[QueueChange]:
        deeds = [self.put, self.put, self.ack, self.ack, self.forget, self.attempt]
        deeds += [self.welcome, self.see, self.take_note, self.take_note, self.part]
        deeds += [self.put_job, self.rest, self.hurry, self.limit]
        return self.rng.choice(deeds)()

    def put(self) -> list[QueueChange]:
        rng = self.rng
        self.id += self.id_step * rng.randint(1, 3)
        changes: list[QueueChange] = []
        if not self.rows:
            self.mode = rng.choice(list(Mode))
            changes.append(ModeSet(self.mode))
        key = rng.randrange(12)
        if key in self.keys:
            changes += self._forget(key)
        ttl = rng.choice((1, 60, 604_800))
        origin = Origin(self.id, 3, "often") if rng.random() < 0.2 else None
        row = StoredMessage(self.id, key, ttl, rng.uniform(0, 1e6), rng.randbytes(5), 0, origin)
        self.rows[row.id] = self.keys[key] = row
        return [*changes, row]

    def put_job(self) -> list[QueueChange]:
        name, due = self.rng.randbytes(self.rng.randint(1, 64)), self.rng.uniform(1, 1e6)
        changes = self.put()
        self.names[self.id], self.due[self.id] = name, due
        return [*changes, DueAt(self.id, due), UniqueKey(self.id, name)]

    def rest(self) -> list[QueueChange]:
        if not self.rows:
            return []
        message_id = self.rng.choice(list(self.rows))
        self.due[message_id] = self.rng.uniform(1, 1e6)
        return [DueAt(message_id, self.due[message_id])]

    def hurry(self) -> list[QueueChange]:
        if not self.due:
            return []
        message_id = self.rng.choice(list(self.due))
        del self.due[message_id]
        return [DueAt(message_id, 0.0)]

    def ack(self) -> list[QueueChange]:
        if not self.rows:
            return []
        row = self.rows.pop(self.rng.choice(list(self.rows)))
        self.attempts.pop(row.id, None)
        self.due.pop(row.id, None)
        self.names.pop(row.id, None)
        self.acked = {each for each in self.acked if each[1] != row.id}
        left = None
        if self.keys.get(row.key) is row:
            left = StoredKey(row.id, row.ttl, row.until, sha256(row.data).digest())
            self.keys[row.key] = left
        return [MessageRemoved(row.id, row.key, left, len(row.data))]

    def forget(self) -> list[QueueChange]:
        return self._forget(self.rng.choice(list(self.keys))) if self.keys else []

    def _forget(self, key: int) -> list[QueueChange]:
        return [KeyExpired(key, isinstance(self.keys.pop(key), StoredKey))]

    def attempt(self) -> list[QueueChange]:
        if not self.rows:
            return []
        message_id = self.rng.choice(list(self.rows))
        self.attempts[message_id] = self.attempts.get(message_id, 0) + 1
        return [AttemptsSet(message_id, self.attempts[message_id])]

    def limit(self) -> list[QueueChange]:
        if not self.rows:
            return []
        row = self.rows[self.rng.choice(list(self.rows))]
        limited = msgspec.structs.replace(row, expires_at=self.rng.uniform(0, 1e6))
        self.rows[row.id] = limited
        if self.keys.get(row.key) is row:
            self.keys[row.key] = limited
        return [DeadlineSet(row.id, limited.expires_at)]

    # Members.

    def welcome(self) -> list[QueueChange]:
        """The highest number that is free may have been another's before."""
        number = max(self.by_number, default=0) + 1
        since = self.rng.choice((None, 0, self.id))
        subscriber = Subscriber(number, self.rng.randbytes(32), self.rng.uniform(0, 1e6), since)
        self.by_number[number] = subscriber
        return [subscriber]

    def some_member(self) -> int:
        return self.rng.choice(list(self.by_number))

    def see(self) -> list[QueueChange]:
        if not self.by_number:
            return []
        seen = SubscriberTouched(
            self.some_member(), self.rng.uniform(0, 1e6), self.rng.choice((None, 7))
        )
        self.by_number[seen.number] = seen.applied_to(self.by_number[seen.number])
        return [seen]

    def take_note(self) -> list[QueueChange]:
        """Somebody acked a message that stays, or has a claim to it."""
        if not self.rows:
            return []
        message_id = self.rng.choice(list(self.rows))
        if not self.by_number or self.rng.random() < 0.3:
            self.acked.add((0, message_id))
            return [Acked(0, message_id)]
        number = self.some_member()
        if self.rng.random() < 0.5:
            self.acked.add((number, message_id))
            return [Acked(number, message_id)]
        floor = self.floors[number] = max(message_id, self.floors.get(number, 0))
        return [AckedUpTo(number, floor)]

    def part(self) -> list[QueueChange]:
        if not self.by_number or self.rng.random() < 0.5:
            return []
        number = self.some_member()
        del self.by_number[number]
        self.floors.pop(number, None)
        self.acked = {each for each in self.acked if each[0] != number}
        return [SubscriberRemoved(number)]

    def run(self, steps: int) -> list[QueueChange]:
        return [change for _ in range(steps) for change in self.step()]

    @property
    def snapshot(self) -> Snapshot:
        """The rows of a rebuilt channel: a forgotten key of a kept message is in its row."""
        keys: dict[int, StoredMessage | StoredKey] = {row.key: row for row in self.rows.values()}
        left = {key: row for key, row in self.keys.items() if isinstance(row, StoredKey)}
        keys = {**keys, **left}
        rows = list(self.rows.values())
        terms = (
            MessageAttributes(dict(self.due), dict(self.names)) if self.due or self.names else None
        )
        return Snapshot(rows, keys, dict(self.attempts), self.mode, self.subscribers, terms)

    @property
    def subscribers(self) -> SubscriberTable | None:
        """None if nobody is known."""
        if not self.by_number and not self.acked:
            return None
        acked: dict[int, set[int]] = {}
        for number, message_id in self.acked:
            acked.setdefault(number, set()).add(message_id)
        return SubscriberTable(dict(sorted(self.by_number.items())), dict(self.floors), acked)

    @property
    def weight(self) -> tuple[int, int, int]:
        """Messages, bytes of data; keys whose message is gone, and subscribers."""
        left = [row for row in self.keys.values() if isinstance(row, StoredKey)]
        size = sum(len(row.data) for row in self.rows.values())
        return len(self.rows), size, len(left) + len(self.by_number)
