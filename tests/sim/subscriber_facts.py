"""Facts of a queue's identities: their numbers, their subscriptions, their acks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from millpond.actors.store.changes import Snapshot, StoredMessage
from millpond.actors.store.subscribers import (
    Acked,
    AckedUpTo,
    Subscriber,
    SubscriberChange,
    SubscriberRemoved,
    SubscriberTable,
    SubscriberTouched,
)
from tests.sim.durability_levels import View, Write

HasAcked = Callable[[bytes, int], bool]
"""Did anybody with this identity ever say that it has the message?"""


@dataclass(frozen=True)
class Subscribed:
    """Since which id, and the write that says so; at least until then."""

    write: Write
    since: int
    until: float


class SubscriberFacts:
    """Everything that was ever written of subscribers, as of now."""

    def __init__(self) -> None:
        self.names: dict[int, bytes] = {}
        self.subscribed: dict[bytes, Subscribed] = {}
        self._written: dict[tuple[int, bytes], list[Write]] = {}
        self._acked: dict[tuple[int, int], Write] = {}
        """By subscriber and message."""
        self._floors: dict[int, list[tuple[Write, int]]] = {}

    def record(self, write: Write, change: SubscriberChange) -> None:
        match change:
            case Subscriber(number=number, identity=identity):
                self._forget(number)
                self.names[number] = identity
                self._written.setdefault((number, identity), []).append(write)
                self._subscribe(write, change)
            case SubscriberTouched():
                self._subscribe(write, change)
            case SubscriberRemoved(number=number):
                self._forget(number)
            case Acked(number=number, id=message_id):
                self._acked.setdefault((number, message_id), write)
            case AckedUpTo(number=number, id=message_id):
                self._floors.setdefault(number, []).append((write, message_id))

    def _subscribe(self, write: Write, change: Subscriber | SubscriberTouched) -> None:
        identity, since = self.names[change.number], change.since
        if since is None:
            self.subscribed.pop(identity, None)
        else:
            found = Subscribed(write, since, change.until)
            self.subscribed.setdefault(identity, found)

    def _forget(self, number: int) -> None:
        identity = self.names.pop(number, None)
        if identity is not None:
            self.subscribed.pop(identity, None)
        self._acked = {each: write for each, write in self._acked.items() if each[0] != number}
        self._floors.pop(number, None)

    def undo(self, write: Write) -> None:
        """The write failed: nobody subscribed by it, or acked."""
        self._acked = {each: by for each, by in self._acked.items() if by is not write}
        for number, floors in self._floors.items():
            self._floors[number] = [each for each in floors if each[0] is not write]
        found = self.subscribed.items()
        self.subscribed = {name: each for name, each in found if each.write is not write}

    def owed(self, row: StoredMessage) -> set[bytes]:
        """The subscribers that did not put it."""
        return set(self.subscribed) - {self.names.get(row.sender, b"")}

    def waits_for(self, row: StoredMessage, owed: set[bytes], has_acked: HasAcked) -> set[bytes]:
        """Those it was owed to who are subscribed still, and never said that they have it."""
        return {
            identity
            for identity in owed & self.subscribed.keys()
            if self.subscribed[identity].since < row.id and not has_acked(identity, row.id)
        }

    # Faults of a snapshot.

    def check(self, snapshot: Snapshot, view: View, has_acked: HasAcked) -> Iterator[str]:
        table = snapshot.subscribers or SubscriberTable()
        for number, subscriber in table.by_number.items():
            written = self._written.get((number, subscriber.identity), [])
            if all(map(view.must_not, written)):
                yield f"subscriber {number} is {subscriber.identity!r}, which was never kept"
        by_identity = {subscriber.identity: subscriber for subscriber in table.by_number.values()}
        for identity, subscribed in self.subscribed.items():
            if view.must(subscribed.write) and subscribed.until > view.now:
                found = by_identity.get(identity)
                if found is None or found.since != subscribed.since:
                    yield f"{identity!r} subscribed as of {subscribed.since}, and is {found}"
        yield from self._check_acks(snapshot, table, view)
        yield from self._check_reasons(snapshot, table, has_acked)

    def _check_acks(self, snapshot: Snapshot, table: SubscriberTable, view: View) -> Iterator[str]:
        """Acks that are there for sure are known."""
        rows = {row.id for row in snapshot.rows}
        for (number, message_id), write in self._acked.items():
            is_there = message_id in rows and (not number or number in table.by_number)
            if is_there and view.must(write) and not _has(table, number, message_id):
                yield f"the ack of {message_id} by subscriber {number} is forgotten"
        for number, floors in self._floors.items():
            floor = max((each for write, each in floors if view.must(write)), default=0)
            if number in table.by_number and table.floors.get(number, 0) < floor:
                yield f"subscriber {number} acked up to {floor}, and that is forgotten"

    def _check_reasons(
        self, snapshot: Snapshot, table: SubscriberTable, has_acked: HasAcked
    ) -> Iterator[str]:
        """Messages that count as acked were acked."""
        for number, subscriber in table.by_number.items():
            for row in snapshot.rows:
                is_had = row.sender == number or has_acked(subscriber.identity, row.id)
                if subscriber.since is not None and _has(table, number, row.id) and not is_had:
                    yield f"subscriber {number} has {row.id} without having acked it"

    def settle(self, snapshot: Snapshot, seen: Write) -> None:
        """After a restart, what was found is what is."""
        written = {
            each: [write for write in writes if write.is_failed]
            for each, writes in self._written.items()
        }
        self.__init__()  # type: ignore[misc]  # nothing else of before counts
        self._written = written
        table = snapshot.subscribers or SubscriberTable()
        for change in table.changes():
            self.record(seen, change)


def _has(table: SubscriberTable, number: int, message_id: int) -> bool:
    if message_id in table.acked.get(number, ()):
        return True
    subscriber = table.by_number.get(number)
    since = None if subscriber is None else subscriber.since
    return since is not None and since < message_id <= table.floors.get(number, 0)
