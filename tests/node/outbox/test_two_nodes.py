"""Two nodes on loopback that dial one another, or one the other (docs/internals/peers.md,
PA-32)."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from millpond.actors.errors import EmptyData, NoPrekey, NotAllowed, UnknownPeer
from millpond.node.outbox.outbox import Outbox
from millpond.node.peers.address_book import Trust
from tests.node.outbox.peer_nodes import PeerNode, opened, read, remaining, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def alice(tmp_path: Path) -> PeerNode:
    return PeerNode(tmp_path, "alice")


@pytest.fixture
def bob(tmp_path: Path) -> PeerNode:
    return PeerNode(tmp_path, "bob")


async def test_what_is_sent_while_the_peer_is_away_arrives_when_it_starts(
    alice: PeerNode, bob: PeerNode
) -> None:
    """PA-32: the id is that of the node that gave it; the uuid goes all the way."""
    alice.knows(bob)
    bob.knows(alice, dials=False)
    alice.learns_key_of(bob)
    async with alice.node() as here:
        sent = await here.outbox.send(bob.public, b"notes", b"hello bob", uuid=bytes(range(16)))
        assert here.outbox.queued(bob.public) == 1
        async with bob.node() as there:
            (relayed,) = await opened(there, b"notes")
            await until(lambda: here.outbox.queued(bob.public) == 0)
    assert relayed.plaintext == b"hello bob"
    assert relayed.uuid == sent.uuid == bytes(range(16))
    assert relayed.sender == alice.public


async def test_who_cannot_be_dialled_fetches(alice: PeerNode, bob: PeerNode) -> None:
    alice.knows(bob, dials=False)
    bob.knows(alice)
    alice.learns_key_of(bob)
    async with alice.node() as here, bob.node() as there:
        for number in range(40):
            await here.outbox.send(bob.public, b"notes", b"%d" % number)
        assert await read(there, b"notes", 40) == [b"%d" % number for number in range(40)]
        await until(lambda: here.outbox.queued(bob.public) == 0)
        assert await remaining(there, b"notes") == []


async def test_both_dial_and_nothing_comes_twice(alice: PeerNode, bob: PeerNode) -> None:
    """In order, in both directions at once."""
    for one, other in ((alice, bob), (bob, alice)):
        one.knows(other)
        one.learns_key_of(other)
    numbers = [b"%d" % number for number in range(60)]
    async with alice.node() as here, bob.node() as there:
        async with anyio.create_task_group() as tasks:
            for node, peer in ((here, bob.public), (there, alice.public)):
                tasks.start_soon(_send_all, node.outbox, peer, numbers)
        assert await read(there, b"notes", 60) == numbers
        assert await read(here, b"notes", 60) == numbers
        await until(
            lambda: not here.outbox.queued(bob.public) and not there.outbox.queued(alice.public)
        )
        assert await remaining(there, b"notes") == await remaining(here, b"notes") == []


async def _send_all(post: Outbox, peer: bytes, texts: list[bytes]) -> None:
    for text in texts:
        await post.send(peer, b"notes", text)


async def test_a_message_sent_again_under_its_uuid_is_the_same_one(
    alice: PeerNode, bob: PeerNode
) -> None:
    alice.knows(bob)
    alice.learns_key_of(bob)
    async with alice.node() as here:
        first = await here.outbox.send(bob.public, b"notes", b"once", uuid=b"u" * 16)
        again = await here.outbox.send(bob.public, b"notes", b"once", uuid=b"u" * 16)
        # Another message, whose uuid happens to make the same key.
        other = await here.outbox.send(bob.public, b"notes", b"more", uuid=b"u" * 15 + b"v")
        assert (first.id, first.ttl) == (again.id, again.ttl)
        assert other.id != first.id
        assert here.outbox.queued(bob.public) == 2


async def test_a_peer_that_comes_back_gets_its_mail_at_once(
    alice: PeerNode, bob: PeerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the event that it is there, not by waiting until it is dialled again."""
    monkeypatch.setattr("millpond.node.outbox.routes.DELAY_S_MIN", 120.0)
    alice.knows(bob)
    bob.knows(alice)
    for one, other in ((alice, bob), (bob, alice)):
        one.learns_key_of(other)
    async with alice.node() as here:
        await here.outbox.send(bob.public, b"notes", b"at once")
        await anyio.sleep(0.2)  # it was dialled in vain, and rests for minutes now
        async with bob.node() as there:
            assert await read(there, b"notes") == [b"at once"]
            assert here.outbox.presence.last_seen(bob.public).is_online
            assert there.outbox.presence.last_seen(alice.public).is_online
        await until(lambda: not here.outbox.presence.last_seen(bob.public).is_online)
        assert here.outbox.presence.last_seen(bob.public).seen_at is not None


async def test_without_a_key_a_message_is_not_kept_and_the_key_is_asked_for(
    alice: PeerNode, bob: PeerNode
) -> None:
    alice.knows(bob)
    bob.knows(alice, dials=False)
    received = anyio.Event()
    async with alice.node() as here:
        here.outbox.on_prekey(lambda peer: received.set() if peer == bob.public else None)
        assert not here.outbox.can_seal(bob.public)
        with pytest.raises(NoPrekey):
            await here.outbox.send(bob.public, b"notes", b"too early")
        assert here.outbox.queued(bob.public) == 0
        async with bob.node() as there:
            with anyio.fail_after(60):
                await received.wait()
            assert here.outbox.can_seal(bob.public)
            await here.outbox.send(bob.public, b"notes", b"now")
            assert await read(there, b"notes") == [b"now"]


async def test_nothing_is_sent_to_untrusted_peers_or_to_forbidden_channels(
    alice: PeerNode, bob: PeerNode, tmp_path: Path
) -> None:
    carol, dave = PeerNode(tmp_path, "carol"), PeerNode(tmp_path, "dave")
    alice.knows(bob)
    alice.knows(carol, trust=Trust.PINNED)
    alice.knows(dave, trust=Trust.BLOCKED)
    for other in (bob, carol, dave):
        alice.learns_key_of(other)
    async with alice.node() as here:
        for stranger in (carol.public, dave.public, alice.public, bytes(32)):
            with pytest.raises(UnknownPeer):
                await here.outbox.send(stranger, b"notes", b"x")
        for channel in (b"mail/x", b"notes!dead", b"", b"n" * 256):
            with pytest.raises(NotAllowed):
                await here.outbox.send(bob.public, channel, b"x")
        with pytest.raises(EmptyData):
            await here.outbox.send(bob.public, b"notes", b"")


async def test_a_message_waits_for_trust(alice: PeerNode, bob: PeerNode) -> None:
    """A node that does not know us refuses the connection: nothing is lost, nothing is reported."""
    alice.knows(bob)
    alice.learns_key_of(bob)
    reports: list[object] = []

    async def record(*report: object) -> None:
        reports.append(report)

    async with alice.node() as here, bob.node() as there:
        here.outbox.on_status(record)
        await here.outbox.send(bob.public, b"notes", b"may I?")
        await anyio.sleep(0.5)
        assert here.outbox.queued(bob.public) == 1
        assert reports == [] and await remaining(there, b"notes") == []
        bob.knows(alice)
        assert await read(there, b"notes") == [b"may I?"]


async def test_who_is_revoked_gets_nothing_more(alice: PeerNode, bob: PeerNode) -> None:
    alice.knows(bob)
    bob.knows(alice, dials=False)
    alice.learns_key_of(bob)
    async with alice.node() as here:
        await here.outbox.send(bob.public, b"notes", b"not any more")
        alice.book.block("bob")
        await until(lambda: not here.outbox.context.book.is_contact(bob.public))
        async with bob.node() as there:
            await anyio.sleep(1.0)
            assert await remaining(there, b"notes") == []
        assert here.outbox.queued(bob.public) == 1
