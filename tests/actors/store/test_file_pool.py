"""The partition files of a folder: named by a hash, few of them open, each on its own."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import Chunk, PartitionKind, Position, StoredMessage
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.interface import Seek
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.partitions.file_pool import FilePool, file_name
from millpond.actors.store.partitions.partition import Damaged
from millpond.actors.store.queue_memtable import QueueMemtable


def memtable_of(*rows: StoredMessage) -> QueueMemtable:
    memtable = QueueMemtable(is_oldest=False)
    memtable.fold(rows)
    return memtable


def row(message_id: int) -> StoredMessage:
    return StoredMessage(message_id, message_id, 60, 1000.0, b"data")


class CountingDisk(OsDisk):
    """Knows how many connections are open."""

    def __init__(self) -> None:
        self.made: list[sqlite3.Connection] = []

    def connect(self, path: Path) -> sqlite3.Connection:
        connection = super().connect(path)
        self.made.append(connection)
        return connection

    @property
    def open_count(self) -> int:
        return sum(map(self.is_open, self.made))

    @staticmethod
    def is_open(connection: sqlite3.Connection) -> bool:
        try:
            connection.execute("PRAGMA user_version")
        except sqlite3.ProgrammingError:
            return False
        return True


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


@pytest.fixture
def pool(tmp_path: Path, disk: CountingDisk) -> Iterator[FilePool]:
    pool = FilePool(tmp_path / "partitions", disk, handles_max=8)
    yield pool
    pool.close()
    assert disk.open_count == 0


@pytest.mark.parametrize(
    "name", [b"a", b"", b"../../etc/passwd", b"\x00", b"/", "\u4e2d".encode(), b"\xff" * 1024]
)
def test_any_name_is_only_a_hash(tmp_path: Path, pool: FilePool, name: bytes) -> None:
    assert pool.existing(name, PartitionKind.QUEUE) is None and not pool.has(name)
    pool.open(name, PartitionKind.QUEUE).apply(memtable_of(row(1)), 1)
    assert pool.has(name)
    (path,) = pool.paths()
    digits = path.stem
    assert path == tmp_path / "partitions" / digits[:2] / f"{digits}.sqlite3"
    assert path == tmp_path / "partitions" / file_name(name)
    assert len(digits) == 40 and set(digits) <= set("0123456789abcdef")
    pool.forget(name)
    found = pool.look(path)
    assert found.is_named and found.metadata.name == name
    found.close()


def test_the_hash_of_a_name_stays_what_it_is() -> None:
    assert file_name(b"chat/1") == "98/98b139e92abe5bf3b46ed4c51bbac435268ce202.sqlite3"


def test_few_of_many_are_open_and_all_keep_what_they_have(
    pool: FilePool, disk: CountingDisk
) -> None:
    names = [b"channel/%d" % number for number in range(300)]
    for number, name in enumerate(names):
        pool.open(name, PartitionKind.QUEUE).apply(memtable_of(row(number + 1)), 1)
        assert disk.open_count <= 8
        disk.made = [each for each in disk.made if disk.is_open(each)]
    assert len(list(pool.paths())) == 300
    for number, name in enumerate(names):
        partition = pool.existing(name, PartitionKind.QUEUE)
        assert partition is not None and partition.load().rows == [row(number + 1)]


def test_the_least_recently_used_is_closed(pool: FilePool, disk: CountingDisk) -> None:
    for number in range(8):
        pool.open(b"%d" % number, PartitionKind.QUEUE)
    first = pool.open(b"0", PartitionKind.QUEUE)
    pool.open(b"another", PartitionKind.QUEUE)
    assert pool.open(b"0", PartitionKind.QUEUE) is first
    assert [disk.is_open(each) for each in disk.made] == [True, False] + [True] * 7


def test_queues_and_logs_stand_side_by_side_and_are_not_mixed_up(pool: FilePool) -> None:
    log = LogMemtable(is_oldest=True)
    chunk = Chunk(0, 1, 5, 5, Position(1, 0), Position(1, 0), b"record")
    log.fold([chunk])
    pool.open(b"stream", PartitionKind.LOG).apply(log, 1)
    pool.open(b"channel", PartitionKind.QUEUE).apply(memtable_of(row(1)), 1)
    assert pool.open(b"stream", PartitionKind.LOG).read(Seek(SeekBy.SEQUENCE)) == [chunk]
    with pytest.raises(Damaged):
        pool.open(b"stream", PartitionKind.QUEUE)
    pool.forget(b"stream")
    with pytest.raises(Damaged):
        pool.existing(b"stream", PartitionKind.QUEUE)


def test_what_is_removed_leaves_nothing_and_may_come_again(tmp_path: Path, pool: FilePool) -> None:
    pool.open(b"a", PartitionKind.QUEUE).apply(memtable_of(row(1)), 1)
    pool.remove(b"a")
    pool.remove(b"a")
    pool.remove(b"never")
    assert not pool.has(b"a") and list(pool.paths()) == []
    assert not [each for each in (tmp_path / "partitions").rglob("*") if each.is_file()]
    assert pool.open(b"a", PartitionKind.QUEUE).load().rows == []


def test_a_new_file_does_not_take_the_log_of_its_predecessor(
    tmp_path: Path, pool: FilePool
) -> None:
    path = tmp_path / "partitions" / file_name(b"a")
    pool.open(b"a", PartitionKind.QUEUE).apply(memtable_of(row(1)), 1)
    wal = path.with_name(path.name + "-wal")
    shutil.copy(wal, tmp_path / "wal")
    pool.forget(b"a")
    path.unlink()
    shutil.copy(tmp_path / "wal", wal)
    assert not pool.has(b"a") and list(pool.paths()) == []
    assert pool.open(b"a", PartitionKind.QUEUE).metadata.applied == 0
    assert pool.open(b"a", PartitionKind.QUEUE).load().rows == []


def test_a_damaged_file_harms_no_other(pool: FilePool, disk: CountingDisk) -> None:
    for name in (b"a", b"b"):
        pool.open(name, PartitionKind.QUEUE).apply(memtable_of(row(1)), 1)
        pool.forget(name)
    pool.path(b"a").write_bytes(b"no database " * 1000)
    for _ in range(3):
        with pytest.raises(Damaged):
            pool.open(b"a", PartitionKind.QUEUE)
    assert disk.open_count == 0
    assert pool.open(b"b", PartitionKind.QUEUE).load().rows == [row(1)]
    assert pool.has(b"a")


def test_a_file_in_the_place_of_another_is_damaged(pool: FilePool) -> None:
    for name in (b"a", b"b"):
        pool.open(name, PartitionKind.QUEUE).apply(memtable_of(row(1)), 1)
        pool.forget(name)
    pool.path(b"a").replace(pool.path(b"b"))
    with pytest.raises(Damaged, match="b'a' in the place of b'b'"):
        pool.open(b"b", PartitionKind.QUEUE)
    with pytest.raises(Damaged, match="b'a' in the place of another"):
        pool.look(pool.path(b"b"))


def test_other_files_in_the_folder_are_not_partitions(tmp_path: Path, pool: FilePool) -> None:
    pool.open(b"a", PartitionKind.QUEUE).apply(memtable_of(row(1)), 1)
    folder = pool.path(b"a").parent
    (folder / "notes.txt").write_text("mine")
    (folder / (pool.path(b"b").name + ".new")).write_bytes(b"")
    (tmp_path / "partitions" / "lost+found").mkdir()
    assert list(pool.paths()) == [pool.path(b"a")]


def test_goes_on_with_fewer_handles_when_the_process_has_no_more(tmp_path: Path) -> None:
    pool = FilePool(tmp_path / "partitions", OsDisk(), handles_max=256)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
        for number in range(60):
            pool.open(b"%d" % number, PartitionKind.QUEUE).apply(memtable_of(row(1)), 1)
        for number in range(60):
            assert pool.open(b"%d" % number, PartitionKind.QUEUE).load().rows == [row(1)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        pool.close()


def test_no_handles_at_all_is_an_error_that_passes(tmp_path: Path) -> None:
    pool = FilePool(tmp_path / "partitions", OsDisk())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    pool.open(b"b", PartitionKind.QUEUE).apply(memtable_of(row(1)), 1)
    pool.forget(b"b")
    # The limit is on the numbers of descriptors, and there may be gaps among those in use.
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        with pytest.raises((OSError, sqlite3.OperationalError)):
            pool.open(b"b", PartitionKind.QUEUE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert pool.open(b"b", PartitionKind.QUEUE).load().rows == [row(1)]
    pool.close()
