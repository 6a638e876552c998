"""Pages of one partition's file in that of another: no client gets what is another channel's, and a
file whose own header is in its write-ahead log is kept."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import (
    Chunk,
    KeyRetained,
    MetadataSet,
    PartitionKind,
    Position,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.interface import Fault, Seek
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.message_attributes import DueAt, UniqueKey
from millpond.actors.store.partitions.file_pool import FilePool, file_name, file_seed, is_file_name
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.repair.salvage import SalvagedFile, read_partition
from millpond.actors.store.subscribers import Acked, Subscriber
from tests.actors.store.harness import LAZY, NOW, SMALL, copied, run, young_id
from tests.actors.store.older_files import without_seed

OWN, OTHER = b"chat/own", b"chat/other"
OWN_LOG, OTHER_LOG = b"log/own", b"log/other"
ID = young_id(60.0)
COUNT = 40
PAGE = 4096


def row(number: int, *, is_other: bool = False) -> StoredMessage:
    """All are of one size, so that numbers and sizes alone tell nothing."""
    mark = b"other" if is_other else b"owned"
    return StoredMessage(
        ID + 2 * number + is_other, number, 3600, NOW + 3600, b"%b %02d" % (mark, number) * 100
    )


def chunk(number: int, *, is_other: bool = False) -> Chunk:
    at = Position(2 * number + is_other, 0)
    mark = b"other" if is_other else b"owned"
    return Chunk(number, 1, number, number, at, at, b"%b %02d" % (mark, number) * 100)


ROWS, OTHER_ROWS = ([row(each, is_other=is_other) for each in range(COUNT)] for is_other in (0, 1))
CHUNKS = [chunk(each) for each in range(COUNT)]
OTHER_CHUNKS = [chunk(each, is_other=True) for each in range(COUNT)]


@pytest.fixture(params=[False, True], ids=["this version", "older"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The folder of a node that was killed: two queues and two logs, whose last rows and headers
    are in write-ahead logs. The files are of this version, or of the one before."""
    return killed_folder(tmp_path, is_older=request.param)


@pytest.fixture
def current(tmp_path: Path) -> Path:
    """The same, of this version."""
    return killed_folder(tmp_path)


def killed_folder(tmp_path: Path, *, is_older: bool = False) -> Path:
    data = tmp_path / "data"
    for part in (slice(0, COUNT - 1), slice(COUNT - 1, COUNT)):
        with run(data, SMALL) as opened:
            opened.write(OWN, *ROWS[part])
            opened.write(OTHER, *OTHER_ROWS[part])
            opened.write(OWN_LOG, *CHUNKS[part])
            opened.write(OTHER_LOG, *OTHER_CHUNKS[part])
            if not part.start:
                opened.write(OWN_LOG, MetadataSet(b"of", b"own"))
                opened.write(OTHER_LOG, MetadataSet(b"of", b"other"))
            opened.flush()
            killed = copied(data, f"killed {part.stop}")
        for name in (OWN, OTHER, OWN_LOG, OTHER_LOG):
            if is_older and not part.start:
                without_seed(file_of(data, name))
    for name in (OWN, OTHER, OWN_LOG, OTHER_LOG):
        assert wal_of(killed, name).stat().st_size > PAGE
    return killed


def file_of(folder: Path, name: bytes) -> Path:
    return folder / "partitions" / file_name(name)


def wal_of(folder: Path, name: bytes) -> Path:
    path = file_of(folder, name)
    return path.with_name(path.name + "-wal")


def salvaged(folder: Path, name: bytes) -> SalvagedFile:
    path = file_of(folder, name)
    seeds = {file_seed(each) for each in folder.rglob("*.sqlite3") if is_file_name(each.name)}
    return read_partition(path, OsDisk(), name, lambda other: file_of(folder, other), seeds)


def messages(folder: Path) -> list[StoredMessage]:
    return salvaged(folder, OWN).queue().snapshot.rows


def chunks(folder: Path) -> list[Chunk]:
    return salvaged(folder, OWN_LOG).log().chunks


def page_of(folder: Path, name: bytes, what: bytes | str) -> int:
    """The number, from 0, of the page with these bytes, or of the root page of a table."""
    path = file_of(folder, name)
    if isinstance(what, bytes):
        return path.read_bytes().index(what) // PAGE
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
        of = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
        return int(connection.execute(of, (what,)).fetchone()[0]) - 1


def misdirect(folder: Path, source: tuple[bytes, int], target: tuple[bytes, int]) -> None:
    """A write of a page of one file went to a page of another one."""
    data = file_of(folder, source[0]).read_bytes()[PAGE * source[1] :][:PAGE]
    path = file_of(folder, target[0])
    damaged = bytearray(path.read_bytes())
    damaged[PAGE * target[1] : PAGE * target[1] + PAGE] = data
    path.write_bytes(damaged)


def misdirect_header(folder: Path, source: bytes, target: bytes) -> None:
    """To the place of the header, of which there is a newer one in the log."""
    pages = (page_of(folder, source, "meta"), page_of(folder, target, "meta"))
    misdirect(folder, (source, pages[0]), (target, pages[1]))


def test_a_file_with_another_header_is_kept_if_its_own_is_in_the_log(folder: Path) -> None:
    misdirect_header(folder, OTHER, OWN)
    misdirect_header(folder, OTHER_LOG, OWN_LOG)
    assert messages(folder) == ROWS
    assert chunks(folder) == CHUNKS
    assert salvaged(folder, OWN_LOG).log().metadata == {b"of": b"own"}


@pytest.mark.parametrize("is_other_there", [True, False])
def test_the_file_of_another_is_not_this_one_because_the_log_is(
    folder: Path, *, is_other_there: bool
) -> None:
    """Only what the log has is of this one; the other file may be in the place of this one, too."""
    for name, other in ((OWN, OTHER), (OWN_LOG, OTHER_LOG)):
        own = file_of(folder, name).read_bytes()
        shutil.copy(file_of(folder, other), file_of(folder, name))
        if not is_other_there:
            file_of(folder, other).write_bytes(own)
    found = messages(folder)
    assert found and set(found) < set(ROWS)
    some = chunks(folder)
    assert some and set(some) < set(CHUNKS)


def test_rows_that_came_with_the_header_of_another_are_not_its_own(folder: Path) -> None:
    """They are as many, and as large, as those whose place they took."""
    for name, other, mark in ((OWN, OTHER, b"%b 05"), (OWN_LOG, OTHER_LOG, b"%b 05")):
        place = page_of(folder, name, mark % b"owned")
        source = page_of(folder, other, mark % b"other")
        misdirect(folder, (other, source), (name, place))
        misdirect_header(folder, other, name)
    found = messages(folder)
    assert set(found) < set(ROWS) and len(found) >= COUNT - 6
    some = chunks(folder)
    assert set(some) < set(CHUNKS) and len(some) >= COUNT - 6


def test_properties_that_came_with_the_header_of_another_are_not_its_own(folder: Path) -> None:
    pages = [page_of(folder, name, "notes") for name in (OTHER_LOG, OWN_LOG)]
    misdirect(folder, (OTHER_LOG, pages[0]), (OWN_LOG, pages[1]))
    misdirect_header(folder, OTHER_LOG, OWN_LOG)
    found = salvaged(folder, OWN_LOG).log()
    assert (found.metadata, found.lost_metadata) == ({}, 1)
    assert found.chunks == CHUNKS


@pytest.mark.parametrize("is_other_there", [True, False])
def test_rows_of_another_file_are_not_its_own_whatever_else_is_there(
    current: Path, *, is_other_there: bool
) -> None:
    """No header came with them, they are as many and as large, and their file may be gone."""
    for name, other in ((OWN, OTHER), (OWN_LOG, OTHER_LOG)):
        place = page_of(current, name, b"%b 05" % b"owned")
        misdirect(current, (other, page_of(current, other, b"%b 05" % b"other")), (name, place))
        if not is_other_there:
            file_of(current, other).unlink()
    found = salvaged(current, OWN).queue()
    gone = {row.id for row in ROWS} - {row.id for row in found.snapshot.rows}
    assert set(found.snapshot.rows) < set(ROWS) and 0 < len(gone) <= 6
    assert found.lost_count == len(gone)
    if is_other_there:
        assert found.lost == [], "ids of the other one are no ids of this one"
    some = chunks(current)
    assert set(some) < set(CHUNKS) and len(some) >= COUNT - 6


def queue_of(*, is_other: bool) -> QueueMemtable:
    """Some of everything, of one size in both."""
    memtable = QueueMemtable(is_oldest=True)
    one = row(1, is_other=is_other)
    mark = b"b" if is_other else b"a"
    left = StoredKey(ID - 1, 60, NOW + 9000.0, bytes(32))
    memtable.fold([one, Subscriber(1, mark * 32, NOW + 9000.0, 0), Acked(1, one.id)])
    memtable.fold([DueAt(one.id, NOW + 5.5), UniqueKey(one.id, mark), KeyRetained(900, left)])
    return memtable


@pytest.mark.parametrize("table", ["members", "acks", "dues", "uniques", "keys"])
def test_lesser_rows_of_another_file_are_not_its_own(tmp_path: Path, table: str) -> None:
    pool = FilePool(tmp_path / "partitions", OsDisk())
    for is_other, name in ((False, OWN), (True, OTHER)):
        pool.make(name, PartitionKind.QUEUE, queue_of(is_other=is_other), 1, 2)
    whole = salvaged(tmp_path, OWN).queue().snapshot
    misdirect(
        tmp_path, (OTHER, page_of(tmp_path, OTHER, table)), (OWN, page_of(tmp_path, OWN, table))
    )
    found = salvaged(tmp_path, OWN).queue()
    parts, losses = (
        (each.rows, each.keys.keys() - {1}, each.subscribers, each.attributes)
        for each in (whole, found.snapshot)
    )
    assert [one == other for one, other in zip(parts, losses, strict=True)] == [
        True,
        table != "keys",
        table not in ("members", "acks"),
        table not in ("dues", "uniques"),
    ]
    assert found.lost == [] and found.is_delivery_known == (table == "keys")


def test_properties_of_another_file_are_not_its_own(tmp_path: Path) -> None:
    pool = FilePool(tmp_path / "partitions", OsDisk())
    for name in (OWN_LOG, OTHER_LOG):
        memtable = LogMemtable(is_oldest=True)
        memtable.fold([MetadataSet(b"of", name), *CHUNKS])
        pool.make(name, PartitionKind.LOG, memtable, 1, 2)
    pages = [page_of(tmp_path, name, "notes") for name in (OTHER_LOG, OWN_LOG)]
    misdirect(tmp_path, (OTHER_LOG, pages[0]), (OWN_LOG, pages[1]))
    found = salvaged(tmp_path, OWN_LOG).log()
    assert (found.metadata, found.lost_metadata, found.chunks) == ({}, 1, CHUNKS)


@pytest.mark.parametrize("name", [OWN, OWN_LOG])
def test_a_node_does_not_serve_rows_of_another_file(tmp_path: Path, name: bytes) -> None:
    """Chunks of the other log have the same sequences, and all in between is as it should be."""
    data = tmp_path / "data"
    with run(data, SMALL) as opened:
        opened.write(OWN, *ROWS)
        opened.write(OTHER, *OTHER_ROWS)
        opened.write(OWN_LOG, *CHUNKS)
        opened.write(OTHER_LOG, *OTHER_CHUNKS)
        opened.flush()
    other = OTHER if name == OWN else OTHER_LOG
    place = page_of(data, name, b"%b 05" % b"owned")
    misdirect(data, (other, page_of(data, other, b"%b 05" % b"other")), (name, place))
    with run(data, LAZY) as opened:
        store = opened.store
        answer = store.load(OWN) if name == OWN else store.read(OWN_LOG, Seek(SeekBy.SEQUENCE, 0))
        assert opened.finish(answer) is Fault.DAMAGED


def test_the_same_property_of_two_logs_is_kept(folder: Path) -> None:
    """All is there that the header counts."""
    data = folder.parent / "same"
    with run(data, SMALL) as opened:
        opened.write(OWN_LOG, MetadataSet(b"type", b"text"), *CHUNKS)
        opened.write(OTHER_LOG, MetadataSet(b"type", b"text"), *OTHER_CHUNKS)
        opened.flush()
        killed = copied(data, "same killed")
    place = file_of(killed, OWN_LOG).stat().st_size // PAGE
    misdirect(killed, (OTHER_LOG, page_of(killed, OTHER_LOG, "meta")), (OWN_LOG, place))
    found = salvaged(killed, OWN_LOG).log()
    assert (found.metadata, found.lost_metadata) == ({b"type": b"text"}, 0)
    assert found.chunks == CHUNKS
