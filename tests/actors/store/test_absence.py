"""Missing data is refused, never empty or shorter: files, old copies, pages, records."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import Chunk, Position, StoredMessage
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.interface import Fault, Seek
from millpond.actors.store.repair.quarantine import read_reports
from tests.actors.store.harness import LAZY, NOW, SMALL, run, young_id

LOG, QUEUE, OTHER = b"streams/orders", b"chat", b"another"
OLD_ID = young_id(60.0)
PAGE = 4096


def chunk(first: int, count: int = 10, size: int = 600) -> Chunk:
    last = first + count - 1
    ids = Position(first, 0), Position(last, 0)
    return Chunk(first, count, 10 * first, 10 * last, *ids, bytes([first % 256]) * size)


def row(number: int, size: int = 300) -> StoredMessage:
    return StoredMessage(OLD_ID + number, number, 3600, NOW + 3600, b"%d" % number + bytes(size))


CHUNKS = [chunk(first) for first in range(0, 400, 10)]
ROWS = [row(number) for number in range(1, 60)]
SEEKS = [
    *(
        Seek(SeekBy.SEQUENCE, first, bytes_max=size)
        for first in (0, 95, 390)
        for size in (1, 2**40)
    ),
    *(Seek(SeekBy.TIMESTAMP, timestamp=at, bytes_max=2**40) for at in (0, 1501, 3990, 9999)),
    *(Seek(SeekBy.ID, id=Position(at, 0), bytes_max=2**40) for at in (0, 155, 399, 999)),
]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, a queue and another queue, in files; the node was stopped."""
    folder = tmp_path_factory.mktemp("stopped") / "data"
    with run(folder, SMALL) as opened:
        for each in CHUNKS:
            opened.write(LOG, each)
        opened.write(QUEUE, *ROWS)
        opened.write(OTHER, row(1))
        opened.flush()
        assert all(opened.file(name).exists() for name in (LOG, QUEUE, OTHER))
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    """A copy of these files."""
    return shutil.copytree(stopped, tmp_path / "data")


def file_of(folder: Path, name: bytes) -> Path:
    with run(folder) as opened:
        return opened.file(name)


def picked(seek: Seek) -> list[Chunk]:
    """The result of a read when nothing is missing."""
    late = [
        each
        for each in CHUNKS
        if each.end > seek.sequence
        and (seek.by is not SeekBy.TIMESTAMP or each.last_timestamp >= seek.timestamp)
        and (seek.by is not SeekBy.ID or each.last_id >= seek.id)
    ]
    return late[:1] if seek.bytes_max == 1 else late


def check_refused(folder: Path, name: bytes) -> None:
    """The name is refused and reported, now and after a restart; the others are served."""
    for _ in range(2):
        with run(folder, LAZY) as opened:
            refused = opened.finish(
                opened.store.log_snapshot(name) if name == LOG else opened.store.load(name)
            )
            assert refused is Fault.DAMAGED
            assert [each.name for each in opened.store.damages] == [name]
            assert opened.store.stats.damaged == 1
            assert opened.load(OTHER).rows == [row(1)]
    assert [each.name for each in read_reports(folder / "damaged", OsDisk())] == [name]


@pytest.mark.parametrize("name", [LOG, QUEUE])
class TestFiles:
    def test_a_missing_file_is_not_an_empty_one(self, folder: Path, name: bytes) -> None:
        path = file_of(folder, name)
        path.unlink()
        check_refused(folder, name)

    def test_an_older_copy_is_refused(self, folder: Path, name: bytes) -> None:
        path = file_of(folder, name)
        shutil.copy(path, folder.parent / "old")
        with run(folder, SMALL) as opened:
            opened.write(LOG, chunk(400, size=4000))
            opened.write(QUEUE, row(100, 4000))
            opened.flush()
        shutil.copy(folder.parent / "old", path)
        check_refused(folder, name)

    def test_a_file_that_the_catalog_does_not_list_is_refused(
        self, folder: Path, name: bytes
    ) -> None:
        path = file_of(folder, name)
        shutil.copy(path, folder.parent / "old")
        other = folder.parent / "other"
        with run(other, SMALL) as opened:
            opened.write(OTHER, row(1))
            opened.flush()
        back = other / path.relative_to(folder)
        back.parent.mkdir(exist_ok=True)
        shutil.copy(folder.parent / "old", back)
        check_refused(other, name)

    def test_a_file_that_is_lost_while_it_is_closed_is_refused(
        self, folder: Path, name: bytes
    ) -> None:
        """Also by a flush, which would make a new one with the latest changes alone."""
        with run(folder, SMALL) as opened:
            opened.file(name).unlink()
            opened.write(name, chunk(400, size=4000) if name == LOG else row(100, 4000))
            opened.flush()
            assert not opened.file(name).exists()
            assert [each.name for each in opened.store.damages] == [name]
        check_refused(folder, name)


def pages_swapped(path: Path, one: int, other: int) -> None:
    data = bytearray(path.read_bytes())
    first, second = slice(one * PAGE, (one + 1) * PAGE), slice(other * PAGE, (other + 1) * PAGE)
    data[first], data[second] = data[second], data[first]
    path.write_bytes(data)


def page_zeroed(path: Path, one: int, other: int) -> None:
    data = bytearray(path.read_bytes())
    data[one * PAGE : (one + 1) * PAGE] = bytes(PAGE)
    path.write_bytes(data)


def page_doubled(path: Path, one: int, other: int) -> None:
    """A misdirected write: the page is where another one was."""
    data = bytearray(path.read_bytes())
    data[other * PAGE : (other + 1) * PAGE] = data[one * PAGE : (one + 1) * PAGE]
    path.write_bytes(data)


def page_cut_short(path: Path, one: int, other: int) -> None:
    """The last cells of a page are not counted, as in an older version of it."""
    data = bytearray(path.read_bytes())
    at = one * PAGE + 3
    count = int.from_bytes(data[at : at + 2])
    data[at : at + 2] = (count // 2).to_bytes(2)
    path.write_bytes(data)


@pytest.mark.parametrize("fault", [pages_swapped, page_zeroed, page_doubled, page_cut_short])
@pytest.mark.parametrize("name", [LOG, QUEUE])
def test_pages_in_wrong_places_give_no_shorter_answer(
    folder: Path, name: bytes, fault: Callable[[Path, int, int], None]
) -> None:
    """A read gives what was written, or an error; of any two pages."""
    path = file_of(folder, name)
    sound = path.read_bytes()
    rng = Random(7)
    count = len(sound) // PAGE
    found = 0
    for _ in range(15):
        one, other = rng.sample(range(1, count), 2)
        fault(path, one, other)
        for each in SEEKS if name == LOG else SEEKS[:1]:
            with run(folder, LAZY) as opened:
                if name == LOG:
                    result = opened.finish(opened.store.read(LOG, each))
                    assert result is Fault.DAMAGED or result == picked(each)
                else:
                    loaded = opened.finish(opened.store.load(QUEUE))
                    assert loaded is Fault.DAMAGED or loaded.rows == ROWS  # type: ignore[union-attr]
                found += bool(opened.store.damages)
            for report in (folder / "damaged").iterdir():
                report.unlink()
        path.write_bytes(sound)
    assert found > 4


def test_a_hole_is_reported_with_its_sequences(folder: Path) -> None:
    path = file_of(folder, LOG)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM chunks WHERE first = 150")
        connection.commit()
    with run(folder, LAZY) as opened:
        assert opened.finish(opened.store.read(LOG, SEEKS[1])) is Fault.DAMAGED
        (damage,) = opened.store.damages
        assert "records 150 to 159 are missing" in damage.text
