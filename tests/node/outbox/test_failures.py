"""Obstacles to mail: relays full or silent, slow disks, revoked peers
(docs/internals/peers.md)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from msgspec.structs import force_setattr

from millpond.actors.messages import Put
from millpond.actors.store.filesystem import OsDisk, OsFile
from millpond.node.node import Node
from millpond.node.outbox.context import DeliveryStatus
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.peers.identity import Identity
from millpond.testing import World
from tests.node.outbox.failing_store import failing
from tests.node.outbox.peer_nodes import PeerNode, leave, read, remaining, until

pytestmark = pytest.mark.anyio


class Village:
    """Alice writes to Bob by way of Rita's relay, and if need be by Sven's."""

    def __init__(self, folder: Path) -> None:
        self.alice = PeerNode(folder, "alice")
        self.bob = PeerNode(folder, "bob")
        self.rita = PeerNode(folder, "rita", relay=True)
        self.sven = PeerNode(folder, "sven", relay=True)
        relays = (self.rita.as_relay, self.sven.as_relay)
        self.alice.knows(self.bob, dials=False, relays=relays)
        self.alice.learns_key_of(self.bob)
        self.bob.knows(self.alice, dials=False)
        for relay in (self.rita, self.sven):
            for person in (self.alice, self.bob):
                person.knows(relay)
                relay.knows(person, dials=False)


@pytest.fixture
def village(tmp_path: Path) -> Village:
    return Village(tmp_path)


async def test_a_full_relay_does_not_keep_mail_from_the_next_one(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.node.outbox.forwarder.LATER_S", 0.1)
    alice, bob = village.alice, village.bob
    async with village.rita.node(channel_messages_max=1) as full, village.sven.node() as second:
        await leave(full, bob.public, alice.letter_to(bob, b"the first of all"))
        async with alice.node() as here:
            for text in (b"1", b"2", b"3"):
                await here.outbox.send(bob.public, b"notes", text)
            await until(lambda: here.outbox.queued(bob.public) == 0, 8.0)
        assert (full.outbox.queued(bob.public), second.outbox.queued(bob.public)) == (1, 3)


async def test_a_relay_that_takes_small_messages_only_does_not_refuse_one_for_good(
    village: Village,
) -> None:
    """Messages that a relay refuses stay here, for the next relay or the peer itself."""
    alice, bob = village.alice, village.bob
    reports: list[DeliveryStatus] = []

    async def record(peer: bytes, uuids: Sequence[bytes], fate: DeliveryStatus) -> None:
        reports.extend(fate for _ in uuids)

    async with village.rita.node(packet_bytes_max=4096), village.sven.node() as second:
        async with alice.node() as here:
            here.outbox.on_status(record)
            await here.outbox.send(bob.public, b"notes", b"x" * 8000)
            await until(lambda: second.outbox.queued(bob.public) == 1, 8.0)
            await until(lambda: here.outbox.queued(bob.public) == 0)
    assert reports == [DeliveryStatus.SENT]


async def test_a_relay_that_never_answers_does_not_hold_mail_up_for_ever(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lets us in, and shows life, and that is all."""
    monkeypatch.setattr("millpond.node.outbox.forwarder.ANSWERED_WITHIN_S", 0.5)
    monkeypatch.setattr("millpond.node.outbox.key_exchange.ANSWERED_WITHIN_S", 0.5)
    alice, bob = village.alice, village.bob
    async with village.rita.node() as silent, village.sven.node() as second, alice.node() as here:
        silent.services.submit = lambda name, batch, now: True
        await here.outbox.send(bob.public, b"notes", b"by the second relay")
        await until(lambda: second.outbox.queued(bob.public) == 1, 8.0)
        await until(lambda: here.outbox.queued(bob.public) == 0)


async def test_mail_for_who_is_revoked_stays_where_it_is(tmp_path: Path) -> None:
    """Also while the connection still stands that took what came before."""
    alice, bob = PeerNode(tmp_path, "alice"), PeerNode(tmp_path, "bob")
    alice.knows(bob)
    bob.knows(alice, dials=False)
    alice.learns_key_of(bob)
    async with alice.node() as here, bob.node() as there:
        await here.outbox.send(bob.public, b"notes", b"before")
        assert await read(there, b"notes") == [b"before"]
        alice.book.block("bob")
        await until(lambda: not here.outbox.context.book.is_contact(bob.public))
        await leave(here, bob.public, alice.letter_to(bob, b"after"))
        assert await remaining(there, b"notes") == []
        assert here.outbox.queued(bob.public) == 1


async def test_our_relay_is_fetched_from_however_many_peers_can_be_dialled(
    village: Village,
) -> None:
    """Nobody else has what waits there."""
    alice, bob, rita = village.alice, village.bob, village.rita
    for number in range(12):
        bob.knows(PeerNode(bob.folder.parent, f"far{number}"))
    async with rita.node() as relay:
        await leave(relay, bob.public, alice.letter_to(bob, b"waits"))
        async with bob.node(via=("rita",), fetchers_max=2) as there:
            assert await read(there, b"notes") == [b"waits"]


class SlowFile(OsFile):
    def sync(self) -> None:
        time.sleep(SlowDisk.delay_s)  # in the thread of the store
        super().sync()


class SlowDisk(OsDisk):
    """Keeps things when it has time."""

    delay_s = 0.0

    def create(self, path: Path, size: int) -> OsFile:
        file = super().create(path, size)
        return SlowFile(file._fd)

    def open(self, path: Path) -> OsFile:
        return SlowFile(super().open(path)._fd)


async def test_what_is_being_kept_while_the_forwarder_ends_is_forwarded_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message is announced before it is on the disk, and is not forgotten until it is."""
    alice, bob = PeerNode(tmp_path, "alice"), PeerNode(tmp_path, "bob")
    alice.knows(bob)
    bob.knows(alice, dials=False)
    alice.learns_key_of(bob)
    async with Node(alice.config, disk=SlowDisk()) as here, bob.node() as there:
        force_setattr(here.outbox.context.settings, "idle_s", 1.0)
        await here.outbox.send(bob.public, b"notes", b"before")
        assert await read(there, b"notes") == [b"before"]
        await until(lambda: here.outbox.queued(bob.public) == 0)
        await anyio.sleep(0.3)
        monkeypatch.setattr(SlowDisk, "delay_s", 2.5)
        await here.outbox.send(bob.public, b"notes", b"after")
        monkeypatch.setattr(SlowDisk, "delay_s", 0.0)
        assert await read(there, b"notes") == [b"after"]


async def test_a_message_sent_again_after_it_was_carried_is_the_same_one(tmp_path: Path) -> None:
    """As by somebody whose connection broke before the answer; also two at once."""
    alice, bob = PeerNode(tmp_path, "alice"), PeerNode(tmp_path, "bob")
    alice.knows(bob)
    bob.knows(alice, dials=False)
    alice.learns_key_of(bob)
    found = []

    async def send(here: Node) -> None:
        found.append(await here.outbox.send(bob.public, b"notes", b"once", uuid=b"u" * 16))

    async with alice.node() as here, bob.node() as there:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, here)
            tasks.start_soon(send, here)
        await until(lambda: here.outbox.queued(bob.public) == 0)
        await send(here)
        assert await read(there, b"notes") == [b"once"]
        assert await remaining(there, b"notes") == []
    assert found[0] == found[1] == found[2]


async def test_mailboxes_of_strangers_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that may put anywhere can name as many peers as there are keys."""
    monkeypatch.setattr("millpond.node.outbox.bounces.IDLE_S", 0.2)
    alice = PeerNode(tmp_path, "alice")
    async with alice.node() as here:
        for number in range(50):
            stranger = Identity.from_seed(bytes((number,)) * 32).public
            for name in (mailbox_of(stranger), mailbox_of(stranger) + b"!dead"):
                await here.outbox.context.local.put(name, Put(number, 1, b"x"))
        scheduler = here.outbox.scheduler
        await until(lambda: not scheduler._forwarders and not scheduler._bounce_readers)


async def test_final_statuses_wait_for_a_disk_that_fails_and_end_nothing(world: World) -> None:
    """Messages expire one after the other while `peers.db` cannot be written. Then it can be."""
    alice, bob = await world.node("alice"), await world.node("bob")
    world.link(alice, bob)
    public = bob.public
    await bob.stop()
    reports: list[bytes] = []

    async def record(peer: bytes, uuids: Sequence[bytes], status: DeliveryStatus) -> None:
        assert status is DeliveryStatus.EXPIRED
        reports.extend(uuids)

    alice.node.outbox.on_status(record)
    sent = [await alice.send("bob", "notes", b"x", ttl=10 + 5 * number) for number in range(8)]
    with failing(alice.folder):
        await world.clock.sleep(60)
    await world.clock.sleep(60)
    assert sorted(reports) == sorted(each.uuid for each in sent)
    await alice.restart()
    assert alice.node.outbox.unconfirmed(public) == 0
