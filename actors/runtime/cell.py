"""Cells: actors that are plain objects with a synchronous `handle`, without a task.

A cell's behaviour may crash and be built anew from the store. Everything that must outlive it
belongs to the cell: the mailbox, the attached connections, and effects that wait for the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf
from typing import Protocol, cast, runtime_checkable

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import (
    U64_MAX,
    Attach,
    Batch,
    CellMessage,
    DeferredRequest,
    Detach,
    Port,
    Reply,
)
from millpond.actors.runtime.supervisor import Restarts
from millpond.actors.store.changes import Change, LogSnapshot, Snapshot, StoredMessage
from millpond.actors.store.interface import Commit, Deferred, Fault

LATE_S = 0.04
"""Effects that waited for less than this leave on time: the difference is not worth its cost."""


class Effects(msgspec.Struct):
    """The outcome of a batch: changes are stored first, only then are replies and messages sent.

    `batch_replies` go to the port of the batch, in order; `port_replies` to the ports they name;
    `urgent` replies do not wait for the store. `posts` are messages to other cells, `forwards`
    batches for other cells, which answer in place of this one. `attachments` are the options with
    which a connection is attached again after a crash. `deferred` are requests of earlier batches
    that `port_replies` answer: they are handled again if the changes are lost. `withheld` are ids
    of removed messages whose removal is not among the changes yet.
    """

    changes: list[Change] = []
    batch_replies: list[Reply] = []
    port_replies: list[tuple[Port, Reply]] = []
    urgent: Sequence[tuple[Port, Reply]] = ()
    posts: tuple[tuple[bytes, CellMessage], ...] = ()
    forwards: tuple[tuple[bytes, Batch], ...] = ()
    attachments: tuple[tuple[Port, Attach], ...] = ()
    deferred: list[tuple[Port, DeferredRequest]] = []
    withheld: tuple[int, ...] = ()


class Behaviour(Protocol):
    """The logic of a cell. Synchronous, so nothing interleaves; without I/O, so it never waits."""

    deadline: float
    """The time at which `wake` has work to do; infinity = never. May be early, must not be late."""

    def handle(self, batch: Batch, now: float) -> Effects: ...

    def wake(self, now: float) -> Effects:
        """Act on the time: `deadline` has passed, or a connection or the node asks for it."""

    @property
    def is_empty(self) -> bool:
        """Nothing is stored: without connections the cell can be forgotten."""

    @property
    def can_passivate(self) -> bool:
        """Without connections, nothing would be lost by building it anew from the store."""

    @property
    def unanswered(self) -> Iterable[tuple[Port, DeferredRequest]]:
        """Requests that were taken and not answered: refused if the behaviour is given up."""


@runtime_checkable
class ReleaseObserver(Protocol):
    """A behaviour that is told what becomes of its effects while they wait for the store."""

    def delayed(self, pending: Iterable[Effects], now: float) -> None:
        """These effects still wait, and time passes: called before `wake`."""

    def detaching(self, port: Port, pending: Iterable[Effects]) -> None:
        """A connection is about to be detached while these effects wait: it gets none of them."""

    def revise(self, effects: Effects) -> None:
        """These effects leave late: take out replies that are out of date."""

    def released(self, late: Iterable[Effects], now: float) -> None:
        """These effects have left late."""

    def hand_over(self, lost: Collection[Effects]) -> object:
        """The state for the next behaviour, as the changes of these effects are lost."""

    def take_over(self, handover: object) -> None:
        """Take what the behaviour before this one handed over."""


@runtime_checkable
class ClockObserver(Protocol):
    """A behaviour that is told of steps of the node's time."""

    def clock_moved(self, seconds: float) -> None:
        """The time moved forward by so much at once: leases do not end by it."""

    def limit_deadlines(self, now: float) -> None:
        """No deadline is further ahead than it was asked to be: a clock that was wrong gave it."""


CellSnapshot = Snapshot | LogSnapshot
"""The stored state that a cell is built from: all of a queue, or the metadata of a log."""

Spawn = Callable[[bytes, CellSnapshot, dict[Port, Attach]], Behaviour]
"""Builds a behaviour from what is stored, with the connections that were attached before."""

Loading = CellSnapshot | Deferred[Snapshot | Fault] | Deferred[LogSnapshot | Fault]
Load = Callable[[bytes], Loading]
"""Gives the stored state of a cell."""


class PendingEffects(msgspec.Struct):
    """The effects of a batch, waiting until the changes before them are stored."""

    batch: Batch | None
    effects: Effects
    commit: Commit | None


class Cell:
    """A name, a behaviour that may be missing, and everything that outlives a crash of it."""

    __slots__ = (
        "_handover",
        "_wake",
        "attachments",
        "behaviour",
        "deadline",
        "is_busy",
        "is_queued",
        "late",
        "mailbox",
        "mailbox_bytes",
        "name",
        "pending",
        "pending_bytes",
        "pending_since",
        "rebuilds_at",
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
        """Batches are refused with this code: the cell is quarantined."""
        self.resumes_at = 0.0
        """After a crash: not run before this. Infinity while its state is being loaded."""
        self.rebuilds_at = 0.0
        """After a write that failed it is not built anew before this, but by a request."""
        self.pending: deque[PendingEffects] | None = None
        self.pending_since = 0.0
        self.pending_bytes = 0
        self.late: list[Effects] | None = None
        """Effects that have left late; None: those that wait are not late, as most never are."""
        self._handover: object = None
        """The state that the next behaviour takes over from the one that was given up."""
        self.used_at = now

    def wake(self, now: float) -> None:
        self._wake(self, now)

    def handle_behind_pending(self, batch: Batch | None, now: float) -> Effects:
        """Handle a batch, or look at the clock, while effects of earlier batches may wait."""
        behaviour = self.behaviour
        assert behaviour is not None, "a cell is activated before it handles anything"
        if self.pending and (observer := _observer(behaviour)) is not None:
            waiting = (each.effects for each in self.pending)
            if batch is None:
                self.late = self.late or []
                observer.delayed(waiting, now)
            elif batch.port is not None and Detach in map(type, batch.messages[-1:]):
                self.late = self.late or []
                observer.detaching(batch.port, waiting)
        return behaviour.wake(now) if batch is None else behaviour.handle(batch, now)

    def revise(self, effects: Effects) -> None:
        """These effects leave late: without what is out of date by now."""
        if self.late is not None and (observer := _observer(self.behaviour)) is not None:
            observer.revise(effects)
            self.late.append(effects)

    def end_release(self, fault: Fault | None, now: float) -> None:
        """Pending effects have left. After a fault they are lost, and the behaviour knows what the
        store does not: it is built anew; attachments and mailbox stay."""
        if fault is not None:
            self.behaviour = None
        elif self.late and (observer := _observer(self.behaviour)) is not None:
            observer.released(self.late, now)
        self.late = [] if self.pending and self.late is not None else None

    def give_up(self, lost: Collection[Effects]) -> None:
        """The changes of these effects are lost, and the behaviour is about to go."""
        if (observer := _observer(self.behaviour)) is not None:
            self._handover = observer.hand_over(lost)

    def keep_end(self, batch: Batch) -> None:
        """A batch is dropped. If its connection detaches in it, the next behaviour has to see that:
        it takes over what the one before knew of this connection."""
        if self._handover is not None and Detach in map(type, batch.messages):
            self.enqueue(Batch(batch.port, [Detach()]))

    def revive(self, behaviour: Behaviour) -> Behaviour:
        """The cell's new behaviour, built from what is stored."""
        self.behaviour = behaviour
        handover, self._handover = self._handover, None
        if handover is not None and (observer := _observer(behaviour)) is not None:
            observer.take_over(handover)
        return behaviour

    def enqueue(self, batch: Batch, *, first: bool = False) -> None:
        """Put a batch into the mailbox, behind what is there or before it."""
        if self.mailbox is None:
            self.mailbox = deque()
        if first:
            self.mailbox.appendleft(batch)
        else:
            self.mailbox.append(batch)
        self.mailbox_bytes += batch.size_bytes

    @property
    def unstored_from(self) -> int:
        """Messages from this id on are not as durable as promised yet; U64_MAX if all are.

        A reader that does not wait behind pending effects must not see them.
        """
        changes = (change for each in self.pending or () for change in each.effects.changes)
        return next((change.id for change in changes if isinstance(change, StoredMessage)), U64_MAX)


_OBSERVERS: dict[type, bool] = {}
"""Asked once for each class of behaviours: to look at the methods of a protocol takes 25 us."""


def _observer(behaviour: object) -> ReleaseObserver | None:
    kind = type(behaviour)
    if kind not in _OBSERVERS:
        _OBSERVERS[kind] = issubclass(kind, ReleaseObserver)
    return cast("ReleaseObserver", behaviour) if _OBSERVERS[kind] else None
