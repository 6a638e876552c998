"""The lower tier of actors: a cell is a plain object with a synchronous `handle`, without a task.

A cell's behaviour may crash and be rebuilt from the store. What must outlive it, the mail and the
guests, belongs to the cell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Protocol

import msgspec

from actors.errors import Code
from actors.messages import U64_MAX, Batch, Join, Mail, Port, Reply, StreamRequest
from actors.store.changes import Change, LogSnapshot, Row, Snapshot
from actors.store.seam import Commit, Fault, Pending
from actors.supervisor import Restarts


class Effects(msgspec.Struct):
    """What a cell wants done: changes kept first, and only then replies sent and mail posted.

    `answers` go to the port of the batch in hand, in order; `replies` to the ports they name.
    `forwards` are batches for other cells, which answer in the place of this one. `guests` are to
    be admitted like this, should the behaviour crash. `awaited` are reads of earlier batches that
    `replies` answer: they are asked again, should the changes not be kept.
    """

    changes: list[Change] = []
    answers: list[Reply] = []
    replies: list[tuple[Port, Reply]] = []
    posts: tuple[tuple[bytes, Mail], ...] = ()
    forwards: tuple[tuple[bytes, Batch], ...] = ()
    guests: tuple[tuple[Port, Join], ...] = ()
    awaited: list[tuple[Port, StreamRequest]] = []


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
    def owed(self) -> Iterable[tuple[Port, StreamRequest]]:
        """Requests that were taken and are not answered: refused, should the behaviour go."""


Content = Snapshot | LogSnapshot
"""What a cell is built from: all of a queue, or the outline of a log."""

Spawn = Callable[[bytes, Content, dict[Port, Join]], Behaviour]
"""Builds a behaviour from what is kept, with the guests that were there before a crash."""

Loading = Content | Pending[Snapshot | Fault] | Pending[LogSnapshot | Fault]
Load = Callable[[bytes], Loading]
"""Gives what a cell is built from."""


@dataclass(slots=True)
class Held:
    """What a batch does to the world outside, waiting until what came before it is kept."""

    batch: Batch | None
    effects: Effects
    commit: Commit | None


class Cell:
    """A name, a behaviour that may be missing, and what survives it."""

    __slots__ = (
        "_wake",
        "behaviour",
        "busy",
        "deadline",
        "guests",
        "held",
        "held_bytes",
        "mail",
        "mail_bytes",
        "name",
        "queued",
        "refusal",
        "restarts",
        "resumes_at",
        "used_at",
    )

    def __init__(self, name: bytes, wake: Callable[[Cell, float], None], now: float) -> None:
        self.name = name
        self._wake = wake
        self.behaviour: Behaviour | None = None
        self.busy = False
        self.queued = False
        self.deadline = inf
        self.guests: dict[Port, Join] | None = None
        self.mail: deque[Batch] | None = None
        self.mail_bytes = 0
        self.restarts: Restarts | None = None
        self.refusal: Code | None = None
        """Mail is not kept but refused, with this code: the cell is quarantined."""
        self.resumes_at = 0.0
        """After a crash: not run before this. Infinity while its state is being loaded."""
        self.held: deque[Held] | None = None
        self.held_bytes = 0
        self.used_at = now

    def wake(self, now: float) -> None:
        self._wake(self, now)

    def add_mail(self, batch: Batch, *, first: bool = False) -> None:
        """Have a batch wait, behind what waits already or before it."""
        if self.mail is None:
            self.mail = deque()
        if first:
            self.mail.appendleft(batch)
        else:
            self.mail.append(batch)
        self.mail_bytes += batch.size_bytes

    @property
    def unkept_from(self) -> int:
        """Messages from this id on are not as durable as promised yet; U64_MAX if all are.

        Who looks past what waits in line, must not look at them.
        """
        changes = (change for held in self.held or () for change in held.effects.changes)
        return next((change.id for change in changes if isinstance(change, Row)), U64_MAX)
