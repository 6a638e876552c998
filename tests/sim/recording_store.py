"""A store that records what was written to it and what it replied.

It stands between the scheduler and the real store for as long as the test lives, over all restarts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from millpond.actors.messages import Durability
from millpond.actors.store.changes import (
    AttemptsSet,
    Change,
    Chunk,
    DeadlineSet,
    LogSnapshot,
    MessageRemoved,
    Snapshot,
    StoredMessage,
)
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.interface import (
    Commit,
    Deferred,
    Fault,
    Health,
    PartitionUsage,
    Seek,
    StoredQueue,
    Usage,
)
from millpond.actors.store.message_attributes import DueAt
from millpond.actors.store.subscribers import (
    Acked,
    AckedUpTo,
    Subscriber,
    SubscriberRemoved,
    SubscriberTouched,
)
from tests.sim.log_facts import LogFacts
from tests.sim.queue_facts import Fact, Level, QueueFacts, View, Write

T = TypeVar("T")

LEVELS = {
    Durability.MEMORY: Level.OPEN,
    Durability.OS: Level.OS,
    Durability.DISK: Level.DISK,
}


class Broken(BaseException):
    """A promise was not kept. No Exception, or it would be taken for a crash of some cell."""


def is_log(name: bytes) -> bool:
    return name.startswith(b"log")


def named_by(changes: Sequence[Change]) -> tuple[set[int], set[int]]:
    """Messages that these changes add, and subscribers that they name."""
    ids = {each.id for each in changes if isinstance(each, StoredMessage)}
    subscribers = (
        each.number
        for each in changes
        if isinstance(each, Subscriber | SubscriberTouched | SubscriberRemoved)
    )
    return ids, set(subscribers)


def stays(change: Change, ids: set[int], subscribers: set[int]) -> bool:
    """Is it said again although what was before it is lost: these messages and subscribers?"""
    match change:
        case (
            MessageRemoved(id=message_id)
            | AttemptsSet(id=message_id)
            | DeadlineSet(id=message_id)
            | DueAt(id=message_id)
        ):
            return message_id not in ids
        case Acked(number=number, id=message_id) | AckedUpTo(number=number, id=message_id):
            return number not in subscribers and message_id not in ids
        case _:
            return False


class RecordingStore:
    """Implements `Store` and `LogStore` by the store of this boot."""

    def __init__(self, now: Callable[[], float], durability: Callable[[bytes], Durability]) -> None:
        self._now = now
        self.durability = durability
        self.store: DurableStore
        self.usage: Usage
        self.health: Health
        self.boot = 0
        self.queues: dict[bytes, QueueFacts] = {}
        self.logs: dict[bytes, LogFacts] = {}
        self.may_leave: Callable[[bytes, Fact], bool] = lambda name, fact: True
        self.make_facts: Callable[[bytes], QueueFacts] = lambda name: QueueFacts()
        self.commits = 0
        self.doubtful: set[bytes] = set()
        """Logs of which a write failed while others were on their way."""
        self._open: deque[Write] = deque()
        self._failed: list[Write] = []
        self.may_refuse: Callable[[bytes], bool] = lambda name: False
        self.newest_segment: Callable[[], Path | None] = lambda: None
        self._written: list[Write] = []
        """The writes of this boot."""

    def start(self, store: DurableStore) -> None:
        """A new boot: nothing is on its way."""
        self.store = store
        self.usage, self.health = store.usage, store.health
        self.boot += 1
        self._open.clear()
        self._written.clear()
        self.doubtful.clear()

    def queue(self, name: bytes) -> QueueFacts:
        if name not in self.queues:
            self.queues[name] = self.make_facts(name)
        return self.queues[name]

    def log(self, name: bytes) -> LogFacts:
        return self.logs.setdefault(name, LogFacts())

    def promised(self, name: bytes) -> View:
        """The writes that must be there as long as the node runs."""
        return View(LEVELS[self.durability(name)], is_restart=False, now=self._now())

    # The store's side.

    def write(self, name: bytes, changes: Sequence[Change]) -> Commit | None:
        write = Write(name, list(changes), self.boot)
        self._check_ids(name, write)
        facts = self.log(name) if is_log(name) else self.queue(name)
        facts.record(write)
        self._open.append(write)
        self._written.append(write)
        if not is_log(name):
            self._check_gone(name, write)
        commit = self.store.write(name, changes)
        write.commit = commit
        if commit is not None:
            commit.when_done(lambda fault: self._done(write, fault))
        return commit

    def _check_ids(self, name: bytes, write: Write) -> None:
        if is_log(name):
            return
        facts = self.queue(name)
        top = facts.last_id
        for change in write.changes:
            if not isinstance(change, StoredMessage):
                continue
            if change.id <= top:
                raise Broken(f"id {change.id} in {name!r} is not above {top}")
            if change.origin is not None and facts.knows_dead_letter(change, self._now()):
                raise Broken(f"message {change.origin.id} becomes a dead letter twice")

    def _check_gone(self, name: bytes, write: Write) -> None:
        for fact in self.queue(name).facts.values():
            if fact.gone is write and not self.may_leave(name, fact):
                raise Broken(f"message {fact.row.id} of {name!r} leaves without a reason")

    def _done(self, write: Write, fault: Fault | None) -> None:
        if write.boot != self.boot:
            raise Broken("a store that is gone reports")
        if fault is not None:
            self._fail(write)
            return
        self.commits += 1
        if write not in self._open:
            return  # as another of the same commit
        self._raise(write)

    def _fail(self, write: Write) -> None:
        """It is not kept, nor is what its cell said after it, but of what was kept before."""
        at = self._open.index(write)
        later = [each for each in list(self._open)[at + 1 :] if each.name == write.name]
        ids, subscribers = named_by(write.changes)
        self._undo(write)
        for each in later:
            if each.commit is None:
                place = self._open.index(each)
                self._undo(each)
                stands = [change for change in each.changes if stays(change, ids, subscribers)]
                subscribers |= named_by([it for it in each.changes if it not in stands])[1]
                again = Write(each.name, stands, each.boot)
                self._open.insert(place, again)
                self._written.append(again)
                self.queue(each.name).record(again)
        if is_log(write.name):
            self.doubtful.add(write.name)
        self.doubtful -= {name for name in self.doubtful if self.log(name).is_settled}

    def _undo(self, write: Write) -> None:
        write.level = Level.FAILED
        self._failed.append(write)
        self._open.remove(write)
        (self.logs if is_log(write.name) else self.queues)[write.name].undo(write)

    def _raise(self, write: Write) -> None:
        """Writes before a kept write are kept as well, and those of the same commit."""
        for failed in self._failed:
            failed.is_sealed = True
        self._failed.clear()
        together = [at for at, each in enumerate(self._open) if each.commit is write.commit]
        level = max(LEVELS[self.durability(self._open[at].name)] for at in together)
        last = together[-1]
        segment = self.newest_segment()
        for each in list(self._open)[: last + 1]:
            each.segment = each.segment or segment
            each.level = max(each.level, level)
        while self._open and self._open[0].level is Level.DISK:
            self._open.popleft()

    def load(self, name: bytes) -> Snapshot | Deferred[Snapshot | Fault]:
        answer = self.store.load(name)
        self._when_read(
            name, answer, lambda snapshot: self.queue(name).check(snapshot, self.promised(name))
        )
        return answer

    def partition_usage(self, name: bytes) -> PartitionUsage:
        return self.store.partition_usage(name)

    def stored_queues(self) -> Iterator[StoredQueue]:
        return self.store.stored_queues()

    def log_snapshot(self, name: bytes) -> LogSnapshot | Deferred[LogSnapshot | Fault]:
        facts, first = self.log(name), self.log(name).kept(self.promised(name))
        answer = self.store.log_snapshot(name)
        self._when_read(name, answer, lambda outline: facts.check_outline(outline, first))
        return answer

    def read(self, name: bytes, seek: Seek) -> list[Chunk] | Deferred[list[Chunk] | Fault]:
        facts, first = self.log(name), self.log(name).kept(self.promised(name))
        answer = self.store.read(name, seek)
        self._when_read(
            name,
            answer,
            lambda chunks: facts.check_read(chunks, seek, first, self.promised(name)),
        )
        return answer

    def _when_read(
        self,
        name: bytes,
        answer: T | Deferred[T | Fault],
        check: Callable[[T], Iterator[str]],
    ) -> None:
        def done(result: T | Fault) -> None:
            if not isinstance(result, Fault):
                self.raise_faults(name, check(result))
            elif result is Fault.UNREADABLE or self.may_refuse(name):
                return
            else:
                raise Broken(f"{name!r} is {result}")

        if isinstance(answer, Deferred):
            answer.when_done(done)
        else:
            done(answer)

    def raise_faults(self, name: bytes, faults: Iterator[str]) -> None:
        found = list(faults)
        if found:
            raise Broken(f"{name!r}: " + "; ".join(found))

    # The restart's side.

    def found_queue(self, name: bytes, snapshot: Snapshot, view: View) -> None:
        """Check the queue that a restart found; it is the queue from now on."""
        if self.durability(name) is Durability.MEMORY:
            self.queues.pop(name, None)
        facts = self.queue(name)
        self.raise_faults(name, facts.check(snapshot, view))
        facts.settle(snapshot, self._moment(name))
        usage = self.store.partition_usage(name)
        size = sum(len(row.data) for row in snapshot.rows)
        if (usage.messages, usage.bytes) != (len(snapshot.rows), size):
            raise Broken(f"{name!r} counts {usage}, and has {len(snapshot.rows)} of {size} bytes")

    def found_log(self, name: bytes, outline: LogSnapshot, chunks: list[Chunk], view: View) -> None:
        """Check the log that a restart found; it is the log from now on."""
        self.raise_faults(name, self.log(name).found(outline, chunks, view))

    def last_id(self, level: Level) -> int:
        """The highest message id that is at least so safe, of all queues on the disk."""
        return max(
            (
                fact.row.id
                for name, facts in self.queues.items()
                if self.durability(name) is not Durability.MEMORY
                for fact in facts.facts.values()
                if fact.write.level is Level.DISK
                or (not fact.is_lost and fact.write.level >= level)
            ),
            default=0,
        )

    def doubt(self, segment: Path | None) -> None:
        """Writes of this boot into a segment, or perhaps into it, are not for sure any more."""
        for write in self._written:
            if write.segment in (None, segment):
                write.level = min(write.level, Level.OPEN)

    def _moment(self, name: bytes) -> Write:
        moment = Write(name, [], self.boot)
        self._open.append(moment)
        self._written.append(moment)
        return moment

    def show(self, name: bytes, message_id: int, *, is_there: bool = True) -> Fact:
        """Somebody sees a message: it must be as durable as promised, from now on for sure.

        A PUT tried again is told of one that is not there any more.
        """
        fact = self.queue(name).facts.get(message_id)
        if fact is None:
            raise Broken(f"message {message_id} is shown and was never put")
        view = self.promised(name)
        if fact.write.boot == self.boot and fact.write.changes and not view.must(fact.write):
            raise Broken(f"message {message_id} of {name!r} is shown before it is durable")
        if is_there and fact.gone is not None and fact.gone.boot < self.boot:
            raise Broken(f"message {message_id} of {name!r} is shown after it left")
        fact.write.level = max(fact.write.level, view.level)
        return fact
