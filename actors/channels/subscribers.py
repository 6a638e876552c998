"""Subscribers: the identities of a channel, with their numbers and acks (PA-08, PS-06).

An identity gets a number when it puts its first message, or subscribes. It keeps it for as long as
a message or key of it may be there, and a subscriber until it was away for the longest ttl.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from math import inf

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.idempotency import MOVE_KEYS, IdempotencyKeys
from millpond.actors.messages import Attach, Mode, Port
from millpond.actors.store.changes import SENDER_SHIFT, ModeSet, QueueChange, StoredKey
from millpond.actors.store.subscribers import (
    Acked,
    AckedUpTo,
    Subscriber,
    SubscriberRemoved,
    SubscriberTable,
    SubscriberTouched,
)

log = logging.getLogger(__name__)

SLACK = 0.25
"""An identity is kept for so much longer than needed, so that not every use of it is stored."""
NUMBER_MAX = (MOVE_KEYS >> SENDER_SHIFT) - 1
"""No key of a client is as high as those of moves."""


class Subscription:
    """The acks of a subscriber of a fanout channel. `number` is 0 for an anonymous connection.

    It is owed what came after `since`. Of that it has everything up to `floor`, and besides that
    the messages in `acked`, which may be older ones as well.
    """

    __slots__ = ("acked", "floor", "number", "since")

    def __init__(self, since: int, number: int = 0, floor: int = 0) -> None:
        self.since = since
        self.number = number
        self.floor = max(floor, since)
        self.acked: set[int] = set()

    def has(self, message_id: int) -> bool:
        return message_id in self.acked or self.since < message_id <= self.floor


class NumberedIdentity:
    """An identity with a number. `connections` counts those that keep its subscription alive."""

    __slots__ = ("connections", "identity", "number", "subscription", "until")

    def __init__(self, number: int, identity: bytes, until: float) -> None:
        self.number = number
        self.identity = identity
        self.until = until
        self.subscription: Subscription | None = None
        self.connections = 0


class Subscribers:
    """The identities of one channel. `changes` collects changes for the store."""

    __slots__ = (
        "_buffer",
        "_by_identity",
        "_idle_s",
        "_keys",
        "_name",
        "_next",
        "_subscribers_max",
        "changes",
        "claimed",
        "connected",
        "expiry_at",
        "subscriptions",
    )

    def __init__(
        self,
        name: bytes,
        table: SubscriberTable | None,
        buffer: Buffer,
        keys: IdempotencyKeys,
        idle_s: float,
        subscribers_max: int,
    ) -> None:
        self._name = name
        self._buffer = buffer
        self._keys = keys
        self._idle_s = idle_s
        self._subscribers_max = subscribers_max
        self._by_identity: dict[bytes, NumberedIdentity] = {}
        self._next = 0
        """The number of the next new identity; 0: not computed yet."""
        self.changes: list[QueueChange] = []
        self.connected: dict[Port, bytes] = {}
        """The identities of connections that have one."""
        self.subscriptions: dict[int, Subscription] = {}
        """The subscriptions of identities, by number."""
        self.claimed: set[int] = set()
        """Messages that anonymous subscribers had to ack as well, in this run or before it."""
        self.expiry_at = inf
        """No identity expires, or is stored again, before this."""
        if table is not None:
            self._load(table)

    def _load(self, table: SubscriberTable) -> None:
        for number, stored in table.by_number.items():
            entry = self._by_identity[stored.identity] = NumberedIdentity(
                number, stored.identity, stored.until
            )
            self.expiry_at = min(self.expiry_at, stored.until)
            if stored.since is not None:
                floor = table.floors.get(number, 0)
                entry.subscription = Subscription(stored.since, number, floor)
                entry.subscription.acked |= table.acked.get(number, set())
                self.subscriptions[number] = entry.subscription
        self.claimed |= table.acked.get(0, set())

    def take_changes(self) -> list[QueueChange]:
        """The changes for the store, once."""
        changes = self.changes
        if changes:
            self.changes = []
        return changes

    def __len__(self) -> int:
        return len(self._by_identity)

    def subscribed(self) -> Iterator[NumberedIdentity]:
        """The identities that are subscribers."""
        return (each for each in self._by_identity.values() if each.subscription is not None)

    def find(self, identity: bytes) -> NumberedIdentity | None:
        return self._by_identity.get(identity)

    def next_number(self) -> int:
        """The number of the next new identity; 0 while there is no room for one."""
        if not self._next:
            self._next = 1 + self._highest()
        has_capacity = len(self._by_identity) < self._subscribers_max and self._next <= NUMBER_MAX
        return self._next if has_capacity else 0

    def _highest(self) -> int:
        """The highest number in use, also by messages and keys of identities that were lost to a
        damage: a new identity must not seem to have put them."""
        highest = max((entry.number for entry in self._by_identity.values()), default=0)
        for row in self._buffer.rows.values():
            highest = max(highest, row.sender)
        for key, left in self._keys.rows.items():
            if isinstance(left, StoredKey) and key < MOVE_KEYS:
                highest = max(highest, key >> SENDER_SHIFT)
        return highest

    def use(self, identity: bytes, until: float, now: float) -> NumberedIdentity:
        """The identity is needed until then at least; it gets a number if it has none."""
        entry = self._by_identity.get(identity)
        if entry is None:
            assert self._next, "next_number comes first"
            entry = self._by_identity[identity] = NumberedIdentity(self._next, identity, 0.0)
            self._next += 1
            entry.until = until + SLACK * (until - now)
            self.changes.append(Subscriber(entry.number, identity, entry.until))
        elif entry.until < until:
            self._renew(entry, until, now)
        self.expiry_at = min(self.expiry_at, entry.until)
        return entry

    def _renew(self, entry: NumberedIdentity, until: float, now: float) -> None:
        entry.until = until + SLACK * (until - now)
        self._store(entry)

    def _store(self, entry: NumberedIdentity) -> None:
        since = None if entry.subscription is None else entry.subscription.since
        self.changes.append(SubscriberTouched(entry.number, entry.until, since))

    # Connections and subscribers.

    def connect(
        self, port: Port, options: Attach, now: float, *, subscribes: bool
    ) -> NumberedIdentity | None:
        """A connection with an identity is attached. Gives the identity, if it has a number.

        `subscribes`: receivers of this channel are subscribers, and get a number.
        """
        identity = options.identity
        assert identity is not None
        self.connected[port] = identity
        if not (subscribes and options.push and options.role.consumes):
            return self.find(identity)
        entry = self._subscribe(identity, now)
        if entry is None:
            log.warning("too many subscribers, this one will be forgotten: channel=%r", self._name)
            return None
        entry.connections += 1
        self.expiry_at = min(self.expiry_at, self._due_at(entry))
        return entry

    def disconnect(self, port: Port, subscription: Subscription | None, now: float) -> None:
        """The connection is gone. Its subscription is idle from now on."""
        identity = self.connected.pop(port, None)
        if identity is None or subscription is None:
            return
        entry = self._by_identity.get(identity)
        if entry is not None and entry.subscription is subscription:
            entry.connections -= 1
            self.use(identity, now + self._idle_s, now)

    def _subscribe(self, identity: bytes, now: float) -> NumberedIdentity | None:
        """Subscribe an identity to messages from now on, unless it is a subscriber already.

        None: there is no room for another identity.
        """
        if identity not in self._by_identity and not self.next_number():
            return None
        entry = self.use(identity, now + self._idle_s, now)
        if entry.subscription is None:
            entry.subscription = Subscription(self._buffer.last_id, entry.number)
            self.subscriptions[entry.number] = entry.subscription
            # The store forgets the mode of a channel that is empty.
            self.changes.append(ModeSet(Mode.FANOUT))
            self._store(entry)
        return entry

    def mode_for(self, configured: Mode | None, requested: Mode | None) -> Mode | None:
        """The mode of a channel without connections and messages. Subscribers that are away keep
        it at fanout, unless it is configured otherwise (PS-05)."""
        if configured is None:
            return Mode.FANOUT if self.subscriptions else requested
        if configured is not Mode.FANOUT:
            self._unsubscribe_all()
        return configured

    def _unsubscribe_all(self) -> None:
        """The channel is not in fanout mode any more."""
        for entry in self._by_identity.values():
            if entry.subscription is not None:
                entry.subscription = None
                self._store(entry)
        self.subscriptions.clear()

    def store_ack(self, subscription: Subscription, message_id: int) -> None:
        """Store an ack of a message that stays for other subscribers."""
        if message_id <= subscription.since or message_id > subscription.floor:
            self.changes.append(Acked(subscription.number, message_id))
        else:
            self.changes.append(AckedUpTo(subscription.number, subscription.floor))

    def claim(self, message_id: int) -> None:
        """The message was put while anonymous subscribers were there as well."""
        self.claimed.add(message_id)
        self.changes.append(Acked(0, message_id))

    def forget(self, message_id: int) -> None:
        """The message is gone."""
        self.claimed.discard(message_id)
        for subscription in self.subscriptions.values():
            if subscription.acked:
                subscription.acked.discard(message_id)

    # Time.

    def _due_at(self, entry: NumberedIdentity) -> float:
        # A connected identity is stored again and again, so that it outlives a restart.
        return entry.until - self._idle_s if entry.connections else entry.until

    def forget_away(self) -> set[bytes]:
        """Forget all identities without a connection and without a message, and give them."""
        senders = {row.sender for row in self._buffer.rows.values()}
        present = set(self.connected.values())
        away = [
            entry
            for identity, entry in self._by_identity.items()
            if identity not in present and entry.number not in senders
        ]
        for entry in away:
            del self._by_identity[entry.identity]
            self.subscriptions.pop(entry.number, None)
            self.changes.append(SubscriberRemoved(entry.number))
        return {entry.identity for entry in away}

    def sweep(self, now: float) -> set[bytes]:
        """Forget identities that are not needed any more, and give them.

        Those of messages that do not expire are needed as long as these are here.
        """
        forgotten: set[bytes] = set()
        if now < self.expiry_at:
            return forgotten
        senders: set[int] | None = None
        for identity, entry in list(self._by_identity.items()):
            if self._due_at(entry) > now:
                continue
            if senders is None:
                senders = {row.sender for row in self._buffer.rows.values()}
            if entry.connections or entry.number in senders:
                self._renew(entry, now + self._idle_s, now)
                continue
            del self._by_identity[identity]
            self.subscriptions.pop(entry.number, None)
            self.changes.append(SubscriberRemoved(entry.number))
            forgotten.add(identity)
        self.expiry_at = min(map(self._due_at, self._by_identity.values()), default=inf)
        return forgotten


NO_SUBSCRIBERS = Subscribers(b"", None, Buffer([]), IdempotencyKeys({}), 0.0, 0)
"""The subscribers of all channels that never had a connection with an identity; immutable."""
