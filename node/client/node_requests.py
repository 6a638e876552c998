"""Requests about channels by name, as a client sends them over its link: packet 90."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from millpond.actors.errors import DataTooLarge, NotNegotiated
from millpond.node.client.future import ReplyFuture
from millpond.node.client.link import Link
from millpond.transports.p2p.packets import ADMIN, OPERATION_BYTES

T = TypeVar("T")
Request = Callable[[int, bytes], tuple[bytes, ReplyFuture[bytes]]]


class NodeRequests:
    """Requests about channels by name over a link. 64 are under way at once; others wait."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def ask(self, operation: int, body: msgspec.Struct, reply_type: type[T]) -> T:
        """Send a request and wait for the reply. Raises RequestErrors, DataTooLarge among them;
        OutcomeUnknown when the connection ends before the reply."""
        data = msgspec.msgpack.encode(body)
        link, limit = self.link, self.link.inflight.channels_limit
        await limit.acquire(len(data))
        try:
            reply = await send_operation(link, ADMIN, link.inflight.admin, operation, data)
        finally:
            limit.release(len(data))
        return msgspec.msgpack.decode(reply, type=reply_type)


async def send_operation(
    link: Link, packet_type: int, request: Request, operation: int, body: bytes
) -> bytes:
    """Send an operation of a packet type, and wait for the body of the reply."""
    link.check_open()
    limit, size = link.inflight.operations_limit, OPERATION_BYTES + len(body)
    if not limit.acquire_nowait(size):
        await limit.acquire(size)
    is_sent = False
    try:
        session = await link.live()
        if not session.negotiated(packet_type):
            raise NotNegotiated
        if size > link.packet_max:
            raise DataTooLarge(f"the node takes packets of {link.packet_max} bytes at most")
        packet, reply = request(operation, body)
        is_sent = True
    finally:
        if not is_sent:
            limit.release(size)
    link.send(packet, at_once=True)
    return await reply.wait()
