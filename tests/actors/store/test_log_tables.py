"""A log's file: chunks in order, found by sequence, timestamp and id, until they are trimmed."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import (
    Chunk,
    LogChange,
    LogDeleted,
    LogSnapshot,
    LogTrimmed,
    MetadataSet,
    PartitionKind,
    Position,
)
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.interface import Seek
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.partitions import flush_batches as flush
from millpond.actors.store.partitions import log_tables as log
from millpond.actors.store.partitions.metadata import (
    LOG_SCHEMA,
    FileHeader,
    PartitionMetadata,
    read_header,
    write_header,
)
from millpond.actors.store.partitions.partition import (
    APPLICATION,
    Damaged,
    Partition,
    empty_file,
)
from millpond.actors.store.partitions.sqlite import crc_of, make_file, seed_of

U64_MAX = 2**64 - 1
FILE = "partition.sqlite3"
NAME = b"stream/1"
ALL = Seek(SeekBy.SEQUENCE, bytes_max=2**40)
OLD_CRC = crc_of((b"type", b"old"), seed_of(NAME))
"""Of an older value of the property `type`."""


def memtable_of(*changes: LogChange) -> LogMemtable:
    memtable = LogMemtable(is_oldest=False)
    memtable.fold(changes)
    return memtable


def opened(path: Path, disk: OsDisk | None = None) -> Partition:
    disk = disk or OsDisk()
    if not path.exists():
        disk.install(path, empty_file(PartitionKind.LOG))
    return Partition(disk.connect(path), NAME, PartitionKind.LOG)


def chunk(first: int, count: int, size: int = 10) -> Chunk:
    """Timestamps are ten times the sequence; ids run with it."""
    last = first + count - 1
    return Chunk(
        first, count, 10 * first, 10 * last, Position(first, 0), Position(last, 0), b"x" * size
    )


def by_time(timestamp: int) -> Seek:
    return Seek(SeekBy.TIMESTAMP, timestamp=timestamp)


def by_id(ms: int, seq: int) -> Seek:
    return Seek(SeekBy.ID, id=Position(ms, seq))


class TestReading:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Any:
        partition = opened(tmp_path / FILE)
        partition.apply(memtable_of(*(chunk(first, 10) for first in range(0, 100, 10))), 1)
        yield partition
        partition.close()

    @pytest.mark.parametrize(
        ("seek", "first"),
        [
            (Seek(SeekBy.SEQUENCE, 0), 0),
            (Seek(SeekBy.SEQUENCE, 9), 0),
            (Seek(SeekBy.SEQUENCE, 10), 10),
            (Seek(SeekBy.SEQUENCE, 99), 90),
            (Seek(SeekBy.SEQUENCE, 100), None),
            (Seek(SeekBy.SEQUENCE, U64_MAX), None),
            (by_time(0), 0),
            (by_time(90), 0),
            (by_time(91), 10),
            (by_time(990), 90),
            (by_time(991), None),
            (by_time(U64_MAX), None),
            (by_id(0, 0), 0),
            (by_id(9, 0), 0),
            (by_id(9, 1), 10),
            (by_id(99, 0), 90),
            (by_id(99, 1), None),
            (by_id(U64_MAX, U64_MAX), None),
        ],
    )
    def test_reads_from_the_chunk_that_holds_the_place(
        self, log: Partition, seek: Seek, first: int | None
    ) -> None:
        wanted = [] if first is None else [chunk(each, 10) for each in range(first, 100, 10)]
        assert log.read(seek) == wanted

    def test_stops_at_about_so_many_bytes_but_gives_one_chunk(self, log: Partition) -> None:
        assert log.read(Seek(SeekBy.SEQUENCE, 25, bytes_max=0)) == [chunk(20, 10)]
        assert log.read(Seek(SeekBy.SEQUENCE, 25, bytes_max=25)) == [
            chunk(20, 10),
            chunk(30, 10),
            chunk(40, 10),
        ]

    def test_a_place_is_found_without_looking_at_what_lies_before_it(self, tmp_path: Path) -> None:
        """Reads within retention by age name a sequence and a time that lies far before it."""
        path = tmp_path / FILE
        partition = opened(path)
        partition.apply(memtable_of(*(chunk(first, 1) for first in range(3000))), 1)
        partition.close()
        with closing(sqlite3.connect(path)) as connection:
            steps: list[None] = []
            connection.set_progress_handler(lambda: steps.append(None), 1)
            header = read_header(connection)
            header.seed = seed_of(NAME)
            (found,) = log.read(connection, header, Seek(SeekBy.TIMESTAMP, 2990, 1, bytes_max=0))
            assert found.first == 2990 and len(steps) < 500
            seek = Seek(SeekBy.ID, 5, id=Position(2995, 0), bytes_max=0)
            (found,) = log.read(connection, header, seek)
            assert found.first == 2995

    def test_what_is_trimmed_is_not_read(self, log: Partition) -> None:
        metadata = log.apply(memtable_of(LogTrimmed(35)), 2)
        assert (metadata.messages, metadata.bytes, metadata.tail) == (70, 70, 100)
        for seek in (Seek(SeekBy.SEQUENCE, 0), by_time(0), by_id(0, 0)):
            assert log.read(seek)[0] == chunk(30, 10)
        assert log.log_snapshot() == LogSnapshot(
            trim_point=35, tail=100, last_id=Position(99, 0), last_timestamp=990, bytes=70
        )
        assert log.verify() == []

    def test_a_log_trimmed_to_its_end_goes_on_from_there(self, log: Partition) -> None:
        log.apply(memtable_of(LogTrimmed(100)), 2)
        assert log.read(ALL) == []
        log.apply(memtable_of(chunk(100, 5)), 3)
        assert log.read(ALL) == [chunk(100, 5)]
        metadata = log.log_snapshot()
        assert (metadata.trim_point, metadata.tail, metadata.bytes) == (100, 105, 10)

    def test_a_deleted_log_begins_anew(self, log: Partition) -> None:
        log.apply(memtable_of(MetadataSet(b"type", b"old"), LogTrimmed(50)), 2)
        anew = memtable_of(LogDeleted(), chunk(0, 3), MetadataSet(b"new", b""))
        metadata = log.apply(anew, 3)
        assert metadata == PartitionMetadata(
            NAME, PartitionKind.LOG, 3, messages=3, bytes=10, tail=3
        )
        assert log.apply(anew, 3) == metadata
        assert log.read(ALL) == [chunk(0, 3)]
        assert log.log_snapshot() == LogSnapshot(
            tail=3, last_id=Position(2, 0), last_timestamp=20, metadata={b"new": b""}, bytes=10
        )

    def test_equal_timestamps_are_read_from_the_first_of_them(self, tmp_path: Path) -> None:
        partition = opened(tmp_path / "equal.sqlite3")
        same = [
            Chunk(each, 1, 7, 7, Position(7, each), Position(7, each), b"x") for each in range(300)
        ]
        partition.apply(memtable_of(*same), 1)
        assert partition.read(by_time(7)) == same
        assert partition.read(by_id(7, 299)) == same[299:]
        partition.close()


def test_all_64_bits_of_timestamps_and_ids_come_back_and_are_ordered(tmp_path: Path) -> None:
    partition = opened(tmp_path / FILE)
    top = Position(U64_MAX, U64_MAX)
    low = Chunk(0, 1, 2**63 - 1, 2**63 - 1, Position(0, U64_MAX), Position(0, U64_MAX), b"low")
    high = Chunk(1, 2**31, 2**63, U64_MAX, Position(2**63, 0), top, b"x")
    metadata = partition.apply(memtable_of(low, high, LogTrimmed(0)), 2**62)
    assert (metadata.applied, metadata.tail) == (2**62, 2**31 + 1)
    assert partition.read(ALL) == [low, high]
    assert partition.read(by_time(2**63)) == partition.read(by_id(1, 0)) == [high]
    partition.close()
    again = opened(tmp_path / FILE)
    assert again.log_snapshot() == LogSnapshot(
        tail=2**31 + 1, last_id=top, last_timestamp=U64_MAX, bytes=4
    )
    again.apply(memtable_of(LogTrimmed(U64_MAX)), 2**62 + 1)
    assert again.read(ALL) == [] and again.log_snapshot().trim_point == U64_MAX
    again.close()


def test_the_same_layer_twice_changes_nothing(tmp_path: Path) -> None:
    partition = opened(tmp_path / FILE)
    memtable = memtable_of(
        chunk(0, 10), chunk(10, 5), LogTrimmed(4), MetadataSet(b"a", b"1"), MetadataSet(b"b", None)
    )
    once, read = partition.apply(memtable, 1), partition.read(ALL)
    assert partition.apply(memtable, 1) == once == partition.metadata
    assert partition.read(ALL) == read == [chunk(0, 10), chunk(10, 5)]
    assert partition.log_snapshot().metadata == {b"a": b"1"}
    partition.close()


@st.composite
def histories(draw: st.DrawFn) -> list[list[LogChange]]:
    memtables: list[list[LogChange]] = []
    tail = trimmed = 0
    for _ in range(draw(st.integers(1, 6))):
        changes: list[LogChange] = []
        for _ in range(draw(st.integers(0, 8))):
            match draw(st.sampled_from(["append", "append", "trim", "note", "drop"])):
                case "append":
                    count = draw(st.integers(1, 4))
                    changes.append(chunk(tail, count, draw(st.integers(1, 9))))
                    tail += count
                case "trim":
                    trimmed = draw(st.integers(trimmed, tail))
                    changes.append(LogTrimmed(trimmed))
                case "note":
                    name = draw(st.sampled_from([b"", b"a", b"b"]))
                    changes.append(MetadataSet(name, draw(st.none() | st.binary(max_size=3))))
                case "drop" if draw(st.booleans()):
                    changes.append(LogDeleted())
                    tail = trimmed = 0
        memtables.append(changes)
    return memtables


@settings(max_examples=60, deadline=None)
@given(histories(), st.data())
def test_layers_in_the_file_are_the_layers_over_one_another(
    tmp_path_factory: pytest.TempPathFactory, history: list[list[LogChange]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("model") / FILE
    partition = opened(path)
    model, kept = LogSnapshot(), list[Chunk]()
    for lsn, changes in enumerate(history, 1):
        memtable = memtable_of(*changes)
        model = memtable.apply_to(model)
        for change in changes:
            kept = [] if isinstance(change, LogDeleted) else kept
            kept += [change] if isinstance(change, Chunk) else []
        kept = [each for each in kept if each.end > model.trim_point]
        for _ in range(data.draw(st.integers(1, 2))):
            partition.apply(memtable, lsn)
        if data.draw(st.booleans()):
            partition.close()
            partition = opened(path)
        model.bytes = sum(len(each.data) for each in kept)
        assert partition.log_snapshot() == model
        assert partition.read(ALL) == kept
        assert partition.verify() == []
        at = data.draw(st.integers(0, model.tail + 1))
        for seek in (Seek(SeekBy.SEQUENCE, at), by_time(10 * at), by_id(at, 0)):
            assert partition.read(seek) == [each for each in kept if each.end > at]
    partition.close()


class Interrupted(sqlite3.Connection):
    """A connection whose statements fail from the k-th change on."""

    left = 10**9

    def _count(self, sql: str) -> None:
        if not sql.startswith(("SELECT", "PRAGMA", "ROLLBACK")):
            self.left -= 1
            if self.left < 0:
                raise sqlite3.OperationalError("disk I/O error")

    def execute(self, sql: str, *args: Any) -> Any:
        self._count(sql)
        return super().execute(sql, *args)

    def executemany(self, sql: str, *args: Any) -> Any:
        self._count(sql)
        return super().executemany(sql, *args)


class InterruptedDisk(OsDisk):
    def __init__(self, left: int) -> None:
        self.left = left

    def connect(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None, factory=Interrupted)
        connection.left = self.left
        return connection


@pytest.mark.parametrize("is_fresh", [False, True])
def test_a_kill_between_slices_leaves_only_what_the_layer_says_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_fresh: bool
) -> None:
    monkeypatch.setattr(flush, "SLICE_BYTES", 4000)
    before = [chunk(first, 10, 300) for first in range(0, 100, 10)]
    start = 0 if is_fresh else 100
    appended = [chunk(start + first, 10, 700) for first in range(0, 200, 10)]
    first_change = LogDeleted() if is_fresh else LogTrimmed(35)
    memtable = memtable_of(first_change, MetadataSet(b"n", b"v"), *appended)
    after = appended if is_fresh else before[3:] + appended
    for cut in range(100):
        path = tmp_path / str(cut) / FILE
        killed = path.parent / "killed"
        killed.mkdir(parents=True)
        build_file = opened(path)
        build_file.apply(memtable_of(*before), 1)
        build_file.close()
        partition = opened(path, InterruptedDisk(cut))
        try:
            partition.apply(memtable, 2)
        except sqlite3.OperationalError:
            for each in (path, path.with_name(FILE + "-wal")):
                shutil.copy(each, killed)
        else:
            assert partition.read(ALL) == after
            break
        finally:
            partition.close()
        again = opened(killed / FILE)
        assert again.metadata.applied == 1 and again.verify() == []
        assert all(each in before for each in again.read(ALL))
        assert again.apply(memtable, 2).applied == 2
        assert again.read(ALL) == after and again.verify() == []
        again.close()
    assert cut > 15


def first_version(path: Path) -> None:
    """A log as the first version wrote it: two properties, and a header that does not count
    them."""

    def fill(connection: sqlite3.Connection) -> None:
        header = FileHeader(NAME, PartitionKind.LOG, applied=1, frozen_at=2)
        write_header(connection, header)
        for pair in ((b"a", b"1"), (b"b", b"2")):
            connection.execute(
                "INSERT INTO notes (name, value, crc) VALUES (?, ?, ?)", (*pair, crc_of(pair))
            )

    path.parent.mkdir(parents=True, exist_ok=True)
    schema = re.sub(r",\n +properties\w* INTEGER", "", LOG_SCHEMA)
    path.write_bytes(make_file(schema + log.SCHEMA, APPLICATION, fill))


def changed(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(sql)
        connection.commit()


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_a_log_of_the_first_version_counts_its_properties_from_its_next_change(
    tmp_path: Path,
) -> None:
    path = tmp_path / FILE
    first_version(path)
    partition = opened(path)
    assert partition.log_snapshot().metadata == {b"a": b"1", b"b": b"2"}
    assert partition.verify() == [] and version_of(path) == 1
    partition.apply(memtable_of(chunk(0, 3), MetadataSet(b"b", b"3"), MetadataSet(b"c", b"")), 3)
    assert partition.log_snapshot().metadata == {b"a": b"1", b"b": b"3", b"c": b""}
    partition.close()
    assert version_of(path) == 3
    partition = opened(path)
    assert partition.verify() == [] and partition.read(ALL) == [chunk(0, 3)]
    partition.close()
    changed(path, "DELETE FROM notes WHERE name = x'61'")
    partition = opened(path)
    with pytest.raises(Damaged, match="2 properties, and meta says 3"):
        partition.log_snapshot()
    partition.close()


@pytest.mark.parametrize("change", [MetadataSet(b"c", b"3"), LogDeleted()])
def test_a_kill_during_the_first_change_by_this_version_loses_no_property(
    tmp_path: Path, change: LogChange
) -> None:
    memtable = memtable_of(change, chunk(0, 3))
    for cut in range(100):
        path = tmp_path / str(cut) / FILE
        first_version(path)
        partition = opened(path, InterruptedDisk(cut))
        try:
            partition.apply(memtable, 3)
        except sqlite3.OperationalError:
            partition.close()
        else:
            partition.close()
            break
        again = opened(path)
        assert again.verify() == []
        assert again.log_snapshot().metadata == {b"a": b"1", b"b": b"2"}
        again.apply(memtable, 3)
        assert again.verify() == [] and again.read(ALL) == [chunk(0, 3)]
        again.close()
    assert cut > 5


class TestDamage:
    def build_file(self, path: Path) -> None:
        partition = opened(path)
        chunks = [chunk(first, 10, 50) for first in range(0, 1000, 10)]
        marked = Chunk(1000, 1, 10_000, 10_000, Position(1000, 0), Position(1000, 0), b"find me")
        partition.apply(memtable_of(*chunks, marked, MetadataSet(b"type", b"text/plain")), 1)
        partition.close()

    def test_a_changed_byte_harms_its_chunk_only(self, tmp_path: Path) -> None:
        path = tmp_path / FILE
        self.build_file(path)
        content = path.read_bytes()
        assert content.count(b"find me") == 1
        path.write_bytes(content.replace(b"find me", b"fond me"))
        partition = opened(path)
        with pytest.raises(Damaged, match="chunk 1000"):
            partition.read(Seek(SeekBy.SEQUENCE, 1000))
        assert len(partition.read(Seek(SeekBy.SEQUENCE, 0, bytes_max=1000))) == 20
        assert "chunk 1000 is not what was written (crc)" in partition.verify()
        partition.close()

    @pytest.mark.parametrize(
        ("sql", "text"),
        [
            ("DELETE FROM chunks WHERE first = 500", "records 500 to 509 are missing"),
            ("DELETE FROM chunks WHERE first = 1000", "meta says"),
            ("UPDATE chunks SET last_id = x'00' WHERE first = 0", "chunk 0"),
            ("UPDATE notes SET value = x'00'", "note b'type'"),
            ("DROP TABLE notes", "no such table"),
            ("DELETE FROM notes", "0 properties, and meta says 1"),
            (f"UPDATE notes SET value = x'6f6c64', crc = {OLD_CRC}", "not those that were written"),
        ],
    )
    def test_what_somebody_else_changed_is_found(self, tmp_path: Path, sql: str, text: str) -> None:
        path = tmp_path / FILE
        self.build_file(path)
        connection = sqlite3.connect(path)
        connection.execute(sql)
        connection.commit()
        connection.close()
        partition = opened(path)
        assert any(text in line for line in partition.verify())
        partition.close()

    def test_records_that_are_missing_are_never_skipped(self, tmp_path: Path) -> None:
        path = tmp_path / FILE
        self.build_file(path)
        connection = sqlite3.connect(path)
        connection.execute("DELETE FROM chunks WHERE first = 500")
        connection.commit()
        connection.close()
        partition = opened(path)
        with pytest.raises(Damaged, match="records 500 to 509"):
            partition.read(Seek(SeekBy.SEQUENCE, 480))
        partition.close()
