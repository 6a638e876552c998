"""Cold streams: the older records of a stream are in the replica alone, and are read there."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import anyio
import pytest

from millpond.actors.errors import StreamExists
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.partitions.file_pool import file_name
from millpond.actors.streams.names import stream_cell
from millpond.node.backup.manifest import finish, read_manifest
from millpond.node.backup.restore import Restoration, verify_files
from millpond.node.backup.service import BackupRequest
from millpond.node.cli.commands.backup import damages_in, left_out
from millpond.node.cli.doctor.data_folder import folder_findings
from millpond.node.client.requests.errors import LimitExceeded, StoreFailed
from millpond.node.client.rustlog.client import connect_rustlog
from millpond.node.client.s3p.client import FIRST, S3p, connect_s3p
from millpond.node.client.s3p.records import RecordId
from millpond.node.config import Config, ConfigError
from millpond.node.config_rules import StreamRule
from millpond.node.node import Node
from millpond.node.replica import cold, service, shipping, standby
from millpond.node.replica.errors import BadReplica, ObjectStoreAway, OtherReplica
from millpond.node.replica.interface import SnapshotRequest, SnapshotState
from millpond.node.replica.object_store import FolderObjects
from millpond.node.replica.objects import COLD
from millpond.node.replica.restoration import ReplicaRestoration, verify
from millpond.node.replica.snapshots import prune
from millpond.node.replica.standby import Standby
from tests.node.http.clients import get
from tests.node.outbox.peer_nodes import until

pytestmark = pytest.mark.anyio

LIMIT_S = 60.0
CLOSED = {"p2p": "off", **dict.fromkeys(("ws", "rustlog", "http"), "off")}
BODY_BYTES = 10_000
APPENDS, RECORDS = 40, 10
LOCAL_BYTES = 2**20
REFUSED = "storage failed"
S2 = ("s2-basin: millpond",)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class ColdFolder(FolderObjects):
    """A folder that counts the requests for cold objects, and answers none while it is away."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fetched: list[str] = []
        self.is_away = False
        self.answers = Event()
        self.answers.set()

    def get(self, name: str) -> bytes:
        if name.startswith(COLD):
            self.fetched.append(name)
            if self.is_away:
                raise ObjectStoreAway("no answer within 30 s")
            assert self.answers.wait(LIMIT_S)
        return super().get(name)


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ColdFolder:
    found = ColdFolder(tmp_path / "replica")
    monkeypatch.setattr(service, "open_object_store", lambda url: found)
    monkeypatch.setattr(service, "SNAPSHOT_LOOK_S", 0.01)
    monkeypatch.setattr(cold, "LOOK_S", 0.01)
    monkeypatch.setattr(cold, "AWAY_S", 0.0)
    monkeypatch.setattr(cold, "RESTS", 0)
    return found


def config_of(tmp_path: Path, **settings: Any) -> Config:
    """A node whose journal is small, so that records get to the files of streams soon."""
    return Config(
        **{
            "data": str(tmp_path / "data"),
            "replica": f"file://{tmp_path}/replica",
            "s3p": "127.0.0.1:0",
            "segment_bytes": 2**18,
            "journal_bytes_max": 2**19,
            "stream_local_bytes_max": LOCAL_BYTES,
            **CLOSED,
            **settings,
        }
    )


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[tuple[Node, S3p]]:
    with anyio.fail_after(LIMIT_S):
        async with Node(config) as node, connect_s3p(node.listeners["s3p"]) as client:
            yield node, client


def body(number: int) -> bytes:
    return b"%08d" % number + bytes(BODY_BYTES - 8)


async def fill(client: S3p, stream: str = "logs") -> None:
    """Create a stream, unless it is there, and append four megabytes."""
    with suppress(StreamExists):
        await client.create(stream)
    for number in range(APPENDS):
        first = number * RECORDS
        await client.append(stream, [body(first + each) for each in range(RECORDS)])


async def numbers_of(client: S3p, stream: str = "logs", count: int = 50) -> list[int]:
    """The numbers of all records, in order."""
    found: list[int] = []
    start = FIRST
    while records := await client.read(stream, start, count=count):
        found += (int(each.data[:8]) for each in records)
        last = records[-1].id
        start = RecordId(last.ms, last.seq + 1)
    return found


ALL = list(range(APPENDS * RECORDS))


def local_bytes(tmp_path: Path) -> int:
    """The bytes of the files of streams."""
    files = (tmp_path / "data" / "partitions").rglob("*")
    return sum(each.stat().st_size for each in files if each.is_file())


def cold_of(node: Node) -> cold.ColdStreams:
    assert node.replica is not None
    return node.replica.cold


async def cooled(node: Node, moved_bytes: int = 2 * 2**20) -> None:
    """Wait until older records are in the replica alone."""
    await until(lambda: cold_of(node).stats.moved_bytes > moved_bytes, LIMIT_S)


async def test_older_records_are_read_where_they_are(tmp_path: Path, objects: ColdFolder) -> None:
    async with serving(config_of(tmp_path)) as (node, client):
        await fill(client)
        await cooled(node)
        assert await numbers_of(client) == ALL
        assert objects.fetched
    async with serving(config_of(tmp_path)) as (node, client):
        objects.fetched.clear()
        assert await numbers_of(client) == ALL
        assert objects.fetched
        assert local_bytes(tmp_path) < 2.5 * 2**20


async def test_a_node_without_a_replica_has_no_cold_streams(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"stream_local_bytes_max, or local= .*: there is no replica"
    ):
        Node(config_of(tmp_path, replica=""))


async def test_a_rule_says_which_streams_are_cold(tmp_path: Path, objects: ColdFolder) -> None:
    rules = (StreamRule.parse("logs=local=1MiB"),)
    config = config_of(tmp_path, streams=rules, stream_local_bytes_max=0)
    async with serving(config) as (node, client):
        await fill(client, "others")
        await fill(client)
        await cooled(node)
        assert await numbers_of(client, "others") == ALL
        assert not objects.fetched
        assert await numbers_of(client) == ALL
        assert objects.fetched


async def test_reads_of_cold_records_are_refused_while_the_object_store_is_away(
    tmp_path: Path, objects: ColdFolder
) -> None:
    """Never empty, never shorter; newer records and appends go on."""
    async with serving(config_of(tmp_path)) as (node, client):
        await fill(client)
        await cooled(node)
        objects.is_away = True
        with pytest.raises(LimitExceeded, match=REFUSED):
            await client.read("logs", count=10)
        last = await client.append("logs", [body(len(ALL))])
        assert [each.data for each in await client.read("logs", last)] == [body(len(ALL))]
        assert "no answer" in cold_of(node).stats.error
        objects.is_away = False
        assert await numbers_of(client) == [*ALL, len(ALL)]
        assert not cold_of(node).stats.error


async def test_an_object_store_that_hangs_ends_reads_in_time(
    tmp_path: Path, objects: ColdFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads are not made without end, and another read is refused at once then."""
    monkeypatch.setattr(cold, "FETCH_S", 0.05)
    monkeypatch.setattr(cold, "HANGING_MAX", 2)
    async with serving(config_of(tmp_path)) as (node, client):
        await fill(client)
        await cooled(node)
        objects.answers.clear()
        try:
            for _ in range(4):
                with pytest.raises(LimitExceeded, match=REFUSED):
                    await client.read("logs", count=10)
            assert len(objects.fetched) == 2
        finally:
            objects.answers.set()
        await until(lambda: not cold_of(node).hanging, LIMIT_S)
        assert await numbers_of(client) == ALL


async def test_looks_at_streams_take_a_small_part_of_the_time(
    tmp_path: Path, objects: ColdFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look reads a line of each chunk of a stream, so large ones rest for long."""
    looks = 0
    at_once = DurableStore.oldest_local

    def slowly(self: DurableStore, *args: Any) -> None:
        nonlocal looks
        looks += 1
        asyncio.get_running_loop().call_later(0.1, partial(at_once, self, *args))

    monkeypatch.setattr(cold, "RESTS", 50)
    monkeypatch.setattr(DurableStore, "oldest_local", slowly)
    async with serving(config_of(tmp_path)) as (_, client):
        await fill(client)
        await until(lambda: looks > 0, LIMIT_S)
        await anyio.sleep(1)  # a hundred times LOOK_S
        assert looks <= 4, "at most one that moved, and that behind it"


async def test_records_beyond_a_size_go_while_the_object_store_is_away(
    tmp_path: Path, objects: ColdFolder
) -> None:
    """They are not fetched for that, ever; a damaged one would stop it."""
    rules = (StreamRule.parse("logs=bytes=5MiB"),)
    async with serving(config_of(tmp_path, streams=rules)) as (node, client):
        await fill(client)
        await cooled(node)
        objects.is_away = True
        objects.fetched.clear()
        await fill(client)
        store = node._store
        assert isinstance(store, DurableStore)
        await until(lambda: store.usage.log_bytes < 5.5 * 2**20, LIMIT_S)
        assert not objects.fetched
        objects.is_away = False
        found = await numbers_of(client)
        assert found == [*ALL, *ALL][-len(found) :] and len(found) > len(ALL)


async def refused_first(node: Node, stream: str) -> None:
    with pytest.raises(LimitExceeded, match=REFUSED):
        await first_of(node, stream)


async def test_fetches_that_never_had_a_thread_are_not_counted_as_hanging(
    tmp_path: Path, objects: ColdFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many reads wait for a slow object store; later reads get their objects as before."""
    monkeypatch.setattr(cold, "FETCH_S", 0.5)
    monkeypatch.setattr(cold, "THREADS_MAX", 1)
    monkeypatch.setattr(cold, "HANGING_MAX", 2)
    async with serving(config_of(tmp_path)) as (node, client):
        for stream in (streams := [f"logs{each}" for each in range(5)]):
            await fill(client, stream)
        await cooled(node, 10 * 2**20)
        objects.answers.clear()
        try:
            async with anyio.create_task_group() as tasks:
                for stream in streams:
                    tasks.start_soon(refused_first, node, stream)
        finally:
            objects.answers.set()
        await until(lambda: not cold_of(node).hanging, LIMIT_S)
        monkeypatch.setattr(cold, "FETCH_S", LIMIT_S)
        assert await numbers_of(client, streams[-1]) == ALL


@pytest.mark.parametrize("is_there", [True, False], ids=["damaged", "missing"])
async def test_a_damaged_object_is_named_and_nothing_else_is_affected(
    tmp_path: Path, objects: ColdFolder, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    monkeypatch.setattr(cold, "DAMAGED_S", 0.0)
    async with serving(config_of(tmp_path)) as (node, client):
        await fill(client)
        await cooled(node)
        first, second = (each.name for each in objects.list(COLD)[:2])
        path = tmp_path / "replica" / second
        whole = path.read_bytes()
        path.unlink()
        if is_there:
            path.write_bytes(whole[:-1] + b"x")
        found: list[int] = []
        start = FIRST
        with pytest.raises(LimitExceeded, match=REFUSED):
            while records := await client.read("logs", start, count=10):
                found += (int(each.data[:8]) for each in records)
                start = RecordId(records[-1].id.ms, records[-1].id.seq + 1)
        assert found == ALL[: len(found)] and len(found) >= RECORDS
        assert list(cold_of(node).damages) == [second] != [first]
        await client.append("logs", [body(len(ALL))])
        info = node.replica.info.cold if node.replica is not None else None
        assert info is not None and info.damaged == (second,) and info.errors
        path.write_bytes(whole)
        assert await numbers_of(client) == [*ALL, len(ALL)]
        assert not cold_of(node).damages


async def test_readers_of_one_object_share_its_fetch(tmp_path: Path, objects: ColdFolder) -> None:
    async with serving(config_of(tmp_path)) as (node, client):
        await fill(client)
        await cooled(node)
        name = objects.list(COLD)[0].name
        objects.answers.clear()
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(first_of, node)
            await until(lambda: cold_of(node).stats.misses == 5, LIMIT_S)
            objects.answers.set()
        assert objects.fetched.count(name) == 1


async def first_of(node: Node, stream: str = "logs") -> None:
    """Read the first record over a connection of its own."""
    async with connect_s3p(node.listeners["s3p"]) as client:
        (record,) = await client.read(stream, count=1)
        assert record.data == body(0)


async def test_a_cache_with_space_for_one_object_fetches_none_ahead(
    tmp_path: Path, objects: ColdFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one would take the place of the one that is read."""
    monkeypatch.setattr(cold, "OBJECT_BYTES", 2**18)
    async with serving(config_of(tmp_path, stream_cold_cache_bytes_max=300_000)) as (node, client):
        await fill(client)
        await cooled(node)
        assert await numbers_of(client, count=5) == ALL
        stats = cold_of(node).stats
        assert stats.cache_bytes <= 300_000
        found = [each.name for each in objects.list(COLD)]
        fetched = len(objects.fetched)
        assert fetched > 9
        assert objects.fetched == found[:fetched], "each once, in order"
        assert stats.misses == fetched and stats.hits > stats.misses


async def test_the_next_object_is_fetched_before_a_reader_in_order_wants_it(
    tmp_path: Path, objects: ColdFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold, "OBJECT_BYTES", 2**18)
    async with serving(config_of(tmp_path, stream_cold_cache_bytes_max=700_000)) as (node, client):
        await fill(client)
        await cooled(node)
        first, second, third = (each.name for each in objects.list(COLD)[:3])
        records = await client.read("logs", count=5)
        assert objects.fetched == [first]
        last = records[-1].id
        await client.read("logs", RecordId(last.ms, last.seq + 1), count=10)
        await until(lambda: objects.fetched == [first, second], LIMIT_S)
        await until(lambda: cold_of(node).stats.fetches == 2, LIMIT_S)
        assert cold_of(node).stats.misses == 1
        assert await numbers_of(client, count=5) == ALL
        assert cold_of(node).stats.cache_bytes <= 700_000
        assert objects.fetched.count(third) == 1


async def test_a_restoration_reads_cold_records_where_they_are(
    tmp_path: Path, objects: ColdFolder
) -> None:
    async with serving(config_of(tmp_path)) as (node, client):
        await fill(client)
        await cooled(node)
        await snapshot(node)
    objects.fetched.clear()
    ReplicaRestoration(objects, tmp_path / "restored").run(lambda size: None, lambda: None)
    assert not objects.fetched
    assert verify(objects, lambda size: None).cold_objects == len(objects.list(COLD)) > 0
    assert not damages_in(tmp_path / "restored")
    async with serving(config_of(tmp_path, data=str(tmp_path / "restored"))) as (node, client):
        assert await numbers_of(client) == ALL
        assert objects.fetched


async def backed_up(node: Node, to: Path, *, without_cold: bool = False) -> str:
    """Have the node make a backup; gives its error."""
    start = BackupRequest("start", str(to), "1", without_cold)
    node.backups.answer(start)
    status = BackupRequest(nonce="1")
    await until(lambda: node.backups.answer(status).state != "copying", LIMIT_S)
    if error := node.backups.answer(status).error:
        return error
    manifest = read_manifest(to, unfinished=True)
    verify_files(to, manifest, lambda size: None)
    assert not damages_in(to / "data")
    finish(to, manifest)
    return ""


async def test_a_backup_has_the_cold_records(
    tmp_path: Path, objects: ColdFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(config_of(tmp_path)) as (node, client):
        await fill(client)
        await cooled(node)
        await client.trim("logs", (await client.read("logs", FIRST, count=25))[-1].id)
        kept = await numbers_of(client)
        assert not await backed_up(node, tmp_path / "backup")
        assert await numbers_of(client) == kept
    shutil.rmtree(tmp_path / "replica" / "cold")
    new = tmp_path / "new"
    Restoration(tmp_path / "backup", new).run(lambda size: None, lambda: None)
    async with serving(
        config_of(tmp_path, data=str(new), replica="", stream_local_bytes_max=0)
    ) as (_, client):
        assert await numbers_of(client) == kept
        await client.append("logs", [body(1)])
    # With a replica they are moved again.
    another = ColdFolder(tmp_path / "another")
    monkeypatch.setattr(service, "open_object_store", lambda url: another)
    async with serving(config_of(tmp_path, data=str(new))) as (node, client):
        await cooled(node)
        assert await numbers_of(client) == [*kept, 1]


async def test_a_backup_that_cannot_have_the_cold_records_fails_unless_they_are_left_out(
    tmp_path: Path, objects: ColdFolder
) -> None:
    async with serving(config_of(tmp_path)) as (node, client):
        await fill(client)
        await cooled(node)
        newest = await client.append("logs", [body(7)])
        objects.is_away = True
        error = await backed_up(node, tmp_path / "backup")
        assert "no answer within 30 s" in error and "--without-cold" in error
        assert not (tmp_path / "backup").exists()
        objects.is_away = False
        name = objects.list(COLD)[1].name
        path = tmp_path / "replica" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        assert name in await backed_up(node, tmp_path / "backup")
        path.write_bytes(whole)
        objects.is_away = True
        assert not await backed_up(node, tmp_path / "backup", without_cold=True)
        manifest = read_manifest(tmp_path / "backup")
        assert isinstance(manifest.cold_records, int) and isinstance(manifest.cold_bytes, int)
        assert 200 < manifest.cold_records < APPENDS * RECORDS
        assert manifest.cold_bytes > 2 * 2**20
        assert f"{manifest.cold_records} cold records" in left_out(manifest)
    new = tmp_path / "new"
    Restoration(tmp_path / "backup", new).run(lambda size: None, lambda: None)
    settings: dict[str, Any] = {"replica": "", "stream_local_bytes_max": 0}
    with pytest.raises(ConfigError, match=f"{manifest.cold_records} records of 1 stream"):
        async with Node(config_of(tmp_path, data=str(new), **settings)):
            pass
    settings["without_cold"] = True
    async with serving(config_of(tmp_path, data=str(new), **settings)) as (_, client):
        assert (await client.read("logs", newest, count=1))[0].data == body(7)
        with pytest.raises(LimitExceeded, match=REFUSED):
            await client.read("logs", FIRST, count=1)


async def test_a_node_with_cold_streams_does_not_start_without_their_replica(
    tmp_path: Path, objects: ColdFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is made at another address, nor is the node served without one; a copy will do."""
    async with serving(config_of(tmp_path)) as (node, client):
        await fill(client)
        await cooled(node)
    (told,) = [each for each in folder_findings(tmp_path / "data") if each.check == "cold records"]
    assert told.level == "ok" and "records of 1 stream (" in told.text
    none = config_of(tmp_path, replica="", stream_local_bytes_max=0)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"records of 1 stream \(.* MiB\) are in a replica"):
            async with Node(none):
                pass
    another = ColdFolder(tmp_path / "another")
    monkeypatch.setattr(service, "open_object_store", lambda url: another)
    with pytest.RaisesGroup(
        pytest.RaisesExc(OtherReplica, match="records of 1 stream .* serve it with that address"),
        flatten_subgroups=True,
    ):
        async with Node(config_of(tmp_path)):
            await anyio.sleep(LIMIT_S)
    assert not another.list("")
    shutil.copytree(tmp_path / "replica", tmp_path / "another", dirs_exist_ok=True)
    async with serving(config_of(tmp_path)) as (node, client):
        assert await numbers_of(client) == ALL
        assert another.fetched


async def test_a_node_whose_cold_records_were_trimmed_begins_another_replica(
    tmp_path: Path, objects: ColdFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(config_of(tmp_path)) as (node, client):
        await fill(client)
        await cooled(node)
        newest = await client.append("logs", [body(APPENDS * RECORDS)])
    alone: dict[str, Any] = {"replica": "", "stream_local_bytes_max": 0}
    async with serving(config_of(tmp_path, without_cold=True, **alone)) as (_, client):
        await client.trim("logs", newest)
        await fill(client, "others")  # so that the trim gets to the file
    another = ColdFolder(tmp_path / "another")
    monkeypatch.setattr(service, "open_object_store", lambda url: another)
    async with serving(config_of(tmp_path)) as (node, client):
        assert await numbers_of(client) == [APPENDS * RECORDS]
        await cooled(node)
        assert await numbers_of(client, "others") == ALL


async def test_a_verification_names_a_damaged_object(tmp_path: Path, objects: ColdFolder) -> None:
    async with serving(config_of(tmp_path)) as (node, client):
        await fill(client)
        await cooled(node)
        await snapshot(node)
    name = objects.list(COLD)[1].name
    path = tmp_path / "replica" / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadReplica, match=name):
        verify(objects, lambda size: None)
    path.unlink()
    with pytest.raises(BadReplica, match=f"{name} is missing"):
        verify(objects, lambda size: None)


async def test_objects_go_once_no_kept_snapshot_needs_them(
    tmp_path: Path, objects: ColdFolder
) -> None:
    """Those of the node that came after the last snapshot stay, whatever is kept."""
    async with serving(config_of(tmp_path)) as (node, client):
        await fill(client)
        await cooled(node)
        before = [each.name for each in objects.list(COLD)]
        prune(objects, 0.0, 2.0**40)
        assert {each.name for each in objects.list(COLD)} >= set(before)
        await snapshot(node)
        prune(objects, 0.0, 2.0**40)
        assert {each.name for each in objects.list(COLD)} >= set(before)
        assert await numbers_of(client) == ALL
        await client.delete("logs")
        await fill(client, "others")  # the deletion gets to the file
        await until(lambda: not stream_files(node, b"logs"), LIMIT_S)
        await snapshot(node)
        assert {each.name for each in objects.list(COLD)} >= set(before), "of a kept snapshot"
        prune(objects, 0.0, 2.0**40)
        assert not {each.name for each in objects.list(COLD)} & set(before)
        assert await numbers_of(client, "others") == ALL
        await client.delete("others")
        await fill(client, "newest")
        await until(lambda: not stream_files(node, b"others"), LIMIT_S)
        await until(lambda: [*cold_of(node)._bytes] == [stream_cell(b"newest")], LIMIT_S)
        assert cold_of(node).info.bytes < 4 * 2**20


@pytest.mark.parametrize("harm", [0, 4096], ids=["head", "page"])
async def test_objects_of_a_file_that_cannot_be_read_stay(
    tmp_path: Path, objects: ColdFolder, harm: int
) -> None:
    """A repair may find in it what SQLite does not."""
    async with serving(config_of(tmp_path)) as (node, client):
        await fill(client)
        await cooled(node)
        before = {each.name for each in objects.list(COLD)}
    path = tmp_path / "data" / "partitions" / file_name(stream_cell(b"logs"))
    with path.open("r+b") as file:
        file.seek(harm)
        file.write(bytes(2048))
    async with serving(config_of(tmp_path)) as (node, client):
        await fill(client, "others")
        await snapshot(node)
        prune(objects, 0.0, 2.0**40)
        assert {each.name for each in objects.list(COLD)} >= before


async def test_an_object_of_a_crash_is_removed(
    tmp_path: Path, objects: ColdFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node ends between the upload and the change of the file: nothing is lost."""

    def never(self: DurableStore, name: bytes, moved: object, done: object) -> None:
        return None

    with monkeypatch.context() as patch:
        patch.setattr(DurableStore, "make_cold", never)
        async with serving(config_of(tmp_path)) as (_, client):
            await fill(client)
            await until(lambda: bool(objects.list(COLD)), LIMIT_S)
    (left,) = objects.list(COLD)
    async with serving(config_of(tmp_path)) as (node, client):
        await cooled(node)
        assert left.name not in objects.fetched
        assert await numbers_of(client) == ALL
        await snapshot(node)
        prune(objects, 0.0, 2.0**40)
        assert left.name not in {each.name for each in objects.list(COLD)}
        assert await numbers_of(client) == ALL


async def test_an_upload_under_way_outlives_a_removal(
    tmp_path: Path, objects: ColdFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot between the upload and the change of the file does not name the object."""
    held: list[Callable[[], None]] = []
    at_once = DurableStore.make_cold

    def later(self: DurableStore, *args: Any) -> None:
        held.append(partial(at_once, self, *args))

    async with serving(config_of(tmp_path)) as (node, client):
        monkeypatch.setattr(DurableStore, "make_cold", later)
        await fill(client)
        await until(lambda: bool(held), LIMIT_S)
        (name,) = (each.name for each in objects.list(COLD))
        await snapshot(node)
        prune(objects, 0.0, 2.0**40)
        assert [each.name for each in objects.list(COLD)] == [name]
        monkeypatch.setattr(DurableStore, "make_cold", at_once)
        held[0]()
        await cooled(node)
        assert await numbers_of(client) == ALL
        assert name in objects.fetched


async def test_a_trim_beside_a_move_leaves_what_is_newer(
    tmp_path: Path, objects: ColdFolder
) -> None:
    async with serving(config_of(tmp_path)) as (node, client):
        await fill(client)
        await cooled(node)
        records = await client.read("logs", count=50)
        await client.trim("logs", records[45].id)
        assert await numbers_of(client) == ALL[45:]
    async with serving(config_of(tmp_path)) as (node, client):
        assert await numbers_of(client) == ALL[45:]


async def snapshot(node: Node) -> None:
    """Have the node make a snapshot, and wait for it."""
    assert node.replica is not None
    answer = node.replica.answer
    asked = SnapshotRequest(answer(SnapshotRequest()).number)
    await until(lambda: answer(asked).state is SnapshotState.MADE, LIMIT_S)


def stream_files(node: Node, name: bytes) -> bool:
    """True: the stream has a file."""
    store = node._store
    assert isinstance(store, DurableStore)
    return Path(store.folder / "partitions" / file_name(stream_cell(name))).exists()


async def test_a_standby_serves_cold_records_after_its_takeover(
    tmp_path: Path, objects: ColdFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the snapshot that it began with; what came by the journal is in its own file."""
    monkeypatch.setattr(shipping, "BEAT_S", 0.05)
    monkeypatch.setattr(standby, "LOOK_S", 0.02)
    monkeypatch.setattr(standby, "LOOK_S_MIN", 0.02)
    ready = anyio.Event()
    other = Standby(
        objects,
        tmp_path / "other",
        1.0,
        now=time.monotonic,
        wall=time.time,
        entropy=Random(1).randbytes,
        ready=ready.set,
    )
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            async with serving(config_of(tmp_path)) as (node, client):
                await fill(client)
                await cooled(node)
                await snapshot(node)
                objects.fetched.clear()
                tasks.start_soon(other.run)
                await ready.wait()
                await client.append("logs", [body(len(ALL))])
    assert not objects.fetched
    async with serving(config_of(tmp_path, data=str(tmp_path / "other"))) as (node, client):
        assert await numbers_of(client) == [*ALL, len(ALL)]
        assert objects.fetched
        await snapshot(node)
        prune(objects, 0.0, 2.0**40)
        assert await numbers_of(client) == [*ALL, len(ALL)]


async def test_each_protocol_has_its_error_for_an_object_store_that_is_away(
    tmp_path: Path, objects: ColdFolder
) -> None:
    """One that its clients may repeat; afterwards each reads everything."""
    config = config_of(tmp_path, rustlog="127.0.0.1:0", http="127.0.0.1:0")
    async with serving(config) as (node, client):
        rustlog, http = node.listeners["rustlog"], node.listeners["http"]
        await fill(client)
        async with connect_rustlog(rustlog) as broker:
            await broker.create_topic("topic")
            for number in range(APPENDS):
                first = number * RECORDS
                await broker.produce("topic", [body(first + each) for each in range(RECORDS)])
            await cooled(node, 4 * 2**20)
            objects.is_away = True
            with pytest.raises(StoreFailed):
                await broker.fetch("topic", 0)
            s2, text = await get(http, "/v1/streams/logs/records?seq_num=0&count=5", S2)
            assert s2 in (500, 503), text
            assert b'"code":"storage"' in text
            durable, text = await get(http, "/v1/stream/logs?offset=-1")
            assert durable == 503 and b"storage" in text
            objects.is_away = False
            found = (await broker.fetch("topic", 0, max_bytes=50_000)).records
            assert [each.data for each in found] == [body(each) for each in range(len(found))]
        s2, text = await get(http, "/v1/streams/logs/records?seq_num=0&count=5", S2)
        assert s2 == 200 and text.count(b"seq_num") == 5
        durable, text = await get(http, "/v1/stream/logs?offset=-1")
        assert durable == 200 and text.startswith(body(0))
        ready, text = await get(http, "/ready")
        assert ready == 200 and b"cold" not in text
        _, text = await get(http, "/metrics")
        assert b"millpond_replica_cold_errors_total 0" not in text
        assert b"millpond_replica_cold_errors_total" in text
