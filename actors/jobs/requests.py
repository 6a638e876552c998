"""Carries out what a channel in queue mode is asked about its jobs.

What concerns dead letters goes on to their channel, with who asked; see `dead` and `passing`.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.context import DeliveryCounters
from millpond.actors.channels.dead_letters import DEAD_SUFFIX
from millpond.actors.channels.delivery import Delivery
from millpond.actors.channels.idempotency import IdempotencyKeys, is_same
from millpond.actors.channels.publish import Publisher
from millpond.actors.channels.settings import ChannelSettings, EmptyPolicy
from millpond.actors.errors import Code
from millpond.actors.jobs import messages as m
from millpond.actors.jobs.listing import JobView, with_all_data
from millpond.actors.jobs.passing import (
    CountDeadLetters,
    DeleteDeadLetters,
    GetDeadLetter,
    ListDeadLetters,
    RequeueDeadLetters,
    TakeDeadLetters,
)
from millpond.actors.jobs.schedule import JobSchedule
from millpond.actors.messages import (
    Batch,
    DeadLetter,
    DeadLettersRequeued,
    Failed,
    JobReply,
    JobRequest,
    Mode,
    Nack,
    NackReason,
    Port,
    Put,
)
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import AttemptsSet, Origin, StoredMessage
from millpond.actors.store.message_attributes import DueAt, UniqueKey

DUE_S_MAX = 366 * 86_400
"""A job may be due so far ahead."""


class Keeper(Protocol):
    """The channel: what leaves it."""

    def sweep(self, now: float, effects: Effects) -> None:
        """Remove what has expired: there is no quota."""

    def remove(self, message_id: int, effects: Effects) -> None:
        """The message is done with."""

    def bury(self, message_id: int, reason: str, now: float, effects: Effects) -> None:
        """The message becomes a dead letter."""


class Parts(msgspec.Struct, frozen=True):
    """What a channel is made of, as far as its jobs are concerned."""

    name: bytes
    settings: ChannelSettings
    buffer: Buffer
    keys: IdempotencyKeys
    delivery: Delivery
    publisher: Publisher
    schedule: JobSchedule
    dead_letters: dict[int, DeadLetter]
    counters: DeliveryCounters


class JobHandler:
    """For one request of one connection."""

    __slots__ = ("_effects", "_keeper", "_now", "_parts", "_port")

    def __init__(
        self, parts: Parts, keeper: Keeper, port: Port, now: float, effects: Effects
    ) -> None:
        self._parts = parts
        self._keeper = keeper
        self._port = port
        self._now = now
        self._effects = effects

    def answer(self, request: JobRequest) -> JobReply | Failed | None:
        """The answer; None: another channel answers."""
        if self._parts.delivery.mode is not Mode.QUEUE or self._parts.name.endswith(DEAD_SUFFIX):
            return Failed(request, Code.NOT_A_QUEUE)
        match request:
            case m.PutJob():
                return self._put(request)
            case m.RetryJob():
                return self._retry(request)
            case m.CancelJob():
                return self._cancel(request)
            case m.RejectJob():
                return self._reject(request)
            case m.ListJobs():
                return self._list(request)
            case m.GetJob():
                return self._show(request)
            case m.CountJobs(stop=stop):
                if (
                    stop
                    and (consumer := self._parts.delivery.consumers.get(self._port)) is not None
                ):
                    self._parts.delivery.stop(consumer)
                self._pass_on(CountDeadLetters(request.number, self._counts(request.number)))
            case m.RetryDeadLetters():
                self._pass_on(TakeDeadLetters(request.number, request.ids))
            case m.PurgeDeadLetters():
                self._pass_on(DeleteDeadLetters(request.number, request.ids))
            case RequeueDeadLetters():
                return self._revive(request)
            case _:
                raise AssertionError(f"{request} is for dead letters")
        return None

    def _pass_on(self, request: JobRequest) -> None:
        dead = self._parts.name + DEAD_SUFFIX
        self._effects.forwards += ((dead, Batch(self._port, [request])),)

    def _look(self) -> JobView:
        parts = self._parts
        return JobView(parts.buffer, parts.delivery, parts.dead_letters, self._now)

    # New jobs.

    def _put(self, put: m.PutJob) -> JobReply | Failed:
        parts, now = self._parts, self._now
        kept = parts.keys.rows.get(put.key)
        if kept is not None and kept.until > now:
            if is_same(kept, put.data):
                return m.JobStored(put.number, kept.id, kept.ttl)
            return Failed(put, Code.KEY_REUSED)
        holder = self._holder(put.unique) if put.unique else None
        if holder is not None:
            return m.JobStored(put.number, holder.id, holder.ttl, existing=True)
        if (refusal := self._refusal(put)) is not None:
            return Failed(put, refusal)
        ttl = min(put.ttl or parts.settings.ttl_default, parts.settings.ttl_max)
        due = put.due if put.due > now else 0.0
        message_id = parts.publisher.keep(put.key, ttl, put.data, now, self._effects, since=due)
        if not message_id:
            return Failed(put, Code.IDS_EXHAUSTED)
        if due:
            self._rest_until(message_id, due)
        if put.unique:
            parts.schedule.claim(message_id, put.unique)
            self._effects.changes.append(UniqueKey(message_id, put.unique))
        return m.JobStored(put.number, message_id, ttl)

    def _holder(self, name: bytes) -> StoredMessage | None:
        """The job of that name; a dead letter is none, also before it has arrived."""
        found = self._parts.schedule.find(name)
        if found is None or found in self._parts.dead_letters:
            return None
        return self._parts.buffer.get(found, self._now)

    def _refusal(self, put: m.PutJob) -> Code | None:
        parts = self._parts
        if not put.data and parts.settings.empty is not EmptyPolicy.STORE:
            return Code.EMPTY_DATA
        if put.due > self._now + DUE_S_MAX:
            return Code.TTL_REFUSED
        asked = Put(put.key, put.ttl, put.data)
        return parts.publisher.refusal(asked, self._now, self._effects, self._keeper)

    def _rest_until(self, message_id: int, due: float) -> None:
        self._parts.delivery.delay((message_id, 0), due)
        self._parts.schedule.due[message_id] = due
        self._effects.changes.append(DueAt(message_id, due))

    # Jobs that are there.

    def _retry(self, asked: m.RetryJob) -> JobReply | Failed:
        look, delivery, schedule = self._look(), self._parts.delivery, self._parts.schedule
        if look.find(asked.id) is None:
            return Failed(asked, Code.NOT_FOUND)
        state, holder = look.state(asked.id), look.holder(asked.id)
        if holder is not None:
            if holder.port is self._port:
                delivery.give_back(holder, asked.id)
        elif state is m.JobState.DELAYED:
            delivery.end_delay_now(asked.id)
            if schedule.due.pop(asked.id, None) is not None:
                self._effects.changes.append(DueAt(asked.id, 0.0))
        return m.JobDone(asked.number, state)

    def _cancel(self, asked: m.CancelJob) -> JobReply | Failed:
        look = self._look()
        if look.find(asked.id) is None:
            return Failed(asked, Code.NOT_FOUND)
        state = look.state(asked.id)
        self._keeper.remove(asked.id, self._effects)
        return m.JobDone(asked.number, state)

    def _reject(self, asked: m.RejectJob) -> JobReply | Failed:
        parts, now = self._parts, self._now
        consumer = parts.delivery.consumers.get(self._port)
        if consumer is None or parts.buffer.get(asked.id, now) is None:
            return Failed(asked, Code.LEASE_LOST)
        count = parts.delivery.nack(consumer, Nack(asked.id, NackReason.REJECT), now)
        if count is None:
            return Failed(asked, Code.LEASE_LOST)
        parts.counters.nacks += 1
        self._effects.changes.append(AttemptsSet(asked.id, count))
        self._keeper.bury(asked.id, asked.reason or NackReason.REJECT.value, now, self._effects)
        return m.JobDone(asked.number, m.JobState.LEASED)

    def _list(self, asked: m.ListJobs) -> JobReply | None:
        if asked.state is m.JobState.DEAD:
            self._pass_on(ListDeadLetters(asked.number, asked, (), more=False))
            return None
        rows, more = self._look().page(asked)
        if asked.state is None:
            self._pass_on(ListDeadLetters(asked.number, asked, rows, more))
            return None
        return m.JobPage(asked.number, rows, more)

    def _show(self, asked: m.GetJob) -> JobReply | None:
        look = self._look()
        row = look.find(asked.id)
        if row is None:
            self._pass_on(GetDeadLetter(asked.number, asked))
            return None
        return m.JobFound(
            asked.number, with_all_data(look.row(row, len(row.data)), asked.bytes_max)
        )

    def _counts(self, number: int) -> m.JobCounts:
        parts, look = self._parts, self._look()
        leased = parts.delivery.leased
        delayed = len(parts.delivery.delayed) - len(parts.dead_letters)
        ready = len(parts.buffer.rows) - leased - delayed - len(parts.dead_letters)
        workers = len(parts.delivery.receivers)
        return m.JobCounts(number, ready, delayed, leased, workers, look.oldest_ready())

    # Dead dead_letters that come back.

    def _revive(self, revive: RequeueDeadLetters) -> JobReply | Failed:
        """The id of the dead letter is its key here, so one that is put back twice is kept
        once."""
        parts, count, done = self._parts, 0, []
        for dead_letter in revive.dead_letters:
            if dead_letter.id not in parts.keys.rows:
                if not self._keep_again(dead_letter):
                    break
                count += 1
            done.append(dead_letter.id)
        if not done:
            is_full = parts.publisher.quota.is_writable
            return Failed(revive, Code.BUFFER_FULL if is_full else Code.STORAGE_FAILED)
        self._effects.posts += ((parts.name + DEAD_SUFFIX, DeadLettersRequeued(tuple(done))),)
        more = revive.more or len(done) < len(revive.dead_letters)
        return m.DeadLettersDone(revive.number, count, more)

    def _keep_again(self, dead_letter: StoredMessage) -> bool:
        publisher, size = self._parts.publisher, len(dead_letter.data)
        if not publisher.quota.is_measured:
            publisher.quota.measure()
        if not publisher.quota.fits(size):
            self._keeper.sweep(self._now, self._effects)
        ttl, origin = (
            self._parts.settings.ttl_default,
            dead_letter.origin or Origin(dead_letter.id, 0, ""),
        )
        return publisher.quota.fits(size) and bool(
            publisher.keep(
                dead_letter.id, ttl, dead_letter.data, self._now, self._effects, 0, origin
            )
        )
