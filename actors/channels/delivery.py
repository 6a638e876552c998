"""Delivery: pushes of messages to consumers, under credit and leases
(docs/reference/wire-protocol.md).

A message is *ready* until it is *leased* to a consumer; a lease ends with an ack, a nack, its
timeout or its consumer. A message that came back may be *delayed*. `delivery_modes` has the three
modes, which differ in how messages are divided among consumers.
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
from millpond.actors.channels.subscribers import NumberedIdentity, Subscribers, Subscription
from millpond.actors.messages import Attach, Mode, Msg, Nack, NackReason, Port, Reply, Role
from millpond.actors.queue_settings import Buckets, QueueSettings
from millpond.actors.runtime.timers import DeadlineHeap
from millpond.actors.store.changes import StoredMessage

ACK_TIMEOUT_S_MAX = 600.0
BACKOFF_GROWTH = 1.5
JITTER_MIN, JITTER_SPAN = 0.8, 0.4
NACK_DELAY_S_MAX = 3600.0
SCAN_GAP_S_PER_LEASE = 2e-5


DelayKey = tuple[int, int]
"""A message, and the number of the connection for which it is delayed; 0: for all."""


class Delivery(ABC):
    """Leases, credit, timeouts and delays, as all modes have them. It changes no store."""

    __slots__ = (
        "_buffer",
        "_deadlines",
        "_delays",
        "_rng",
        "_settings",
        "_subscribers",
        "attempts",
        "consumers",
        "is_paused",
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
        self._deadlines: DeadlineHeap[DelayKey] = DeadlineHeap(
            lambda when, key: delays.get(key) == when
        )
        self.waiting: dict[Consumer, None] = {}
        """Consumers that may be able to take more."""
        self.receivers: dict[Consumer, None] = {}
        """Consumers that are pushed messages at all."""
        self.attempts = attempts
        """Failed attempts by message; only of messages that have any."""
        self.unstarted: dict[int, int] = {}
        """The number of times in a row that a consumer lost a message before it started it."""
        self.consumers: dict[Port, Consumer] = {}
        self.leases_at = inf
        """No lease ends before this."""
        self.is_stopped = False
        """True while the node drains: nothing is pushed any more."""
        self.is_paused = False
        """True while the queue is paused: nothing is pushed until it is resumed."""

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

    def use_settings(self, settings: QueueSettings, buckets: Buckets, now: float) -> None:
        """The settings of the queue are these from now on. Other modes have none."""
        self.is_paused = settings.is_paused and self.mode is Mode.QUEUE

    @property
    def limits_at(self) -> float:
        """`check_limits` has work to do at this time."""
        return inf

    @property
    def limited_count(self) -> int:
        """The number of ready jobs that wait for a limit, about."""
        return 0

    def check_limits(self, now: float) -> list[int]:
        """Look at limits that may hold jobs back no more. Gives the jobs that were to start by now,
        and did not."""
        return []

    def lease_by_id(self, consumer: Consumer, row: StoredMessage, now: float) -> None:
        """Lease a ready message to a consumer that asks for it by its id. No attempt counts."""
        raise AssertionError("only a queue has jobs")

    # The differences between the modes.

    @abstractmethod
    def _start_backlog(self, consumer: Consumer) -> None:
        """Give a new receiver its backlog."""

    def stored(self, rows: Sequence[StoredMessage]) -> None:
        """New messages are in the buffer."""
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

    def _window_for(self, options: Attach) -> int:
        """The window of a connection: as requested, capped, never widened."""
        most = self._settings.window_max
        if self.mode is Mode.QUEUE:
            most = self._settings.window_queue_max
        if options.ordered:
            most = min(most, 1)
        if options.window is not None:
            return min(options.window, most)
        return min(1 if options.role is Role.WORKER else self._settings.window, most)

    def attach(
        self, port: Port, options: Attach, entry: NumberedIdentity | None = None
    ) -> Consumer:
        """Attach a connection; `entry` is its identity, if that has a number."""
        consumer = self.consumers[port] = Consumer(port, options, self._window_for(options))
        if entry is not None:
            consumer.identity_number, consumer.subscription = entry.number, entry.subscription
        if consumer.receives:
            self._start_backlog(consumer)
            self.receivers[consumer] = None
            self.waiting[consumer] = None
        return consumer

    def identify(self, entry: NumberedIdentity) -> None:
        """An identity got its number, or a subscription, which all its connections share."""
        for consumer in self.consumers.values():
            if consumer.options.identity == entry.identity:
                consumer.identity_number = entry.number
                if consumer.subscription is None:
                    consumer.subscription = entry.subscription

    def forget_identities(self, identities: set[bytes]) -> None:
        """The numbers of these identities are free again: nothing of theirs is stored."""
        for consumer in self.consumers.values():
            if consumer.options.identity in identities:
                consumer.identity_number = 0
                if not consumer.receives:
                    # New messages do not wait for its acks, so these must not count.
                    consumer.subscription = None

    def attachment_of(self, consumer: Consumer) -> Attach:
        """The options with which the consumer is attached again after a crash."""
        return msgspec.structs.replace(consumer.options, mode=self.mode, window=consumer.window)

    def detach(self, consumer: Consumer) -> dict[int, int]:
        """Detach a consumer: its messages are ready at once. Gives the attempts that now count."""
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
        """The consumer can take more: it got credit, or its connection is writable again."""
        if consumer.receives:
            self.waiting[consumer] = None

    def push(self, now: float, replies: list[tuple[Port, Reply]]) -> None:
        """Lease ready messages to consumers with credit, and append the pushes to `replies`."""
        if self.is_stopped:
            self.waiting.clear()
        while self.waiting:
            consumer, _ = self.waiting.popitem()
            if not consumer.port.writable:
                continue
            backlog = consumer.backlog
            assert backlog is not None, "only receivers wait"
            while consumer.credit > 0 and consumer.leased_bytes < self._settings.window_bytes:
                row = backlog.next(consumer, self._buffer, now)
                if row is None:
                    break
                replies.append((consumer.port, self._lease(consumer, row, now)))

    def _lease(self, consumer: Consumer, row: StoredMessage, now: float) -> Msg:
        attempt = self.attempts.get(row.id, 0) + 1 if self.attempts else 1
        until, size = now + self._timeout_s(attempt), len(row.data)
        started = not consumer.options.reports_start
        consumer.leases[row.id] = Lease(until, attempt, size, started, now)
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
        # A consumer that had credit left was offered everything: more credit changes nothing.
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
        """The key of a delay: for all consumers, or for this one alone (fanout)."""
        return (message_id, 0)

    def delay(self, key: DelayKey, until: float) -> None:
        """Delay a message until then, in seconds since 1970."""
        self._delays[key] = until
        self._deadlines.add(until, key)

    def end_delay(self, key: DelayKey) -> None:
        """The delay is over: the message is ready again."""
        for consumer in self.receivers:
            if key[0] not in consumer.leases:
                self._give_back(consumer, key[0])
                self.waiting[consumer] = None

    def nack(self, consumer: Consumer, nack: Nack, now: float) -> int | None:
        """A leased message comes back. Gives its failed attempts; None: no such lease."""
        if nack.id not in consumer.leases:
            return None
        shrinks = nack.reason is NackReason.BUSY and consumer.window > 1
        if shrinks:
            consumer.window -= 1
        lease = self._release(consumer, nack.id, credit=not shrinks)
        assert lease is not None
        count = self._count(nack.id, lease.attempt)
        if nack.reason is NackReason.LATER and nack.delay_ms is not None:
            delay_s = min(nack.delay_ms / 1000, NACK_DELAY_S_MAX)
        else:
            delay_s = self._timeout_s(lease.attempt) * BACKOFF_SHARE
        self.delay(self._delay_key(consumer, nack.id), now + delay_s)
        return count

    def give_back(self, consumer: Consumer, message_id: int) -> None:
        """A leased message comes back as if it had never been pushed, and is ready at once. The
        consumer gets nothing more until `add_credit`."""
        if self._release(consumer, message_id) is not None:
            self.stop(consumer)
            self._give_back(consumer, message_id)

    def stop(self, consumer: Consumer) -> None:
        """The consumer gets nothing more until `add_credit`."""
        consumer.receives = False
        self.receivers.pop(consumer, None)
        self.waiting.pop(consumer, None)

    def decline(self, consumer: Consumer, message_id: int) -> None:
        """The consumer cannot use the message, which is not pushed to it again."""
        if self._release(consumer, message_id) is not None:
            if consumer.declined is None:
                consumer.declined = set()
            consumer.declined.add(message_id)

    def touch(self, consumer: Consumer, message_id: int, until: float) -> bool:
        """Move the end of a lease. False: the consumer does not have it."""
        lease = consumer.leases.get(message_id)
        if lease is None:
            return False
        consumer.leases[message_id] = _ended_at(lease, until)
        self.leases_at = min(self.leases_at, until)
        return True

    def restart_lease(self, consumer: Consumer, message_id: int, now: float) -> None:
        """Begin a lease of the consumer now; it ends no sooner than it would have."""
        lease = consumer.leases[message_id]
        self.touch(consumer, message_id, max(lease.until, now + self._timeout_s(lease.attempt)))

    def postpone_leases(self, seconds: float) -> None:
        """Every lease ends later by so much."""
        for consumer in self.consumers.values():
            for message_id, lease in consumer.leases.items():
                moved = lease.until + seconds
                consumer.leases[message_id] = _ended_at(lease, moved)
        self.leases_at += seconds

    def start_attempt(self, consumer: Consumer, message_id: int) -> None:
        """The consumer works on the message, if it still has the lease."""
        lease = consumer.leases.get(message_id)
        if lease is not None and not lease.started:
            consumer.leases[message_id] = msgspec.structs.replace(lease, started=True)
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
        """End every lease on the message, and return its credit."""
        for consumer in self.consumers.values():
            if consumer.leases:
                self._release(consumer, message_id)

    def forget(self, message_id: int) -> None:
        """The message left the buffer: end every lease on it, and return its credit."""
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
        scanned = 0
        for consumer in self.consumers.values():
            for message_id, lease in list(consumer.leases.items()):
                scanned += 1
                if lease.until > now:
                    earliest = min(earliest, lease.until)
                    continue
                self._release(consumer, message_id)
                if self._is_attempt(message_id, lease):
                    failed[message_id] = self._count(message_id, lease.attempt)
                delay_s = self._timeout_s(lease.attempt) * BACKOFF_SHARE
                self.delay(self._delay_key(consumer, message_id), now + delay_s)
        # Many leases end at many moments: scans of all of them keep a distance.
        self.leases_at = max(earliest, now + scanned * SCAN_GAP_S_PER_LEASE)
        return failed

    @property
    def delays_at(self) -> float:
        return self._deadlines.next_at if self._delays else inf

    def due_delays(self, now: float) -> list[DelayKey]:
        """The delays that are over; the caller ends each with `end_delay`, or starts another."""
        if not self._delays:
            return []
        # A delay that was added twice for one moment comes twice.
        return [key for key in self._deadlines.due(now) if self._delays.pop(key, None) is not None]

    @property
    def has_delays(self) -> bool:
        return bool(self._delays)

    @property
    def delay_count(self) -> int:
        """The number of delays; in a queue each is of another message."""
        return len(self._delays)

    @property
    def delayed(self) -> list[int]:
        """The messages that are delayed for all consumers."""
        return [message_id for message_id, number in self._delays if not number]

    def delayed_until(self, message_id: int) -> float:
        """The end of a message's delay; 0: it is not delayed."""
        return self._delays.get((message_id, 0), 0.0)

    def end_delay_now(self, message_id: int) -> None:
        """End the delay of a message before its time."""
        if self._delays.pop((message_id, 0), None) is not None:
            self.end_delay((message_id, 0))

    def has_unstored_delays(self, stored: dict[int, float]) -> bool:
        """Is there a delay that a restart would not know of? It knows those in `stored`."""
        return any(stored.get(key[0]) != until for key, until in self._delays.items())

    @property
    def leased(self) -> int:
        leased = 0  # a scrape asks each channel: a generator costs as much again
        for consumer in self.consumers.values():
            leased += len(consumer.leases)
        return leased

    @property
    def credit(self) -> int:
        """The further pushes that consumers accept now."""
        credit = 0
        for consumer in self.receivers:
            credit += consumer.credit
        return credit


def _ended_at(lease: Lease, until: float) -> Lease:
    """The lease with another end."""
    return Lease(until, lease.attempt, lease.size, lease.started, lease.since)
