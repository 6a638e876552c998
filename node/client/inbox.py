"""The inbox of a channel: pushed messages that wait, and ids that are settled
(docs/reference/wire-protocol.md)."""

from __future__ import annotations

from collections import OrderedDict, deque

import anyio
import msgspec

from millpond.actors.messages import Ack, Msg
from millpond.transports.p2p.packets import encode

SETTLED_MAX = 4096
ACKS_MAX = 65_536


class Counts(msgspec.Struct, gc=False):
    """Counts of a channel since `connect`, for logs and metrics."""

    connections: int = 0
    delivered: int = 0
    duplicates: int = 0
    overflowed: int = 0
    malformed: int = 0


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A push and the connection that brought it, numbered from 1: the lease ends with it."""

    msg: Msg
    connection: int


class Inbox:
    """Pushed messages: delivered at least once (P2P-15), but not after they were acknowledged here.

    At most `size_max` messages wait. A node that keeps to its window never exceeds that with
    messages whose leases hold, so on overflow the oldest is dropped: its lease has run out, or it
    will be pushed again.
    """

    def __init__(self, counts: Counts) -> None:
        self.size_max = 1
        self.acks: deque[int] = deque(maxlen=ACKS_MAX)
        self._counts = counts
        self._waiting: OrderedDict[int, Delivery] = OrderedDict()
        self._settled: OrderedDict[int, None] = OrderedDict()
        self._arrived = anyio.Event()
        self._error: Exception | None = None

    def set_size_max(self, count: int) -> None:
        """At most so many messages wait, and one at least."""
        self.size_max = max(1, count)

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, msg: Msg, connection: int) -> bytes | None:
        """Take a push. Returns the ack of an empty or settled message, which is sent at once."""
        if not msg.data or msg.id in self._settled:
            self._counts.duplicates += msg.id in self._settled
            return encode(Ack(msg.id))
        if msg.id in self._waiting:
            self._counts.duplicates += 1
        elif len(self._waiting) >= self.size_max:
            self._counts.overflowed += 1
            self._waiting.popitem(last=False)
        if not self._waiting:
            self._arrived.set()  # a task that waits found none
        self._waiting[msg.id] = Delivery(msg, connection)
        return None

    def settle(self, message_id: int) -> bytes:
        """The message is acknowledged and will not be delivered again. Returns its MSG_ACK."""
        self._settled.pop(message_id, None)
        self._settled[message_id] = None
        if len(self._settled) > SETTLED_MAX:
            self._settled.popitem(last=False)
        self._waiting.pop(message_id, None)
        return encode(Ack(message_id))

    def take_nowait(self) -> Delivery | None:
        """The oldest waiting push, or None."""
        if not self._waiting:
            return None
        self._counts.delivered += 1
        return self._waiting.popitem(last=False)[1]

    async def take(self) -> Delivery:
        """Wait for a push. Raises what `fail` was given, once nothing waits any more."""
        while (delivery := self.take_nowait()) is None:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self._arrived.is_set():
                self._arrived = anyio.Event()
            await self._arrived.wait()
        return delivery

    def lost(self) -> None:
        """The connection ended: waiting messages will be pushed again."""
        self._waiting.clear()

    def fail(self, error: Exception) -> None:
        """No message will arrive any more."""
        self.end_in_child(error)
        self._arrived.set()

    def end_in_child(self, error: Exception) -> None:
        """`fail`, where the tasks that wait are those of another process."""
        self._error = error
        self._waiting.clear()
