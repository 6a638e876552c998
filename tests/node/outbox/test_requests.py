"""Packets 94 and 95: what a client with the right `admin` can ask about peers
(docs/reference/wire-protocol.md)."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from millpond.actors.errors import (
    Malformed,
    NoPrekey,
    NotAllowed,
    RequestError,
    StorageFailed,
    UnknownPeer,
)
from millpond.node.access.rules_file import FILE_NAME as ACCESS_FILE
from millpond.node.client.channel import Channel
from millpond.node.client.connect import connect
from millpond.node.node import Node
from millpond.node.outbox.messages import PeerOperation as Op
from millpond.node.peers.address_book import AddressBook, Peer, Trust
from millpond.node.peers.card import ContactCard, decode_card, encode_card
from millpond.node.peers.identity import FILE_NAME as IDENTITY_FILE
from millpond.node.peers.identity import Identity, load_identity, peer_id
from millpond.node.peers.safety_number import safety_number
from millpond.node.peers.succession import rotate_identity
from tests.node.outbox.peer_nodes import PeerNode, leave, read, remaining

pytestmark = pytest.mark.anyio

RULES = "anyone all,operator\n"


@pytest.fixture
def alice(tmp_path: Path) -> PeerNode:
    return _open(PeerNode(tmp_path, "alice"))


@pytest.fixture
def bob(tmp_path: Path) -> PeerNode:
    return _open(PeerNode(tmp_path, "bob", addresses=("tcp://127.0.0.1:7",)))


def _open(who: PeerNode) -> PeerNode:
    """Its owner sits at the same machine, and may do everything there."""
    (who.folder / ACCESS_FILE).unlink()
    return who


async def ask(url: str, operation: Op, **body: Any) -> dict[str, Any]:
    async with connect(url, "any") as channel:
        return await channel.peers(operation, body)


async def test_who_it_is_and_what_to_give_away(alice: PeerNode, bob: PeerNode) -> None:
    """The card is what somebody else needs to write to us."""
    async with alice.node() as here, bob.node() as there:
        who = await ask(bob.url, Op.WHO)
        card = decode_card(who["card"])
        assert (who["id"], who["key"]) == (peer_id(bob.public), bob.public)
        assert (card.public, card.addresses) == (bob.public, ("tcp://127.0.0.1:7",))
        added = await ask(alice.url, Op.PEER_ADD, name="bob", card=who["card"])
        assert added == {"id": who["id"], "error": None, "reach": "machine"}
        found = alice.book.by_name("bob")
        assert found is not None and found.trust is Trust.ADDED and found.public == bob.public
        assert found.addresses == ("tcp://127.0.0.1:7",)
        with anyio.fail_after(60):
            while not here.outbox.can_seal(bob.public):  # noqa: ASYNC110 (the card is read soon)
                await anyio.sleep(0.01)
        assert there.outbox.presence.last_seen(alice.public).is_online is False


async def test_a_card_does_not_send_a_node_to_its_own_machine(
    alice: PeerNode, bob: PeerNode
) -> None:
    """P12: a card of a node that others reach may be from anybody."""
    card = encode_card(
        ContactCard(bob.public, ("tcp://127.0.0.1:22",), (), None, time.time()), bob.identity
    )
    port = alice.address.rpartition(":")[2]
    rules = alice.folder / ACCESS_FILE
    rules.write_text(RULES)
    rules.chmod(0o600)
    async with alice.node(p2p=f"0.0.0.0:{port}"):
        told = await ask(alice.url, Op.PEER_ADD, name="bob", card=card)
        assert told["id"] is None and "127.0.0.1:22" in told["error"]
    assert alice.book.by_name("bob") is None
    async with alice.node():
        assert (await ask(alice.url, Op.PEER_ADD, name="bob", card=card))["error"] is None


async def test_the_card_of_a_node_with_a_new_key_is_followed(
    alice: PeerNode, bob: PeerNode
) -> None:
    """The old key signed the new one; messages go to the new one from then on."""
    alice.knows(bob, dials=False)
    rotate_identity(bob.folder, time.time(), os.urandom)
    bob.identity = load_identity(bob.folder / IDENTITY_FILE)
    bob.knows(alice)
    async with alice.node() as here, bob.node() as there:
        card = (await ask(bob.url, Op.WHO))["card"]
        added = await ask(alice.url, Op.PEER_ADD, name="robert", card=card, addresses=[bob.url])
        assert added == {"id": bob.identity.id, "error": None, "reach": "machine"}
        assert {each.name: each.trust for each in alice.book.peers} == {
            "bob": Trust.ADDED,
            "bob (old 1)": Trust.BLOCKED,
        }
        alice.learns_key_of(bob)
        await here.outbox.send(bob.public, b"notes", b"to the new key")
        assert await read(there, b"notes") == [b"to the new key"]


async def test_who_is_known_page_by_page(alice: PeerNode) -> None:
    book = alice.book
    keys = [Identity.from_seed(bytes((each,)) * 32).public for each in range(5)]
    for number, key in enumerate(keys):
        trust = Trust.BLOCKED if number == 3 else Trust.ADDED
        book.add(Peer(f"p{number}", key, trust, (), (), 0.0))
    async with alice.node() as here:
        first = await ask(alice.url, Op.PEERS, limit=3)
        assert [each["name"] for each in first["peers"]] == ["p0", "p1", "p2"] and first["more"]
        rest = await ask(alice.url, Op.PEERS, after="p2")
        assert [each["trust"] for each in rest["peers"]] == ["blocked", "added"]
        assert not rest["more"]
        await leave(here, keys[1], alice.letter_to(alice, b"x"))
        (one,) = (await ask(alice.url, Op.PEERS, peer=peer_id(keys[1])))["peers"]
        assert (one["name"], one["queued"], one["here"], one["seen_at"]) == ("p1", 1, False, None)
        assert one["can_seal"] is False
        assert one["safety_number"] == safety_number(alice.public, keys[1])
        assert all(each["safety_number"] is None for each in first["peers"])
        with pytest.raises(UnknownPeer):
            await ask(alice.url, Op.PEERS, peer="p9")


async def test_peers_come_and_go(alice: PeerNode, bob: PeerNode) -> None:
    key = peer_id(bob.public)
    async with alice.node():
        added = await ask(alice.url, Op.PEER_ADD, name="bob", key=key, addresses=[bob.url])
        assert added["id"] == key
        again = await ask(alice.url, Op.PEER_ADD, name="bob", key=key, addresses=["tcp://h:1"])
        assert again["error"] is None
        found = alice.book.by_name("bob")
        assert found is not None and found.addresses == ("tcp://h:1",)
        other = peer_id(Identity.from_seed(bytes(32)).public)
        for wrong in (
            {"name": "bob", "key": other},
            {"name": "me", "key": peer_id(alice.public)},
            {"name": "x", "key": "nonsense"},
            {"name": "x", "card": "millpond:nonsense"},
            {"name": "x"},
            {"name": "", "key": other},
            {"name": "x", "key": other, "addresses": ["no url"]},
        ):
            answer = await ask(alice.url, Op.PEER_ADD, **wrong)
            assert answer["id"] is None and answer["error"]
        assert [each.name for each in alice.book.peers] == ["bob"]
        await ask(alice.url, Op.PEER_REMOVE, peer="bob")
        assert list(AddressBook(alice.folder / "peers.toml").peers) == []


async def test_a_book_that_cannot_be_used_is_said_to_be_so(alice: PeerNode) -> None:
    alice.book.add(Peer("carol", Identity.from_seed(b"c" * 32).public, Trust.ADDED, (), (), 0.0))
    async with alice.node():
        (alice.folder / "peers.toml").chmod(0o666)
        with pytest.raises(StorageFailed):
            await ask(alice.url, Op.PEER_REMOVE, peer="carol")


async def test_send_and_open(alice: PeerNode, bob: PeerNode) -> None:
    """A peer is named or given by its id; what comes out says who wrote it."""
    for one, other in ((alice, bob), (bob, alice)):
        one.knows(other)
    alice.learns_key_of(bob)
    async with alice.node(), bob.node() as there:
        sent = await ask(
            alice.url, Op.SEND, peer=peer_id(bob.public), channel=b"notes", data=b"hello"
        )
        envelope = await _pushed(there, b"notes")
        answer = await ask(bob.url, Op.OPEN, channel=b"notes", envelope=envelope)
        assert answer == {
            "uuid": sent["uuid"],
            "data": b"hello",
            "sender": peer_id(alice.public),
            "name": "alice",
            "trust": "added",
            "reason": None,
        }
        for channel, text in ((b"other", "altered"), (b"notes", "")):
            answer = await ask(bob.url, Op.OPEN, channel=channel, envelope=envelope)
            assert text in (answer["reason"] or "")


async def _pushed(node: Node, channel: bytes) -> bytes:
    with anyio.fail_after(60):
        while not (found := await remaining(node, channel)):
            continue
    return found[0]


@pytest.mark.parametrize("trust", [None, Trust.PINNED, Trust.RELAY, Trust.BLOCKED])
async def test_what_a_stranger_or_a_blocked_key_wrote_is_not_shown(
    alice: PeerNode, bob: PeerNode, trust: Trust | None
) -> None:
    """An envelope of version 1 in a channel: an unknown sender is refused. One who is pinned is
    shown, and said to be so."""
    if trust is not None:
        bob.knows(alice, trust=trust)
    relayed = alice.v1_letter_to(bob, b"psst")
    async with bob.node():
        answer = await ask(bob.url, Op.OPEN, channel=b"notes", envelope=relayed.envelope)
    assert answer["sender"] == peer_id(alice.public)
    if trust is Trust.PINNED:
        assert (answer["data"], answer["trust"]) == (b"psst", "pinned")
    else:
        assert answer["data"] is None and answer["reason"]


async def test_what_cannot_be_is_refused(alice: PeerNode, bob: PeerNode) -> None:
    alice.knows(bob)
    async with alice.node():
        refused: list[tuple[type[RequestError], Op, dict[str, Any]]] = [
            (UnknownPeer, Op.SEND, {"peer": "carol", "channel": b"n", "data": b"x"}),
            (NoPrekey, Op.SEND, {"peer": "bob", "channel": b"n", "data": b"x"}),
            (NotAllowed, Op.SEND, {"peer": "bob", "channel": b"mail/x", "data": b"x"}),
            (Malformed, Op.SEND, {"peer": "bob", "channel": b"n", "data": b"x", "uuid": b"1"}),
            (Malformed, Op.SEND, {"peer": "bob", "channel": b"n", "data": b"x", "ttl": -1.0}),
            (Malformed, Op.SEND, {"peer": "bob"}),
            (Malformed, Op.SEND, {"peer": 5, "channel": b"n", "data": b"x"}),
            (Malformed, Op.OPEN, {"channel": b"n", "envelope": b"clear"}),
            (UnknownPeer, Op.PEER_REMOVE, {"peer": "carol"}),
        ]
        async with connect(alice.url, "any") as channel:
            for error, operation, body in refused:
                with pytest.raises(error):
                    await channel.peers(operation, body)
            with pytest.raises(Malformed):
                await channel.peers(200, {})
            assert (await channel.peers(Op.WHO, {}))["id"] == peer_id(alice.public)


@pytest.fixture
async def consumer(alice: PeerNode) -> AsyncIterator[Channel]:
    """A client that may put and be pushed, and nothing else."""
    rules = alice.folder / ACCESS_FILE
    rules.write_text("anyone put,push,ack,get,list *\n")
    rules.chmod(0o600)
    async with alice.node(), connect(alice.url, "any") as channel:
        yield channel


async def test_nobody_without_the_right_is_told_anything(consumer: Channel) -> None:
    for operation in (Op.WHO, Op.PEERS, Op.PEER_ADD, Op.SEND, Op.OPEN):
        with pytest.raises(NotAllowed):
            await consumer.peers(operation, {})


async def test_requests_are_answered_while_others_wait_and_the_mail_goes_on(
    alice: PeerNode,
) -> None:
    """A slow answer holds up nothing, and so many are under way at once and no more."""
    async with alice.node() as here, connect(alice.url, "any") as channel:
        release, begun = anyio.Event(), 0

        async def slow(body: bytes) -> bytes:
            nonlocal begun
            begun += 1
            await release.wait()
            return b"\x80"

        here.peer_requests.register(99, slow)
        refused: list[RequestError] = []

        async def waiting() -> None:
            try:
                assert await channel.peers(99, {}) == {}
            except RequestError as error:
                refused.append(error)

        async with anyio.create_task_group() as tasks:
            for _ in range(70):
                tasks.start_soon(waiting)
            with anyio.fail_after(60):
                while len(refused) < 6 or begun < 64:  # noqa: ASYNC110 (it happens in the node)
                    await anyio.sleep(0.01)
            receipt = await channel.put(b"meanwhile")
            assert await channel.get(receipt.id) == b"meanwhile"
            release.set()
        assert len(refused) == 6 and begun == 64
        assert (await channel.peers(Op.WHO, {}))["id"] == peer_id(alice.public)


async def test_a_card_is_enough_to_write_at_once(alice: PeerNode, bob: PeerNode) -> None:
    """Right after the peer was added, and right after a start."""
    async with bob.node():
        card = (await ask(bob.url, Op.WHO))["card"]
    async with alice.node() as here:
        await ask(alice.url, Op.PEER_ADD, name="bob", card=card)
        await here.outbox.send(bob.public, b"notes", b"first words")
        assert here.outbox.queued(bob.public) == 1
