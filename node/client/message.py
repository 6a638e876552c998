"""A pushed message: a consumer acknowledges it, returns it, or extends its lease."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from millpond.actors.errors import LeaseLost, NotNegotiated
from millpond.actors.messages import AttemptStarted, Nack, NackReason
from millpond.node.client.inbox import Delivery
from millpond.node.client.link import Link
from millpond.transports.p2p.packets import BEGUN, TOUCH, encode

if TYPE_CHECKING:
    from millpond.node.client.channel import Channel

MS_MAX = 2**32 - 1


class Message:
    """A pushed message. `async with message` acknowledges it on success, returns it on an error.

    Cancellation does neither: the node pushes the message again once its lease is over.
    """

    __slots__ = ("_connection", "_link", "_settled", "attempt", "channel", "data", "id")

    id: int
    data: bytes
    attempt: int
    channel: Channel

    def __init__(self, delivery: Delivery, channel: Channel, link: Link) -> None:
        self.id = delivery.msg.id
        self.data = delivery.msg.data
        self.attempt = delivery.msg.attempt
        self.channel = channel
        self._connection = delivery.connection
        self._link = link
        self._settled = False

    def __repr__(self) -> str:
        return f"Message(id={self.id}, attempt={self.attempt}, data={self.data[:40]!r})"

    async def ack(self) -> None:
        """Acknowledge: the node forgets the message. Also sent on a later connection."""
        self._settled = True
        await self.channel.ack(self.id)

    async def nack(self, delay: float | None = None, *, reject: bool = False) -> None:
        """Return the message: for another attempt, in `delay` seconds, or as a dead letter."""
        delay_ms = None if delay is None or reject else _milliseconds(delay)
        self._return(NackReason.REJECT if reject else NackReason.LATER, delay_ms)

    async def decline(self) -> None:
        """Refuse a message that cannot be read here: it is kept, and not pushed here again."""
        self._return(NackReason.CANNOT_DECRYPT, None)

    def _return(self, reason: NackReason, delay_ms: int | None) -> None:
        self._settled = True
        if self._link.error is not None:
            raise self._link.error.with_traceback(None)
        session = self._link.session
        # The lease ended with the connection: the node pushes the message again anyway.
        if session is not None and session.number == self._connection:
            self._link.send(encode(Nack(self.id, reason, delay_ms)))

    @property
    def leased(self) -> bool:
        """Whether its connection is live: the lease ends with that, at the latest."""
        session = self._link.session
        return session is not None and session.number == self._connection

    def begin(self, *, at_once: bool = True) -> None:
        """Tell the node that work begins: from now on, losing the lease is a failed attempt.

        For channels opened with `begins`; for others every push counts as begun. Not `at_once`: it
        is sent together with what else this pass of the loop sends.
        """
        session = self._link.session
        if session is not None and session.number == self._connection:
            if session.negotiated(BEGUN):
                self._link.send(encode(AttemptStarted(self.id)), at_once=at_once)

    async def touch(self, seconds: float) -> float:
        """Extend the lease to so many seconds from now; the seconds granted. Raises LeaseLost."""
        session = await self._link.live()
        if session.number != self._connection:
            raise LeaseLost("the connection that held the lease ended")
        if not session.negotiated(TOUCH):
            raise NotNegotiated
        packet, reply = self._link.inflight.touch(self.id, _milliseconds(seconds))
        self._link.send(packet, at_once=True)
        return await reply.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._settled:
            return
        if error is None:
            await self.ack()
        elif isinstance(error, Exception) and self._link.error is None:
            await self.nack()


def _milliseconds(seconds: float) -> int:
    milliseconds = round(seconds * 1000)
    if not 0 <= milliseconds <= MS_MAX:
        raise ValueError(f"{seconds} seconds cannot be sent")
    return milliseconds
