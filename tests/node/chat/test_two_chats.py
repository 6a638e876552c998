"""Two people who chat: every message once and in order, with receipts (docs/internals/peers.md)."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import anyio
import pytest

from millpond.actors.errors import DataTooLarge, EmptyData, Malformed, NotAllowed, UnknownPeer
from millpond.actors.messages import Put
from millpond.node.chat.payloads import TEXT_BYTES_MAX, Text, encode_payload
from millpond.node.chat.records import Kind, State, conversation_stream
from millpond.node.node import Node
from millpond.node.outbox.messages import PeerOperation
from millpond.node.peers.address_book import Peer, Trust
from millpond.node.peers.envelope import seal
from tests.node.chat.chat_client import ask, couple, history, received, say, states
from tests.node.outbox.peer_nodes import DEADLINE_S, PeerNode, until

pytestmark = pytest.mark.anyio


async def test_both_say_something_and_hear_what_became_of_it(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    async with alice.node() as here, bob.node() as there:
        await say(here, "bob", "hello bob")
        assert await received(there, alice, 1) == ["hello bob"]
        told = await states(here, bob, State.DELIVERED)
        assert told == sorted(told, key=list(State).index)
        await say(there, "alice", "hello alice")
        assert await received(here, bob, 1) == ["hello alice"]
        (chat,) = (await ask(there, PeerOperation.CHATS))["chats"]
        assert (chat["name"], chat["unread"], chat["read"]) == ("alice", 1, 0)
        assert chat["last"]["text"] == "hello alice"
        answer = await ask(there, PeerOperation.CHAT_READ, peer="alice", sequence=0)
        assert answer == {"unread": 0}
        assert (await states(here, bob, State.READ))[-1] is State.READ


async def test_what_is_said_while_the_other_is_away_comes_in_order(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    texts = [f"message {number}" for number in range(40)]
    async with alice.node() as here:
        for text in texts:
            await say(here, "bob", text)
        async with bob.node() as there:
            assert await received(there, alice, 40) == texts
            await states(here, bob, State.DELIVERED, 40)


async def test_what_waits_without_a_key_is_sealed_when_one_comes(tmp_path: Path) -> None:
    alice, bob = PeerNode(tmp_path, "alice"), PeerNode(tmp_path, "bob")
    alice.knows(bob)
    bob.knows(alice, dials=False)
    async with alice.node() as here:
        await say(here, "bob", "first")
        (chat,) = (await ask(here, PeerOperation.CHATS))["chats"]
        assert chat["waiting"] == 1 and chat["tail"] == 1
    async with alice.node() as here:
        await say(here, "bob", "second")
        async with bob.node() as there:
            assert await received(there, alice, 2) == ["first", "second"]


async def test_a_message_is_said_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    uuid = os.urandom(16)
    async with alice.node() as here, bob.node() as there:
        first = await say(here, "bob", "hi", uuid=uuid)
        assert await say(here, "bob", "hi", uuid=uuid) == first
        await states(here, bob, State.DELIVERED)
    async with alice.node() as here, bob.node() as there:
        assert await say(here, "bob", "hi", uuid=uuid) == first
        await say(here, "bob", "more")
        assert await received(there, alice, 2) == ["hi", "more"]


async def test_after_a_restart_all_is_as_it_was(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    async with alice.node() as here, bob.node() as there:
        await say(here, "bob", "one")
        await received(there, alice, 1)
    async with bob.node() as there:

        async def bobs() -> dict[str, object]:
            (chat,) = (await ask(there, PeerOperation.CHATS))["chats"]
            return dict(chat)

        for _ in range(200):
            if (await bobs())["tail"]:
                break
            await anyio.sleep(0.02)
        chat = await bobs()
        assert (chat["unread"], chat["tail"]) == (1, 1)


async def test_nobody_speaks_in_the_name_of_another(tmp_path: Path) -> None:
    """An envelope that Eve sealed for the channel of Alice is not shown as Alice's."""
    alice, bob = couple(tmp_path)
    eve = PeerNode(tmp_path, "eve")
    channel = conversation_stream(alice.public)
    async with bob.node() as there:
        clear = encode_payload(Text("00000001", 1, 1, "send me money"))
        envelope = seal(
            clear,
            sender=eve.identity,
            recipient=bob.public,
            prekey=there.peer_services.keyring.prekeys.current().public,
            channel=channel,
            uuid=os.urandom(16),
            entropy=os.urandom,
        )
        local = there.outbox.context.local
        await local.put(channel, Put(1, 60, envelope))
        await local.put(channel, Put(2, 60, b"no envelope at all"))
        async with alice.node() as here:
            await say(here, "bob", "it is me")
            assert await received(there, alice, 1) == ["it is me"]
        assert [each.kind for each in await history(there, alice)] == [Kind.IN]


async def test_what_is_not_understood_is_a_note_and_is_not_asked_for_again(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    async with alice.node() as here, bob.node() as there:
        await here.outbox.send(bob.public, conversation_stream(alice.public), b'{"kind":"video"}')
        records = []
        for _ in range(500):
            records = await history(there, alice)
            if records:
                break
            await anyio.sleep(0.02)
        assert [each.kind for each in records] == [Kind.NOTE]
        local = there.outbox.context.local
        await until(lambda: local.count(conversation_stream(alice.public)) == 0)


async def test_what_cannot_be_said_is_refused(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    carol = PeerNode(tmp_path, "carol")
    alice.knows(carol, trust=Trust.PINNED)
    async with alice.node() as here:
        for error, fields in (
            (UnknownPeer, {"peer": "nobody", "text": "hi"}),
            (NotAllowed, {"peer": "carol", "text": "hi"}),
            (EmptyData, {"peer": "bob", "text": "  \n"}),
            (DataTooLarge, {"peer": "bob", "text": "x" * (TEXT_BYTES_MAX + 1)}),
            (Malformed, {"peer": "bob", "text": "hi", "uuid": b"short"}),
            (Malformed, {"peer": "bob"}),
        ):
            with pytest.raises(error):
                await ask(here, PeerOperation.CHAT_SEND, **fields)
        assert await history(here, bob) == []
        chats = (await ask(here, PeerOperation.CHATS))["chats"]
        assert {each["name"]: each["trust"] for each in chats} == {
            "bob": "added",
            "carol": "pinned",
        }


async def test_nobody_waits_for_a_talk_that_never_begins(tmp_path: Path) -> None:
    """Trusted, written to, and revoked at once."""
    alice, bob = PeerNode(tmp_path, "alice"), PeerNode(tmp_path, "bob")
    async with alice.node() as here:
        book = here.outbox.context.book
        await anyio.sleep(0.1)  # it has looked into the book, and will again in a second
        book.add(Peer("bob", bob.public, Trust.ADDED, (), (), 0.0))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(is_told_that_there_is_no_bob, here)
            await until(lambda: bool(here.peer_services.chat._conversations))
            book.block("bob")


async def is_told_that_there_is_no_bob(node: Node) -> None:
    with pytest.raises(UnknownPeer), anyio.fail_after(DEADLINE_S):
        await say(node, "bob", "hi")


async def test_what_was_read_stays_read_whoever_else_is_slower(tmp_path: Path) -> None:
    """Two windows tell how far they are."""
    alice, bob = couple(tmp_path)
    async with alice.node() as here:
        async with bob.node() as there:
            for text in "abc":
                await say(here, "bob", text)
            await received(there, alice, 3)
            async with anyio.create_task_group() as tasks:
                for place in (2, 1, 0):
                    tasks.start_soon(
                        partial(ask, there, PeerOperation.CHAT_READ, peer="alice", sequence=place)
                    )
        async with bob.node() as there:
            (chat,) = (await ask(there, PeerOperation.CHATS))["chats"]
            assert (chat["unread"], chat["read"]) == (0, 3)


async def test_who_is_no_longer_trusted_is_not_written_to(tmp_path: Path) -> None:
    alice, _ = couple(tmp_path)
    async with alice.node() as here:
        await say(here, "bob", "hi")
        alice.book.block("bob")
        await until(lambda: not here.peer_services.chat._conversations)
        with pytest.raises((NotAllowed, UnknownPeer)):
            await say(here, "bob", "more")
        assert (await ask(here, PeerOperation.CHATS))["chats"] == []
