"""What a channel holds, and how a message leaves it: by its ack, its deadline or its burial."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from millpond.actors.channels import dead_letters as burial
from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.context import ChannelContext
from millpond.actors.channels.delivery import Delivery
from millpond.actors.channels.idempotency import IdempotencyKeys
from millpond.actors.channels.publish import Publisher
from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.channels.tee import Tee
from millpond.actors.errors import Code
from millpond.actors.jobs.channel_jobs import ChannelJobs
from millpond.actors.messages import (
    DeadLetter,
    Failed,
    Mode,
    Nack,
    NackReason,
    Port,
    Reply,
    Touch,
    TouchAck,
)
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import AttemptsSet, MessageRemoved, StoredMessage, is_soft

log = logging.getLogger(__name__)

TOUCH_MS_MAX = 3_600_000


class Holding:
    """The parts of a channel that its messages are in; `Channel` has what comes and goes."""

    __slots__ = (
        "_buffer",
        "_dead_letters",
        "_delivery",
        "_jobs",
        "_keys",
        "_name",
        "_publisher",
        "_settings",
        "_shared",
        "_tee",
    )

    def __init__(
        self,
        name: bytes,
        buffer: Buffer,
        keys: IdempotencyKeys,
        settings: ChannelSettings,
        shared: ChannelContext,
    ) -> None:
        self._name = name
        self._settings = settings
        self._shared = shared
        self._buffer = buffer
        self._keys = keys
        self._publisher: Publisher
        self._delivery: Delivery
        self._jobs: ChannelJobs | None
        self._tee: Tee | None
        self._dead_letters: dict[int, DeadLetter] = {}
        """Those on their way to the dead-letter channel, by the id of the message."""

    def sweep(self, now: float, effects: Effects) -> None:
        """Remove the expired messages that a slice of the buffer shows, or bury them."""
        for row in self._buffer.sweep(now):
            if not burial.buries_expired(self._name, self._settings):
                self._shared.counters.expired += 1
                self.remove(row.id, effects)
            elif row.id not in self._dead_letters:
                self._shared.counters.expired += 1
                self._give_up(row, burial.EXPIRED, now, effects)
                # Who held it has its credit back, and nobody gets it any more.
                self._delivery.end_leases(row.id)

    def remove(self, message_id: int, effects: Effects) -> None:
        """The message is done with, or its time is over."""
        row = self._buffer.remove(message_id)
        if row is None:
            return
        self._publisher.quota.messages += 1
        self._publisher.quota.bytes += len(row.data)
        self._dead_letters.pop(message_id, None)
        self._delivery.forget(message_id)
        if self._jobs is not None:
            self._jobs.schedule.forget(message_id)
        effects.changes.append(
            MessageRemoved(message_id, row.key, self._keys.settle(row), len(row.data))
        )

    def _pour(self, tee: Tee, now: float, effects: Effects) -> None:
        """What was kept is poured; of what leaves the store hears no earlier than it may."""
        tee.pump(now, effects)
        if effects.changes:
            self._hold(tee, effects)
        quota = self._publisher.quota
        quota.owed_messages, quota.owed_bytes = tee.owed_messages, tee.owed_bytes

    def _hold(self, tee: Tee, effects: Effects) -> None:
        before = tee.owed_messages
        effects.changes = tee.hold(effects.changes)
        if tee.owed_messages > before:
            effects.withheld = tee.latest_gone(tee.owed_messages - before)

    def gone(self, lost: Iterable[Effects]) -> list[int]:
        """What has left, and only the tee knows: an ack is heard though another's put is refused
        behind it or before it, but not if that came in one read with it."""
        if self._tee is None:
            return []
        refused = {
            message_id
            for effects in lost
            if not all(map(is_soft, effects.changes))
            for message_id in effects.withheld
        }
        return [each for each in self._tee.gone if each not in refused]

    def go_again(self, gone: Iterable[int]) -> None:
        """These had left a channel that is built anew."""
        if self._tee is not None:
            effects = Effects()
            for message_id in gone:
                self.remove(message_id, effects)
            self._hold(self._tee, effects)

    # What consumers say of messages.

    def _ack(self, port: Port, message_id: int, effects: Effects) -> bool:
        """False: it says nothing of any message that is here."""
        row = self._buffer.rows.get(message_id)
        dead_letter = self._dead_letters.get(message_id) if self._dead_letters else None
        if row is None or (dead_letter is not None and dead_letter.reason == burial.EXPIRED):
            self._shared.counters.late_acks += 1
            return False
        consumer = self._delivery.consumers.get(port)
        # Nobody who is known deletes what it put itself (PS-10).
        if consumer is None or (
            consumer.identity_number and consumer.identity_number == row.sender
        ):
            return False
        if self._delivery.ack(consumer, message_id):
            self.remove(message_id, effects)
        return True

    def _nack(self, port: Port, nack: Nack, now: float, effects: Effects) -> None:
        consumer = self._delivery.consumers.get(port)
        if consumer is None:
            return
        if nack.reason is NackReason.CANNOT_DECRYPT and self._delivery.mode is not Mode.QUEUE:
            # Kept for others and for GET, but never again pushed to who cannot read it.
            self._shared.counters.nacks += nack.id in consumer.leases
            self._delivery.decline(consumer, nack.id)
            return
        count = self._delivery.nack(consumer, nack, now)
        if count is None:
            return
        self._shared.counters.nacks += 1
        is_final = nack.reason in (NackReason.REJECT, NackReason.CANNOT_DECRYPT)
        if not is_final:
            self._count_failed({nack.id: count}, nack.reason.value, now, effects)
            if nack.delay_ms and self._delivery.mode is Mode.QUEUE:
                self._keep_rest(nack.id, effects)
        elif self._delivery.mode is Mode.QUEUE:
            effects.changes.append(
                AttemptsSet(nack.id, count)
            )  # its burial may take longer than we live
            self.bury(nack.id, nack.reason.value, now, effects)
        else:
            log.info("message rejected: channel=%r id=%d", self._name, nack.id)
            self._ack(port, nack.id, effects)

    def _keep_rest(self, message_id: int, effects: Effects) -> None:
        until = self._delivery.delayed_until(message_id)
        if until and message_id not in self._dead_letters:
            jobs = self._jobs = self._jobs or ChannelJobs()
            jobs.keep_rest(message_id, until, effects)

    def _count_failed(
        self, failed: dict[int, int], reason: str, now: float, effects: Effects
    ) -> None:
        for message_id, count in failed.items():
            effects.changes.append(AttemptsSet(message_id, count))
            if self._delivery.is_exhausted(message_id):
                self.bury(message_id, reason, now, effects)

    def _expire_leases(self, now: float, effects: Effects) -> None:
        delivery = self._delivery
        held = delivery.leased
        failed = delivery.expire_leases(now)
        self._shared.counters.timeouts += held - delivery.leased
        self._count_failed(failed, "no ack", now, effects)

    def _touch(self, port: Port, touch: Touch, now: float) -> Reply:
        consumer = self._delivery.consumers.get(port)
        ms = min(touch.ms, TOUCH_MS_MAX)
        if consumer is None or self._buffer.get(touch.id, now) is None:
            return Failed(touch, Code.LEASE_LOST)
        is_held = self._delivery.touch(consumer, touch.id, now + ms / 1000)
        return TouchAck(touch.id, ms) if is_held else Failed(touch, Code.LEASE_LOST)

    # Dead dead_letters.

    def bury(self, message_id: int, reason: str, now: float, effects: Effects) -> None:
        """The message becomes a dead letter, or is dropped where it is one."""
        row = self._buffer.get(message_id, now)
        if row is not None and not burial.is_dead_letter_channel(self._name):
            self._give_up(row, reason, now, effects)
        elif row is not None:
            log.warning("dead letter dropped: channel=%r id=%d", self._name, message_id)
            self.remove(message_id, effects)

    def _give_up(self, row: StoredMessage, reason: str, now: float, effects: Effects) -> None:
        self._shared.counters.dead_letters += 1
        attempts = self._delivery.attempts.get(row.id, 0)
        dead_letter = self._dead_letters[row.id] = burial.dead_letter_for(
            self._name, row, attempts, reason
        )
        burial.post(dead_letter, effects)
        self._delivery.delay((row.id, 0), burial.retry_at(now, len(self._dead_letters)))
