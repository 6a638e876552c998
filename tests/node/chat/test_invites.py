"""Invites: one link adds both sides; a sender without an open one, or a second one, is not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from millpond.node.chat import invites
from millpond.node.chat.payloads import Introduction, Text, encode_payload
from millpond.node.chat.records import Kind, State, conversation_stream
from millpond.node.node import Node
from millpond.node.outbox.messages import PeerOperation
from millpond.node.outbox.relayed_message import RelayedMessage
from millpond.node.peers.address_book import Trust
from millpond.node.peers.card import ContactCard, encode_card
from millpond.node.peers.invite import decode_invite
from tests.node.chat.chat_client import ask, history, received, say, states
from tests.node.outbox.failing_store import failing
from tests.node.outbox.peer_nodes import PeerNode, leave, remaining, until

pytestmark = pytest.mark.anyio

INVITE, LISTED, CANCEL, ACCEPT = (
    PeerOperation.INVITE,
    PeerOperation.INVITES,
    PeerOperation.CANCEL_INVITE,
    PeerOperation.ACCEPT_INVITE,
)


@pytest.fixture
def alice(tmp_path: Path) -> PeerNode:
    return PeerNode(tmp_path, "alice")


@pytest.fixture
def bob(tmp_path: Path) -> PeerNode:
    return PeerNode(tmp_path, "bob")


@pytest.fixture
def thief(tmp_path: Path) -> PeerNode:
    return PeerNode(tmp_path, "thief")


async def link_for(node: Node, name: str, **fields: Any) -> str:
    answer = await ask(node, INVITE, name=name, **fields)
    assert answer["error"] is None
    link: str = answer["link"]
    return link


async def open_names(node: Node) -> list[str]:
    return [each["name"] for each in (await ask(node, LISTED))["invites"]]


def introduction(sender: PeerNode, link: str, card: str | None = None) -> bytes:
    """The introduction of a client that the sender made itself."""
    if card is None:
        made = ContactCard(sender.public, (), (), sender.prekey, time.time())
        card = encode_card(made, sender.identity)
    return encode_payload(Introduction(decode_invite(link).introduction.secret.hex(), card))


def chat_to(sender: PeerNode, other: PeerNode, clear: bytes, **fields: Any) -> RelayedMessage:
    return sender.letter_to(other, clear, conversation_stream(sender.public), **fields)


def dropped(node: Node) -> dict[str, int]:
    return node.outbox.context.dropped


async def test_one_link_adds_both_sides(alice: PeerNode, bob: PeerNode) -> None:
    """Neither knows the other before, and neither keeps requests of strangers."""
    async with alice.node() as here, bob.node() as there:
        link = await link_for(here, "bob")
        assert await open_names(here) == ["bob"]
        answer = await ask(there, ACCEPT, link=link, name="alice")
        assert answer["id"] == alice.identity.id
        await until(lambda: alice.book.by_public(bob.public) is not None)
        await say(there, "alice", "hello")
        assert await received(here, bob, 1) == ["hello"]
        await say(here, "bob", "hi")
        assert await received(there, alice, 1) == ["hi"]
        await states(there, alice, State.DELIVERED, 2)
        for book, name in ((alice.book, "bob"), (bob.book, "alice")):
            peer = book.by_name(name)
            assert peer is not None and peer.trust is Trust.ADDED
        notes = [each.text for each in await history(here, bob) if each.kind is Kind.NOTE]
        assert notes == ["accepted your invite"]
        assert await open_names(here) == []


async def test_what_an_introduced_sender_says_at_once_comes_in_order(
    alice: PeerNode, bob: PeerNode
) -> None:
    """It says more, before it is in the address book, than a stranger may."""
    texts = [f"{number}" for number in range(12)]
    async with alice.node() as here, bob.node() as there:
        link = await link_for(here, "bob")
        await ask(there, ACCEPT, link=link, name="alice")
        for text in texts:
            await say(there, "alice", text)
        assert await received(here, bob, len(texts)) == texts
        assert not dropped(here).get("request_limit")


async def test_the_second_one_with_the_link_is_a_stranger(
    alice: PeerNode, bob: PeerNode, thief: PeerNode
) -> None:
    """Neither is told; with message requests its first text is one."""
    async with alice.node(message_requests=True) as here:
        link = await link_for(here, "bob")
        await leave(here, alice.public, chat_to(thief, alice, introduction(thief, link)))
        await until(lambda: alice.book.by_name("bob") is not None)
        await leave(here, alice.public, chat_to(bob, alice, introduction(bob, link)))
        await until(lambda: dropped(here) == {"used_invite": 1})
        assert [each.public for each in alice.book.peers] == [thief.public]
        text = encode_payload(Text("5f3a9c01", 1, int(time.time() * 1000), "it was me"))
        await leave(here, alice.public, chat_to(bob, alice, text))
        await until(lambda: bob.public in here.peer_services.message_requests._senders)
        requests = (await ask(here, PeerOperation.CHAT_REQUESTS))["requests"]
        assert [each["id"] for each in requests] == [bob.identity.id]


@pytest.mark.parametrize("end", ["expired", "cancelled", "invented", "of somebody else's card"])
async def test_no_open_invite_adds_nobody(
    alice: PeerNode, bob: PeerNode, thief: PeerNode, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invites, "LIFE_S_MIN", 0)
    async with alice.node() as here:
        link = await link_for(here, "bob", life=1 if end == "expired" else 0)
        await link_for(here, "carol")  # so that strangers are heard at all
        clear, reason = introduction(thief, link), "unknown_sender"
        match end:
            case "expired":
                await until(lambda: "bob" not in [e.name for e in here.peer_services._invites.open])
            case "cancelled":
                await ask(here, CANCEL, name="bob")
            case "invented":
                card = encode_card(
                    ContactCard(thief.public, (), (), None, time.time()), thief.identity
                )
                clear = encode_payload(Introduction("00" * 16, card))
            case _:
                card = encode_card(ContactCard(bob.public, (), (), None, time.time()), bob.identity)
                clear = introduction(thief, link, card)
        await leave(here, alice.public, chat_to(thief, alice, clear))
        await until(lambda: dropped(here) == {reason: 1})
        assert list(alice.book.peers) == []
        assert here.outbox.context.store.query("SELECT * FROM requests") == []


async def test_an_introduction_is_for_the_chat_and_verified(
    alice: PeerNode, thief: PeerNode
) -> None:
    async with alice.node() as here:
        clear = introduction(thief, await link_for(here, "bob"))
        await leave(here, alice.public, thief.letter_to(alice, clear, b"notes"))
        await until(lambda: dropped(here) == {"unknown_sender": 1})
        assert await open_names(here) == ["bob"]


async def test_a_blocked_key_is_not_introduced(alice: PeerNode, thief: PeerNode) -> None:
    alice.knows(thief, dials=False, trust=Trust.BLOCKED)
    async with alice.node() as here:
        link = await link_for(here, "bob")
        await leave(here, alice.public, chat_to(thief, alice, introduction(thief, link)))
        await until(lambda: dropped(here) == {"blocked_sender": 1})
        assert await open_names(here) == ["bob"]


async def test_a_name_that_was_taken_meanwhile_gets_a_number(
    alice: PeerNode, bob: PeerNode, thief: PeerNode
) -> None:
    async with alice.node() as here:
        link = await link_for(here, "bob")
        alice.knows(PeerNode(alice.folder, "bob"), dials=False)
        await leave(here, alice.public, chat_to(bob, alice, introduction(bob, link)))
        await until(lambda: alice.book.by_public(bob.public) is not None)
        assert alice.book.by_public(bob.public).name == "bob 2"  # type: ignore[union-attr]


async def test_a_contact_uses_an_invite_up_and_brings_its_new_card(
    alice: PeerNode, bob: PeerNode, thief: PeerNode
) -> None:
    alice.knows(bob, dials=False)
    async with alice.node() as here:
        link = await link_for(here, "robert")
        made = ContactCard(bob.public, (bob.url,), (), bob.prekey, time.time())
        clear = introduction(bob, link, encode_card(made, bob.identity))
        await leave(here, alice.public, chat_to(bob, alice, clear))
        await until(lambda: alice.book.by_name("bob").addresses == (bob.url,))  # type: ignore[union-attr]
        assert await open_names(here) == []
        await leave(here, alice.public, chat_to(thief, alice, introduction(thief, link)))
        await until(lambda: sum(dropped(here).values()) == 1)
        assert [each.name for each in alice.book.peers] == ["bob"]


async def test_what_the_disk_cannot_store_is_used_later(alice: PeerNode, bob: PeerNode) -> None:
    """The message waits in the mailbox, and the invite is open again."""
    async with alice.node() as here:
        link = await link_for(here, "bob")
        with failing(alice.folder):
            await leave(here, alice.public, chat_to(bob, alice, introduction(bob, link)))
            mailbox = here.outbox.context.local
            await until(lambda: not here.peer_services._invites.has_introduced(bob.public))
            assert alice.book.by_public(bob.public) is None
            assert mailbox is here.outbox.context.local
        await until(lambda: alice.book.by_public(bob.public) is not None)


async def test_an_invite_outlives_the_node(alice: PeerNode, bob: PeerNode) -> None:
    """And so does one that was used a moment before a crash: its sender is added then."""
    async with alice.node() as here:
        link = await link_for(here, "bob")
    async with alice.node() as here:
        assert await open_names(here) == ["bob"]
        row = here.outbox.context.store.query("SELECT * FROM invites")[0]
        made = ContactCard(bob.public, (), (), bob.prekey, time.time())
        card = encode_card(made, bob.identity)
        used = (
            "INSERT OR REPLACE INTO invites VALUES (?, ?, ?, ?, ?, ?)",
            (*row[:4], bob.public, card),
        )
        await here.outbox.context.store.write([used])
    async with alice.node() as here:
        await until(lambda: alice.book.by_public(bob.public) is not None)
        secret = decode_invite(link).introduction.secret
        rows = here.outbox.context.store.query("SELECT * FROM invites")
        assert all(secret not in each for row in rows for each in row if isinstance(each, bytes))


async def test_so_many_are_open(alice: PeerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invites, "OPEN_MAX", 2)
    async with alice.node() as here:
        for name in ("bob", "carol", "bob"):  # the same name replaces
            await link_for(here, name)
        refused = await ask(here, INVITE, name="dora")
        assert refused["link"] is None and "2 invites are open" in refused["error"]
        assert await open_names(here) == ["carol", "bob"]


async def test_used_ones_are_forgotten(
    alice: PeerNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invites, "USED_MAX", 1)
    guests = [PeerNode(tmp_path, f"guest-{number}") for number in range(2)]
    async with alice.node() as here:
        for each in guests:
            clear = introduction(each, await link_for(here, each.name))
            await leave(here, alice.public, chat_to(each, alice, clear))
            await until(lambda guest=each: alice.book.by_public(guest.public) is not None)  # type: ignore[misc]
        store = here.outbox.context.store
        await until(lambda: len(store.query("SELECT * FROM invites")) == 1)


@pytest.mark.parametrize(
    ("link", "error"),
    [
        ("millpond:abc", "damaged"),
        ("nonsense", "begins with"),
        ("{link}x", "missing"),
        ("{card}", "no invite"),
        ("{expired}", "expired"),
        ("{own}", "this node"),
    ],
)
async def test_what_is_no_invite_is_not_accepted(
    alice: PeerNode, bob: PeerNode, link: str, error: str
) -> None:
    async with alice.node() as here, bob.node() as there:
        good = await link_for(here, "bob")
        card = good.partition(".")[0]
        texts = {
            "link": good,
            "card": card,
            "expired": f"{card}.{'A' * 27}",
            "own": await link_for(there, "alice"),
        }
        answer = await ask(there, ACCEPT, link=link.format(**texts), name="alice")
        assert answer["id"] is None and error in answer["error"]
        assert list(bob.book.peers) == []


async def test_accepting_twice_is_accepting_once(alice: PeerNode, bob: PeerNode) -> None:
    async with alice.node() as here:
        link = await link_for(here, "bob")
    async with bob.node() as there:
        for _ in range(2):
            assert (await ask(there, ACCEPT, link=link, name="alice"))["error"] is None
        kinds = [each.kind for each in await history(there, alice)]
        assert kinds.count(Kind.INVITE) == 1


async def test_a_stranger_without_the_card_reaches_nothing(alice: PeerNode, bob: PeerNode) -> None:
    """It has the public key and the address; open invites change nothing."""
    bob.knows(alice)
    bob.learns_key_of(alice)
    async with alice.node(message_requests=True) as here, bob.node() as there:
        await link_for(here, "bob")
        await say(there, "alice", "hello")
        await until(lambda: there.outbox.queued(alice.public) == 1)
        before = here.outbox.context.refusals.get("not allowed", 0)
        await until(lambda: here.outbox.context.refusals.get("not allowed", 0) > before + 1)
        assert there.outbox.queued(alice.public) == 1
        assert await remaining(here, conversation_stream(bob.public)) == []
        assert len(here.peer_services.message_requests) == 0


async def test_secrets_are_in_no_log(
    alice: PeerNode, bob: PeerNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with alice.node() as here, bob.node() as there:
        link = await link_for(here, "bob")
        await ask(there, ACCEPT, link=link, name="alice")
        await until(lambda: alice.book.by_public(bob.public) is not None)
    introduced = decode_invite(link).introduction
    assert introduced.secret.hex() not in caplog.text
    assert link.partition(".")[2] not in caplog.text

    assert introduced.secret.hex() not in repr(introduced)
