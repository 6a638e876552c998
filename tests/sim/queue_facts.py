"""Facts of a queue: what its partition must, may and must not hold, by what was written to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from millpond.actors.channels.idempotency import MOVE_KEYS
from millpond.actors.messages import Mode
from millpond.actors.store.changes import (
    AttemptsSet,
    KeyExpired,
    KeyRetained,
    MessageRemoved,
    ModeSet,
    Snapshot,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.message_attributes import DueAt
from millpond.actors.store.subscribers import SUBSCRIBER_CHANGES
from tests.sim.durability_levels import Level as Level
from tests.sim.durability_levels import View as View
from tests.sim.durability_levels import Write as Write
from tests.sim.subscriber_facts import SubscriberFacts


@dataclass(eq=False)
class Fact:
    """A message that was written.

    `gone` took it away; `ghosts` would have, and failed. `is_lost`: no key speaks for it.
    `identity`: who put it. `owed`: who was subscribed when it was put, without that one.
    """

    row: StoredMessage
    write: Write
    gone: Write | None = None
    has_key: bool = True
    is_lost: bool = False
    ghosts: list[Write] = field(default_factory=list)
    tried: list[tuple[Write, int]] = field(default_factory=list)
    due: list[tuple[Write, float]] = field(default_factory=list)
    identity: bytes | None = None
    owed: set[bytes] = field(default_factory=set)


def due_of(snapshot: Snapshot, message_id: int) -> float:
    """The end of a message's retry delay, as far as the store knows; 0: none."""
    return 0.0 if snapshot.attributes is None else snapshot.attributes.due.get(message_id, 0.0)


class QueueFacts:
    """Everything ever written to one queue. `keeps_expired`: as dead letters, when they expire."""

    def __init__(self, *, keeps_expired: bool = False) -> None:
        self.keeps_expired = keeps_expired
        self.subscribers = SubscriberFacts()
        self.has_acked: Callable[[bytes, int], bool] = lambda identity, message_id: True
        self.facts: dict[int, Fact] = {}
        self.by_key: dict[int, Fact] = {}
        self.forgotten: dict[int, Write] = {}
        self.moves: dict[int, tuple[Write, int]] = {}
        """By their keys: the write of a move, and the message that it added."""
        self.modes: list[tuple[Write, Mode]] = []

    def record(self, write: Write) -> None:
        for change in write.changes:
            if isinstance(change, SUBSCRIBER_CHANGES):
                self.subscribers.record(write, change)
        for change in write.changes:
            match change:
                case StoredMessage():
                    fact = self.facts[change.id] = Fact(change, write)
                    fact.identity = self.subscribers.names.get(change.sender)
                    fact.owed = self.subscribers.owed(change)
                    self.by_key[change.key] = fact
                    self.forgotten.pop(change.key, None)
                case MessageRemoved(id=message_id):
                    fact = self.facts[message_id]
                    fact.gone, fact.has_key = write, change.left is not None
                case KeyRetained(key=key, left=left):
                    self.moves[key] = write, left.id
                    self.forgotten.pop(key, None)
                case KeyExpired():
                    self.forgotten[change.key] = write
                case AttemptsSet(id=message_id):
                    self.facts[message_id].tried.append((write, change.attempts))
                case DueAt(id=message_id, at=at):
                    self.facts[message_id].due.append((write, at))
                case ModeSet():
                    self.modes.append((write, change.mode))
                case _ if isinstance(change, SUBSCRIBER_CHANGES):
                    pass
                case _:
                    raise AssertionError(f"a channel never says {change}")

    def undo(self, write: Write) -> None:
        """The write failed: what it took away is there still."""
        self.subscribers.undo(write)
        for fact in self.facts.values():
            if fact.gone is write:
                fact.gone, fact.has_key = None, True
                fact.ghosts.append(write)

    @property
    def last_id(self) -> int:
        """The highest of a message that is there, or was promised to be: ids only ascend."""
        known = (
            fact
            for fact in self.facts.values()
            if fact.write.level is Level.DISK or not fact.is_lost
        )
        return max((fact.row.id for fact in known), default=0)

    def knows_dead_letter(self, dead_letter: StoredMessage, now: float) -> bool:
        """Is there another dead letter of the same message, whose key or move is remembered?"""
        key = dead_letter.key
        fact = self.by_key.get(key)
        if fact is None or fact.write.level is Level.FAILED or fact.is_lost:
            return False
        move = MOVE_KEYS | key
        is_moved = move in self.moves and move not in self.forgotten
        return is_moved or (fact.row.until > now and key not in self.forgotten)

    # Faults of a snapshot.

    def check(self, snapshot: Snapshot, view: View) -> Iterator[str]:
        rows = {row.id: row for row in snapshot.rows}
        if list(rows) != sorted(rows) or len(rows) != len(snapshot.rows):
            yield f"rows are not in the order of their ids: {list(rows)}"
        for message_id in rows.keys() - self.facts.keys():
            yield f"message {message_id} was never put"
        for message_id, fact in self.facts.items():
            yield from self._check_row(fact, rows.get(message_id), view)
            yield from self._check_key(fact, snapshot, view)
            if message_id in rows:
                yield from self._check_tried(fact, snapshot.attempts.get(message_id, 0), view)
                yield from self._check_due(fact, due_of(snapshot, message_id), view)
        if rows:
            yield from self._check_mode(snapshot.mode, view)
        yield from self._check_moves(snapshot, view)
        yield from self._check_senders(snapshot, view)
        yield from self.subscribers.check(snapshot, view, self.has_acked)

    def _check_senders(self, snapshot: Snapshot, view: View) -> Iterator[str]:
        """A check that the senders of messages and keys are known."""
        found = {} if snapshot.subscribers is None else snapshot.subscribers.by_number
        kept = [row for row in snapshot.rows if row.expires_at > view.now]
        ids = {row.id for row in kept}
        ids |= {each.id for each in snapshot.keys.values() if each.until > view.now}
        for message_id in ids & self.facts.keys():
            fact = self.facts[message_id]
            subscriber = found.get(fact.row.sender)
            if fact.identity != (None if subscriber is None else subscriber.identity):
                yield f"message {message_id} is of {fact.identity!r}, and now of {subscriber}"

    def _check_row(self, fact: Fact, row: StoredMessage | None, view: View) -> Iterator[str]:
        known = fact.row
        if row is None:
            is_due = view.must(fact.write) and (self.keeps_expired or known.expires_at > view.now)
            if is_due and fact.gone is None and not any(map(view.may, fact.ghosts)):
                yield f"message {known.id} (key {known.key}) is lost"
            return
        if view.must_not(fact.write):
            yield f"message {known.id} is there although its PUT failed"
        if fact.gone is not None and view.counts(fact.gone):
            yield f"message {known.id} is back after it left"
        same = (known.key, known.ttl, known.expires_at, known.data, known.origin)
        if (row.key, row.ttl, row.expires_at, row.data, row.origin) != same:
            yield f"message {known.id} is {row}, not {known}"

    def _check_key(self, fact: Fact, snapshot: Snapshot, view: View) -> Iterator[str]:
        known = fact.row
        kept = snapshot.keys.get(known.key)
        if self.by_key.get(known.key) is not fact or fact.is_lost:
            return
        forgotten = self.forgotten.get(known.key)
        if forgotten is not None and (forgotten.level >= 0 or view.may(forgotten)):
            # One whose window is over harms nobody.
            if kept is not None and kept.until > view.now and view.counts(forgotten):
                yield f"key {known.key} is back after it was forgotten"
        elif view.must(fact.write) and fact.has_key and known.until > view.now:
            if kept is None:
                yield f"key {known.key} of message {known.id} is forgotten"
            elif (kept.id, kept.until) != (known.id, known.until):
                yield f"key {known.key} stands for {kept}, not {known}"
            elif isinstance(kept, StoredKey) and kept.digest != sha256(known.data).digest():
                yield f"key {known.key} has the digest of other data"

    def _check_moves(self, snapshot: Snapshot, view: View) -> Iterator[str]:
        """A check that moves are remembered until the message has left where it was."""
        for key, (write, message_id) in self.moves.items():
            kept, forgotten = snapshot.keys.get(key), self.forgotten.get(key)
            if forgotten is not None and (forgotten.level >= 0 or view.may(forgotten)):
                if kept is not None and view.counts(forgotten):
                    yield f"the move of message {message_id} is back after it was forgotten"
            elif view.must(write) and (kept is None or kept.id != message_id):
                yield f"the move of message {message_id} is {kept}"

    def _check_tried(self, fact: Fact, attempts: int, view: View) -> Iterator[str]:
        allowed: set[int] = {0}
        for write, count in fact.tried:
            view.allow(allowed, write, count)
        if attempts not in allowed:
            yield f"message {fact.row.id} was tried {attempts} times, not {allowed}"

    def _check_due(self, fact: Fact, due: float, view: View) -> Iterator[str]:
        allowed = {0.0}
        for write, at in fact.due:
            view.allow(allowed, write, at)
        if due not in allowed:
            yield f"message {fact.row.id} is due at {due}, not {allowed}"

    def _check_mode(self, mode: Mode | None, view: View) -> Iterator[str]:
        allowed: set[Mode | None] = {None}
        for write, each in self.modes:
            view.allow(allowed, write, each)
        if mode not in allowed:
            yield f"the mode is {mode}, not {allowed}"

    def settle(self, snapshot: Snapshot, seen: Write) -> None:
        """After a restart, what was found is what is; `seen` stands for its moment.

        A message that is gone must not come back once a later write is kept.
        """
        rows = {row.id for row in snapshot.rows}
        self.subscribers.settle(snapshot, seen)
        for message_id, fact in list(self.facts.items()):
            is_known = getattr(snapshot.keys.get(fact.row.key), "id", 0) == message_id
            fact.ghosts.clear()
            if message_id in rows:
                fact.gone, fact.has_key = None, True
                if fact.write.level is Level.FAILED:
                    fact.write = Write(seen.name, [], seen.boot)
                fact.tried = [(seen, snapshot.attempts.get(message_id, 0))]
                fact.due = [(seen, due_of(snapshot, message_id))]
            else:
                if fact.gone is None or fact.gone.level < Level.DISK:
                    fact.gone = seen
                fact.is_lost = fact.is_lost or not is_known
        for key in [key for key in self.forgotten if key in snapshot.keys]:
            del self.forgotten[key]
        self.moves = {key: each for key, each in self.moves.items() if key in snapshot.keys}
        failed = [each for each in self.modes if each[0].is_failed]
        self.modes = [(seen, snapshot.mode)] if snapshot.mode is not None else []
        self.modes += failed
