"""Repairs of a folder: what is sound stays, what is lost is counted, and interruptions hide
nothing."""

from __future__ import annotations

import contextlib
import errno
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from millpond.actors.store.changes import (
    AttemptsSet,
    Chunk,
    LogDeleted,
    MessageRemoved,
    MetadataSet,
    Position,
    StoredMessage,
)
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.interface import Fault
from millpond.actors.store.journal.format import HEADER_SIZE
from millpond.actors.store.partitions.file_pool import file_name
from millpond.actors.store.repair.quarantine import read_reports
from millpond.actors.store.repair.repair import FolderRepair, Repaired
from millpond.actors.store.settings import StoreSettings
from tests.actors.store.harness import LAZY, NOW, SMALL, run, young_id
from tests.actors.store.older_files import without_seed

LOG, QUEUE = b"streams/orders", b"chat"
ID = young_id(60.0)
PAGE = 4096
COUNT = 40
REMOVED = range(5)
"""The messages that are removed with the later half."""


def chunk(first: int) -> Chunk:
    ids = Position(first, 0), Position(first + 9, 0)
    return Chunk(first, 10, first, first + 9, *ids, bytes([first % 256]) * 1000)


def row(number: int) -> StoredMessage:
    return StoredMessage(ID + number, number, 3600, NOW + 3600, b"%02d" % number + bytes(1000))


CHUNKS = [chunk(10 * number) for number in range(COUNT)]
ROWS = [row(number) for number in range(COUNT)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log and a queue in files, in `half` as they were before the later half; the node was
    stopped."""
    data = tmp_path / "data"
    for part in (slice(0, COUNT // 2), slice(COUNT // 2, COUNT)):
        with run(data, SMALL) as opened:
            for each, other in zip(CHUNKS[part], ROWS[part], strict=True):
                opened.write(LOG, each)
                opened.write(QUEUE, other)
            if part.start:
                opened.write(QUEUE, *(removal(number) for number in REMOVED))
            opened.flush()
        if not part.start:
            shutil.copytree(data / "partitions", tmp_path / "half")
    return data


def removal(number: int) -> MessageRemoved:
    return MessageRemoved(ID + number, number, None, len(ROWS[number].data))


def file_of(folder: Path, name: bytes) -> Path:
    return folder / "partitions" / file_name(name)


def half_of(folder: Path, name: bytes) -> Path:
    return folder.parent / "half" / file_name(name)


def repaired(folder: Path, name: bytes) -> Repaired:
    with closing(FolderRepair(folder, OsDisk())) as repairs:
        repairs.scrub()
        assert repairs.names() == [name]
        return repairs.repair(name)


def messages_of(folder: Path) -> list[StoredMessage]:
    with run(folder, LAZY) as opened:
        return list(opened.load(QUEUE).rows)


def chunks_of(folder: Path) -> list[Chunk]:
    with run(folder, LAZY) as opened:
        return opened.read_all(LOG)


def header_of_half(folder: Path, name: bytes) -> None:
    """The write of the page with the header was lost."""
    with closing(sqlite3.connect(file_of(folder, name))) as connection:
        connection.execute("ATTACH ? AS half", (str(half_of(folder, name)),))
        connection.executescript("DELETE FROM meta; INSERT INTO meta SELECT * FROM half.meta")
        connection.commit()


@pytest.mark.parametrize("name", [QUEUE, LOG])
def test_an_older_header_costs_no_row_that_came_later(folder: Path, name: bytes) -> None:
    header_of_half(folder, name)
    with run(folder, LAZY) as opened:  # what it finds, it leaves as it is
        assert [each.name for each in opened.found.damages] == []
        opened.store.load(name)
    repaired(folder, name)
    assert chunks_of(folder) == CHUNKS
    assert messages_of(folder) == ROWS[len(REMOVED) :]


def test_of_an_older_copy_nobody_can_tell_how_many_are_lost(folder: Path) -> None:
    """It has messages that were removed later, which hide as many that are lost."""
    shutil.copy(half_of(folder, QUEUE), file_of(folder, QUEUE))
    done = repaired(folder, QUEUE)
    assert done.lost_count is None and not done.is_complete
    assert messages_of(folder) == ROWS[: COUNT // 2]


@pytest.mark.parametrize("name", [QUEUE, LOG])
def test_a_schema_that_is_no_text_is_damage(folder: Path, name: bytes) -> None:
    """SQLite quotes it in its message, which cannot be decoded then."""
    path = file_of(folder, name)
    data = path.read_bytes()
    for verb in (b"CREATE INDEX", b"CREATE TABLE"):
        data = data.replace(verb, verb[:4] + b"\xa0" + verb[5:])
    path.write_bytes(data)
    repaired(folder, name)
    assert chunks_of(folder) == CHUNKS
    assert messages_of(folder) == ROWS[len(REMOVED) :]


def page_with_header(path: Path) -> int:
    """Where in a partition's file the page of the header begins."""
    with closing(sqlite3.connect(path)) as connection:
        of = "SELECT rootpage FROM sqlite_schema WHERE name = 'meta'"
        (page,) = connection.execute(of).fetchone()
    return (page - 1) * PAGE


@pytest.mark.parametrize(("name", "other"), [(QUEUE, LOG), (LOG, QUEUE), (QUEUE, b"later")])
def test_the_header_of_another_file_on_one_page_costs_that_page_alone(
    folder: Path, name: bytes, other: bytes
) -> None:
    """A misdirected write: its own header is still there."""
    with run(folder, SMALL) as opened:  # the header of this one is newer
        opened.write(b"later", row(COUNT))
        opened.flush()
    path, source = file_of(folder, name), file_of(folder, other)
    page = source.read_bytes()[page_with_header(source) :][:PAGE]
    stored = ROWS[len(REMOVED) :] if name == QUEUE else CHUNKS
    data = bytearray(path.read_bytes())
    start = data.rindex(stored[-1].data) // PAGE * PAGE
    data[start : start + PAGE] = page
    path.write_bytes(data)
    done = repaired(folder, name)
    left = (
        messages_of(folder) if name == QUEUE else [each for each in chunks_of(folder) if each.data]
    )
    gone = len(stored) - len(left)
    assert left == stored[: len(left)]
    assert 0 < gone <= PAGE // len(stored[-1].data)
    if name == QUEUE:
        assert done.lost_count == gone
    else:
        assert done.lost_records == [(stored[len(left)].first, stored[-1].end - 1)]


@pytest.mark.parametrize("is_older", [False, True], ids=["this version", "older"])
@pytest.mark.parametrize("name", [QUEUE, LOG])
def test_a_file_whose_own_header_was_overwritten_by_that_of_another_has_its_own_rows(
    folder: Path, name: bytes, *, is_older: bool
) -> None:
    """In an older file they may be those of the other one, whose clients alone may read them."""
    if is_older:
        without_seed(file_of(folder, name))
    path, source = file_of(folder, name), file_of(folder, LOG if name == QUEUE else QUEUE)
    page = source.read_bytes()[page_with_header(source) :][:PAGE]
    data, start = bytearray(path.read_bytes()), page_with_header(path)
    data[start : start + PAGE] = page
    path.write_bytes(data)
    done = repaired(folder, name)
    if is_older:
        assert (done.messages, done.is_complete) == (0, False)
    else:
        assert (done.lost, done.lost_count, done.lost_records) == ([], 0, [])
        assert chunks_of(folder) == CHUNKS
        assert messages_of(folder) == ROWS[len(REMOVED) :]


@pytest.mark.parametrize("removed", [2, 3])
def test_of_an_older_copy_of_a_page_nobody_can_tell_how_many_are_lost(
    folder: Path, removed: int
) -> None:
    """It has messages that were removed later, as many as it does not have, or more."""
    with closing(sqlite3.connect(file_of(folder, QUEUE))) as connection:
        connection.execute("ATTACH ? AS half", (str(half_of(folder, QUEUE)),))
        connection.execute("DELETE FROM messages WHERE message_id >= ?", (ID + COUNT - 2,))
        columns = ", ".join(each[1] for each in connection.execute("PRAGMA table_info(messages)"))
        old = f"SELECT {columns} FROM half.messages WHERE message_id < ?"
        connection.execute(f"INSERT INTO messages ({columns}) {old}", (ID + removed,))
        connection.commit()
    done = repaired(folder, QUEUE)
    assert done.lost_count is None and not done.is_complete


def test_of_an_older_page_with_fewer_messages_than_there_were_a_number_is_a_minimum(
    folder: Path,
) -> None:
    """Three are lost, and one that was removed stands for one of them."""
    with closing(sqlite3.connect(file_of(folder, QUEUE))) as connection:
        connection.execute("ATTACH ? AS half", (str(half_of(folder, QUEUE)),))
        connection.execute("DELETE FROM messages WHERE message_id >= ?", (ID + COUNT - 3,))
        columns = ", ".join(each[1] for each in connection.execute("PRAGMA table_info(messages)"))
        old = f"SELECT {columns} FROM half.messages WHERE message_id = ?"
        connection.execute(f"INSERT INTO messages ({columns}) {old}", (ID,))
        connection.commit()
    done = repaired(folder, QUEUE)
    assert (done.lost_count, done.is_lost_minimum, done.is_complete) == (2, True, False)


def test_lost_messages_that_were_removed_later_are_not_told_to_be_all(folder: Path) -> None:
    """The journal removes those that are missing, and more may be."""
    with closing(sqlite3.connect(file_of(folder, QUEUE))) as connection:
        connection.execute("DELETE FROM messages WHERE message_id >= ?", (ID + COUNT - 2,))
        connection.commit()
    with run(folder, LAZY) as opened:
        opened.write(QUEUE, removal(COUNT - 2), removal(COUNT - 1))
    done = repaired(folder, QUEUE)
    assert (done.lost_count, done.is_lost_minimum, done.is_complete) == (0, True, False)


def test_a_number_is_exact_where_each_lost_message_is_known_or_none_was_read(folder: Path) -> None:
    with closing(sqlite3.connect(file_of(folder, QUEUE))) as connection:
        connection.execute(
            "UPDATE messages SET data = zeroblob(7) WHERE message_id = ?", (ID + COUNT - 1,)
        )
        connection.commit()
    copy = shutil.copytree(folder, folder.with_name("copy"))
    done = repaired(folder, QUEUE)
    assert (done.lost, done.lost_count) == ([ID + COUNT - 1], 1) and not done.is_lost_minimum
    file_of(copy, QUEUE).unlink()
    done = repaired(copy, QUEUE)
    assert (done.in_file, done.lost_count) == (0, COUNT - len(REMOVED))
    assert not done.is_lost_minimum


@pytest.mark.parametrize("number", [2, 0])
def test_a_page_of_properties_that_was_lost_is_found_and_told(folder: Path, number: int) -> None:
    """An empty page of the same kind is in its place, or an older one with another value of `b`."""
    first = MetadataSet(b"a", b"1"), MetadataSet(b"b", b"1")
    with run(folder, SMALL) as opened:
        opened.write(LOG, *first, chunk(10 * COUNT))
        opened.flush()
    older = shutil.copy(file_of(folder, LOG), folder.with_name("older"))
    with run(folder, SMALL) as opened:
        opened.write(LOG, MetadataSet(b"b", b"2"), chunk(10 * COUNT + 10))
        opened.flush()
        assert len(opened.log_snapshot(LOG).metadata) == 2
    with closing(sqlite3.connect(file_of(folder, LOG))) as connection:
        connection.execute("DELETE FROM notes")
        if not number:
            connection.execute("ATTACH ? AS older", (str(older),))
            connection.execute("INSERT INTO notes SELECT * FROM older.notes")
        connection.commit()
    with run(folder, LAZY) as opened:
        assert opened.finish(opened.store.log_snapshot(LOG)) is Fault.DAMAGED
    done = repaired(folder, LOG)
    assert done.lost_metadata == (number or 1) and not done.is_complete
    assert done.lost_records == []
    with run(folder, LAZY) as opened:
        assert opened.read_all(LOG) == [*CHUNKS, chunk(10 * COUNT), chunk(10 * COUNT + 10)]


@pytest.mark.parametrize("name", [QUEUE, LOG])
def test_without_its_header_a_file_does_not_tell_whether_properties_or_attempts_are_lost(
    folder: Path, name: bytes
) -> None:
    """The page of the header is damaged, and what it counts is as it was before."""
    with run(folder, SMALL) as opened:
        opened.write(LOG, MetadataSet(b"a", b"1"), chunk(10 * COUNT))
        opened.write(QUEUE, AttemptsSet(ROWS[-1].id, 2), row(COUNT))
        opened.flush()
    with closing(sqlite3.connect(file_of(folder, name))) as connection:
        is_queue = name == QUEUE
        connection.execute("UPDATE messages SET attempts = 0" if is_queue else "DELETE FROM notes")
        connection.execute("UPDATE meta SET deadline = 7.0")
        connection.commit()
    done = repaired(folder, name)
    assert (done.lost_count, done.lost_records, done.lost_metadata) == (0, [], 0)
    assert (done.is_delivery_known, done.is_metadata_known) == (name == LOG, name == QUEUE)
    assert not done.is_complete


def test_a_log_that_was_deleted_since_lost_no_property(folder: Path) -> None:
    """Its file without a header is that of the deleted one; the journal has the new one."""
    with closing(sqlite3.connect(file_of(folder, LOG))) as connection:
        connection.execute("UPDATE meta SET deadline = 7.0")
        connection.commit()
    with run(folder, LAZY) as opened:
        opened.write(LOG, LogDeleted(), MetadataSet(b"a", b"1"), chunk(0))
    done = repaired(folder, LOG)
    assert done.is_metadata_known and done.is_complete
    assert chunks_of(folder) == [chunk(0)]


def test_older_attempts_are_told_and_no_message_is_lost_for_them(folder: Path) -> None:
    with run(folder, SMALL) as opened:
        opened.write(QUEUE, AttemptsSet(ROWS[-1].id, 2), row(COUNT))
        opened.flush()
    with closing(sqlite3.connect(file_of(folder, QUEUE))) as connection:
        connection.execute("UPDATE messages SET attempts = 1 WHERE attempts > 0")
        connection.commit()
    done = repaired(folder, QUEUE)
    assert (done.lost, done.lost_count, done.is_lost_minimum) == ([], 0, False)
    assert not done.is_delivery_known and not done.is_complete
    assert messages_of(folder) == [*ROWS[len(REMOVED) :], row(COUNT)]


def test_properties_in_the_journal_alone_are_not_missing_in_the_file(folder: Path) -> None:
    """The file has another damage, and never had them."""
    with run(folder, LAZY) as opened:
        opened.write(LOG, MetadataSet(b"a", b"1"))
    with closing(sqlite3.connect(file_of(folder, LOG))) as connection:
        connection.execute("DELETE FROM chunks WHERE first = 20")
        connection.commit()
    done = repaired(folder, LOG)
    assert (done.lost_records, done.lost_metadata) == ([(20, 29)], 0)
    with run(folder, LAZY) as opened:
        assert opened.log_snapshot(LOG).metadata == {b"a": b"1"}


def test_an_index_with_wrong_entries_is_found_and_costs_nothing(folder: Path) -> None:
    """Reads find rows without it, and the next flush fails."""
    path = file_of(folder, LOG)
    with closing(sqlite3.connect(path)) as connection:
        of = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
        ((one,), (other,)) = (
            connection.execute(of, (name,)).fetchone() for name in ("chunks_timestamp", "chunks_id")
        )
    data = bytearray(path.read_bytes())
    data[(one - 1) * PAGE : one * PAGE] = data[(other - 1) * PAGE : other * PAGE]
    path.write_bytes(data)
    assert repaired(folder, LOG).is_complete
    assert chunks_of(folder) == CHUNKS


def test_a_pointer_map_that_calls_all_pages_free_costs_nothing(folder: Path) -> None:
    """The list of free pages says that they are none."""
    path = file_of(folder, QUEUE)
    data = bytearray(path.read_bytes())
    for at in range(PAGE, 2 * PAGE - 5, 5):
        if data[at]:
            data[at] = 2
    path.write_bytes(data)
    assert repaired(folder, QUEUE).is_complete
    assert messages_of(folder) == ROWS[len(REMOVED) :]


class FailingDisk(OsDisk):
    """A disk of which one call fails: the one after `left` others."""

    def __init__(self, left: int) -> None:
        self.left = left

    def _enter(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise OSError(errno.EIO, "Input/output error")

    def install(self, path: Path, data: bytes) -> None:
        self._enter()
        super().install(path, data)

    def unlink(self, path: Path) -> None:
        self._enter()
        super().unlink(path)

    def sync_folder(self, path: Path) -> None:
        self._enter()
        super().sync_folder(path)

    def connect(self, path: Path) -> sqlite3.Connection:
        self._enter()
        return super().connect(path)


@pytest.mark.parametrize("name", [QUEUE, LOG])
@pytest.mark.parametrize("is_used", [False, True], ids=["at once", "after a run"])
def test_an_interrupted_repair_tells_its_losses_the_next_time(
    folder: Path, name: bytes, is_used: bool
) -> None:
    """Whichever call of the disk fails, and if the node runs before it is repaired again."""
    path = file_of(folder, name)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    whole = shutil.copytree(folder, folder.with_name("whole"))
    expected = repaired(whole, name)
    assert not expected.is_complete
    for left in range(1000):
        copy = shutil.copytree(folder, folder.with_name(f"copy {left}"))
        told: list[Repaired] = []
        disk = FailingDisk(left)
        with contextlib.suppress(OSError), closing(FolderRepair(copy, disk)) as repairs:
            repairs.scrub()
            told += [repairs.repair(each) for each in repairs.names()]
        if disk.left >= 0:
            assert left > 10
            break
        if is_used:
            with run(copy, LAZY) as opened:
                opened.write(b"another", row(1))
        with closing(FolderRepair(copy, OsDisk())) as repairs:
            repairs.scrub()
            told += [repairs.repair(each) for each in repairs.names()]
        assert all(replace(each, moved=None) == replace(expected, moved=None) for each in told)
        assert told
        with closing(FolderRepair(copy, OsDisk())) as repairs:
            assert repairs.scrub() == [] and repairs.names() == []
        shutil.rmtree(copy)


def test_wrong_entries_in_an_index_of_the_catalog_are_told(folder: Path) -> None:
    """It is read whole at a start, and by name later."""
    path = folder / "catalogue.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        of = "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_partitions_1'"
        (page,) = connection.execute(of).fetchone()
    data = bytearray(path.read_bytes())
    data[(page - 1) * PAGE + 3 : (page - 1) * PAGE + 5] = bytes(2)  # it has no cells
    path.write_bytes(data)
    with closing(FolderRepair(folder, OsDisk())) as repairs:
        repairs.scrub()
        assert [damage.where for damage in repairs.forget_unnamed()] == [path.name]
    with closing(FolderRepair(folder, OsDisk())) as repairs:
        assert repairs.scrub() == []
    assert chunks_of(folder) == CHUNKS
    assert messages_of(folder) == ROWS[len(REMOVED) :]


def test_what_cannot_be_read_now_is_not_taken_for_sound(folder: Path) -> None:
    disk = FailingDisk(10**6)
    with closing(FolderRepair(folder, disk)) as repairs:
        disk.left = 0
        with pytest.raises(OSError, match="Input/output error"):
            repairs.scrub()


def test_a_catalog_that_is_found_damaged_is_told(folder: Path) -> None:
    path = folder / "catalogue.sqlite3"
    with closing(FolderRepair(folder, OsDisk())) as repairs:
        path.write_bytes(path.read_bytes()[:PAGE] + bytes(PAGE))
        repairs.scrub()
        assert [damage.where for damage in repairs.unnamed] == [path.name]


def test_a_lost_header_of_a_segment_is_told_once(tmp_path: Path) -> None:
    """The catalog knows how to read the rest, so nothing is lost."""
    folder = tmp_path / "data"
    with run(folder, StoreSettings(segment_bytes=12_000)) as opened:
        for each in ROWS:
            opened.write(QUEUE, each)
    segment = min((folder / "journal").iterdir())
    segment.write_bytes(bytes(HEADER_SIZE) + segment.read_bytes()[HEADER_SIZE:])
    for expected in ([segment.name], []):
        with closing(FolderRepair(folder, OsDisk())) as repairs:
            repairs.scrub()
            assert [damage.where for damage in repairs.forget_unnamed()] == expected
            assert repairs.names() == []
    assert messages_of(folder) == ROWS
    assert read_reports(folder / "damaged", OsDisk()) == []
