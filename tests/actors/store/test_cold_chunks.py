"""Chunks of a log whose data is elsewhere: the log is what it was, wherever a crash comes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import (
    Chunk,
    ColdChunk,
    ColdReference,
    LogDeleted,
    LogTrimmed,
    MetadataSet,
    Position,
)
from millpond.actors.store.filesystem import Disk, OsDisk
from millpond.actors.store.interface import Fault, Seek
from millpond.actors.store.partitions.files import OldestLocal
from millpond.actors.store.partitions.log_tables import LocalBytes
from millpond.actors.store.repair.repair import FolderRepair
from millpond.node.replica.cold_objects import (
    ColdObject,
    decode_cold_object,
    encode_cold_object,
)
from millpond.node.replica.objects import cold_name
from millpond.node.testing.disk.simulated import SimulatedDisk
from tests.actors.store.harness import LAZY, SMALL, Run, copied, run

LOG = b"streams/orders"
COUNT = 30
NODE = bytes(16)


def chunk(number: int) -> Chunk:
    first = 10 * number
    ids = Position(first, 0), Position(first + 9, 3)
    return Chunk(first, 10, first + 5, first + 14, *ids, bytes([number % 256]) * 1000)


CHUNKS = [chunk(number) for number in range(COUNT)]


class Objects:
    """Cold objects, which are kept as bytes and read as a node does. `gone` are not there."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, int], bytes] = {}
        self.gone: set[tuple[int, int]] = set()

    def make(self, chunks: Sequence[Chunk]) -> list[tuple[Chunk, ColdReference]]:
        number = len(self.kept)
        self.kept[1, number], moved = encode_cold_object(NODE, 1, number, LOG, 0.0, chunks)
        return moved

    def find(self, key: tuple[int, int]) -> ColdObject:
        return decode_cold_object(self.kept[key], cold_name(*key))

    def fetch(
        self, name: bytes, chunks: Sequence[Chunk], done: Callable[[list[Chunk] | Fault], None]
    ) -> None:
        found: list[Chunk] = []
        for each in chunks:
            if isinstance(each, ColdChunk):
                reference = each.reference
                if reference.object in self.gone:
                    break
                data = self.find(reference.object).data(name, each, reference)
                assert data is not None
                values = (getattr(each, field) for field in Chunk.__struct_fields__[:-1])
                each = Chunk(*values, data)
            found.append(each)
        done(found or Fault.COLD)


def filled(folder: Path, disk: Disk | None = None) -> Run:
    """A log in its file."""
    opened = Run(folder, SMALL, disk=disk)
    opened.write(LOG, MetadataSet(b"created", b"now"), *CHUNKS)
    opened.flush()
    return opened


def oldest(opened: Run, keep_bytes: int, bytes_max: int = 5000) -> OldestLocal:
    found: list[OldestLocal | Fault] = []
    opened.store.oldest_local(LOG, keep_bytes, bytes_max, 100, found.append)
    opened.work()
    (result,) = found
    assert isinstance(result, OldestLocal)
    return result


def cool(opened: Run, moved: Sequence[tuple[Chunk, ColdReference]]) -> LocalBytes | Fault:
    found: list[LocalBytes | Fault] = []
    opened.store.make_cold(LOG, moved, found.append)
    opened.work()
    return found[0]


def cooled(opened: Run, objects: Objects, keep_bytes: int = 10_000) -> None:
    """Move all but the newest chunks."""
    opened.store.read_cold_with(objects)
    while chunks := oldest(opened, keep_bytes).chunks:
        assert isinstance(cool(opened, objects.make(chunks)), LocalBytes)


SEEKS = [
    *(Seek(SeekBy.SEQUENCE, at, bytes_max=2500) for at in (0, 7, 95, 151, 299, 300)),
    *(Seek(SeekBy.TIMESTAMP, 0, at, bytes_max=2500) for at in (0, 44, 45, 255, 300, 999)),
    *(
        Seek(SeekBy.ID, 20, id=Position(at, seq), bytes_max=2500)
        for at, seq in ((0, 0), (49, 3), (49, 4), (205, 0), (299, 4))
    ),
]


def test_a_cold_log_is_read_as_before(tmp_path: Path) -> None:
    objects = Objects()
    opened = filled(tmp_path / "data")
    before = opened.log_snapshot(LOG), [opened.read(LOG, seek) for seek in SEEKS]
    usage = opened.store.usage.log_bytes
    cooled(opened, objects)
    assert oldest(opened, 0).bytes == LocalBytes(10_000, 20_000)
    assert (opened.log_snapshot(LOG), [opened.read(LOG, seek) for seek in SEEKS]) == before
    assert opened.store.usage.log_bytes == usage
    opened.close()
    with run(tmp_path / "data", SMALL) as again:
        again.store.read_cold_with(objects)
        assert (again.log_snapshot(LOG), [again.read(LOG, seek) for seek in SEEKS]) == before
        assert not again.store.damages


def test_less_than_an_object_stays(tmp_path: Path) -> None:
    """A quarter of what stays, or the size of an object where that is less."""
    with closing(filled(tmp_path / "data")) as opened:
        assert not oldest(opened, 30_000).chunks
        assert not oldest(opened, 26_000).chunks
        assert [each.first for each in oldest(opened, 25_000).chunks] == [0, 10, 20, 30, 40]
        assert oldest(opened, 24_000, bytes_max=2500).chunks == CHUNKS[:2]


def test_a_read_ends_before_the_first_object_that_cannot_be_read(tmp_path: Path) -> None:
    objects = Objects()
    with closing(filled(tmp_path / "data")) as opened:
        cooled(opened, objects)
        objects.gone.add((1, 1))
        assert opened.read(LOG, Seek(SeekBy.SEQUENCE, 30)) == CHUNKS[3:5]
        assert opened.finish(opened.store.read(LOG, Seek(SeekBy.SEQUENCE, 50))) is Fault.COLD
        assert opened.read(LOG, Seek(SeekBy.SEQUENCE, 100)) == CHUNKS[10:]
        opened.store.read_cold_with(None)
        assert opened.finish(opened.store.read(LOG, Seek(SeekBy.SEQUENCE, 0))) is Fault.COLD
        assert not opened.store.damages


def test_a_trim_and_a_deletion_take_cold_chunks_as_others(tmp_path: Path) -> None:
    objects = Objects()
    with closing(filled(tmp_path / "data")) as opened:
        cooled(opened, objects)
        opened.write(LOG, LogTrimmed(155))
        opened.flush()
        assert opened.read_all(LOG) == CHUNKS[15:]
        assert oldest(opened, 0).bytes == LocalBytes(10_000, 5000)
        assert opened.log_snapshot(LOG).bytes == 15_000
        opened.write(LOG, LogDeleted(), chunk(0))
        opened.flush()
        assert opened.read_all(LOG) == CHUNKS[:1]
        assert oldest(opened, 0).bytes == LocalBytes(1000, 0)


def test_what_changed_since_it_was_read_stays_as_it_is(tmp_path: Path) -> None:
    """The stream was trimmed, or deleted and made again with other records, during the upload."""
    objects = Objects()
    with closing(filled(tmp_path / "data")) as opened:
        moved = objects.make(oldest(opened, 0).chunks)
        other = Chunk(0, 10, 5, 14, Position(0, 0), Position(9, 3), b"other" * 200)
        opened.write(LOG, LogDeleted(), other, *CHUNKS[1:4])
        opened.flush()
        assert cool(opened, moved) == LocalBytes(1000, 3000)
        opened.store.read_cold_with(objects)
        assert opened.read_all(LOG) == [other, *CHUNKS[1:4]]


def test_a_scrub_and_a_repair_keep_references(tmp_path: Path) -> None:
    """A repair reads rows without SQLite, and makes a new file."""
    objects = Objects()
    opened = filled(tmp_path / "data")
    cooled(opened, objects)
    path = opened.file(LOG)
    opened.close()
    with closing(FolderRepair(tmp_path / "data", OsDisk())) as repairs:
        repairs.scrub()
        assert not repairs.names()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE chunks SET crc = crc + 1 WHERE first = 40")
        connection.execute("UPDATE chunks SET crc = crc + 1 WHERE first = 250")
        connection.commit()
    with closing(FolderRepair(tmp_path / "data", OsDisk())) as repairs:
        repairs.scrub()
        assert repairs.names() == [LOG]
        repairs.repair(LOG)
    with run(tmp_path / "data", LAZY) as again:
        again.store.read_cold_with(objects)
        kept = [each for each in CHUNKS if each.first not in (40, 250)]
        assert again.read_all(LOG) == kept
        assert again.log_snapshot(LOG).tail == CHUNKS[-1].end


def test_a_reference_is_not_taken_for_data_nor_data_for_a_reference(tmp_path: Path) -> None:
    """One changed byte of a row says of which type a value is."""
    objects = Objects()
    opened = filled(tmp_path / "data")
    cooled(opened, objects)
    path = opened.file(LOG)
    opened.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE chunks SET data = CAST(data AS BLOB) WHERE first = 0")
        connection.execute("UPDATE chunks SET data = CAST(data AS TEXT) WHERE first = 250")
        connection.commit()
    with run(tmp_path / "data", LAZY) as again:
        again.store.read_cold_with(objects)
        for at in (0, 250):
            found = again.finish(again.store.read(LOG, Seek(SeekBy.SEQUENCE, at, bytes_max=1)))
            assert found is Fault.DAMAGED


class StepsDisk(OsDisk):
    """A disk that tells of each statement before it runs."""

    def __init__(self) -> None:
        self.tell: Callable[[str], None] = lambda sql: None

    def connect(self, path: Path) -> sqlite3.Connection:
        disk = self

        class Told(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                disk.tell(sql)
                found = super().execute(sql, *values)
                return found

        connection = super().connect(path)
        connection.close()
        return sqlite3.connect(
            f"file:{path}?mode=rw", uri=True, isolation_level=None, factory=Told, timeout=5.0
        )


def test_a_kill_before_any_statement_of_a_move_loses_nothing(tmp_path: Path) -> None:
    objects, disk = Objects(), StepsDisk()
    opened = filled(tmp_path / "data", disk)
    opened.store.read_cold_with(objects)
    moved = objects.make(oldest(opened, 0).chunks)
    copies: list[Path] = []
    told: list[str] = []

    def tell(sql: str) -> None:
        told.append(sql.split(maxsplit=1)[0])
        copies.append(copied(tmp_path / "data", f"kill-{len(copies)}"))

    disk.tell = tell
    assert cool(opened, moved) == LocalBytes(25_000, 5000)
    tell("END")
    disk.tell = lambda sql: None
    opened.close()
    assert told.count("UPDATE") == 5 and "COMMIT" in told
    cold = set()
    for copy in copies:
        with run(copy, SMALL) as killed:
            killed.store.read_cold_with(objects)
            assert killed.read_all(LOG) == CHUNKS
            assert not killed.store.damages
            cold.add(oldest(killed, 0).bytes.cold)
    assert cold == {0, 5000}, "all at once"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("failing", ["sql read", "sql change", "sql commit"])
def test_a_failing_disk_leaves_the_log_as_it_was(tmp_path: Path, failing: str, seed: int) -> None:
    """Also where a statement took effect all the same; the next move goes on."""
    objects, disk = Objects(), SimulatedDisk(Random(seed), tmp_path / "data")
    opened = filled(tmp_path / "data", disk)
    opened.store.read_cold_with(objects)
    moved = objects.make(oldest(opened, 0).chunks)
    disk.fail_next(failing)
    assert cool(opened, moved) is Fault.UNREADABLE
    assert opened.read_all(LOG) == CHUNKS
    cooled(opened, objects)
    assert opened.read_all(LOG) == CHUNKS
    opened.close()
    with run(tmp_path / "data", SMALL, disk=disk) as again:
        again.store.read_cold_with(objects)
        assert again.read_all(LOG) == CHUNKS
        assert not again.store.damages
