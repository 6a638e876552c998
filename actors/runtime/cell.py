"""The lower tier of actors: a cell is a plain object with a synchronous `handle`, without a task.

A cell's behaviour may crash and be rebuilt from the store. What must outlive it, the mail and the
guests, belongs to the cell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol, runtime_checkable

import msgspec

from millpond.actors.channels.consumer import Lease
from millpond.actors.errors import Code
from millpond.actors.messages import (
    U64_MAX,
    Attach,
    Batch,
    CellMessage,
    Detach,
    Msg,
    Port,
    Reply,
    StreamRequest,
)
from millpond.actors.runtime.supervisor import Restarts
from millpond.actors.store.changes import Change, LogSnapshot, Snapshot, StoredMessage
from millpond.actors.store.interface import Commit, Deferred, Fault

LATE_S = 0.04
"""A lease may begin so long before its message leaves: the difference is not worth its cost."""


class Effects(msgspec.Struct):
    """What a cell wants done: changes kept first, and only then replies sent and mail posted.

    `answers` go to the port of the batch in hand, in order; `replies` to the ports they name.
    `forwards` are batches for other cells, which answer in the place of this one. `attachments` are
    to be admitted like this, should the behaviour crash. `awaited` are reads of earlier batches
    that `replies` answer: they are asked again, should the changes not be kept. `withheld`:
    messages that left, of which the store does not hear yet.
    """

    changes: list[Change] = []
    answers: list[Reply] = []
    replies: list[tuple[Port, Reply]] = []
    posts: tuple[tuple[bytes, CellMessage], ...] = ()
    forwards: tuple[tuple[bytes, Batch], ...] = ()
    attachments: tuple[tuple[Port, Attach], ...] = ()
    awaited: list[tuple[Port, StreamRequest]] = []
    withheld: tuple[int, ...] = ()


class Behaviour(Protocol):
    """What a cell does. Synchronous, so nothing interleaves; without I/O, so it never waits."""

    deadline: float
    """When `wake` has work to do; infinity = never. May be early, must not be late."""

    def handle(self, batch: Batch, now: float) -> Effects: ...

    def wake(self, now: float) -> Effects:
        """`deadline` passed, or something else needs a look at the clock."""

    @property
    def is_empty(self) -> bool:
        """Nothing is kept: without guests the cell can be forgotten."""

    @property
    def is_settled(self) -> bool:
        """Without guests, nothing would be lost by building it anew from the store."""

    @property
    def unanswered(self) -> Iterable[tuple[Port, StreamRequest]]:
        """Requests that were taken and are not answered: refused, should the behaviour go."""


@runtime_checkable
class LeaseHolder(Protocol):
    """A behaviour that hands out messages for a time (`lending`)."""

    def postpone(self, pushes: Iterable[tuple[Port, Msg]], now: float) -> None:
        """These wait in line: what they hand out is in nobody's hands yet."""

    def recall(self, pushes: Iterable[tuple[Port, Msg]]) -> None:
        """These will not leave: nobody has begun what they hand out."""

    def is_owed(self, port: Port, push: Msg) -> bool:
        """Is what a push hands out still there, and meant for this port?"""

    def restart(self, pushes: Iterable[tuple[Port, Msg]], now: float) -> None:
        """These have left, later than they were made: their time begins now."""

    def loans(self, unsent: Iterable[tuple[Port, Msg]]) -> list[tuple[Port, int, Lease]]:
        """What others have in hand; what these were to hand out is not."""

    def lend_again(self, loans: Iterable[tuple[Port, int, Lease]]) -> None:
        """What others had in hand when a behaviour before this one was given up."""

    def gone(self, lost: Iterable[Effects]) -> list[int]:
        """What has left, and the store has not heard of; what left with these effects has not."""

    def go_again(self, gone: Iterable[int]) -> None:
        """What had left when a behaviour before this one was given up."""


CellSnapshot = Snapshot | LogSnapshot
"""What a cell is built from: all of a queue, or the outline of a log."""

Spawn = Callable[[bytes, CellSnapshot, dict[Port, Attach]], Behaviour]
"""Builds a behaviour from what is kept, with the guests that were there before a crash."""

Loading = CellSnapshot | Deferred[Snapshot | Fault] | Deferred[LogSnapshot | Fault]
Load = Callable[[bytes], Loading]
"""Gives what a cell is built from."""


@dataclass(slots=True)
class PendingEffects:
    """What a batch does to the world outside, waiting until what came before it is kept."""

    batch: Batch | None
    effects: Effects
    commit: Commit | None


class Cell:
    """A name, a behaviour that may be missing, and what survives it."""

    __slots__ = (
        "_wake",
        "attachments",
        "behaviour",
        "deadline",
        "gone",
        "is_busy",
        "is_queued",
        "late",
        "loans",
        "mailbox",
        "mailbox_bytes",
        "name",
        "pending",
        "pending_bytes",
        "pending_since",
        "refusal",
        "restarts",
        "resumes_at",
        "used_at",
    )

    def __init__(self, name: bytes, wake: Callable[[Cell, float], None], now: float) -> None:
        self.name = name
        self._wake = wake
        self.behaviour: Behaviour | None = None
        self.is_busy = False
        self.is_queued = False
        self.deadline = inf
        self.attachments: dict[Port, Attach] | None = None
        self.mailbox: deque[Batch] | None = None
        self.mailbox_bytes = 0
        self.restarts: Restarts | None = None
        self.refusal: Code | None = None
        """Mail is not kept but refused, with this code: the cell is quarantined."""
        self.resumes_at = 0.0
        """After a crash: not run before this. Infinity while its state is being loaded."""
        self.pending: deque[PendingEffects] | None = None
        self.pending_since = 0.0
        """Since when anything waits in line, if anything does."""
        self.pending_bytes = 0
        self.late: list[tuple[Port, Msg]] | None = None
        """Pushes that have left since time passed while they were in line; None: it did not."""
        self.loans: Sequence[tuple[Port, int, Lease]] = ()
        """What the guests have in hand, of a behaviour that was given up."""
        self.gone: Sequence[int] = ()
        """What had left it, and its store did not know."""
        self.used_at = now

    def wake(self, now: float) -> None:
        self._wake(self, now)

    def look(self, batch: Batch | None, now: float) -> Effects:
        """Have the behaviour look at the clock, or at a batch while effects wait in line. For
        pushes that do no time passes, and who leaves before them never had what they hand out."""
        behaviour = self.behaviour
        assert behaviour is not None, "there is nothing that could look"
        is_leave = batch is not None and Detach in map(type, batch.messages[-1:])
        lender = lender_in(behaviour) if self.pending and (batch is None or is_leave) else None
        if lender is not None:
            self.late = self.late or []
            pushes = pushes_in(self.pending or ())
            if batch is None:
                lender.postpone(pushes, now)
            else:
                lender.recall(each for each in pushes if each[0] is batch.port)
        return behaviour.wake(now) if batch is None else behaviour.handle(batch, now)

    def end_wait(self, now: float) -> None:
        """Effects are about to leave: late, if they waited for a while."""
        if self.late is None and now >= self.pending_since + LATE_S:
            self.late = []

    def part(self, effects: Effects) -> None:
        """These effects leave late: without pushes of what is gone meanwhile."""
        lender, late = lender_in(self.behaviour), self.late
        if late is None or lender is None:
            return
        left = []
        for port, reply in effects.replies:
            if isinstance(reply, Msg):
                if not lender.is_owed(port, reply):
                    continue
                late.append((port, reply))
            left.append((port, reply))
        effects.replies = left

    def settle(self, fault: Fault | None, now: float) -> None:
        """Effects that were held have left, or will not. After a fault the behaviour knows what the
        store does not: it has to be built anew; guests and mail stay."""
        if fault is not None:
            self.behaviour = None
        elif self.late and (lender := lender_in(self.behaviour)) is not None:
            lender.restart(self.late, now)
        self.late = [] if self.pending and self.late is not None else None

    def give_up(self, lost: Collection[PendingEffects]) -> None:
        """The behaviour is about to go, and these effects with it: remember who has what."""
        lender = lender_in(self.behaviour)
        if lender is not None:
            self.loans = lender.loans(pushes_in(lost))
            self.gone = lender.gone(held.effects for held in lost)

    def revive(self, behaviour: Behaviour) -> Behaviour:
        """The cell's new behaviour, built from what is kept; told who has what."""
        self.behaviour = behaviour
        loans, self.loans = self.loans, ()
        gone, self.gone = self.gone, ()
        if (loans or gone) and (lender := lender_in(behaviour)) is not None:
            lender.go_again(gone)
            lender.lend_again(loans)
        return behaviour

    def put_in_mailbox(self, batch: Batch, *, first: bool = False) -> None:
        """Have a batch wait, behind what waits already or before it."""
        if self.mailbox is None:
            self.mailbox = deque()
        if first:
            self.mailbox.appendleft(batch)
        else:
            self.mailbox.append(batch)
        self.mailbox_bytes += batch.size_bytes

    @property
    def unkept_from(self) -> int:
        """Messages from this id on are not as durable as promised yet; U64_MAX if all are.

        Who looks past what waits in line, must not look at them.
        """
        changes = (change for held in self.pending or () for change in held.effects.changes)
        return next((change.id for change in changes if isinstance(change, StoredMessage)), U64_MAX)


def lender_in(behaviour: object) -> LeaseHolder | None:
    """The behaviour, if it is one that lends."""
    return behaviour if isinstance(behaviour, LeaseHolder) else None


def pushes_in(held: Iterable[PendingEffects]) -> list[tuple[Port, Msg]]:
    """The pushes that wait in line."""
    return [
        (port, reply)
        for each in held
        for port, reply in each.effects.replies
        if isinstance(reply, Msg)
    ]
