"""A channel: stores messages until their ack or deadline, and pushes them to its consumers.

The actor of the P2P buffer protocol. Its parts are the buffer, the idempotency keys, the publisher
(new messages), the delivery (credit, leases, delays), the subscribers, the tee and the jobs; the
channel decides when a message leaves. State table: docs/reference/wire-protocol.md.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, count, takewhile
from math import inf

import msgspec

from millpond.actors.channels import leases, queries
from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.consumer import Consumer
from millpond.actors.channels.context import ChannelContext, ChannelInfo
from millpond.actors.channels.dead_letters import (
    DEAD_SUFFIX,
    EXPIRED,
    NOT_STARTED,
    PendingDeadLetters,
    is_dead_letter_channel,
)
from millpond.actors.channels.delivery import Delivery
from millpond.actors.channels.delivery_modes import delivery_for
from millpond.actors.channels.heartbeat import check_heartbeats
from millpond.actors.channels.idempotency import IdempotencyKeys
from millpond.actors.channels.publish import Publisher
from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.channels.subscribers import NO_SUBSCRIBERS, NumberedIdentity, Subscribers
from millpond.actors.channels.tee import Tee
from millpond.actors.errors import Code
from millpond.actors.jobs.attributes import JobAttributes
from millpond.actors.jobs.flow_keys import flow_key, flow_step_of
from millpond.actors.jobs.messages import EndStep, ForgetRecords
from millpond.actors.jobs.requests import JobTotals, answer_job_request, job_totals
from millpond.actors.messages import (
    Ack,
    Attach,
    Attached,
    AttemptStarted,
    Batch,
    CancelFlowJob,
    CatalogChannel,
    CellMessage,
    ChannelChanged,
    CheckFlowJobs,
    CheckSchedules,
    ClearChannel,
    CreateChannel,
    Credit,
    DeadLetter,
    DeadLettersRequeued,
    DeadLetterStored,
    Detach,
    Drain,
    Failed,
    FindMove,
    FlowJob,
    FlowJobFailed,
    FlowJobKnown,
    FlowJobsGone,
    FlowJobStored,
    ForgetSchedules,
    Get,
    JobRequest,
    List,
    Mode,
    Move,
    MovesDone,
    Msg,
    Nack,
    NackReason,
    OpenMoves,
    Port,
    Put,
    PutAck,
    QueueSettingsChanged,
    Reply,
    ScheduledJob,
    ScheduledJobStored,
    TeeAppended,
    Touch,
    TouchAck,
    Writable,
)
from millpond.actors.queue_settings import Buckets
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import (
    SENDER_SHIFT,
    AttemptsSet,
    DeadlineSet,
    MessageRemoved,
    ModeSet,
    Origin,
    Snapshot,
    StoredMessage,
    is_unawaited,
)
from millpond.actors.store.subscribers import SubscriberTable
from millpond.actors.streams.names import CHANNELS, FLOWS, SCHEDULES, results_cell

log = logging.getLogger(__name__)

TOUCH_MS_MAX = 3_600_000
DEADLINE_SLACK_S = 60.0
"""Deadlines may be further ahead by this, as small steps of the clock are followed."""
CORRECTIONS_MAX = 2_000
"""So many deadlines are corrected in the store with one wake."""
KEYS = 1 << SENDER_SHIFT
"""Keys of clients are below this."""
MOVES_TOLD_MAX = 1_000
"""Of so many dead letters their channel is told with one wake."""
CLEARED_MAX, CLEARED_BYTES_MAX = 1_000, 4 * 2**20
"""One request to clear removes so many messages at most, of so many bytes or one message."""
KEYS_FORGOTTEN_MAX = 10_000
"""The last ones of a deletion forget so many keys at most."""


class Channel:
    """The behaviour of a channel's cell.

    `attachments` are connections that were attached before a crash, with their options.
    """

    __slots__ = (
        "_corrected",
        "_heartbeat_at",
        "_schedules",
        "_stored_dead_letters",
        "_stored_mode",
        "acked",
        "buffer",
        "context",
        "dead_letters",
        "deadline",
        "delivery",
        "jobs",
        "kept",
        "keys",
        "name",
        "publisher",
        "settings",
        "subscribers",
        "tee",
    )
    unanswered: tuple[()] = ()

    def __init__(
        self,
        name: bytes,
        snapshot: Snapshot,
        attachments: dict[Port, Attach],
        settings: ChannelSettings,
        context: ChannelContext,
    ) -> None:
        self.name = name
        self.settings = settings
        self.context = context
        self.kept = self.acked = 0
        """Messages that were stored, and that were acknowledged, since this behaviour was made."""
        self.buffer = Buffer(snapshot.rows)
        self.keys = IdempotencyKeys(snapshot.keys)
        self._corrected: list[int] = []
        """Messages with a deadline that the store does not know yet."""
        self._limit_deadlines(
            context.now(), {} if snapshot.attributes is None else snapshot.attributes.due
        )
        self.dead_letters = PendingDeadLetters(name)
        self._stored_dead_letters = self.keys.moved if is_dead_letter_channel(name) else []
        """Dead letters that may still be in their channel as well: it did not say that they are
        not."""
        self._schedules = self.keys.schedules
        """Schedules that may be no more: a crash can lose their `MovesDone`."""
        table = snapshot.subscribers
        self.subscribers = NO_SUBSCRIBERS if table is None else self._new_subscribers(table)
        self._stored_mode = snapshot.mode
        mode = self._fixed_mode if snapshot.mode is None else snapshot.mode
        if not snapshot.rows and name in context.created:
            mode = context.created[name]  # what is left of an earlier mode binds nobody
        self.delivery = self._new_delivery(mode, snapshot.attempts)
        mode = self.delivery.mode
        if not is_dead_letter_channel(name):
            self.context = context.of_mode(name, mode)
        self.publisher = Publisher(self.buffer, self.keys, settings, context, mode)
        self.jobs = JobAttributes.of(snapshot, self.delivery, name)
        self.tee = Tee.of(name, settings, snapshot.rows, context)
        self._heartbeat_at = inf
        for message_id in snapshot.attempts:
            if message_id in self.buffer and self.delivery.is_exhausted(message_id):
                # It did not become a dead letter before the restart: the next wake sees to it.
                self.delivery.delay((message_id, 0), 0.0)
        for port, attach in attachments.items():
            self._attach(port, attach, port.received_at)
        # Changes of subscribers that were lost in a crash are stored again at once.
        self.deadline = 0.0 if self.subscribers.changes else self._next_deadline()
        if not self._corrected:
            self._deadlines_are_stored()

    def _new_subscribers(self, table: SubscriberTable | None) -> Subscribers:
        settings = self.settings
        return Subscribers(
            self.name, table, self.buffer, self.keys, settings.ttl_max, settings.subscribers_max
        )

    def _new_delivery(self, mode: Mode | None, attempts: dict[int, int]) -> Delivery:
        settings, rng = self.settings.delivery, self.context.rng
        delivery = delivery_for(
            mode or Mode.PAIR, self.buffer, self.subscribers, settings, rng, attempts
        )
        self._use_queue_settings(delivery, self.context.now())
        return delivery

    def _use_queue_settings(self, delivery: Delivery, now: float) -> None:
        table = self.context.queue_table
        is_set = self.name in table
        buckets = table.buckets(self.name, now) if is_set else Buckets()
        delivery.use_settings(table.of(self.name), buckets, now)

    @property
    def is_empty(self) -> bool:
        is_teed = self.tee is None or not self.tee.withheld_messages
        return is_teed and not self.buffer.rows and not self.keys.rows and not self.subscribers

    @property
    def can_passivate(self) -> bool:
        if self.tee is not None and not self.tee.can_passivate:
            return False
        if self._corrected or self._stored_dead_letters or self._schedules:
            return False
        if self.jobs is None:
            return not self.delivery.has_delays
        return not self.delivery.has_unstored_delays(self.jobs.due)

    @property
    def _fixed_mode(self) -> Mode | None:
        """The mode that the channel was created in, or is configured to have; None: neither."""
        return self.context.created.get(self.name, self.settings.mode)

    def _next_deadline(self) -> float:
        if self._corrected or self._stored_dead_letters or self._schedules:
            return 0.0
        if self.jobs is not None and self.jobs.requeued:
            return 0.0
        return min(
            self.buffer.expiry_at,
            self.keys.expiry_at,
            self.subscribers.expiry_at,
            self.delivery.leases_at,
            self.delivery.delays_at,
            self.delivery.limits_at,
            self._heartbeat_at,
            inf if self.tee is None else self.tee.deadline,
        )

    def _job_attributes(self) -> JobAttributes:
        if self.jobs is None:
            self.jobs = JobAttributes()
        return self.jobs

    # Batches.

    def handle(self, batch: Batch, now: float) -> Effects:
        """Handle the messages of one read of one connection; pushes follow once, at the end."""
        effects = Effects()
        publisher, port, messages = self.publisher, batch.port, batch.messages
        publisher.quota.is_measured = False
        if port is None:
            for message in messages:
                self._take_notice(message, now, effects)
        else:
            at = 0
            if messages and type(messages[0]) is Put and not self.subscribers.connected:
                at = publisher.put_run(messages, 0, port.number, now, effects, self)
            if at < len(messages):
                self._handle_requests(port, messages, at, now, effects)
        if publisher.added:
            self._offer(effects)
        if self.delivery.waiting:
            self._push(now, effects)
        if self.subscribers.changes:
            effects.changes += self.subscribers.take_changes()
            self.deadline = min(self.deadline, self.subscribers.expiry_at)
        if self.tee is not None:
            self._append_to_tee(self.tee, now, effects)
            self.deadline = min(self.deadline, self.tee.deadline)
        return effects

    def _handle_requests(
        self, port: Port, messages: list[CellMessage], at: int, now: float, effects: Effects
    ) -> None:
        """Handle the messages of a connection from `at` on."""
        publisher, delivery, replies = self.publisher, self.delivery, effects.batch_replies
        connected = self.subscribers.connected
        identity = connected.get(port) if connected else None
        acked = 0
        while at < len(messages):
            message = messages[at]
            reply: Reply | None = None
            # The most frequent messages come first, and with the fewest calls.
            if type(message) is Ack:
                acked += self._ack(port, message.id, now, effects)
            elif type(message) is Put:
                if identity is None:
                    at = publisher.put_run(messages, at, port.number, now, effects, self)
                    continue
                reply = self._put_identified(identity, port, message, now, effects)
            elif type(message) is AttemptStarted:
                if (consumer := delivery.consumers.get(port)) is not None:
                    delivery.start_attempt(consumer, message.id)
            else:
                reply = self._answer(port, message, now, effects)
                # The connection may have attached, and the channel may have another mode.
                delivery, connected = self.delivery, self.subscribers.connected
                identity = connected.get(port)
            if reply is not None:
                replies.append(reply)
            at += 1
        if acked:
            self.context.counters.acks += acked
            self.acked += acked

    def _put_identified(
        self, identity: bytes, port: Port, put: Put, now: float, effects: Effects
    ) -> Reply | None:
        """The same for an identity: its keys are its own, on all its connections (PA-08)."""
        publisher, subscribers = self.publisher, self.subscribers
        entry = subscribers.find(identity)
        number = subscribers.next_number() if entry is None else entry.number
        if not number:
            return Failed(put, Code.BUFFER_FULL)
        before = len(publisher.added)
        own = Put(number << SENDER_SHIFT | put.key, put.ttl, put.data)
        reply = publisher.put(own, port.number, now, effects, self)
        if len(publisher.added) > before:
            row = publisher.added[-1]
            # While a message is here that does not expire, `sweep` renews its identity.
            ttl_max = self.settings.ttl_max
            expires_at = row.expires_at if row.ttl <= ttl_max else now + ttl_max
            entry = subscribers.use(identity, max(expires_at, row.until), now)
        if entry is not None and not self.delivery.consumers[port].identity_number:
            self.delivery.identify(entry)
        match reply:
            case PutAck(ttl=ttl, id=message_id):
                return PutAck(put.key, ttl, message_id)
            case Failed(code=code, delay_ms=delay_ms):
                return Failed(put, code, delay_ms)
            case _:
                return reply

    def _offer(self, effects: Effects) -> None:
        """Messages were added: they may be pushed, and they have deadlines."""
        delivery, added = self.delivery, self.publisher.added
        count = len(added)
        self.context.counters.kept += count
        self.kept += count
        # With the last message and key, the store forgot the mode as well.
        if self._stored_mode is not delivery.mode or len(self.buffer.rows) == len(added):
            self._stored_mode = delivery.mode
            effects.changes.append(ModeSet(delivery.mode))
        if delivery.receivers or delivery.mode is Mode.QUEUE:
            delivery.stored(added)
            self.deadline = min(self.deadline, delivery.limits_at)
        if self.tee is not None:
            self.tee.add(added)
        added.clear()
        # A message that outlives its key's window has a deadline beyond it.
        if self.buffer.expiry_at < self.deadline:
            self.deadline = self.buffer.expiry_at
        if self.keys.expiry_at < self.deadline:
            self.deadline = self.keys.expiry_at

    def _push(self, now: float, effects: Effects) -> None:
        delivery, replies = self.delivery, effects.port_replies
        before = len(replies)
        delivery.push(now, replies)
        pushed = len(replies) - before
        if pushed:
            counters = self.context.counters
            counters.pushes += pushed
            if delivery.attempts:
                counters.redeliveries += sum(
                    isinstance(push, Msg) and push.attempt > 1 for _, push in replies[before:]
                )
        self.deadline = min(self.deadline, delivery.leases_at, delivery.limits_at)

    def _answer(
        self, port: Port, message: CellMessage, now: float, effects: Effects
    ) -> Reply | None:
        reply: Reply | None = None
        match message:
            case Get():
                return queries.get(self.buffer, self.delivery, port, message, now)
            case List():
                page = self.settings.list_page
                return queries.list_ids(self.buffer, self.delivery, port, message, now, page)
            case Move():
                reply = self.publisher.move(message, port.number, now, effects, self)
            case FindMove():
                return self.publisher.find_move(message, now)
            case Touch():
                reply = self._touch(port, message, now)
            case JobRequest():
                attributes = self._job_attributes()
                reply = answer_job_request(message, self, attributes, port, now, effects)
            case Attach():
                reply = self._attach(port, message, now)
                self._keep_attachment(port, effects)
            case Nack():
                self._nack(port, message, now, effects)
            case Credit() | Writable():
                if (consumer := self.delivery.consumers.get(port)) is not None:
                    if isinstance(message, Credit):
                        self.delivery.add_credit(consumer, message.count)
                    else:
                        self.delivery.resume(consumer)
                    self._keep_attachment(port, effects)
            case Detach():
                self._detach(port, now, effects)
            case CreateChannel():
                reply = self._create(port, message, effects)
            case ClearChannel():
                reply = self._clear(port, message, now, effects)
            case Put() | Ack() | AttemptStarted():
                raise AssertionError("handled where they arrive")
            case _:
                raise AssertionError("a message between cells has no port")
        self.deadline = self._next_deadline()
        return reply

    def _take_notice(self, message: CellMessage, now: float, effects: Effects) -> None:
        """Handle a message of another cell, or of the node itself."""
        match message:
            case DeadLetter():
                self._store_dead_letter(message, now, effects)
            case DeadLetterStored(id=message_id):
                place = self._flow_step(message_id)
                if place is None:
                    self._dead_letter_is_known(message_id, effects)
                else:
                    pending = self.dead_letters.get(message_id)
                    reason = "dead" if pending is None else pending.reason
                    failed = FlowJobFailed(self.name, *place, message_id, reason)
                    effects.posts += ((FLOWS, failed),)
            case FlowJobKnown(id=message_id):
                self._dead_letter_is_known(message_id, effects)
            case FlowJob():
                self._store_flow_job(message, now, effects)
            case CancelFlowJob():
                self._cancel_flow_job(message, now, effects)
            case CheckFlowJobs(sender=sender, places=places):
                jobs = self._job_attributes()
                gone = tuple(each for each in places if jobs.find(flow_key(*each)) is None)
                if gone:
                    effects.posts += ((sender, FlowJobsGone(gone)),)
            case DeadLettersRequeued(ids=ids):
                for message_id in ids:
                    self.remove(message_id, effects)
            case MovesDone(origins=origins):
                effects.changes += self.keys.forget_moves(origins)
            case OpenMoves(origins=origins):
                done = set(self.keys.moved).difference(origins)
                effects.changes += self.keys.forget_moves(done)
            case ScheduledJob():
                self._store_scheduled(message, now, effects)
            case TeeAppended():
                if self.tee is not None:
                    self.tee.appended(message, self.buffer, now, effects)
            case QueueSettingsChanged():
                self._use_queue_settings(self.delivery, now)
                self.deadline = self._next_deadline()
            case Drain():
                self.delivery.stop_pushing()
            case _:
                raise AssertionError(f"{type(message).__name__} needs a port")

    def wake(self, now: float) -> Effects:
        """Expiry, lost leases, ended delays and silent connections."""
        effects = Effects()
        if self._corrected:
            self._store_deadlines(effects)
        if self._stored_dead_letters:
            self._tell_of_dead_letters(effects)
        if self._schedules:
            effects.posts += ((SCHEDULES, CheckSchedules(self.name, self._schedules)),)
            self._schedules = ()
        if self.jobs is not None:
            self.jobs.announce_requeued(self.name, effects)
        self.sweep(now, effects)
        effects.changes += self.keys.sweep(now)
        if now >= self.subscribers.expiry_at:
            self.delivery.forget_identities(self.subscribers.sweep(now))
        if now >= self.delivery.leases_at:
            self._expire_leases(now, effects)
        for key in self.delivery.due_delays(now):
            message_id = key[0]
            if message_id in self.dead_letters:
                retry_at = self.dead_letters.send_again(message_id, now, effects)
                self.delivery.delay(key, retry_at)
            elif self.delivery.is_exhausted(message_id):
                self.give_up(message_id, "no ack", now, effects)
            else:
                self.delivery.end_delay(key)
                if self.jobs is not None:
                    self.jobs.passed(message_id)
        if now >= self.delivery.limits_at:
            for message_id in self.delivery.check_limits(now):
                self.give_up(message_id, NOT_STARTED, now, effects)
                self.delivery.end_leases(message_id)
        if now >= self._heartbeat_at:
            consumers = self.delivery.consumers.values()
            heartbeats = ((each.port, each.heartbeat) for each in consumers)
            effects.urgent, self._heartbeat_at = check_heartbeats(heartbeats, now)
        if self.delivery.waiting:
            self._push(now, effects)
        effects.changes += self.subscribers.take_changes()
        if self.tee is not None:
            self._append_to_tee(self.tee, now, effects)
        self.deadline = self._next_deadline()
        return effects

    # Connections.

    def _attach(self, port: Port, attach: Attach, now: float) -> Attached:
        consumer = self.delivery.consumers.get(port)
        if consumer is None:
            if not self.delivery.consumers and not self.buffer.rows:
                self._choose_mode(attach)
            entry = None if attach.identity is None else self._identify(port, attach, now)
            consumer = self.delivery.attach(port, attach, entry)
            due_at = consumer.heartbeat.due_at(port.received_at)
            self._heartbeat_at = min(self._heartbeat_at, due_at)
        return Attached(self.delivery.mode, consumer.window)

    def _identify(self, port: Port, attach: Attach, now: float) -> NumberedIdentity | None:
        if self.subscribers is NO_SUBSCRIBERS:
            self.subscribers = self._new_subscribers(None)
            self.delivery.use_subscribers(self.subscribers)
        is_fanout = self.delivery.mode is Mode.FANOUT
        entry = self.subscribers.connect(port, attach, now, subscribes=is_fanout)
        if entry is not None:
            self.delivery.identify(entry)
        return entry

    def _choose_mode(self, attach: Attach) -> None:
        """Nothing holds the channel to its mode, but perhaps subscribers that are away (PS-05)."""
        self._use_mode(self.subscribers.mode_for(self._fixed_mode, attach.mode))

    def _use_mode(self, mode: Mode | None) -> None:
        is_stopped = self.delivery.is_stopped
        self.delivery = self._new_delivery(mode, {})
        self.publisher.use_mode(self.delivery.mode)
        if not is_dead_letter_channel(self.name):
            self.context = self.context.of_mode(self.name, self.delivery.mode)
        if is_stopped:
            self.delivery.stop_pushing()

    def _keep_attachment(self, port: Port, effects: Effects) -> None:
        consumer = self.delivery.consumers.get(port)
        if consumer is not None:
            effects.attachments += ((port, self.delivery.attachment_of(consumer)),)

    def _detach(self, port: Port, now: float, effects: Effects) -> None:
        consumer = self.delivery.consumers.get(port)
        if consumer is not None:
            self.context.counters.lost += len(consumer.leases)
            failed = self.delivery.detach(consumer)
            self._count_failed(failed, "connection lost", now, effects)
            subscription = consumer.subscription if consumer.receives else None
            self.subscribers.disconnect(port, subscription, now)
        if not self.delivery.consumers:
            self._heartbeat_at = inf

    # Creation, purge and deletion.

    def _create(self, port: Port, request: CreateChannel, effects: Effects) -> Reply | None:
        """Have the catalog keep the mode, unless the channel has another one now (PS-05)."""
        mode, delivery = request.mode, self.delivery
        is_bound = bool(delivery.consumers or self.buffer.rows or self.subscribers.subscriptions)
        if self.name in self.context.created or self.settings.mode not in (None, mode):
            return Failed(request, Code.CHANNEL_EXISTS)
        if delivery.mode is not mode:
            if is_bound:
                return Failed(request, Code.CHANNEL_EXISTS)
            self._use_mode(mode)
        self._tell_catalog(port, CatalogChannel(self.name, mode, ChannelChanged()), effects)
        return None

    def _clear(
        self, port: Port, request: ClearChannel, now: float, effects: Effects
    ) -> Reply | None:
        """Remove a slice. The last one is answered by the catalog, once everything is stored."""
        until = request.until or self.buffer.last_id
        rows, more = self._next_to_clear(until)
        size = sum(len(row.data) for row in rows)
        count = len(rows)
        for row in rows:
            self.remove(row.id, effects)
        if request.is_deletion and not more:
            more = self._forget_keys(effects)
        if more:
            return ChannelChanged(count, size, True, until)
        if request.is_deletion:
            self.delivery.forget_identities(self.subscribers.forget_away())
        reply = ChannelChanged(count, size, False, until)
        entry = CatalogChannel(self.name, None, reply, keeps_mode=not request.is_deletion)
        if request.is_deletion:
            # Its schedules go as well: they would make the channel again.
            effects.posts += ((results_cell(self.name), ForgetRecords(0)),)
            effects.forwards += ((SCHEDULES, Batch(port, [ForgetSchedules(entry)])),)
        else:
            self._tell_catalog(port, entry, effects)
        return None

    def _next_to_clear(self, until: int) -> tuple[list[StoredMessage], bool]:
        """A slice of the messages up to an id, and whether there are more. Those that a consumer
        holds come last: its credit would be spent on others that are to go."""
        held = {each for consumer in self.delivery.consumers.values() for each in consumer.leases}
        present = takewhile(lambda row: row.id <= until, self.buffer.after(0, 0.0))
        free = (row for row in present if row.id not in held)
        leased = (self.buffer.rows[each] for each in sorted(held) if each <= until)
        found: list[StoredMessage] = []
        size = 0
        for row in chain(free, leased):
            size += len(row.data)
            if len(found) == CLEARED_MAX or (found and size > CLEARED_BYTES_MAX):
                return found, True
            found.append(row)
        return found, False

    def _forget_keys(self, effects: Effects) -> bool:
        """Forget a slice of the keys of messages that are gone. True: there are more."""
        effects.changes += self.keys.forget_retained(KEYS_FORGOTTEN_MAX)
        return self.keys.has_retained

    def _tell_catalog(self, port: Port, entry: CatalogChannel, effects: Effects) -> None:
        effects.forwards += ((CHANNELS, Batch(port, [entry])),)

    # Acks, nacks and leases.

    def _ack(self, port: Port, message_id: int, now: float, effects: Effects) -> bool:
        """True: the ack is of a message that is here, and not the sender's own."""
        row = self.buffer.rows.get(message_id)
        if row is None or (self.dead_letters and self.dead_letters.is_expired(message_id)):
            self.context.counters.late_acks += 1
            return False
        consumer = self.delivery.consumers.get(port)
        # An identity does not delete what it put itself (PS-10).
        if consumer is None or (
            consumer.identity_number and consumer.identity_number == row.sender
        ):
            return False
        place = None
        if self.jobs is not None and not is_dead_letter_channel(self.name):
            place = self._flow_step(message_id)
        if self.context.durations is not None:
            self.time_attempt(consumer, message_id, now)
        if self.delivery.ack(consumer, message_id):
            self.remove(message_id, effects)
            if place is not None:  # of a worker that does not know of flows: it has no result
                effects.posts += ((FLOWS, EndStep(0, self.name, *place, message_id, b"", 0)),)
        return True

    def time_attempt(self, consumer: Consumer, message_id: int, now: float) -> None:
        """A consumer has ended its attempt at a job: count how long it had the job."""
        lease, durations = consumer.leases.get(message_id), self.context.durations
        if lease is not None and durations is not None:
            durations.add(now - lease.since)

    def _nack(self, port: Port, nack: Nack, now: float, effects: Effects) -> None:
        delivery, counters = self.delivery, self.context.counters
        consumer = delivery.consumers.get(port)
        if consumer is None:
            return
        is_queue = delivery.mode is Mode.QUEUE
        if nack.reason is NackReason.CANNOT_DECRYPT and not is_queue:
            # Kept for others and for GET, but never again pushed to a consumer that cannot read it.
            counters.nacks += nack.id in consumer.leases
            delivery.decline(consumer, nack.id)
            return
        if nack.reason is not NackReason.BUSY:
            self.time_attempt(consumer, nack.id, now)
        count = delivery.nack(consumer, nack, now)
        if count is None:
            return
        counters.nacks += 1
        if nack.reason not in (NackReason.REJECT, NackReason.CANNOT_DECRYPT):
            self._count_failed({nack.id: count}, nack.reason.value, now, effects)
            if nack.delay_ms and is_queue and nack.id not in self.dead_letters:
                until = delivery.delayed_until(nack.id)
                if until:
                    self._job_attributes().delay(nack.id, until, effects.changes)
        elif is_queue:
            # The way to the dead letters may take longer than this run of the node.
            effects.changes.append(AttemptsSet(nack.id, count))
            self.give_up(nack.id, nack.reason.value, now, effects)
        else:
            log.info("message rejected: channel=%r id=%d", self.name, nack.id)
            self._ack(port, nack.id, now, effects)

    def _count_failed(
        self, failed: dict[int, int], reason: str, now: float, effects: Effects
    ) -> None:
        for message_id, attempts in failed.items():
            effects.changes.append(AttemptsSet(message_id, attempts))
            if self.delivery.is_exhausted(message_id):
                self.give_up(message_id, reason, now, effects)

    def _expire_leases(self, now: float, effects: Effects) -> None:
        before = self.delivery.leased
        failed = self.delivery.expire_leases(now)
        self.context.counters.timeouts += before - self.delivery.leased
        self._count_failed(failed, "no ack", now, effects)

    def _touch(self, port: Port, touch: Touch, now: float) -> Reply:
        consumer = self.delivery.consumers.get(port)
        ms = min(touch.ms, TOUCH_MS_MAX)
        if consumer is None or self.buffer.get(touch.id, now) is None:
            return Failed(touch, Code.LEASE_LOST)
        is_held = self.delivery.touch(consumer, touch.id, now + ms / 1000)
        return TouchAck(touch.id, ms) if is_held else Failed(touch, Code.LEASE_LOST)

    # Messages that leave.

    def remove(self, message_id: int, effects: Effects) -> None:
        """The message is acknowledged, or its time is over."""
        row = self.buffer.remove(message_id)
        if row is None:
            return
        size, quota = len(row.data), self.publisher.quota
        if quota.is_measured:
            quota.release(size)
        if self.dead_letters:
            self.dead_letters.pop(message_id, None)
        self.delivery.forget(message_id)
        if self.jobs is not None:
            self.jobs.forget(message_id)
        retained = self.keys.retain_digest(row)
        effects.changes.append(MessageRemoved(message_id, row.key, retained, size))

    def sweep(self, now: float, effects: Effects) -> None:
        """Remove the expired messages that a slice of the buffer shows, or make dead letters of
        them."""
        makes_dead_letters = self.settings.dead_letter_expired
        if makes_dead_letters is None:
            makes_dead_letters = self.delivery.mode is Mode.QUEUE
        makes_dead_letters = makes_dead_letters and not is_dead_letter_channel(self.name)
        for row in self.buffer.sweep(now):
            if not makes_dead_letters:
                self.context.counters.expired += 1
                self.remove(row.id, effects)
            elif row.id not in self.dead_letters:
                self.context.counters.expired += 1
                self._send_dead_letter(row, EXPIRED, now, effects)
                # Its consumers get their credit back, and it is not pushed any more.
                self.delivery.end_leases(row.id)

    def give_up(self, message_id: int, reason: str, now: float, effects: Effects) -> None:
        """The message becomes a dead letter; a message that is one is dropped."""
        row = self.buffer.get(message_id, now)
        if row is None:
            return
        if not is_dead_letter_channel(self.name):
            self._send_dead_letter(row, reason, now, effects)
        else:
            log.warning("dead letter dropped: channel=%r id=%d", self.name, message_id)
            self.remove(message_id, effects)

    def _send_dead_letter(
        self, row: StoredMessage, reason: str, now: float, effects: Effects
    ) -> None:
        self.context.counters.dead_letters += 1
        attempts = self.delivery.attempts.get(row.id, 0)
        unique = b"" if self.jobs is None else self.jobs.attributes_of(row.id)[1]
        key = unique if flow_step_of(unique) is not None else b""
        retry_at = self.dead_letters.send(row, attempts, reason, key, now, effects)
        self.delivery.delay((row.id, 0), retry_at)

    def _store_dead_letter(self, dead: DeadLetter, now: float, effects: Effects) -> None:
        """Store a dead letter of another channel. While there is no room for it that channel gets
        no answer, and sends it again."""
        # The id of the dead message is its key here, and the move is remembered with it until that
        # channel has removed the message: one sent twice is stored once, however much later.
        keys = self.keys
        if dead.id not in keys.rows and keys.move(dead.id, now) is None:
            origin = Origin(dead.id, dead.attempts, dead.reason)
            ttl = self.settings.dead_ttl
            if not self.publisher.quota.fits(len(dead.data)) or not self.publisher.add(
                dead.id, ttl, dead.data, now, effects, 0, origin
            ):
                return
            row = self.publisher.added[-1]
            effects.changes.append(keys.remember_move(dead.id, row, inf))
            if dead.flow_key:  # with which it may become a job of its flow again
                self._job_attributes().claim(row.id, dead.flow_key, effects.changes)
        effects.posts += ((dead.channel, DeadLetterStored(dead.id)),)

    def _tell_of_dead_letters(self, effects: Effects) -> None:
        """After a restart: their channel removes those that it still has, and has all of them
        forgotten as moves."""
        channel, ids = self.name.removesuffix(DEAD_SUFFIX), self._stored_dead_letters
        some, self._stored_dead_letters = ids[:MOVES_TOLD_MAX], ids[MOVES_TOLD_MAX:]
        effects.posts += tuple((channel, DeadLetterStored(each)) for each in some)

    # Jobs of schedules.

    def _store_scheduled(self, job: ScheduledJob, now: float, effects: Effects) -> None:
        """Store the job of a schedule once, however often it comes (also after a crash of either
        cell): the last moment of each schedule is remembered with its job."""
        stored = self.keys.scheduled(job.number, job.at_ms)
        outcome = self._put_scheduled(job, now, effects) if stored is None else stored
        code = outcome if isinstance(outcome, Code) else None
        message_id = 0 if isinstance(outcome, Code) else outcome
        answer = ScheduledJobStored(job.number, job.at_ms, message_id, code)
        effects.posts += ((job.sender, answer),)

    def _put_scheduled(self, job: ScheduledJob, now: float, effects: Effects) -> int | Code:
        """The id of the new job, or why there is none."""
        outcome = self._put_internal(job.ttl, job.data, job.at_ms, now, effects)
        if not isinstance(outcome, Code):
            row = self.publisher.added[-1]
            effects.changes.append(self.keys.remember_scheduled(job.number, job.at_ms, row))
        return outcome

    def _put_internal(
        self, ttl: int, data: bytes, start: int, now: float, effects: Effects
    ) -> int | Code:
        """Put a job that no client put: its id, or why there is none."""
        if not self.delivery.consumers and not self.buffer.rows:
            self._choose_mode(Attach(mode=Mode.QUEUE))
        if self.delivery.mode is not Mode.QUEUE or is_dead_letter_channel(self.name):
            return Code.NOT_A_QUEUE
        publisher, keys = self.publisher, self.keys
        # A key that nobody has: clients' keys are random, and this is for no retry.
        key = next(each for each in count(start) if each % KEYS not in keys.rows) % KEYS
        if (refusal := publisher.refusal(Put(key, ttl, data), now, effects, self)) is not None:
            return refusal
        if not publisher.add(key, publisher.ttl_of(ttl), data, now, effects):
            return Code.IDS_EXHAUSTED
        return publisher.added[-1].id

    # Jobs of flows.

    def _flow_step(self, message_id: int) -> tuple[int, int] | None:
        return None if self.jobs is None else flow_step_of(self.jobs.attributes_of(message_id)[1])

    def _dead_letter_is_known(self, message_id: int, effects: Effects) -> None:
        """The dead letter is stored, and known wherever somebody waits for it: the message goes."""
        self.remove(message_id, effects)
        # The store has the removal before what that channel forgets; with a tee as well.
        effects.posts += ((self.name + DEAD_SUFFIX, MovesDone((message_id,))),)

    def _store_flow_job(self, job: FlowJob, now: float, effects: Effects) -> None:
        """Store the job of a step, unless it is here."""
        unique = flow_key(job.flow, job.step)
        attributes = self._job_attributes()
        outcome: int | Code | None = attributes.find(unique)
        if outcome is None:
            outcome = self._put_internal(job.ttl, job.data, job.flow, now, effects)
            if not isinstance(outcome, Code):
                attributes.claim(outcome, unique, effects.changes)
        code = outcome if isinstance(outcome, Code) else None
        message_id = 0 if isinstance(outcome, Code) else outcome
        answer = FlowJobStored(job.flow, job.step, message_id, code)
        effects.posts += ((job.sender, answer),)

    def _cancel_flow_job(self, cancel: CancelFlowJob, now: float, effects: Effects) -> None:
        """Remove the job of a step, also from its worker."""
        found = self._job_attributes().find(flow_key(cancel.flow, cancel.step))
        if found is not None:
            for consumer in self.delivery.consumers.values():
                if found in consumer.leases:
                    ended = Failed(Touch(found, 0), Code.LEASE_LOST)
                    effects.port_replies.append((consumer.port, ended))
            self.remove(found, effects)
        place = cancel.flow, cancel.step
        failed = FlowJobFailed(self.name, *place, found or 0, "cancelled")
        effects.posts += ((cancel.sender, failed),)

    # The tee.

    def _append_to_tee(self, tee: Tee, now: float, effects: Effects) -> None:
        """Append new messages to the stream; the store hears of removals no earlier than it may."""
        tee.append(now, effects)
        if effects.changes:
            self._withhold(tee, effects)
        if effects.posts and tee.withheld_messages:
            effects.posts = tee.withhold_posts(effects.posts)
        self.publisher.quota.withhold(tee.withheld_messages, tee.withheld_bytes)

    def _withhold(self, tee: Tee, effects: Effects) -> None:
        before = tee.withheld_messages
        effects.changes = tee.withhold(effects.changes)
        if tee.withheld_messages > before:
            effects.withheld = tee.latest_withheld(tee.withheld_messages - before)

    # Effects that wait for the store (`ReleaseObserver`).

    def delayed(self, pending: Iterable[Effects], now: float) -> None:
        leases.delay_leases(self.delivery, pending, now)

    def detaching(self, port: Port, pending: Iterable[Effects]) -> None:
        leases.cancel_leases(self.delivery, port, pending)

    def revise(self, effects: Effects) -> None:
        leases.drop_outdated_pushes(self.delivery, effects)

    def released(self, late: Iterable[Effects], now: float) -> None:
        leases.start_late_leases(self.delivery, late, now)

    def hand_over(self, lost: Collection[Effects]) -> leases.Handover:
        held = leases.held_leases(self.delivery, lost)
        if self.tee is None:
            return leases.Handover(held, ())
        # An ack counts though a put before or behind it is refused, but not if both came in one
        # read.
        refused = {
            message_id
            for effects in lost
            if not all(map(is_unawaited, effects.changes))
            for message_id in effects.withheld
        }
        removed = [each for each in self.tee.withheld if each not in refused]
        return leases.Handover(held, removed, self.tee.posts_behind(removed))

    def take_over(self, handover: object) -> None:
        assert isinstance(handover, leases.Handover), "a channel follows a channel"
        if self.tee is not None:
            effects = Effects()
            for message_id in handover.removed:
                self.remove(message_id, effects)
            self._withhold(self.tee, effects)
            self.tee.withhold_posts(handover.posts)
        for message_id in leases.restore_leases(self.delivery, handover.leases, self.buffer):
            if self.jobs is not None:
                self.jobs.passed(message_id)
        self.deadline = min(self.deadline, self.delivery.leases_at)

    # Steps of the node's time (`ClockObserver`).

    def clock_moved(self, seconds: float) -> None:
        self.delivery.postpone_leases(seconds)

    def limit_deadlines(self, now: float) -> None:
        self._limit_deadlines(now, {} if self.jobs is None else self.jobs.due)
        self.deadline = self._next_deadline()

    def _limit_deadlines(self, now: float, due: Mapping[int, float]) -> None:
        """No message has more time left than its ttl, except jobs that are not due yet. While a
        jump of the clock waits, ttls count from the time that it would lead to."""
        start = now + self.context.jump.seconds
        latest = start + DEADLINE_SLACK_S
        wrong = [row for row in self.buffer.rows.values() if row.expires_at - row.ttl > latest]
        for row in wrong:
            expires_at = max(start, due.get(row.id, 0.0)) + row.ttl
            if expires_at < row.expires_at:
                limited = msgspec.structs.replace(row, expires_at=expires_at)
                self.buffer.replace(limited)
                self.keys.replace(row, limited)
                self._corrected.append(row.id)

    def _store_deadlines(self, effects: Effects) -> None:
        """Have the store correct deadlines as well: a later load cannot tell whether they are those
        of a jump."""
        ids, rows = self._corrected, self.buffer.rows
        some, self._corrected = ids[:CORRECTIONS_MAX], ids[CORRECTIONS_MAX:]
        there = (row for row in map(rows.get, some) if row is not None)
        effects.changes += (DeadlineSet(row.id, row.expires_at) for row in there)
        if not self._corrected:
            self._deadlines_are_stored()

    def _deadlines_are_stored(self) -> None:
        if not self.context.jump.seconds:
            self.context.uncorrected.discard(self.name)

    # Queries of the node.

    @property
    def info(self) -> ChannelInfo:
        consumers = self.delivery.consumers.values()
        return ChannelInfo(
            name=self.name,
            mode=self.delivery.mode.name.lower(),
            messages=len(self.buffer.rows),
            bytes=self.buffer.bytes,
            keys=len(self.keys.rows),
            leased=self.delivery.leased,
            connections=len(consumers),
            credit=self.delivery.credit,
            subscribers=len(self.subscribers.subscriptions),
        )

    def jobs_now(self, now: float, *, with_oldest: bool = True) -> JobTotals | None:
        """The jobs of a queue; None: the channel is none."""
        if self.delivery.mode is not Mode.QUEUE or is_dead_letter_channel(self.name):
            return None
        return job_totals(self, now, with_oldest=with_oldest)

    def oldest_s(self, now: float) -> float:
        """The age in seconds of the oldest message, about; 0: there is none."""
        row = next(self.buffer.after(0, now), None)
        return 0.0 if row is None else max(0.0, now - (row.expires_at - row.ttl))

    @property
    def lags(self) -> list[int]:
        """The number of messages that each subscriber still has to acknowledge (fanout)."""
        return queries.lags(self.buffer, self.delivery)

    def small_lags(self) -> list[int] | None:
        """The same, where there are few messages; None: there are many."""
        return queries.small_lags(self.buffer, self.delivery)

    def lags_in_steps(self) -> queries.LagSteps:
        """The same, in steps between which other work may be done."""
        return queries.lags_in_steps(self.buffer, self.delivery)

    def members(self, limit: int) -> queries.Members:
        """The first consumers and subscribers, with their lags."""
        return queries.members(self.buffer, self.delivery, self.subscribers, limit)

    def export(self, after: int, below: int) -> Iterator[tuple[StoredMessage, int]]:
        """Messages between two ids with their failed deliveries; read on while nothing changes."""
        attempts = self.delivery.attempts
        rows = takewhile(lambda row: row.id < below, self.buffer.after(after, 0.0))
        return ((row, attempts.get(row.id, 0)) for row in rows)

    def attributes_of(self, message_id: int) -> tuple[float, bytes]:
        """The time at which a message is due (0: now), and its unique key (empty: none)."""
        return (0.0, b"") if self.jobs is None else self.jobs.attributes_of(message_id)
