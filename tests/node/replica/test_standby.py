"""A standby: its copy of the replica, and the moment at which it takes the place of the owner."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from millpond import connect
from millpond.actors.messages import Durability
from millpond.node.cli.doctor.data_folder import folder_findings
from millpond.node.config import Config
from millpond.node.config_rules import ChannelRule
from millpond.node.data_folder import offline_store
from millpond.node.node import Node
from millpond.node.replica import service, shipping, standby
from millpond.node.replica.errors import NoObject, ObjectStoreAway, Superseded
from millpond.node.replica.forced_takeover import allow_takeover, unfinished_history
from millpond.node.replica.object_store import FolderObjects, Listed
from millpond.node.replica.objects import FORMAT, JOURNAL, SNAPSHOT, journal_name
from millpond.node.replica.restoration import verify
from millpond.node.replica.snapshots import prune
from millpond.node.replica.standby import COPY, REPLACED, Standby
from tests.node.outbox.peer_nodes import until

pytestmark = pytest.mark.anyio

LIMIT_S = 60.0
CHANNEL = "jobs/mail"
CLOSED = dict.fromkeys(("ws", "s3p", "rustlog", "http"), "off")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "FIRST_BEAT_S", 0.05)
    monkeypatch.setattr(shipping, "BEAT_S", 0.05)
    monkeypatch.setattr(service, "SNAPSHOT_LOOK_S", 0.01)
    monkeypatch.setattr(standby, "BEAT_S", 0.05)
    monkeypatch.setattr(standby, "LOOK_S", 0.02)
    monkeypatch.setattr(standby, "LOOK_S_MIN", 0.02)
    monkeypatch.setattr(standby, "RETRY_S", 0.02)


def config(tmp_path: Path, name: str) -> Config:
    return Config(
        data=str(tmp_path / name),
        replica=f"file://{tmp_path}/replica",
        durability=Durability.REPLICATED,
        channels=(ChannelRule.parse("*=queue"),),
        p2p="127.0.0.1:0",
        **CLOSED,
    )


def standing_by(
    tmp_path: Path, name: str, objects: FolderObjects | None = None, **more: Any
) -> Standby:
    return Standby(
        objects or FolderObjects(tmp_path / "replica"),
        tmp_path / name,
        1.0,
        now=time.monotonic,
        wall=more.pop("wall", time.time),
        entropy=Random(name).randbytes,
        **more,
    )


async def put(node: Node, *texts: bytes) -> None:
    url = f"tcp://{node.listeners['p2p']}"
    async with connect(url, CHANNEL, role="producer") as channel:
        for text in texts:
            await channel.put(text)


async def received(node: Node, count: int) -> list[bytes]:
    url = f"tcp://{node.listeners['p2p']}"
    async with connect(url, CHANNEL, role="consumer") as channel:
        with anyio.fail_after(LIMIT_S):
            return [bytes((await channel.receive()).data) for _ in range(count)]


async def test_a_standby_takes_over_and_goes_on_without_a_gap(tmp_path: Path) -> None:
    """An hour behind: clocks decide nothing. Its earlier store is kept."""
    async with Node(config(tmp_path, "b")):
        pass  # it had a store of its own once, in a replica that is gone
    (tmp_path / "replica").rename(tmp_path / "earlier")
    (tmp_path / "b/replica.json").unlink()
    (tmp_path / "b/notes.txt").write_text("theirs")
    ready = anyio.Event()
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            async with Node(config(tmp_path, "a")) as owner:
                await put(owner, b"one")
                other = standing_by(tmp_path, "b", ready=ready.set, wall=lambda: time.time() - 3600)
                tasks.start_soon(other.run)
                await ready.wait()
                await put(owner, b"two")
    async with Node(config(tmp_path, "b")) as node:
        assert node.replica is not None and node.replica.info.breaks == 0
        await put(node, b"three")
        assert await received(node, 3) == [b"one", b"two", b"three"]
    assert (tmp_path / "b" / REPLACED / "journal").is_dir()
    assert (tmp_path / "b/notes.txt").read_text() == "theirs"
    assert not (tmp_path / "b" / COPY).exists()
    found = [each.text for each in folder_findings(tmp_path / "b") if each.check == "standby"]
    assert len(found) == 1 and "the store before the last takeover" in found[0]
    verify(FolderObjects(tmp_path / "replica"), lambda size: None)


async def test_an_earlier_owner_does_not_start_as_one(tmp_path: Path) -> None:
    """It would put its own store in the place of what the other one acknowledged."""
    async with Node(config(tmp_path, "a")) as owner:
        await put(owner, b"one")
    await standing_by(tmp_path, "b").run()
    async with Node(config(tmp_path, "b")) as node:
        await put(node, b"two")
    with pytest.raises(BaseExceptionGroup) as caught:
        async with Node(config(tmp_path, "a")):
            await anyio.sleep(LIMIT_S)
    assert caught.group_contains(Superseded, match="--standby")
    await standing_by(tmp_path, "a").run()
    async with Node(config(tmp_path, "a")) as node:
        assert await received(node, 2) == [b"one", b"two"]


async def test_the_node_that_shipped_last_goes_on_with_its_own_store(tmp_path: Path) -> None:
    async with Node(config(tmp_path, "a")) as owner:
        await put(owner, b"one")
    await standing_by(tmp_path, "a").run()
    assert not (tmp_path / "a" / REPLACED).exists()
    async with Node(config(tmp_path, "a")) as node:
        assert node.replica is not None
        assert await received(node, 1) == [b"one"] and node.replica.info.breaks == 0


async def test_of_two_on_an_empty_bucket_one_begins(tmp_path: Path) -> None:
    begun: list[str] = []
    stop = anyio.CancelScope()

    async def stand(name: str) -> None:
        await standing_by(tmp_path, name).run()
        begun.append(name)
        async with Node(config(tmp_path, name)) as node:
            await put(node, name.encode())
            await until(lambda: stop.cancel_called, LIMIT_S)

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stand, "a")
            tasks.start_soon(stand, "b")
            await until(lambda: bool(begun), LIMIT_S)
            await anyio.sleep(2.0)  # twice the time of a takeover
            assert len(begun) == 1
            stop.cancel()
            tasks.cancel_scope.cancel()


class AwayFolder(FolderObjects):
    """A folder that this node does not reach; the owner does."""

    is_away = False

    def list(self, prefix: str, after: str = "") -> list[Listed]:
        if self.is_away:
            raise ObjectStoreAway("no answer within 30 s")
        return super().list(prefix, after)


async def test_a_standby_without_the_object_store_waits(tmp_path: Path) -> None:
    """It hears nothing of the owner, which is alive."""
    objects, ready = AwayFolder(tmp_path / "replica"), anyio.Event()
    async with Node(config(tmp_path, "a")) as owner, anyio.create_task_group() as tasks:
        await put(owner, b"one")
        tasks.start_soon(standing_by(tmp_path, "b", objects, ready=ready.set).run)
        await ready.wait()
        objects.is_away = True
        await anyio.sleep(2.0)  # twice the time of a takeover
        objects.is_away = False
        await put(owner, b"two")
        epochs = {each.name for each in FolderObjects(tmp_path / "replica").list("owner/")}
        assert len(epochs) == 1
        assert FolderObjects(tmp_path / "replica").list(JOURNAL)
        tasks.cancel_scope.cancel()


async def test_a_kill_while_the_copy_is_put_in_place_keeps_the_earlier_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no node starts on half of a copy."""
    async with Node(config(tmp_path, "b")) as node:
        await put(node, b"earlier")
    (tmp_path / "replica").rename(tmp_path / "earlier")
    (tmp_path / "b/replica.json").unlink()
    async with Node(config(tmp_path, "a")) as owner:
        await put(owner, b"one")
    rename, left = Path.rename, [0]

    def renamed(path: Path, target: Path) -> Path:
        left[0] -= 1
        if left[0] < 0 and path.parent in (tmp_path / "b", tmp_path / "b" / COPY):
            raise InterruptedError("killed")
        return rename(path, target)

    theirs = sum(standby._is_of_store(each.name) for each in (tmp_path / "b").iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", renamed)
        for count in (1, 1, theirs + 1, 2):
            left[0] = count
            with pytest.raises(InterruptedError):
                await standing_by(tmp_path, "b").run()
    await standing_by(tmp_path, "b").run()
    async with Node(config(tmp_path, "b")) as node:
        assert await received(node, 1) == [b"one"]
    replaced = tmp_path / "b" / REPLACED
    assert sum(standby._is_of_store(each.name) for each in replaced.iterdir()) == theirs
    alone = replace(config(tmp_path, "b"), data=str(replaced), replica="")
    async with Node(replace(alone, durability=Durability.DISK)) as node:
        assert await received(node, 1) == [b"earlier"]


async def test_a_founder_that_was_killed_begins_again(tmp_path: Path) -> None:
    """Also if it was killed, or had no answer, right after the object that begins a replica."""
    objects = FolderObjects(tmp_path / "replica")
    create = objects.create

    def create_unheard(name: str, data: bytes) -> None:
        create(name, data)
        if name == FORMAT:
            raise InterruptedError("killed")

    objects.create = create_unheard  # type: ignore[method-assign]
    with pytest.raises(InterruptedError):
        await standing_by(tmp_path, "a", objects).run()
    with anyio.fail_after(LIMIT_S):
        await standing_by(tmp_path, "a").run()
    async with Node(config(tmp_path, "a")) as node:
        await put(node, b"one")


async def test_a_standby_whose_replica_disappears_waits(tmp_path: Path) -> None:
    """A folder of another machine may be mounted no more: both nodes would serve."""
    ready, ended, mounted = anyio.Event(), anyio.Event(), tmp_path / "mounted"
    (tmp_path / "replica").mkdir()
    mounted.symlink_to(tmp_path / "replica")

    async def stand() -> None:
        await standing_by(tmp_path, "b", FolderObjects(mounted), ready=ready.set).run()
        ended.set()

    async with Node(config(tmp_path, "a")) as owner:
        await put(owner, b"one")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stand)
            await ready.wait()
            mounted.unlink()
            mounted.mkdir()
            with anyio.move_on_after(3.0):  # thrice the time of a takeover
                await ended.wait()
            assert not ended.is_set()
            tasks.cancel_scope.cancel()


async def test_a_standby_whose_next_object_was_removed_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was paused for longer than the owner keeps its journal."""
    objects, ready = AwayFolder(tmp_path / "replica"), anyio.Event()
    followed = anyio.Event()

    async def stand() -> None:
        await standing_by(tmp_path, "b", objects, ready=ready.set).run()
        followed.set()

    async with anyio.create_task_group() as tasks:
        async with Node(config(tmp_path, "a")) as owner:
            await put(owner, b"one")
            tasks.start_soon(stand)
            await ready.wait()
            with monkeypatch.context() as patch:
                patch.setattr(objects, "get", _away)
                await put(owner, b"two")
                await put(owner, b"three")
                assert owner.replica is not None
                await owner.replica._make_snapshot()
                prune(FolderObjects(tmp_path / "replica"), 0.0, time.time() + 3600)
        with anyio.fail_after(LIMIT_S):
            await followed.wait()
    async with Node(config(tmp_path, "b")) as node:
        assert await received(node, 3) == [b"one", b"two", b"three"]


def _away(name: str) -> bytes:
    raise ObjectStoreAway("no answer within 30 s")


async def test_an_operator_forces_a_takeover_of_a_history_without_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner ran without its replica meanwhile, and is lost before its next snapshot."""
    async with Node(config(tmp_path, "a")) as owner:
        await put(owner, b"one")
    await lose_in_a_new_history(tmp_path, monkeypatch)
    objects, ended, ready = FolderObjects(tmp_path / "replica"), anyio.Event(), anyio.Event()

    async def stand() -> None:
        await other.run()
        ended.set()

    other = standing_by(tmp_path, "b", ready=ready.set)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stand)
        with anyio.move_on_after(2.5):  # more than twice the time of a takeover
            await ended.wait()
        assert not ended.is_set() and "millpond replica takeover" in other.state
        found = unfinished_history(objects)
        assert found is not None and found.records > 0
        allow_takeover(objects, found)
        with anyio.fail_after(LIMIT_S):
            await ended.wait()
    async with Node(config(tmp_path, "b")) as node:
        assert node.replica is not None and node.replica.info.breaks == 1
        await put(node, b"two")  # so it has a snapshot
        assert await received(node, 2) == [b"one", b"two"]
    assert unfinished_history(objects) is None
    verify(objects, lambda size: None)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with Node(config(tmp_path, "a")):
            await anyio.sleep(LIMIT_S)
    assert caught.group_contains(Superseded, match="--standby")


async def lose_in_a_new_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner `a` is lost after it began a history, of which it could upload no snapshot."""
    alone = replace(config(tmp_path, "a"), replica="", durability=Durability.DISK)
    async with Node(alone) as node:
        await put(node, b"unshipped")
    with offline_store(tmp_path / "a") as store:
        assert store.vacate_journal()
    with monkeypatch.context() as patch:
        patch.setattr(service, "open_object_store", lambda url: NoSnapshots(tmp_path / "replica"))
        away = replace(config(tmp_path, "a"), durability=Durability.DISK)
        async with Node(away) as node:
            assert node.replica is not None
            await put(node, b"lost")
            shipper = node.replica.shipper
            await until(lambda: shipper.objects_made > 0 and not shipper.lag_bytes, LIMIT_S)
            assert shipper.breaks == 1


class NoSnapshots(FolderObjects):
    """An object store that takes no manifests."""

    def create(self, name: str, data: bytes) -> None:
        if name.startswith(SNAPSHOT):
            raise ObjectStoreAway("no answer within 30 s")
        super().create(name, data)


async def test_leave_for_a_takeover_counts_no_more_once_the_owner_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standby follows its snapshot, which has what it acknowledged since."""
    async with Node(config(tmp_path, "a")) as owner:
        await put(owner, b"one")
    await lose_in_a_new_history(tmp_path, monkeypatch)
    objects = FolderObjects(tmp_path / "replica")
    found = unfinished_history(objects)
    assert found is not None
    allow_takeover(objects, found)
    async with Node(config(tmp_path, "a")) as owner:
        await put(owner, b"two")
    await standing_by(tmp_path, "b").run()
    async with Node(config(tmp_path, "b")) as node:
        assert await received(node, 4) == [b"one", b"unshipped", b"lost", b"two"]


async def test_a_snapshot_beside_a_forced_takeover_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner was paused, and uploads it while the standby claims: its callers may have been
    told that it is there."""
    async with Node(config(tmp_path, "a")) as owner:
        await put(owner, b"one")
    await lose_in_a_new_history(tmp_path, monkeypatch)
    objects = Paused(tmp_path / "replica")
    snapshots: list[tuple[str, bytes]] = []

    class Late(FolderObjects):
        def create(self, name: str, data: bytes) -> None:
            if name.startswith(SNAPSHOT):
                snapshots.append((name, data))
                raise ObjectStoreAway("no answer within 30 s")
            super().create(name, data)

    # The manifest that the paused owner is about to make: that of its own folder, which is whole.
    with monkeypatch.context() as patch:
        patch.setattr(service, "open_object_store", lambda url: Late(tmp_path / "replica"))
        patch.setattr(service, "SNAPSHOT_RETRY_S", 0.01)
        async with Node(replace(config(tmp_path, "a"), durability=Durability.DISK)):
            await until(lambda: bool(snapshots), LIMIT_S)
    found = unfinished_history(objects)
    assert found is not None
    allow_takeover(objects, found)
    objects.next_number = found.number + 1
    objects.beside = lambda: FolderObjects(tmp_path / "replica").create(*snapshots[0])
    with anyio.fail_after(LIMIT_S):
        await standing_by(tmp_path, "b", objects).run()
    assert objects.beside is None
    async with Node(config(tmp_path, "b")) as node:
        assert await received(node, 3) == [b"one", b"unshipped", b"lost"]


class Paused(FolderObjects):
    """An object store where something else happens beside a claim."""

    next_number = 0
    beside: Any = None

    def create(self, name: str, data: bytes) -> None:
        super().create(name, data)
        if self.beside is not None and name == journal_name(self.next_number):
            beside, self.beside = self.beside, None
            beside()


async def test_a_standby_whose_own_disk_is_full_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no copy, so it does not take over, and follows when there is space again."""
    full, ready = [True], anyio.Event()
    get_file = FolderObjects.get_file

    def got(self: FolderObjects, name: str, path: Path, wrote: Any) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        get_file(self, name, path, wrote)

    monkeypatch.setattr(FolderObjects, "get_file", got)
    async with Node(config(tmp_path, "a")) as owner, anyio.create_task_group() as tasks:
        await put(owner, b"one")
        other = standing_by(tmp_path, "b", ready=ready.set)
        tasks.start_soon(other.run)
        await until(lambda: "No space left" in other.state, LIMIT_S)
        full[0] = False
        with anyio.fail_after(LIMIT_S):
            await ready.wait()
        tasks.cancel_scope.cancel()


async def test_a_standby_whose_folder_of_objects_fails_waits(tmp_path: Path) -> None:
    """A disk of another machine that fails: what cannot be read is not gone."""
    mounted, ready, ended = tmp_path / "mounted", anyio.Event(), anyio.Event()
    (tmp_path / "replica").mkdir()
    mounted.symlink_to(tmp_path / "replica")
    objects = FolderObjects(mounted)

    async def stand() -> None:
        await other.run()
        ended.set()

    other = standing_by(tmp_path, "b", objects, ready=ready.set)
    async with Node(config(tmp_path, "a")) as owner:
        await put(owner, b"one")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stand)
            await ready.wait()
            mounted.unlink()
            mounted.symlink_to(mounted)
            for work in (
                lambda: objects.list(JOURNAL),
                lambda: objects.get(FORMAT),
                lambda: objects.get_file(FORMAT, tmp_path / "file", lambda data: None),
                lambda: objects.create(journal_name(10**6), b""),
            ):
                with pytest.raises(ObjectStoreAway):
                    work()
            with anyio.move_on_after(2.5):  # more than twice the time of a takeover
                await ended.wait()
            assert not ended.is_set() and "cannot follow" in other.state
            tasks.cancel_scope.cancel()


class LateObjects(FolderObjects):
    """An object store in which journal objects from a number on show up only once a standby is
    about to claim: the owner, which is slow, makes them in that moment."""

    hidden_from = ""

    def get(self, name: str) -> bytes:
        if self.hidden_from and name == FORMAT:
            self.hidden_from = ""
        if self.hidden_from and self.hidden_from <= name < "k":
            raise NoObject(name)
        return super().get(name)

    def list(self, prefix: str, after: str = "") -> list[Listed]:
        found = super().list(prefix, after)
        is_hiding = self.hidden_from and prefix == JOURNAL
        return [each for each in found if not is_hiding or each.name < self.hidden_from]


async def test_what_the_owner_ships_while_a_standby_claims_is_in_its_copy(tmp_path: Path) -> None:
    objects, ready, ended = LateObjects(tmp_path / "replica"), anyio.Event(), anyio.Event()

    async def stand() -> None:
        await standing_by(tmp_path, "b", objects, ready=ready.set).run()
        ended.set()

    async with anyio.create_task_group() as tasks:
        async with Node(config(tmp_path, "a")) as owner:
            await put(owner, b"one")
            tasks.start_soon(stand)
            await ready.wait()
            assert owner.replica is not None
            objects.hidden_from = journal_name(owner.replica.shipper.position.number)
            await put(owner, b"two")
        with anyio.fail_after(LIMIT_S):
            await ended.wait()
    assert not objects.hidden_from
    async with Node(config(tmp_path, "b")) as node:
        assert await received(node, 2) == [b"one", b"two"]
