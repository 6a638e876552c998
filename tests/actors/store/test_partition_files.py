"""A catalog that is damaged while the node runs: it is made anew, and nothing waits for that."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from millpond.actors.messages import Durability
from millpond.actors.store.changes import StoredMessage
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.partitions.catalog import CATALOG, Catalog
from millpond.actors.store.repair.quarantine import read_reports
from tests.actors.store.harness import NOW, SMALL, Run, copied, young_id
from tests.sim.loop import Clock, Loop

FACTS = {"instance": 7}
OLD_ID = young_id(60.0)


def row(number: int, size: int = 100) -> StoredMessage:
    return StoredMessage(OLD_ID + number, number, 3600, NOW + 3600, b"%d" % number + bytes(size))


def drop_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE partitions")


def drop_index(path: Path) -> None:
    """The remaining files differ from what SQLite expects."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET rootpage = 999 WHERE name = 'partitions'")
        connection.execute("PRAGMA schema_version = 99")
        connection.commit()


DAMAGES = [drop_table, drop_index]


@pytest.fixture
def used(tmp_path: Path) -> Run:
    """Two channels in files, and facts."""
    run = Run(tmp_path / "data", SMALL)
    run.store.save_facts(FACTS)
    run.write(b"one", row(1))
    run.write(b"two", row(2))
    run.flush()
    assert run.file(b"one").exists() and run.file(b"two").exists()
    return run


def cataloged(folder: Path) -> tuple[set[bytes], dict[str, int], list[str]]:
    with closing(Catalog(folder / CATALOG, OsDisk())) as catalog:
        return set(catalog.partitions()), catalog.facts(), catalog.verify()


@pytest.mark.parametrize("damage", DAMAGES)
def test_it_is_mended_without_a_restart(used: Run, damage: Callable[[Path], None]) -> None:
    used.is_patient = True  # a new segment of the journal waits for the catalog
    damage(used.folder / CATALOG)
    flushes = used.store.stats.flushes
    used.write(b"three", row(3))
    used.flush()
    assert used.store.stats.flushes > flushes, "flushes go on"
    assert used.store.health.is_writable and not used.store._compactor.needs_retry
    killed = copied(used.folder, "killed")
    assert cataloged(killed) == ({b"one", b"two", b"three"}, FACTS, [])
    again = Run(killed, SMALL)
    for number, name in enumerate((b"one", b"two", b"three"), 1):
        assert [each.id for each in again.load(name).rows] == [OLD_ID + number]
    assert [each.where for each in again.found.damages] == [CATALOG], "an operator is told"
    assert not again.found.damages[0].is_all and again.store.facts == FACTS


def test_it_is_mended_again_when_it_is_damaged_again(used: Run) -> None:
    for number in range(3, 6):
        drop_table(used.folder / CATALOG)
        used.write(b"one", row(number))
        used.flush()
    assert cataloged(copied(used.folder, "killed")) == ({b"one", b"two"}, FACTS, [])


def test_files_that_cannot_be_read_for_it_are_noted(used: Run) -> None:
    """Nothing else would know of them after a restart."""
    used.file(b"two").write_bytes(b"nothing" * 1000)
    drop_table(used.folder / CATALOG)
    used.write(b"one", row(3))
    used.flush()
    notes = {each.name: each for each in read_reports(used.folder / "damaged", OsDisk())}
    assert notes[b"two"].where == used.file(b"two").name
    assert notes.keys() == {b"two", None} and notes[None].where == CATALOG
    assert [each.id for each in used.load(b"one").rows] == [OLD_ID + 1, OLD_ID + 3]


class FullOnce(OsDisk):
    """Has no room for the catalog a few times."""

    refusals = 0

    def install(self, path: Path, data: bytes) -> None:
        if path.name == CATALOG and self.refusals:
            self.refusals -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        super().install(path, data)


class Cramped(Run):
    """A run on a disk that has no room for a new catalog when told so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fillers = 0
        self.disk = FullOnce()
        self.clock = Clock(NOW)
        self.loop = Loop(self.clock, Random(1))
        self.store = DurableStore(folder, self.disk, SMALL, self.loop, lambda name: Durability.DISK)
        self.found = self.store.open()


def test_a_full_disk_delays_it(tmp_path: Path) -> None:
    run = Cramped(tmp_path / "data")
    run.store.save_facts(FACTS)
    run.write(b"one", row(1))
    run.flush()
    run.is_patient = True
    drop_table(run.folder / CATALOG)
    run.disk.refusals = 2
    run.write(b"one", row(2))
    run.flush()
    killed = Run(copied(run.folder, "killed"), SMALL)
    assert [each.id for each in killed.load(b"one").rows] == [OLD_ID + 1, OLD_ID + 2]
    for _ in range(3):
        run.clock.now += 1.0
        run.loop.work(idle=True)
        run.work()
    run.flush()
    assert not run.store._compactor.needs_retry
    assert cataloged(copied(run.folder, "later")) == ({b"one"}, FACTS, [])
