"""Delivery status of messages that do not arrive at once: expiry, refusal, full nodes, restarts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from millpond.node.node import Node
from millpond.node.outbox.context import DeliveryStatus
from millpond.node.outbox.mailbox import mailbox_of
from tests.node.outbox.peer_nodes import PeerNode, leave, opened, read, remaining, until

pytestmark = pytest.mark.anyio

Reports = list[tuple[bytes, bytes, DeliveryStatus]]


@pytest.fixture
def alice(tmp_path: Path) -> PeerNode:
    return PeerNode(tmp_path, "alice")


@pytest.fixture
def bob(tmp_path: Path, alice: PeerNode) -> PeerNode:
    bob = PeerNode(tmp_path, "bob")
    alice.knows(bob)
    bob.knows(alice, dials=False)
    alice.learns_key_of(bob)
    return bob


def record_reports(node: Node) -> Reports:
    """The reports of the node from now on."""
    received: Reports = []

    async def record_reports(peer: bytes, uuids: Sequence[bytes], fate: DeliveryStatus) -> None:
        received.extend((peer, uuid, fate) for uuid in uuids)

    node.outbox.on_status(record_reports)
    return received


async def test_a_message_that_expired_is_reported_once(alice: PeerNode, bob: PeerNode) -> None:
    async with alice.node() as here:
        received = record_reports(here)
        sent = await here.outbox.send(bob.public, b"notes", b"too late", ttl=1)
        assert sent.ttl <= 2
        await until(lambda: received != [])
        assert here.outbox.queued(bob.public) == 0
        async with bob.node() as there:
            assert await remaining(there, b"notes") == []
    assert received == [(bob.public, sent.uuid, DeliveryStatus.EXPIRED)]
    async with alice.node() as here:
        received = record_reports(here)
        await anyio.sleep(0.3)
        assert received == []


async def test_messages_that_go_together_are_reported_together(
    alice: PeerNode, bob: PeerNode
) -> None:
    """A listener that stores reports does that once for all of them."""
    reports: list[tuple[int, DeliveryStatus]] = []

    async def count(peer: bytes, uuids: Sequence[bytes], status: DeliveryStatus) -> None:
        reports.append((len(set(uuids)), status))

    async with alice.node() as here:
        here.outbox.on_status(count)
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(here.outbox.send, bob.public, b"notes", b"%d" % number)
        async with bob.node() as there:
            await until(lambda: here.outbox.unconfirmed(bob.public) == 0)
            received = await read(there, b"notes", 8)
    # The order of tasks that start together is the library's (trio shuffles it).
    assert sorted(received) == [b"%d" % number for number in range(8)]
    assert reports == [(8, DeliveryStatus.SENT), (8, DeliveryStatus.DELIVERED)]


async def test_a_report_that_was_not_taken_in_is_made_again(alice: PeerNode, bob: PeerNode) -> None:
    """A client stores a report before the node forgets it."""
    async with alice.node() as here:
        begun = anyio.Event()

        async def hang(peer: bytes, uuids: Sequence[bytes], fate: DeliveryStatus) -> None:
            begun.set()
            await anyio.sleep_forever()

        here.outbox.on_status(hang)
        sent = await here.outbox.send(bob.public, b"notes", b"too late", ttl=1)
        with anyio.fail_after(60):
            await begun.wait()
    async with alice.node() as here:
        received = record_reports(here)
        await until(lambda: received != [])
    assert received == [(bob.public, sent.uuid, DeliveryStatus.EXPIRED)]


async def test_what_the_peer_will_never_take_is_reported_and_the_rest_goes_on(
    alice: PeerNode, bob: PeerNode
) -> None:
    async with alice.node() as here, bob.node(packet_bytes_max=4096) as there:
        received = record_reports(here)
        first = await here.outbox.send(bob.public, b"notes", b"before")
        large = await here.outbox.send(bob.public, b"notes", b"x" * 8000)
        after = await here.outbox.send(bob.public, b"notes", b"after")
        assert await read(there, b"notes", 2) == [b"before", b"after"]
        await until(lambda: len(received) == 3)
    assert {uuid: fate for _, uuid, fate in received} == {
        first.uuid: DeliveryStatus.SENT,
        large.uuid: DeliveryStatus.REFUSED,
        after.uuid: DeliveryStatus.SENT,
    }


async def test_a_full_peer_is_asked_again_later(
    alice: PeerNode, bob: PeerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost, reported or out of order, however often it says that it is full."""
    monkeypatch.setattr("millpond.node.outbox.forwarder.LATER_S", 0.1)
    monkeypatch.setattr("millpond.node.outbox.inbound.LATER_MS", 100)
    texts = [b"%d" % number for number in range(12)]
    async with alice.node() as here, bob.node(channel_messages_max=3) as there:
        received = record_reports(here)
        for text in texts:
            await here.outbox.send(bob.public, b"notes", text)
        await until(lambda: there.outbox.context.local.count(b"notes") == 3)
        await anyio.sleep(0.3)
        assert here.outbox.queued(bob.public) > 0
        found = await read(there, b"notes", 12)
        assert sorted(found) == sorted(texts)
        await until(lambda: here.outbox.queued(bob.public) == 0)
    assert {fate for _, _, fate in received} <= {DeliveryStatus.SENT, DeliveryStatus.DELIVERED}


async def test_what_was_carried_and_not_yet_forgotten_is_carried_again_and_there_once(
    alice: PeerNode, bob: PeerNode
) -> None:
    """PA-08, PA-09: the sender's node stops between the peer's answer and its own note of it."""
    async with alice.node() as here:
        sent = await here.outbox.send(bob.public, b"notes", b"once")
    shutil.copytree(alice.folder, alice.folder.with_name("before"))
    async with bob.node() as there:
        async with alice.node() as here:
            (relayed,) = await opened(there, b"notes")
            await until(lambda: here.outbox.queued(bob.public) == 0)
        shutil.rmtree(alice.folder)
        shutil.move(alice.folder.with_name("before"), alice.folder)
        async with alice.node() as here:
            assert here.outbox.queued(bob.public) == 1
            await until(lambda: here.outbox.queued(bob.public) == 0)
            assert await remaining(there, b"notes") == []
    assert relayed.uuid == sent.uuid


async def test_what_was_kept_for_the_owner_and_not_yet_sorted_is_sorted_at_the_next_start(
    alice: PeerNode, bob: PeerNode
) -> None:
    """Into the same channel, once: also when the inbound router had done half of its work."""
    relayed = alice.letter_to(bob, b"once")
    async with bob.node() as there:
        await leave(there, bob.public, relayed)
        await until(lambda: there.outbox.context.local.count(b"notes") == 1)
        await until(lambda: there.outbox.context.local.count(mailbox_of(bob.public)) == 0)
    async with bob.node() as there:
        # The mailbox as it was before the router had acknowledged.
        await leave(there, bob.public, relayed, key=77)
        await until(lambda: there.outbox.context.local.count(mailbox_of(bob.public)) == 0)
        assert await read(there, b"notes") == [b"once"]
        assert await remaining(there, b"notes") == []


async def test_a_peer_that_ends_in_the_middle_has_everything_once(
    alice: PeerNode, bob: PeerNode
) -> None:
    texts = [b"%03d" % number for number in range(120)]
    found: list[bytes] = []
    async with alice.node() as here:
        for text in texts:
            await here.outbox.send(bob.public, b"notes", text)
        for _ in range(3):
            async with bob.node(drain_timeout_s=0.0) as there:
                found += await read(there, b"notes", 2)
        async with bob.node() as there:
            await until(lambda: here.outbox.queued(bob.public) == 0)
            found += await read(there, b"notes", len(texts) - len(found))
            assert await remaining(there, b"notes") == []
    assert found == texts


async def test_who_fails_to_hear_a_report_is_told_again(
    alice: PeerNode, bob: PeerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the message stays until then: it is forwarded again, and there once."""
    monkeypatch.setattr("millpond.node.outbox.scheduling.RETRY_S", 0.1)
    received: list[DeliveryStatus] = []

    async def fail_once(peer: bytes, uuids: Sequence[bytes], fate: DeliveryStatus) -> None:
        received.append(fate)
        if len(received) == 1:
            raise ValueError("a mistake in whoever asked for reports")

    async with alice.node() as here, bob.node() as there:
        here.outbox.on_status(fail_once)
        await here.outbox.send(bob.public, b"notes", b"once")
        await until(lambda: here.outbox.queued(bob.public) == 0)
        assert await read(there, b"notes") == [b"once"]
        assert await remaining(there, b"notes") == []
    # Where the processors are busy, the receipt is there before it is told again, or right after.
    assert received[0] == DeliveryStatus.SENT
    again, *rest = received[1:]
    assert again in (DeliveryStatus.SENT, DeliveryStatus.DELIVERED)
    assert rest in ([], [DeliveryStatus.DELIVERED])
