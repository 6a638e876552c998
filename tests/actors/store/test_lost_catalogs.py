"""A folder without its catalog: nothing proves what else is missing, so that every name refuses
until a repair, and none begins again where a lost one may have been."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from millpond.actors.store.changes import (
    Chunk,
    MetadataSet,
    PartitionKind,
    Position,
    StoredMessage,
)
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.interface import Fault
from millpond.actors.store.journal.format import Header, encode_header
from millpond.actors.store.partitions.catalog import CATALOG, Catalog
from millpond.actors.store.repair.quarantine import RECORDS_UNKNOWN, read_reports
from millpond.actors.store.repair.repair import FolderRepair, LogRules
from millpond.actors.streams.bounds import beginning
from tests.actors.store.harness import (
    LAZY,
    NOW,
    SMALL,
    Run,
    catalog_removed,
    copied,
    run,
    young_id,
)

LOG, QUEUE, UNKNOWN = b"log", b"queue", b"never heard of"
ID = young_id(60.0)
RULES = LogRules(creation_of=lambda name: MetadataSet(b"created", b"") if name == LOG else None)


def chunk(first: int) -> Chunk:
    ids = Position(first, 0), Position(first + 9, 0)
    return Chunk(first, 10, first, first + 9, *ids, bytes(600))


def row(number: int) -> StoredMessage:
    return StoredMessage(ID + number, number, 3600, NOW + 3600, bytes(300))


def young(number: int) -> StoredMessage:
    """A message that is not settled: a flush leaves it in the journal."""
    return StoredMessage(young_id() + number, 100 + number, 3600, NOW + 3600, bytes(30))


def root_of(catalog: Path, table: str) -> int:
    """Where the first page of a table begins."""
    with closing(OsDisk().connect(catalog)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (number,) = connection.execute(query, (table,)).fetchone()
    return 4096 * (number - 1)


def page_of(folder: Path, table: str) -> bytes:
    """The first page of a table of the catalog."""
    at = root_of(folder / CATALOG, table)
    return (folder / CATALOG).read_bytes()[at : at + 4096]


def put_page(folder: Path, table: str, page: bytes) -> None:
    """Have an older copy of the page in its place."""
    path = folder / CATALOG
    at, data = root_of(path, table), path.read_bytes()
    path.write_bytes(data[:at] + page + data[at + 4096 :])


def written(opened: Run) -> None:
    """A log and a queue, in files and in the journal."""
    for first in range(0, 400, 10):
        opened.write(LOG, chunk(first))
    opened.write(QUEUE, *map(row, range(60)))
    opened.flush()
    opened.write(LOG, chunk(400))
    opened.write(QUEUE, row(100))


@pytest.fixture(params=[True, False], ids=["stopped", "killed"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    with run(tmp_path / "data", SMALL) as opened:
        written(opened)
        assert opened.file(LOG).exists() and opened.file(QUEUE).exists()
        killed = copied(opened.folder, "killed")
    return opened.folder if request.param else killed


def last_segment_removed(folder: Path) -> None:
    max((folder / "journal").glob("*.journal")).unlink()


def segments_removed(folder: Path) -> None:
    for path in (folder / "journal").glob("*.journal"):
        path.unlink()


def journal_removed(folder: Path) -> None:
    shutil.rmtree(folder / "journal")


def files_removed(folder: Path) -> None:
    for path in (folder / "partitions").glob("*/*"):
        path.unlink()


def partitions_removed(folder: Path) -> None:
    shutil.rmtree(folder / "partitions")


def all_removed(folder: Path) -> None:
    journal_removed(folder)
    partitions_removed(folder)


LOSSES = [
    last_segment_removed,
    segments_removed,
    journal_removed,
    files_removed,
    partitions_removed,
    all_removed,
]


def check_all_refused(opened: Run) -> None:
    assert any(each.where == CATALOG and each.is_all for each in opened.store.damages)
    for name in (LOG, QUEUE, UNKNOWN):
        assert opened.finish(opened.store.load(name)) is Fault.DAMAGED
        assert opened.finish(opened.store.log_snapshot(name)) is Fault.DAMAGED
    for name in (QUEUE, UNKNOWN):
        refusal = opened.store.write(name, [row(1000)])
        assert refusal is not None and opened.finish(refusal) is Fault.NOT_STORED
    refusal = opened.store.write(LOG, [chunk(0)])
    assert refusal is not None and opened.finish(refusal) is Fault.NOT_STORED


def repair_all(folder: Path, now: float = NOW, rules: LogRules = RULES) -> None:
    disk = OsDisk()
    with closing(FolderRepair(folder, disk, rules, was_used=True, now=now)) as repairs:
        repairs.scrub()
        for name in repairs.names():
            repairs.repair(name)
        repairs.forget_unnamed()
    assert read_reports(folder / "damaged", disk) == []


@pytest.mark.parametrize("loss", LOSSES)
def test_without_the_catalog_nothing_is_served(folder: Path, loss: Callable[[Path], None]) -> None:
    catalog_removed(folder)
    loss(folder)
    for _ in range(2):
        with run(folder, LAZY) as opened:
            check_all_refused(opened)


@pytest.mark.parametrize("loss", LOSSES)
def test_after_a_repair_no_sequence_comes_again(folder: Path, loss: Callable[[Path], None]) -> None:
    """Neither of a log of which something is left, nor of one that is made again."""
    catalog_removed(folder)
    loss(folder)
    repair_all(folder)
    with run(folder, LAZY) as opened:
        assert opened.store.damages == []
        assert opened.log_snapshot(LOG).tail >= RECORDS_UNKNOWN
        fresh = opened.log_snapshot(UNKNOWN)
        assert fresh.tail == fresh.trim_point >= RECORDS_UNKNOWN
        opened.write(QUEUE, row(1000))


def test_each_loss_of_the_catalog_has_new_sequences(folder: Path) -> None:
    """The catalog alone knew where logs began after the first one."""
    firsts = []
    for days in (0, 1):
        catalog_removed(folder)
        all_removed(folder)
        repair_all(folder, NOW + 86_400 * days)
        with run(folder, LAZY) as opened:
            firsts.append(opened.log_snapshot(UNKNOWN).tail)
    assert firsts[1] - firsts[0] >= 86_400 * 10**6


def test_a_folder_that_nobody_used_is_new(tmp_path: Path) -> None:
    """Also with the mark of a lock, and a place for the journal that was made before."""
    (tmp_path / "lock").write_text("7")
    (tmp_path / "journal").mkdir()
    for _ in range(2):
        with run(tmp_path) as opened:
            assert opened.store.damages == []
            assert opened.log_snapshot(UNKNOWN).tail == 0
    with run(tmp_path) as opened:
        opened.write(LOG, chunk(0))
    with run(tmp_path) as opened:
        assert opened.log_snapshot(LOG).tail == 10


def test_a_catalog_alone_is_that_of_a_first_start_that_was_cut_short(tmp_path: Path) -> None:
    with run(tmp_path):
        pass
    all_removed(tmp_path)
    shutil.rmtree(tmp_path / "damaged")
    with run(tmp_path) as opened:
        assert opened.store.damages == []


def test_other_proofs_of_a_former_run_count(tmp_path: Path) -> None:
    """Nothing of the store itself is left."""
    opened = Run(tmp_path / "data", LAZY, was_used=True)
    check_all_refused(opened)
    opened.close()


def test_a_name_whose_file_cannot_say_whose_it_is_refuses(tmp_path: Path) -> None:
    """The file of a queue comes into a folder that does not list it, and its head is damaged."""
    with run(tmp_path / "one", SMALL) as opened:
        written(opened)
        path = opened.file(QUEUE)
    data = bytearray(path.read_bytes())
    data[:4096] = bytes(4096)
    with run(tmp_path / "other", LAZY) as opened:
        opened.write(LOG, chunk(0))
    place = tmp_path / "other" / path.relative_to(tmp_path / "one")
    place.parent.mkdir(parents=True)
    place.write_bytes(data)
    with run(tmp_path / "other", LAZY) as opened:
        (damage,) = opened.store.damages
        assert damage.name is None and not damage.is_all
        assert opened.finish(opened.store.load(QUEUE)) is Fault.DAMAGED
        refusal = opened.store.write(QUEUE, [row(1)])
        assert refusal is not None and opened.finish(refusal) is Fault.NOT_STORED
        assert opened.log_snapshot(LOG).tail == 10
        opened.write(UNKNOWN, row(1))


@pytest.mark.parametrize("is_catalog_lost", [True, False])
def test_a_repair_moves_a_file_away_that_cannot_say_whose_it_is(
    tmp_path: Path, is_catalog_lost: bool
) -> None:
    """Else every start would find it again. It is kept beside the reports."""
    folder = tmp_path / "data"
    with run(folder, SMALL) as opened:
        opened.write(LOG, *map(chunk, range(0, 400, 10)))
        opened.flush()
        path = opened.file(QUEUE)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"nothing" * 1000)
    if is_catalog_lost:
        catalog_removed(folder)
    repair_all(folder)
    assert not path.exists()
    assert (folder / "damaged" / f"{path.name}.1").read_bytes() == b"nothing" * 1000
    for _ in range(2):
        with run(folder, LAZY) as opened:
            assert opened.store.damages == []
            assert opened.log_snapshot(LOG).tail == 400 + is_catalog_lost * RECORDS_UNKNOWN
            assert opened.load(QUEUE).rows == []


def test_an_older_page_with_the_list_of_segments_is_noticed(tmp_path: Path) -> None:
    """Its write was lost, and all other pages of the catalog are newer: the generation is."""
    opened = Run(tmp_path / "data", SMALL)
    query = "SELECT * FROM segments"
    written(opened)
    with closing(OsDisk().connect(opened.folder / CATALOG)) as catalog:
        old = catalog.execute(query).fetchall()
        newest = max(row[0] for row in old)
        while not min(row[0] for row in catalog.execute(query)) > newest + 1:
            opened.flush(1)
        (count,) = catalog.execute("SELECT value FROM marks WHERE name = 'segments'").fetchone()
        assert count == len(old)
    opened.write(QUEUE, row(101))
    killed = copied(opened.folder, "killed")
    opened.close()
    with closing(OsDisk().connect(killed / CATALOG)) as catalog:
        catalog.execute("DELETE FROM segments")
        catalog.executemany(f"INSERT INTO segments VALUES ({', '.join('?' * 11)})", old)
    opened = Run(killed)
    check_all_refused(opened)
    opened.close()
    repair_all(killed)
    with run(killed) as opened:
        assert ID + 101 in {each.id for each in opened.load(QUEUE).rows}


def test_a_log_made_after_a_loss_and_lost_as_well_is_repaired_above_its_sequences(
    folder: Path,
) -> None:
    """Nothing is left that tells where it began."""
    catalog_removed(folder)
    Run(folder).close()
    repair_all(folder)
    with run(folder) as opened:
        first = opened.log_snapshot(UNKNOWN).tail
        assert first
        opened.write(UNKNOWN, *beginning(first), chunk(first))
    newest = max((folder / "journal").glob("*.journal"))
    newest.write_bytes(bytes(newest.stat().st_size))
    Run(folder).close()
    repair_all(folder, rules=LogRules(creation_of=lambda name: MetadataSet(b"created", b"")))
    with run(folder) as opened:
        outline = opened.log_snapshot(UNKNOWN)
        assert first <= outline.trim_point and outline.tail >= first + 10


def test_a_segment_that_was_not_listed_yet_says_nothing_of_the_list(tmp_path: Path) -> None:
    """The one before is not needed, and is out of the list already; nothing is in the new one."""
    with run(tmp_path / "data") as opened:
        opened.write(QUEUE, row(1))
    newest = max((opened.folder / "journal").glob("*.journal"))
    with closing(Catalog(opened.folder / CATALOG, OsDisk())) as catalog:
        (segment,) = catalog.segments().values()
        catalog.change_segments(forgotten=[segment.number])
        header = Header(2, segment.last_lsn + 1, 7, 0, {}, segment.link, catalog.generation)
    newest.unlink()
    data = encode_header(header)
    newest.with_name(f"{2:020}.journal").write_bytes(data + bytes(2**16 - len(data)))
    with run(opened.folder) as opened:
        assert opened.store.damages == []


def test_an_older_catalog_with_files_in_change_is_noticed(tmp_path: Path) -> None:
    """To enter the files as they are raises its generation to that of the segment's header."""
    with run(tmp_path / "data", SMALL) as opened:
        written(opened)
    opened = Run(tmp_path / "data")
    opened.found.files.mark([(LOG, PartitionKind.LOG)])
    old = copied(opened.folder, "old")
    opened.write(QUEUE, row(101))
    killed = copied(opened.folder, "killed")
    opened.close()
    for path in old.glob("catalogue.sqlite3*"):
        shutil.copy(path, killed)
    opened = Run(killed)
    check_all_refused(opened)
    opened.close()


def test_an_older_page_with_the_rows_of_files_is_noticed(tmp_path: Path) -> None:
    """Its write was lost, and the index of the names, which the first read of a file needs, is
    newer. The row of the file decides which records of the journal count."""
    opened = Run(tmp_path / "data", SMALL)
    pages: list[bytes] = []
    for number in range(12):
        opened.write(QUEUE, row(number), young(number))
        opened.flush(1)
        killed = copied(opened.folder, f"killed{number}")
        pages.append(page_of(killed, "partitions"))
        for older, page in enumerate(pages[:-1]):
            damaged = copied(killed, f"damaged{number}.{older}")
            put_page(damaged, "partitions", page)
            with run(damaged) as again:
                found = again.finish(again.store.load(QUEUE))
            assert found is Fault.DAMAGED or len(found.rows) == 2 * (number + 1)
    opened.close()
    put_page(opened.folder, "partitions", pages[0])
    with run(opened.folder) as again:
        assert len(again.load(QUEUE).rows) == 24, "the copy takes its place"
