"""The simulated disk keeps what a disk promises, and breaks everything else."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from millpond.actors.store.filesystem import Disk, OsDisk
from millpond.node.testing.disk.damage import PAGE_BYTES, DamageKind
from millpond.node.testing.disk.faults import DiskCall
from tests.sim.disk import SimDisk
from tests.sim.faults import Crashed, Trouble
from tests.sim.scenario import scratch

SEEDS = range(60)
SECTOR = 512


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, folder: Path) -> Disk:
    return OsDisk() if request.param == "real" else SimDisk(Random(1), folder)


def simulated(seeds: range = SEEDS, **options: float) -> Iterator[tuple[SimDisk, Path]]:
    """A fresh disk for each seed, and a folder on it."""
    for seed in seeds:
        with scratch() as folder:
            disk = SimDisk(Random(seed), folder, **options)
            home = folder / "home"
            disk.make_folder(home)
            yield disk, home


def test_both_disks_do_the_same_as_long_as_nothing_fails(disk: Disk, folder: Path) -> None:
    home = folder / "a" / "b"
    disk.make_folder(home)
    disk.make_folder(home)
    file = disk.create(home / "one", 1024)
    assert disk.read(home / "one") == bytes(1024)
    with pytest.raises(FileExistsError):
        disk.create(home / "one", 1)
    file.write(b"hello", 3)
    file.write(b"end", 1022)
    file.sync()
    file.close()
    again = disk.open(home / "one")
    again.write(b"J", 3)
    again.close()
    assert disk.read(home / "one") == bytes(3) + b"Jello" + bytes(1014) + b"end"
    disk.install(home / "two", b"content")
    disk.install(home / "two", b"other")
    assert disk.read(home / "two") == b"other"
    disk.sync_folder(home)
    assert disk.names(home) == ["one", "two"] and disk.has(home / "one")
    disk.unlink(home / "one")
    disk.unlink(home / "one")
    assert disk.names(home) == ["two"] and not disk.has(home / "one")
    assert disk.names(folder / "none") == []
    for missing in (disk.read, disk.open):
        with pytest.raises(FileNotFoundError):
            missing(home / "one")
    with pytest.raises(FileNotFoundError):
        disk.create(folder / "none" / "file", 1)


def test_both_disks_open_sqlite_files(disk: Disk, folder: Path) -> None:
    template = folder / "template"
    with sqlite3.connect(template) as made:
        made.execute("CREATE TABLE t (n)")
    made.close()
    path = folder / "x.sqlite3"
    with pytest.raises(sqlite3.OperationalError, match="unable to open database file"):
        disk.connect(path).execute("SELECT 1")
    disk.install(path, template.read_bytes())
    connection = disk.connect(path)
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO t VALUES (?)", [(1,), (2,)])
    connection.execute("COMMIT")
    assert connection.execute("SELECT sum(n) FROM t").fetchall() == [(3,)]
    connection.close()
    assert disk.has(path) and path.name in disk.names(folder)
    disk.unlink(path)
    assert not disk.has(path)


def test_what_was_synced_is_there_and_the_rest_is_kept_lost_torn_or_reordered() -> None:
    old, new, size = b"o" * SECTOR, b"n" * SECTOR, 4 * SECTOR
    seen = set()
    for disk, home in simulated():
        file = disk.create(home / "file", size)
        file.write(old * 4, 0)
        file.sync()
        disk.sync_folder(home)
        file.write(new * 3, 0)
        file.write(new, 3 * SECTOR)
        disk.lose_power()
        after = disk.read(home / "file")
        pieces = [after[at : at + SECTOR] for at in range(0, size, SECTOR)]
        assert set(pieces) <= {old, new}, "a sector is written as a whole"
        seen.add("".join(chr(piece[0]) for piece in pieces))
        with pytest.raises(Crashed):
            file.write(b"x", 0)
    assert {"nnnn", "oooo", "nooo", "nnno", "ooon"} <= seen


def test_bytes_next_to_a_lost_write_in_its_sector_are_safe() -> None:
    for disk, home in simulated(garbage=1.0):
        file = disk.create(home / "file", SECTOR)
        disk.sync_folder(home)
        file.write(b"synced", 0)
        file.sync()
        file.write(b"pending", 6)
        disk.lose_power()
        assert disk.read(home / "file").startswith(b"synced")


def test_a_lost_sector_may_hold_garbage() -> None:
    seen = set()
    for disk, home in simulated(garbage=0.5):
        file = disk.create(home / "file", 8)
        file.sync()
        disk.sync_folder(home)
        file.write(b"pending!", 0)
        disk.lose_power()
        seen.add(disk.read(home / "file"))
    assert {bytes(8), b"pending!"} < seen


def test_names_and_lengths_are_not_durable_before_their_sync() -> None:
    made, gone, lengths = set(), set(), set()
    for disk, home in simulated():
        disk.install(home / "old", b"x")
        for name in ("synced", "new"):
            disk.create(home / name, 100).close()
            if name == "synced":
                disk.sync_folder(home)
        disk.unlink(home / "old")
        disk.lose_power()
        made.add(disk.has(home / "new"))
        gone.add(disk.has(home / "old"))
        lengths.add(len(disk.read(home / "synced")))
    assert made == gone == {True, False}
    assert lengths == {0, 100}


def test_an_unlinked_database_may_come_back_until_its_folder_is_synced() -> None:
    seen = set()
    for disk, home in simulated():
        for name in ("a.sqlite3", "b.sqlite3"):
            disk.install(home / name, b"")
            disk.unlink(home / name)
            if name == "a.sqlite3":
                disk.sync_folder(home)
        assert disk.names(home) == []
        disk.lose_power()
        assert not disk.has(home / "a.sqlite3")
        seen.add(disk.has(home / "b.sqlite3"))
    assert seen == {True, False}


def test_an_install_is_complete_or_not_there() -> None:
    seen = set()
    for disk, home in simulated():
        disk.faults.crash_at(1)
        with pytest.raises(Crashed):
            disk.install(home / "file", b"content")
        disk.lose_power()
        seen.add(disk.read(home / "file") if disk.has(home / "file") else None)
        disk.install(home / "file", b"again")
        disk.lose_power()
        assert disk.read(home / "file") == b"again"
    assert seen == {b"content", None}


def test_after_a_kill_everything_is_shown_and_a_later_crash_may_still_take_it() -> None:
    seen = set()
    for disk, home in simulated():
        file = disk.create(home / "file", 4)
        file.sync()
        disk.sync_folder(home)
        file.write(b"data", 0)
        disk.end_process()
        assert disk.read(home / "file") == b"data"
        disk.lose_power()
        seen.add(disk.read(home / "file"))
    assert seen == {b"data", bytes(4)}


def test_a_crash_at_a_call_stops_everything_until_the_restart() -> None:
    lengths = set()
    for disk, home in simulated():
        disk.sync_folder(home)
        disk.faults.crash_at(3)
        file = disk.create(home / "file", 0)
        disk.sync_folder(home)
        with pytest.raises(Crashed):
            file.write(b"0123456789", 0)
        with pytest.raises(Crashed):
            file.sync()
        with pytest.raises(Crashed):
            disk.has(home)
        disk.end_process()
        lengths.add(len(disk.read(home / "file")))
    assert len(lengths) > 5, "it happens in the middle of a write"


def test_a_call_fails_once_or_until_it_heals() -> None:
    for disk, home in simulated():
        file = disk.create(home / "file", 0)
        disk.faults.fail(2, Trouble.FULL)
        file.write(b"a", 0)
        assert disk.read(home / "file") == b"a"
        with pytest.raises(OSError, match="No space left"):
            file.write(b"b", 1)
        file.write(b"c", 1)
        disk.faults.fail_from(1, Trouble.NO_HANDLES)
        for _ in range(3):
            with pytest.raises(OSError, match="Too many open files"):
                disk.create(home / "other", 0)
            file.write(b"d", 2)
        disk.faults.heal()
        disk.create(home / "other", 0)
        assert disk.read(home / "file") == b"acd"
        assert disk.faults.calls[DiskCall.CREATE] == 5


def test_a_short_write_leaves_a_part() -> None:
    seen = set()
    for disk, home in simulated():
        file = disk.create(home / "file", 0)
        disk.faults.fail(1, Trouble.SHORT)
        with pytest.raises(OSError, match="No space left"):
            file.write(b"0123456789", 0)
        seen.add(disk.read(home / "file"))
    assert all(b"0123456789".startswith(part) for part in seen) and len(seen) > 5


def test_a_failed_sync_is_final_and_what_it_lost_is_seen_only_after_a_crash() -> None:
    seen = set()
    for disk, home in simulated():
        file = disk.create(home / "file", 4)
        file.sync()
        disk.sync_folder(home)
        file.write(b"data", 0)
        disk.faults.fail(1, Trouble.BROKEN)
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        with pytest.raises(AssertionError):
            file.sync()
        disk.end_process()
        disk.open(home / "file").sync()
        assert disk.read(home / "file") == b"data"
        disk.lose_power()
        seen.add(disk.read(home / "file"))
    assert seen == {b"data", bytes(4)}


def database(disk: SimDisk, home: Path) -> sqlite3.Connection:
    path = home / "x.sqlite3"
    disk.install(path, b"")
    connection = disk.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE t (n)")
    return connection


def rows(disk: SimDisk, home: Path) -> list[int]:
    with sqlite3.connect(home / "x.sqlite3") as connection:
        found = [n for (n,) in connection.execute("SELECT n FROM t ORDER BY n")]
    connection.close()
    return found


def test_a_committed_transaction_survives_and_an_open_one_does_not() -> None:
    for disk, home in simulated(range(20)):
        connection = database(disk, home)
        connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t VALUES (2)")
        connection.commit()
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO t VALUES (?)", [(3,), (4,)])
        disk.lose_power()
        assert rows(disk, home) == [1, 2]
        with pytest.raises(sqlite3.ProgrammingError):
            connection.execute("SELECT 1")


def test_a_commit_that_fails_or_is_cut_off_took_effect_or_not() -> None:
    for trouble in (None, Trouble.FULL, Trouble.BROKEN):
        seen = set()
        for disk, home in simulated(range(20)):
            connection = database(disk, home)
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO t VALUES (?)", [(3,), (4,)])
            if trouble is None:
                disk.faults.crash_at(1)
            else:
                disk.faults.fail(1, trouble)
            with pytest.raises((Crashed, sqlite3.OperationalError)):
                connection.execute("COMMIT")
            if trouble is not None:
                connection.rollback()
            disk.lose_power()
            seen.add(tuple(rows(disk, home)))
        assert seen == {(), (3, 4)}


def test_statements_are_counted_and_fail_with_the_errors_of_sqlite() -> None:
    for disk, home in simulated(range(20)):
        connection = database(disk, home)
        before = disk.faults.calls[DiskCall.SQL_CHANGE]
        connection.execute("INSERT INTO t VALUES (1)")
        connection.executemany("INSERT INTO t VALUES (?)", [(2,), (3,)])
        assert disk.faults.calls[DiskCall.SQL_CHANGE] == before + 2
        disk.faults.fail_from(1, Trouble.FULL)
        for _ in range(2):
            with pytest.raises(sqlite3.OperationalError, match="database or disk is full"):
                connection.execute("UPDATE t SET n = 1")
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(3,)]
        disk.faults.fail_from(1, Trouble.BROKEN)
        with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
            connection.execute("SELECT 1")
        disk.faults.fail_from(1, Trouble.NO_HANDLES)
        with pytest.raises(sqlite3.OperationalError, match="unable to open database file"):
            disk.connect(home / "x.sqlite3")
        disk.faults.heal()
        connection.close()


def test_a_diverted_write_is_shown_until_the_process_ends() -> None:
    """A drive that loses a write, or writes it elsewhere, says nothing."""
    places = set()
    for disk, home in simulated():
        file = disk.create(home / "0.journal", 4 * SECTOR)
        disk.divert("lost write")
        disk.divert("misdirected write")
        file.write(b"l" * SECTOR, 0)
        file.write(b"m" * SECTOR, SECTOR)
        file.write(b"w" * SECTOR, 3 * SECTOR)
        file.sync()
        disk.sync_folder(home)
        shown = b"l" * SECTOR + b"m" * SECTOR
        assert disk.read(home / "0.journal").startswith(shown)
        disk.end_process()
        found = disk.read(home / "0.journal")
        assert found[:SECTOR] != b"l" * SECTOR
        places.add(found.find(b"m"))
    assert places == {-1, 0, SECTOR, 2 * SECTOR}, "in any place; the last one is written again"
    with pytest.raises(ValueError):
        disk.divert("missing")


@pytest.mark.parametrize("kind", list(DamageKind), ids=lambda kind: kind.value)
@pytest.mark.parametrize("name", ["0.journal", "x.sqlite3"])
def test_damage_changes_a_file_and_no_other(kind: DamageKind, name: str) -> None:
    lengths = set()
    for disk, home in simulated(range(20)):
        folder = home / "part"
        disk.make_folder(folder)
        paths = [folder / each for each in ("0.journal", "x.sqlite3")]
        for number in b"ab":
            for path in paths:
                disk.install(path, bytes([number]) * 5 * PAGE_BYTES)
            disk.sync_folder(folder)
            disk.end_process()
            if number == ord("a"):
                disk.keep_copies()
        before = {path: disk.read(path) for path in paths}
        is_changed = disk.damage(kind.value, folder / name)
        (other,) = (path for path in paths if path.name != name)
        assert disk.read(other) == before[other]
        if kind is DamageKind.MISSING:
            assert is_changed and not disk.has(folder / name)
            continue
        found = disk.read(folder / name)
        lengths.add(len(found))
        assert is_changed == (found != before[folder / name])
        if kind is DamageKind.STALE:
            assert found == b"a" * 5 * PAGE_BYTES
        if kind is DamageKind.BIT_FLIP:
            changed = [one ^ two for one, two in zip(found, before[folder / name], strict=True)]
            assert sorted(each.bit_count() for each in changed)[-2:] == [0, 1]
    assert (lengths == {5 * PAGE_BYTES}) is (kind not in (DamageKind.MISSING, DamageKind.TRUNCATED))
