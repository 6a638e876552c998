"""Chats between nodes in tests: what is said, and what their histories hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import msgspec

from millpond.actors.errors import UnknownStream
from millpond.node.chat.records import Kind, Record, State, conversation_stream, decode_record
from millpond.node.node import Node
from millpond.node.outbox.messages import PeerOperation
from tests.node.outbox.peer_nodes import DEADLINE_S, PeerNode


def couple(folder: Path) -> tuple[PeerNode, PeerNode]:
    alice, bob = PeerNode(folder, "alice"), PeerNode(folder, "bob")
    alice.knows(bob)
    bob.knows(alice)
    alice.learns_key_of(bob)
    bob.learns_key_of(alice)
    return alice, bob


async def ask(node: Node, operation: PeerOperation, **fields: Any) -> dict[str, Any]:
    """As the terminal or the page does, without the connection."""
    handler = node.peer_requests._handlers[operation]
    return msgspec.msgpack.decode(await handler(msgspec.msgpack.encode(fields)))


async def say(node: Node, peer: str, text: str, **fields: Any) -> dict[str, Any]:
    return await ask(node, PeerOperation.CHAT_SEND, peer=peer, text=text, **fields)


async def history(node: Node, peer: PeerNode) -> list[Record]:
    stream = node.peer_services._local_stream(conversation_stream(peer.public))
    try:
        tail = (await stream.describe()).info.tail
    except UnknownStream:
        return []
    return [decode_record(body) async for _, body in stream.read(0, tail)]


async def received(node: Node, peer: PeerNode, count: int) -> list[str]:
    """The texts that came from the peer, once there are so many."""
    with anyio.fail_after(DEADLINE_S):
        while True:
            texts = [each.text for each in await history(node, peer) if each.kind is Kind.IN]
            if len(texts) >= count:
                return texts
            await anyio.sleep(0.02)


async def states(node: Node, peer: PeerNode, final: State, count: int = 1) -> list[State]:
    """The state of a message of ours, once `count` are `final`."""
    with anyio.fail_after(DEADLINE_S):
        while True:
            told = [
                each.state
                for each in await history(node, peer)
                if each.kind is Kind.STATE and each.state is not None
            ]
            if told.count(final) >= count:
                return told
            await anyio.sleep(0.02)
