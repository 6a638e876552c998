"""Who is handed which message, under credit and leases (wire.md 3d, 3j). Pure: it writes nowhere.

A message is *ready* until it is *leased* to a guest; a lease ends with an ack, a nack, its timeout
or its guest. What came back may *rest*. Modes differ in whose backlog a message stands: `modes`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from millpond.actors.channels.subscribers import KnownIdentity, Subscribers
from millpond.actors.messages import Attach, Mode, Msg, Nack, NackReason, Port, Reply, Role
from millpond.actors.runtime.timers import DeadlineHeap
from millpond.actors.store.changes import StoredMessage

ACK_TIMEOUT_S_MAX = 600.0
BACKOFF_GROWTH = 1.5
JITTER_MIN, JITTER_SPAN = 0.8, 0.4
REST_S_MAX = 3600.0
LOOK_GAP_S_PER_LEASE = 2e-5


DelayKey = tuple[int, int]
"""A message, and the number of the one connection it rests for; 0: it rests for all."""


class Delivery:
    """What all modes share: leases, credit, timeouts, rest. `modes` has the subclasses."""

    __slots__ = (
        "_agenda",
        "_buffer",
        "_rests",
        "_rng",
        "_settings",
        "attempts",
        "guests",
        "hungry",
        "leases_at",
        "members",
        "receivers",
        "stopped",
        "unbegun",
    )

    mode: ClassVar[Mode]

    def __init__(
        self,
        buffer: Buffer,
        members: Subscribers,
        settings: DeliverySettings,
        rng: Random,
        attempts: dict[int, int],
    ) -> None:
        self._buffer = buffer
        self.members = members
        self._settings = settings
        self._rng = rng
        rests: dict[DelayKey, float] = {}
        self._rests = rests
        self._agenda: DeadlineHeap[DelayKey] = DeadlineHeap(
            lambda when, rest: rests.get(rest) == when
        )
        self.hungry: dict[Consumer, None] = {}
        """Who may be able to take more."""
        self.receivers: dict[Consumer, None] = {}
        """Who is pushed messages at all."""
        self.attempts = attempts
        """Failed deliveries by message; only of messages that have any."""
        self.unbegun: dict[int, int] = {}
        """How often a message was lost in a row by guests that had not begun it."""
        self.guests: dict[Port, Consumer] = {}
        self.leases_at = inf
        """No lease ends before this."""
        self.stopped = False
        """True while the node drains: nothing is pushed any more."""

    # What the modes differ in.

    def _enter(self, guest: Consumer) -> None:
        raise AssertionError("a mode gives every guest its backlog")

    def stored(self, rows: Sequence[StoredMessage]) -> None:
        """New messages stand in the buffer."""
        self.hungry.update(self.receivers)

    def ack(self, guest: Consumer, message_id: int) -> bool:
        """The guest has the message. True: it may leave the buffer."""
        self._release(guest, message_id)
        return True

    def _keeps_attempt(self) -> bool:
        """Does a lost connection count as a failed attempt?"""
        return False

    def is_exhausted(self, message_id: int) -> bool:
        """Were all attempts of the message used up?"""
        return False

    def shows(self, guest: Consumer | None, message_id: int) -> bool:
        """May LIST show the message to this guest?"""
        return True

    # What they share.

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

    def admit(self, port: Port, join: Attach, known: KnownIdentity | None = None) -> Consumer:
        """The connection enters; `known` is its identity, if that has a number."""
        guest = self.guests[port] = Consumer(port, join, self.window_for(join))
        if known is not None:
            guest.sender, guest.subscription = known.number, known.subscription
        if guest.receives:
            self._enter(guest)
            self.receivers[guest] = None
            self.hungry[guest] = None
        return guest

    def introduce(self, known: KnownIdentity) -> None:
        """An identity got its number, or a subscription: that is so on all its connections."""
        for guest in self.guests.values():
            if guest.join.identity == known.identity:
                guest.sender = known.number
                if guest.subscription is None:
                    guest.subscription = known.subscription

    def forget_senders(self, identities: set[bytes]) -> None:
        """Numbers of identities that nothing is kept of are free again."""
        for guest in self.guests.values():
            if guest.join.identity in identities:
                guest.sender = 0
                if not guest.receives:
                    # Messages put from now on do not wait for it, so its acks must not count.
                    guest.subscription = None

    def rejoin(self, guest: Consumer) -> Attach:
        """How to admit the guest again after a crash, with what it was granted since."""
        return msgspec.structs.replace(guest.join, mode=self.mode, window=guest.window)

    def dismiss(self, guest: Consumer) -> dict[int, int]:
        """The guest left: what it held is ready at once. Gives the attempts that now count."""
        del self.guests[guest.port]
        self.hungry.pop(guest, None)
        self.receivers.pop(guest, None)
        failed = {}
        for message_id, lease in guest.leases.items():
            if self._keeps_attempt() and self._is_attempt(message_id, lease):
                failed[message_id] = self._count(message_id, lease.attempt)
            self._give_back(guest, message_id)
        guest.leases.clear()
        return failed

    def feed(self, guest: Consumer) -> None:
        """The guest can take more: it got credit, or its connection has room again."""
        if guest.receives:
            self.hungry[guest] = None

    def pump(self, now: float, replies: list[tuple[Port, Reply]]) -> None:
        """Lease out what can be leased, and append the pushes to `replies`."""
        if self.stopped:
            self.hungry.clear()
        while self.hungry:
            guest, _ = self.hungry.popitem()
            if not guest.port.writable:
                continue
            backlog = guest.backlog
            assert backlog is not None, "only receivers are hungry"
            while guest.credit > 0 and guest.held_bytes < self._settings.window_bytes:
                row = backlog.next(guest, self._buffer, now)
                if row is None:
                    break
                replies.append((guest.port, self._lease(guest, row, now)))

    def _lease(self, guest: Consumer, row: StoredMessage, now: float) -> Msg:
        attempt = self.attempts.get(row.id, 0) + 1 if self.attempts else 1
        until = now + self._timeout_s(attempt)
        guest.leases[row.id] = Lease(until, attempt, len(row.data), not guest.join.reports_start)
        guest.held_bytes += len(row.data)
        guest.credit -= 1
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

    def _release(self, guest: Consumer, message_id: int, *, credit: bool = True) -> Lease | None:
        lease = guest.leases.pop(message_id, None)
        if lease is None:
            return None
        # Who had credit left was offered everything already: more credit changes nothing.
        was_full = guest.credit <= 0 or guest.held_bytes >= self._settings.window_bytes
        guest.held_bytes -= lease.size
        if credit:
            guest.credit += 1
        if was_full:
            self.feed(guest)
        return lease

    def _count(self, message_id: int, attempt: int) -> int:
        # Several guests may fail the same attempt (pair); it counts once.
        count = self.attempts[message_id] = max(self.attempts.get(message_id, 0), attempt)
        return count

    def _is_attempt(self, message_id: int, lease: Lease) -> bool:
        """Does the loss of this lease count?"""
        if lease.begun:
            return True
        count = self.unbegun.pop(message_id, 0) + 1
        if count < UNSTARTED_MAX:
            self.unbegun[message_id] = count
        return count >= UNSTARTED_MAX

    def _give_back(self, guest: Consumer, message_id: int) -> None:
        if guest.backlog is not None and message_id in self._buffer:
            guest.backlog.give_back(message_id)

    def _rest_key(self, guest: Consumer, message_id: int) -> DelayKey:
        """Whose rest it is: the message's as a whole, or that for one guest (fanout)."""
        return (message_id, 0)

    def rest(self, rest: DelayKey, until: float) -> None:
        """The message is ready again at `until`, and not before."""
        self._rests[rest] = until
        self._agenda.add(until, rest)

    def end_rest(self, rest: DelayKey) -> None:
        """The message is ready again."""
        for guest in self.receivers:
            if rest[0] not in guest.leases:
                self._give_back(guest, rest[0])
                self.hungry[guest] = None

    def nack(self, guest: Consumer, nack: Nack, now: float) -> int | None:
        """A leased message comes back. Gives its failed attempts; None: it was not leased here."""
        if nack.id not in guest.leases:
            return None
        shrinks = nack.reason is NackReason.BUSY and guest.window > 1
        if shrinks:
            guest.window -= 1
        lease = self._release(guest, nack.id, credit=not shrinks)
        assert lease is not None
        count = self._count(nack.id, lease.attempt)
        if nack.reason is NackReason.LATER and nack.delay_ms is not None:
            rest_s = min(nack.delay_ms / 1000, REST_S_MAX)
        else:
            rest_s = self._timeout_s(lease.attempt) * BACKOFF_SHARE
        self.rest(self._rest_key(guest, nack.id), now + rest_s)
        return count

    def hand_back(self, guest: Consumer, message_id: int) -> None:
        """A leased message comes back as if it had never been handed out, and is ready at once.

        Who gives back wants no more: the guest gets nothing until `grant`.
        """
        if self._release(guest, message_id) is not None:
            self.stop(guest)
            self._give_back(guest, message_id)

    def stop(self, guest: Consumer) -> None:
        """The guest wants no more: it gets nothing until `grant`."""
        guest.receives = False
        self.receivers.pop(guest, None)
        self.hungry.pop(guest, None)

    def decline(self, guest: Consumer, message_id: int) -> None:
        """The guest cannot use the message: it is not pushed to it again."""
        if self._release(guest, message_id) is not None:
            if guest.declined is None:
                guest.declined = set()
            guest.declined.add(message_id)

    def touch(self, guest: Consumer, message_id: int, until: float) -> bool:
        """Move the end of a lease. False: the guest does not hold it."""
        lease = guest.leases.get(message_id)
        if lease is None:
            return False
        guest.leases[message_id] = Lease(until, lease.attempt, lease.size, lease.begun)
        self.leases_at = min(self.leases_at, until)
        return True

    def renew(self, guest: Consumer, message_id: int, now: float) -> None:
        """A lease that the guest holds begins now, and ends no sooner than it would have."""
        lease = guest.leases[message_id]
        self.touch(guest, message_id, max(lease.until, now + self._timeout_s(lease.attempt)))

    def begin(self, guest: Consumer, message_id: int) -> None:
        """The guest works on the message, if it still holds it."""
        lease = guest.leases.get(message_id)
        if lease is not None and not lease.begun:
            guest.leases[message_id] = Lease(lease.until, lease.attempt, lease.size, True)
            if self.unbegun:
                self.unbegun.pop(message_id, None)

    def grant(self, guest: Consumer, count: int) -> None:
        if guest.backlog is not None and not guest.receives:
            guest.receives = True
            self.receivers[guest] = None
        guest.window = min(guest.window + count, 0xFFFF)
        guest.credit = min(guest.credit + count, 0xFFFF)
        self.feed(guest)

    def release(self, message_id: int) -> None:
        """Every lease on the message ends, and its credit returns, at once."""
        for guest in self.guests.values():
            if guest.leases:
                self._release(guest, message_id)

    def forget(self, message_id: int) -> None:
        """The message left the buffer: every lease on it ends, and its credit returns, at once."""
        self.attempts.pop(message_id, None)
        if self.unbegun:
            self.unbegun.pop(message_id, None)
        if self._rests:
            self._rests.pop((message_id, 0), None)
        for guest in self.guests.values():
            if guest.leases:
                self._release(guest, message_id)
            if guest.declined:
                guest.declined.discard(message_id)

    def expire_leases(self, now: float) -> dict[int, int]:
        """End the leases that are due. Gives the attempts that now count."""
        failed: dict[int, int] = {}
        if now < self.leases_at:
            return failed
        earliest = inf
        held = 0
        for guest in self.guests.values():
            for message_id, lease in list(guest.leases.items()):
                held += 1
                if lease.until > now:
                    earliest = min(earliest, lease.until)
                    continue
                self._release(guest, message_id)
                if self._is_attempt(message_id, lease):
                    failed[message_id] = self._count(message_id, lease.attempt)
                rest_s = self._timeout_s(lease.attempt) * BACKOFF_SHARE
                self.rest(self._rest_key(guest, message_id), now + rest_s)
        # Many leases end at many moments: looks at all of them keep a distance.
        self.leases_at = max(earliest, now + held * LOOK_GAP_S_PER_LEASE)
        return failed

    @property
    def rests_at(self) -> float:
        return self._agenda.next_at if self._rests else inf

    def due_rests(self, now: float) -> list[DelayKey]:
        """The rests that are over; the caller ends each with `end_rest`, or starts another."""
        if not self._rests:
            return []
        # A rest that was entered twice for one moment comes twice.
        return [rest for rest in self._agenda.due(now) if self._rests.pop(rest, None) is not None]

    @property
    def has_rests(self) -> bool:
        return bool(self._rests)

    @property
    def resting(self) -> list[int]:
        """The messages that rest for all."""
        return [message_id for message_id, number in self._rests if not number]

    def resting_until(self, message_id: int) -> float:
        """When the rest of a message ends; 0: it does not rest."""
        return self._rests.get((message_id, 0), 0.0)

    def hurry(self, message_id: int) -> None:
        """The rest of a message ends now."""
        if self._rests.pop((message_id, 0), None) is not None:
            self.end_rest((message_id, 0))

    def outlasts(self, kept: dict[int, float]) -> bool:
        """Does anything rest that a restart would not know of? It knows of those in `kept`."""
        return any(kept.get(rest[0]) != until for rest, until in self._rests.items())

    @property
    def leased(self) -> int:
        return sum(len(guest.leases) for guest in self.guests.values())
