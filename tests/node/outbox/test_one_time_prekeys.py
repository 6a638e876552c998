"""One-time prekeys (docs/internals/threat-model.md): real nodes; the relay may be hostile."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import anyio
import msgspec
import pytest

from millpond.actors.errors import Malformed, NotAllowed
from millpond.actors.messages import Put, Reply
from millpond.node.client.channel import RoleName
from millpond.node.client.connect import connect
from millpond.node.client.errors import HandshakeRefused
from millpond.node.client.future import ReplyFuture
from millpond.node.node import Node
from millpond.node.outbox.given_prekeys import TAKES_PER_DAY, GivenPrekeys
from millpond.node.outbox.inbound import InboundRouter
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.messages import PeerOperation
from millpond.node.outbox.relayed_message import decode_relayed_message
from millpond.node.outbox.requests import PeerRequests
from millpond.node.peers.envelope import CannotOpen
from millpond.node.peers.identity import load_or_create
from millpond.node.peers.one_time_prekeys import (
    GIVEN_MAX,
    TAKEN_MAX,
    OneTimePrekeys,
    encode_one_time,
    sign_one_time,
)
from millpond.node.peers.peer_store import PeerStore
from millpond.node.peers.prekeys import DAY_S, KEPT_BEYOND_TTL_S, TTL_S_MAX, Prekeys
from millpond.node.peers.sealed_message import kid_in, kid_of, open_message
from tests.node.chat.chat_client import received, say
from tests.node.outbox.peer_nodes import PeerNode, leave, opened, read, remaining, until

pytestmark = pytest.mark.anyio

RETRY_S = 1.0
LIFETIME_S = TTL_S_MAX + KEPT_BEYOND_TTL_S


class Village:
    """Bob is away, and has left one-time prekeys at the relay of Rita. Alice and Carol write."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.rita = PeerNode(folder, "rita", relay=True)
        self.bob = PeerNode(folder, "bob", via=("rita",), **settings)
        self.alice, self.carol = (
            PeerNode(folder, name, via=("rita",)) for name in ("alice", "carol")
        )
        self.bob.knows(self.rita)
        self.rita.knows(self.bob, dials=False)
        for person in (self.alice, self.carol):
            person.knows(self.rita)
            self.rita.knows(person, dials=False)
            person.knows(self.bob, dials=False, relays=(self.rita.as_relay,))
            self.bob.knows(person, dials=False, relays=(self.rita.as_relay,))

    @asynccontextmanager
    async def relay(self) -> AsyncIterator[Node]:
        """The relay, which Bob has visited."""
        async with self.rita.node() as relay:
            async with self.bob.node():
                await until(lambda: len(given(relay, self.bob)) == GIVEN_MAX)
                await until(lambda: relay.outbox.context.local.count(self.prekeys) == 2)
            yield relay

    @property
    def prekeys(self) -> bytes:
        return mailbox_of(self.bob.public) + b"!keys"

    @asynccontextmanager
    async def writing(self, who: PeerNode, taken: int = TAKEN_MAX) -> AsyncIterator[Node]:
        """The node of a sender that has taken its one-time prekeys."""
        bob = self.bob.public
        async with who.node() as node:
            await until(lambda: node.outbox.can_seal(bob))
            await until(lambda: node.outbox.context.taken_prekeys.count(bob) == taken)
            yield node

    def envelopes(self, relay: Node) -> list[bytes]:
        """The envelopes that wait for Bob at the relay."""
        rows = relay.outbox.context.local.messages(mailbox_of(self.bob.public))
        return [decode_relayed_message(row.data).envelope for row in rows]

    def is_opened_by(self, folder: Path, envelope: bytes) -> bool:
        """True if a thief opens a message with the data folder of Bob."""
        identity = load_or_create(folder / "identity.key", os.urandom)
        prekeys = Prekeys(folder / "prekeys", identity, time.time, os.urandom)
        store = PeerStore(folder / "peers.db")
        one_time = OneTimePrekeys(store, identity, os.urandom)

        def prekey_of(kid: bytes) -> bytes | None:
            own = store.contact_key(kid)
            found = one_time.private(kid) or prekeys.private(kid[:4])
            return found if own is None else own[1]

        try:
            open_message(envelope, recipient=identity, prekey_of=prekey_of)
        except CannotOpen:
            return False
        else:
            return True
        finally:
            store.close()


def given(node: Node, owner: PeerNode) -> list[int]:
    """The numbers of the keys of an owner that a node can hand out, as its disk has them."""
    rows = node.outbox.context.store.query(
        "SELECT keys FROM given_prekeys WHERE owner = ?", (owner.public,)
    )
    return [each[0] for each in msgspec.msgpack.decode(rows[0][0])] if rows else []


@pytest.fixture
def village(tmp_path: Path) -> Village:
    return Village(tmp_path)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message without a receipt is sent again after a second, not after an hour."""
    for name in ("RETRY_S_MIN", "RETRY_S_MAX", "GAP_S", "RETRY_FAILED_S"):
        monkeypatch.setattr(f"millpond.node.outbox.deliveries.{name}", RETRY_S)


async def test_a_stolen_disk_opens_no_first_message_that_was_read(village: Village) -> None:
    """A captured message opens with Bob's disk before he has read it, and not after."""
    bob = village.bob
    async with village.relay() as relay:
        async with village.writing(village.alice) as here:
            for text in (b"one", b"two"):
                await here.outbox.send(bob.public, b"notes", text)
            await until(lambda: here.outbox.queued(bob.public) == 0)
        captured = village.envelopes(relay)
        kids = {kid_in(each) for each in captured}
        assert len(kids) == 2 and kid_of(bob.prekey.public) not in kids
        shutil.copytree(bob.folder, village.folder / "before")
        async with bob.node() as there:
            one_time = there.outbox.context.one_time
            halves = [one_time.private(kid) for kid in kids]
            assert await read(there, b"notes", 2) == [b"one", b"two"]
            await until(lambda: not any(map(one_time.private, kids)))
            await until(lambda: not one_time.erase_wanted)
            # As the disk is while the node still runs.
            shutil.copytree(bob.folder, village.folder / "after")
    for each in captured:
        assert village.is_opened_by(village.folder / "before", each)
        assert not village.is_opened_by(village.folder / "after", each)
    stolen = b"".join(
        path.read_bytes() for path in (village.folder / "after").rglob("*") if path.is_file()
    )
    assert not any(half in stolen for half in halves if half is not None)
    assert None not in halves


async def test_each_key_is_handed_out_once_and_the_owner_gives_new_ones(village: Village) -> None:
    bob, alice, carol = village.bob, village.alice, village.carol
    async with village.relay() as relay:
        handed = relay.outbox.context.given_prekeys
        async with village.writing(alice) as hers, village.writing(carol) as others:
            assert len(given(relay, bob)) == GIVEN_MAX - 2 * TAKEN_MAX
            for node in (hers, others):
                for _ in range(TAKEN_MAX):
                    await node.outbox.send(bob.public, b"notes", b"x")
                await until(lambda node=node: node.outbox.queued(bob.public) == 0)
        kids = [kid_in(each) for each in village.envelopes(relay)]
        assert len(kids) == len(set(kids)) == 2 * TAKEN_MAX
        async with bob.node() as there:
            assert len(await read(there, b"notes", 2 * TAKEN_MAX)) == 2 * TAKEN_MAX
            await until(lambda: len(given(relay, bob)) == GIVEN_MAX)
            one_time = there.outbox.context.one_time
            await until(lambda: not any(map(one_time.private, kids)))
            services = there.peer_services
            await until(lambda: services.one_time_prekey_count == 2 * GIVEN_MAX)  # here and there
        # A sender gets so many a day, also under other names if the relay knows none of them.
        strangers = [os.urandom(32) for _ in range(3)]
        taken = [await handed.take(bob.public, each, TAKES_PER_DAY) for each in strangers]
        assert [len(each) for each in taken] == [TAKES_PER_DAY, 0, 0]
        assert len(await handed.take(bob.public, alice.public, 100)) == TAKES_PER_DAY - TAKEN_MAX


async def test_without_one_a_message_is_sealed_for_the_published_prekey_at_once(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay keeps them back, or they are used up."""

    async def nothing(*_: object) -> list[bytes]:
        return []

    bob = village.bob
    async with village.relay() as relay:
        monkeypatch.setattr(GivenPrekeys, "take", nothing)
        async with village.writing(village.alice, 0) as here:
            await here.outbox.send(bob.public, b"notes", b"at once")
            await until(lambda: here.outbox.queued(bob.public) == 0)
        (envelope,) = village.envelopes(relay)
        assert kid_in(envelope) == kid_of(bob.prekey.public)
        async with bob.node() as there:
            assert await read(there, b"notes") == [b"at once"]


async def test_a_key_that_a_relay_hands_out_twice_opens_once_and_no_message_is_lost(
    village: Village, monkeypatch: pytest.MonkeyPatch, soon: None
) -> None:
    """The second message is sealed again, for the published prekey, and read once."""
    bob, handed, take = village.bob, list[bytes](), GivenPrekeys.take

    async def the_same(self: GivenPrekeys, owner: bytes, sender: bytes, count: int) -> list[bytes]:
        if not handed:
            handed.extend(await take(self, owner, sender, 1))
        return handed

    async with village.relay() as relay:
        monkeypatch.setattr(GivenPrekeys, "take", the_same)
        async with (
            village.writing(village.alice, 1) as hers,
            village.writing(village.carol, 1) as others,
        ):
            for node, text in ((hers, b"first"), (others, b"second")):
                await node.outbox.send(bob.public, b"notes", text)
                await until(lambda node=node: node.outbox.queued(bob.public) == 0)
            kids = {kid_in(each) for each in village.envelopes(relay)}
            assert len(kids) == 1
            monkeypatch.setattr("millpond.node.outbox.inbound.WINDOW", 1)  # one after the other
            async with bob.node() as there:
                assert sorted(await read(there, b"notes", 2)) == [b"first", b"second"]
                for node in (hers, others):
                    await until(lambda node=node: node.outbox.unconfirmed(bob.public) == 0)
                assert await remaining(there, b"notes") == []


async def test_a_repetition_does_not_destroy_the_key_of_a_message_on_its_way(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay repeats a message that Bob has accepted and that is in no channel yet; then he is
    killed. Alice is away, and sends nothing again."""
    bob = village.bob
    async with village.relay() as relay:
        async with village.writing(village.alice) as here:
            await here.outbox.send(bob.public, b"notes", b"once")
            await until(lambda: here.outbox.queued(bob.public) == 0)
        (row,) = relay.outbox.context.local.messages(mailbox_of(bob.public))
        relayed = decode_relayed_message(row.data)
        kid = kid_in(relayed.envelope)
        with monkeypatch.context() as patched:
            never = [ReplyFuture[Reply]()]
            patched.setattr(InboundRouter, "_put", lambda *_: never)
            async with bob.node() as there:
                context = there.outbox.context
                await until(lambda: len(context.unfinished) == 1)
                await leave(there, bob.public, relayed, 99)
                await until(lambda: context.dropped == {"seen_counter": 1})
                await until(lambda: context.local.count(mailbox_of(bob.public)) == 1)
                assert context.one_time.private(kid) is not None
        async with bob.node() as there:
            assert await read(there, b"notes") == [b"once"]
            await until(lambda: there.outbox.context.one_time.private(kid) is None)


async def test_a_relay_that_does_not_answer_keeps_nothing_else_back(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its published prekeys are used, a few seconds later."""

    async def silence(*_: object) -> list[bytes]:
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(GivenPrekeys, "take", silence)
    monkeypatch.setattr("millpond.node.outbox.key_exchange.TAKEN_WITHIN_S", 0.1)
    bob = village.bob
    async with village.relay() as relay, village.writing(village.alice, 0) as here:
        await here.outbox.send(bob.public, b"notes", b"all the same")
        await until(lambda: here.outbox.queued(bob.public) == 0)
        (envelope,) = village.envelopes(relay)
        assert kid_in(envelope) == kid_of(bob.prekey.public)


async def test_keys_that_a_relay_invents_are_not_used(
    village: Village, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bob, rita = village.bob, village.rita
    now_ms = int(time.time() * 1000)
    forged = [
        encode_one_time(sign_one_time(rita.identity, os.urandom(32), 1, now_ms, now_ms + 10**9)),
        b"junk",
    ]

    async def inventions(*_: object) -> list[bytes]:
        return forged

    monkeypatch.setattr(GivenPrekeys, "take", inventions)
    async with village.relay(), village.writing(village.alice, 0) as here:
        await until(lambda: caplog.text.count("malformed one-time prekey") >= 2)
        await here.outbox.send(bob.public, b"notes", b"not for rita")
        async with bob.node() as there:
            assert await read(there, b"notes") == [b"not for rita"]


@pytest.mark.parametrize("is_relay_old", [True, False])
async def test_nodes_without_one_time_prekeys_are_written_to_as_before(
    village: Village, monkeypatch: pytest.MonkeyPatch, is_relay_old: bool
) -> None:
    """The relay, or the recipient, is of an earlier version, which refuses the operations."""

    async def unknown(*_: object) -> bytes:
        raise NotAllowed

    bob = village.bob
    if is_relay_old:
        monkeypatch.setattr(PeerRequests, "_hand_out_prekeys", unknown)
    monkeypatch.setattr(PeerRequests, "_take_in_prekeys", unknown)
    async with village.rita.node() as relay:
        async with bob.node():
            await until(lambda: relay.outbox.context.local.count(village.prekeys) == 2)
        async with village.writing(village.alice, 0) as here:
            await here.outbox.send(bob.public, b"notes", b"as before")
            await until(lambda: here.outbox.queued(bob.public) == 0)
        async with bob.node() as there:
            assert await read(there, b"notes") == [b"as before"]


async def test_a_message_is_sent_again_if_the_private_half_is_lost(
    village: Village, soon: None
) -> None:
    """Bob's `peers.db` is that of a backup, or gone."""
    bob = village.bob
    async with village.relay(), village.writing(village.alice) as here:
        await here.outbox.send(bob.public, b"notes", b"once")
        await until(lambda: here.outbox.queued(bob.public) == 0)
        for path in bob.folder.glob("peers.db*"):
            path.unlink()
        async with bob.node() as there:
            assert await read(there, b"notes") == [b"once"]
            await until(lambda: here.outbox.unconfirmed(bob.public) == 0)
            assert await remaining(there, b"notes") == []
            assert there.outbox.context.dropped["unknown_prekey"] >= 1


async def test_a_peer_that_is_reached_directly_hands_out_its_own(tmp_path: Path) -> None:
    alice, bob = PeerNode(tmp_path, "alice"), PeerNode(tmp_path, "bob")
    alice.knows(bob)
    bob.knows(alice, dials=False)
    async with bob.node() as there:
        await until(lambda: len(given(there, bob)) == GIVEN_MAX)
        async with alice.node() as here:
            await until(lambda: here.outbox.context.taken_prekeys.count(bob.public) == TAKEN_MAX)
            await until(lambda: here.outbox.can_seal(bob.public))
            assert len(given(there, bob)) == GIVEN_MAX - TAKEN_MAX
            await here.outbox.send(bob.public, b"notes", b"hello")
            (message,) = await opened(there, b"notes")
            assert message.plaintext == b"hello"
            # From the first answer on there is a key for her alone.
            await until(lambda: here.outbox.unconfirmed(bob.public) == 0)
            count = here.outbox.context.taken_prekeys.count(bob.public)
            await here.outbox.send(bob.public, b"notes", b"again")
            assert await read(there, b"notes") == [b"again"]
            assert here.outbox.context.taken_prekeys.count(bob.public) == count


@pytest.mark.parametrize(
    ("who", "suffix", "role", "error"),
    [
        ("alice", b"", "producer", NotAllowed),
        ("alice", b"!keys", "consumer", None),
        ("mallory", b"!keys", "consumer", HandshakeRefused),
    ],
)
async def test_a_client_takes_keys_only_where_it_may_read_prekeys(
    village: Village, who: str, suffix: bytes, role: RoleName, error: type[Exception] | None
) -> None:
    bob, rita = village.bob, village.rita
    client = village.alice if who == "alice" else PeerNode(village.folder, who)
    async with village.relay() as relay:
        with pytest.raises(error) if error else nullcontext():
            async with connect(
                rita.url,
                mailbox_of(bob.public) + suffix,
                role=role,
                window=0,
                identity=client.identity,
                peer=rita.public,
                reconnect=False,
            ) as channel:
                answer = await channel.peers(PeerOperation.TAKE_PREKEYS, {"count": 1})
                assert len(answer["keys"]) == 1
                with pytest.raises(Malformed):  # they are Bob's
                    await channel.peers(PeerOperation.GIVE_PREKEYS, {"keys": answer["keys"]})
        assert len(given(relay, bob)) == GIVEN_MAX - (error is None)


async def test_the_key_of_a_message_request_lives_until_it_is_answered(tmp_path: Path) -> None:
    village = Village(tmp_path, message_requests=True)
    bob, alice, carol = village.bob, village.alice, village.carol
    for person in (alice, carol):
        bob.book.remove(person.name)
    bob.knows(PeerNode(tmp_path, "friend"), dials=False)
    async with village.relay() as relay:
        for person in (alice, carol):
            count = len(village.envelopes(relay))
            async with village.writing(person) as here:
                await say(here, "bob", f"it is {person.name}")
                await until(lambda count=count: len(village.envelopes(relay)) > count)
        kids = [kid_in(each) for each in village.envelopes(relay)]
        async with bob.node() as there:
            requests, one_time = there.peer_services.message_requests, there.outbox.context.one_time
            await until(lambda: len(requests) == 2)
            assert all(map(one_time.private, kids))
        async with bob.node() as there:
            requests, one_time = there.peer_services.message_requests, there.outbox.context.one_time
            await requests.refuse(carol.public)
            await until(lambda: [one_time.private(kid) is None for kid in kids] == [False, True])
            await requests.accept(alice.public, "alice", ())
            assert await received(there, alice, 1) == ["it is alice"]
            await until(lambda: not any(map(one_time.private, kids)))


@pytest.mark.parametrize("state", ["no contact", "full"])
async def test_private_keys_are_destroyed_after_their_time(tmp_path: Path, state: str) -> None:
    """The node was off for long. Now it has no contact any more, or cannot publish a new prekey."""
    alice, bob = PeerNode(tmp_path, "alice"), PeerNode(tmp_path, "bob", node_messages_max=1)
    async with bob.node() as there:
        await there.outbox.context.local.put(b"full", Put(1, 3600, b"x"))
    long_ago, lifetime_ms = int((time.time() - LIFETIME_S - DAY_S) * 1000), int(LIFETIME_S * 1000)
    store = PeerStore(bob.folder / "peers.db")
    one_time = OneTimePrekeys(store, bob.identity, os.urandom)
    made = await one_time.make(alice.public, long_ago, lifetime_ms)
    halves = [one_time.private(kid_of(each.public)) for each in made]
    store.make_key(alice.public, long_ago, lifetime_ms, os.urandom)
    halves.append(store.state(alice.public).keys.keys[0].private)
    await store.write([store.stored(alice.public)])
    store.close()
    assert all(halves)
    if state == "full":
        bob.knows(alice, dials=False)
    async with bob.node() as there:
        context = there.outbox.context
        await until(lambda: context.one_time.is_empty)
        await until(lambda: not context.store.state(alice.public).keys.keys)
        await until(lambda: (bob.folder / "peers.db-wal").stat().st_size == 0)
        assert context.local.count(mailbox_of(bob.public) + b"!keys") == 0
        shutil.copytree(bob.folder, tmp_path / "stolen")
    stolen = b"".join(
        path.read_bytes() for path in (tmp_path / "stolen").rglob("*") if path.is_file()
    )
    assert not any(half in stolen for half in halves if half is not None)
