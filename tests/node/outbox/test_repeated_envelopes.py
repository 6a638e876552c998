"""Messages from peers that a client of their recipient puts into their channel once more. The node
accepts that, as data is opaque to it; the uuid tells (docs/internals/threat-model.md)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import anyio
import pytest

from millpond.actors.messages import Ack, Put
from millpond.node.chat.payloads import Text, encode_payload
from millpond.node.chat.records import conversation_stream
from millpond.node.node import Node
from tests.node.chat.chat_client import couple, received, say
from tests.node.outbox.peer_nodes import DEADLINE_S, PeerNode, opened, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def pair(tmp_path: Path) -> tuple[PeerNode, PeerNode]:
    return couple(tmp_path)


async def taken(node: Node, channel: bytes) -> bytes:
    """A message as it is stored, out of its channel."""
    with anyio.fail_after(DEADLINE_S), node.outbox.context.local.consumer(channel, 1) as consumer:
        message = await consumer.receive()
        consumer.settle(Ack(message.id))
    return message.data


async def test_what_is_put_again_is_opened_again_and_has_its_uuid(
    pair: tuple[PeerNode, PeerNode],
) -> None:
    alice, bob = pair
    async with alice.node() as here, bob.node() as there:
        sent = await here.outbox.send(bob.public, b"notes", b"pay 5")
        envelope = await taken(there, b"notes")
        for key in (7, 8):
            await there.outbox.context.local.put(b"notes", Put(key, 600, envelope))
        found = await opened(there, b"notes", 2)
    assert {(each.sender, each.plaintext) for each in found} == {(alice.public, b"pay 5")}
    assert [each.uuid for each in found] == [sent.uuid] * 2


async def test_the_chat_shows_what_is_put_again_once(pair: tuple[PeerNode, PeerNode]) -> None:
    alice, bob = pair
    channel = conversation_stream(alice.public)
    async with alice.node() as here, bob.node() as there:
        clear = encode_payload(Text("5f3a9c01", 1, int(time.time() * 1000), "first"))
        key = there.peer_services.keyring.local_key
        envelope = key.seal(alice.public, os.urandom(16), clear, channel)  # as the node stores it
        for number in range(3):
            await there.outbox.context.local.put(channel, Put(number, 600, envelope))
        await until(lambda: there.outbox.context.local.count(channel) == 0)
        await say(here, "bob", "second")
        assert await received(there, alice, 2) == ["first", "second"]
