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
    """A message is this consumer's until then. `size`: bytes of its data. `started`: it is an
    attempt, also if the consumer is never heard of again."""

    until: float
    attempt: int
    size: int
    started: bool = True


class Consumer:
    """A connection in the channel: its credit, what it holds, and how far it was last_served."""

    __slots__ = (
        "backlog",
        "credit",
        "cursor",
        "declined",
        "heartbeat",
        "identity_number",
        "last_served",
        "leased_bytes",
        "leases",
        "options",
        "port",
        "receives",
        "starts_after",
        "subscription",
        "window",
    )

    def __init__(self, port: Port, join: Attach, window: int) -> None:
        self.port = port
        self.options = join
        self.window = window
        self.credit = window
        self.leases: dict[int, Lease] = {}
        self.leased_bytes = 0
        self.cursor = 0
        self.starts_after = 0
        self.backlog: Backlog | None = None
        self.identity_number = 0
        """The number of its identity in this channel; 0: it has none, or none yet."""
        self.subscription: Subscription | None = None
        """What it has had, and what else its identity has had elsewhere (fanout)."""
        self.declined: set[int] | None = None
        self.last_served = 0
        self.heartbeat = Heartbeat(join.keep_alive_s)
        self.receives = join.push and join.role.consumes
        """False also for one that gave a job back, until it asks for more (`CREDIT`)."""


class Backlog(Protocol):
    """What has not been handed out yet, in the order of ids, to one consumer or to competing
    ones."""

    def give_back(self, message_id: int) -> None:
        """The message is ready again, out of turn."""

    def next(self, consumer: Consumer, buffer: Buffer, now: float) -> StoredMessage | None:
        """Take the lowest ready message that `consumer` may have."""
