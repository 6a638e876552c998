"""Segments of the journal that are missing, zeroed, cut off, foreign, and catalogs that are lost or
old: the names that lost something refuse, and nothing is given out twice."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import msgspec
import pytest

from millpond.actors.store.catalog_copy import COPY
from millpond.actors.store.changes import (
    Chunk,
    LogSnapshot,
    Position,
    Snapshot,
    StoredMessage,
)
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.interface import Fault
from millpond.actors.store.journal.format import HEADER_SIZE
from millpond.actors.store.journal.segments import ID_STEP
from millpond.actors.store.partitions.catalog import CATALOG
from millpond.actors.store.repair.quarantine import Damage, read_reports, write_report
from millpond.actors.store.settings import StoreSettings
from tests.actors.store.harness import (
    LAZY,
    NOW,
    Run,
    catalog_removed,
    copied,
    run,
    young_id,
)

LOG, EARLY, LATE, UNKNOWN = b"streams/orders", b"early", b"late", b"never heard of"
ALL = {LOG, EARLY, LATE, UNKNOWN}
ID = young_id()
SEGMENTS = StoreSettings(segment_bytes=12_000)
"""Each segment takes about seven messages, and stays."""


def row(number: int) -> StoredMessage:
    return StoredMessage(ID + number, number, 3600, NOW + 3600, b"%d" % number + bytes(1000))


def chunk(first: int) -> Chunk:
    ids = Position(first, 0), Position(first + 9, 0)
    return Chunk(first, 10, first, first + 9, *ids, bytes(100))


def written(opened: Run) -> None:
    """Ten messages in one channel, then ten in another, a log all the time: three segments."""
    for number in range(10):
        opened.write(EARLY, row(number))
        opened.write(LOG, chunk(10 * number))
    for number in range(10, 20):
        opened.write(LATE, row(number))


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A node that was stopped."""
    with run(tmp_path / "data", SEGMENTS) as opened:
        written(opened)
    assert len(segments(tmp_path / "data")) == 3
    return tmp_path / "data"


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A node that was killed."""
    with run(tmp_path / "data", SEGMENTS) as opened:
        written(opened)
        return copied(opened.folder, "killed")


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "journal").glob("*.journal"))


def removed(path: Path) -> None:
    path.unlink()


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def tail_zeroed(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: HEADER_SIZE + 1200].ljust(len(data), b"\0"))


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: HEADER_SIZE + 1200])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def exchanged(path: Path) -> None:
    """That of another node, with the same number."""
    other = path.parent.parent.with_name("other")
    opened = Run(other, SEGMENTS, seed=9)
    for _ in range(4):
        written(opened)
    opened.close()
    shutil.copy(other / "journal" / path.name, path)
    shutil.rmtree(other)


FAULTS = [removed, zeroed, tail_zeroed, cut_off, emptied, exchanged]


def load(opened: Run, name: bytes) -> Snapshot | LogSnapshot | Fault:
    if name == LOG:
        return opened.finish(opened.store.log_snapshot(name))
    return opened.finish(opened.store.load(name))


def refused(opened: Run) -> set[bytes]:
    return {name for name in (LOG, EARLY, LATE, UNKNOWN) if load(opened, name) is Fault.DAMAGED}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("index", "names"), [(0, {LOG, EARLY}), (1, {LOG, EARLY, LATE}), (2, {LATE})]
)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_names_of_a_complete_segment_are_refused(
    stopped: Path, index: int, names: set[bytes], fault: Callable[[Path], None], is_restarted: bool
) -> None:
    """After a clean stop, or a restart after a crash, all segments are complete."""
    if is_restarted:
        with run(stopped, LAZY):
            pass
    fault(segments(stopped)[index])
    for _ in range(2):
        with run(stopped, LAZY) as opened:
            assert refused(opened) == names
            assert {each.name for each in opened.store.damages} >= names
            assert not any(each.is_all for each in opened.store.damages)
            assert opened.store.last_id >= ID + 19, "no id comes again"
            if LATE not in names:
                assert load(opened, LATE).rows[-1] == row(19)  # type: ignore[union-attr]
    reports = {each.name: each for each in read_reports(stopped / "damaged", OsDisk())}
    if LOG in names:
        # An append in the next segment tells its tail.
        assert (reports[LOG].records_max >= 100) is (index == 1)


@pytest.mark.parametrize("fault", [removed, zeroed, cut_off, emptied, exchanged])
def test_without_the_last_segment_after_a_crash_every_name_is_refused(
    killed: Path, fault: Callable[[Path], None]
) -> None:
    """Any name may have had records in it, also one that nothing is known of."""
    fault(segments(killed)[-1])
    for _ in range(2):
        with run(killed, LAZY) as opened:
            assert refused(opened) == {LOG, EARLY, LATE, UNKNOWN}
            (damage,) = opened.store.damages
            assert damage.is_all and damage.name is None
            assert opened.store.last_id >= ID + 19
            refusal = opened.store.write(UNKNOWN, [row(99)])
            assert refusal is not None and opened.finish(refusal) is Fault.NOT_STORED


def test_a_sound_folder_has_no_damage(stopped: Path, killed: Path) -> None:
    for folder in (stopped, killed):
        for _ in range(3):
            with run(folder, SEGMENTS) as opened:
                assert refused(opened) == set() and opened.store.damages == []
                opened.write(EARLY, row(1000 + opened.found.tail.lsn))


def test_no_segment_at_all_is_no_new_folder(stopped: Path) -> None:
    for each in segments(stopped):
        each.unlink()
    with run(stopped, LAZY) as opened:
        assert refused(opened) == {LOG, EARLY, LATE}
        opened.write(UNKNOWN, row(2000))
    assert [int(each.stem) for each in segments(stopped)] == [4], "no number comes again"


def test_what_is_repaired_is_not_found_again(stopped: Path) -> None:
    """An operator who removes the reports accepts the loss."""
    segments(stopped)[0].unlink()
    with run(stopped, LAZY) as opened:
        assert refused(opened) == {LOG, EARLY}
    for report in (stopped / "damaged").iterdir():
        report.unlink()
    with run(stopped, LAZY) as opened:
        assert opened.store.damages == [] or {each.name for each in opened.store.damages} == {LOG}
        assert EARLY not in refused(opened)


def test_ids_go_on_above_all_that_were_acknowledged(stopped: Path) -> None:
    """The same with any time of the clock after the restart."""
    with run(stopped, LAZY) as opened:
        before = opened.store.last_id
        opened.write(LATE, row(5000))
        highest = ID + 5000
    segments(stopped)[-1].unlink()
    with run(stopped, LAZY) as opened:
        assert before < highest <= opened.store.last_id <= highest + ID_STEP


class TestCatalogs:
    def test_a_lost_one_is_made_anew_and_reported(self, stopped: Path) -> None:
        catalog_removed(stopped)
        for _ in range(2):
            with run(stopped, LAZY) as opened:
                assert [each.where for each in opened.store.damages] == ["catalogue.sqlite3"]
                assert refused(opened) == ALL, "nothing proves that this is all there was"

    def test_headers_tell_of_a_hole_without_it(self, stopped: Path) -> None:
        catalog_removed(stopped)
        segments(stopped)[1].unlink()
        with run(stopped, LAZY) as opened:
            assert refused(opened) == {LOG, EARLY, LATE, UNKNOWN}

    def test_headers_tell_of_a_foreign_segment_without_it(self, stopped: Path) -> None:
        catalog_removed(stopped)
        exchanged(segments(stopped)[0])
        with run(stopped, LAZY) as opened:
            assert refused(opened) == {LOG, EARLY, LATE, UNKNOWN}

    def test_an_older_one_is_found(self, tmp_path: Path) -> None:
        with run(tmp_path / "data", SEGMENTS) as opened:
            opened.write(EARLY, row(1))
        shutil.copy(tmp_path / "data" / "catalogue.sqlite3", tmp_path / "old")
        with run(tmp_path / "data", SEGMENTS) as opened:
            written(opened)
        catalog_removed(tmp_path / "data")
        shutil.copy(tmp_path / "old", tmp_path / "data" / "catalogue.sqlite3")
        with run(tmp_path / "data", LAZY) as opened:
            assert [each.where for each in opened.store.damages] == ["catalogue.sqlite3"]
            assert refused(opened) == ALL


def test_losses_of_one_name_add_up_in_its_report(tmp_path: Path) -> None:
    """Each may have had as many records as it had bytes; the same one counts once."""
    disk, first = OsDisk(), Damage("1.journal", "missing", LOG, records_max=100)
    second = Damage("2.journal", "zeroed", LOG, records_max=50)
    for damage in (first, second, first, second):
        write_report(tmp_path, disk, damage)
    (report,) = read_reports(tmp_path, disk)
    assert (report.name, report.records_max, report.text) == (LOG, 150, "missing")
    assert report.where == "1.journal; 2.journal"


def test_a_torn_segment_that_is_lost_later_is_damage(killed: Path) -> None:
    """A torn end was never promised; everything before it was."""
    path = segments(killed)[-1]
    with path.open("r+b") as file:
        file.seek(HEADER_SIZE + len(path.read_bytes()[HEADER_SIZE:].rstrip(b"\0")) - 50)
        file.write(bytes(50))
    with run(killed, LAZY) as opened:
        assert opened.store.damages == [] and opened.found.torn_bytes
    path.unlink()
    with run(killed, LAZY) as opened:
        assert LATE in refused(opened)


def test_a_second_loss_in_a_segment_is_found_as_well(stopped: Path) -> None:
    path = segments(stopped)[1]
    data = bytearray(path.read_bytes())
    at = data.index(bytes(800), HEADER_SIZE)
    data[at] ^= 1
    path.write_bytes(data)
    with run(stopped, LAZY) as opened:
        before = refused(opened)
        assert len(before) == 1
    path.unlink()
    with run(stopped, LAZY) as opened:
        assert refused(opened) > before


def test_a_report_grows_with_the_loss_in_one_place(stopped: Path) -> None:
    """A header that only the catalog could replace, and then the catalog is lost."""
    path = segments(stopped)[0]
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    with run(stopped, LAZY) as opened:
        assert refused(opened) == set() and len(opened.store.damages) == 1
    catalog_removed(stopped)
    with run(stopped, LAZY) as opened:
        assert refused(opened) == {LOG, EARLY, LATE, UNKNOWN}


def changed_catalog(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "catalogue.sqlite3")) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM segments",
        "DELETE FROM segments WHERE number = 2",
        "DELETE FROM marks",
        "UPDATE sqlite_master SET rootpage = 3 WHERE name = 'partitions_dirty'",
    ],
)
def test_a_catalog_that_lost_rows_is_made_anew(stopped: Path, statement: str) -> None:
    """Rows have checksums; that one is gone shows their number. Indexes are compared with them."""
    (stopped / COPY).unlink()
    changed_catalog(stopped, statement)
    with run(stopped, LAZY) as opened:
        assert [each.where for each in opened.store.damages] == ["catalogue.sqlite3"]
        assert refused(opened) == ALL


def test_what_a_damaged_partition_needs_is_not_written_again_for_ever(stopped: Path) -> None:
    """More than the whole budget of the journal is of a partition that cannot be flushed."""
    path = segments(stopped)[0]
    data = bytearray(path.read_bytes())
    data[data.index(bytes(800), HEADER_SIZE)] ^= 1
    path.write_bytes(data)
    small = StoreSettings(segment_bytes=4000, journal_bytes_max=4000, rewrite_bytes_max=0)
    with run(stopped, small) as opened:
        opened.write(UNKNOWN, row(2000))
        opened.work()
        assert opened.store.stats.carries < 10
        opened.write(UNKNOWN, row(2001))
        assert len(load(opened, UNKNOWN).rows) == 2  # type: ignore[union-attr]


def test_segments_that_damaged_partitions_need_are_not_too_many(stopped: Path) -> None:
    """Each has a segment of its own, because its changes are larger than one."""
    for index, number in ((0, 1), (2, 19)):
        path = segments(stopped)[index]
        data = bytearray(path.read_bytes())
        data[data.index(row(number).data) + 500] ^= 1
        path.write_bytes(data)
    few = StoreSettings(segment_bytes=4000, segments_max=1, rewrite_bytes_max=0)
    with run(stopped, few) as opened:
        assert refused(opened) == {EARLY, LATE}
        opened.write(UNKNOWN, row(2000))
        opened.work()
        assert opened.store.stats.carries < 20


def test_a_blank_segment_is_not_the_newest(stopped: Path) -> None:
    """It was made before a crash and never used: it does not say how far the journal went."""
    (stopped / "journal" / f"{4:020}.journal").write_bytes(bytes(4096))
    small = StoreSettings(segment_bytes=4000, journal_bytes_max=1, rewrite_bytes_max=0)
    with run(stopped, small) as opened:
        opened.work()
    for _ in range(2):
        with run(stopped, LAZY) as opened:
            assert refused(opened) == set() and opened.store.damages == []


@pytest.mark.parametrize(
    "target",
    [3, 7, 11, *(pytest.param(n, marks=pytest.mark.full) for n in (4, 5, 6, 8, 9, 10))],
)
def test_a_write_that_went_elsewhere_in_its_segment_takes_no_message_silently(
    tmp_path: Path, target: int
) -> None:
    """Lost records leave no gap of their size where others were written over them."""
    names = {b"channel %d" % number: number for number in range(50)}
    with run(tmp_path / "data") as opened:
        for name, number in names.items():
            opened.write(name, msgspec.structs.replace(row(number), data=bytes(5 * number)))
    (path,) = segments(tmp_path / "data")
    data = path.read_bytes()
    for source in range(1, 14):
        copy = copied(tmp_path / "data", f"copy{source}")
        changed = bytearray(data)
        changed[512 * target : 512 * target + 1024] = data[512 * source : 512 * source + 1024]
        segments(copy)[0].write_bytes(changed)
        with run(copy) as opened:
            for name in names:
                found = load(opened, name)
                assert found is Fault.DAMAGED or len(found.rows) == 1, (source, name)


@pytest.mark.parametrize("has_header", [True, False])
@pytest.mark.parametrize("count", [1, 30])
def test_a_catalog_from_before_the_only_segment_is_an_older_copy(
    tmp_path: Path, has_header: bool, count: int
) -> None:
    """The segment does not count as one that was made and never used, however little is in it."""
    with run(tmp_path / "data"):
        pass
    catalog = (tmp_path / "data" / CATALOG).read_bytes()
    opened = Run(tmp_path / "data")
    for number in range(count):
        opened.write(LOG, chunk(10 * number))
    killed = copied(tmp_path / "data", "killed")
    for path in killed.glob(f"{CATALOG}*"):
        path.unlink()
    (killed / CATALOG).write_bytes(catalog)
    if not has_header:
        (segment,) = segments(killed)
        segment.write_bytes(bytes(HEADER_SIZE) + segment.read_bytes()[HEADER_SIZE:])
    with run(killed) as opened:
        assert load(opened, LOG) is load(opened, UNKNOWN) is Fault.DAMAGED
        assert CATALOG in [each.where for each in opened.store.damages]


@pytest.mark.parametrize("size", [HEADER_SIZE, 4096])
def test_a_header_that_a_power_failure_garbled_is_no_damage(stopped: Path, size: int) -> None:
    """The segment was made and never listed, so nothing was written to it."""
    garbage = Random(size).randbytes(size).ljust(2**16, b"\0")
    (stopped / "journal" / f"{4:020}.journal").write_bytes(garbage)
    with run(stopped, LAZY) as opened:
        assert refused(opened) == set() and opened.store.damages == []


@pytest.mark.parametrize(("source", "target"), [(7, 6), (9, 6), (19, 2), (6, 7)])
def test_a_write_that_took_the_place_of_another_one_loses_no_message_silently(
    tmp_path: Path, source: int, target: int
) -> None:
    """All groups have the same size, so that no bytes are left over around it."""
    names = {b"channel %02d" % number: number for number in range(20)}
    with run(tmp_path / "data") as opened:
        for name, number in names.items():
            opened.write(name, msgspec.structs.replace(row(number), data=bytes(400)))
    (path,) = segments(tmp_path / "data")
    data = bytearray(path.read_bytes())
    first = data.index(b"ROUP")
    second = data.index(b"ROUP", first + 1)
    size = second - first
    moved = data[first + source * size : first + (source + 1) * size]
    data[first + target * size : first + (target + 1) * size] = moved
    data[first + source * size : first + (source + 1) * size] = bytes(size)
    path.write_bytes(data)
    with run(tmp_path / "data") as opened:
        for name in names:
            found = load(opened, name)
            assert found is Fault.DAMAGED or len(found.rows) == 1, name
