"""A damaged log after its repair: what is good is where it was, whatever is lost around it."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import (
    Chunk,
    LogDeleted,
    LogTrimmed,
    MetadataSet,
    PartitionKind,
    Position,
)
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.interface import Seek
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.partitions.metadata import FileHeader
from millpond.actors.store.repair.rebuilt_log import LogBase, rebuild_log
from millpond.actors.store.repair.repair import FolderRepair, Repaired, repair
from millpond.actors.store.repair.salvage import SalvagedLog
from tests.actors.store.harness import LAZY, SMALL, Run, catalog_removed

LOG = b"\0stream\0orders"
COUNT = 100
U64_MAX = 2**64 - 1


def chunk(first: int, count: int = 10, mark: bytes = b"") -> Chunk:
    """Timestamps are ten times the sequence; ids run with it."""
    last = first + count - 1
    ids = Position(first, 0), Position(last, 0)
    return Chunk(first, count, 10 * first, 10 * last, *ids, (mark or b"chunk %d " % first) * 60)


CHUNKS = [chunk(first) for first in range(0, COUNT, 10)]


def meta(*, tail: int = COUNT, trim_point: int = 0) -> FileHeader:
    last = Position(tail - 1, 0)
    return FileHeader(
        LOG,
        PartitionKind.LOG,
        9,
        tail=tail,
        trim_point=trim_point,
        end_id=last,
        end_timestamp=10 * tail - 10,
    )


def memtable_of(
    *changes: Chunk | LogTrimmed | MetadataSet | LogDeleted, is_oldest: bool = False
) -> LogMemtable:
    memtable = LogMemtable(is_oldest=is_oldest)
    memtable.fold(changes)
    return memtable


def good(memtable: LogMemtable) -> list[Chunk]:
    return [each for each in memtable.chunks if each.data]


class TestMending:
    @given(st.sets(st.integers(0, 9)), st.integers(0, COUNT), st.integers(0, 10))
    def test_what_is_good_keeps_its_place_and_every_other_record_is_told(
        self, lost: set[int], trim_point: int, flushed: int
    ) -> None:
        """Chunks were in the file and in the journal, and any of them are not there any more."""
        left = [each for at, each in enumerate(CHUNKS) if at not in lost]
        older = SalvagedLog(
            [each for each in left if each.first < 10 * flushed],
            {b"type": b"json"},
            meta(tail=max(10 * flushed, 1), trim_point=trim_point // 2),
        )
        newer = memtable_of(*(each for each in left if each.first >= 10 * flushed))
        newer.trim_point = trim_point
        rebuilt = rebuild_log(older, newer, None)
        memtable = rebuilt.memtable
        kept = [each for each in left if each.end > trim_point]
        assert good(memtable) == kept
        spans = [
            (each.first, each.end) for each in memtable.chunks if each.end > memtable.trim_point
        ]
        assert all(one[1] == other[0] for one, other in pairwise(spans))
        told = {each for first, last in rebuilt.lost for each in range(first, last + 1)}
        there = {each for one in kept for each in range(one.first, one.end)}
        tail = memtable.chunks[-1].end
        assert not told & there and told | there >= set(range(trim_point, tail))
        assert rebuilt.records == len({each for each in there if each >= memtable.trim_point})
        assert tail >= max((each.end for each in left), default=0)
        assert memtable.metadata == {b"type": b"json"}

    def test_no_sequence_is_given_out_again_though_the_end_is_lost(self) -> None:
        for older, tail in (
            (SalvagedLog(CHUNKS[:5], {}, meta()), None),
            (SalvagedLog(CHUNKS[:5], {}, None), COUNT),
            (SalvagedLog([], {}, meta()), None),
        ):
            rebuilt = rebuild_log(older, None, tail)
            assert rebuilt.memtable.chunks[-1].end == COUNT
            assert rebuilt.lost == [(50 if older.chunks else 0, 99)]
        assert rebuilt.memtable.chunks[-1].last_id == Position(99, 0)
        assert rebuilt.memtable.chunks[-1].last_timestamp == 990

    def test_what_nobody_can_tell_is_told(self) -> None:
        rebuilt = rebuild_log(SalvagedLog(CHUNKS[3:5], {}, None), None, None)
        assert not rebuilt.is_whole_known and rebuilt.lost == []
        assert (rebuilt.memtable.trim_point, rebuilt.records) == (30, 20)

    def test_records_that_are_in_file_and_journal_count_once(self) -> None:
        older = SalvagedLog(CHUNKS[:6], {b"a": b"1", b"b": b"2"}, meta(tail=60))
        newer = memtable_of(*CHUNKS[4:], MetadataSet(b"a", None), MetadataSet(b"c", b"3"))
        rebuilt = rebuild_log(older, newer, 60)
        assert good(rebuilt.memtable) == CHUNKS and rebuilt.lost == [] and rebuilt.records == COUNT
        assert rebuilt.memtable.metadata == {b"b": b"2", b"c": b"3"}

    @pytest.mark.parametrize("is_told", [True, False])
    def test_a_log_that_was_deleted_does_not_come_back(self, is_told: bool) -> None:
        """Also if the record that deleted it is what is lost: then its sequences come again."""
        anew = chunk(0, 5, b"another log")
        changes = [LogDeleted(), anew] if is_told else [anew]
        older = SalvagedLog(CHUNKS, {b"type": b"json"}, meta())
        rebuilt = rebuild_log(older, memtable_of(*changes), COUNT)
        assert (
            good(rebuilt.memtable) == [anew]
            and rebuilt.lost == []
            and rebuilt.memtable.metadata == {}
        )
        both = memtable_of(*CHUNKS, *changes, is_oldest=True)
        assert good(rebuild_log(None, both, None).memtable) == [anew]

    @given(st.sets(st.integers(3, 9)), st.integers(0, COUNT), st.booleans())
    def test_what_is_another_logs_is_neither_lost_nor_trimmed(
        self, lost: set[int], trim_point: int, is_meta_lost: bool
    ) -> None:
        """The own records of a fork begin at 30."""
        base = LogBase(30, Position(29, 0), 290)
        left = [each for at, each in enumerate(CHUNKS) if at >= 3 and at not in lost]
        known = None if is_meta_lost else meta(trim_point=trim_point)
        older = SalvagedLog(left, {b"fork": b"note"}, known)
        rebuilt = rebuild_log(
            older, None, COUNT, lambda notes: base if b"fork" in notes else LogBase()
        )
        memtable = rebuilt.memtable
        told = {each for first, last in rebuilt.lost for each in range(first, last + 1)}
        point = 0 if is_meta_lost else trim_point
        there = {sequence for one in left for sequence in range(one.first, one.end)}
        assert told == {each for each in range(30, COUNT) if each >= point} - there
        if point < base.first:
            assert memtable.trim_point == point
            assert memtable.chunks[0].first == base.first and memtable.chunks[-1].end == COUNT
            assert rebuilt.records == COUNT - point - len(told)
        ids = [each.last_id for each in memtable.chunks]
        assert ids == sorted(ids) and all(each >= base.last_id for each in ids)

    def test_a_fork_without_records_of_its_own_keeps_its_trim_point(self) -> None:
        known = meta(tail=1, trim_point=20)
        known = msgspec.structs.replace(known, tail=0, end_id=Position(0, 0))
        rebuilt = rebuild_log(SalvagedLog([], {}, known), None, 0, lambda notes: LogBase(30))
        assert (rebuilt.memtable.trim_point, rebuilt.lost, rebuilt.records) == (20, [], 10)

    def test_an_empty_log_stays_one(self) -> None:
        rebuilt = rebuild_log(SalvagedLog([], {b"type": b"json"}, meta(tail=0)), None, 0)
        assert (rebuilt.memtable.chunks, rebuilt.lost, rebuilt.records) == ([], [], 0)
        all_trimmed = rebuild_log(SalvagedLog([], {}, meta(trim_point=COUNT)), None, COUNT)
        assert (all_trimmed.lost, all_trimmed.records) == ([], 0)
        assert all_trimmed.memtable.chunks[-1].end == COUNT


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of which half is in its file, and half in the journal."""
    folder = tmp_path_factory.mktemp("whole") / "data"
    run = Run(folder, SMALL)
    for each in CHUNKS[:5]:
        run.write(LOG, each)
    run.write(LOG, MetadataSet(b"type", b"json"), LogTrimmed(5))
    run.flush()
    path = run.file(LOG)
    run.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    run = Run(folder, LAZY)
    for each in CHUNKS[5:]:
        run.write(LOG, each)
    run.close()
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return shutil.copytree(whole, tmp_path / "data")


def file_of(folder: Path) -> Path:
    [path] = [
        each
        for each in (folder / "partitions").rglob("*.sqlite3")
        if b"stream" in each.read_bytes()
    ]
    return path


def spoil(folder: Path, *firsts: int) -> None:
    """Change a byte of these chunks, in the file or the journal."""
    for path in (file_of(folder), *(folder / "journal").iterdir()):
        content = bytearray(path.read_bytes())
        for first in firsts:
            at = content.find(b"chunk %d " % first)
            if at >= 0:
                content[at] ^= 1
        path.write_bytes(content)


def repaired(folder: Path) -> Repaired:
    return repair(folder, OsDisk(), LOG)


def test_what_is_good_is_served_and_the_log_goes_on_where_it_ended(folder: Path) -> None:
    spoil(folder, 20, 70)
    told = repaired(folder)
    assert told.lost_records == [(20, 29), (70, 79)]
    assert (told.kind, told.messages, told.in_file) == (PartitionKind.LOG, COUNT - 5 - 20, 40)
    assert told.moved is not None and b"chunk 10 " in told.moved.read_bytes()
    run = Run(folder, SMALL)
    assert run.found.damages == []
    left = [each for each in CHUNKS if each.first not in (20, 70)]
    assert run.read_all(LOG) == left and run.read_all(LOG, 1) == left
    metadata = run.log_snapshot(LOG)
    assert (metadata.trim_point, metadata.tail, metadata.metadata) == (5, COUNT, {b"type": b"json"})
    assert (metadata.last_id, metadata.last_timestamp) == (Position(99, 0), 990)
    run.write(LOG, chunk(COUNT))
    run.flush()
    run.close()
    run = Run(folder, SMALL)
    assert run.read_all(LOG) == [*left, chunk(COUNT)]
    run.write(LOG, LogTrimmed(25))
    run.flush()
    assert run.read_all(LOG) == [*left[2:], chunk(COUNT)]
    run.close()


@pytest.mark.parametrize(
    "seek",
    [
        Seek(SeekBy.SEQUENCE, 20),
        Seek(SeekBy.SEQUENCE, 25),
        Seek(SeekBy.TIMESTAMP, timestamp=200),
        Seek(SeekBy.ID, id=Position(22, 0)),
    ],
    ids=str,
)
def test_a_read_that_begins_in_what_is_lost_begins_behind_it(folder: Path, seek: Seek) -> None:
    spoil(folder, 20)
    repaired(folder)
    run = Run(folder, LAZY)
    assert run.read(LOG, seek)[0] == CHUNKS[3]
    run.close()


def test_the_first_chunks_that_are_lost_count_as_trimmed(folder: Path) -> None:
    spoil(folder, 0, 10)
    assert repaired(folder).lost_records == [(5, 19)]
    run = Run(folder, LAZY)
    assert run.log_snapshot(LOG).trim_point == 20 and run.read_all(LOG) == CHUNKS[2:]
    run.close()


def test_the_last_chunks_that_are_lost_leave_their_sequences(folder: Path) -> None:
    """Those of the file: the journal, which had what came later, is gone as well."""
    for segment in (folder / "journal").iterdir():
        segment.unlink()
    spoil(folder, 30, 40)
    told = repaired(folder)
    assert told.lost_records == [(30, 49)]
    assert told.skipped is not None and told.skipped[0] == 50
    tail = told.skipped[1] + 1
    assert tail >= COUNT
    run = Run(folder, LAZY)
    assert run.read_all(LOG) == CHUNKS[:3] and run.log_snapshot(LOG).tail == tail
    assert run.log_snapshot(LOG).last_id == Position(49, 0)
    assert run.read(LOG, Seek(SeekBy.SEQUENCE, 35)) == []
    run.write(LOG, chunk(tail))
    assert run.read_all(LOG)[-1] == chunk(tail)
    run.close()


@pytest.fixture
def skipping(folder: Path) -> Path:
    """The repair of a log skipped sequences, and more records are in its file since."""
    for segment in (folder / "journal").iterdir():
        segment.unlink()
    told = repaired(folder)
    assert told.skipped is not None and told.lost_records == []
    tail = told.skipped[1] + 1
    run = Run(folder, SMALL)
    run.write(LOG, chunk(tail), chunk(tail + 10))
    run.flush()
    run.close()
    assert damaged_names(folder) == []
    return folder


def damaged_names(folder: Path) -> list[bytes]:
    """The damaged names that a scrub of the whole folder finds."""
    with closing(FolderRepair(folder, OsDisk())) as repairs:
        repairs.scrub()
        return repairs.names()


def test_sequences_that_a_repair_skipped_do_not_count_as_lost(skipping: Path) -> None:
    """Where the file is lost, nothing tells them from those of the records in it."""
    file_of(skipping).unlink()
    told = repaired(skipping)
    [(first, last)] = told.lost_records
    assert first < 10 and told.is_whole_known and not told.is_lost_counted
    run = Run(skipping, LAZY)
    assert run.log_snapshot(LOG).tail == last + 1
    run.write(LOG, chunk(last + 1))
    run.flush()
    run.close()


def test_lost_records_are_counted_where_the_skipped_sequences_are_known(skipping: Path) -> None:
    spoil(skipping, 10)
    told = repaired(skipping)
    assert (told.lost_records, told.is_lost_counted) == ([(10, 19)], True)


def test_skipped_sequences_that_are_trimmed_do_not_count(skipping: Path) -> None:
    run = Run(skipping, SMALL)
    tail = run.log_snapshot(LOG).tail
    run.write(LOG, LogTrimmed(tail - 20))
    run.flush()
    run.close()
    assert damaged_names(skipping) == []
    file_of(skipping).unlink()
    told = repaired(skipping)
    assert (told.lost_records, told.is_lost_counted) == ([(tail - 20, tail - 1)], True)


@pytest.mark.parametrize("content", [b"", b"no database", Random(1).randbytes(20_000)])
def test_of_a_file_that_is_no_database_the_end_is_known_and_the_journal_is_kept(
    folder: Path, content: bytes
) -> None:
    file_of(folder).write_bytes(content)
    told = repaired(folder)
    assert (told.kind, told.in_file, told.messages) == (PartitionKind.LOG, 0, 50)
    run = Run(folder, LAZY)
    assert run.read_all(LOG) == CHUNKS[5:] and run.log_snapshot(LOG).trim_point == 50
    run.close()


def accept_losses(folder: Path) -> None:
    """The end of a repair of everything."""
    with closing(FolderRepair(folder, OsDisk())) as repairs:
        assert [damage.where for damage in repairs.forget_unnamed()] == ["catalogue.sqlite3"]


def test_without_a_catalog_the_file_itself_tells_that_it_is_a_log(folder: Path) -> None:
    for segment in (folder / "journal").iterdir():
        segment.unlink()
    path = file_of(folder)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE meta SET tail = tail + 1")
        connection.commit()
    catalog_removed(folder)
    told = repaired(folder)
    assert told.kind is PartitionKind.LOG and not told.is_whole_known
    accept_losses(folder)
    run = Run(folder, LAZY)
    assert run.read_all(LOG) == CHUNKS[:5]
    run.close()


def test_of_what_nothing_is_known_nothing_is_made(folder: Path) -> None:
    """It will be what it is used for next."""
    for segment in (folder / "journal").iterdir():
        segment.unlink()
    path = file_of(folder)
    path.write_bytes(b"nothing")
    catalog_removed(folder)
    told = repaired(folder)
    assert told.kind is None and told.moved is not None and not path.exists()
    accept_losses(folder)
    run = Run(folder, LAZY)
    assert run.found.damages == []
    run.write(LOG, CHUNKS[0])
    assert run.read_all(LOG) == CHUNKS[:1]
    run.close()


def test_a_log_whose_only_trace_is_a_damaged_record_is_a_log(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    run = Run(folder, LAZY)
    run.write(LOG, CHUNKS[0])
    run.write(b"\0stream\0other", CHUNKS[1])
    run.close()
    [segment] = (folder / "journal").iterdir()
    content = segment.read_bytes()
    assert b"chunk 0 " in content
    segment.write_bytes(content.replace(b"chunk 0 ", b"chunk X ", 1))
    told = repaired(folder)
    assert (told.kind, told.messages, told.in_file) == (PartitionKind.LOG, 0, 0)
    run = Run(folder, LAZY)
    assert run.found.damages == []
    run.write(LOG, CHUNKS[0])
    assert run.read_all(LOG) == CHUNKS[:1]
    run.close()
