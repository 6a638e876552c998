"""One-time prekeys: their published form, their private halves on the disk, and their owner's
dealings with a relay."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from random import Random

import anyio
import anyio.to_thread
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from millpond.node.outbox.given_prekeys import TAKES_PER_DAY, GivenPrekeys
from millpond.node.peers import private_slots
from millpond.node.peers.address_book import AddressBook, Peer, Trust
from millpond.node.peers.data_key import CannotUnseal, DataKey
from millpond.node.peers.identity import Identity
from millpond.node.peers.one_time_prekeys import (
    GIVEN_MAX,
    HELD_MAX,
    TAKEN_MAX,
    OneTimePrekeys,
    TakenPrekeys,
    decode_one_time,
    encode_one_time,
    sign_one_time,
)
from millpond.node.peers.peer_store import PeerStore, rewrite_states
from millpond.node.peers.prekeys import MalformedPrekey
from millpond.node.peers.sealed_message import kid_of

pytestmark = pytest.mark.anyio

ALICE = Identity(b"\1" * 32)
RELAY = bytes([7]) * 32
NOW_MS = 1_763_683_200_000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
LIFETIME_MS = 9 * DAY_MS
PRIVATE = b"\5" * 32


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


class Owner:
    """Alice, and a relay that does what it is told."""

    def __init__(self, folder: Path, key: DataKey | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "peers.db"
        self.now_ms = NOW_MS
        self.relay_ahead_ms = 0
        self.key = key
        self.open()
        relay = PeerStore(None)
        self.book = AddressBook(None, lambda: self.now_ms / 1000)
        self.book.add(Peer("alice", ALICE.public, Trust.ADDED, (), (), 0.0))
        self.given = GivenPrekeys(
            relay, self.book, RELAY, lambda: (self.now_ms + self.relay_ahead_ms) / 1000
        )

    def open(self) -> None:
        self.store = PeerStore(self.path, 0, self.key)
        self.one_time = OneTimePrekeys(self.store, ALICE, os.urandom)

    async def refill(self) -> int:
        """Give the relay what it lacks; the number of new keys."""
        one_time, own = self.one_time, ALICE.public
        told = await self.given.give(own, one_time.current(RELAY, self.now_ms), [])
        await one_time.left(RELAY, *told)
        made = await one_time.make(RELAY, self.now_ms, LIFETIME_MS)
        keys = [encode_one_time(each) for each in made]
        told = await self.given.give(own, one_time.current(RELAY, self.now_ms), keys)
        await one_time.left(RELAY, *told)
        return len(made)

    async def taken(self, count: int) -> list[bytes]:
        """The kids of so many keys, each taken by another peer."""
        found = []
        for _ in range(count):
            self.given._takes.clear()
            found += await self.given.take(ALICE.public, os.urandom(32), 1)
        return [kid_of(decode_one_time(each, ALICE.public).public) for each in found]


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path / "alice")


def test_the_vector() -> None:
    """As docs/reference/peer-formats.md has it."""
    prekey = sign_one_time(ALICE, public_of(PRIVATE), 7, NOW_MS, NOW_MS + DAY_MS)
    encoded = encode_one_time(prekey)
    page = Path("docs/reference/peer-formats.md").read_text("utf-8")
    assert encoded.hex() in page.replace("\n        ", "")
    assert decode_one_time(encoded, ALICE.public) == prekey
    assert len(encoded) < 136


def test_a_changed_one_is_refused() -> None:
    prekey = sign_one_time(ALICE, public_of(PRIVATE), 7, NOW_MS, NOW_MS + DAY_MS)
    encoded = encode_one_time(prekey)
    for place in range(len(encoded)):
        changed = bytearray(encoded)
        changed[place] ^= 1
        with pytest.raises(MalformedPrekey):
            decode_one_time(bytes(changed), ALICE.public)
    for data in (b"", encoded[:-1], encoded + b"\0", encoded.ljust(300, b"\0")):
        with pytest.raises(MalformedPrekey):
            decode_one_time(data, ALICE.public)
    with pytest.raises(MalformedPrekey):
        decode_one_time(encoded, Identity(b"\2" * 32).public)
    weak = sign_one_time(ALICE, bytes(32), 7, NOW_MS, NOW_MS + DAY_MS)
    with pytest.raises(MalformedPrekey):
        decode_one_time(encode_one_time(weak), ALICE.public)


async def test_no_key_is_handed_out_twice(owner: Owner) -> None:
    """Neither by concurrent requests, nor after a key was given once more."""
    assert await owner.refill() == GIVEN_MAX
    found: list[bytes] = []

    async def take() -> None:
        found.extend(await owner.given.take(ALICE.public, os.urandom(32), 1))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(take)
    assert len(found) == len(set(found)) == 4
    known = owner.one_time.current(RELAY, owner.now_ms)
    left, removed = await owner.given.give(ALICE.public, known, found)
    assert len(left) == GIVEN_MAX - 4 and not removed
    assert await owner.refill() == 4


async def test_the_share_of_a_day(owner: Owner) -> None:
    await owner.refill()
    for _ in range(2):
        counts = [len(await owner.given.take(ALICE.public, RELAY, 5)) for _ in range(3)]
        assert counts == [5, TAKES_PER_DAY - 5, 0]
        owner.now_ms += DAY_MS


async def test_keys_that_nobody_has_taken_are_replaced_after_a_day(owner: Owner) -> None:
    await owner.refill()
    (used,) = await owner.taken(1)
    owner.now_ms += DAY_MS + HOUR_MS
    assert await owner.refill() == GIVEN_MAX
    assert owner.one_time.private(used) is not None
    assert len(owner.one_time._slots) == GIVEN_MAX + 1
    # A key that is over is handed out to nobody.
    owner.now_ms += LIFETIME_MS - HOUR_MS
    assert await owner.taken(1) == []
    await owner.one_time.sweep(owner.now_ms)
    assert owner.one_time.private(used) is None


async def test_so_many_private_halves_are_held_and_no_more(owner: Owner) -> None:
    """The relay is drained again and again, and nothing comes of the keys."""
    made = 0
    while count := await owner.refill():
        made += count
        await owner.taken(count)
    assert made == HELD_MAX == len(owner.one_time._slots)
    size = owner.path.with_name("peers.db-wal").stat().st_size
    assert size < 2**20
    owner.now_ms += LIFETIME_MS + 1
    await owner.one_time.sweep(owner.now_ms)
    assert await owner.refill() == GIVEN_MAX


async def test_halves_are_there_after_a_restart_and_destroyed_ones_are_not(owner: Owner) -> None:
    await owner.refill()
    one, two, three = await owner.taken(3)
    await owner.store.write(owner.one_time.used_by(one, 2**63))
    await owner.one_time.destroy([two])
    owner.store.close()
    owner.open()
    assert owner.one_time.private(two) is None and owner.one_time.private(three) is not None
    assert owner.one_time.kids_of([2**63]) == [one] and owner.one_time.kids_of([1]) == []
    numbers = owner.one_time.current(RELAY, owner.now_ms)
    new = await owner.one_time.make(RELAY, owner.now_ms, LIFETIME_MS)
    assert new and min(each.number for each in new) > max(numbers)


@pytest.mark.parametrize("is_relay_wrong", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_clock_that_was_ahead_locks_no_key_out(
    owner: Owner, is_relay_wrong: bool, restarts: bool
) -> None:
    """That of the owner, or of the owner and the relay, as where a node hands out its own."""
    owner.now_ms += 3650 * DAY_MS
    if not is_relay_wrong:
        owner.relay_ahead_ms = -3650 * DAY_MS
    await owner.refill()
    owner.now_ms, owner.relay_ahead_ms = NOW_MS, 0
    await owner.one_time.sweep(owner.now_ms)
    if restarts:
        owner.store.close()
        owner.open()
    assert await owner.refill() == GIVEN_MAX
    assert len(await owner.taken(2)) == 2


async def test_keys_of_owners_that_are_no_contacts_any_more_are_removed(owner: Owner) -> None:
    await owner.refill()
    await owner.given.sweep()
    assert len(await owner.taken(1)) == 1
    owner.book.remove("alice")
    await owner.given.sweep()
    assert await owner.taken(1) == []


async def test_a_repeated_message_leaves_the_half_to_the_first(owner: Owner) -> None:
    await owner.refill()
    one, two = await owner.taken(2)
    await owner.store.write(owner.one_time.used_by(one, 7))
    assert owner.one_time.spent_by(one, 8) == []
    assert owner.one_time.spent_by(one, 7) == [one] and owner.one_time.spent_by(two, 8) == [two]
    assert owner.one_time.spent_by(b"no such.", 8) == []


async def test_what_is_destroyed_while_the_log_is_emptied_is_erased_next(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is what was not, because of the disk."""
    await owner.refill()
    one, two = await owner.taken(2)
    await owner.one_time.destroy([one])
    erase, began, goes_on = PeerStore.erase, threading.Event(), threading.Event()

    def slow(store: PeerStore) -> bool:
        is_erased = erase(store)
        began.set()
        assert goes_on.wait(60)
        return is_erased

    monkeypatch.setattr(PeerStore, "erase", slow)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(owner.one_time.erase)
        await anyio.to_thread.run_sync(began.wait)
        await owner.one_time.destroy([two])
        goes_on.set()
    assert owner.one_time.erase_wanted

    def failing(_: PeerStore) -> bool:
        raise OSError("disk I/O error")

    monkeypatch.setattr(PeerStore, "erase", failing)
    with pytest.raises(OSError, match="disk"):
        await owner.one_time.erase()
    monkeypatch.setattr(PeerStore, "erase", erase)
    assert owner.one_time.erase_wanted
    await owner.one_time.erase()
    assert not owner.one_time.erase_wanted


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_no_copy_of_a_destroyed_half_is_on_the_disk(
    tmp_path: Path, is_encrypted: bool
) -> None:
    """Nor of one in clear text, if the folder is encrypted."""
    owner = Owner(tmp_path / "alice", DataKey(b"\3" * 32) if is_encrypted else None)
    rng, gone = Random(1), list[bytes]()
    for _ in range(25):
        await owner.refill()
        kids = await owner.taken(rng.randrange(GIVEN_MAX))
        rows = [row for kid in kids for row in owner.one_time.used_by(kid, rng.getrandbits(50))]
        await owner.store.write(rows)
        gone += [half for kid in kids if (half := owner.one_time.private(kid))]
        owner.store.make_key(rng.randbytes(32), 1000, 1000, rng.randbytes)
        await owner.store.write([owner.store.stored(each) for each in owner.store.states])
        await owner.one_time.destroy(kids)
        await owner.one_time.erase()
        assert not owner.one_time.erase_wanted
        shutil.copytree(owner.path.parent, tmp_path / "stolen", dirs_exist_ok=True)
        stolen = b"".join(path.read_bytes() for path in (tmp_path / "stolen").iterdir())
        assert not any(half in stolen for half in gone)
        held = [slot.private for _, slot in owner.one_time._slots.values()]
        assert held and all((half in stolen) is not is_encrypted for half in held)
    assert len(gone) > 200


async def test_halves_are_sealed_with_the_folder(tmp_path: Path) -> None:
    """And unsealed; one that is in the wrong form is not used."""
    owner, key = Owner(tmp_path / "alice"), DataKey(b"\3" * 32)
    await owner.refill()
    halves = {kid: slot.private for kid, (_, slot) in owner.one_time._slots.items()}
    owner.store.close()
    for is_sealing, opener in ((True, key), (False, None)):
        for _ in range(2):  # the second time nothing is left to be done
            rewrite_states(owner.path, key, is_sealing=is_sealing)
        data = owner.path.read_bytes()
        assert all((half in data) is not is_sealing for half in halves.values())
        store = PeerStore(owner.path, 0, opener)
        one_time = OneTimePrekeys(store, ALICE, os.urandom)
        assert {kid: one_time.private(kid) for kid in halves} == halves
        store.close()
    rewrite_states(owner.path, key, is_sealing=True)
    with pytest.raises(CannotUnseal):
        row = PeerStore(owner.path).query("SELECT data FROM one_time_prekeys")[0][0]
        private_slots.decode_slot(row, None)


def test_a_sender_uses_each_key_once_and_keeps_few() -> None:
    taken, owner = TakenPrekeys(), RELAY
    keys = [
        sign_one_time(ALICE, public_of(bytes([each]) * 32), each, NOW_MS, NOW_MS + each * HOUR_MS)
        for each in range(1, TAKEN_MAX + 2)
    ]
    ahead = sign_one_time(ALICE, public_of(PRIVATE), 9, NOW_MS + HOUR_MS + 1, NOW_MS + LIFETIME_MS)
    assert not taken.add(owner, ahead, NOW_MS) and not taken.add(owner, keys[0], keys[0].good_until)
    assert [taken.add(owner, each, NOW_MS) for each in keys] == [True] * TAKEN_MAX + [False]
    assert not taken.add(owner, keys[0], NOW_MS)
    # Those that do not live long enough are dropped on the way.
    assert taken.use(owner, NOW_MS + 2 * HOUR_MS, LIFETIME_MS) == keys[1].public
    assert taken.use(owner, NOW_MS + 2 * HOUR_MS, HOUR_MS) is None
    assert taken.count(owner) == 0
