"""The catalog: what all partitions say of themselves, kept in one place, and made anew."""

from __future__ import annotations

import sqlite3
from math import inf
from pathlib import Path

import pytest

from millpond.actors.messages import Mode
from millpond.actors.store.changes import (
    KeyRetained,
    ModeSet,
    PartitionKind,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.partitions.catalog import Catalog, rebuild
from millpond.actors.store.partitions.file_pool import FilePool
from millpond.actors.store.partitions.metadata import PartitionMetadata
from millpond.actors.store.partitions.partition import Damaged
from millpond.actors.store.partitions.sqlite import UnknownFormat
from millpond.actors.store.queue_memtable import QueueMemtable

QUEUE = PartitionMetadata(
    b"chat", PartitionKind.QUEUE, 9, 3, 2**40, 2, 1.7e9 + 0.1, 2**63 - 1, Mode.QUEUE
)
LOG = PartitionMetadata(b"\x00" * 1024, PartitionKind.LOG, 2**62, 5, 7, tail=2**64 - 1)
EMPTY = PartitionMetadata(b"", PartitionKind.QUEUE, 0)
PARTITIONS = {
    b"chat": PartitionMetadata(b"chat", PartitionKind.QUEUE, 7, 1, 4, 1, 600.5, 5, Mode.PAIR),
    b"log": PartitionMetadata(b"log", PartitionKind.LOG, 8),
}


def opened(path: Path) -> Catalog:
    return Catalog(path, OsDisk())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalogue.sqlite3"


def test_everything_comes_back_after_reopening(path: Path) -> None:
    catalog = opened(path)
    assert (catalog.partitions(), catalog.dirty(), catalog.facts()) == ({}, set(), {})
    catalog.record([QUEUE, LOG, EMPTY], [], {"instance": 1023, "last_id": 2**63 - 1})
    catalog.close()
    again = opened(path)
    assert again.partitions() == {each.name: each for each in (QUEUE, LOG, EMPTY)}
    assert again.partitions()[b""].deadline == inf
    assert again.facts() == {"instance": 1023, "last_id": 2**63 - 1}
    assert again.dirty() == set() and again.verify() == []
    again.close()


def test_a_marked_partition_is_dirty_until_it_is_recorded_or_removed(path: Path) -> None:
    catalog = opened(path)
    catalog.record([QUEUE, LOG], [], {})
    catalog.mark(
        [
            (b"chat", PartitionKind.QUEUE),
            (b"new", PartitionKind.LOG),
            (b"brief", PartitionKind.QUEUE),
        ]
    )
    catalog.close()
    again = opened(path)
    assert again.dirty() == {b"chat", b"new", b"brief"}
    assert again.partitions()[b"chat"] == QUEUE
    assert again.partitions()[b"new"] == PartitionMetadata(b"new", PartitionKind.LOG, 0)
    changed = PartitionMetadata(b"chat", PartitionKind.QUEUE, 10)
    again.record([changed], [b"brief", b"never was"], {"lsn": 5})
    assert again.dirty() == {b"new"}
    assert set(again.partitions()) == {b"chat", LOG.name, b"new"}
    assert again.partitions()[b"chat"] == changed
    again.record([], [], {"lsn": 6})
    assert again.facts() == {"lsn": 6}
    again.close()


def test_a_record_that_fails_changes_nothing(path: Path) -> None:
    catalog = opened(path)
    catalog.record([QUEUE], [], {"lsn": 1})
    catalog.mark([(b"chat", PartitionKind.QUEUE)])
    with pytest.raises(OverflowError):
        catalog.record([PartitionMetadata(b"chat", PartitionKind.QUEUE, 10)], [], {"lsn": 2**70})
    assert catalog.partitions() == {b"chat": QUEUE}
    assert catalog.dirty() == {b"chat"} and catalog.facts() == {"lsn": 1}
    catalog.close()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE partitions SET applied = applied - 1",
        "UPDATE partitions SET deadline = 5",
        "UPDATE facts SET value = 2",
        "DROP TABLE partitions",
        "DROP TABLE facts",
        "PRAGMA application_id = 5",
    ],
)
def test_what_somebody_else_changed_is_damage(path: Path, sql: str) -> None:
    catalog = opened(path)
    catalog.record([QUEUE], [], {"lsn": 1})
    catalog.close()
    connection = sqlite3.connect(path)
    connection.execute(sql)
    connection.commit()
    connection.close()
    with pytest.raises(Damaged):
        opened(path)


@pytest.mark.parametrize("content", [b"", b"garbage " * 4096])
def test_what_is_no_database_is_damaged(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(Damaged):
        opened(path)


def test_a_later_version_s_catalog_is_left_alone(path: Path) -> None:
    opened(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 4")
    connection.close()
    content = path.read_bytes()
    with pytest.raises(UnknownFormat):
        opened(path)
    assert path.read_bytes() == content


class TestRebuilding:
    def pool(self, folder: Path) -> FilePool:
        pool = FilePool(folder / "partitions", OsDisk())
        queue = QueueMemtable(is_oldest=True)
        left = StoredKey(1, 60, 600.5, bytes(32))
        queue.fold(
            [ModeSet(Mode.PAIR), StoredMessage(5, 5, 60, 900.0, b"data"), KeyRetained(1, left)]
        )
        pool.open(b"chat", PartitionKind.QUEUE).apply(queue, 7)
        pool.open(b"log", PartitionKind.LOG).apply(LogMemtable(is_oldest=True), 8)
        return pool

    @pytest.mark.parametrize("content", [None, b"garbage " * 4096])
    def test_partition_files_tell_it_again(self, path: Path, content: bytes | None) -> None:
        pool = self.pool(path.parent)
        if content is not None:
            path.write_bytes(content)
            path.with_name(path.name + "-wal").write_bytes(content)
        catalog, unreadable = rebuild(path, pool, OsDisk())
        assert catalog.partitions() == PARTITIONS and unreadable == []
        assert catalog.dirty() == set() and catalog.facts() == {}
        catalog.record([QUEUE], [b"log"], {"lsn": 9})
        catalog.close()
        again = opened(path)
        assert again.partitions() == {b"chat": QUEUE} and again.verify() == []
        again.close()
        pool.close()

    def test_damaged_files_are_named_and_unused_ones_left_out(self, path: Path) -> None:
        pool = self.pool(path.parent)
        pool.open(b"made and never used", PartitionKind.QUEUE)
        pool.open(b"harmed", PartitionKind.QUEUE).apply(QueueMemtable(is_oldest=True), 3)
        pool.close()
        pool.path(b"harmed").write_bytes(b"\x00" * 100)
        catalog, unreadable = rebuild(path, pool, OsDisk())
        assert catalog.partitions() == PARTITIONS
        assert [file for file, _ in unreadable] == [pool.path(b"harmed")]
        assert unreadable[0][1]
        assert opened(path).partitions() == PARTITIONS
        catalog.close()
        pool.close()

    def test_a_crash_while_it_is_rebuilt_leaves_none_or_all_of_it(self, path: Path) -> None:
        class Full(OsDisk):
            def install(self, path: Path, data: bytes) -> None:
                raise OSError(28, "No space left on device")

        pool = self.pool(path.parent)
        path.write_bytes(b"garbage")
        with pytest.raises(OSError):
            rebuild(path, pool, Full())
        assert not path.exists()
        catalog, _ = rebuild(path, pool, OsDisk())
        assert catalog.partitions() == PARTITIONS
        catalog.close()
        pool.close()
