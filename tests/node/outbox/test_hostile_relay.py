"""A relay whose owner is not on our side: it alters, drops, repeats, reorders and forges (3e, 3f).

It is a real node, and its owner does with the mailboxes on it whatever he likes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from millpond.actors.messages import Ack, Msg, Put
from millpond.node.node import Node
from millpond.node.outbox.context import DeliveryStatus
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.relayed_message import (
    RelayedMessage,
    decode_relayed_message,
    encode_relayed_message,
)
from tests.node.outbox.peer_nodes import DEADLINE_S, PeerNode, leave, opened, read, remaining, until

pytestmark = pytest.mark.anyio


class Trap:
    """Alice and Bob, between whom everything goes by way of Mallory."""

    def __init__(self, folder: Path) -> None:
        self.alice = PeerNode(folder, "alice")
        self.bob = PeerNode(folder, "bob", via=("mallory",))
        self.mallory = PeerNode(folder, "mallory", relay=True)
        self.alice.knows(self.bob, dials=False, relays=(self.mallory.as_relay,))
        self.bob.knows(self.alice, dials=False)
        for person in (self.alice, self.bob):
            person.knows(self.mallory)
            self.mallory.knows(person, dials=False)
        self.alice.learns_key_of(self.bob)
        self.reports: list[DeliveryStatus] = []

    async def taken(self, relay: Node, *texts: bytes) -> list[RelayedMessage]:
        """The envelope that Alice sends, out of Bob's mailbox at the relay."""
        async with self.alice.node() as here:
            here.outbox.on_status(self._hear)
            for text in texts:
                await here.outbox.send(self.bob.public, b"notes", text)
            await until(lambda: here.outbox.queued(self.bob.public) == 0)
        return await _emptied(relay, mailbox_of(self.bob.public), len(texts))

    async def _hear(self, peer: bytes, uuids: Sequence[bytes], fate: DeliveryStatus) -> None:
        self.reports.extend(fate for _ in uuids)


async def _emptied(node: Node, channel: bytes, count: int) -> list[RelayedMessage]:
    found: list[Msg] = []
    with anyio.fail_after(DEADLINE_S), node.outbox.context.local.consumer(channel, 64) as consumer:
        while len(found) < count:
            found.append(await consumer.receive())
            consumer.settle(Ack(found[-1].id))
    return [decode_relayed_message(each.data) for each in found]


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


def _flipped(data: bytes, place: int) -> bytes:
    place %= len(data)
    return data[:place] + bytes((data[place] ^ 0x40,)) + data[place + 1 :]


ALTERED: dict[str, Callable[[RelayedMessage], RelayedMessage]] = {
    "version": lambda relayed: replace(relayed, envelope=_flipped(relayed.envelope, 1)),
    "prekey": lambda relayed: replace(relayed, envelope=_flipped(relayed.envelope, 3)),
    "ephemeral": lambda relayed: replace(relayed, envelope=_flipped(relayed.envelope, 20)),
    "text": lambda relayed: replace(relayed, envelope=_flipped(relayed.envelope, 170)),
    "tag": lambda relayed: replace(relayed, envelope=_flipped(relayed.envelope, -1)),
}
"""The relay's own change of a message, by the part of the envelope that it is on."""


@pytest.mark.parametrize("part", sorted(ALTERED))
async def test_an_altered_message_is_dropped_and_harms_no_other(trap: Trap, part: str) -> None:
    """Also not when it comes before the true one."""
    async with trap.mallory.node() as relay:
        (relayed,) = await trap.taken(relay, b"the true words")
        await leave(relay, trap.bob.public, ALTERED[part](relayed), key=1)
        await leave(relay, trap.bob.public, relayed, key=2)
        async with trap.bob.node() as there:
            await until(lambda: relay.outbox.queued(trap.bob.public) == 0)
            assert await read(there, b"notes") == [b"the true words"]
            assert await remaining(there, b"notes") == []


async def test_a_misdirected_message_is_not_taken_for_another(trap: Trap) -> None:
    """To another recipient, or with a channel outside: the true one is inside."""
    async with trap.mallory.node() as relay:
        (relayed,) = await trap.taken(relay, b"for notes alone")
        astray = [
            replace(relayed, recipient=trap.mallory.public),
            replace(relayed, channel=b"notes"),
            replace(relayed, channel=mailbox_of(trap.alice.public)),
        ]
        for key, each in enumerate(astray):
            await leave(relay, trap.bob.public, each, key)
        async with trap.bob.node() as there:
            await until(lambda: relay.outbox.queued(trap.bob.public) == 0)
            for channel in (b"notes", mailbox_of(trap.alice.public)):
                assert await remaining(there, channel) == []
            # And its mail goes on.
            await leave(relay, trap.bob.public, relayed)
            (found,) = await opened(there, b"notes")
            assert found.plaintext == b"for notes alone"


async def test_what_is_dropped_was_never_said_to_be_delivered(trap: Trap) -> None:
    async with trap.mallory.node() as relay:
        await trap.taken(relay, b"lost")
        async with trap.bob.node() as there:
            await anyio.sleep(0.3)
            assert await remaining(there, b"notes") == []
    assert trap.reports == [DeliveryStatus.SENT]


async def test_a_repeated_message_is_there_once(trap: Trap) -> None:
    """While it waits to be read, and after it was."""
    async with trap.mallory.node() as relay:
        (relayed,) = await trap.taken(relay, b"once")
        async with trap.bob.node() as there:
            for key in range(5):
                await leave(relay, trap.bob.public, replace(relayed, hops=key % 3), key)
            await until(lambda: relay.outbox.queued(trap.bob.public) == 0)
            (found,) = await opened(there, b"notes")
            assert found.plaintext == b"once"
            for key in range(5, 10):
                await leave(relay, trap.bob.public, relayed, key)
            await until(lambda: relay.outbox.queued(trap.bob.public) == 0)
            assert await remaining(there, b"notes") == []
        async with trap.bob.node() as there:
            await leave(relay, trap.bob.public, relayed, 10)
            await until(lambda: relay.outbox.queued(trap.bob.public) == 0)
            assert await remaining(there, b"notes") == []


async def test_messages_out_of_order_all_arrive(trap: Trap) -> None:
    """The order of what is read is for the chat to mend, which has a number in each message."""
    texts = [b"%d" % number for number in range(12)]
    async with trap.mallory.node() as relay:
        messages = await trap.taken(relay, *texts)
        for relayed in reversed(messages):
            await leave(relay, trap.bob.public, relayed, int.from_bytes(os.urandom(4), "big"))
        async with trap.bob.node() as there:
            assert sorted(each.plaintext for each in await opened(there, b"notes", 12)) == sorted(
                texts
            )


async def test_what_a_relay_signs_itself_is_dropped(trap: Trap) -> None:
    """Mallory can write to Bob, and say that he is Alice; but a relay is no contact."""
    forged = trap.mallory.letter_to(trap.bob, b"I am alice", hops=1)
    async with trap.mallory.node() as relay, trap.bob.node() as there:
        await leave(relay, trap.bob.public, forged)
        await until(lambda: there.outbox.context.dropped == {"relay_sender": 1})
        assert await remaining(there, b"notes") == []


async def test_invalid_messages_are_dropped_and_forwarding_goes_on(trap: Trap) -> None:
    junk = [b"x", b"\xe3\x01", b"\xe3\x02" + bytes(200), os.urandom(300)]
    async with trap.mallory.node() as relay, trap.bob.node() as there:
        relayed = trap.alice.letter_to(trap.bob, b"after it")
        junk += [
            encode_relayed_message(relayed)[:-1],
            b"\xe3\x01\x09" + encode_relayed_message(relayed)[3:],
        ]
        name = mailbox_of(trap.bob.public)
        for key, each in enumerate(junk):
            await relay.outbox.context.local.put(name, Put(key, 600, each))
        await leave(relay, trap.bob.public, relayed, 99)
        (found,) = await opened(there, b"notes")
        assert found.plaintext == b"after it"
        await until(lambda: relay.outbox.queued(trap.bob.public) == 0)
