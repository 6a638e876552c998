"""Relays that no peer can fill: shares of a mailbox, rates, and data that is no relayed message."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from millpond.actors.errors import BufferFull, Malformed, NotAllowed, RequestError, SlowDown
from millpond.node.client.channel import Channel
from millpond.node.client.connect import connect
from millpond.node.outbox.context import DeliveryStatus
from millpond.node.outbox.mailbox import DEAD_SUFFIX, mailbox_of
from millpond.node.outbox.relayed_message import encode_relayed_message
from tests.node.outbox.peer_nodes import DEADLINE_S, QUIET_S, PeerNode, until

pytestmark = pytest.mark.anyio

LARGE = 100_000
MAILBOX_BYTES = 4 * 2**20
SHARE_BYTES = MAILBOX_BYTES // 4


class Town:
    """Rita runs a relay for Alice, Bob and some who write what they like, and as much."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.rita = PeerNode(
            folder, "rita", relay=True, **{"channel_bytes_max": MAILBOX_BYTES} | settings
        )
        self.alice = PeerNode(folder, "alice")
        self.bob = PeerNode(folder, "bob", via=("rita",))
        self.floods = [PeerNode(folder, f"flood {number}") for number in range(4)]
        for person in (self.alice, self.bob, *self.floods):
            self.rita.knows(person, dials=False)
            person.knows(self.rita)
        self.alice.knows(self.bob, dials=False, relays=(self.rita.as_relay,))
        self.bob.knows(self.alice, dials=False)
        for person in (self.alice, self.rita):
            person.learns_key_of(self.bob)

    def dials(
        self, who: PeerNode, owner: PeerNode | None = None
    ) -> AbstractAsyncContextManager[Channel]:
        """A client of a peer's own making, in the mailbox of Bob or another one."""
        return connect(
            self.rita.url,
            mailbox_of((owner or self.bob).public),
            role="producer",
            identity=who.identity,
            reconnect=False,
        )

    def letter(self, who: PeerNode, size: int = 100) -> bytes:
        return encode_relayed_message(who.letter_to(self.bob, os.urandom(size), hops=1))

    async def flood(self, who: PeerNode) -> int:
        """Put letters until one is refused; gives their bytes."""
        size = 0
        async with self.dials(who) as channel:
            with anyio.fail_after(DEADLINE_S):
                while True:
                    letter = self.letter(who, LARGE)
                    try:
                        await channel.put(letter, ttl=600)
                    except BufferFull:
                        return size
                    size += len(letter)


@pytest.fixture
def town(tmp_path: Path) -> Town:
    return Town(tmp_path)


async def test_a_sender_gets_a_quarter_of_a_mailbox_and_all_together_three(town: Town) -> None:
    """P7: others still write to the recipient, and so does the relay's own outbox."""
    async with town.rita.node() as relay:
        for flood in town.floods[:2]:
            size = await town.flood(flood)
            assert SHARE_BYTES - 2 * LARGE < size <= SHARE_BYTES
        async with town.alice.node() as here:
            await here.outbox.send(town.bob.public, b"notes", b"in spite of them")
            await until(lambda: here.outbox.queued(town.bob.public) == 0)
        for flood in town.floods[2:]:
            size = await town.flood(flood)
        assert size < 2 * LARGE
        await relay.outbox.send(town.bob.public, b"notes", os.urandom(SHARE_BYTES - LARGE))


async def test_the_share_of_a_sender_outlives_the_node_and_not_its_messages(town: Town) -> None:
    mallory = town.floods[0]
    async with town.rita.node():
        assert await town.flood(mallory) > 0
    async with town.rita.node() as relay:
        assert await town.flood(mallory) == 0
        relay.outbox.context.local.discard(
            mailbox_of(town.bob.public),
            await relay.outbox.context.local.list(mailbox_of(town.bob.public)),
        )
        await until(lambda: relay.outbox.queued(town.bob.public) == 0)
        assert await town.flood(mallory) > 0


async def test_half_of_a_relay_is_not_for_the_mail_of_others(tmp_path: Path) -> None:
    """Neither by one sender in many mailboxes."""
    town = Town(tmp_path, node_bytes_max=2 * 2**20)
    async with town.rita.node() as relay:
        async with anyio.create_task_group() as tasks:
            for flood in town.floods:
                tasks.start_soon(town.flood, flood)
        assert relay.outbox.queued(town.bob.public) <= 2**20 // LARGE
        await relay.outbox.send(town.bob.public, b"notes", os.urandom(900_000))


async def test_a_sender_that_is_too_fast_is_told_to_wait(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.node.outbox.mailbox.SENDER_BURST", 3)
    monkeypatch.setattr("millpond.node.outbox.mailbox.SENDER_PER_S", 1)
    first, second = town.floods[:2]
    async with town.rita.node(), town.dials(first) as channel, town.dials(second) as other:
        letter = town.letter(first)
        for number in range(3):
            await channel.put(town.letter(first) if number else letter, key=number)
        with pytest.raises(SlowDown) as told:
            await channel.put(town.letter(first))
        assert told.value.delay_ms is not None and 0 < told.value.delay_ms <= 1000
        await channel.put(letter, key=0)  # a retry adds nothing
        await other.put(town.letter(second))


async def test_a_mailbox_takes_relayed_messages_for_its_owner_and_nothing_else(town: Town) -> None:
    """P7."""
    mallory = town.floods[0]
    whole = town.letter(mallory)
    misdirected = replace(mallory.letter_to(town.bob, b"x", hops=1), recipient=town.alice.public)
    own = encode_relayed_message(mallory.letter_to(town.bob, b"x"))
    own_v1 = encode_relayed_message(mallory.v1_letter_to(town.bob, b"x"))
    refused: list[tuple[bytes, type[RequestError]]] = [
        (b"no letter at all", Malformed),
        (whole[:40], Malformed),
        (b"\xe3\x07" + whole[2:], Malformed),
        (encode_relayed_message(misdirected), NotAllowed),
        (own, Malformed),
        (own_v1, Malformed),
    ]
    async with town.rita.node() as relay, town.dials(mallory) as channel:
        for data, error in refused:
            with pytest.raises(error):
                await channel.put(data)
        await channel.put(whole)
        assert relay.outbox.queued(town.bob.public) == 1
        async with town.dials(mallory, town.rita) as another:
            with pytest.raises(NotAllowed):
                await another.put(whole)


async def test_nobody_else_makes_a_relay_report_a_message_as_its_own(town: Town) -> None:
    """P12. A message of version 1 shows its uuid: Mallory has seen it on its way from Rita to Bob,
    leaves a copy that expires at once, and says that it begins its way here."""
    mallory, reports = town.floods[0], list[bytes]()

    async def record(peer: bytes, uuids: Sequence[bytes], status: DeliveryStatus) -> None:
        reports.extend(uuids)

    seen = town.rita.v1_letter_to(town.bob, b"x")
    async with town.rita.node() as relay, town.dials(mallory) as channel:
        relay.outbox.on_status(record)
        with suppress(Malformed):
            await channel.put(encode_relayed_message(seen), ttl=1)
        await channel.put(encode_relayed_message(replace(seen, hops=1)), ttl=1)
        dead = mailbox_of(town.bob.public) + DEAD_SUFFIX
        await until(lambda: relay.outbox.queued(town.bob.public) == 0)
        await until(lambda: relay.outbox.context.local.count(dead) == 0)
        await anyio.sleep(QUIET_S)
    assert reports == []


async def test_the_prekeys_of_a_peer_are_a_few_small_messages(town: Town) -> None:
    """The channel is the peer's own, and no place to store things."""
    mallory = town.floods[0]
    name = mailbox_of(mallory.public) + b"!keys"
    async with (
        town.rita.node(),
        connect(town.rita.url, name, identity=mallory.identity, reconnect=False) as channel,
    ):
        for _ in range(10):
            await channel.put(bytes(LARGE))
        with pytest.raises(BufferFull):
            await channel.put(bytes(LARGE))
