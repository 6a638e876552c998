"""A channel: keeps messages until their ack or their deadline, and pushes them to its guests.

The actor of the P2P buffer protocol. It owns its buffer, the expiry of messages and keys, the
leases of what it pushed, and the liveness of the connections in it. State table: wire.md 3j.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from math import inf

from actors import burial, reading
from actors.buffer import Buffer
from actors.cell import Effects
from actors.delivery import Delivery
from actors.errors import Code
from actors.intake import Intake
from actors.keys import Keys
from actors.limits import ChannelSettings
from actors.liveness import survey
from actors.members import NOBODY, Known, Members
from actors.messages import (
    Ack,
    Batch,
    Buried,
    Bury,
    Credit,
    Drain,
    Failed,
    Get,
    Join,
    Joined,
    Leave,
    List,
    Mail,
    Mode,
    Nack,
    Port,
    Put,
    Reason,
    Reply,
    Touch,
    TouchAck,
    Writable,
)
from actors.modes import delivery_for
from actors.shared import ChannelInfo, Shared
from actors.store.changes import Gone, ModeSet, Row, Snapshot, Tried
from actors.store.roster import Roster

log = logging.getLogger(__name__)

TOUCH_MS_MAX = 3_600_000


class Channel:
    """The behaviour of a channel's cell."""

    __slots__ = (
        "_buffer",
        "_delivery",
        "_intake",
        "_kept_mode",
        "_keys",
        "_letters",
        "_liveness_at",
        "_members",
        "_name",
        "_settings",
        "_shared",
        "deadline",
    )
    owed: tuple[()] = ()

    def __init__(
        self,
        name: bytes,
        snapshot: Snapshot,
        guests: dict[Port, Join],
        settings: ChannelSettings,
        shared: Shared,
    ) -> None:
        self._name = name
        self._settings = settings
        self._shared = shared
        self._buffer = Buffer(snapshot.rows)
        self._keys = Keys(snapshot.keys)
        self._liveness_at = inf
        self._kept_mode = snapshot.mode
        self._members = NOBODY if snapshot.roster is None else self._members_of(snapshot.roster)
        self._intake = Intake(self._buffer, self._keys, self._members, settings, shared)
        self._letters: dict[int, Bury] = {}
        """Those on their way to the dead-letter channel, by the id of the message."""
        mode = settings.mode if snapshot.mode is None else snapshot.mode
        self._delivery = self._deliver_by(mode, snapshot.attempts)
        for port, join in guests.items():
            self._join(port, join, port.heard_at)
        # What could not be kept of the guests before a crash is said again at once.
        self.deadline = 0.0 if self._members.changes else self._next_deadline()

    def _members_of(self, roster: Roster | None) -> Members:
        idle_s, most = self._settings.ttl_max, self._settings.members_max
        return Members(self._name, roster, self._buffer, self._keys, idle_s, most)

    def _deliver_by(self, mode: Mode | None, attempts: dict[int, int]) -> Delivery:
        settings = self._settings.delivery
        mode, rng = mode or Mode.PAIR, self._shared.rng
        return delivery_for(mode, self._buffer, self._members, settings, rng, attempts)

    @property
    def is_empty(self) -> bool:
        return not self._buffer.rows and not self._keys.rows and not self._members

    @property
    def is_settled(self) -> bool:
        return not self._delivery.has_rests

    def _next_deadline(self) -> float:
        return min(
            self._buffer.expiry_at,
            self._keys.expiry_at,
            self._members.expiry_at,
            self._delivery.leases_at,
            self._delivery.rests_at,
            self._liveness_at,
        )

    @property
    def info(self) -> ChannelInfo:
        keys, subscribers = len(self._keys.rows), len(self._members.subscriptions)
        return reading.figures(self._name, self._buffer, self._delivery, keys, subscribers)

    def export(self, after: int, below: int) -> Iterator[tuple[Row, int]]:
        """Messages between two ids with their failed deliveries; read on while nothing changes."""
        return reading.exported(self._buffer, self._delivery, after, below)

    def handle(self, batch: Batch, now: float) -> Effects:
        """Everything of one read of one connection; pushes follow once, at the end."""
        effects = Effects()
        intake = self._intake
        intake.room.is_measured = False
        answers, connected = effects.answers, self._members.connected
        port = batch.port
        identity = connected.get(port) if connected and port is not None else None
        for message in batch.messages:
            if port is None:
                self._take(message, now, effects)
                continue
            # The two messages of every day come first, and without another call.
            reply: Reply | None
            if type(message) is Put:
                if identity is None:
                    reply = intake.put(message, port.number, now, effects, self)
                else:
                    reply = self._put_as(identity, port, message, now, effects)
            elif type(message) is Ack:
                self._ack(port, message.id, effects)
                continue
            else:
                reply = self._answer(port, message, now, effects)
                identity = connected.get(port)
            if reply is not None:
                answers.append(reply)
        if intake.fresh:
            self._take_in(effects)
        self._push(now, effects)
        if self._members.changes:
            effects.changes += self._members.take_changes()
            self.deadline = min(self.deadline, self._members.expiry_at)
        return effects

    def _put_as(
        self, identity: bytes, port: Port, put: Put, now: float, effects: Effects
    ) -> Reply | None:
        reply = self._intake.put_as(identity, put, port.number, now, effects, self)
        known = self._members.find(identity)
        if known is not None and not self._delivery.guests[port].sender:
            self._delivery.introduce(known)
        return reply

    def _take_in(self, effects: Effects) -> None:
        """Messages were added: they may be pushed, and they have deadlines."""
        delivery, fresh = self._delivery, self._intake.fresh
        # With the last message and key, the store forgot the mode as well.
        if self._kept_mode is not delivery.mode or len(self._buffer.rows) == len(fresh):
            self._kept_mode = delivery.mode
            effects.changes.append(ModeSet(delivery.mode))
        if delivery.receivers:
            delivery.stored(fresh)
        fresh.clear()
        # A message that outlives its key's window has a deadline beyond it.
        if self._buffer.expiry_at < self.deadline:
            self.deadline = self._buffer.expiry_at
        if self._keys.expiry_at < self.deadline:
            self.deadline = self._keys.expiry_at

    def _push(self, now: float, effects: Effects) -> None:
        delivery = self._delivery
        if delivery.hungry:
            delivery.pump(now, effects.replies)
            if delivery.leases_at < self.deadline:
                self.deadline = delivery.leases_at

    def _answer(self, port: Port, message: Mail, now: float, effects: Effects) -> Reply | None:
        reply: Reply | None = None
        match message:
            case Get():
                return reading.get(self._buffer, self._delivery, port, message, now)
            case List():
                page = self._settings.list_page
                return reading.ids(self._buffer, self._delivery, port, message, now, page)
            case Touch():
                reply = self._touch(port, message, now)
            case Join():
                reply = self._join(port, message, now)
                self._remember(port, effects)
            case Nack():
                self._nack(port, message, now, effects)
            case Credit() | Writable():
                self._feed(port, message)
                self._remember(port, effects)
            case Leave():
                self._leave(port, now, effects)
            case Put() | Ack():
                raise AssertionError("handled where they arrive")
            case _:
                raise AssertionError("connections do not send what cells send one another")
        self.deadline = self._next_deadline()
        return reply

    def _take(self, message: Mail, now: float, effects: Effects) -> None:
        """What cells and the node itself send."""
        match message:
            case Bury():
                burial.keep(message, self._intake, self._keys, self._settings, now, effects)
            case Buried():
                self._remove(message.id, effects)
            case Drain():
                self._delivery.stopped = True
            case _:
                raise AssertionError(f"{type(message).__name__} needs a port")

    def wake(self, now: float) -> Effects:
        """Expiry, lost leases, ended rests and silent connections."""
        effects = Effects()
        self.sweep(now, effects)
        effects.changes += self._keys.sweep(now)
        if now >= self._members.expiry_at:
            self._delivery.forget_senders(self._members.sweep(now))
        self._count_failed(self._delivery.expire_leases(now), "no ack", now, effects)
        for rest in self._delivery.due_rests(now):
            if rest[0] in self._letters:
                burial.post_again(self._letters[rest[0]], self._letters, effects)
                self._delivery.rest(rest, burial.retry_at(now, len(self._letters)))
            else:
                self._delivery.end_rest(rest)
        if now >= self._liveness_at:
            ports = ((guest.port, guest.liveness) for guest in self._delivery.guests.values())
            verdicts, self._liveness_at = survey(ports, now)
            effects.replies.extend(verdicts)
        self._push(now, effects)
        effects.changes += self._members.take_changes()
        self.deadline = self._next_deadline()
        return effects

    def sweep(self, now: float, effects: Effects) -> None:
        """Remove the expired messages that a slice of the buffer shows, or bury them."""
        for row in self._buffer.sweep(now):
            if not burial.buries_expired(self._name, self._settings):
                self._remove(row.id, effects)
            elif row.id not in self._letters:
                self._give_up(row, burial.EXPIRED, now, effects)
                # Who held it has its credit back, and nobody gets it any more.
                self._delivery.release(row.id)

    def _remove(self, message_id: int, effects: Effects) -> None:
        row = self._buffer.remove(message_id)
        if row is None:
            return
        self._intake.room.messages += 1
        self._intake.room.bytes += len(row.data)
        self._letters.pop(message_id, None)
        self._delivery.forget(message_id)
        effects.changes.append(Gone(message_id, row.key, self._keys.settle(row), len(row.data)))

    # What consumers say of messages.

    def _ack(self, port: Port, message_id: int, effects: Effects) -> None:
        row = self._buffer.rows.get(message_id)
        letter = self._letters.get(message_id) if self._letters else None
        if row is None or (letter is not None and letter.reason == burial.EXPIRED):
            self._shared.counters.late_acks += 1
            return
        guest = self._delivery.guests.get(port)
        # Nobody who is known deletes what it put itself (PS-10).
        if guest is None or (guest.sender and guest.sender == row.sender):
            return
        if self._delivery.ack(guest, message_id):
            self._remove(message_id, effects)

    def _nack(self, port: Port, nack: Nack, now: float, effects: Effects) -> None:
        guest = self._delivery.guests.get(port)
        if guest is None:
            return
        if nack.reason is Reason.CANNOT_DECRYPT and self._delivery.mode is not Mode.QUEUE:
            # Kept for others and for GET, but never again pushed to who cannot read it.
            self._delivery.decline(guest, nack.id)
            return
        count = self._delivery.nack(guest, nack, now)
        if count is None:
            return
        is_final = nack.reason in (Reason.REJECT, Reason.CANNOT_DECRYPT)
        if not is_final:
            self._count_failed({nack.id: count}, nack.reason.value, now, effects)
        elif self._delivery.mode is Mode.QUEUE:
            self._bury(nack.id, nack.reason.value, now, effects)
        else:
            log.info("message rejected: channel=%r id=%d", self._name, nack.id)
            self._ack(port, nack.id, effects)

    def _count_failed(
        self, failed: dict[int, int], reason: str, now: float, effects: Effects
    ) -> None:
        for message_id, count in failed.items():
            effects.changes.append(Tried(message_id, count))
            if self._delivery.is_exhausted(message_id):
                self._bury(message_id, reason, now, effects)

    def _touch(self, port: Port, touch: Touch, now: float) -> Reply:
        guest = self._delivery.guests.get(port)
        ms = min(touch.ms, TOUCH_MS_MAX)
        if guest is None or self._buffer.get(touch.id, now) is None:
            return Failed(touch, Code.LEASE_LOST)
        is_held = self._delivery.touch(guest, touch.id, now + ms / 1000)
        return TouchAck(touch.id, ms) if is_held else Failed(touch, Code.LEASE_LOST)

    # Dead letters.

    def _bury(self, message_id: int, reason: str, now: float, effects: Effects) -> None:
        row = self._buffer.get(message_id, now)
        if row is not None and not burial.is_last(self._name):
            self._give_up(row, reason, now, effects)
        elif row is not None:
            log.warning("dead letter dropped: channel=%r id=%d", self._name, message_id)
            self._remove(message_id, effects)

    def _give_up(self, row: Row, reason: str, now: float, effects: Effects) -> None:
        attempts = self._delivery.attempts.get(row.id, 0)
        letter = self._letters[row.id] = burial.letter_of(self._name, row, attempts, reason)
        burial.post(letter, effects)
        self._delivery.rest((row.id, 0), burial.retry_at(now, len(self._letters)))

    # Guests.

    def _join(self, port: Port, join: Join, now: float) -> Joined:
        guest = self._delivery.guests.get(port)
        if guest is None:
            if not self._delivery.guests and not self._buffer.rows:
                self._choose_mode(join)
            known = None if join.identity is None else self._recognize(port, join, now)
            guest = self._delivery.admit(port, join, known)
            self._liveness_at = min(self._liveness_at, guest.liveness.due_at(port.heard_at))
        return Joined(self._delivery.mode, guest.window)

    def _recognize(self, port: Port, join: Join, now: float) -> Known | None:
        if self._members is NOBODY:
            self._members = self._intake.members = self._delivery.members = self._members_of(None)
        is_fanout = self._delivery.mode is Mode.FANOUT
        known = self._members.enter(port, join, now, subscribes=is_fanout)
        if known is not None:
            self._delivery.introduce(known)
        return known

    def _choose_mode(self, join: Join) -> None:
        """Nothing holds the channel to its mode, but perhaps subscribers that are away (PS-05)."""
        mode = self._members.mode_for(self._settings.mode, join.mode)
        is_stopped = self._delivery.stopped
        self._delivery = self._deliver_by(mode, {})
        self._delivery.stopped = is_stopped

    def _remember(self, port: Port, effects: Effects) -> None:
        guest = self._delivery.guests.get(port)
        if guest is not None:
            effects.guests += ((port, self._delivery.rejoin(guest)),)

    def _leave(self, port: Port, now: float, effects: Effects) -> None:
        guest = self._delivery.guests.get(port)
        if guest is not None:
            self._count_failed(self._delivery.dismiss(guest), "connection lost", now, effects)
            self._members.leave(port, guest.subscription if guest.receives else None, now)
        if not self._delivery.guests:
            self._liveness_at = inf

    def _feed(self, port: Port, message: Credit | Writable) -> None:
        guest = self._delivery.guests.get(port)
        if guest is not None and isinstance(message, Credit):
            self._delivery.grant(guest, message.count)
        elif guest is not None:
            self._delivery.feed(guest)
