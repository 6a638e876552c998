"""The delivery modes of a channel: pair, fanout and queue (docs/reference/wire-protocol.md, PS-02,
PS-06)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from random import Random
from typing import assert_never

import msgspec
from msgspec.structs import replace

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.consumer import Consumer, Lease, may_have
from millpond.actors.channels.delivery import DelayKey, Delivery
from millpond.actors.channels.queue_limits import QueueLimits
from millpond.actors.channels.ranked_backlog import RankedBacklog
from millpond.actors.channels.settings import DeliverySettings
from millpond.actors.channels.subscribers import Subscribers, Subscription
from millpond.actors.jobs.options import OPTION_MARKS, JobOptions, options_of
from millpond.actors.messages import Attach, Mode, Msg, Port, Reply
from millpond.actors.queue_settings import NO_SETTINGS, Buckets, QueueSettings
from millpond.actors.runtime.timers import DeadlineHeap
from millpond.actors.store.changes import StoredMessage


class ReturnedMessages:
    """Ids of messages that came back, lowest first, each once. `heap` is read from outside."""

    __slots__ = ("_ids", "heap")

    def __init__(self) -> None:
        self.heap: list[int] = []
        self._ids: set[int] = set()

    def push(self, message_id: int) -> None:
        if message_id not in self._ids:
            self._ids.add(message_id)
            heappush(self.heap, message_id)

    def pop(self) -> int:
        message_id = heappop(self.heap)
        self._ids.discard(message_id)
        return message_id

    def remove(self, message_id: int) -> None:
        if message_id in self._ids:
            self._ids.discard(message_id)
            self.heap.remove(message_id)
            heapify(self.heap)


class ConsumerBacklog:
    """The backlog of one consumer: a cursor into the channel, and messages that came back."""

    __slots__ = ("_after", "_cursor", "_delays", "_returned")

    def __init__(self, after: int, delays: dict[DelayKey, float]) -> None:
        self._after = self._cursor = after
        self._delays = delays
        self._returned = ReturnedMessages()

    def give_back(self, message_id: int) -> None:
        if self._after < message_id <= self._cursor:
            self._returned.push(message_id)

    def next(self, consumer: Consumer, buffer: Buffer, now: float) -> StoredMessage | None:
        while self._returned.heap:
            row = buffer.get(self._returned.pop(), now)
            if row is not None and row.id not in consumer.leases and self._suits(consumer, row):
                return row
        while self._cursor < buffer.last_id:
            row = buffer.next_after(self._cursor, now)
            if row is None:
                break
            self._cursor = row.id
            if self._suits(consumer, row):
                return row
        return None

    def _suits(self, consumer: Consumer, row: StoredMessage) -> bool:
        # A delayed message is given back when its delay is over.
        return (
            row.source != consumer.port.number
            and not (consumer.identity_number and consumer.identity_number == row.sender)
            and len(row.data) <= consumer.options.data_max
            and not (self._delays and (row.id, 0) in self._delays)
            and not (consumer.subscription is not None and consumer.subscription.has(row.id))
            and not (consumer.declined and row.id in consumer.declined)
        )


class SharedBacklog:
    """The backlog that competing consumers share. A message that one may not have stays for the
    others.

    Every id up to `_floor` was leased or is gone, or waits in `_returned`; above it, `_taken` are
    the exceptions. A consumer's own cursor is behind messages that it may not have, so that none is
    looked at twice.
    """

    __slots__ = ("_delays", "_floor", "_returned", "_taken")

    def __init__(self, delays: dict[DelayKey, float]) -> None:
        self._floor = 0
        self._delays = delays
        self._returned = ReturnedMessages()
        self._taken: set[int] = set()

    def give_back(self, message_id: int) -> None:
        if message_id > self._floor:
            self._taken.add(message_id)  # it may have been delayed before it was ever reached
        self._returned.push(message_id)

    def take(self, message_id: int) -> None:
        """The message is leased already: its delay is over."""
        self._returned.remove(message_id)
        self._taken.add(message_id)
        self._delays.pop((message_id, 0), None)

    def forget(self, message_id: int) -> None:
        self._taken.discard(message_id)

    def next(self, consumer: Consumer, buffer: Buffer, now: float) -> StoredMessage | None:
        return self._next_returned(consumer, buffer, now) or self._next_fresh(consumer, buffer, now)

    def _next_returned(
        self, consumer: Consumer, buffer: Buffer, now: float
    ) -> StoredMessage | None:
        left = []
        found = None
        while self._returned.heap and found is None:
            row = buffer.get(self._returned.pop(), now)
            if row is None or (row.id, 0) in self._delays:
                continue
            if self._suits(consumer, row):
                found = row
            else:
                left.append(row.id)
        for message_id in left:
            self._returned.push(message_id)
        return found

    def _next_fresh(self, consumer: Consumer, buffer: Buffer, now: float) -> StoredMessage | None:
        start = max(self._floor, consumer.cursor)
        is_contiguous = start == self._floor
        delays = self._delays
        for row in buffer.after(start, now):
            consumer.cursor = row.id
            if delays and (row.id, 0) in delays:
                # It comes back when its delay is over, however long that was.
                self._taken.add(row.id)
            if row.id in self._taken:
                if is_contiguous:
                    self._advance(row.id)
            elif self._suits(consumer, row):
                if is_contiguous:
                    self._advance(row.id)
                else:
                    self._taken.add(row.id)
                return row
            else:
                is_contiguous = False
        return None

    def _advance(self, message_id: int) -> None:
        self._floor = message_id
        self._taken.discard(message_id)

    def _suits(self, consumer: Consumer, row: StoredMessage) -> bool:
        return row.id > consumer.starts_after and may_have(consumer, row)


class PairDelivery(Delivery):
    """Every message to every other connection; the first ack removes it for all."""

    __slots__ = ()

    mode = Mode.PAIR

    def _start_backlog(self, consumer: Consumer) -> None:
        consumer.backlog = ConsumerBacklog(consumer.options.resume_after or 0, self._delays)


class FanoutDelivery(Delivery):
    """Every message to all that were subscribed when it was put; all of them must ack.

    An identity is one subscriber, however many connections it has, and also without any.
    """

    __slots__ = ("_anonymous", "_numbers", "_waiting")

    mode = Mode.FANOUT

    def __init__(
        self,
        buffer: Buffer,
        subscribers: Subscribers,
        settings: DeliverySettings,
        rng: Random,
        attempts: dict[int, int],
    ) -> None:
        super().__init__(buffer, subscribers, settings, rng, attempts)
        self._waiting: dict[int, int] = {}
        """Missing acks by message; of messages from before this run, once an ack comes."""
        self._numbers: dict[int, Consumer] = {}
        self._anonymous: dict[Consumer, None] = {}

    def _start_backlog(self, consumer: Consumer) -> None:
        if consumer.subscription is None:
            consumer.subscription = Subscription(self._buffer.last_id)
            self._anonymous[consumer] = None
        after = consumer.options.resume_after
        consumer.starts_after = consumer.subscription.floor
        consumer.backlog = ConsumerBacklog(
            consumer.starts_after if after is None else after, self._delays
        )
        self._numbers[consumer.port.number] = consumer

    def attachment_of(self, consumer: Consumer) -> Attach:
        attach = super().attachment_of(consumer)
        if consumer.receives and attach.resume_after is None:
            attach = msgspec.structs.replace(attach, resume_after=consumer.starts_after)
        return attach

    def detach(self, consumer: Consumer) -> dict[int, int]:
        self._numbers.pop(consumer.port.number, None)
        self._anonymous.pop(consumer, None)
        for key in [key for key in self._delays if key[1] == consumer.port.number]:
            del self._delays[key]
        return super().detach(consumer)

    def stored(self, rows: Sequence[StoredMessage]) -> None:
        super().stored(rows)
        known = self._subscribers.subscriptions
        for row in rows:
            subscribed = sum(1 for consumer in self._anonymous if may_have(consumer, row))
            if known:
                if subscribed:
                    self._subscribers.claim(row.id)
                subscribed += len(known) - (row.sender in known)
            if subscribed:
                self._waiting[row.id] = subscribed

    def ack(self, consumer: Consumer, message_id: int) -> bool:
        self._release(consumer, message_id)
        row, subscription = self._buffer.rows.get(message_id), consumer.subscription
        if subscription is None or row is None or subscription.has(message_id):
            return False
        subscription.acked.add(message_id)
        if subscription.number:
            return self._ack_identity(subscription, row)
        if message_id <= subscription.since or not may_have(consumer, row):
            return False
        # A connection that left without an ack still counts: the message stays until its deadline.
        self._waiting[message_id] -= 1
        return self._waiting[message_id] == 0

    def _ack_identity(self, subscription: Subscription, row: StoredMessage) -> bool:
        """An identity has the message, also on its other connections."""
        for consumer in self._numbers.values():
            if consumer.subscription is subscription:
                self._release(consumer, row.id)
        is_owed = row.id > subscription.since
        if is_owed:
            self._raise_floor(subscription)
            waiting = self._waiting.get(row.id)
            left = self._missing_acks(row) if waiting is None else waiting - 1
            self._waiting[row.id] = left
            if left == 0:
                return True
        self._subscribers.store_ack(subscription, row.id)
        return False

    def _raise_floor(self, subscription: Subscription) -> None:
        """Acks in the order of ids, as most are, take no more space than a number."""
        floor, acked = subscription.floor, subscription.acked
        while (row := self._buffer.next_after(floor, 0.0)) is not None:
            if row.id not in acked and row.sender != subscription.number:
                break
            floor = row.id
            acked.discard(floor)
        subscription.floor = floor

    def _missing_acks(self, row: StoredMessage) -> int:
        """Missing acks of a message from before a restart, as far as the store knows."""
        subscriptions = self._subscribers.subscriptions.values()
        left = sum(
            1
            for each in subscriptions
            if each.since < row.id and each.number != row.sender and not each.has(row.id)
        )
        return left + (row.id in self._subscribers.claimed)

    def shows(self, consumer: Consumer | None, message_id: int) -> bool:
        subscription = None if consumer is None else consumer.subscription
        if subscription is None or not subscription.has(message_id):
            return True
        return bool(subscription.number) and self._is_own(subscription.number, message_id)

    def _is_own(self, number: int, message_id: int) -> bool:
        row = self._buffer.rows.get(message_id)
        return row is not None and row.sender == number

    def forget(self, message_id: int) -> None:
        super().forget(message_id)
        self._waiting.pop(message_id, None)
        self._subscribers.forget(message_id)
        for consumer in self._numbers.values():
            if consumer.subscription is not None and consumer.subscription.acked:
                consumer.subscription.acked.discard(message_id)
            if self._delays:
                self._delays.pop((message_id, consumer.port.number), None)

    def _delay_key(self, consumer: Consumer, message_id: int) -> DelayKey:
        return (message_id, consumer.port.number)

    def end_delay(self, key: DelayKey) -> None:
        consumer = self._numbers.get(key[1])
        if consumer is not None:
            self._give_back(consumer, key[0])
            self.waiting[consumer] = None


class QueueDelivery(Delivery):
    """Competing consumers: one lease at a time, to the one that holds the fewest.

    The backlog is ranked from the first job with options on (`actors.jobs.options`), and limits are
    counted where the queue has any or a ranked backlog.
    """

    __slots__ = (
        "_backlog",
        "_ended_keys",
        "_is_at_limit",
        "_limits",
        "_limits_at",
        "_options",
        "_start_by",
        "_starts",
        "_turns",
    )

    mode = Mode.QUEUE

    def __init__(
        self,
        buffer: Buffer,
        subscribers: Subscribers,
        settings: DeliverySettings,
        rng: Random,
        attempts: dict[int, int],
    ) -> None:
        super().__init__(buffer, subscribers, settings, rng, attempts)
        self._backlog: SharedBacklog | RankedBacklog = SharedBacklog(self._delays)
        self._turns = 0
        self._options: dict[int, JobOptions] = {}
        """The options of the jobs that have any."""
        self._limits: QueueLimits | None = None
        self._limits_at = inf
        self._is_at_limit = False
        """True: the queue is at its limit, and ready jobs may wait for it."""
        self._ended_keys: set[bytes] = set()
        start_by: dict[int, float] = {}
        self._start_by = start_by
        self._starts: DeadlineHeap[int] = DeadlineHeap(
            lambda when, message_id: start_by.get(message_id) == when
        )
        self._learn(buffer.rows.values())

    # Settings and options.

    def use_settings(self, settings: QueueSettings, buckets: Buckets, now: float) -> None:
        super().use_settings(settings, buckets, now)
        if self._limits is not None:
            self._limits.use(settings, buckets)
        elif settings.has_limits or self._options:
            self._begin_limits(settings, buckets)
        if self._options:
            self._rank()
        if isinstance(self._backlog, RankedBacklog):
            self._backlog.open_all(now)
        self._is_at_limit, self._limits_at = False, inf
        self.waiting.update(self.receivers)

    def _begin_limits(self, settings: QueueSettings, buckets: Buckets) -> QueueLimits:
        """Count running jobs from now on."""
        limits = self._limits = QueueLimits(settings, buckets)
        for consumer in self.consumers.values():
            for message_id in consumer.leases:
                limits.restored(message_id, self._options.get(message_id))
        return limits

    def _learn(self, rows: Iterable[StoredMessage]) -> bool:
        """Read the options of messages. True: one has some."""
        found = False
        for row in rows:
            data = row.data
            if data[4:6] in OPTION_MARKS and (options := options_of(data)) is not None:
                found = True
                self._options[row.id] = options
                self._await_start(row.id)
        return found

    def _rank(self) -> None:
        """Use a ranked backlog from now on."""
        if isinstance(self._backlog, RankedBacklog):
            return
        limits = self._limits or self._begin_limits(NO_SETTINGS, Buckets())
        backlog = self._backlog = RankedBacklog(self._delays, self._options, limits, self.attempts)
        leased = {each for consumer in self.consumers.values() for each in consumer.leases}
        backlog.add(each for each in self._buffer.rows if each not in leased)
        for consumer in self.consumers.values():
            if consumer.backlog is not None:
                consumer.backlog = backlog

    def stored(self, rows: Sequence[StoredMessage]) -> None:
        super().stored(rows)
        has_options = False
        for row in rows:
            if row.data[4:6] in OPTION_MARKS:  # most have none
                has_options = self._learn(rows)
                break
        if isinstance(self._backlog, RankedBacklog):
            self._backlog.add(row.id for row in rows)
        elif has_options:
            self._rank()

    @property
    def limits_at(self) -> float:
        return min(self._limits_at, self._starts.next_at if self._start_by else inf)

    @property
    def limited_count(self) -> int:
        backlog = self._backlog
        if self._is_at_limit:
            return len(self._buffer.rows) - self.leased - self.delay_count
        return backlog.parked if isinstance(backlog, RankedBacklog) else 0

    def check_limits(self, now: float) -> list[int]:
        if now >= self._limits_at:
            self._limits_at = inf
            self._is_at_limit = False
            self.waiting.update(self.receivers)
        return self._late_starts(now) if self._start_by else []

    def _late_starts(self, now: float) -> list[int]:
        late = []
        leased = {
            message_id: lease
            for consumer in self.consumers.values()
            for message_id, lease in consumer.leases.items()
        }
        for message_id in self._starts.due(now):
            self._start_by.pop(message_id, None)
            lease = leased.get(message_id)
            if lease is None or not lease.started:
                if message_id in self._buffer and not self.attempts.get(message_id):
                    late.append(message_id)
        return late

    # Consumers and leases.

    def _start_backlog(self, consumer: Consumer) -> None:
        consumer.starts_after = consumer.options.resume_after or 0
        consumer.backlog = self._backlog

    def detach(self, consumer: Consumer) -> dict[int, int]:
        if self._limits is not None:
            for message_id in consumer.leases:
                self._end(self._limits, message_id)
        if isinstance(self._backlog, RankedBacklog):
            self._backlog.detach(consumer)
        return super().detach(consumer)

    def _lease(self, consumer: Consumer, row: StoredMessage, now: float) -> Msg:
        push = super()._lease(consumer, row, now)
        if self._limits is not None:
            self._limits.started(row.id, self._options.get(row.id), now)
            if isinstance(self._backlog, RankedBacklog):
                self._backlog.started(row.id, now)
        return push

    def _release(self, consumer: Consumer, message_id: int, *, credit: bool = True) -> Lease | None:
        lease = super()._release(consumer, message_id, credit=credit)
        if lease is not None and self._limits is not None:
            self._end(self._limits, message_id)
        return lease

    def _end(self, limits: QueueLimits, message_id: int) -> None:
        """A lease ends: what waited for that may go on."""
        key = limits.ended(message_id)
        if key:
            self._ended_keys.add(key)
        if key or self._is_at_limit:
            self._is_at_limit = False
            self.waiting.update(self.receivers)

    def lease_by_id(self, consumer: Consumer, row: StoredMessage, now: float) -> None:
        self._backlog.take(row.id)
        if consumer.backlog is None:
            self._start_backlog(consumer)  # to which it goes back
        lease = Lease(now + self._timeout_s(1), self.attempts.get(row.id, 0) + 1, len(row.data))
        self.restore_lease(consumer, row.id, replace(lease, started=False, since=now))

    def restore_lease(self, consumer: Consumer, message_id: int, lease: Lease) -> None:
        """Give a lease back that a former behaviour of the channel gave."""
        self._backlog.take(message_id)
        consumer.leases[message_id] = lease
        consumer.leased_bytes += lease.size
        consumer.credit -= 1
        self.leases_at = min(self.leases_at, lease.until)
        if self._limits is not None:
            self._limits.restored(message_id, self._options.get(message_id))

    def _give_back(self, consumer: Consumer, message_id: int) -> None:
        super()._give_back(consumer, message_id)
        if self._options:
            self._await_start(message_id)
        self.waiting.update(self.receivers)

    def _await_start(self, message_id: int) -> None:
        """A job comes back, which may have begun in its time: if no attempt counts, it is late."""
        options = self._options.get(message_id)
        if options is None or not options.start_by_ms or self.attempts.get(message_id):
            return
        if message_id not in self._start_by:
            self._start_by[message_id] = options.start_by_ms / 1000
            self._starts.add(options.start_by_ms / 1000, message_id)

    def end_delay(self, key: DelayKey) -> None:
        if key[0] in self._buffer:
            self._backlog.give_back(key[0])
            if self._options:
                self._await_start(key[0])
            self.waiting.update(self.receivers)

    def forget(self, message_id: int) -> None:
        super().forget(message_id)
        self._backlog.forget(message_id)
        if self._options:
            options = self._options.pop(message_id, None)
            self._start_by.pop(message_id, None)
            if options is not None and options.limit_key:
                # It may be the one that its key let through: another one may go on instead.
                self._ended_keys.add(options.limit_key)
                self.waiting.update(self.receivers)

    def _keeps_attempt(self) -> bool:
        return True

    def is_exhausted(self, message_id: int) -> bool:
        return self.attempts.get(message_id, 0) >= self._settings.attempts_max

    def _is_open(self, consumer: Consumer) -> bool:
        return (
            consumer.credit > 0
            and consumer.leased_bytes < self._settings.window_bytes
            and consumer.port.writable
        )

    def push(self, now: float, replies: list[tuple[Port, Reply]]) -> None:
        """Lease one message at a time, to the consumer with the fewest leases, then to the one that
        waited longest."""
        if self.is_stopped or self.is_paused:
            self.waiting.clear()
        limits = self._limits
        if limits is not None:
            self._open_keys(now)
        free = [
            (len(consumer.leases), consumer.last_served, consumer.port.number, consumer)
            for consumer in self.waiting
            if self._is_open(consumer)
        ]
        self.waiting.clear()
        heapify(free)
        while free:
            if limits is not None and (opens_at := limits.opens_at(now)) > now:
                self._is_at_limit = True
                self._limits_at = min(self._limits_at, opens_at)
                break
            _, _, number, consumer = heappop(free)
            row = self._backlog.next(consumer, self._buffer, now)
            if row is None:
                continue
            self._turns += 1
            consumer.last_served = self._turns
            replies.append((consumer.port, self._lease(consumer, row, now)))
            if self._is_open(consumer):
                heappush(free, (len(consumer.leases), consumer.last_served, number, consumer))
        if isinstance(self._backlog, RankedBacklog):
            self._limits_at = min(self._limits_at, self._backlog.deadline)

    def _open_keys(self, now: float) -> None:
        backlog, ended = self._backlog, self._ended_keys
        if isinstance(backlog, RankedBacklog):
            backlog.open_keys(now)
            for key in ended:
                backlog.open_key(key, now)
        ended.clear()


def delivery_for(
    mode: Mode,
    buffer: Buffer,
    subscribers: Subscribers,
    settings: DeliverySettings,
    rng: Random,
    attempts: dict[int, int],
) -> Delivery:
    match mode:
        case Mode.PAIR:
            return PairDelivery(buffer, subscribers, settings, rng, attempts)
        case Mode.FANOUT:
            return FanoutDelivery(buffer, subscribers, settings, rng, attempts)
        case Mode.QUEUE:
            return QueueDelivery(buffer, subscribers, settings, rng, attempts)
        case _:
            assert_never(mode)
