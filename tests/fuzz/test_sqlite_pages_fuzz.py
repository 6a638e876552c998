"""The reader of SQLite pages: what SQLite wrote is read, and damage costs what it hits, no more.

Each round is seeded, so a failure names the damage that caused it and repeats.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from random import Random
from zlib import crc32

import pytest

from millpond.actors.store.repair.sqlite_pages import BadRow, FoundRow, Value, read_rows

pytestmark = pytest.mark.wire

PAGE = 4096
ROUNDS = [pytest.param(10, id="normal"), pytest.param(500, id="full", marks=pytest.mark.full)]
SCHEMA = """
CREATE TABLE rows (number INTEGER PRIMARY KEY, size INTEGER, crc INTEGER, data BLOB);
CREATE INDEX by_size ON rows (size);
CREATE TABLE pairs (one INTEGER, other INTEGER, crc INTEGER, PRIMARY KEY (one, other))
    WITHOUT ROWID;
"""

Row = tuple[int, int, bytes]
File = tuple[bytes, bytes]
"""A file and its write-ahead log."""


def content(number: int) -> bytes:
    """Small rows, and some on several pages."""
    return Random(number).randbytes(10_000 if number % 40 == 0 else 10 + number % 150)


def row(number: int) -> Row:
    return number, len(content(number)), content(number)


def pair(number: int) -> Row:
    return number, number * 7, b""


def checksum(*values: object) -> int:
    return crc32(repr(values).encode())


def decode(rowid: int | None, columns: tuple[Value, ...]) -> Row | None:
    match columns:
        case (None, int(size), int(crc), bytes(data)) if rowid is not None:
            return (rowid, size, data) if crc == checksum(rowid, size, data) else None
        case (int(one), int(other), int(crc)) if rowid is None:
            return (one, other, b"") if crc == checksum(one, other, b"") else None
    return None


def add(connection: sqlite3.Connection, numbers: range) -> None:
    for each in numbers:
        number, size, data = row(each)
        crc = checksum(number, size, data)
        connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?)", (number, size, crc, data))
        one, other, _ = pair(each)
        crc = checksum(one, other, b"")
        connection.execute("INSERT INTO pairs VALUES (?, ?, ?)", (one, other, crc))


def found(file: File, bad: list[BadRow] | None = None) -> list[FoundRow[Row]]:
    return list(read_rows(*file, decode, bad))


def current(file: File) -> set[Row]:
    return {each.row for each in found(file) if each.is_current}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[File, File]:
    """The same rows, once all in the file, and once the later half in its write-ahead log."""
    path = tmp_path_factory.mktemp("pages") / "file"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA page_size = 4096")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.executescript(SCHEMA)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("BEGIN")
        add(connection, range(-3, 160))
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for first in range(160, 320, 40):
            connection.execute("BEGIN")
            add(connection, range(first, first + 40))
            connection.execute("DELETE FROM rows WHERE number BETWEEN ? AND ?", (first, first + 9))
            connection.execute("COMMIT")
        copy = path.with_name("copy")
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", f"{copy}{end}")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = path.read_bytes(), b""
    return whole, (copy.read_bytes(), copy.with_name("copy-wal").read_bytes())


DELETED = {row(first + each) for first in range(160, 320, 40) for each in range(10)}
WRITTEN = {*map(row, range(-3, 320)), *map(pair, range(-3, 320))}
KEPT = WRITTEN - DELETED


@pytest.mark.parametrize("has_log", [False, True])
def test_a_sound_file_is_read_whole_and_what_was_deleted_is_not_current(
    files: tuple[File, File], has_log: bool
) -> None:
    bad: list[BadRow] = []
    rows = found(files[has_log], bad)
    assert {each.row for each in rows if each.is_current} == KEPT
    assert {each.columns for each in bad} == {5}  # those of the schema
    assert {each.row for each in rows} <= WRITTEN


def test_frames_that_were_not_committed_do_not_count(files: tuple[File, File]) -> None:
    file, wal = files[1]
    for end in range(32, len(wal), 10 * (PAGE + 24)):
        cut = file, wal[: end + 100]
        with_sqlite = rows_of_sqlite(cut)
        assert {each for each in current(cut) if each[2]} == with_sqlite


def rows_of_sqlite(file: File) -> set[Row]:
    """The rows that SQLite finds in copies of a file and its log, in memory."""
    frames = {}
    data, wal = bytearray(file[0]), file[1]
    waiting = {}
    for at in range(32, len(wal) - PAGE - 23, PAGE + 24):
        waiting[int.from_bytes(wal[at : at + 4])] = wal[at + 24 : at + 24 + PAGE]
        if any(wal[at + 4 : at + 8]):
            frames.update(waiting)
            data.extend(bytes(max(PAGE * int.from_bytes(wal[at + 4 : at + 8]) - len(data), 0)))
    for number, page in frames.items():
        data[(number - 1) * PAGE : number * PAGE] = page
    data[18:20] = b"\1\1"
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(bytes(data))
        return set(connection.execute("SELECT number, size, data FROM rows"))


def bit_flipped(data: bytearray, rng: Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def pages_swapped(data: bytearray, rng: Random) -> None:
    one, other = (
        slice(PAGE * at, PAGE * (at + 1)) for at in rng.sample(range(len(data) // PAGE), 2)
    )
    data[one], data[other] = data[other], data[one]


def page_zeroed(data: bytearray, rng: Random) -> None:
    at = PAGE * rng.randrange(len(data) // PAGE)
    data[at : at + PAGE] = bytes(PAGE)


def page_filled(data: bytearray, rng: Random) -> None:
    at = PAGE * rng.randrange(len(data) // PAGE)
    data[at : at + PAGE] = rng.randbytes(PAGE)


def cut_short(data: bytearray, rng: Random) -> None:
    del data[rng.randrange(len(data)) :]


def bytes_changed(data: bytearray, rng: Random) -> None:
    for _ in range(200):
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x0D, 0x7F, 0xFF, rng.randrange(256)))


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("has_log", [False, True])
@pytest.mark.parametrize(
    ("damage", "lost_max"),
    [
        (bit_flipped, 2),
        (pages_swapped, 400),
        (page_zeroed, 400),
        (page_filled, 400),
        (cut_short, 10**6),
        (bytes_changed, 10**6),
    ],
)
def test_damage_costs_the_rows_that_it_hits_and_makes_up_none(
    files: tuple[File, File],
    damage: Callable[[bytearray, Random], None],
    lost_max: int,
    has_log: bool,
    rounds: int,
) -> None:
    """Rows that were deleted may come back, no others."""
    for seed in range(rounds):
        rng = Random(seed)
        parts = [bytearray(each) for each in files[has_log]]
        damage(parts[rng.randrange(2) if has_log else 0], rng)
        rows = found((bytes(parts[0]), bytes(parts[1])))
        assert {each.row for each in rows} <= WRITTEN, seed
        lost = KEPT - {each.row for each in rows}
        assert len(lost) <= lost_max, (seed, sorted(each[0] for each in lost))


@pytest.mark.parametrize("rounds", ROUNDS)
def test_any_bytes_give_rows_or_none(files: tuple[File, File], rounds: int) -> None:
    sound = files[0][0]
    for seed in range(rounds):
        rng = Random(seed)
        size = rng.choice((0, 1, 99, PAGE, PAGE + 1, 20 * PAGE))
        data = bytearray(rng.randbytes(size))
        for at in range(0, size, PAGE):
            data[at] = rng.choice((0, 2, 5, 10, 13))
            if rng.random() < 0.3:  # numbers that lead anywhere within the page
                data[at + 3 : at + 5] = rng.randrange(2044).to_bytes(2)
            if rng.random() < 0.3:
                page = PAGE * rng.randrange(len(sound) // PAGE)
                data[at : at + PAGE] = sound[page : page + PAGE]
        wal = rng.randbytes(rng.choice((0, 31, 32, 5 * PAGE)))
        assert {each.row for each in found((bytes(data), wal))} <= WRITTEN


def test_many_rows_on_one_chain_of_pages_cost_no_more_than_the_file_has() -> None:
    """Each cell of each page names the same endless chain."""
    count = 100
    cell = b"\x87\xff\xff\x7f\x01"  # 16 MiB less a byte, row 1
    page = bytearray(PAGE)
    page[0] = 13
    page[3:5] = (500).to_bytes(2)
    page[5:7] = (3000).to_bytes(2)
    for at in range(500):
        page[8 + 2 * at : 10 + 2 * at] = (3000 + at % 400).to_bytes(2)
    page[3000:3400] = cell * 80
    page[PAGE - 200 :] = (7).to_bytes(4) * 50
    assert found((bytes(page) * count, b"")) == []
