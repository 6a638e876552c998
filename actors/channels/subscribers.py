"""Subscribers: the identities of a channel, with their numbers and acks (PA-08, PS-06).

An identity gets a number when it puts its first message, or subscribes. It keeps it for as long as
a message or key of it may be there, and a subscriber until it was away for the longest ttl.
"""

from __future__ import annotations

import logging
from math import inf

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.idempotency import IdempotencyKeys
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
NUMBER_MAX = 2**32 - 1


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


class KnownIdentity:
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
        "_idle_s",
        "_keys",
        "_known",
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
        self._known: dict[bytes, KnownIdentity] = {}
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
            known = self._known[stored.identity] = KnownIdentity(
                number, stored.identity, stored.until
            )
            self.expiry_at = min(self.expiry_at, stored.until)
            if stored.since is not None:
                floor = table.floors.get(number, 0)
                known.subscription = Subscription(stored.since, number, floor)
                known.subscription.acked |= table.acked.get(number, set())
                self.subscriptions[number] = known.subscription
        self.claimed |= table.acked.get(0, set())

    def take_changes(self) -> list[QueueChange]:
        """The changes for the store, once."""
        changes = self.changes
        if changes:
            self.changes = []
        return changes

    def __len__(self) -> int:
        return len(self._known)

    def find(self, identity: bytes) -> KnownIdentity | None:
        return self._known.get(identity)

    def next_number(self) -> int:
        """The number of the next new identity; 0 while there is no room for one."""
        if not self._next:
            self._next = 1 + self._highest()
        has_room = len(self._known) < self._subscribers_max and self._next <= NUMBER_MAX
        return self._next if has_room else 0

    def _highest(self) -> int:
        """The highest number in use, also by messages and keys of identities that were lost to a
        damage: a new identity must not seem to have put them."""
        highest = max((known.number for known in self._known.values()), default=0)
        for row in self._buffer.rows.values():
            highest = max(highest, row.sender)
        for key, left in self._keys.rows.items():
            if isinstance(left, StoredKey):
                highest = max(highest, key >> SENDER_SHIFT)
        return highest

    def use(self, identity: bytes, until: float, now: float) -> KnownIdentity:
        """The identity is needed until then at least; it gets a number if it has none."""
        known = self._known.get(identity)
        if known is None:
            assert self._next, "next_number comes first"
            known = self._known[identity] = KnownIdentity(self._next, identity, 0.0)
            self._next += 1
            known.until = until + SLACK * (until - now)
            self.changes.append(Subscriber(known.number, identity, known.until))
        elif known.until < until:
            self._renew(known, until, now)
        self.expiry_at = min(self.expiry_at, known.until)
        return known

    def _renew(self, known: KnownIdentity, until: float, now: float) -> None:
        known.until = until + SLACK * (until - now)
        self._store(known)

    def _store(self, known: KnownIdentity) -> None:
        since = None if known.subscription is None else known.subscription.since
        self.changes.append(SubscriberTouched(known.number, known.until, since))

    # Connections and subscribers.

    def connect(
        self, port: Port, options: Attach, now: float, *, subscribes: bool
    ) -> KnownIdentity | None:
        """A connection with an identity is attached. Gives the identity, if it has a number.

        `subscribes`: receivers of this channel are subscribers, and get a number.
        """
        identity = options.identity
        assert identity is not None
        self.connected[port] = identity
        if not (subscribes and options.push and options.role.consumes):
            return self.find(identity)
        known = self._subscribe(identity, now)
        if known is None:
            log.warning("too many subscribers, this one will be forgotten: channel=%r", self._name)
            return None
        known.connections += 1
        self.expiry_at = min(self.expiry_at, self._due_at(known))
        return known

    def disconnect(self, port: Port, subscription: Subscription | None, now: float) -> None:
        """The connection is gone. Its subscription is idle from now on."""
        identity = self.connected.pop(port, None)
        if identity is None or subscription is None:
            return
        known = self._known.get(identity)
        if known is not None and known.subscription is subscription:
            known.connections -= 1
            self.use(identity, now + self._idle_s, now)

    def _subscribe(self, identity: bytes, now: float) -> KnownIdentity | None:
        """Subscribe an identity to messages from now on, unless it is a subscriber already.

        None: there is no room for another stored.
        """
        if identity not in self._known and not self.next_number():
            return None
        known = self.use(identity, now + self._idle_s, now)
        if known.subscription is None:
            known.subscription = Subscription(self._buffer.last_id, known.number)
            self.subscriptions[known.number] = known.subscription
            # The store forgets the mode of a channel that is empty.
            self.changes.append(ModeSet(Mode.FANOUT))
            self._store(known)
        return known

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
        for known in self._known.values():
            if known.subscription is not None:
                known.subscription = None
                self._store(known)
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

    def _due_at(self, known: KnownIdentity) -> float:
        # A connected identity is stored again and again, so that it outlives a restart.
        return known.until - self._idle_s if known.connections else known.until

    def sweep(self, now: float) -> set[bytes]:
        """Forget identities that are not needed any more, and give them."""
        forgotten: set[bytes] = set()
        if now < self.expiry_at:
            return forgotten
        for identity, known in list(self._known.items()):
            if self._due_at(known) > now:
                continue
            if known.connections:
                self._renew(known, now + self._idle_s, now)
                continue
            del self._known[identity]
            self.subscriptions.pop(known.number, None)
            self.changes.append(SubscriberRemoved(known.number))
            forgotten.add(identity)
        self.expiry_at = min(map(self._due_at, self._known.values()), default=inf)
        return forgotten


NO_SUBSCRIBERS = Subscribers(b"", None, Buffer([]), IdempotencyKeys({}), 0.0, 0)
"""The subscribers of all channels that never had a connection with an identity; immutable."""
