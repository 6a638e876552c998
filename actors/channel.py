"""A channel: keeps messages until their ack or their deadline, and pushes them to its guests.

The actor of the P2P buffer protocol. It owns its buffer, the expiry of messages and keys, the
leases of what it pushed, and the liveness of the connections in it. State table: wire.md 3j.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice, takewhile
from math import inf

from actors.buffer import Buffer
from actors.cell import Effects
from actors.delivery import Delivery
from actors.errors import Code
from actors.intake import Intake
from actors.keys import Keys
from actors.limits import ChannelSettings
from actors.liveness import survey
from actors.messages import (
    Ack,
    Batch,
    Buried,
    Bury,
    Credit,
    Drain,
    Failed,
    Get,
    GetAck,
    Join,
    Joined,
    Leave,
    List,
    ListAck,
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
from actors.pages import Page
from actors.shared import ChannelInfo, Shared
from actors.store.changes import Gone, ModeSet, Origin, Row, Snapshot, Tried

log = logging.getLogger(__name__)

DEAD_SUFFIX = b"!dead"
BURIAL_RETRY_S = 5.0
TOUCH_MS_MAX = 3_600_000


class Channel:
    """The behaviour of a channel's cell."""

    __slots__ = (
        "_buffer",
        "_delivery",
        "_dying",
        "_intake",
        "_kept_mode",
        "_keys",
        "_liveness_at",
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
        self._dying: dict[int, str] = {}
        self._liveness_at = inf
        self._kept_mode = snapshot.mode
        self._intake = Intake(self._buffer, self._keys, settings, shared)
        mode = settings.mode if snapshot.mode is None else snapshot.mode
        self._delivery = self._deliver_by(mode, snapshot.attempts)
        for port, join in guests.items():
            self._join(port, join)
        self.deadline = self._next_deadline()

    def _deliver_by(self, mode: Mode | None, attempts: dict[int, int]) -> Delivery:
        settings = self._settings.delivery
        return delivery_for(mode or Mode.PAIR, self._buffer, settings, self._shared.rng, attempts)

    @property
    def is_empty(self) -> bool:
        return not self._buffer.rows and not self._keys.rows

    @property
    def is_settled(self) -> bool:
        return not self._delivery.has_rests

    def _next_deadline(self) -> float:
        return min(
            self._buffer.expiry_at,
            self._keys.expiry_at,
            self._delivery.leases_at,
            self._delivery.rests_at,
            self._liveness_at,
        )

    @property
    def info(self) -> ChannelInfo:
        guests = self._delivery.guests.values()
        return ChannelInfo(
            name=self._name,
            mode=self._delivery.mode.name.lower(),
            messages=len(self._buffer.rows),
            bytes=self._buffer.bytes,
            keys=len(self._keys.rows),
            leased=self._delivery.leased,
            connections=len(guests),
            credit=sum(guest.credit for guest in guests if guest.receives),
        )

    def export(self, after: int, below: int) -> Iterator[tuple[Row, int]]:
        """Messages between two ids with their failed deliveries; read on while nothing changes."""
        attempts = self._delivery.attempts
        rows = takewhile(lambda row: row.id < below, self._buffer.after(after, 0.0))
        return ((row, attempts.get(row.id, 0)) for row in rows)

    def handle(self, batch: Batch, now: float) -> Effects:
        """Everything of one read of one connection; pushes follow once, at the end."""
        effects = Effects()
        intake = self._intake
        intake.room.is_measured = False
        answers = effects.answers
        port = batch.port
        for message in batch.messages:
            if port is None:
                self._take(message, now, effects)
                continue
            # The two messages of every day come first, and without another call.
            reply: Reply | None
            if type(message) is Put:
                reply = intake.put(message, port.number, now, effects, self)
            elif type(message) is Ack:
                self._ack(port, message.id, effects)
                continue
            else:
                reply = self._answer(port, message, now, effects)
            if reply is not None:
                answers.append(reply)
        if intake.fresh:
            self._take_in(effects)
        self._push(now, effects)
        return effects

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
                return self._get(port, message, now)
            case List():
                return self._list(port, message, now)
            case Touch():
                reply = self._touch(port, message, now)
            case Join():
                reply = self._join(port, message)
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
                self._keep_dead(message, now, effects)
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
        self._count_failed(self._delivery.expire_leases(now), "no ack", now, effects)
        for rest in self._delivery.due_rests(now):
            if rest[0] in self._dying:
                self._bury(rest[0], self._dying[rest[0]], now, effects)
            else:
                self._delivery.end_rest(rest)
        if now >= self._liveness_at:
            ports = ((guest.port, guest.liveness) for guest in self._delivery.guests.values())
            verdicts, self._liveness_at = survey(ports, now)
            effects.replies.extend(verdicts)
        self._push(now, effects)
        self.deadline = self._next_deadline()
        return effects

    # Messages in and out.

    def _get(self, port: Port, get: Get, now: float) -> Reply:
        row = self._buffer.get(get.id, now)
        if row is None:
            return Failed(get, Code.NOT_FOUND)
        guest = self._delivery.guests.get(port)
        if guest is not None and len(row.data) > guest.join.data_max:
            return Failed(get, Code.TOO_LARGE_FOR_PEER)
        return GetAck(row.id, row.data)

    def _list(self, port: Port, request: List, now: float) -> ListAck:
        guest = self._delivery.guests.get(port)
        page = Page.asked(request, cursors=guest is not None and guest.join.cursor_lists)
        limit = self._settings.list_page if page.limit is None else page.limit
        if guest is not None:
            limit = min(limit, guest.join.data_max // 8)
        ids = self._buffer.between(page.low, page.high, now, newest_first=page.newest_first)
        shown = (each for each in ids if self._delivery.shows(guest, each))
        return ListAck(list(islice(shown, limit)))

    def sweep(self, now: float, effects: Effects) -> None:
        """Remove the expired messages that a slice of the buffer shows."""
        for row in self._buffer.sweep(now):
            self._remove(row.id, effects)

    def _remove(self, message_id: int, effects: Effects) -> None:
        row = self._buffer.remove(message_id)
        if row is None:
            return
        self._intake.room.messages += 1
        self._intake.room.bytes += len(row.data)
        self._dying.pop(message_id, None)
        self._delivery.forget(message_id)
        effects.changes.append(Gone(message_id, row.key, self._keys.settle(row), len(row.data)))

    # What consumers say of messages.

    def _ack(self, port: Port, message_id: int, effects: Effects) -> None:
        if message_id not in self._buffer.rows:
            self._shared.counters.late_acks += 1
            return
        guest = self._delivery.guests.get(port)
        if guest is not None and self._delivery.ack(guest, message_id):
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
        is_kept = self._buffer.get(touch.id, now) is not None
        if (
            guest is None
            or not is_kept
            or not self._delivery.touch(guest, touch.id, now + ms / 1000)
        ):
            return Failed(touch, Code.LEASE_LOST)
        return TouchAck(touch.id, ms)

    # Dead letters (PS-14): the message rests here until its dead-letter channel has it.

    def _bury(self, message_id: int, reason: str, now: float, effects: Effects) -> None:
        row = self._buffer.get(message_id, now)
        if row is None:
            return
        if self._name.endswith(DEAD_SUFFIX):
            log.warning("dead letter dropped: channel=%r id=%d", self._name, message_id)
            self._remove(message_id, effects)
            return
        self._dying[message_id] = reason
        self._delivery.rest((message_id, 0), now + BURIAL_RETRY_S)
        attempts = self._delivery.attempts.get(message_id, 0)
        letter = Bury(self._name, message_id, attempts, reason, row.data)
        effects.posts += ((self._name + DEAD_SUFFIX, letter),)

    def _keep_dead(self, letter: Bury, now: float, effects: Effects) -> None:
        # The id of the dead message is its key here, so a letter posted twice is kept once.
        if letter.id not in self._keys.rows:
            intake, ttl = self._intake, self._settings.dead_ttl
            intake.room.measure()
            origin = Origin(letter.id, letter.attempts, letter.reason)
            if not intake.room.fits(len(letter.data)) or not intake.keep(
                letter.id, ttl, letter.data, now, effects, 0, origin
            ):
                log.warning("dead letter refused for now: channel=%r", self._name)
                return
        effects.posts += ((letter.channel, Buried(letter.id)),)

    # Guests.

    def _join(self, port: Port, join: Join) -> Joined:
        guest = self._delivery.guests.get(port)
        if guest is None:
            if not self._delivery.guests and not self._buffer.rows:
                mode = join.mode if self._settings.mode is None else self._settings.mode
                is_stopped = self._delivery.stopped
                self._delivery = self._deliver_by(mode, {})
                self._delivery.stopped = is_stopped
            guest = self._delivery.admit(port, join)
            self._liveness_at = min(self._liveness_at, guest.liveness.due_at(port.heard_at))
        return Joined(self._delivery.mode, guest.window)

    def _remember(self, port: Port, effects: Effects) -> None:
        guest = self._delivery.guests.get(port)
        if guest is not None:
            effects.guests += ((port, self._delivery.rejoin(guest)),)

    def _leave(self, port: Port, now: float, effects: Effects) -> None:
        guest = self._delivery.guests.get(port)
        if guest is not None:
            failed = self._delivery.dismiss(guest)
            self._count_failed(failed, "connection lost", now, effects)
        if not self._delivery.guests:
            self._liveness_at = inf

    def _feed(self, port: Port, message: Credit | Writable) -> None:
        guest = self._delivery.guests.get(port)
        if guest is None:
            return
        if isinstance(message, Credit):
            self._delivery.grant(guest, message.count)
        else:
            self._delivery.feed(guest)
