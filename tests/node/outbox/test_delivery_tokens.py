"""Mailboxes at a relay that senders with the recipient's card alone can fill: real nodes."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from millpond.actors.errors import BufferFull, Malformed, NotAllowed
from millpond.node.client.channel import Channel
from millpond.node.client.connect import connect
from millpond.node.client.errors import ConnectionLost, HandshakeRefused
from millpond.node.client.settings import ConnectSettings
from millpond.node.node import Node
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.messages import GivenKey, PeerOperation
from millpond.node.outbox.relayed_message import encode_relayed_message
from millpond.node.peers.address_book import Peer, Trust
from millpond.node.peers.card import ContactCard, encode_card
from millpond.node.peers.delivery_proof import delivery_key, delivery_proof
from millpond.node.peers.delivery_token import FILE_NAME, DeliveryTokens
from millpond.transports.p2p.nacks import HelloCode
from millpond.transports.server.interface import DeliveryProof
from tests.node.outbox.peer_nodes import DEADLINE_S, PeerNode, opened, read, until

pytestmark = pytest.mark.anyio

MAILBOX_BYTES = 4 * 2**20
LARGE = 100_000


class Village:
    """Rita runs a relay for Bob. She knows neither Alice, who has Bob's card, nor Mallory."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.rita = PeerNode(folder, "rita", relay=True, **settings)
        self.bob = PeerNode(folder, "bob", via=("rita",))
        self.alice = PeerNode(folder, "alice")
        self.mallory = PeerNode(folder, "mallory")
        self.bob.knows(self.rita)
        self.rita.knows(self.bob, dials=False)
        for person in (self.alice, self.mallory):
            person.knows(self.rita)
            self.bob.knows(person, dials=False)

    @property
    def tokens(self) -> DeliveryTokens:
        """As a command of Bob's sees them."""
        return DeliveryTokens(self.bob.folder / FILE_NAME, time.time, os.urandom)

    def card(self) -> str:
        bob = self.bob
        relays, made = (self.rita.as_relay,), time.time()
        card = ContactCard(bob.public, (), relays, bob.prekey, made, (), self.tokens.current())
        return encode_card(card, bob.identity)

    def gets_card(self, who: PeerNode) -> None:
        bob, line = self.bob, self.card()
        who.book.update(Peer("bob", bob.public, Trust.ADDED, (), (self.rita.as_relay,), 0.0, line))

    @asynccontextmanager
    async def relay(self) -> AsyncIterator[Node]:
        """The relay, with the keys of Bob, who is away again."""
        async with self.rita.node() as relay:
            await self.hands_over(relay)
            yield relay

    async def hands_over(self, relay: Node) -> None:
        good = [
            (delivery_key(each.token, self.bob.public, self.rita.public), each.until)
            for each in self.tokens.valid()
        ]
        async with self.bob.node():
            await until(lambda: keys_of(relay, self.bob) == good)
            await until(lambda: self.is_good(relay, self.tokens.current()))

    def is_good(self, relay: Node, token: bytes) -> bool:
        """True if the relay accepts proofs of this token."""
        delivery_keys = relay.outbox.context.delivery_keys
        assert delivery_keys is not None
        owner, sender, nonce = self.bob.public, self.alice.public, bytes(32)
        key = delivery_key(token, owner, self.rita.public)
        proof = DeliveryProof(nonce, delivery_proof(key, sender, nonce))
        return delivery_keys.accepts(owner, sender, proof)

    @asynccontextmanager
    async def dials(
        self, who: PeerNode, token: bytes | None = None, suffix: bytes = b"", **options: object
    ) -> AsyncIterator[Channel]:
        """A client of a sender's own making, in the mailbox of Bob."""
        owner, relay = self.bob.public, self.rita.public
        async with connect(
            self.rita.url,
            mailbox_of(owner) + suffix,
            identity=who.identity,
            peer=relay,
            settings=ConnectSettings(
                delivery_key=None if token is None else delivery_key(token, owner, relay)
            ),
            reconnect=False,
            **{"role": "producer"} | options,  # type: ignore[arg-type]
        ) as channel:
            yield channel

    def letter(self, who: PeerNode, size: int = 100) -> bytes:
        return encode_relayed_message(who.letter_to(self.bob, os.urandom(size), hops=1))


def keys_of(relay: Node, owner: PeerNode) -> list[tuple[bytes, float | None]]:
    """The bytes on the disk of a relay."""
    query = relay.outbox.context.store.query
    rows = query("SELECT keys FROM delivery_keys WHERE owner = ?", (owner.public,))
    return [tuple(each.values()) for row in rows for each in msgspec.msgpack.decode(row[0])]


@pytest.fixture
def village(tmp_path: Path) -> Village:
    return Village(tmp_path)


async def test_a_sender_that_the_relay_does_not_know_delivers_with_the_card(
    village: Village,
) -> None:
    """Also after the relay has started again; and the sender reads new prekeys there."""
    alice, bob = village.alice, village.bob
    village.gets_card(alice)
    async with village.relay():
        pass
    async with village.rita.node() as relay, alice.node() as here:
        await here.outbox.send(bob.public, b"notes", b"by your card")
        await until(lambda: here.outbox.queued(bob.public) == 0)
        assert relay.outbox.queued(bob.public) == 1
        async with village.dials(
            alice, village.tokens.current(), b"!keys", role="consumer"
        ) as channel:
            assert len(await channel.list()) == 2
        async with bob.node() as there:
            (message,) = await opened(there, b"notes")
            assert (message.sender, message.plaintext) == (alice.public, b"by your card")


@pytest.mark.parametrize("token", [None, bytes(16)])
async def test_a_stranger_without_the_token_is_refused_and_stores_nothing(
    village: Village, token: bytes | None
) -> None:
    """As any client whose key is unknown: it is not told whether there is such a mailbox."""
    village.gets_card(village.alice)
    async with village.relay() as relay:
        for suffix in (b"", b"!keys", b"!dead"):
            with pytest.raises(HandshakeRefused) as told:
                async with village.dials(village.mallory, token, suffix):
                    pass
            assert told.value.code == HelloCode.AUTHENTICATION_FAILED
        assert relay.outbox.queued(village.bob.public) == 0
        assert mailbox_of(village.bob.public) not in relay.scheduler.cells


async def test_a_token_gives_no_other_right(village: Village) -> None:
    """It does not read the mailbox, and is for that of its owner alone."""
    mallory, token = village.mallory, village.tokens.current()
    async with village.relay() as relay:
        async with village.dials(mallory, token, role="both") as channel:
            await channel.put(village.letter(mallory))
            for work in (channel.list(), channel.get(1)):
                with pytest.raises(NotAllowed):
                    await work
            with pytest.raises(NotAllowed):
                await channel.peers(PeerOperation.PEERS, {})
        async with village.dials(mallory, token, b"!keys", role="both") as channel:
            with pytest.raises(NotAllowed):
                await channel.put(b"a prekey of mine")
        for suffix in (b"!dead", b"!other"):
            with pytest.raises(HandshakeRefused):
                async with village.dials(mallory, token, suffix):
                    pass
        village.rita.book.block("bob")
        await until(lambda: not relay.outbox.context.book.is_contact(village.bob.public))
        with pytest.raises(HandshakeRefused):
            async with village.dials(mallory, token):
                pass


async def test_a_blocked_key_has_no_right_by_a_token(village: Village) -> None:
    mallory = village.mallory
    village.rita.knows(mallory, dials=False)
    village.rita.book.block("mallory")
    async with village.relay():
        with pytest.raises(HandshakeRefused):
            async with village.dials(mallory, village.tokens.current()):
                pass


async def test_all_senders_that_the_relay_does_not_know_share_a_quarter(tmp_path: Path) -> None:
    """Identities cost nothing, so one token holder has as many as it likes."""
    village = Village(tmp_path, channel_bytes_max=MAILBOX_BYTES)
    known, token = PeerNode(tmp_path, "known"), village.tokens.current()
    village.rita.knows(known, dials=False)
    async with village.relay():
        size = 0
        for number in range(3):
            stranger = PeerNode(tmp_path, f"stranger {number}")
            async with village.dials(stranger, token) as channel:
                with pytest.raises(BufferFull), anyio.fail_after(DEADLINE_S):
                    while True:
                        letter = village.letter(stranger, LARGE)
                        await channel.put(letter)
                        size += len(letter)
        assert MAILBOX_BYTES // 4 - 2 * LARGE < size <= MAILBOX_BYTES // 4
        async with village.dials(known) as channel:
            await channel.put(village.letter(known, LARGE))


async def test_a_new_token_reaches_the_relay_and_the_old_card_works_for_a_time(
    village: Village,
) -> None:
    alice, bob = village.alice, village.bob
    village.gets_card(alice)
    old = village.tokens.current()
    async with village.rita.node() as relay, bob.node():
        await until(lambda: village.is_good(relay, old))
        new = village.tokens.rotate()  # a command, while the node runs
        await until(lambda: village.is_good(relay, new))
        assert len(keys_of(relay, bob)) == 2
        for token in (old, new):
            async with village.dials(alice, token) as channel:
                await channel.put(village.letter(alice))
        async with village.dials(alice, old) as channel:
            last = village.tokens.rotate(end_old=True)
            await until(lambda: village.is_good(relay, last))
            assert len(keys_of(relay, bob)) == 1
            relay.registry.reauthorize()  # as the node does every 30 s
            with pytest.raises((ConnectionLost, NotAllowed)):
                for _ in range(100):
                    await channel.put(village.letter(alice))
                    await anyio.sleep(0.01)
        for token in (old, new):
            with pytest.raises(HandshakeRefused):
                async with village.dials(alice, token):
                    pass
        async with village.dials(alice, last) as channel:
            await channel.put(village.letter(alice))


async def test_an_old_key_ends_at_its_time(village: Village) -> None:
    """By the clock of the relay, also if the owner does not come back."""
    alice, bob = village.alice, village.bob
    token = village.tokens.current()
    key = delivery_key(token, bob.public, village.rita.public)
    async with village.rita.node() as relay:
        for left_s in (600.0, -1.0):
            async with village.dials(bob, suffix=b"!keys") as channel:
                given = {"key": key, "until": relay.clock.now() + left_s}
                await channel.peers(PeerOperation.DELIVERY_KEYS, {"keys": [given]})
            if left_s > 0:
                async with village.dials(alice, token) as joined:
                    await joined.put(village.letter(alice))
        with pytest.raises(HandshakeRefused):
            async with village.dials(alice, token):
                pass


async def test_contacts_of_the_relay_need_no_token_for_one_release_and_the_log_says_so(
    village: Village, caplog: pytest.LogCaptureFixture
) -> None:
    known, token = PeerNode(village.folder, "known"), village.tokens.current()
    village.rita.knows(known, dials=False)
    async with village.rita.node(), village.dials(known) as channel:
        await channel.put(village.letter(known))  # nobody has a token of Bob yet
    async with village.relay():
        async with village.dials(known, token) as channel:
            await channel.put(village.letter(known))
        assert not [each for each in caplog.messages if "delivery token" in each]
        for _ in range(2):
            async with village.dials(known) as channel:
                await channel.put(village.letter(known))
    (told,) = [each for each in caplog.messages if "mail without a delivery token" in each]
    assert known.identity.id in told and village.bob.identity.id in told


async def test_a_relay_that_requires_tokens_takes_nothing_without(tmp_path: Path) -> None:
    """Neither from its contacts nor from other relays; the owner still fetches."""
    village = Village(tmp_path, delivery_tokens_required=True)
    known, sven = PeerNode(tmp_path, "known"), PeerNode(tmp_path, "sven", relay=True)
    for each in (known, sven):
        village.rita.knows(each, dials=False)
    token = village.tokens.current()
    async with village.relay():
        for each in (known, sven):
            with pytest.raises(HandshakeRefused):
                async with village.dials(each):
                    pass
            async with village.dials(each, token) as channel:
                await channel.put(village.letter(each))
        village.bob.knows(known, dials=False)
        async with village.bob.node() as there:
            assert len(await read(there, b"notes")) == 1


async def test_only_owners_of_mailboxes_give_keys_and_few_of_them(village: Village) -> None:
    bob, mallory, token = village.bob, village.mallory, village.tokens.current()
    key = {"key": bytes(32), "until": None}
    async with village.relay() as relay:
        before = keys_of(relay, bob)
        async with village.dials(mallory, token) as channel:
            with pytest.raises(NotAllowed):
                await channel.peers(PeerOperation.DELIVERY_KEYS, {"keys": [key]})
        async with village.dials(bob, suffix=b"!keys") as channel:
            for body in ({"keys": [key] * 5}, {"keys": [{"key": b"short"}]}, {"keys": 1}, {}):
                with pytest.raises(Malformed):
                    await channel.peers(PeerOperation.DELIVERY_KEYS, body)
        assert keys_of(relay, bob) == before and keys_of(relay, mallory) == []
    async with village.rita.node(relay=False), village.dials(bob, suffix=b"") as channel:
        with pytest.raises(NotAllowed):
            await channel.peers(PeerOperation.DELIVERY_KEYS, {"keys": [key]})


async def test_keys_of_owners_that_are_no_contacts_any_more_are_removed(village: Village) -> None:
    other = PeerNode(village.folder, "other")
    village.rita.knows(other, dials=False)
    async with village.relay() as relay:
        village.rita.book.remove("bob")
        given = relay.outbox.context.delivery_keys
        assert given is not None
        await until(lambda: relay.outbox.context.book.by_name("bob") is None)
        await given.give(other.public, [GivenKey(bytes(32))])
        assert keys_of(relay, village.bob) == [] and len(keys_of(relay, other)) == 1
