"""Snapshots of a store that goes on: each is the store of one moment, whatever is written while its
files are copied."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millpond.actors.messages import Mode
from millpond.actors.store.changes import (
    Chunk,
    LogTrimmed,
    MessageRemoved,
    ModeSet,
    Position,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.filesystem import OsDisk, OsFile
from millpond.actors.store.interface import Fault
from millpond.actors.store.partitions import partition
from millpond.actors.store.settings import StoreSettings
from millpond.actors.store.snapshot import SnapshotLost, StoreSnapshot
from millpond.actors.store.snapshot_copy import SnapshotCopy
from tests.actors.store.harness import LAZY, NOW, SMALL, Run, young_id


class NoSyncs(sqlite3.Connection):
    """A connection that never syncs: no power is lost here."""

    def execute(self, sql: str, *more: Any) -> sqlite3.Cursor:
        return super().execute(sql.replace("synchronous = FULL", "synchronous = OFF"), *more)


class UnsyncedFile(OsFile):
    def sync(self) -> None:
        pass


class QuickDisk(OsDisk):
    """The disk of this machine without its syncs, of which these tests would cause thousands."""

    def create(self, path: Path, size: int) -> OsFile:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.truncate(fd, size)
        return UnsyncedFile(fd)

    def install(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)

    def sync_folder(self, path: Path) -> None:
        pass

    def connect(self, path: Path) -> sqlite3.Connection:
        return sqlite3.connect(
            path, isolation_level=None, timeout=5.0, check_same_thread=False, factory=NoSyncs
        )


def opened(folder: Path, settings: StoreSettings = SMALL, seed: int = 1) -> Run:
    return Run(folder, settings, seed=seed, disk=QuickDisk())


QUEUES = [b"jobs/%d" % number for number in range(4)]
LOGS = [b"streams/%d" % number for number in range(4)]


def taken(run: Run) -> StoreSnapshot:
    found: list[StoreSnapshot | Fault] = []
    run.store.begin_snapshot(found.append)
    run.work()
    (snapshot,) = found
    assert isinstance(snapshot, StoreSnapshot), snapshot
    return snapshot


def copy_of(
    run: Run, target: Path, wrote: Callable[[int], None] = lambda size: None
) -> SnapshotCopy:
    return SnapshotCopy(run.folder, run.store.disk, target, wrote, lambda path: None)


def copied(run: Run, snapshot: StoreSnapshot, target: Path) -> None:
    copy = copy_of(run, target)
    copy.copy_segments(snapshot)
    run.store.release_segments()
    copy.copy_files(snapshot)
    copy.write_catalog(snapshot)
    run.store.end_snapshot()
    run.work()


class Traffic:
    """Random changes of a few queues and logs. Messages are old enough to go to files."""

    def __init__(self, run: Run, rng: Random) -> None:
        self.run = run
        self._rng = rng
        self._id = young_id(60)
        self._rows: dict[bytes, list[StoredMessage]] = {name: [] for name in QUEUES}
        self._tails = dict.fromkeys(LOGS, 0)

    def step(self) -> None:
        rng = self._rng
        if rng.random() < 0.5:
            self._queue(rng.choice(QUEUES))
        else:
            self._log(rng.choice(LOGS))

    def _queue(self, name: bytes) -> None:
        rows, rng = self._rows[name], self._rng
        if rows and rng.random() < 0.4:
            row = rows.pop(rng.randrange(len(rows)))
            key = StoredKey(row.id, row.ttl, row.until, sha256(row.data).digest())
            self.run.write(name, MessageRemoved(row.id, row.key, key, len(row.data)))
            return
        self._id += 1
        row = StoredMessage(
            self._id, self._id % 2**31, 3600, NOW + 3600, rng.randbytes(rng.choice([10, 2000]))
        )
        rows.append(row)
        self.run.write(name, ModeSet(Mode.QUEUE), row)

    def _log(self, name: bytes) -> None:
        first = self._tails[name]
        if first > 20 and self._rng.random() < 0.1:
            self.run.write(name, LogTrimmed(first - 10))
            return
        self._tails[name] = first + 3
        ids = Position(first, 0), Position(first + 2, 0)
        data = self._rng.randbytes(self._rng.choice([30, 1500]))
        self.run.write(name, Chunk(first, 3, first, first + 2, *ids, data))


def state(run: Run) -> dict[bytes, object]:
    """Everything that clients could see of the store."""
    queues = {name: run.load(name) for name in QUEUES}
    logs = {name: (run.log_snapshot(name), run.read_all(name)) for name in LOGS}
    return {
        **{name: (each.rows, each.keys, each.mode) for name, each in queues.items()},
        **{name: (each.trim_point, each.tail, chunks) for name, (each, chunks) in logs.items()},
    }


@pytest.mark.parametrize("seed", range(4))
def test_a_copy_has_what_was_there_at_its_beginning(tmp_path: Path, seed: int) -> None:
    """Flushes, removed files and dropped segments between the steps of the copy change nothing."""
    rng = Random(seed)
    run = opened(tmp_path / "data", SMALL, seed=seed)
    traffic = Traffic(run, rng)
    for number in range(3):
        for _ in range(rng.randrange(100, 300)):
            traffic.step()
        before = state(run)
        snapshot = taken(run)
        target = tmp_path / f"copy-{number}"

        def wrote(size: int) -> None:
            for _ in range(rng.randrange(20)):
                traffic.step()

        copy = copy_of(run, target, wrote)
        for _ in range(50):
            traffic.step()
        copy.copy_segments(snapshot)
        run.store.release_segments()
        for _ in range(50):
            traffic.step()
        copy.copy_files(snapshot)
        copy.write_catalog(snapshot)
        run.store.end_snapshot()
        run.work()
        again = opened(target, LAZY)
        assert again.store.damages == []
        assert state(again) == before
        again.close()
    after = state(run)
    run.close()
    again = opened(tmp_path / "data", LAZY)
    assert again.store.damages == [] and state(again) == after
    again.close()


def test_what_is_on_its_way_when_it_begins_is_of_one_moment(tmp_path: Path) -> None:
    """Two logs are written in turn: a copy has as much of one as of the other, or one more."""
    run = opened(tmp_path / "data", SMALL)
    found: list[StoreSnapshot | Fault] = []
    first, second = LOGS[:2]
    for number in range(40):
        for name in (first, second):
            ids = Position(number, 0), Position(number, 0)
            run.store.write(name, [Chunk(number, 1, number, number, *ids, b"x" * 100)])
        if number == 20:
            run.store.begin_snapshot(found.append)
        run.loop.finish_pass()
        run.loop.work(idle=False)
    run.work()
    (snapshot,) = found
    assert isinstance(snapshot, StoreSnapshot)
    copied(run, snapshot, tmp_path / "copy")
    again = opened(tmp_path / "copy", LAZY)
    tails = [again.log_snapshot(name).tail for name in (first, second)]
    assert tails[0] - tails[1] in (0, 1)
    assert 20 <= tails[1] <= 40, "what was reported before the beginning is there"
    again.close()
    run.close()


def test_a_snapshot_that_was_ended_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    """It still waits for the files when the next one begins."""
    run = opened(tmp_path / "data", SMALL)
    traffic = Traffic(run, Random(5))
    for _ in range(100):
        traffic.step()
    before = state(run)
    ended: list[StoreSnapshot | Fault] = []
    run.store.begin_snapshot(ended.append)
    _, journal_worker = run.loop.workers
    for _ in range(4):
        run.loop.finish_pass()
        journal_worker.step(idle=False)
    run.store.end_snapshot()
    found: list[StoreSnapshot | Fault] = []
    run.store.begin_snapshot(found.append)
    run.work()
    (snapshot,) = found
    assert isinstance(snapshot, StoreSnapshot) and not ended
    copied(run, snapshot, tmp_path / "copy")
    again = opened(tmp_path / "copy", LAZY)
    assert state(again) == before
    again.close()
    run.close()


def test_acks_that_nobody_waits_for_are_in_a_copy(tmp_path: Path) -> None:
    run = opened(tmp_path / "data", LAZY)
    row = StoredMessage(young_id(60), 1, 3600, NOW + 3600, b"data")
    run.write(QUEUES[0], ModeSet(Mode.QUEUE), row)
    key = StoredKey(row.id, row.ttl, row.until, sha256(row.data).digest())
    assert run.store.write(QUEUES[0], [MessageRemoved(row.id, row.key, key, 4)]) is None
    copied(run, taken(run), tmp_path / "copy")
    again = opened(tmp_path / "copy", LAZY)
    assert again.load(QUEUES[0]).rows == []
    again.close()
    run.close()


def test_segments_of_a_snapshot_stay_until_they_are_copied(tmp_path: Path) -> None:
    run = opened(tmp_path / "data", SMALL)
    traffic = Traffic(run, Random(1))
    for _ in range(100):
        traffic.step()
    snapshot = taken(run)
    numbers = {row.number for row in snapshot.segments}
    run.flush(20)
    kept = {int(path.stem) for path in (run.folder / "journal").iterdir()}
    assert numbers <= kept
    run.store.release_segments()
    run.flush(20)
    left = {int(path.stem) for path in (run.folder / "journal").iterdir()}
    assert not numbers & left
    with pytest.raises(SnapshotLost, match="went"):
        copy_of(run, tmp_path / "copy").copy_segments(snapshot)
    run.store.end_snapshot()
    run.close()


def test_a_large_file_is_kept_by_a_transaction_and_its_flushes_do_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.actors.store.snapshot.SMALL_BYTES_MAX", 0)
    monkeypatch.setattr(partition, "CHECKPOINT_BYTES", 0)
    run = opened(tmp_path / "data", SMALL)
    traffic = Traffic(run, Random(2))
    for _ in range(200):
        traffic.step()
    before = state(run)
    snapshot = taken(run)
    for _ in range(300):
        traffic.step()  # a checkpoint that waited for the reader would take 5 s each
    copied(run, snapshot, tmp_path / "copy")
    again = opened(tmp_path / "copy", LAZY)
    assert state(again) == before
    again.close()
    run.close()


def test_too_many_changed_files_end_the_snapshot_and_not_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.actors.store.snapshot.HELD_MAX", 2)
    run = opened(tmp_path / "data", SMALL)
    traffic = Traffic(run, Random(3))
    for _ in range(300):
        traffic.step()
    snapshot = taken(run)
    for _ in range(300):
        traffic.step()
    copy = copy_of(run, tmp_path / "copy")
    with pytest.raises(SnapshotLost, match="more than"):
        copy.copy_segments(snapshot)
        copy.copy_files(snapshot)
    after = state(run)
    run.store.end_snapshot()
    run.close()
    again = opened(tmp_path / "data", LAZY)
    assert again.store.damages == [] and state(again) == after
    again.close()


def test_a_file_that_sqlite_cannot_read_is_copied_as_it_is(tmp_path: Path) -> None:
    run = opened(tmp_path / "data", SMALL)
    traffic = Traffic(run, Random(4))
    for _ in range(200):
        traffic.step()
    run.close()
    victim = next(path for path in (tmp_path / "data" / "partitions").rglob("*.sqlite3"))
    with closing(sqlite3.connect(victim)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    victim.write_bytes(b"something else" * 1000)
    run = opened(tmp_path / "data", LAZY)
    copied(run, taken(run), tmp_path / "copy")
    damages = len(run.store.damages)
    run.close()
    name = victim.relative_to(tmp_path / "data")
    assert (tmp_path / "copy" / name).read_bytes() == b"something else" * 1000
    again = opened(tmp_path / "copy", LAZY)
    assert len(again.store.damages) >= damages
    again.close()
