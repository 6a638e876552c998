"""Sealed messages between the nodes of a world."""

from __future__ import annotations

import anyio
import msgspec

from millpond.actors.messages import Ack
from millpond.node.node import Node
from millpond.node.outbox.outbox import QueuedMessage
from millpond.node.testing.inline_threads import running_as_node

WINDOW = 1


class SealedMessage(msgspec.Struct, frozen=True):
    """An opened message: the sender by its name in the address book, and the clear text."""

    sender: str
    data: bytes
    id: int


async def send(node: Node, peer: str, channel: str, data: bytes, ttl: float) -> QueuedMessage:
    """Seal a message for a peer, and store it until it is delivered; see `Outbox.send`."""
    public = public_of(node, peer)
    with running_as_node():
        return await node.outbox.send(public, channel.encode(), data, ttl)


async def read(node: Node, channel: str, timeout_s: float) -> SealedMessage:
    """The next sealed message of a channel, opened and acknowledged.

    Raises TimeoutError and CannotOpen.
    """
    name = channel.encode()
    with (
        running_as_node(),
        anyio.fail_after(timeout_s),
        node.outbox.context.local.consumer(name, WINDOW) as consumer,
    ):
        message = await consumer.receive()
        opened = await node.outbox.open(name, message.data)
        consumer.settle(Ack(message.id))
    known = node.peer_services.keyring.book.by_public(opened.sender)
    return SealedMessage("" if known is None else known.name, opened.plaintext, message.id)


def public_of(node: Node, peer: str) -> bytes:
    """The key of a peer by its name. Raises LookupError if the two are not linked."""
    found = node.peer_services.keyring.book.by_name(peer)
    if found is None:
        raise LookupError(f"{peer!r} is no peer of this node: link the two first")
    return found.public
