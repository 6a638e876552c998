"""Subscribers of a queue: identities that get each message once, and their acks."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import assert_never

import msgspec

SUBSCRIBER_BYTES = 64
ACK_BYTES = 16
"""The sizes of a subscriber and an ack in the journal, about."""


class Subscriber(msgspec.Struct, frozen=True, gc=False):
    """An identity has a number in the queue, at least until `until`.

    It is subscribed to messages with ids above `since`; None: it only put some (PS-06).
    """

    number: int
    identity: bytes
    until: float
    since: int | None = None


class SubscriberTouched(msgspec.Struct, frozen=True, gc=False):
    """The subscriber is remembered until then, and subscribed since then."""

    number: int
    until: float
    since: int | None = None

    def applied_to(self, subscriber: Subscriber) -> Subscriber:
        """The subscriber as of now."""
        return Subscriber(self.number, subscriber.identity, self.until, self.since)


class SubscriberRemoved(msgspec.Struct, frozen=True, gc=False):
    """The identity is not known any more, and what it acked is forgotten."""

    number: int


class Acked(msgspec.Struct, frozen=True, gc=False):
    """The subscriber acked the message. Number 0: subscribers without identity had a claim to
    it."""

    number: int
    id: int


class AckedUpTo(msgspec.Struct, frozen=True, gc=False):
    """The subscriber acked everything from its subscription up to this id."""

    number: int
    id: int


SubscriberChange = Subscriber | SubscriberTouched | SubscriberRemoved | Acked | AckedUpTo
SUBSCRIBER_CHANGES = (Subscriber, SubscriberTouched, SubscriberRemoved, Acked, AckedUpTo)


class SubscriberTable(msgspec.Struct):
    """The subscribers of a partition, or the changes to them in a memtable.

    A subscriber has acked every message in its debt up to its floor, and those in `acked`. Number 0
    stands for subscribers without identity: they had a claim to those messages when they were put.
    Only a memtable has `seen` and `removed`, which are about subscribers of the file or an
    older memtable.
    """

    by_number: dict[int, Subscriber] = {}
    floors: dict[int, int] = {}
    acked: dict[int, set[int]] = {}
    seen: dict[int, SubscriberTouched] = {}
    removed: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self.by_number or self.floors or self.acked or self.seen or self.removed)

    @property
    def size(self) -> int:
        """Bytes it takes to say it again in the journal, roughly."""
        count = len(self.by_number) + len(self.floors) + len(self.seen) + len(self.removed)
        return SUBSCRIBER_BYTES * count + ACK_BYTES * sum(map(len, self.acked.values()))

    @property
    def deadlines(self) -> Iterator[float]:
        """The times at which subscribers may be forgotten."""
        yield from (each.until for each in self.by_number.values())
        yield from (each.until for each in self.seen.values())

    def fold(self, change: SubscriberChange, *, is_oldest: bool, may_overlap: bool = False) -> None:
        """Apply a change; `is_oldest`: there is no file or older memtable; `may_overlap`: they may
        have the same subscribers."""
        match change:
            case Subscriber():
                self.by_number[change.number] = change
            case SubscriberTouched():
                self._see(change, is_oldest=is_oldest)
            case SubscriberRemoved(number=number):
                own = self.by_number.get(number)
                self._drop(number)
                if not is_oldest and (own is None or may_overlap):
                    self.removed.add(number)
            case Acked(number=number, id=message_id):
                self.acked.setdefault(number, set()).add(message_id)
            case AckedUpTo(number=number, id=message_id):
                self.floors[number] = max(self.floors.get(number, 0), message_id)
            case _:
                assert_never(change)

    def _see(self, seen: SubscriberTouched, *, is_oldest: bool) -> None:
        own = self.by_number.get(seen.number)
        if own is not None:
            self.by_number[seen.number] = seen.applied_to(own)
        elif not is_oldest:
            self.seen[seen.number] = seen

    def _drop(self, number: int) -> None:
        self.by_number.pop(number, None)
        self.seen.pop(number, None)
        self.floors.pop(number, None)
        self.acked.pop(number, None)

    def forget(self, message_id: int) -> None:
        """The message is removed: its acks do not matter any more."""
        for number in [number for number, ids in self.acked.items() if message_id in ids]:
            self.acked[number].discard(message_id)
            if not self.acked[number]:
                del self.acked[number]

    def changes(self) -> Iterator[SubscriberChange]:
        """The changes that make it again."""
        for number in sorted(self.removed):
            yield SubscriberRemoved(number)
        yield from self.by_number.values()
        yield from self.seen.values()
        for number, floor in self.floors.items():
            yield AckedUpTo(number, floor)
        for number, ids in self.acked.items():
            for message_id in sorted(ids):
                yield Acked(number, message_id)

    def split(
        self, stays: AbstractSet[int], *, keys_stay: bool
    ) -> tuple[SubscriberTable, SubscriberTable]:
        """The part to flush, and the part that stays: everything but removals of older ones, if
        keys stay; else acks of messages that stay. So a subscriber's acks are never older than the
        subscriber itself."""
        moved, left = SubscriberTable(removed=set(self.removed)), SubscriberTable()
        home = left if keys_stay else moved
        home.by_number, home.seen = dict(self.by_number), dict(self.seen)
        home.floors = dict(self.floors)
        for number, ids in self.acked.items():
            staying = ids if keys_stay else ids.intersection(stays)
            if staying:
                left.acked[number] = set(staying)
            if len(staying) < len(ids):
                moved.acked[number] = ids - staying
        return moved, left

    def apply_to(self, older: SubscriberTable) -> SubscriberTable:
        """The subscribers of an older memtable or file and of this one together; `older` may be
        changed."""
        for number in self.removed:
            older._drop(number)
        for subscriber in self.by_number.values():
            older.fold(subscriber, is_oldest=True)
        for seen in self.seen.values():
            older.fold(seen, is_oldest=True)
        for number, floor in self.floors.items():
            older.fold(AckedUpTo(number, floor), is_oldest=True)
        for number, ids in self.acked.items():
            older.acked.setdefault(number, set()).update(ids)
        return older


def subscribers_of(subscribers: SubscriberTable, rows: AbstractSet[int]) -> SubscriberTable | None:
    """The subscribers for a snapshot, with acks of messages that exist; None if there are none."""
    acked = {number: ids.intersection(rows) for number, ids in subscribers.acked.items()}
    members = dict(sorted(subscribers.by_number.items()))
    floors = {number: floor for number, floor in subscribers.floors.items() if number in members}
    known = {n: ids for n, ids in acked.items() if ids and (n in members or n == 0)}
    return SubscriberTable(members, floors, known) if members or known else None
