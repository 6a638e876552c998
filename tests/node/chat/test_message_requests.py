"""Message requests: what a stranger can leave at a node, and what becomes of it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from millpond.actors.errors import UnknownPeer
from millpond.node.chat import message_requests
from millpond.node.chat.payloads import Receipt, Text, encode_payload
from millpond.node.chat.records import State, conversation_stream
from millpond.node.node import Node
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.messages import PeerOperation
from millpond.node.outbox.relayed_message import RelayedMessage
from millpond.node.peers.address_book import Trust
from millpond.node.peers.peer_store import Statement
from millpond.node.peers.safety_number import safety_number
from tests.node.chat.chat_client import ask, received, say, states
from tests.node.outbox.failing_store import failing
from tests.node.outbox.peer_nodes import DEADLINE_S, PeerNode, leave, remaining, until

pytestmark = pytest.mark.anyio

LISTED, ACCEPT, REFUSE = (
    PeerOperation.CHAT_REQUESTS,
    PeerOperation.CHAT_ACCEPT,
    PeerOperation.CHAT_REFUSE,
)


@pytest.fixture
def bob(tmp_path: Path) -> PeerNode:
    """He has no peers, and hears of strangers."""
    return PeerNode(tmp_path, "bob", message_requests=True)


@pytest.fixture
def stranger(tmp_path: Path) -> PeerNode:
    return PeerNode(tmp_path, "stranger")


def text(said: str, n: int = 1) -> bytes:
    return encode_payload(Text("5f3a9c01", n, int(time.time() * 1000), said))


def chat_to(sender: PeerNode, bob: PeerNode, clear: bytes, **fields: Any) -> RelayedMessage:
    """A message to the chat with its sender."""
    return sender.letter_to(bob, clear, conversation_stream(sender.public), **fields)


async def listed(node: Node) -> dict[str, list[str]]:
    """The texts of the requests by sender."""
    found = await ask(node, LISTED)
    return {each["id"]: [one["text"] for one in each["texts"]] for each in found["requests"]}


async def handled(node: Node, bob: PeerNode) -> None:
    """Wait until the node has judged all that was left."""
    await until(lambda: node.outbox.queued(bob.public) == 0)


def requests_stored(node: Node, count: int) -> Callable[[], bool]:
    """They are in `peers.db`; the node shows them a moment earlier."""
    query = partial(node.outbox.context.store.query, "SELECT * FROM requests")
    return lambda: len(query()) == count


def dropped(node: Node, count: int) -> Callable[[], bool]:
    """One that was dropped before a restart may be pushed, and dropped, again."""
    return lambda: sum(node.outbox.context.dropped.values()) >= count


async def test_a_stranger_is_shown_and_hears_nothing(bob: PeerNode, stranger: PeerNode) -> None:
    async with bob.node() as there:
        await leave(there, bob.public, chat_to(stranger, bob, text("hello")))
        await until(lambda: len(there.peer_services.message_requests) == 1)
        assert await listed(there) == {stranger.identity.id: ["hello"]}
        assert there.outbox.queued(stranger.public) == 0
        assert stranger.public not in there.outbox.context.store.states
        assert (await ask(there, PeerOperation.CHATS))["chats"] == []
        assert await remaining(there, conversation_stream(stranger.public)) == []
    async with bob.node() as there:
        assert await listed(there) == {stranger.identity.id: ["hello"]}


async def test_an_accepted_one_is_in_the_chat_and_is_told(tmp_path: Path) -> None:
    """The stranger writes with a node of its own, by a relay of both, and gets an answer."""
    relay = PeerNode(tmp_path, "relay", relay=True)
    alice = PeerNode(tmp_path, "alice")
    bob = PeerNode(tmp_path, "bob", via=(relay.as_relay,), message_requests=True)
    for person in (alice, bob):
        person.knows(relay)
        relay.knows(person, dials=False)
    alice.knows(bob, dials=False, relays=(relay.as_relay,))
    alice.learns_key_of(bob)
    async with relay.node(), alice.node(via=(relay.as_relay,)) as here, bob.node() as there:
        for said in ("hello", "are you there?"):
            await say(here, "bob", said)
        await until(lambda: there.outbox.context.store.query("SELECT * FROM requests")[1:] != [])
        assert await listed(there) == {alice.identity.id: ["hello", "are you there?"]}
        assert here.outbox.unconfirmed(bob.public) == 2
        answer = await ask(there, ACCEPT, id=alice.identity.id, name="alice")
        assert (answer["id"], answer["error"]) == (alice.identity.id, None)
        assert await received(there, alice, 2) == ["hello", "are you there?"]
        assert bob.book.by_name("alice").trust is Trust.ADDED  # type: ignore[union-attr]
        await states(here, bob, State.DELIVERED, 2)
        await say(there, "alice", "yes")
        assert await received(here, bob, 1) == ["yes"]
        assert await listed(there) == {}
        assert there.outbox.context.store.query("SELECT * FROM requests") == []


async def test_one_that_is_added_in_any_other_way_is_accepted(
    bob: PeerNode, stranger: PeerNode
) -> None:
    """Also while the node is down."""
    async with bob.node() as there:
        await leave(there, bob.public, chat_to(stranger, bob, text("hello")))
        await until(lambda: len(there.peer_services.message_requests) == 1)
    bob.knows(stranger, dials=False)
    async with bob.node() as there:
        assert await received(there, stranger, 1) == ["hello"]
        await until(lambda: len(there.peer_services.message_requests) == 0)


@pytest.mark.parametrize(
    ("channel", "clear"),
    [
        (b"jobs/pay", text("hello")),
        (b"notes", text("hello")),
        (b"chat/other", text("hello")),
        (None, b"no payload"),
        (None, encode_payload(Receipt("read", ["0" * 32]))),
        (None, text("x" * message_requests.MESSAGE_BYTES_MAX)),
    ],
)
async def test_nothing_but_short_texts_for_the_chat_is_kept(
    bob: PeerNode, stranger: PeerNode, channel: bytes | None, clear: bytes
) -> None:
    channel = conversation_stream(stranger.public) if channel is None else channel
    async with bob.node() as there:
        await leave(there, bob.public, stranger.letter_to(bob, clear, channel))
        await until(dropped(there, 1))
        assert await listed(there) == {}
        assert await remaining(there, channel) == []
        assert there.outbox.context.store.query("SELECT * FROM requests") == []


async def test_without_the_setting_strangers_are_dropped(
    bob: PeerNode, stranger: PeerNode, tmp_path: Path
) -> None:
    """And what was kept before is removed."""
    async with bob.node() as there:
        await leave(there, bob.public, chat_to(stranger, bob, text("hello")))
        await until(lambda: len(there.peer_services.message_requests) == 1)
    bob.knows(PeerNode(tmp_path, "friend"), dials=False)
    async with bob.node(message_requests=False) as there:
        await until(lambda: len(there.peer_services.message_requests) == 0)
        await leave(there, bob.public, chat_to(stranger, bob, text("hello again")))
        await until(dropped(there, 1))
        assert there.outbox.context.dropped == {"unknown_sender": 1}
        assert await ask(there, LISTED) == {"on": False, "requests": []}


@pytest.mark.parametrize("trust", [Trust.BLOCKED, Trust.RELAY])
async def test_blocked_keys_and_relays_make_no_request(
    bob: PeerNode, stranger: PeerNode, trust: Trust
) -> None:
    bob.knows(stranger, dials=False, trust=trust)
    async with bob.node() as there:
        await leave(there, bob.public, chat_to(stranger, bob, text("hello")))
        await until(dropped(there, 1))
        assert there.outbox.context.dropped == {f"{trust.value}_sender": 1}
        assert await listed(there) == {}


async def test_a_repeated_message_is_one(bob: PeerNode, stranger: PeerNode) -> None:
    """Whether a relay repeats it or its sender sends it again."""
    uuid = os.urandom(16)
    async with bob.node() as there:
        first = chat_to(stranger, bob, text("hello"), uuid=uuid)
        for key in (1, 2):
            await leave(there, bob.public, first, key)
        await leave(there, bob.public, chat_to(stranger, bob, text("hello"), uuid=uuid))
        await until(dropped(there, 2))
        assert await listed(there) == {stranger.identity.id: ["hello"]}


async def test_so_many_messages_of_a_stranger_and_no_more(
    bob: PeerNode, stranger: PeerNode
) -> None:
    texts = [str(number) for number in range(message_requests.MESSAGES_MAX + 3)]
    async with bob.node() as there:
        for said in texts:
            await leave(there, bob.public, chat_to(stranger, bob, text(said)))
        await until(dropped(there, 3))
        found = await listed(there)
        assert found == {stranger.identity.id: texts[: message_requests.MESSAGES_MAX]}


@pytest.mark.parametrize(("limit", "value"), [("SENDERS_MAX", 2), ("BYTES_MAX", 1500)])
async def test_the_oldest_leave_for_newer_ones(
    bob: PeerNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(message_requests, limit, value)
    strangers = [PeerNode(tmp_path, f"stranger-{number}") for number in range(4)]
    async with bob.node() as there:
        for each in strangers:
            await leave(there, bob.public, chat_to(each, bob, text(each.name)))
            await handled(there, bob)
        assert list(await listed(there)) == [each.identity.id for each in strangers[2:]]
        rows = there.outbox.context.store.query("SELECT sender FROM requests")
        assert {row[0] for row in rows} == {each.public for each in strangers[2:]}
        assert there.outbox.context.dropped == {"displaced_request": 2}


async def test_a_refused_stranger_is_forgotten_and_does_not_come_again(
    bob: PeerNode, stranger: PeerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bob.node() as there:
        await leave(there, bob.public, chat_to(stranger, bob, text("hello")))
        await until(lambda: len(there.peer_services.message_requests) == 1)
        await ask(there, REFUSE, id=stranger.identity.id)
        assert await listed(there) == {}
        assert bob.book.by_public(stranger.public) is None
    async with bob.node() as there:
        await leave(there, bob.public, chat_to(stranger, bob, text("why?")))
        await until(dropped(there, 1))
        assert there.outbox.context.dropped == {"refused_request": 1}
        for operation in (ACCEPT, REFUSE):
            with pytest.raises(UnknownPeer):
                await ask(there, operation, id=stranger.identity.id, name="stranger")
        requests = there.peer_services.message_requests
        over = max(requests._refused.values()) + 1
        monkeypatch.setattr(there.outbox.context.local, "now", lambda: over)
        late = chat_to(stranger, bob, text("now?"), deadline=int(over * 1000) + 60_000)
        await leave(there, bob.public, late)
        await until(lambda: len(requests) == 1)


async def test_a_refusal_holds_as_long_as_the_prekey(bob: PeerNode, stranger: PeerNode) -> None:
    """The node gives its own messages ten minutes; the stranger's may live for longer."""
    async with bob.node(peer_ttl_s=600) as there:
        await leave(there, bob.public, chat_to(stranger, bob, text("hello")))
        await until(lambda: len(there.peer_services.message_requests) == 1)
        await ask(there, REFUSE, id=stranger.identity.id)
        (over,) = there.peer_services.message_requests._refused.values()
        assert over >= there.peer_services.keyring.prekeys.current().good_until


async def test_so_many_refused_strangers_are_remembered(
    bob: PeerNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_requests, "REFUSED_MAX", 2)
    strangers = [PeerNode(tmp_path, f"stranger-{number}") for number in range(3)]
    async with bob.node() as there:
        for each in strangers:
            await leave(there, bob.public, chat_to(each, bob, text("hello")))
            await handled(there, bob)
            await ask(there, REFUSE, id=each.identity.id)
        rows = there.outbox.context.store.query("SELECT public FROM refused")
        assert {row[0] for row in rows} == {each.public for each in strangers[1:]}
        await leave(there, bob.public, chat_to(strangers[0], bob, text("again")))
        await handled(there, bob)
        assert list(await listed(there)) == [strangers[0].identity.id]


async def test_a_blocked_stranger_is_in_the_address_book(bob: PeerNode, stranger: PeerNode) -> None:
    async with bob.node() as there:
        await leave(there, bob.public, chat_to(stranger, bob, text("hello")))
        await until(lambda: len(there.peer_services.message_requests) == 1)
        await ask(there, REFUSE, id=stranger.identity.id, block=True)
        assert bob.book.by_public(stranger.public).trust is Trust.BLOCKED  # type: ignore[union-attr]
        await leave(there, bob.public, chat_to(stranger, bob, text("why?")))
        await until(dropped(there, 1))
        assert there.outbox.context.dropped == {"blocked_sender": 1}


async def test_a_name_that_is_taken_accepts_nobody(
    bob: PeerNode, stranger: PeerNode, tmp_path: Path
) -> None:
    friend = PeerNode(tmp_path, "friend")
    bob.knows(friend, dials=False)
    async with bob.node() as there:
        await leave(there, bob.public, chat_to(stranger, bob, text("it is me, friend")))
        await until(lambda: len(there.peer_services.message_requests) == 1)
        answer = await ask(there, ACCEPT, id=stranger.identity.id, name="friend")
        assert answer["id"] is None and "friend" in answer["error"]
        assert bob.book.by_public(stranger.public) is None
        assert list(await listed(there)) == [stranger.identity.id]


async def test_a_request_leaves_at_the_deadline_of_its_message(
    bob: PeerNode, stranger: PeerNode
) -> None:
    soon, slow = int(time.time() * 1000) + 1500, os.urandom(16)
    async with bob.node() as there:
        await leave(there, bob.public, chat_to(stranger, bob, text("quick"), deadline=soon))
        await leave(there, bob.public, chat_to(stranger, bob, text("slow"), uuid=slow))
        rows = partial(there.outbox.context.store.query, "SELECT uuid FROM requests")
        await until(lambda: rows() == [(slow,)])
        with anyio.fail_after(DEADLINE_S):  # it is stored first
            while await listed(there) != {stranger.identity.id: ["slow"]}:  # noqa: ASYNC110
                await anyio.sleep(0.01)


async def test_what_a_removed_contact_has_sent_is_no_request(
    bob: PeerNode, stranger: PeerNode
) -> None:
    """A relay that repeats it brings nothing back."""
    bob.knows(stranger, dials=False)
    message = chat_to(stranger, bob, text("hello"))
    async with bob.node() as there:
        await leave(there, bob.public, message)
        assert await received(there, stranger, 1) == ["hello"]
        await handled(there, bob)
        await ask(there, PeerOperation.PEER_REMOVE, peer="stranger")
        await leave(there, bob.public, message, 99)
        await until(dropped(there, 1))
        assert there.outbox.context.dropped == {"repeated_request": 1}
        await leave(there, bob.public, chat_to(stranger, bob, text("let me in")))
        await until(lambda: len(there.peer_services.message_requests) == 1)


async def test_a_request_that_was_not_stored_comes_again(
    bob: PeerNode,
    stranger: PeerNode,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr("millpond.node.outbox.inbound.LATER_MS", 100)
    async with bob.node() as there:
        store, write = there.outbox.context.store, there.outbox.context.store.write
        failures = 0

        async def fail(statements: Any) -> None:
            nonlocal failures
            if failures < 3 and statements:
                failures += 1
                raise OSError("no space")
            await write(statements)

        monkeypatch.setattr(store, "write", fail)
        await leave(there, bob.public, chat_to(stranger, bob, text("hello")))
        await until(lambda: failures == 3)
        await until(lambda: bool(store.query("SELECT * FROM requests")))
        assert await listed(there) == {stranger.identity.id: ["hello"]}
        assert there.outbox.context.dropped == {}


async def test_a_message_that_comes_while_its_sender_is_refused_is_no_request(
    bob: PeerNode, stranger: PeerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bob.node() as there:
        await leave(there, bob.public, chat_to(stranger, bob, text("hello")))
        await until(lambda: len(there.peer_services.message_requests) == 1)
        store, write = there.outbox.context.store, there.outbox.context.store.write

        async def write_and_receive(statements: Sequence[Statement]) -> None:
            monkeypatch.setattr(store, "write", write)
            await write(statements)
            await leave(there, bob.public, chat_to(stranger, bob, text("again", 2)), 98)
            await handled(there, bob)

        monkeypatch.setattr(store, "write", write_and_receive)
        await ask(there, REFUSE, id=stranger.identity.id)
        assert store.query("SELECT * FROM requests") == []
    async with bob.node() as there:
        assert await listed(there) == {}


async def test_an_accepted_message_is_delivered_once_whatever_is_repeated(
    bob: PeerNode, stranger: PeerNode
) -> None:
    """As after a crash between its delivery and the removal of the request."""
    message = chat_to(stranger, bob, text("hello"))
    async with bob.node() as there:
        await leave(there, bob.public, message)
        store = there.outbox.context.store
        await until(lambda: bool(store.query("SELECT * FROM requests")))
        (row,) = store.query("SELECT * FROM requests")
        await ask(there, ACCEPT, id=stranger.identity.id, name="stranger")
        assert await received(there, stranger, 1) == ["hello"]
        await until(lambda: not store.query("SELECT * FROM requests"))
        await store.write([("INSERT INTO requests VALUES (?, ?, ?, ?, ?)", row)])
        there.peer_services.message_requests.reload()
        await leave(there, bob.public, message, 98)
        await until(lambda: not store.query("SELECT * FROM requests"))
        await handled(there, bob)
        assert await received(there, stranger, 1) == ["hello"]
        assert there.outbox.context.local.count(mailbox_of(bob.public)) == 0


async def test_a_refusal_holds_until_the_disk_can_store_it(
    bob: PeerNode, stranger: PeerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_requests, "RETRY_S", 0.1)
    refused = "SELECT public FROM refused"
    async with bob.node() as there:
        store = there.outbox.context.store
        await leave(there, bob.public, chat_to(stranger, bob, text("hello")))
        await until(requests_stored(there, 1))
        with failing(bob.folder):
            for _ in range(2):  # the person tries again
                with pytest.raises(OSError, match="disk I/O error"):
                    await ask(there, REFUSE, id=stranger.identity.id)
            assert await listed(there) == {}
            with pytest.raises(UnknownPeer):
                await ask(there, ACCEPT, id=stranger.identity.id, name="stranger")
            await leave(there, bob.public, chat_to(stranger, bob, text("again", 2)))
            await until(dropped(there, 1))
            assert there.outbox.context.dropped == {"refused_request": 1}
            assert store.query(refused) == []
        await until(lambda: store.query(refused) == [(stranger.public,)])
        assert store.query("SELECT * FROM requests") == []
    async with bob.node() as there:
        await leave(there, bob.public, chat_to(stranger, bob, text("why?", 3)))
        await until(dropped(there, 1))
        assert await listed(there) == {}


async def test_a_refusal_holds_where_another_write_fails_before_its_own(
    bob: PeerNode, stranger: PeerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bob.node() as there:
        await leave(there, bob.public, chat_to(stranger, bob, text("hello")))
        await until(requests_stored(there, 1))
        store, write = there.outbox.context.store, there.outbox.context.store.write

        async def write_behind_a_fault(statements: Sequence[Statement]) -> None:
            monkeypatch.setattr(store, "write", write)
            with failing(bob.folder), pytest.raises(OSError, match="disk I/O error"):
                await write([("DELETE FROM requests", ())])
            there.peer_services.message_requests.reload()  # as whoever made that write
            await write(statements)

        monkeypatch.setattr(store, "write", write_behind_a_fault)
        await ask(there, REFUSE, id=stranger.identity.id)
        await leave(there, bob.public, chat_to(stranger, bob, text("again", 2)))
        await until(dropped(there, 1))
        assert await listed(there) == {}


async def test_so_many_refusals_wait_for_the_disk(
    bob: PeerNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_requests, "REFUSED_MAX", 2)
    monkeypatch.setattr(message_requests, "RETRY_S", 0.1)
    strangers = [PeerNode(tmp_path, f"stranger-{number}") for number in range(3)]
    async with bob.node() as there:
        for each in strangers:
            await leave(there, bob.public, chat_to(each, bob, text("hello")))
        await until(requests_stored(there, 3))
        with failing(bob.folder):
            for each in strangers:
                with pytest.raises(OSError, match="disk I/O error"):
                    await ask(there, REFUSE, id=each.identity.id)
        query = partial(there.outbox.context.store.query, "SELECT public FROM refused")
        await until(lambda: bool(query()))
        assert {row[0] for row in query()} == {each.public for each in strangers[1:]}


async def test_a_card_is_enough_for_a_request_at_the_node_itself(
    bob: PeerNode, stranger: PeerNode
) -> None:
    """No relay is needed. The sender sees that it is not accepted yet, and then that it is."""
    async with bob.node() as there, stranger.node() as here:
        card = (await ask(there, PeerOperation.WHO))["card"]
        assert (await ask(here, PeerOperation.PEER_ADD, name="bob", card=card))["error"] is None
        await say(here, "bob", "hello")
        await until(requests_stored(there, 1))
        await states(here, bob, State.SENT)
        (chat,) = (await ask(here, PeerOperation.CHATS))["chats"]
        assert chat["accepted"] is False
        await ask(there, ACCEPT, id=stranger.identity.id, name="stranger")
        here.outbox.scheduler.address_book_changed()
        assert await received(there, stranger, 1) == ["hello"]
        await states(here, bob, State.DELIVERED)
        (chat,) = (await ask(here, PeerOperation.CHATS))["chats"]
        assert chat["accepted"] is True


async def test_a_contact_is_blocked_and_hears_nothing(bob: PeerNode, stranger: PeerNode) -> None:
    bob.knows(stranger, dials=False)
    async with bob.node() as there:
        await leave(there, bob.public, chat_to(stranger, bob, text("hello")))
        assert await received(there, stranger, 1) == ["hello"]
        await ask(there, PeerOperation.PEER_BLOCK, peer="stranger")
        await leave(there, bob.public, chat_to(stranger, bob, text("again", 2)))
        await until(lambda: there.outbox.context.dropped == {"blocked_sender": 1})
        assert (await ask(there, PeerOperation.CHATS))["chats"] == []


async def test_verification_takes_the_number_and_nothing_else(
    bob: PeerNode, stranger: PeerNode, tmp_path: Path
) -> None:
    bob.knows(stranger, dials=False)
    async with bob.node() as there:
        (peer,) = (await ask(there, PeerOperation.PEERS, peer="stranger"))["peers"]
        number = peer["safety_number"]
        other = safety_number(bob.public, PeerNode(tmp_path, "other").public)
        for wrong, error in ((other, "DIFFER"), ("123", ""), ("", "")):
            told = await ask(there, PeerOperation.PEER_VERIFY, peer="stranger", number=wrong)
            assert told["trust"] == "added" and error in told["error"]
        told = await ask(there, PeerOperation.PEER_VERIFY, peer="stranger", number=number)
        assert told == {"trust": "verified", "error": None}
        assert bob.book.by_name("stranger").trust is Trust.VERIFIED  # type: ignore[union-attr]


async def test_a_changed_key_is_loud_until_it_is_compared(
    bob: PeerNode, stranger: PeerNode, tmp_path: Path
) -> None:
    bob.knows(stranger, dials=False, trust=Trust.VERIFIED)
    new = PeerNode(tmp_path, "new")
    bob.book.accept("stranger", new.public, replace=True)
    async with bob.node() as there:
        (chat,) = (await ask(there, PeerOperation.CHATS))["chats"]
        assert (chat["id"], chat["trust"], chat["key_changed"]) == (new.identity.id, "added", True)
        number = safety_number(bob.public, new.public)
        await ask(there, PeerOperation.PEER_VERIFY, peer="stranger", number=number)
        (chat,) = (await ask(there, PeerOperation.CHATS))["chats"]
        assert (chat["trust"], chat["key_changed"]) == ("verified", False)
