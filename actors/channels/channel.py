"""A channel: keeps messages until their ack or their deadline, and pushes them to its consumers.

The actor of the P2P buffer protocol. It owns its buffer, the expiry of messages and keys, the
leases of what it pushed, and the heartbeat of the connections in it. State table: wire.md 3j.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf

from millpond.actors.channels import dead_letters as burial
from millpond.actors.channels import leases as lending
from millpond.actors.channels import queries as reading
from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.context import ChannelContext, ChannelInfo
from millpond.actors.channels.delivery import Delivery
from millpond.actors.channels.delivery_modes import delivery_for
from millpond.actors.channels.heartbeat import check_heartbeats
from millpond.actors.channels.holding import Holding
from millpond.actors.channels.idempotency import IdempotencyKeys
from millpond.actors.channels.leases import HeldLease
from millpond.actors.channels.publish import Publisher
from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.channels.subscribers import NO_SUBSCRIBERS, KnownIdentity, Subscribers
from millpond.actors.channels.tee import Tee
from millpond.actors.jobs.channel_jobs import ChannelJobs, answer
from millpond.actors.jobs.requests import Parts
from millpond.actors.messages import (
    Ack,
    Attach,
    Attached,
    AttemptStarted,
    Batch,
    CellMessage,
    Credit,
    DeadLetter,
    DeadLettersRequeued,
    DeadLetterStored,
    Detach,
    Drain,
    Get,
    JobRequest,
    List,
    Mode,
    Msg,
    Nack,
    Port,
    Put,
    Reply,
    TeeAppended,
    Touch,
    Writable,
)
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import ModeSet, Snapshot, StoredMessage
from millpond.actors.store.subscribers import SubscriberTable


class Channel(Holding):
    """The behaviour of a channel's cell."""

    __slots__ = ("_heartbeat_at", "_kept_mode", "_members", "deadline")
    unanswered: tuple[()] = ()

    def __init__(
        self,
        name: bytes,
        snapshot: Snapshot,
        attachments: dict[Port, Attach],
        settings: ChannelSettings,
        shared: ChannelContext,
    ) -> None:
        super().__init__(
            name, Buffer(snapshot.rows), IdempotencyKeys(snapshot.keys), settings, shared
        )
        self._heartbeat_at = inf
        self._kept_mode = snapshot.mode
        self._members = (
            NO_SUBSCRIBERS
            if snapshot.subscribers is None
            else self._members_of(snapshot.subscribers)
        )
        self._publisher = Publisher(self._buffer, self._keys, self._members, settings, shared)
        mode = settings.mode if snapshot.mode is None else snapshot.mode
        self._delivery = self._deliver_by(mode, snapshot.attempts)
        self._jobs = ChannelJobs.of(snapshot, self._delivery, name)
        self._tee = Tee.of(name, settings, snapshot.rows, shared)
        for message_id in snapshot.attempts:
            if message_id in self._buffer and self._delivery.is_exhausted(message_id):
                # Its burial was not kept: it is nobody's until the next wake buries it.
                self._delivery.delay((message_id, 0), 0.0)
        for port, join in attachments.items():
            self._join(port, join, port.received_at)
        # What could not be kept of the consumers before a crash is said again at once.
        self.deadline = 0.0 if self._members.changes else self._next_deadline()

    def _members_of(self, roster: SubscriberTable | None) -> Subscribers:
        idle_s, most = self._settings.ttl_max, self._settings.members_max
        return Subscribers(self._name, roster, self._buffer, self._keys, idle_s, most)

    def _deliver_by(self, mode: Mode | None, attempts: dict[int, int]) -> Delivery:
        settings = self._settings.delivery
        mode, rng = mode or Mode.PAIR, self._shared.rng
        return delivery_for(mode, self._buffer, self._members, settings, rng, attempts)

    @property
    def is_empty(self) -> bool:
        is_teed = self._tee is None or not self._tee.owed_messages
        return is_teed and not self._buffer.rows and not self._keys.rows and not self._members

    @property
    def is_settled(self) -> bool:
        if self._tee is not None and not self._tee.is_settled:
            return False
        if self._jobs is None:
            return not self._delivery.has_delays
        return not self._delivery.has_unstored_delays(self._jobs.schedule.due)

    def _next_deadline(self) -> float:
        if self._jobs is not None and self._jobs.requeued:
            return 0.0
        return min(
            self._buffer.expiry_at,
            self._keys.expiry_at,
            self._members.expiry_at,
            self._delivery.leases_at,
            self._delivery.delays_at,
            self._heartbeat_at,
            inf if self._tee is None else self._tee.deadline,
        )

    @property
    def info(self) -> ChannelInfo:
        keys, subscribers = len(self._keys.rows), len(self._members.subscriptions)
        return reading.figures(self._name, self._buffer, self._delivery, keys, subscribers)

    @property
    def lags(self) -> list[int]:
        """How many messages each subscriber still has to acknowledge (fanout)."""
        return reading.lags(self._buffer, self._delivery)

    def export(self, after: int, below: int) -> Iterator[tuple[StoredMessage, int]]:
        """Messages between two ids with their failed deliveries; read on while nothing changes."""
        return reading.exported(self._buffer, self._delivery, after, below)

    def terms_of(self, message_id: int) -> tuple[float, bytes]:
        """When a message is due, 0: now; and what it is unique by, empty: nothing."""
        return (0.0, b"") if self._jobs is None else self._jobs.schedule.terms_of(message_id)

    def handle(self, batch: Batch, now: float) -> Effects:
        """Everything of one read of one connection; pushes follow once, at the end."""
        effects = Effects()
        publisher = self._publisher
        publisher.quota.is_measured = False
        answers, connected = effects.answers, self._members.connected
        port, acked = batch.port, 0
        identity = connected.get(port) if connected and port is not None else None
        for message in batch.messages:
            if port is None:
                self._take(message, now, effects)
                continue
            # The two messages of every day come first, and without another call.
            reply: Reply | None
            if type(message) is Put:
                if identity is None:
                    reply = publisher.put(message, port.number, now, effects, self)
                else:
                    reply = self._put_as(identity, port, message, now, effects)
            elif type(message) is Ack:
                acked += self._ack(port, message.id, effects)
                continue
            elif type(message) is AttemptStarted:
                if (consumer := self._delivery.consumers.get(port)) is not None:
                    self._delivery.start_attempt(consumer, message.id)
                continue
            else:
                reply = self._answer(port, message, now, effects)
                identity = connected.get(port)
            if reply is not None:
                answers.append(reply)
        if acked:
            self._shared.counters.acks += acked
        if publisher.added:
            self._take_in(effects)
        self._push(now, effects)
        if self._members.changes:
            effects.changes += self._members.take_changes()
            self.deadline = min(self.deadline, self._members.expiry_at)
        if self._tee is not None:
            self._pour(self._tee, now, effects)
            self.deadline = min(self.deadline, self._tee.deadline)
        return effects

    def _put_as(
        self, identity: bytes, port: Port, put: Put, now: float, effects: Effects
    ) -> Reply | None:
        reply = self._publisher.put_as(identity, put, port.number, now, effects, self)
        known = self._members.find(identity)
        if known is not None and not self._delivery.consumers[port].identity_number:
            self._delivery.identify(known)
        return reply

    def _take_in(self, effects: Effects) -> None:
        """Messages were added: they may be pushed, and they have deadlines."""
        delivery, added = self._delivery, self._publisher.added
        self._shared.counters.kept += len(added)
        # With the last message and key, the store forgot the mode as well.
        if self._kept_mode is not delivery.mode or len(self._buffer.rows) == len(added):
            self._kept_mode = delivery.mode
            effects.changes.append(ModeSet(delivery.mode))
        if delivery.receivers:
            delivery.stored(added)
        if self._tee is not None:
            self._tee.add(added)
        added.clear()
        # A message that outlives its key's window has a deadline beyond it.
        if self._buffer.expiry_at < self.deadline:
            self.deadline = self._buffer.expiry_at
        if self._keys.expiry_at < self.deadline:
            self.deadline = self._keys.expiry_at

    def _push(self, now: float, effects: Effects) -> None:
        delivery = self._delivery
        if delivery.waiting:
            replies = effects.replies
            before = len(replies)
            delivery.push(now, replies)
            pushed = len(replies) - before
            if pushed:
                self._shared.counters.pushes += pushed
                if delivery.attempts:
                    self._count_redeliveries(replies[before:])
            if delivery.leases_at < self.deadline:
                self.deadline = delivery.leases_at

    def _count_redeliveries(self, pushes: Sequence[tuple[Port, Reply]]) -> None:
        again = sum(isinstance(push, Msg) and push.attempt > 1 for _, push in pushes)
        self._shared.counters.redeliveries += again

    def _answer(
        self, port: Port, message: CellMessage, now: float, effects: Effects
    ) -> Reply | None:
        reply: Reply | None = None
        match message:
            case Get():
                return reading.get(self._buffer, self._delivery, port, message, now)
            case List():
                page = self._settings.list_page
                return reading.ids(self._buffer, self._delivery, port, message, now, page)
            case Touch():
                reply = self._touch(port, message, now)
            case JobRequest():
                reply = self._answer_job(port, message, now, effects)
            case Attach():
                reply = self._join(port, message, now)
                self._remember(port, effects)
            case Nack():
                self._nack(port, message, now, effects)
            case Credit() | Writable():
                self._feed(port, message)
                self._remember(port, effects)
            case Detach():
                self._leave(port, now, effects)
            case Put() | Ack() | AttemptStarted():
                raise AssertionError("handled where they arrive")
            case _:
                raise AssertionError("connections do not send what cells send one another")
        self.deadline = self._next_deadline()
        return reply

    def _answer_job(
        self, port: Port, request: JobRequest, now: float, effects: Effects
    ) -> Reply | None:
        jobs = self._jobs = self._jobs or ChannelJobs()
        parts = Parts(
            self._name,
            self._settings,
            self._buffer,
            self._keys,
            self._delivery,
            self._publisher,
            jobs.schedule,
            self._dead_letters,
            self._shared.counters,
        )
        return answer(request, parts, self, port, now, effects)

    def _take(self, message: CellMessage, now: float, effects: Effects) -> None:
        """What cells and the node itself send."""
        match message:
            case DeadLetter():
                burial.keep(message, self._publisher, self._keys, self._settings, now, effects)
            case DeadLetterStored():
                self.remove(message.id, effects)
            case DeadLettersRequeued(ids=ids):
                for message_id in ids:
                    self.remove(message_id, effects)
            case TeeAppended():
                if self._tee is not None:
                    self._tee.hear(message, self._buffer, now, effects)
            case Drain():
                self._delivery.stopped = True
            case _:
                raise AssertionError(f"{type(message).__name__} needs a port")

    def wake(self, now: float) -> Effects:
        """Expiry, lost leases, ended delays and silent connections."""
        effects = Effects()
        if self._jobs is not None:
            self._jobs.announce_requeued(self._name, effects)
        self.sweep(now, effects)
        effects.changes += self._keys.sweep(now)
        if now >= self._members.expiry_at:
            self._delivery.forget_identities(self._members.sweep(now))
        if now >= self._delivery.leases_at:
            self._expire_leases(now, effects)
        for rest in self._delivery.due_delays(now):
            if rest[0] in self._dead_letters:
                burial.post_again(self._dead_letters[rest[0]], self._dead_letters, effects)
                self._delivery.delay(rest, burial.retry_at(now, len(self._dead_letters)))
            elif self._delivery.is_exhausted(rest[0]):
                self.bury(rest[0], "no ack", now, effects)
            else:
                self._delivery.end_delay(rest)
                if self._jobs is not None:
                    self._jobs.schedule.due.pop(rest[0], None)
        if now >= self._heartbeat_at:
            ports = (
                (consumer.port, consumer.heartbeat)
                for consumer in self._delivery.consumers.values()
            )
            verdicts, self._heartbeat_at = check_heartbeats(ports, now)
            effects.replies.extend(verdicts)
        self._push(now, effects)
        effects.changes += self._members.take_changes()
        if self._tee is not None:
            self._pour(self._tee, now, effects)
        self.deadline = self._next_deadline()
        return effects

    # What is lent, while the disk does not do what it should.

    def postpone(self, pushes: Iterable[tuple[Port, Msg]], now: float) -> None:
        lending.postpone(self._delivery, pushes, now)

    def recall(self, pushes: Iterable[tuple[Port, Msg]]) -> None:
        lending.recall(self._delivery, pushes)

    def is_owed(self, port: Port, push: Msg) -> bool:
        return lending.lease_of(self._delivery, port, push) is not None

    def restart(self, pushes: Iterable[tuple[Port, Msg]], now: float) -> None:
        lending.restart(self._delivery, pushes, now)

    def loans(self, unsent: Iterable[tuple[Port, Msg]]) -> list[HeldLease]:
        return lending.loans_of(self._delivery, unsent)

    def lend_again(self, loans: Iterable[HeldLease]) -> None:
        for message_id in lending.lend_again(self._delivery, loans, self._buffer):
            if self._jobs is not None:
                self._jobs.schedule.due.pop(message_id, None)
        self.deadline = min(self.deadline, self._delivery.leases_at)

    # Guests.

    def _join(self, port: Port, join: Attach, now: float) -> Attached:
        consumer = self._delivery.consumers.get(port)
        if consumer is None:
            if not self._delivery.consumers and not self._buffer.rows:
                self._choose_mode(join)
            known = None if join.identity is None else self._recognize(port, join, now)
            consumer = self._delivery.attach(port, join, known)
            self._heartbeat_at = min(
                self._heartbeat_at, consumer.heartbeat.due_at(port.received_at)
            )
        return Attached(self._delivery.mode, consumer.window)

    def _recognize(self, port: Port, join: Attach, now: float) -> KnownIdentity | None:
        if self._members is NO_SUBSCRIBERS:
            self._members = self._publisher.members = self._delivery.members = self._members_of(
                None
            )
        is_fanout = self._delivery.mode is Mode.FANOUT
        known = self._members.enter(port, join, now, subscribes=is_fanout)
        if known is not None:
            self._delivery.identify(known)
        return known

    def _choose_mode(self, join: Attach) -> None:
        """Nothing holds the channel to its mode, but perhaps subscribers that are away (PS-05)."""
        mode = self._members.mode_for(self._settings.mode, join.mode)
        is_stopped = self._delivery.stopped
        self._delivery = self._deliver_by(mode, {})
        self._delivery.stopped = is_stopped

    def _remember(self, port: Port, effects: Effects) -> None:
        consumer = self._delivery.consumers.get(port)
        if consumer is not None:
            effects.attachments += ((port, self._delivery.attachment_of(consumer)),)

    def _leave(self, port: Port, now: float, effects: Effects) -> None:
        consumer = self._delivery.consumers.get(port)
        if consumer is not None:
            self._shared.counters.lost += len(consumer.leases)
            self._count_failed(self._delivery.detach(consumer), "connection lost", now, effects)
            self._members.leave(port, consumer.subscription if consumer.receives else None, now)
        if not self._delivery.consumers:
            self._heartbeat_at = inf

    def _feed(self, port: Port, message: Credit | Writable) -> None:
        consumer = self._delivery.consumers.get(port)
        if consumer is not None and isinstance(message, Credit):
            self._delivery.add_credit(consumer, message.count)
        elif consumer is not None:
            self._delivery.resume(consumer)
