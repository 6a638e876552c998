"""Requests about streams, as a client sends them over its link."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from millpond.actors.errors import DataTooLarge, NotNegotiated
from millpond.node.client.link import Link
from millpond.transports.p2p.packets import OPERATION_BYTES, STREAM
from millpond.transports.p2p.streams.operations import Operation

T = TypeVar("T")


class StreamRequests:
    """Requests about streams over a link. One that may be repeated survives lost connections."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def ask(self, operation: Operation, body: msgspec.Struct, reply_type: type[T]) -> T:
        """Send a request and wait for the reply."""
        data = msgspec.msgpack.encode(body)
        size = OPERATION_BYTES + len(data)
        link = self.link
        link.check_open()
        requests = link.inflight.streams
        await requests.limit.acquire(size)
        is_sent = False
        try:
            session = await link.live()
            if not session.negotiated(STREAM):
                raise NotNegotiated
            if size > link.packet_max:
                raise DataTooLarge(f"the node takes packets of {link.packet_max} bytes at most")
            number, packet, pending = requests.add(operation, data)
            is_sent = True
        finally:
            if not is_sent:
                requests.limit.release(size)
        link.send(packet, at_once=requests.limit.count == 1)
        try:
            reply = await pending.wait()
        finally:
            if not pending.done and operation is Operation.READ:
                link.send(requests.cancel(number), at_once=True)
        return msgspec.msgpack.decode(reply, type=reply_type)
