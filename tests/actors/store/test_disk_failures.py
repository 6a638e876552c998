"""Failures that hit a store twice, or at a bad moment: nothing is lost, and it recovers."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from millpond.actors.messages import Durability
from millpond.actors.store.changes import (
    AttemptsSet,
    Change,
    MessageRemoved,
    Snapshot,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.filesystem import File, OsDisk
from millpond.actors.store.group_commit import GroupCommit
from millpond.actors.store.index import IndexEntry
from millpond.actors.store.interface import Commit, Fault
from millpond.actors.store.journal.format import HEADER_SIZE
from millpond.actors.store.journal.writer import CommitGroup, segment_path
from millpond.actors.store.message_attributes import DueAt
from millpond.actors.store.settings import StoreSettings
from millpond.actors.store.subscribers import Acked, Subscriber
from millpond.actors.store.workers import SteppedWorker, WorkerTask
from millpond.node.testing.disk.simulated import SimulatedDisk
from tests.actors.store.harness import LAZY, NOW, SMALL, Run, copied, young_id
from tests.sim.loop import Clock, Loop

NAME = b"orders"


class Fallible(OsDisk):
    """The disk of this machine, but the next calls on the journal raise what `plan` says."""

    def __init__(self) -> None:
        self.plan: list[Exception | None] = []
        self.calls: list[str] = []

    def enter(self, call: str) -> None:
        self.calls.append(call)
        error = self.plan.pop(0) if self.plan else None
        if error is not None:
            raise error

    def create(self, path: Path, size: int) -> FallibleFile:  # type: ignore[override]
        self.enter("create")
        return FallibleFile(super().create(path, size), self)


class FallibleFile:
    def __init__(self, file: File, disk: Fallible) -> None:
        self._file = file
        self._disk = disk

    def write(self, data: bytes, offset: int) -> None:
        self._disk.enter("write")
        self._file.write(data, offset)

    def sync(self) -> None:
        self._disk.enter("sync")
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class Setback(Run):
    """A run on a disk that fails as told."""

    def __init__(
        self,
        folder: Path,
        durability: Durability = Durability.DISK,
        settings: StoreSettings = LAZY,
    ) -> None:
        self.folder = folder
        self.disk = Fallible()
        self.clock = Clock(NOW)
        self.loop = Loop(self.clock, Random(1))
        self.store = DurableStore(folder, self.disk, settings, self.loop, lambda name: durability)
        self.found = self.store.open()

    def wait(self) -> None:
        """A second passes."""
        self.clock.now += 1.0
        self.loop.work(idle=True)
        self.work()

    def fate(self, commit: Commit | None) -> Fault | None:
        assert commit is not None and commit.is_done, "somebody waits for ever"
        fates: list[Fault | None] = []
        commit.when_done(fates.append)
        return fates[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One that copies go beside."""
    return tmp_path / "node"


def row(message_id: int, data: bytes = b"x") -> StoredMessage:
    return StoredMessage(message_id, message_id, 600, NOW + 600, data)


def gone(message_id: int, size: int = 1) -> MessageRemoved:
    return MessageRemoved(message_id, message_id, None, size)


def broken() -> OSError:
    return OSError(errno.EIO, "Input/output error")


def test_a_writer_that_crashes_costs_what_it_had_in_hand_and_no_more(folder: Path) -> None:
    run = Setback(folder)
    run.write(NAME, row(1))
    run.disk.plan = [RuntimeError("a fault of ours")]
    commit = run.store.write(NAME, [row(2)])
    run.work()
    assert run.fate(commit) is Fault.NOT_STORED
    run.wait()
    assert run.store.health.is_writable
    run.write(NAME, row(3))
    assert [each.id for each in Run(copied(folder, "copy")).load(NAME).rows] == [1, 3]


def test_what_was_kept_without_a_sync_is_said_again_however_often_that_fails(
    folder: Path,
) -> None:
    run = Setback(folder, Durability.OS)
    run.write(NAME, row(1))
    run.disk.plan = [broken()]
    run.loop.work(idle=True)  # its sync fails
    assert not run.store.health.is_writable
    for _ in range(2):
        # The next segment is made, and then cannot be written either.
        run.disk.plan = [None, None, None, broken()]
        run.wait()
    run.wait()
    run.wait()
    assert run.store.health.is_writable
    copy = copied(folder, "copy")
    first = segment_path(copy / "journal", 1)
    first.write_bytes(first.read_bytes()[:HEADER_SIZE].ljust(LAZY.segment_bytes, b"\0"))
    assert [each.id for each in Run(copy).load(NAME).rows] == [1]


def test_acks_wait_for_a_sound_disk_at_no_cost_and_are_kept_then(folder: Path) -> None:
    """Reads and acks go on, for as long as the disk fails."""
    run = Setback(folder)
    run.write(NAME, *map(row, range(1, 11)))
    run.disk.plan = [broken()] * 100
    refused = run.store.write(b"other", [row(11)])
    run.work()
    assert run.fate(refused) is Fault.NOT_STORED
    for message_id in range(1, 10):
        assert run.store.write(NAME, [gone(message_id)]) is None
    waiting = run.store._groups._open
    assert waiting is not None
    records = list(waiting.records)
    run.wait()
    assert run.store._groups._open is waiting and waiting.records == records, "not made anew"
    run.disk.plan = []
    run.wait()
    assert run.store.health.is_writable
    assert [each.id for each in Run(copied(folder, "copy")).load(NAME).rows] == [10]


def test_while_the_disk_fails_deliveries_may_fail_for_ever_in_bounded_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.actors.store.group_commit.HELD_BACK_MAX", 3)
    run = Setback(folder)
    run.write(NAME, row(1), row(2))
    run.disk.plan = [broken()] * 100
    run.store.write(NAME, [row(3)])
    run.work()
    for attempt in range(1, 10):
        run.store.write(NAME, [AttemptsSet(1, attempt)])
    run.store.write(NAME, [gone(2)])
    run.disk.plan = []
    run.wait()
    kept = Run(copied(folder, "copy")).load(NAME)
    assert [each.id for each in kept.rows] == [1] and kept.attempts == {1: 3}


def fill(run: Run, segments: int) -> None:
    for at in range(1, segments + 1):
        run.write(b"filler", row(at, bytes(4000)))
        run.write(b"filler", gone(at, 4000))


def test_ids_ascend_over_two_restarts_and_the_end_of_the_segment_that_had_them(
    folder: Path,
) -> None:
    """PA-31: whatever the clock does."""
    last_id = 2**40
    run = Run(folder, SMALL)
    run.write(NAME, row(last_id))
    run.write(NAME, gone(last_id))
    run.close()
    run = Run(folder, SMALL)
    fill(run, 8)
    assert 1 not in run.store._compactor._segments
    run.close()
    assert Run(folder, SMALL).store.last_id == last_id


def test_ids_of_messages_that_a_carry_leaves_out_are_not_given_out_again(folder: Path) -> None:
    settings = StoreSettings(segment_bytes=2**14, journal_bytes_max=40_000, settle_s=1e6)
    run = Run(folder, settings)
    run.write(NAME, row(1))
    while len(run.store._compactor._segments) < 3:
        fill(run, 1)
    run.write(NAME, row(1000))
    run.write(NAME, gone(1000))
    while not run.store.stats.carries:
        fill(run, 1)
    assert Run(copied(folder, "copy"), settings).store.last_id == 1000


@pytest.mark.parametrize("settle_s", [0.0, 1e6], ids=["to the file", "in the journal"])
@pytest.mark.parametrize("rewrite_bytes_max", [0, 10_000], ids=["flushed", "rewritten"])
def test_what_the_journal_and_the_file_have_leaves_both(
    folder: Path, rewrite_bytes_max: int, settle_s: float
) -> None:
    """A rewrite during a flush has what the file has as well, and so have all after it."""
    run = Setback(folder, Durability.OS, StoreSettings(rewrite_bytes_max=0, settle_s=0.0))
    first, second = young_id(1), young_id()
    run.write(NAME, row(first, bytes(100)))
    entry, compactor = run.store._entries[NAME], run.store._compactor
    compactor.prefer(entry)
    compactor.step()
    files, journal = run.loop.workers
    run.loop.finish_pass()
    journal.step()
    assert entry.frozen is not None
    run.store.write(NAME, [row(second)])
    run.loop.finish_pass()
    journal.step()
    run.disk.plan = [broken()]
    journal.step(idle=True)  # its sync fails
    while not run.store.health.is_writable:
        run.clock.now += 1.0
        journal.step(idle=True)
        run.loop.finish_pass()
    assert entry.frozen is not None
    journal.step()  # the frozen part is rewritten, and its file is not
    files.step()
    files.step()
    assert run.store._compactor.flushes == 1

    settings = StoreSettings(rewrite_bytes_max=rewrite_bytes_max, settle_s=settle_s)
    again = Run(copied(folder, "again"), settings)
    entry, compactor = again.store._entries[NAME], again.store._compactor
    compactor.prefer(entry)
    compactor.step()
    again.work()
    again.write(NAME, gone(first, 100))
    found = Run(copied(again.folder, "copy"), settings)
    assert [each.id for each in found.load(NAME).rows] == [second]
    assert found.store.usage.messages == 1


def test_what_is_frozen_holds_its_segment_although_what_came_later_is_gone(
    folder: Path,
) -> None:
    """Else the segment could be removed while the file is still to be written."""
    settings = StoreSettings(
        segment_bytes=8192, journal_bytes_max=2**14, rewrite_bytes_max=0, settle_s=0.0
    )
    run = Run(folder, settings)
    run.write(NAME, row(1, bytes(1000)))
    compactor, journal = run.store._compactor, run.loop.workers[1]
    compactor.prefer(run.store._entries[NAME])
    compactor.step()  # its file is slow: the worker of files does not work from here on
    for changes in ([row(2)], [gone(2)]):
        run.store.write(NAME, changes)
        run.loop.finish_pass()
        journal.step()
    for at in range(3, 12):
        run.store.write(b"filler", [row(at, bytes(4000)), gone(at, 4000)])
        run.loop.finish_pass()
        journal.step()
    assert list(compactor._free_since) == []
    assert [each.id for each in Run(copied(folder, "copy")).load(NAME).rows] == [1]
    run.work()


def test_a_sync_that_is_asked_for_covers_every_record_and_waits_for_no_other() -> None:
    """Numbers without a record, as compactions use them, are never synced."""
    submitted: list[CommitGroup] = []
    groups = GroupCommit(1, 10, lambda callback: None)
    worker = SteppedWorker(WorkerTask(submitted.extend, lambda *_: None, lambda *_: None))
    groups.start(worker, lambda group: False)
    assert groups.skip_lsn() == 11
    groups.sync()
    group = groups._open
    assert group is not None and group.needs_sync and group.last_lsn == 10


@pytest.mark.parametrize("size", [10, 9000])
def test_a_segment_is_never_made_in_the_loops_thread(folder: Path, size: int) -> None:
    """To make one means to sync the one before it, which may take long."""
    told: list[bool] = []

    class RecordingWorker(SteppedWorker[CommitGroup, object]):
        def submit(self, item: CommitGroup, *, urgent: bool = False, quick: bool = False) -> None:
            told.append(quick)
            super().submit(item, urgent=urgent)

    settings = StoreSettings(segment_bytes=8192)
    run = Run(folder, settings, Durability.OS)
    worker = run.store._journal_worker
    assert isinstance(worker, SteppedWorker)
    recording = RecordingWorker(worker._work)
    run.loop.workers[1] = recording
    run.store._groups.start(recording, run.store._journal.takes_quickly)
    run.write(NAME, row(1))
    run.write(NAME, row(2, bytes(size)))
    assert told == [False, size == 10]


def test_a_key_left_behind_outlives_its_message(folder: Path) -> None:
    """PA-08, also if the message went while the disk failed."""
    run = Setback(folder)
    run.write(NAME, row(1))
    run.disk.plan = [broken()] * 10
    run.store.write(b"other", [row(2)])
    run.work()
    left = StoredKey(1, 600, NOW + 600, bytes(32))
    run.store.write(NAME, [MessageRemoved(1, 1, left, 1)])
    run.wait()
    run.disk.plan = []
    run.wait()
    assert Run(copied(folder, "copy")).load(NAME).keys == {1: left}


def test_a_disk_that_takes_headers_and_nothing_else_is_not_filled_with_them(folder: Path) -> None:
    """Each second another try: it leaves no segment, and the journal does not seem to grow."""
    run = Setback(folder)
    run.write(NAME, row(1))
    before = run.store.stats
    for message_id in range(2, 30):
        run.disk.plan = [broken()]
        commit = run.store.write(NAME, [row(message_id)])
        run.work()
        assert run.fate(commit) is Fault.NOT_STORED
        run.wait()
    assert len(run.disk.names(folder / "journal")) <= before.segments + 1
    assert run.store.stats.segments <= before.segments + 1
    run.write(NAME, row(30))
    run.close()
    assert [each.id for each in Run(folder).load(NAME).rows] == [1, 30]


class Counted(list[tuple[IndexEntry, int, Sequence[Change]]]):
    """The changes of a group, and the number of those that were checked."""

    looks = 0

    def __getitem__(self, at):  # type: ignore[no-untyped-def]
        found = super().__getitem__(at)
        self.looks += len(found) if isinstance(at, slice) else 1
        return found

    def __iter__(self):  # type: ignore[no-untyped-def]
        for each in super().__iter__():
            self.looks += 1
            yield each


def test_a_channel_is_loaded_at_the_cost_of_what_it_wrote_itself(folder: Path) -> None:
    """Much may be held back while the disk fails, and channels come and go meanwhile."""
    run = Setback(folder)
    names = [b"channel %d" % each for each in range(20)]
    for message_id, name in enumerate(names, 1):
        run.write(name, row(message_id), row(message_id + 100))
    run.disk.plan = [broken()] * 10
    refused = run.store.write(NAME, [row(1000)])
    run.work()
    assert run.fate(refused) is Fault.NOT_STORED
    for message_id, name in enumerate(names, 1):
        run.store.write(name, [AttemptsSet(message_id, 1)])
        run.store.write(name, [AttemptsSet(message_id, 2), gone(message_id + 100)])
    group = run.store._groups._open
    assert group is not None
    held = group.writes = Counted(group.writes)
    for message_id, name in enumerate(names, 1):
        found = run.store.load(name)
        assert isinstance(found, Snapshot)
        assert [each.id for each in found.rows] == [message_id]
        assert found.attempts == {message_id: 2}
    assert held.looks <= len(held), "each write was looked at once, for all of them"


def test_an_ack_behind_a_put_that_is_refused_counts(folder: Path) -> None:
    """The put hangs, then fails; the message that is acked meanwhile was kept before it."""
    run = Setback(folder)
    run.write(NAME, row(1), row(2), row(3))
    run.disk.plan = [broken()]
    commit = run.store.write(NAME, [row(4)])
    run.store.write(NAME, [gone(1)])
    run.store.write(NAME, [AttemptsSet(2, 1), DueAt(2, NOW + 60)])
    run.store.write(NAME, [gone(4)])
    run.work()
    assert run.fate(commit) is Fault.NOT_STORED
    for look in (run.load, lambda name: after_a_kill(run).load(name)):
        left = look(NAME)
        assert [each.id for each in left.rows] == [2, 3]
        assert left.attempts == {2: 1}
        assert left.attributes is not None and left.attributes.due == {2: NOW + 60}
    assert (run.store.usage.messages, run.store.usage.bytes) == (2, 2)


def test_what_a_subscriber_acked_behind_a_put_that_is_refused_counts(folder: Path) -> None:
    run = Setback(folder)
    known, other = Subscriber(1, b"known", NOW + 600, 0), Subscriber(2, b"other", NOW + 600, 0)
    run.write(NAME, known, row(1), row(2))
    run.disk.plan = [broken()]
    run.store.write(NAME, [other, row(3)])
    run.store.write(NAME, [Acked(1, 2), Acked(1, 3), Acked(2, 2)])
    run.work()
    for look in (run.load, lambda name: after_a_kill(run).load(name)):
        table = look(NAME).subscribers
        assert table is not None
        assert [*table.by_number] == [1]  # the other's number is said with what it puts next
        assert table.acked == {1: {2}}


def after_a_kill(run: Setback) -> Run:
    """The disk is sound again, and then the process is gone."""
    run.wait()
    assert run.store.health.is_writable
    return Run(copied(run.folder, "copy"))


@pytest.mark.parametrize("seed", range(8))
def test_a_torn_end_that_is_lost_with_the_power_is_no_damage(tmp_path: Path, seed: int) -> None:
    """The system's memory had it at the start before: a full disk had cut the write, and a sync had
    failed, after which the system takes what was not written for clean."""
    disk = SimulatedDisk(Random(seed), tmp_path / "removed")
    folder = tmp_path / "data"
    disk.make_folder(folder)
    first = Run(folder, disk=disk)
    first.write(NAME, row(1))
    disk.fill()
    first.store.write(NAME, [row(2, b"x" * 500)])
    first.work()
    disk.end_process()
    disk.heal()
    disk.fail_next("fdatasync")
    with pytest.raises(OSError, match="Input/output"):
        Run(folder, disk=disk)
    disk.end_process()
    Run(folder, disk=disk)
    disk.lose_power()
    last = Run(folder, disk=disk)
    assert last.store.damages == []
    assert [each.id for each in last.load(NAME).rows] == [1]


@pytest.mark.parametrize("fails", ["write", "create"])
def test_what_was_stored_without_a_sync_survives_a_stop_on_a_failing_disk(
    tmp_path: Path, fails: str
) -> None:
    """No segment follows the one that failed, to tell that its last groups count."""
    disk = SimulatedDisk(Random(1), tmp_path / "removed")
    folder = tmp_path / "data"
    disk.make_folder(folder)
    first = Run(folder, durability=Durability.OS, disk=disk)
    first.write(NAME, row(1))
    first.write(NAME, row(2))
    disk.fail_next("write")
    disk.fail_next(fails, times=1000)
    first.store.write(NAME, [row(3)])
    first.work()
    first.store.close()
    disk.end_process()
    disk.heal()
    again = Run(folder, durability=Durability.OS, disk=disk)
    assert again.store.damages == []
    assert [each.id for each in again.load(NAME).rows][:2] == [1, 2]
