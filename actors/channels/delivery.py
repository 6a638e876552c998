"""Who is handed which message, under credit and leases (wire.md 3d, 3j). Pure: it writes nowhere.

A message is *ready* until it is *leased* to a consumer; a lease ends with an ack, a nack, its
timeout or its consumer. What came back may *rest*. Modes differ in whose backlog a message stands:
`modes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from typing import ClassVar

import msgspec

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.consumer import Consumer, Lease
from millpond.actors.channels.settings import (
    BACKOFF_SHARE,
    UNSTARTED_MAX,
    DeliverySettings,
)
from millpond.actors.channels.subscribers import KnownIdentity, Subscribers, Subscription
from millpond.actors.messages import Attach, Mode, Msg, Nack, NackReason, Port, Reply, Role
from millpond.actors.runtime.timers import DeadlineHeap
from millpond.actors.store.changes import StoredMessage

ACK_TIMEOUT_S_MAX = 600.0
BACKOFF_GROWTH = 1.5
JITTER_MIN, JITTER_SPAN = 0.8, 0.4
NACK_DELAY_S_MAX = 3600.0
LOOK_GAP_S_PER_LEASE = 2e-5


DelayKey = tuple[int, int]
"""A message, and the number of the one connection it delays for; 0: it delays for all."""


class Delivery(ABC):
    """What all modes share: leases, credit, timeouts, rest. `modes` has the subclasses."""

    __slots__ = (
        "_agenda",
        "_buffer",
        "_delays",
        "_rng",
        "_settings",
        "_subscribers",
        "attempts",
        "consumers",
        "is_stopped",
        "leases_at",
        "receivers",
        "unstarted",
        "waiting",
    )

    mode: ClassVar[Mode]

    def __init__(
        self,
        buffer: Buffer,
        subscribers: Subscribers,
        settings: DeliverySettings,
        rng: Random,
        attempts: dict[int, int],
    ) -> None:
        self._buffer = buffer
        self._subscribers = subscribers
        self._settings = settings
        self._rng = rng
        delays: dict[DelayKey, float] = {}
        self._delays = delays
        self._agenda: DeadlineHeap[DelayKey] = DeadlineHeap(
            lambda when, key: delays.get(key) == when
        )
        self.waiting: dict[Consumer, None] = {}
        """Who may be able to take more."""
        self.receivers: dict[Consumer, None] = {}
        """Who is pushed messages at all."""
        self.attempts = attempts
        """Failed deliveries by message; only of messages that have any."""
        self.unstarted: dict[int, int] = {}
        """How often a message was lost in a row by consumers that had not begun it."""
        self.consumers: dict[Port, Consumer] = {}
        self.leases_at = inf
        """No lease ends before this."""
        self.is_stopped = False
        """True while the node drains: nothing is pushed any more."""

    def use_subscribers(self, subscribers: Subscribers) -> None:
        """The channel knows identities from now on."""
        self._subscribers = subscribers

    @property
    def subscriptions(self) -> Mapping[int, Subscription]:
        """The subscriptions of identities, by number."""
        return self._subscribers.subscriptions

    def stop_pushing(self) -> None:
        """Push nothing from here on: the node drains."""
        self.is_stopped = True

    # The differences between the modes.

    @abstractmethod
    def _start_backlog(self, consumer: Consumer) -> None:
        """Give a new receiver its backlog."""

    def stored(self, rows: Sequence[StoredMessage]) -> None:
        """New messages stand in the buffer."""
        self.waiting.update(self.receivers)

    def ack(self, consumer: Consumer, message_id: int) -> bool:
        """The consumer has the message. True: it leaves the buffer, which ends its leases."""
        return True

    def _keeps_attempt(self) -> bool:
        """Does a lost connection count as a failed attempt?"""
        return False

    def is_exhausted(self, message_id: int) -> bool:
        """Were all attempts of the message used up?"""
        return False

    def shows(self, consumer: Consumer | None, message_id: int) -> bool:
        """May LIST show the message to this consumer?"""
        return True

    # Connections.

    def window_for(self, join: Attach) -> int:
        """The window that a connection gets: asked for, capped, never widened."""
        most = self._settings.window_max
        if self.mode is Mode.QUEUE:
            most = self._settings.window_queue_max
        if join.ordered:
            most = min(most, 1)
        if join.window is not None:
            return min(join.window, most)
        return min(1 if join.role is Role.WORKER else self._settings.window, most)

    def attach(self, port: Port, join: Attach, known: KnownIdentity | None = None) -> Consumer:
        """The connection enters; `known` is its identity, if that has a number."""
        consumer = self.consumers[port] = Consumer(port, join, self.window_for(join))
        if known is not None:
            consumer.identity_number, consumer.subscription = known.number, known.subscription
        if consumer.receives:
            self._start_backlog(consumer)
            self.receivers[consumer] = None
            self.waiting[consumer] = None
        return consumer

    def identify(self, known: KnownIdentity) -> None:
        """An identity got its number, or a subscription: that is so on all its connections."""
        for consumer in self.consumers.values():
            if consumer.options.identity == known.identity:
                consumer.identity_number = known.number
                if consumer.subscription is None:
                    consumer.subscription = known.subscription

    def forget_identities(self, identities: set[bytes]) -> None:
        """Numbers of identities that nothing is kept of are free again."""
        for consumer in self.consumers.values():
            if consumer.options.identity in identities:
                consumer.identity_number = 0
                if not consumer.receives:
                    # Messages put from now on do not wait for it, so its acks must not count.
                    consumer.subscription = None

    def attachment_of(self, consumer: Consumer) -> Attach:
        """How to admit the consumer again after a crash, with what it was granted since."""
        return msgspec.structs.replace(consumer.options, mode=self.mode, window=consumer.window)

    def detach(self, consumer: Consumer) -> dict[int, int]:
        """The consumer left: what it held is ready at once. Gives the attempts that now count."""
        del self.consumers[consumer.port]
        self.waiting.pop(consumer, None)
        self.receivers.pop(consumer, None)
        failed = {}
        for message_id, lease in consumer.leases.items():
            if self._keeps_attempt() and self._is_attempt(message_id, lease):
                failed[message_id] = self._count(message_id, lease.attempt)
            self._give_back(consumer, message_id)
        consumer.leases.clear()
        return failed

    def resume(self, consumer: Consumer) -> None:
        """The consumer can take more: it got credit, or its connection has room again."""
        if consumer.receives:
            self.waiting[consumer] = None

    def push(self, now: float, replies: list[tuple[Port, Reply]]) -> None:
        """Lease out what can be leased, and append the pushes to `replies`."""
        if self.is_stopped:
            self.waiting.clear()
        while self.waiting:
            consumer, _ = self.waiting.popitem()
            if not consumer.port.writable:
                continue
            backlog = consumer.backlog
            assert backlog is not None, "only receivers are waiting"
            while consumer.credit > 0 and consumer.leased_bytes < self._settings.window_bytes:
                row = backlog.next(consumer, self._buffer, now)
                if row is None:
                    break
                replies.append((consumer.port, self._lease(consumer, row, now)))

    def _lease(self, consumer: Consumer, row: StoredMessage, now: float) -> Msg:
        attempt = self.attempts.get(row.id, 0) + 1 if self.attempts else 1
        until, size = now + self._timeout_s(attempt), len(row.data)
        started = not consumer.options.reports_start
        consumer.leases[row.id] = Lease(until, attempt, size, started)
        consumer.leased_bytes += size
        consumer.credit -= 1
        if until < self.leases_at:
            self.leases_at = until
        return Msg(row.id, attempt, row.data)

    def _timeout_s(self, attempt: int) -> float:
        timeout_s = self._settings.ack_timeout_s
        if attempt > 1:
            # The exponent is capped because past ACK_TIMEOUT_S_MAX it only grows to an overflow.
            grown_s = timeout_s * BACKOFF_GROWTH ** min(attempt - 1, 20)
            timeout_s = min(grown_s, max(ACK_TIMEOUT_S_MAX, timeout_s))
        return timeout_s * (JITTER_MIN + JITTER_SPAN * self._rng.random())

    def _release(self, consumer: Consumer, message_id: int, *, credit: bool = True) -> Lease | None:
        lease = consumer.leases.pop(message_id, None)
        if lease is None:
            return None
        # Who had credit left was offered everything already: more credit changes nothing.
        was_full = consumer.credit <= 0 or consumer.leased_bytes >= self._settings.window_bytes
        consumer.leased_bytes -= lease.size
        if credit:
            consumer.credit += 1
        if was_full:
            self.resume(consumer)
        return lease

    def _count(self, message_id: int, attempt: int) -> int:
        # Several consumers may fail the same attempt (pair); it counts once.
        count = self.attempts[message_id] = max(self.attempts.get(message_id, 0), attempt)
        return count

    def _is_attempt(self, message_id: int, lease: Lease) -> bool:
        """Does the loss of this lease count?"""
        if lease.started:
            return True
        count = self.unstarted.pop(message_id, 0) + 1
        if count < UNSTARTED_MAX:
            self.unstarted[message_id] = count
        return count >= UNSTARTED_MAX

    def _give_back(self, consumer: Consumer, message_id: int) -> None:
        if consumer.backlog is not None and message_id in self._buffer:
            consumer.backlog.give_back(message_id)

    def _delay_key(self, consumer: Consumer, message_id: int) -> DelayKey:
        """Whose rest it is: the message's as a whole, or that for one consumer (fanout)."""
        return (message_id, 0)

    def delay(self, key: DelayKey, until: float) -> None:
        """The message is ready again at `until`, and not before."""
        self._delays[key] = until
        self._agenda.add(until, key)

    def end_delay(self, key: DelayKey) -> None:
        """The message is ready again."""
        for consumer in self.receivers:
            if key[0] not in consumer.leases:
                self._give_back(consumer, key[0])
                self.waiting[consumer] = None

    def nack(self, consumer: Consumer, nack: Nack, now: float) -> int | None:
        """A leased message comes back. Gives its failed attempts; None: it was not leased here."""
        if nack.id not in consumer.leases:
            return None
        shrinks = nack.reason is NackReason.BUSY and consumer.window > 1
        if shrinks:
            consumer.window -= 1
        lease = self._release(consumer, nack.id, credit=not shrinks)
        assert lease is not None
        count = self._count(nack.id, lease.attempt)
        if nack.reason is NackReason.LATER and nack.delay_ms is not None:
            rest_s = min(nack.delay_ms / 1000, NACK_DELAY_S_MAX)
        else:
            rest_s = self._timeout_s(lease.attempt) * BACKOFF_SHARE
        self.delay(self._delay_key(consumer, nack.id), now + rest_s)
        return count

    def give_back(self, consumer: Consumer, message_id: int) -> None:
        """A leased message comes back as if it had never been handed out, and is ready at once.

        Who gives back wants no more: the consumer gets nothing until `grant`.
        """
        if self._release(consumer, message_id) is not None:
            self.stop(consumer)
            self._give_back(consumer, message_id)

    def stop(self, consumer: Consumer) -> None:
        """The consumer wants no more: it gets nothing until `grant`."""
        consumer.receives = False
        self.receivers.pop(consumer, None)
        self.waiting.pop(consumer, None)

    def decline(self, consumer: Consumer, message_id: int) -> None:
        """The consumer cannot use the message: it is not pushed to it again."""
        if self._release(consumer, message_id) is not None:
            if consumer.declined is None:
                consumer.declined = set()
            consumer.declined.add(message_id)

    def touch(self, consumer: Consumer, message_id: int, until: float) -> bool:
        """Move the end of a lease. False: the consumer does not hold it."""
        lease = consumer.leases.get(message_id)
        if lease is None:
            return False
        consumer.leases[message_id] = Lease(until, lease.attempt, lease.size, lease.started)
        self.leases_at = min(self.leases_at, until)
        return True

    def restart_lease(self, consumer: Consumer, message_id: int, now: float) -> None:
        """A lease that the consumer holds begins now, and ends no sooner than it would have."""
        lease = consumer.leases[message_id]
        self.touch(consumer, message_id, max(lease.until, now + self._timeout_s(lease.attempt)))

    def start_attempt(self, consumer: Consumer, message_id: int) -> None:
        """The consumer works on the message, if it still holds it."""
        lease = consumer.leases.get(message_id)
        if lease is not None and not lease.started:
            consumer.leases[message_id] = Lease(lease.until, lease.attempt, lease.size, True)
            if self.unstarted:
                self.unstarted.pop(message_id, None)

    def add_credit(self, consumer: Consumer, count: int) -> None:
        if consumer.backlog is not None and not consumer.receives:
            consumer.receives = True
            self.receivers[consumer] = None
        consumer.window = min(consumer.window + count, 0xFFFF)
        consumer.credit = min(consumer.credit + count, 0xFFFF)
        self.resume(consumer)

    def end_leases(self, message_id: int) -> None:
        """Every lease on the message ends, and its credit returns, at once."""
        for consumer in self.consumers.values():
            if consumer.leases:
                self._release(consumer, message_id)

    def forget(self, message_id: int) -> None:
        """The message left the buffer: every lease on it ends, and its credit returns, at once."""
        self.attempts.pop(message_id, None)
        if self.unstarted:
            self.unstarted.pop(message_id, None)
        if self._delays:
            self._delays.pop((message_id, 0), None)
        for consumer in self.consumers.values():
            if message_id in consumer.leases:
                self._release(consumer, message_id)
            if consumer.declined:
                consumer.declined.discard(message_id)

    def expire_leases(self, now: float) -> dict[int, int]:
        """End the leases that are due. Gives the attempts that now count."""
        failed: dict[int, int] = {}
        if now < self.leases_at:
            return failed
        earliest = inf
        held = 0
        for consumer in self.consumers.values():
            for message_id, lease in list(consumer.leases.items()):
                held += 1
                if lease.until > now:
                    earliest = min(earliest, lease.until)
                    continue
                self._release(consumer, message_id)
                if self._is_attempt(message_id, lease):
                    failed[message_id] = self._count(message_id, lease.attempt)
                rest_s = self._timeout_s(lease.attempt) * BACKOFF_SHARE
                self.delay(self._delay_key(consumer, message_id), now + rest_s)
        # Many leases end at many moments: looks at all of them keep a distance.
        self.leases_at = max(earliest, now + held * LOOK_GAP_S_PER_LEASE)
        return failed

    @property
    def delays_at(self) -> float:
        return self._agenda.next_at if self._delays else inf

    def due_delays(self, now: float) -> list[DelayKey]:
        """The delays that are over; the caller ends each with `end_delay`, or starts another."""
        if not self._delays:
            return []
        # A rest that was entered twice for one moment comes twice.
        return [key for key in self._agenda.due(now) if self._delays.pop(key, None) is not None]

    @property
    def has_delays(self) -> bool:
        return bool(self._delays)

    @property
    def delayed(self) -> list[int]:
        """The messages that rest for all."""
        return [message_id for message_id, number in self._delays if not number]

    def delayed_until(self, message_id: int) -> float:
        """When the rest of a message ends; 0: it does not rest."""
        return self._delays.get((message_id, 0), 0.0)

    def end_delay_now(self, message_id: int) -> None:
        """The rest of a message ends now."""
        if self._delays.pop((message_id, 0), None) is not None:
            self.end_delay((message_id, 0))

    def has_unstored_delays(self, kept: dict[int, float]) -> bool:
        """Does anything rest that a restart would not know of? It knows of those in `kept`."""
        return any(kept.get(key[0]) != until for key, until in self._delays.items())

    @property
    def leased(self) -> int:
        return sum(len(consumer.leases) for consumer in self.consumers.values())
