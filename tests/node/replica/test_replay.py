"""A replica and the store that it follows: whatever was shipped is restored, whatever the object
store does, and across crashes of the node."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from shutil import copytree
from threading import Event

import anyio
import anyio.lowlevel
import msgspec
import pytest
from msgspec.structs import replace

from millpond.actors.messages import Durability
from millpond.actors.store.changes import StoredMessage
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.journal.writer import segment_path
from millpond.actors.store.settings import StoreSettings
from millpond.node.replica import shipping, snapshots
from millpond.node.replica.errors import BadReplica, ObjectStoreAway, OtherReplica, Superseded
from millpond.node.replica.object_store import FolderObjects
from millpond.node.replica.objects import (
    BEAT,
    FORMAT,
    JOURNAL,
    OWNER,
    Owner,
    beat_name,
    encode_json,
    journal_name,
    number_of,
    owner_name,
)
from millpond.node.replica.ownership import Claim, Claimant, last_header
from millpond.node.replica.restoration import ReplicaRestoration, Restored, verify
from millpond.node.replica.shipping import Opened, Shipper, ShippingPosition, ShippingState
from millpond.node.replica.snapshots import (
    SnapshotFacts,
    SnapshotPlace,
    SnapshotUpload,
    prune,
)
from tests.actors.store.harness import LAZY, NOW, SMALL, Run, young_id
from tests.actors.store.test_disk_failures import Fallible, broken
from tests.actors.store.test_snapshots import (
    QUEUES,
    QuickDisk,
    Traffic,
    opened,
    state,
    taken,
)
from tests.node.outbox.peer_nodes import until
from tests.node.replica.memory_objects import MemoryObjects

pytestmark = pytest.mark.anyio

NODE = b"n" * 16
SOME = StoreSettings(
    segment_bytes=8192,
    journal_bytes_max=2**15,
    rewrite_bytes_max=0,
    settle_s=1.0,
    stall_factor=100,
)
"""The journal keeps what a crash leaves to be shipped, and no more."""
LAG_MAX = 10**9
LIMIT_S = 60.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "GATHER_S", 0.0)
    monkeypatch.setattr(shipping, "RETRY_S", 0.001)
    monkeypatch.setattr(shipping, "RETRY_S_MAX", 0.002)


class Node:
    """A store with its shipper: from its opening to a crash, or to its end."""

    def __init__(
        self,
        folder: Path,
        objects: MemoryObjects,
        position: ShippingPosition,
        *,
        number: int = 0,
        settings: StoreSettings = SMALL,
        lag_bytes_max: int = LAG_MAX,
        node: bytes = NODE,
        durability: Durability = Durability.DISK,
        disk: Disk | None = None,
    ) -> None:
        self.objects = objects
        self.now = 1000.0
        suffix_after = position.lsn
        self.run = Run(
            folder,
            settings,
            durability,
            seed=number + 1,
            disk=disk or QuickDisk(),
            suffix_after=suffix_after,
        )
        self.shipper = Shipper(
            objects,
            Claimant(node, b"%016d" % number, "here"),
            position,
            lag_bytes_max=lag_bytes_max,
            now=lambda: self.now,
            wall=lambda: self.now,
            rng=Random(number),
            release=self.run.store.release_commits,
        )
        self.run.store.follower = self.shipper
        store = self.run.store
        self.shipper.open(Opened(store.stored_lsn, store.salt, self.run.found.suffix))

    @asynccontextmanager
    async def shipping(self) -> AsyncIterator[Shipper]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.shipper.run)
            try:
                yield self.shipper
            finally:
                tasks.cancel_scope.cancel()

    async def shipped(self) -> None:
        """Wait until the object store has all that is stored."""
        self.run.work()
        shipper, shipping = self.shipper, ShippingState.SHIPPING
        await until(lambda: shipper.state is shipping and not shipper.lag_bytes, LIMIT_S)

    def snapshot(self) -> None:
        """Upload a snapshot, as the service does."""
        shipper, claim = self.shipper, self.shipper.claim
        assert claim is not None
        place = SnapshotPlace(NODE, claim.epoch, shipper.position.history, shipper.position.number)
        upload = SnapshotUpload(self.run.store, self.objects)
        upload.prepare()
        snapshot = taken(self.run)
        upload.copy_segments(snapshot)
        self.run.store.release_segments()
        upload.copy_files(snapshot)
        self.run.store.end_snapshot()
        self.run.work()
        upload.finish(place, SnapshotFacts(self.now, "test", 0, 0), snapshot)
        upload.discard()


def message(id_: int) -> StoredMessage:
    return StoredMessage(id_, 1, 3600, NOW + 3600, b"data")


def restored(
    objects: MemoryObjects, target: Path, at: float | None = None, *, until_damage: bool = False
) -> Restored:
    restoration = ReplicaRestoration(objects, target, at, until_damage=until_damage)
    return restoration.run(lambda size: None, lambda: None)


def state_of(folder: Path) -> dict[bytes, object]:
    run = opened(folder, LAZY)
    assert run.store.damages == []
    found = state(run)
    run.close()
    return found


@pytest.mark.parametrize("seed", range(4))
async def test_what_was_shipped_is_restored(tmp_path: Path, seed: int) -> None:
    """Beside flushes, rewrites, removed segments, snapshots at any moment, lost answers and crashes
    of the node, whose journal goes on in the same history."""
    rng = Random(seed)
    objects = MemoryObjects(rng, before=0.1, after=0.1)
    position = ShippingPosition(NODE)
    traffic: Traffic | None = None
    for number in range(3):
        node = Node(tmp_path / "data", objects, position, number=number, settings=SOME)
        if traffic is None:
            traffic = Traffic(node.run, rng)
        traffic.run = node.run
        async with node.shipping() as shipper:
            await node.shipped()
            if number == 0:
                calm = objects._before, objects._after
                objects._before = objects._after = 0.0
                node.snapshot()
                objects._before, objects._after = calm
            for _ in range(3):
                for _ in range(rng.randrange(60)):
                    traffic.step()
                    node.now += 1
                    if rng.random() < 0.1:
                        await anyio.lowlevel.checkpoint()
                await node.shipped()
            assert shipper.position.history == 1, "nothing was lost"
            position = shipper.position
            expected = state(node.run)
            for _ in range(rng.randrange(10)):  # which a crash leaves to the next one
                traffic.step()
        node.run.work()
    last = Node(tmp_path / "data", objects, position, number=9, settings=SOME)
    async with last.shipping():
        await last.shipped()
        assert last.shipper.position.history == 1
    expected = state(last.run)
    last.run.close()
    objects._before = objects._after = 0.0
    found = restored(objects, tmp_path / "restored")
    assert not found.is_cut
    assert state_of(tmp_path / "restored") == expected
    assert verify(objects, lambda size: None).snapshots == 1


async def test_every_moment_can_be_restored(tmp_path: Path) -> None:
    objects = MemoryObjects()
    node = Node(tmp_path / "data", objects, ShippingPosition(NODE))
    traffic, moments = Traffic(node.run, Random(5)), dict[float, dict[bytes, object]]()
    async with node.shipping():
        await node.shipped()
        node.snapshot()
        for number in range(8):
            node.now += 10
            for _ in range(30):
                traffic.step()
            await node.shipped()
            moments[node.now] = state(node.run)
            if number == 4:
                node.snapshot()
    node.run.close()
    for at, expected in moments.items():
        target = tmp_path / f"at-{at:.0f}"
        assert restored(objects, target, at + 5).made_at == at
        assert state_of(target) == expected
    with pytest.raises(BadReplica, match="first moment"):
        restored(objects, tmp_path / "before", 1.0)


async def test_the_end_of_a_journal_that_was_lost_begins_a_history(tmp_path: Path) -> None:
    """A loss of power took records that were shipped: what follows does not come behind them."""
    objects = MemoryObjects()
    node = Node(tmp_path / "data", objects, ShippingPosition(NODE), settings=LAZY)
    traffic = Traffic(node.run, Random(2))
    async with node.shipping():
        await node.shipped()
        node.snapshot()
        for _ in range(20):
            traffic.step()
        await node.shipped()
        early = node.shipper.position
    segment = max((tmp_path / "data" / "journal").iterdir())
    intact = segment.read_bytes()
    async with node.shipping():
        for _ in range(20):
            traffic.step()
        await node.shipped()
        lost = state(node.run)
    segment.write_bytes(intact)
    again = Node(tmp_path / "data", objects, early, number=1, settings=LAZY)
    async with again.shipping() as shipper:
        await again.shipped()
        assert shipper.position.history == 2 and shipper.breaks == 1
        before = restored(objects, tmp_path / "before")
        assert before.is_cut and state_of(tmp_path / "before") == lost
        again.snapshot()
        again.run.write(QUEUES[0], message(young_id()))
        await again.shipped()
    expected = state(again.run)
    again.run.close()
    assert not restored(objects, tmp_path / "after").is_cut
    assert state_of(tmp_path / "after") == expected


async def test_a_later_owner_keeps_the_earlier_one_out(tmp_path: Path) -> None:
    objects = MemoryObjects()
    first = Node(tmp_path / "a", objects, ShippingPosition(NODE))
    traffic = Traffic(first.run, Random(1))
    with pytest.raises(ExceptionGroup) as caught:
        async with first.shipping():
            traffic.step()
            await first.shipped()
            second = Node(tmp_path / "b", objects, ShippingPosition(NODE), number=1)
            async with second.shipping():
                await second.shipped()
                traffic.step()
                first.run.work()
                await anyio.sleep(LIMIT_S)
    assert isinstance(caught.value.exceptions[0], Superseded)
    assert second.shipper.position.number == first.shipper.position.number + 1
    assert second.shipper.position.history == 2


async def test_the_prefix_of_another_node_is_refused(tmp_path: Path) -> None:
    objects = MemoryObjects()
    node = Node(tmp_path / "a", objects, ShippingPosition(NODE))
    async with node.shipping():
        await node.shipped()
    other = Node(tmp_path / "b", objects, ShippingPosition(b"x" * 16), number=1, node=b"x" * 16)
    with pytest.raises(OtherReplica):
        await other.shipper.run()


async def test_an_object_store_that_is_away_holds_up_nobody(tmp_path: Path) -> None:
    """The waiting journal is given up at its limit; a snapshot has it when the object store is
    back."""
    objects = MemoryObjects()
    node = Node(tmp_path / "data", objects, ShippingPosition(NODE), lag_bytes_max=20_000)
    traffic = Traffic(node.run, Random(3))
    async with node.shipping() as shipper:
        await node.shipped()
        node.snapshot()
        objects.is_away = True
        while shipper.position.history == 1 and shipper.claim is not None:
            traffic.step()  # which waits until it is acknowledged
            await anyio.sleep(0.001)
        assert shipper.lag_bytes < 20_000 and "no answer" in shipper.error
        objects.is_away = False
        await node.shipped()
        assert shipper.position.history == 2 and not shipper.error
        node.snapshot()
        traffic.step()
        await node.shipped()
    expected = state(node.run)
    node.run.close()
    restored(objects, tmp_path / "restored")
    assert state_of(tmp_path / "restored") == expected


async def test_a_slow_object_store_slows_writers_down(tmp_path: Path) -> None:
    objects = MemoryObjects()
    node = Node(tmp_path / "data", objects, ShippingPosition(NODE), lag_bytes_max=1)
    async with node.shipping() as shipper:
        await node.shipped()
        commit = node.run.store.write(QUEUES[0], [message(young_id())])
        node.run.work()
        assert commit is not None and not commit.is_done and shipper.is_behind
        await node.shipped()
        assert commit.is_done and not shipper.is_behind
    node.run.close()


async def test_damage_is_named_and_refused(tmp_path: Path) -> None:
    objects = MemoryObjects()
    node = Node(tmp_path / "data", objects, ShippingPosition(NODE))
    traffic = Traffic(node.run, Random(1))
    async with node.shipping():
        await node.shipped()
        node.snapshot()
        for _ in range(6):
            node.now += 1
            traffic.step()
            await node.shipped()
    node.run.close()
    names = sorted(each for each in objects.kept if each.startswith(JOURNAL))
    for name in (names[-2], *(each for each in objects.kept if each.startswith("blob/"))):
        data = objects.kept[name]
        for damaged in (data[:-1], data[: len(data) // 2], data[:-1] + bytes([data[-1] ^ 1]), b""):
            objects.kept[name] = damaged
            with pytest.raises(BadReplica, match=name):
                verify(objects, lambda size: None)
            with pytest.raises(BadReplica, match=name):
                restored(objects, tmp_path / "damaged")
            assert not (tmp_path / "damaged").exists()
        objects.kept[name] = data
    gone = objects.kept.pop(names[-2])
    with pytest.raises(BadReplica, match=names[-2]):
        verify(objects, lambda size: None)
    with pytest.raises(BadReplica, match=names[-2]):
        restored(objects, tmp_path / "missing")
    for damaged in (b"", None):
        if damaged is not None:
            objects.kept[names[-2]] = damaged
        else:
            del objects.kept[names[-2]]
        target = tmp_path / f"before-{damaged!r}"
        before = restored(objects, target, until_damage=True)
        assert before.made_at == node.now - 2 and names[-2] in before.damage
        state_of(target)
    objects.kept[names[-2]] = gone
    verify(objects, lambda size: None)


async def test_what_no_moment_needs_is_removed(tmp_path: Path) -> None:
    objects = MemoryObjects()
    node = Node(tmp_path / "data", objects, ShippingPosition(NODE))
    traffic = Traffic(node.run, Random(1))
    async with node.shipping():
        for _ in range(4):
            node.now += 100
            for _ in range(20):
                traffic.step()
            await node.shipped()
            node.snapshot()
        expected = state(node.run)
        removed = prune(objects, 150.0, node.now, blob_grace_s=0.0)
        assert removed.snapshots == 1 and removed.journal and removed.blobs
        verify(objects, lambda size: None)
        prune(objects, 0.0, node.now, blob_grace_s=0.0)
        assert verify(objects, lambda size: None).snapshots == 1
        number = node.shipper.position.number
        assert journal_name(number - 1) in objects.kept, "the next owner counts on from it"
    node.run.close()
    restored(objects, tmp_path / "restored")
    assert state_of(tmp_path / "restored") == expected


async def test_what_waits_goes_in_objects_of_a_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "OBJECT_BYTES_MAX", 5000)
    objects = MemoryObjects()
    node = Node(tmp_path / "data", objects, ShippingPosition(NODE))
    traffic = Traffic(node.run, Random(1))
    async with node.shipping():
        await node.shipped()
        node.snapshot()
        objects.is_away = True
        for _ in range(60):
            traffic.step()
        objects.is_away = False
        await node.shipped()
    node.run.close()
    sizes = [len(each) for name, each in objects.kept.items() if name.startswith(JOURNAL)]
    assert 5 < len(sizes) and max(sizes) < 6000
    restored(objects, tmp_path / "restored")
    assert state_of(tmp_path / "restored") == state_of(tmp_path / "data")


async def test_old_beats_and_owners_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "BEAT_S", 0.001)
    monkeypatch.setattr(snapshots, "OWNERS_KEPT", 2)
    objects = MemoryObjects()
    position = ShippingPosition(NODE)
    for number in range(4):
        node = Node(tmp_path / "data", objects, position, number=number)
        async with node.shipping() as shipper, anyio.create_task_group() as tasks:
            await node.shipped()
            if not number:
                node.snapshot()
                tasks.start_soon(shipper.beat)
                await until(lambda: _has_beaten(objects, 9), LIMIT_S)
                tasks.cancel_scope.cancel()
            position = shipper.position
        node.run.close()
    assert len(objects.list(BEAT)) <= shipping.BEATS_KEPT + 1
    assert len(objects.list(OWNER)) == 4
    prune(objects, 0.0, 2000.0)
    assert [each.name for each in objects.list(OWNER)] == [owner_name(3), owner_name(4)]


def _has_beaten(objects: MemoryObjects, times: int) -> bool:
    return max((number_of(each.name) for each in objects.list(BEAT)), default=0) >= times


async def test_an_earlier_owner_that_was_faster_is_kept_out_next(tmp_path: Path) -> None:
    """It makes an object between the look at the journal's end and the claim's own object."""
    objects = MemoryObjects()
    first = Node(tmp_path / "a", objects, ShippingPosition(NODE))
    traffic = Traffic(first.run, Random(1))
    second = Node(tmp_path / "b", objects, ShippingPosition(NODE), number=1)
    second.run.write(QUEUES[0], message(young_id()))
    create, raced = objects.create, list[str]()

    def create_late(name: str, data: bytes) -> None:
        create(name, data)
        if name == owner_name(2):
            traffic.step()
            first.run.work()
            attempt = first.shipper._next()
            create(journal_name(attempt.header.number), attempt.data)
            raced.append(journal_name(attempt.header.number))

    async with first.shipping():
        await first.shipped()
    objects.create = create_late  # type: ignore[method-assign]
    async with second.shipping() as shipper:
        await second.shipped()
        assert raced == [journal_name(1)]
        assert shipper.claim is not None and shipper.claim.epoch == 3
        second.snapshot()
        second.run.write(QUEUES[0], message(young_id() + 1))
        await second.shipped()
    expected = state(second.run)
    second.run.close()
    restored(objects, tmp_path / "restored")
    assert state_of(tmp_path / "restored") == expected
    verify(objects, lambda size: None)


class StuckObjects(MemoryObjects):
    """An object store of which a journal object has no answer for as long as `is_stuck`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stuck = False
        self.stuck = Event()
        self.answers = Event()

    def create(self, name: str, data: bytes) -> None:
        if self.is_stuck and name.startswith(JOURNAL):
            self.stuck.set()
            assert self.answers.wait(LIMIT_S)
        super().create(name, data)


async def test_what_is_given_up_while_the_first_object_is_made_is_claimed_behind(
    tmp_path: Path,
) -> None:
    objects = StuckObjects()
    objects.is_stuck = True
    node = Node(tmp_path / "data", objects, ShippingPosition(NODE), lag_bytes_max=2000)
    traffic = Traffic(node.run, Random(3))
    async with node.shipping() as shipper:
        await until(objects.stuck.is_set, LIMIT_S)
        while shipper.claim is not None:
            traffic.step()
        objects.is_stuck = False
        objects.answers.set()
        traffic.step()
        await node.shipped()
        assert shipper.position.history == 2
        node.snapshot()
    expected = state(node.run)
    node.run.close()
    restored(objects, tmp_path / "restored")
    assert state_of(tmp_path / "restored") == expected


async def test_an_object_store_that_never_answers_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of a machine that is gone: the system's call does not return."""
    monkeypatch.setattr(shipping, "ANSWER_S", 0.05)
    objects = StuckObjects()
    node = Node(tmp_path / "data", objects, ShippingPosition(NODE), lag_bytes_max=1)
    async with node.shipping() as shipper:
        await node.shipped()
        node.snapshot()
        objects.is_stuck = True
        commit = node.run.store.write(QUEUES[0], [message(young_id())])
        node.run.work()
        assert commit is not None and not commit.is_done
        await until(lambda: commit.is_done, LIMIT_S)
        assert shipper.state is ShippingState.AWAY and "no answer" in shipper.error
        objects.is_stuck = False
        objects.answers.set()
        await node.shipped()
        node.snapshot()
    expected = state(node.run)
    node.run.close()
    restored(objects, tmp_path / "restored")
    assert state_of(tmp_path / "restored") == expected


class PartedObjects(MemoryObjects):
    """An object store that is away for the process of one run."""

    parted = b"nobody"

    def create(self, name: str, data: bytes) -> None:
        if name.startswith(JOURNAL) and self.parted in data:
            raise ObjectStoreAway("no answer within 30 s")
        super().create(name, data)


async def test_a_claim_whose_first_object_an_earlier_owner_made_is_made_anew(
    tmp_path: Path,
) -> None:
    """Also if the object store was away before that first object was tried again."""
    objects = PartedObjects()
    first = Node(tmp_path / "a", objects, ShippingPosition(NODE))
    traffic = Traffic(first.run, Random(1))
    with pytest.raises(ExceptionGroup) as caught:
        async with first.shipping():
            await first.shipped()
            objects.parted = b"%016d" % 1
            second = Node(tmp_path / "b", objects, ShippingPosition(NODE), number=1)
            async with second.shipping():
                await until(lambda: second.shipper.error != "", LIMIT_S)
                traffic.step()
                await first.shipped()
                objects.parted = PartedObjects.parted
                await second.shipped()
                assert second.shipper.claim is not None and second.shipper.claim.epoch == 3
                traffic.step()
                first.run.work()
                await anyio.sleep(LIMIT_S)
    assert isinstance(caught.value.exceptions[0], Superseded)


async def test_an_owner_that_gave_up_does_not_claim_what_another_one_ships(
    tmp_path: Path,
) -> None:
    """It was parted from the object store for so long that a standby took over: what that one
    acknowledged would be lost."""
    objects, near = MemoryObjects(), MemoryObjects()
    near.kept = objects.kept
    first = Node(tmp_path / "a", objects, ShippingPosition(NODE), lag_bytes_max=20_000)
    traffic = Traffic(first.run, Random(1))
    with pytest.raises(ExceptionGroup) as caught:
        async with first.shipping() as shipper:
            await first.shipped()
            objects.is_away = True
            while shipper.claim is not None:
                traffic.step()
                await anyio.sleep(0.001)
            second = Node(tmp_path / "b", near, ShippingPosition(NODE), number=1)
            async with second.shipping():
                await second.shipped()
                objects.is_away = False
                await until(lambda: shipper.claim is not None, LIMIT_S)
    assert isinstance(caught.value.exceptions[0], Superseded)
    assert second.shipper.claim is not None and second.shipper.claim.epoch == 2


async def test_a_node_that_gave_up_before_its_first_claim_does_not_claim_either(
    tmp_path: Path,
) -> None:
    objects, near = MemoryObjects(), MemoryObjects()
    near.kept = objects.kept
    second = Node(tmp_path / "b", near, ShippingPosition(NODE), number=1)
    async with second.shipping():
        await second.shipped()
    objects.is_away = True
    earlier = ShippingPosition(NODE, run=b"%016d" % 7)
    first = Node(tmp_path / "a", objects, earlier, number=8, lag_bytes_max=2000)
    traffic = Traffic(first.run, Random(1))
    with pytest.raises(ExceptionGroup) as caught:
        async with first.shipping() as shipper:
            await until(lambda: shipper.error != "", LIMIT_S)
            for _ in range(200):
                traffic.step()
            assert shipper.lag_bytes < 2000  # what waited was given up
            objects.is_away = False
            await until(lambda: shipper.state is ShippingState.SHIPPING, LIMIT_S)
    assert isinstance(caught.value.exceptions[0], Superseded)


async def test_a_restarted_owner_that_another_one_outran_does_not_claim_behind_it(
    tmp_path: Path,
) -> None:
    """The other one has the lower epoch, made the next object first, and ships."""
    objects = PartedObjects()
    begun = Node(tmp_path / "a", objects, ShippingPosition(NODE))
    async with begun.shipping():
        await begun.shipped()
    begun.run.close()
    objects.kept[owner_name(2)] = encode_json(Owner(2, NODE, b"%016d" % 1, 1, 0.0))
    objects.parted = b"%016d" % 2
    again = Node(tmp_path / "a", objects, begun.shipper.position, number=2)
    with pytest.raises(ExceptionGroup) as caught:
        async with again.shipping() as shipper:
            await until(lambda: shipper.error != "", LIMIT_S)
            assert shipper.claim is not None and shipper.claim.epoch == 3
            other = Node(tmp_path / "b", objects, ShippingPosition(NODE), number=1)
            claim = Claim(2, 1, last_header(objects))
            other.shipper.position, other.shipper._claim = (
                replace(other.shipper.position, number=1, history=1),
                claim,
            )
            made = other.shipper._object([], 0, 0.0, 0.0, 0)
            objects.create(journal_name(1), made.data)
            objects.parted = PartedObjects.parted
            await until(lambda: shipper.state is ShippingState.SHIPPING, LIMIT_S)
    assert isinstance(caught.value.exceptions[0], Superseded)


async def test_an_owner_at_rest_learns_that_it_is_one_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would acknowledge one more write."""
    monkeypatch.setattr(shipping, "BEAT_S", 0.001)
    objects = MemoryObjects()
    first = Node(tmp_path / "a", objects, ShippingPosition(NODE))
    with pytest.raises(ExceptionGroup) as caught:
        async with first.shipping() as shipper, anyio.create_task_group() as tasks:
            await first.shipped()
            tasks.start_soon(shipper.beat)
            objects.kept[owner_name(7)] = encode_json(Owner(7, NODE, b"r" * 16, 1, 0.0))
            await until(lambda: _has_beaten(objects, 9), LIMIT_S)  # which made no object yet
            second = Node(tmp_path / "b", objects, ShippingPosition(NODE), number=1)
            async with second.shipping():
                await second.shipped()
                await anyio.sleep(LIMIT_S)
    (inner,) = caught.value.exceptions
    assert isinstance(inner, ExceptionGroup) and isinstance(inner.exceptions[0], Superseded)


async def test_what_a_crash_left_goes_in_objects_of_a_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "OBJECT_BYTES", 2000)
    monkeypatch.setattr(shipping, "OBJECT_BYTES_MAX", 5000)
    objects = MemoryObjects()
    node = Node(tmp_path / "data", objects, ShippingPosition(NODE), settings=LAZY)
    traffic = Traffic(node.run, Random(1))
    async with node.shipping():
        await node.shipped()
        node.snapshot()
    for _ in range(60):
        traffic.step()
    node.run.work()
    again = Node(tmp_path / "data", objects, node.shipper.position, number=1, settings=LAZY)
    async with again.shipping():
        await again.shipped()
        assert again.shipper.position.history == 1
    again.run.close()
    sizes = [len(each) for name, each in objects.kept.items() if name.startswith(JOURNAL)]
    assert 4 < len(sizes) and max(sizes) < 6000
    restored(objects, tmp_path / "restored")
    assert state_of(tmp_path / "restored") == state_of(tmp_path / "data")


async def test_beats_of_earlier_owners_are_removed(tmp_path: Path) -> None:
    objects = MemoryObjects()
    node = Node(tmp_path / "data", objects, ShippingPosition(NODE))
    async with node.shipping():
        await node.shipped()
        node.snapshot()
    node.run.close()
    for epoch in range(1, 9):
        for count in range(3):
            objects.kept[beat_name(epoch, count)] = b"{}"
    prune(objects, 0.0, 2000.0)
    kept = [each.name for each in objects.list(BEAT)]
    assert len(kept) == 4 and kept[-1] == beat_name(8, 2)


def test_a_blob_that_is_uploaded_again_counts_as_new(tmp_path: Path) -> None:
    """No manifest names what an upload left that was given up: it is removed when it is old."""
    (tmp_path / "file").write_bytes(b"content")
    objects = FolderObjects(tmp_path / "replica")
    objects.put_file("blob/ab/abc", tmp_path / "file")
    os.utime(tmp_path / "replica/blob/ab/abc", (1000, 1000))
    objects.put_file("blob/ab/abc", tmp_path / "file")
    assert objects.list("blob/")[0].made_at > 1000


async def test_runs_that_write_nothing_go_on_in_the_history(tmp_path: Path) -> None:
    """Each is killed once it has claimed the replica, before it knows where that stands."""
    objects = MemoryObjects()
    position = ShippingPosition(NODE)
    for number in range(6):
        node = Node(tmp_path / "data", objects, position, number=number, settings=LAZY)
        async with node.shipping() as shipper:
            await node.shipped()
            position = msgspec.structs.replace(position, run=shipper.position.run)
            if number == 3:
                node.snapshot()
                node.run.write(QUEUES[0], message(young_id()))
                await node.shipped()
        assert shipper.position.history == 1
        node.run.close()


async def test_a_copy_of_the_folder_does_not_go_on_in_the_history(tmp_path: Path) -> None:
    """Both have the records so far, and each has its own behind them."""
    objects = MemoryObjects()
    node = Node(tmp_path / "a", objects, ShippingPosition(NODE), settings=LAZY)
    async with node.shipping():
        await node.shipped()
        node.run.write(QUEUES[0], message(young_id()))
        await node.shipped()
    node.run.close()
    copytree(tmp_path / "a", tmp_path / "b")
    copy = Node(tmp_path / "b", objects, ShippingPosition(NODE), number=1, settings=LAZY)
    async with copy.shipping():
        await copy.shipped()
        copy.run.write(QUEUES[0], message(young_id() + 1))
        await copy.shipped()
        assert copy.shipper.position.history == 1, "nothing tells them apart yet"
    copy.run.close()
    again = Node(tmp_path / "a", objects, node.shipper.position, number=2, settings=LAZY)
    with pytest.raises(Superseded, match="--standby"):
        await again.shipper.run()
    again.run.close()


async def test_a_damaged_object_holds_up_shipping_and_not_the_node(tmp_path: Path) -> None:
    objects = MemoryObjects()
    node = Node(tmp_path / "data", objects, ShippingPosition(NODE))
    async with node.shipping():
        await node.shipped()
    last = journal_name(node.shipper.position.number - 1)
    intact, objects.kept[last] = objects.kept[last], b"damaged"
    node.run.close()
    again = Node(tmp_path / "data", objects, node.shipper.position, number=1)
    async with again.shipping() as shipper:
        await until(lambda: last in shipper.error, LIMIT_S)
        again.run.write(QUEUES[0], message(young_id()))
        objects.kept[last] = intact
        await again.shipped()
        assert not shipper.error and shipper.position.history == 1
    again.run.close()


async def test_records_that_a_failing_segment_lost_begin_a_history(tmp_path: Path) -> None:
    """Only rewrites are left of them, and nobody shipped them before the kill."""
    objects, disk = MemoryObjects(), Fallible()
    node = Node(
        tmp_path / "data",
        objects,
        ShippingPosition(NODE),
        durability=Durability.OS,
        disk=disk,
        settings=LAZY,
    )
    async with node.shipping() as shipper:
        await node.shipped()
        node.run.write(QUEUES[0], message(young_id()))
        await node.shipped()
        node.snapshot()
        position = shipper.position
    node.run.write(QUEUES[0], message(young_id() + 1))  # applied, and not synced
    disk.plan = [broken()]
    node.run.store.write(QUEUES[1], [message(young_id() + 2)])
    node.run.work()
    for _ in range(3):
        node.run.loop._clock.now += 1.0
        node.run.loop.work(idle=True)
        node.run.work()
    node.run.write(QUEUES[1], message(young_id() + 3))
    expected = state(node.run)
    ((number, cut),) = node.run.store._journal._cuts.items()
    with segment_path(tmp_path / "data/journal", number).open("r+b") as segment:
        segment.seek(cut.synced)
        segment.write(bytes(cut.end - cut.synced))  # which the disk has not
    (tmp_path / "data").rename(tmp_path / "killed")
    again = Node(tmp_path / "killed", objects, position, number=1, settings=LAZY)
    assert state(again.run) == expected, "the journal has everything"
    async with again.shipping():
        await again.shipped()
        if again.shipper.position.history != 1:  # as the service does
            again.snapshot()
    again.run.close()
    restored(objects, tmp_path / "restored")
    assert state_of(tmp_path / "restored") == expected


async def test_an_owner_that_was_paused_makes_no_number_that_was_removed(tmp_path: Path) -> None:
    """For longer than anything is kept: its next number is the claim of the one after it."""
    objects = MemoryObjects()
    first = Node(tmp_path / "a", objects, ShippingPosition(NODE))
    async with first.shipping():
        await first.shipped()
        first.snapshot()
    second = Node(tmp_path / "b", objects, ShippingPosition(NODE), number=1)
    async with second.shipping():
        for _ in range(3):
            second.now += 1000
            second.run.write(QUEUES[0], message(young_id() + int(second.now)))
            await second.shipped()
            second.snapshot()
        assert prune(objects, 0.0, second.now).journal
        verify(objects, lambda size: None)
    second.run.close()
    first.run.write(QUEUES[0], message(young_id()))
    with pytest.raises(Superseded):
        await first.shipper.run()


async def test_a_moment_of_an_outage_can_be_restored(tmp_path: Path) -> None:
    """The object store was away, and has what was written then since it is back."""
    objects = MemoryObjects()
    node = Node(tmp_path / "data", objects, ShippingPosition(NODE))
    traffic, moments = Traffic(node.run, Random(5)), dict[float, dict[bytes, object]]()
    async with node.shipping():
        await node.shipped()
        node.snapshot()
        objects.is_away = True
        for _ in range(5):
            node.now += 10
            for _ in range(10):
                traffic.step()
            node.run.work()
            moments[node.now] = state(node.run)
        node.now += 600
        objects.is_away = False
        await node.shipped()
    node.run.close()
    for at, expected in moments.items():
        target = tmp_path / f"at-{at:.0f}"
        assert restored(objects, target, at + 5).made_at == at
        assert state_of(target) == expected


def test_drafts_of_a_kill_are_removed(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    objects.create("journal/1", b"whole")
    for name, at in ((".1.new", 1000), (".2.new", 5000)):
        (tmp_path / "journal" / name).write_bytes(b"half")
        os.utime(tmp_path / "journal" / name, (at, at))
    os.utime(tmp_path / "journal/1", (1000, 1000))
    assert objects.remove_drafts(3000.0) == 1
    assert sorted(each.name for each in (tmp_path / "journal").iterdir()) == [".2.new", "1"]


@pytest.mark.parametrize("is_made", [True, False], ids=["made", "read"])
def test_nothing_is_put_where_the_folder_is_mounted_no_more(tmp_path: Path, is_made: bool) -> None:
    """An acknowledgement as replicated would mean the disk of this machine alone."""
    folder, source = tmp_path / "mounted", tmp_path / "segment"
    source.write_bytes(b"whole")
    objects = FolderObjects(folder)
    objects.create(FORMAT, b"{}")
    objects.create("journal/1", b"one")
    if not is_made:
        objects = FolderObjects(folder)
        objects.get(FORMAT)
    folder.rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(ObjectStoreAway, match="is it mounted"):
            objects.create("journal/2", b"two")
        with pytest.raises(ObjectStoreAway, match="is it mounted"):
            objects.put_file("blob/66/66", source)
        folder.mkdir(exist_ok=True)
    folder.rmdir()
    (tmp_path / "elsewhere").rename(folder)
    objects.create("journal/2", b"two")
    assert [each.name for each in objects.list("journal")] == ["journal/1", "journal/2"]


async def test_an_object_store_may_be_away_for_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some thousand attempts the next one is made as before."""
    monkeypatch.setattr(shipping, "RETRY_S_MAX", 0.0)
    objects = MemoryObjects()
    node = Node(tmp_path / "data", objects, ShippingPosition(NODE))
    async with node.shipping():
        await node.shipped()
        objects.is_away = True
        node.run.write(QUEUES[0], message(young_id()))
        requests = objects.requests
        await until(lambda: objects.requests > requests + 1100, LIMIT_S)
        objects.is_away = False
        await node.shipped()
    node.run.close()


async def test_a_snapshot_that_ends_while_an_object_is_made_leaves_its_callers_their_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would wait for as long as the object store is away."""
    monkeypatch.setattr(shipping, "WATCH_S", 0.001)
    objects = StuckObjects()
    node = Node(
        tmp_path / "data", objects, ShippingPosition(NODE), durability=Durability.REPLICATED
    )
    node.shipper._refuse, node.shipper._ack_s = node.run.store.refuse_unreplicated, 5.0
    async with node.shipping() as shipper:
        await node.shipped()
        shipper.has_snapshot(shipper.position.history)
        objects.is_stuck = True
        commit = node.run.store.write(QUEUES[0], [message(young_id())])
        node.run.work()
        await until(objects.stuck.is_set, LIMIT_S)
        shipper.has_snapshot(shipper.position.history)
        node.now += 6.0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shipper.watch)
            assert commit is not None
            await until(lambda: commit.is_done, 5.0)
            tasks.cancel_scope.cancel()
        objects.answers.set()
    node.run.close()


async def test_a_history_that_continues_another_counts_only_if_its_claim_is_made(
    tmp_path: Path,
) -> None:
    """A claim that was given up is made anew as a break: without a snapshot nothing behind it can
    be restored, so nothing is replicated."""
    objects = PartedObjects()
    first = Node(tmp_path / "a", objects, ShippingPosition(NODE))
    async with first.shipping():
        await first.shipped()
        first.snapshot()
    first.run.close()
    restored(objects, tmp_path / "b")
    run = opened(tmp_path / "b", SMALL)
    lsn = run.store.stored_lsn
    run.close()
    last = last_header(objects)
    assert last is not None
    position = ShippingPosition(NODE, last.number + 1, last.history, lsn, mark=last.digest)
    objects.parted = b"%016d" % 1
    second = Node(tmp_path / "b", objects, position, number=1, lag_bytes_max=20_000)
    traffic = Traffic(second.run, Random(1))
    async with second.shipping() as shipper:
        await until(lambda: shipper.error != "", LIMIT_S)
        assert shipper._restorable_history == 2  # it was to go on without a snapshot
        given_up = shipper.claim
        while shipper.claim is given_up:  # a moment later there is another one
            traffic.step()
            await anyio.sleep(0.001)
        objects.parted = PartedObjects.parted
        await second.shipped()
        history = shipper.position.history  # 3 where the next one was given up as well
        assert history >= 2 and shipper.replicated_lsn == -1
        second.snapshot()
        shipper.has_snapshot(history)
        assert shipper.replicated_lsn > 0
    second.run.close()
