"""Attacks on messages between nodes, by a relay, by a peer and by a stranger
(docs/internals/threat-model.md). Real nodes; time is virtual where it matters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from millpond.actors.errors import BufferFull, NoPrekey
from millpond.actors.messages import Ack, Msg
from millpond.node.access.rules_file import FILE_NAME as ACCESS_FILE
from millpond.node.client.future import ReplyFuture
from millpond.node.node import Node
from millpond.node.outbox.context import DeliveryStatus
from millpond.node.outbox.deliveries import Deliveries
from millpond.node.outbox.inbound import InboundRouter
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.relayed_message import RelayedMessage, decode_relayed_message
from millpond.node.peers.address_book import Trust
from millpond.node.peers.peer_store import CHANNELS_MAX
from millpond.node.peers.prekeys import sign_prekey
from millpond.testing import SimNode, World
from tests.node.outbox.peer_nodes import PeerNode, leave, opened, read, remaining, until, v1_message

pytestmark = pytest.mark.anyio

SENT = DeliveryStatus.SENT
RETRY_S = 240.0
Reports = list[tuple[bytes, DeliveryStatus]]


def reports_of(node: Node) -> Reports:
    """Reports of the node about its messages, from now on."""
    received: Reports = []

    async def record(peer: bytes, uuids: Sequence[bytes], status: DeliveryStatus) -> None:
        received.extend((uuid, status) for uuid in uuids)

    node.outbox.on_status(record)
    return received


@pytest.fixture
def alice(tmp_path: Path) -> PeerNode:
    return PeerNode(tmp_path, "alice", peer_channels=())


@pytest.fixture
def bob(tmp_path: Path, alice: PeerNode) -> PeerNode:
    bob = PeerNode(tmp_path, "bob", peer_channels=())
    alice.knows(bob)
    bob.knows(alice, dials=False)
    alice.learns_key_of(bob)
    return bob


# P1: who may write where.


async def test_a_peer_writes_to_its_chat_and_nowhere_else(
    alice: PeerNode, bob: PeerNode, caplog: pytest.LogCaptureFixture
) -> None:
    """A job of a peer's choice does not get into a queue; the peer is told, and its log says so, at
    most once a minute."""
    own_chat = f"chat/{alice.identity.id}".encode()
    other_chat = f"chat/{bob.identity.id}".encode()
    async with alice.node() as here, bob.node() as there:
        reports = reports_of(here)
        denied = [
            await here.outbox.send(bob.public, channel, b"{}")
            for channel in (b"jobs/pay2", b"notes", other_chat)
        ]
        sent = await here.outbox.send(bob.public, own_chat, b"not a payload of the chat")
        await until(lambda: len([each for each in reports if each[1] is not SENT]) == 4)
        assert {uuid for uuid, status in reports if status is DeliveryStatus.REFUSED} == {
            each.uuid for each in denied
        }
        assert (sent.uuid, DeliveryStatus.DELIVERED) in reports
        for channel in (b"jobs/pay2", b"notes", other_chat):
            assert await remaining(there, channel) == []
        assert there.outbox.context.dropped == {"denied": 3}
        assert there.registry.counters.reasons["message denied"] == 3
    (told,) = [each for each in caplog.messages if each.startswith("message refused")]
    assert bob.identity.id in told and any(each.uuid.hex() in told for each in denied)


@pytest.mark.parametrize("subject", ["key:alice", "key:{id}"])
async def test_a_rule_that_names_a_peer_opens_a_channel(
    alice: PeerNode, bob: PeerNode, subject: str
) -> None:
    """One for everybody or for an address does not: who wrote it is all that is known."""
    rules = bob.folder / ACCESS_FILE
    line = subject.format(id=alice.identity.id)
    rules.write_text(f"{line} put notes\nanyone all\naddress:0.0.0.0/0 all\nlistener:p2p all\n")
    async with alice.node() as here, bob.node() as there:
        await here.outbox.send(bob.public, b"other", b"no")
        await here.outbox.send(bob.public, b"notes", b"yes")
        assert await read(there, b"notes") == [b"yes"]
        assert await remaining(there, b"other") == []


@pytest.mark.parametrize("trust", [None, Trust.PINNED, Trust.BLOCKED])
@pytest.mark.parametrize("version", [1, 2])
async def test_a_stranger_and_a_revoked_key_write_nowhere(
    tmp_path: Path, trust: Trust | None, version: int
) -> None:
    """By way of a relay, which takes everything."""
    bob, mallory = PeerNode(tmp_path, "bob"), PeerNode(tmp_path, "mallory")
    friend = PeerNode(tmp_path, "friend")
    bob.knows(friend, dials=False)
    if trust is not None:
        bob.knows(mallory, dials=False, trust=trust)
    async with bob.node() as there:
        letter_to = mallory.letter_to if version == 2 else mallory.v1_letter_to
        await leave(there, bob.public, letter_to(bob, b"psst"))
        await leave(there, bob.public, friend.letter_to(bob, b"hello"))
        assert await read(there, b"notes") == [b"hello"]
        assert await remaining(there, b"notes") == []
        (reason,) = there.outbox.context.dropped
        assert reason == f"{trust.value if trust else 'unknown'}_sender"
        # And nobody answers: a stranger does not learn that the node is there.
        assert there.outbox.queued(mallory.public) == 0


async def test_a_sender_makes_so_many_channels_and_no_more(tmp_path: Path) -> None:
    alice, bob = PeerNode(tmp_path, "alice"), PeerNode(tmp_path, "bob")
    bob.knows(alice, dials=False)
    async with bob.node() as there:
        for number in range(CHANNELS_MAX + 20):
            channel = b"flood/%d" % number
            await leave(there, bob.public, alice.letter_to(bob, b"x", channel), number)
        await until(lambda: there.outbox.queued(bob.public) == 0)
        channels = [name for name in there.scheduler.cells if name.startswith(b"flood/")]
        assert len(channels) == CHANNELS_MAX
        assert there.outbox.context.dropped == {"denied": 20}
        # One that is empty makes way.
        await read(there, b"flood/0")
        await until(lambda: there.outbox.context.local.count(b"flood/0") == 0)
        await leave(there, bob.public, alice.letter_to(bob, b"y", b"flood/new"))
        assert await read(there, b"flood/new") == [b"y"]


async def test_a_sender_fills_so_many_bytes_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest waits in the mailbox, and other senders are not held up."""
    monkeypatch.setattr("millpond.node.outbox.inbound.SENDER_BYTES_MAX", 3500)
    monkeypatch.setattr("millpond.node.outbox.inbound.LATER_MS", 100)
    alice, bob, carol = (PeerNode(tmp_path, name) for name in ("alice", "bob", "carol"))
    for sender in (alice, carol):
        bob.knows(sender, dials=False)
    async with bob.node() as there:
        for number in range(8):
            await leave(there, bob.public, alice.letter_to(bob, b"x" * 1000), number)
        await leave(there, bob.public, carol.letter_to(bob, b"hello", b"other"), 99)
        assert await read(there, b"other") == [b"hello"]
        await until(lambda: there.outbox.context.local.count(b"notes") == 3)
        assert len(await read(there, b"notes", 8)) == 8


async def test_many_messages_that_wait_are_opened_rarely(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would take all the time of the node, and hold up other senders."""
    monkeypatch.setattr("millpond.node.outbox.inbound.SENDER_BYTES_MAX", 10)
    monkeypatch.setattr("millpond.node.outbox.inbound.LATER_MS", 200)
    alice, bob = await world.node("alice"), await world.node("bob")
    world.link(alice, bob)
    count, opened, own_open = 30, 0, InboundRouter._open

    def counting(router: InboundRouter, message: Msg) -> Any:
        nonlocal opened
        opened += 1
        return own_open(router, message)

    for _ in range(count):
        await alice.send("bob", "notes", b"more than ten bytes")
    mailbox, context = mailbox_of(bob.public), bob.node.outbox.context
    with anyio.fail_after(600):
        while context.local.count(mailbox) < count:
            await world.clock.sleep(1)
    await world.clock.sleep(10)
    monkeypatch.setattr(InboundRouter, "_open", counting)
    await world.clock.sleep(10)
    assert count < opened <= 10 * 100 + 2 * count


async def test_so_many_messages_to_a_peer_wait_for_a_receipt_and_no_more(
    alice: PeerNode, bob: PeerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.node.outbox.deliveries.MESSAGES_MAX", 3)
    chat = f"chat/{alice.identity.id}".encode()
    async with alice.node() as here:
        for _ in range(3):
            await here.outbox.send(bob.public, chat, b"x")
        with pytest.raises(BufferFull):
            await here.outbox.send(bob.public, chat, b"x")
        async with bob.node():
            await until(lambda: here.outbox.unconfirmed(bob.public) == 0)
        await here.outbox.send(bob.public, chat, b"x")


async def test_a_key_that_one_peer_was_given_serves_no_other(tmp_path: Path) -> None:
    alice, bob, eve = (PeerNode(tmp_path, name) for name in ("alice", "bob", "eve"))
    for one, other in ((alice, bob), (eve, bob)):
        one.knows(other)
        bob.knows(one)
        one.learns_key_of(other)
    async with alice.node() as here, bob.node() as there, eve.node() as hers:
        await here.outbox.send(bob.public, b"notes", b"one")
        assert await read(there, b"notes") == [b"one"]
        await until(lambda: here.outbox.unconfirmed(bob.public) == 0)
        stolen = here.outbox.context.store.state(bob.public).their_key
        assert stolen is not None
        hers.outbox.context.store.state(bob.public).their_key = replace(stolen, number=2**50)
        await hers.outbox.send(bob.public, b"notes", b"two")
        await until(lambda: "wrong_sender" in there.outbox.context.dropped)
        assert await remaining(there, b"notes") == []


async def test_what_was_accepted_and_not_delivered_is_delivered_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its counter is recorded already: it is unfinished work, and no repetition."""
    alice, bob = PeerNode(tmp_path, "alice"), PeerNode(tmp_path, "bob")
    bob.knows(alice, dials=False)
    letter = alice.letter_to(bob, b"once")
    with monkeypatch.context() as patched:
        patched.setattr(InboundRouter, "_put", lambda _, __, group: [ReplyFuture() for _ in group])
        async with bob.node() as there:
            await leave(there, bob.public, letter)
            await until(lambda: len(there.outbox.context.unfinished) == 1)
            await anyio.sleep(0.1)
    async with bob.node() as there:
        assert await read(there, b"notes") == [b"once"]
        await until(lambda: not there.outbox.context.unfinished)
        await leave(there, bob.public, letter, 99)
        await until(lambda: there.outbox.context.dropped == {"seen_counter": 1})
        assert await remaining(there, b"notes") == []


async def test_so_many_messages_of_a_sender_are_on_their_way_into_channels_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest waits in the mailbox, and other senders are not held up."""
    monkeypatch.setattr("millpond.node.outbox.inbound.UNFINISHED_MAX", 3)
    alice, bob, carol = (PeerNode(tmp_path, name) for name in ("alice", "bob", "carol"))
    for sender in (alice, carol):
        bob.knows(sender, dials=False)
    texts = [b"%d" % number for number in range(8)]
    with monkeypatch.context() as patched:
        patched.setattr(InboundRouter, "_put", lambda _, __, group: [ReplyFuture() for _ in group])
        async with bob.node() as there:
            for number, text in enumerate(texts):
                await leave(there, bob.public, alice.letter_to(bob, text), number)
            await leave(there, bob.public, carol.letter_to(bob, b"hello", b"other"), 99)
            unfinished = there.outbox.context.unfinished
            await until(lambda: any(m.sender == carol.public for m in unfinished.values()))
            assert sum(each.sender == alice.public for each in unfinished.values()) == 3
    monkeypatch.setattr("millpond.node.outbox.inbound.LATER_MS", 100)
    async with bob.node() as there:
        assert await read(there, b"other") == [b"hello"]
        assert sorted(await read(there, b"notes", 8)) == texts


async def test_what_was_read_is_known_after_a_restart(tmp_path: Path) -> None:
    alice, bob = PeerNode(tmp_path, "alice"), PeerNode(tmp_path, "bob")
    bob.knows(alice, dials=False)
    letter = alice.letter_to(bob, b"once")
    async with bob.node() as there:
        await leave(there, bob.public, letter)
        assert await read(there, b"notes") == [b"once"]
        await until(lambda: not there.outbox.queued(bob.public))
    async with bob.node() as there:
        await leave(there, bob.public, letter, 99)
        await until(lambda: there.outbox.context.dropped == {"seen_counter": 1})


# P4 and P8: a relay that repeats, delays and drops, in virtual time.


class Trap:
    """Alice and Bob in a world, who write to each other by way of Mallory's relay."""

    def __init__(self, world: World, alice: SimNode, bob: SimNode, mallory: SimNode) -> None:
        self.world, self.alice, self.bob, self.mallory = world, alice, bob, mallory
        self.alice_public, self.bob_public = alice.public, bob.public

    async def take(self, count: int = 1, owner: bytes | None = None) -> list[RelayedMessage]:
        """Take away the messages that wait at the relay for Bob, or for another owner."""
        found: list[Msg] = []
        local = self.mallory.node.outbox.context.local
        mailbox = mailbox_of(owner or self.bob_public)
        with anyio.fail_after(600), local.consumer(mailbox, 64) as consumer:
            while len(found) < count:
                found.append(await consumer.receive())
                consumer.settle(Ack(found[-1].id))
        return [decode_relayed_message(each.data) for each in found]

    async def give(self, relayed: RelayedMessage, key: int | None = None) -> None:
        """Leave a message at the relay for its recipient."""
        await leave(self.mallory.node, relayed.recipient, relayed, key)

    async def received(self, node: SimNode, channel: str = "notes") -> list[bytes]:
        """All that comes within a minute."""
        found: list[bytes] = []
        while True:
            try:
                found.append((await node.read(channel, timeout_s=60)).data)
            except TimeoutError:
                return found


@pytest.fixture
async def trap(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Trap]:
    # Hours of virtual time take long.
    monkeypatch.setattr("millpond.node.outbox.deliveries.RETRY_S_MIN", RETRY_S)
    mallory = await world.node("mallory", relay=True)
    relay = f"{mallory.node.peer_services.keyring.identity.id}@{mallory.url}"
    alice = await world.node("alice", via=(relay,))
    bob = await world.node("bob", via=(relay,))
    for person in (alice, bob):
        person.add_peer(mallory)
        mallory.add_peer(person, dials=False)
    alice.add_peer(bob, dials=False, relays=[mallory])
    bob.add_peer(alice, dials=False, relays=[mallory])
    yield Trap(world, alice, bob, mallory)


async def test_a_message_that_is_repeated_later_is_read_once(trap: Trap) -> None:
    """With a deadline of the relay's choice outside, after all memories of keys are over, and
    after a restart."""
    await trap.bob.stop()
    await trap.alice.send("bob", "notes", b"once")
    (relayed,) = await trap.take()
    soon = replace(relayed, deadline=int(trap.world.clock.now()) // 3600 * 3600)
    await trap.bob.start()
    await trap.give(soon)
    assert await trap.received(trap.bob) == [b"once"]
    for minutes in (11, 60, 9 * 1440):
        for node in (trap.alice, trap.bob, trap.mallory):
            await node.stop()
        await trap.world.clock.sleep(minutes * 60)
        for node in (trap.mallory, trap.bob):
            await node.start()
        await trap.give(relayed, minutes)
        await trap.give(soon, minutes + 100)
        assert await trap.received(trap.bob) == []


async def test_a_message_of_version_1_that_is_repeated_later_is_read_once(trap: Trap) -> None:
    keyring = trap.alice.node.peer_services.keyring
    prekey = trap.bob.node.peer_services.keyring.prekeys.current()
    relayed = v1_message(
        b"once",
        b"notes",
        keyring.identity,
        trap.bob_public,
        prekey.public,
        trap.world.clock.now(),
    )
    await trap.give(replace(relayed, deadline=int(trap.world.clock.now()) + 1))
    assert await trap.received(trap.bob) == [b"once"]
    for number in (1, 2):
        await trap.world.clock.sleep(700)
        await trap.bob.restart()
        await trap.give(relayed, number)
        assert await trap.received(trap.bob) == []


async def test_a_message_of_version_1_is_known_as_long_as_its_prekey(world: World) -> None:
    """The node gives its own messages ten minutes, and others may give theirs more."""
    alice, bob = await world.node("alice"), await world.node("bob", peer_ttl_s=600)
    world.link(alice, bob)
    keyring, prekeys = alice.node.peer_services.keyring, bob.node.peer_services.keyring.prekeys
    prekey, now = prekeys.current(), world.clock.now()
    relayed = v1_message(b"once", b"notes", keyring.identity, bob.public, prekey.public, now)
    await leave(bob.node, bob.public, relayed)
    assert (await bob.read("notes", timeout_s=60)).data == b"once"
    await alice.stop()
    await bob.stop()
    await world.clock.sleep(6 * 86_400)
    await bob.start()
    await world.clock.sleep(60)
    assert bob.node.peer_services.keyring.prekeys.private(prekey.kid) is not None
    late = replace(relayed, deadline=int(world.clock.now()) + 600)
    await leave(bob.node, bob.public, late, 99)
    with pytest.raises(TimeoutError):
        await bob.read("notes", timeout_s=60)
    assert bob.node.outbox.context.dropped == {"seen_counter": 1}


async def test_a_message_is_not_read_after_its_deadline(trap: Trap) -> None:
    """The deadline inside counts, not the relay's outside; an hour is allowed for wrong clocks."""
    await trap.bob.stop()
    await trap.alice.send("bob", "notes", b"too late", ttl=60)
    (relayed,) = await trap.take()
    await trap.alice.stop()
    await trap.mallory.stop()
    await trap.world.clock.sleep(2 * 3600)
    await trap.mallory.start()
    await trap.bob.start()
    await trap.give(replace(relayed, deadline=relayed.deadline + 30 * 86_400))
    assert await trap.received(trap.bob) == []
    assert trap.bob.node.outbox.context.dropped == {"late": 1}


async def test_what_a_relay_loses_is_sent_again_and_reported(trap: Trap) -> None:
    """P8: it was "sent" for ever. Nobody but the sender notices the loss, after a time."""
    reports = reports_of(trap.alice.node)
    await trap.bob.stop()
    sent = await trap.alice.send("bob", "notes", b"lost once")
    await trap.take()
    await trap.bob.start()
    assert await trap.received(trap.bob) == []
    assert trap.alice.node.outbox.unconfirmed(trap.bob_public) == 1
    assert (await trap.bob.read("notes", timeout_s=2 * RETRY_S)).data == b"lost once"
    await trap.world.clock.sleep(60)
    assert trap.alice.node.outbox.unconfirmed(trap.bob_public) == 0
    assert reports[-1] == (sent.uuid, DeliveryStatus.DELIVERED)
    assert (sent.uuid, SENT) in reports


async def test_a_gap_is_noticed_by_the_next_message(trap: Trap) -> None:
    """Within seconds, and not after the time for messages without a receipt."""
    await trap.bob.stop()
    await trap.alice.send("bob", "notes", b"1")
    await trap.take()
    await trap.alice.send("bob", "notes", b"2")
    await trap.bob.start()
    assert (await trap.bob.read("notes", timeout_s=60)).data == b"2"
    assert (await trap.bob.read("notes", timeout_s=120)).data == b"1"
    await trap.world.clock.sleep(60)
    assert trap.alice.node.outbox.unconfirmed(trap.bob_public) == 0


async def test_a_message_the_other_way_is_a_receipt_too(trap: Trap) -> None:
    """A relay that drops receipts hides nothing: each message tells what was seen."""
    await trap.alice.send("bob", "notes", b"1")
    assert (await trap.bob.read("notes")).data == b"1"
    trap.bob.node.outbox._deliveries._by_peer[trap.alice_public].receipt_due = float("inf")
    await trap.bob.send("alice", "notes", b"2")
    assert (await trap.alice.read("notes")).data == b"2"
    await trap.world.clock.sleep(5)
    assert trap.alice.node.outbox.unconfirmed(trap.bob_public) == 0


async def test_nothing_is_said_of_a_message_after_its_final_status(trap: Trap) -> None:
    """A copy of it may be on its way to a relay while somebody hears that it is delivered."""
    context, reports = trap.alice.node.outbox.context, reports_of(trap.alice.node)

    async def hear(peer: bytes, uuids: Sequence[bytes], status: DeliveryStatus) -> None:
        if status is DeliveryStatus.DELIVERED:
            trap.world.heal("alice", "mallory")
            await trap.world.clock.sleep(2 * RETRY_S)
            assert trap.alice.node.outbox.queued(trap.bob_public) == 0

    trap.alice.node.outbox.on_status(hear)
    await trap.bob.stop()
    sent = await trap.alice.send("bob", "notes", b"1")
    (relayed,) = await trap.take()
    await trap.world.clock.sleep(5)
    trap.world.partition("alice", "mallory")
    await trap.bob.start()
    await trap.give(relayed)
    (receipt,) = await trap.take(owner=trap.alice_public)
    await trap.world.clock.sleep(3 * RETRY_S)
    assert trap.alice.node.outbox.queued(trap.bob_public) == 1
    await leave(trap.alice.node, trap.alice_public, receipt)
    await trap.world.clock.sleep(3 * RETRY_S)
    assert trap.alice.node.outbox.unconfirmed(trap.bob_public) == 0
    assert [status for _, status in reports] == [SENT, DeliveryStatus.DELIVERED]
    assert context.store.query("SELECT uuid FROM outbox WHERE uuid = ?", (sent.uuid,)) == []


async def test_nothing_is_said_of_a_copy_that_was_made_while_the_receipt_came(
    trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, reports = trap.alice.node.outbox.context, reports_of(trap.alice.node)
    receipts: list[RelayedMessage] = []
    seal = Deliveries._seal

    async def seal_slowly(self: Deliveries, *args: Any) -> RelayedMessage:
        if receipts and self._context is context:
            await leave(trap.alice.node, trap.alice_public, receipts.pop())
            await anyio.sleep(5)
        return await seal(self, *args)

    async def hear(peer: bytes, uuids: Sequence[bytes], status: DeliveryStatus) -> None:
        if status is DeliveryStatus.DELIVERED:
            trap.world.heal("alice", "mallory")
            await trap.world.clock.sleep(2 * RETRY_S)

    monkeypatch.setattr(Deliveries, "_seal", seal_slowly)
    trap.alice.node.outbox.on_status(hear)
    await trap.bob.stop()
    await trap.alice.send("bob", "notes", b"1")
    (relayed,) = await trap.take()
    await trap.world.clock.sleep(5)
    trap.world.partition("alice", "mallory")
    await trap.bob.start()
    await trap.give(relayed)
    receipts += await trap.take(owner=trap.alice_public)
    await trap.world.clock.sleep(6 * RETRY_S)
    assert trap.alice.node.outbox.unconfirmed(trap.bob_public) == 0
    assert [status for _, status in reports] == [SENT, DeliveryStatus.DELIVERED]


async def test_each_listener_hears_the_final_status_last(trap: Trap) -> None:
    """Also while another one still takes in that the message was sent."""

    async def slow(peer: bytes, uuids: Sequence[bytes], status: DeliveryStatus) -> None:
        if status is SENT:
            await anyio.sleep(5)

    trap.alice.node.outbox.on_status(slow)
    reports = reports_of(trap.alice.node)
    sent = await trap.alice.send("bob", "notes", b"quick")
    assert (await trap.bob.read("notes")).data == b"quick"
    await trap.world.clock.sleep(30)
    assert reports == [(sent.uuid, SENT), (sent.uuid, DeliveryStatus.DELIVERED)]


async def test_what_never_arrives_is_said_to_have_expired(trap: Trap) -> None:
    """By the sender's own clock, also when a relay has said that it has it."""
    reports = reports_of(trap.alice.node)
    await trap.bob.stop()
    sent = await trap.alice.send("bob", "notes", b"lost", ttl=200)
    await trap.take()
    await trap.world.clock.sleep(199)
    assert [status for _, status in reports] == [SENT]
    await trap.world.clock.sleep(62)
    assert reports[-1] == (sent.uuid, DeliveryStatus.EXPIRED)
    assert trap.alice.node.outbox.unconfirmed(trap.bob_public) == 0


async def test_what_is_kept_survives_the_sender_s_crash(trap: Trap) -> None:
    await trap.bob.stop()
    await trap.alice.send("bob", "notes", b"lost once")
    await trap.take()
    await trap.alice.restart(power=True)
    await trap.bob.start()
    assert (await trap.bob.read("notes", timeout_s=2 * RETRY_S)).data == b"lost once"


async def test_messages_out_of_order_and_repeated_are_each_read_once(trap: Trap) -> None:
    await trap.bob.stop()
    texts = [b"%d" % number for number in range(12)]
    for text in texts:
        await trap.alice.send("bob", "notes", text)
    relayed = await trap.take(12)
    await trap.bob.start()
    for number, each in enumerate([*reversed(relayed), *relayed]):
        await trap.give(each, number)
    assert sorted(await trap.received(trap.bob)) == sorted(texts)
    await trap.world.clock.sleep(60)
    assert trap.alice.node.outbox.unconfirmed(trap.bob_public) == 0


async def test_what_expired_before_its_move_is_read_when_it_is_sent_again(
    trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay has set an early deadline outside, and the node crashed after it had accepted the
    message. Nobody says that it is delivered before it is."""
    reports = reports_of(trap.alice.node)
    await trap.bob.stop()
    sent = await trap.alice.send("bob", "notes", b"once")
    (relayed,) = await trap.take()
    with monkeypatch.context() as patched:
        patched.setattr(InboundRouter, "_put", lambda _, __, group: [ReplyFuture() for _ in group])
        await trap.bob.start()
        await trap.give(replace(relayed, deadline=int(trap.world.clock.now()) // 3600 * 3600))
        await trap.world.clock.sleep(5)
        assert len(trap.bob.node.outbox.context.unfinished) == 1
        await trap.bob.crash()
    await trap.world.clock.sleep(60)
    await trap.bob.start()
    assert (await trap.bob.read("notes", timeout_s=2 * RETRY_S)).data == b"once"
    await trap.world.clock.sleep(60)
    assert reports[-1] == (sent.uuid, DeliveryStatus.DELIVERED)
    assert await trap.received(trap.bob) == []


async def test_a_sender_that_restarts_often_is_read_once(trap: Trap) -> None:
    """The recipient was away, so each run has left a line; the sender hears of them days later."""
    await trap.bob.stop()
    texts = [b"%d" % number for number in range(6)]
    sent = []
    for text in texts:
        sent.append((await trap.alice.send("bob", "notes", text)).uuid)
        await trap.alice.restart()
    await trap.world.clock.sleep(60)
    await trap.alice.stop()
    await trap.bob.start()
    assert sorted(await trap.received(trap.bob)) == texts
    for node in (trap.bob, trap.mallory):
        await node.stop()
    await trap.world.clock.sleep(2 * 86_400)
    for node in (trap.mallory, trap.bob, trap.alice):
        await node.start()
    reports = reports_of(trap.alice.node)
    assert await trap.received(trap.bob) == []
    await trap.world.clock.sleep(120)
    assert await trap.received(trap.bob) == []
    assert trap.alice.node.outbox.unconfirmed(trap.bob_public) == 0
    delivered = {uuid for uuid, status in reports if status is DeliveryStatus.DELIVERED}
    assert delivered == set(sent)


async def test_a_peer_that_lost_its_state_is_reached_again(trap: Trap) -> None:
    """Its keys for us are gone: what is sealed for them cannot be opened, and is sealed again for
    the published one. And what it had read before is not read again."""
    await trap.alice.send("bob", "notes", b"1")
    assert (await trap.bob.read("notes")).data == b"1"
    await trap.world.clock.sleep(5)
    await trap.bob.stop()
    for name in ("peers.db", "peers.db-wal", "peers.db-shm"):
        (trap.bob.folder / name).unlink(missing_ok=True)
    await trap.bob.start()
    await trap.alice.send("bob", "notes", b"2")
    assert (await trap.bob.read("notes", timeout_s=2 * RETRY_S)).data == b"2"
    await trap.world.clock.sleep(60)
    assert trap.alice.node.outbox.unconfirmed(trap.bob_public) == 0


async def test_kept_messages_that_cannot_be_opened_expire(trap: Trap) -> None:
    """`local.key` is lost. They stay as long as they could live, in case it is brought back."""
    for node in (trap.bob, trap.mallory):
        await node.stop()
    await trap.alice.send("bob", "notes", b"kept")
    await trap.alice.stop()
    (trap.alice.folder / "local.key").unlink()

    def rows() -> int:
        found = trap.alice.node.outbox.context.store.query("SELECT COUNT(*) FROM outbox")
        return int(found[0][0])

    for days, count in ((0, 1), (6, 1), (2, 0)):
        await trap.world.clock.sleep(days * 86_400)
        await trap.alice.start()
        await trap.world.clock.sleep(5)
        assert (rows(), trap.alice.node.outbox.unconfirmed(trap.bob_public)) == (count, count)
        await trap.alice.stop()


async def test_a_message_changes_its_line_once_over_a_crash(
    trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipient has lost its state and refuses old lines; the sender crashed when the copy in
    the new line was on its way."""
    await trap.bob.stop()
    await trap.alice.send("bob", "notes", b"once")
    await trap.take()
    for node in (trap.alice, trap.mallory):
        await node.stop()
    for name in ("peers.db", "peers.db-wal", "peers.db-shm"):
        (trap.bob.folder / name).unlink(missing_ok=True)
    await trap.world.clock.sleep(2 * 3600)
    began, stored = int(trap.world.clock.now() * 1000), Deliveries._stored

    async def stuck_behind_it(self: Deliveries, *args: Any) -> int:
        found = await stored(self, *args)
        if args[0] == trap.bob_public and args[1].began >= began:
            await anyio.sleep_forever()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Deliveries, "_stored", stuck_behind_it)
        for node in (trap.mallory, trap.bob, trap.alice):
            await node.start()
        assert (await trap.bob.read("notes", timeout_s=2 * RETRY_S)).data == b"once"
        await trap.alice.crash()
    for node in (trap.bob, trap.mallory):
        await node.stop()
    await trap.world.clock.sleep(2 * 86_400)
    for node in (trap.mallory, trap.bob, trap.alice):
        await node.start()
    await trap.world.clock.sleep(120)
    assert await trap.received(trap.bob) == []
    assert trap.alice.node.outbox.unconfirmed(trap.bob_public) == 0


async def test_keys_change_with_every_turn_and_old_ones_are_gone(trap: Trap) -> None:
    """P6: what was captured cannot be opened with what the disk holds some turns later."""
    await trap.bob.stop()
    await trap.alice.send("bob", "notes", b"first")
    (first,) = await trap.take()
    await trap.bob.start()
    await trap.give(first)
    assert (await trap.bob.read("notes")).data == b"first"
    await trap.world.clock.sleep(5)
    kids: list[bytes] = []
    for turn in range(6):
        await trap.bob.stop()
        await trap.alice.send("bob", "notes", b"%d" % turn)
        (relayed,) = await trap.take()
        kids.append(relayed.envelope[2:10])
        await trap.bob.start()
        await trap.give(relayed)
        assert (await trap.bob.read("notes")).data == b"%d" % turn
        await trap.world.clock.sleep(5)
    assert len(set(kids)) == 6
    store = trap.bob.node.peer_services.keyring.store
    assert store.contact_key(kids[0]) is None and store.contact_key(kids[1]) is None


async def test_nobody_gets_two_nodes_down_to_version_1(trap: Trap) -> None:
    """A relay that shows only the old form of a prekey."""
    context = trap.alice.node.outbox.context
    await trap.alice.send("bob", "notes", b"1")
    assert (await trap.bob.read("notes")).data == b"1"
    await trap.world.clock.sleep(5)
    assert trap.alice.node.outbox.version(trap.bob_public) == 2
    keyring, now = trap.bob.node.peer_services.keyring, trap.world.clock.now()
    old = sign_prekey(keyring.identity, bytes([9]) + bytes(31), now, now + 86_400 * 8, version=1)
    context.prekey_cache.learn(trap.bob_public, old)
    await trap.bob.stop()
    await trap.alice.send("bob", "notes", b"2")
    (relayed,) = await trap.take()
    assert not relayed.is_version_1


async def test_without_a_key_of_version_2_none_of_version_1_is_used(trap: Trap) -> None:
    """A relay keeps new prekeys back until the known ones are over, and then shows an old form."""
    await trap.alice.send("bob", "notes", b"1")
    assert (await trap.bob.read("notes")).data == b"1"
    await trap.world.clock.sleep(5)
    keyring = trap.bob.node.peer_services.keyring
    for node in (trap.alice, trap.bob, trap.mallory):
        await node.stop()
    await trap.world.clock.sleep(10 * 86_400)
    await trap.alice.start()
    now = trap.world.clock.now()
    old = sign_prekey(keyring.identity, bytes([9]) + bytes(31), now, now + 86_400 * 8, version=1)
    assert trap.alice.node.outbox.context.prekey_cache.learn(trap.bob_public, old)
    with pytest.raises(NoPrekey):
        await trap.alice.send("bob", "notes", b"2")


async def test_a_node_of_version_1_is_written_to_and_heard(
    alice: PeerNode, bob: PeerNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Bob's node is old: it publishes the old form alone, and seals by version 1."""
    caplog.set_level("INFO")
    alice.learns_old_key_of(bob)
    async with alice.node() as here:
        assert here.outbox.version(bob.public) == 1
        own_chat = f"chat/{alice.identity.id}".encode()
        await here.outbox.send(bob.public, own_chat, b"hello")
        row = next(here.outbox.context.local.messages(mailbox_of(bob.public)))
        assert decode_relayed_message(row.data).is_version_1
        assert "by version 1" in caplog.text
        chat = f"chat/{bob.identity.id}".encode()
        await leave(here, alice.public, bob.v1_letter_to(alice, b"hello to you", chat))
        (found,) = await opened(here, chat)
        assert (found.plaintext, found.sender) == (b"hello to you", bob.public)
