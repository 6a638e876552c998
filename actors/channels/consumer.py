"""A connection in a channel: what it may be handed, and what it holds (wire.md 3d)."""

from __future__ import annotations

from typing import Protocol

import msgspec

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.heartbeat import Heartbeat
from millpond.actors.channels.subscribers import Subscription
from millpond.actors.messages import Attach, Port
from millpond.actors.store.changes import StoredMessage


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A message is this guest's until then. `size`: bytes of its data. `begun`: it is an attempt,
    also if the guest is never heard of again."""

    until: float
    attempt: int
    size: int
    begun: bool = True


class Consumer:
    """A connection in the channel: its credit, what it holds, and how far it was served."""

    __slots__ = (
        "backlog",
        "credit",
        "cursor",
        "declined",
        "held_bytes",
        "join",
        "joined_after",
        "leases",
        "liveness",
        "port",
        "receives",
        "sender",
        "served",
        "subscription",
        "window",
    )

    def __init__(self, port: Port, join: Attach, window: int) -> None:
        self.port = port
        self.join = join
        self.window = window
        self.credit = window
        self.leases: dict[int, Lease] = {}
        self.held_bytes = 0
        self.cursor = 0
        self.joined_after = 0
        self.backlog: Backlog | None = None
        self.sender = 0
        """The number of its identity in this channel; 0: it has none, or none yet."""
        self.subscription: Subscription | None = None
        """What it has had, and what else its identity has had elsewhere (fanout)."""
        self.declined: set[int] | None = None
        self.served = 0
        self.liveness = Heartbeat(join.keep_alive_s)
        self.receives = join.push and join.role.consumes
        """False also for one that gave a job back, until it asks for more (`CREDIT`)."""


class Backlog(Protocol):
    """What has not been handed out yet, in the order of ids, to one guest or to competing ones."""

    def give_back(self, message_id: int) -> None:
        """The message is ready again, out of turn."""

    def next(self, guest: Consumer, buffer: Buffer, now: float) -> StoredMessage | None:
        """Take the lowest ready message that `guest` may have."""
