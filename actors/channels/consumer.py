"""Consumers: the connections of a channel, with their credit and leases
(docs/reference/wire-protocol.md)."""

from __future__ import annotations

from typing import Protocol

import msgspec

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.heartbeat import Heartbeat
from millpond.actors.channels.subscribers import Subscription
from millpond.actors.messages import Attach, Port
from millpond.actors.store.changes import StoredMessage


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The right of one consumer to a message until then. `size` is that of its data in bytes.
    `started`: the lease counts as an attempt, also if its consumer is lost. `since`: the time of
    its push."""

    until: float
    attempt: int
    size: int
    started: bool = True
    since: float = 0.0


class Consumer:
    """A connection in the channel: its credit, its leases, and how far it got. A connection that
    only puts messages is one as well, and receives none."""

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
        """The number of its identity in this channel; 0: none, or none yet."""
        self.subscription: Subscription | None = None
        """The acked messages of its identity, here and on other connections (fanout)."""
        self.declined: set[int] | None = None
        self.last_served = 0
        self.heartbeat = Heartbeat(join.keep_alive_s)
        self.receives = join.push and join.role.consumes
        """False also after it gave a job back, until it sends CREDIT."""


def may_have(consumer: Consumer, row: StoredMessage) -> bool:
    """False for a message that the consumer put itself (PA-18), or that is too large (PS-11)."""
    if consumer.identity_number and consumer.identity_number == row.sender:
        return False
    return row.source != consumer.port.number and len(row.data) <= consumer.options.data_max


class Backlog(Protocol):
    """The ready messages of one consumer or of competing ones, in the order of ids."""

    def give_back(self, message_id: int) -> None:
        """The message is ready again, out of turn."""

    def next(self, consumer: Consumer, buffer: Buffer, now: float) -> StoredMessage | None:
        """Take the lowest ready message that `consumer` may have; None: there is none."""
