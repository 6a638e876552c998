"""The journal's writer: what it says is kept can be read back, and what failed never comes back."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random
from zlib import crc32

import msgspec
import pytest

from millpond.actors.store.changes import PartitionKind
from millpond.actors.store.filesystem import Disk, OsDisk
from millpond.actors.store.journal.format import (
    CUTS_MAX,
    GROUP_SIZE,
    HEADER_SIZE,
    RECORD_SIZE,
    Cut,
    Header,
    decode_header,
    encode_record,
)
from millpond.actors.store.journal.reader import JournalContents, read_journal
from millpond.actors.store.journal.segments import ID_STEP, MemorySegments, Segment, SegmentEnd
from millpond.actors.store.journal.writer import (
    CommitGroup,
    CommitOutcome,
    Journal,
    JournalTail,
    segment_path,
)
from tests.sim.disk import SimDisk
from tests.sim.faults import Trouble

SALT = 77
RETRY_S = 1.0


class JournalHarness:
    """A journal, and the store's part in it: numbers and epochs."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        *,
        segment_bytes: int = 4096,
        tail: JournalTail | None = None,
    ) -> None:
        self.folder = folder
        self.disk = disk
        tail = tail or JournalTail()
        self.lsn = tail.lsn
        self.epoch = 0
        self.now = 0.0
        self.segments = MemorySegments()
        self.journal = Journal(
            folder,
            disk,
            SALT,
            tail,
            segments=self.segments,
            segment_bytes=segment_bytes,
            retry_s=RETRY_S,
            now=lambda: self.now,
        )

    def group(self, *bodies: bytes, sync: bool = True, last_id: int = 0) -> CommitGroup:
        group = CommitGroup(self.epoch, self.lsn + 1)
        group.needs_sync = sync
        group.last_id = last_id
        for body in bodies:
            self.lsn += 1
            group.records.append(encode_record(SALT, self.lsn, PartitionKind.QUEUE, b"name", body))
        group.last_lsn = self.lsn
        return group

    def write(self, *bodies: bytes, sync: bool = True, last_id: int = 0) -> CommitOutcome:
        return self.commit(self.group(*bodies, sync=sync, last_id=last_id))

    def commit(self, *groups: CommitGroup) -> CommitOutcome:
        outcome = self.journal.commit(list(groups))
        self.epoch = outcome.epoch
        return outcome

    def found(self) -> JournalContents:
        found = read_journal(self.folder, self.disk)
        found.tail = msgspec.structs.replace(found.tail, previous=SegmentEnd())
        return found

    def bodies(self) -> list[bytes]:
        return [record.body for _, record in self.found().records]

    def header(self, number: int) -> Header:
        return decode_header(self.disk.read(segment_path(self.folder, number)))

    @property
    def numbers(self) -> list[str]:
        return [name.removesuffix(".journal").lstrip("0") for name in self.disk.names(self.folder)]


@pytest.fixture(params=["real", "simulated"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> JournalHarness:
    disk = OsDisk() if request.param == "real" else SimDisk(Random(1), tmp_path)
    folder = tmp_path / "journal"
    disk.make_folder(folder)
    return JournalHarness(folder, disk)


@pytest.fixture
def sim(tmp_path: Path) -> SimDisk:
    return SimDisk(Random(1), tmp_path)


@pytest.fixture
def shaky(tmp_path: Path, sim: SimDisk) -> JournalHarness:
    """On a disk that can fail."""
    folder = tmp_path / "journal"
    sim.make_folder(folder)
    return JournalHarness(folder, sim)


class TestWriting:
    def test_what_was_committed_can_be_read(self, harness: JournalHarness) -> None:
        assert harness.write(b"one") == CommitOutcome(0, 1, HEADER_SIZE + GROUP_SIZE + 39, 1)
        outcome = harness.write(b"two", b"three")
        assert (outcome.epoch, outcome.segment, outcome.synced_lsn) == (0, 1, 3)
        assert harness.bodies() == [b"one", b"two", b"three"]
        assert [record.lsn for _, record in harness.found().records] == [1, 2, 3]

    def test_groups_that_wait_together_are_one_group_and_one_sync(
        self, harness: JournalHarness
    ) -> None:
        outcome = harness.commit(
            harness.group(b"one"), harness.group(b"two"), harness.group(b"three")
        )
        assert (harness.journal.groups, harness.journal.syncs) == (1, 1)
        assert outcome.synced_lsn == 3
        assert {record.synced_lsn for _, record in harness.found().records} == {0}

    def test_a_group_says_what_was_synced_before_it(self, harness: JournalHarness) -> None:
        for body in (b"one", b"two", b"three"):
            harness.write(body)
        assert [record.synced_lsn for _, record in harness.found().records] == [0, 1, 2]

    def test_a_segment_reserves_its_space(self, harness: JournalHarness) -> None:
        harness.write(b"one")
        assert len(harness.disk.read(segment_path(harness.folder, 1))) == 4096

    def test_nothing_is_made_before_something_is_written(self, harness: JournalHarness) -> None:
        harness.commit()
        assert harness.journal.idle_s() is None
        harness.journal.close()
        assert harness.numbers == []


class TestWithoutAPromise:
    """Durability `os`: written, and synced when there is nothing else to do."""

    def test_is_written_and_not_synced(self, harness: JournalHarness) -> None:
        outcome = harness.write(b"one", sync=False)
        assert (outcome.synced_lsn, harness.journal.syncs) == (0, 0)
        assert harness.bodies() == [b"one"]

    def test_is_synced_when_nothing_waits(self, harness: JournalHarness) -> None:
        harness.write(b"one", sync=False)
        assert harness.journal.idle_s() == RETRY_S
        assert harness.commit().synced_lsn == 1
        assert harness.journal.idle_s() is None
        harness.commit()
        assert harness.journal.syncs == 1

    def test_is_synced_in_time_whatever_else_is_written(self, harness: JournalHarness) -> None:
        """docs/internals/storage.md: within a second. Groups without a sync do not put it off."""
        harness.write(b"one", sync=False)
        harness.now = 0.6
        assert harness.write(b"two", sync=False).synced_lsn == 0
        assert harness.journal.idle_s() == pytest.approx(0.4)
        harness.now = 1.1
        assert harness.journal.idle_s() == 0.0
        assert harness.write(b"three", sync=False).synced_lsn == 3
        harness.write(b"four", sync=False)
        assert harness.journal.idle_s() == RETRY_S

    def test_is_synced_with_the_next_that_must_be(self, harness: JournalHarness) -> None:
        harness.write(b"one", sync=False)
        assert harness.write(b"two").synced_lsn == 2
        assert harness.journal.syncs == 1

    def test_is_synced_at_the_end(self, shaky: JournalHarness, sim: SimDisk) -> None:
        shaky.write(b"one", sync=False)
        shaky.journal.close()
        sim.lose_power()
        assert shaky.bodies() == [b"one"]

    def test_is_synced_before_the_next_segment_begins(
        self, shaky: JournalHarness, sim: SimDisk
    ) -> None:
        shaky.write(b"x" * 2000, sync=False)
        shaky.write(b"y" * 2000, sync=False)
        sim.lose_power()
        assert shaky.bodies()[:1] == [b"x" * 2000]


class TestSegments:
    def test_the_next_begins_where_one_is_full(self, harness: JournalHarness) -> None:
        for index in range(10):
            harness.write(bytes([index]) * 1000, last_id=index + 100)
        assert harness.numbers == ["1", "2", "3", "4", "5"]
        for number, last_id in ((1, 0), (2, 101), (5, 107)):
            header = harness.header(number)
            assert (header.number, header.salt, header.last_id) == (number, SALT, last_id)
            assert header.first_lsn == 2 * number - 1
        found = harness.found()
        assert [number for number, _ in found.records] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
        assert (found.tail, found.last_id, found.damages) == (JournalTail(5, 10), 107, [])

    def test_a_group_larger_than_a_segment_has_one_of_its_own(
        self, harness: JournalHarness
    ) -> None:
        harness.write(b"small")
        harness.write(b"x" * 10_000)
        harness.write(b"small again")
        assert [number for number, _ in harness.found().records] == [1, 2, 3]

    def test_a_restart_begins_the_next_one(self, harness: JournalHarness) -> None:
        harness.write(b"one")
        harness.journal.close()
        again = JournalHarness(harness.folder, harness.disk, tail=harness.found().tail)
        again.write(b"two")
        assert [(number, record.lsn) for number, record in again.found().records] == [
            (1, 1),
            (2, 2),
        ]
        assert {record.synced_lsn for _, record in again.found().records[1:]} == {1}

    def test_one_of_that_number_is_never_overwritten(self, harness: JournalHarness) -> None:
        harness.write(b"one")
        foreign = JournalHarness(harness.folder, harness.disk)
        outcome = foreign.write(b"two")
        assert outcome.epoch == 1
        assert outcome.error is not None
        assert harness.bodies() == [b"one"]


class TestFailing:
    @pytest.mark.parametrize("trouble", [Trouble.FULL, Trouble.BROKEN])
    @pytest.mark.parametrize("call", [1, 2], ids=["write", "sync"])
    def test_what_failed_is_not_there_after_the_next_was_kept(
        self, shaky: JournalHarness, sim: SimDisk, trouble: Trouble, call: int
    ) -> None:
        """Its bytes may all be in the file: whoever was told no must not find it there."""
        shaky.write(b"kept")
        end = shaky.found().records[-1][1]
        sim.faults.fail(call, trouble)
        outcome = shaky.write(b"failed")
        assert (outcome.epoch, outcome.synced_lsn) == (1, 1)
        assert outcome.error is not None
        assert shaky.journal.idle_s() == RETRY_S
        shaky.lsn = 100  # the store numbers on
        assert shaky.write(b"kept, too").error is None
        assert shaky.bodies() == [b"kept", b"kept, too"]
        assert [record.lsn for _, record in shaky.found().records] == [end.lsn, 101]
        at = HEADER_SIZE + GROUP_SIZE + RECORD_SIZE + len(b"name") + len(b"kept")
        assert shaky.header(2).cuts == {1: Cut(at, at)}
        sim.lose_power()
        assert shaky.bodies() == [b"kept", b"kept, too"]

    def test_what_was_written_upon_something_that_failed_fails_as_well(
        self, shaky: JournalHarness, sim: SimDisk
    ) -> None:
        shaky.write(b"kept")
        waiting = [shaky.group(b"failed"), shaky.group(b"waited behind it")]
        sim.faults.fail(1, Trouble.FULL)
        shaky.commit(waiting[0])
        outcome = shaky.commit(waiting[1])
        assert (outcome.epoch, outcome.synced_lsn) == (1, 1)
        shaky.write(b"new")
        assert shaky.bodies() == [b"kept", b"new"]

    @pytest.mark.parametrize("seed", range(8))
    def test_what_was_kept_without_a_sync_may_be_lost_with_the_power(
        self, tmp_path: Path, seed: int
    ) -> None:
        """The store says it again, since nobody knows what the disk has of it. Whether it is lost
        or not, that is neither damage nor a reason to doubt what came later."""
        sim = SimDisk(Random(seed), tmp_path, garbage=0.3)
        sim.make_folder(tmp_path / "journal")
        shaky = JournalHarness(tmp_path / "journal", sim)
        shaky.write(b"synced")
        for _ in range(3):
            shaky.write(b"kept" * 150, sync=False)
        sim.faults.fail(2, Trouble.BROKEN)
        assert shaky.write(b"failed").synced_lsn == 1
        shaky.write(b"new")
        assert shaky.bodies() == [b"synced", *([b"kept" * 150] * 3), b"new"]
        cut = shaky.header(2).cuts[1]
        assert cut.synced < cut.end
        sim.lose_power()
        found = shaky.found()
        bodies = [record.body for _, record in found.records]
        assert (bodies[0], bodies[-1]) == (b"synced", b"new")
        assert set(bodies[1:-1]) <= {b"kept" * 150}
        assert (found.damages, found.torn_bytes) == ([], 0)

    def test_tries_again_by_itself(self, shaky: JournalHarness, sim: SimDisk) -> None:
        shaky.write(b"one")
        sim.faults.fail_from(1, Trouble.FULL)
        shaky.write(b"failed")
        assert shaky.commit().error is not None
        sim.faults.heal()
        outcome = shaky.commit()
        assert (outcome.error, outcome.size) == (None, HEADER_SIZE)
        assert shaky.journal.idle_s() is None

    def test_a_long_trouble_does_not_bring_back_what_failed_first(
        self, shaky: JournalHarness, sim: SimDisk
    ) -> None:
        shaky.write(b"kept")
        sim.faults.fail(2, Trouble.BROKEN)
        shaky.write(b"failed")
        sim.faults.fail_from(1, Trouble.FULL)
        for _ in range(CUTS_MAX * 2):
            assert shaky.commit().error is not None
        sim.faults.heal()
        shaky.write(b"new")
        assert shaky.bodies() == [b"kept", b"new"]

    def test_a_segment_that_failed_gets_nothing_more(
        self, shaky: JournalHarness, sim: SimDisk
    ) -> None:
        shaky.write(b"kept")
        sim.faults.fail(1, Trouble.SHORT)
        shaky.write(b"failed")
        before = sim.read(segment_path(shaky.folder, 1))
        shaky.write(b"new")
        shaky.commit()
        assert sim.read(segment_path(shaky.folder, 1)) == before

    def test_the_first_segment_may_fail(self, shaky: JournalHarness, sim: SimDisk) -> None:
        for calls in range(1, 4):
            sim.faults.fail(calls, Trouble.FULL)
            assert shaky.write(b"failed").error is not None
        shaky.write(b"kept")
        assert shaky.bodies() == [b"kept"]
        assert shaky.found().damages == []

    def test_the_reason_is_told(self, shaky: JournalHarness, sim: SimDisk) -> None:
        sim.faults.fail(1, Trouble.FULL)
        error = shaky.write(b"failed").error
        assert error is not None and str(errno.ENOSPC) in error


class TestLongTrouble:
    """The header of the next segment is written, and then nothing else can be."""

    @pytest.mark.parametrize("call", [1, 2], ids=["write", "sync"])
    def test_leaves_no_segment_behind_in_which_nothing_is(
        self, shaky: JournalHarness, sim: SimDisk, call: int
    ) -> None:
        shaky.write(b"kept")
        for attempt in range(20):
            assert shaky.commit().error is None, "it looks as if it could be written again"
            sim.faults.fail(call, Trouble.FULL)
            assert shaky.write(b"failed %d" % attempt).error is not None
        assert shaky.numbers == ["1"]
        assert shaky.commit().error is None
        assert shaky.write(b"kept, too").error is None
        assert shaky.numbers == ["1", "2"]
        assert shaky.bodies() == [b"kept", b"kept, too"]
        sim.lose_power()
        assert shaky.bodies() == [b"kept", b"kept, too"]
        assert (shaky.found().damages, shaky.found().torn_bytes) == ([], 0)

    def test_keeps_what_was_kept_without_a_sync(self, shaky: JournalHarness, sim: SimDisk) -> None:
        """The process may be killed before it is said again."""
        shaky.write(b"kept")
        sim.faults.fail(1, Trouble.FULL)
        shaky.write(b"failed")
        shaky.commit()
        shaky.write(b"kept for now", sync=False)
        sim.faults.fail(1, Trouble.BROKEN)
        assert shaky.commit().error is not None  # it cannot be synced
        assert shaky.numbers == ["1", "2"]
        assert shaky.bodies() == [b"kept", b"kept for now"]
        assert shaky.write(b"kept, too").error is None
        assert shaky.header(3).cuts[2].end > HEADER_SIZE

    def test_does_not_bring_back_what_failed_if_it_cannot_be_removed(
        self, shaky: JournalHarness, sim: SimDisk
    ) -> None:
        shaky.write(b"kept")
        sim.faults.fail(1, Trouble.FULL)
        shaky.write(b"failed")
        shaky.commit()
        sim.faults.fail_from(2, Trouble.BROKEN, 2)  # the sync of a group, and the unlink
        assert shaky.write(b"failed, and all of it written").error is not None
        assert shaky.write(b"kept, too").error is None
        assert shaky.header(int(shaky.numbers[-1])).cuts[2] == Cut(HEADER_SIZE, HEADER_SIZE)
        assert shaky.bodies() == [b"kept", b"kept, too"]

    @pytest.mark.parametrize("seed", range(8))
    def test_a_loss_of_power_meanwhile_costs_nothing_that_was_kept(
        self, tmp_path: Path, seed: int
    ) -> None:
        """The segment that was removed may be back."""
        sim = SimDisk(Random(seed), tmp_path)
        sim.make_folder(tmp_path / "journal")
        shaky = JournalHarness(tmp_path / "journal", sim)
        shaky.write(b"kept")
        sim.faults.fail(2, Trouble.BROKEN)
        shaky.write(b"failed")
        shaky.commit()
        sim.faults.fail(2, Trouble.BROKEN)
        shaky.write(b"failed")
        sim.lose_power()
        found = shaky.found()
        assert (found.records[0][1].body, found.damages) == (b"kept", [])
        again = JournalHarness(shaky.folder, sim, tail=found.tail)
        before = again.bodies()
        assert again.write(b"new").error is None
        sim.lose_power()
        assert again.bodies() == [*before, b"new"]


class StubbornSegments(MemorySegments):
    """A list that refuses its next changes, as a catalog that cannot be written."""

    refusals = 0

    def _refuse(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise OSError("the catalog cannot be written")

    def begin(self, opened: Segment, completed: Segment | None) -> None:
        self._refuse()
        super().begin(opened, completed)

    def forget(self, number: int) -> None:
        self._refuse()
        super().forget(number)

    def reserve_ids(self, mark: int) -> None:
        self._refuse()
        super().reserve_ids(mark)


class TestTheList:
    """Nothing is stored in a segment before it is listed; rows are complete behind it."""

    @pytest.fixture
    def stubborn(self, harness: JournalHarness) -> JournalHarness:
        harness.segments = harness.journal._segments = StubbornSegments()
        return harness

    def test_each_segment_has_its_row(self, harness: JournalHarness) -> None:
        for index in range(6):
            group = harness.group(bytes([index]) * 1000, last_id=index + 100)
            group.names[b"name"] = group.last_lsn
            harness.commit(group)
        harness.journal.close()
        rows = harness.segments.rows
        assert [str(number) for number in rows] == harness.numbers
        assert [(row.last_lsn, row.names) for row in rows.values()] == [
            (2, {b"name": 2}), (4, {b"name": 4}), (6, {b"name": 6}),
        ]  # fmt: skip
        for number, row in rows.items():
            data = harness.disk.read(segment_path(harness.folder, number))
            assert crc32(data[: row.end]) == row.crc and not any(data[row.end :])
            assert harness.header(number).previous == (
                rows[number - 1].link if number > 1 else SegmentEnd()
            )

    def test_nothing_is_stored_while_it_cannot_be_changed(self, stubborn: JournalHarness) -> None:
        """And there is one new segment, however often it is tried."""
        segments = stubborn.segments
        assert isinstance(segments, StubbornSegments)
        stubborn.write(b"a" * 3000)
        segments.refusals = 4
        assert stubborn.write(b"b" * 3000).error
        for _ in range(3):
            assert stubborn.commit().error
        assert stubborn.bodies() == [b"a" * 3000]
        assert stubborn.numbers == ["1", "2"] and set(segments.rows) == {1}
        assert not stubborn.commit().error
        assert not stubborn.write(b"c").error
        assert stubborn.bodies() == [b"a" * 3000, b"c"]
        assert stubborn.numbers == ["1", "2"] and set(segments.rows) == {1, 2}
        assert segments.rows[1].is_complete

    def test_ids_are_reserved_before_they_are_stored(self, stubborn: JournalHarness) -> None:
        segments = stubborn.segments
        assert isinstance(segments, StubbornSegments)
        stubborn.write(b"a", last_id=1000)
        assert segments.id_mark == 1000 + ID_STEP
        stubborn.write(b"b", last_id=1000 + ID_STEP)
        assert segments.id_mark == 1000 + ID_STEP, "one of a step is enough"
        segments.refusals = 1
        assert stubborn.write(b"c", last_id=1001 + ID_STEP).error
        assert stubborn.bodies() == [b"a", b"b"]

    def test_what_failed_is_taken_from_it_before_it_is_removed(
        self, shaky: JournalHarness, sim: SimDisk
    ) -> None:
        sim.faults.fail(3, Trouble.FULL)  # behind the header: the first write of a group
        for _ in range(5):
            shaky.write(b"x")
            shaky.commit()
        rows = shaky.segments.rows
        assert {str(number) for number in rows} <= set(shaky.numbers)


class TestTimings:
    def test_a_commit_is_timed_from_its_write_to_the_end_of_its_sync(
        self, harness: JournalHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        times = iter(range(1000))
        harness.write(b"one")
        monkeypatch.setattr(harness.journal, "_now", lambda: float(next(times)))
        timings = harness.journal.journal_stats
        before = timings.commit_s.total, timings.sync_s.total, timings.records.total
        harness.write(b"two", b"three")
        # Every look at the clock takes a second here: the sync begins and ends within the commit.
        assert timings.sync_s.total - before[1] == 1.0
        assert timings.commit_s.total - before[0] >= 2.0
        assert timings.records.total - before[2] == 2 and timings.records.count == 2
        assert timings.busy_s(2000.0) == 0.0

    def test_without_a_sync_there_is_a_commit_alone(self, harness: JournalHarness) -> None:
        harness.write(b"one")
        syncs, size = (
            harness.journal.journal_stats.sync_s.count,
            harness.journal.journal_stats.bytes,
        )
        harness.write(b"two", sync=False)
        timings = harness.journal.journal_stats
        assert (timings.sync_s.count, timings.commit_s.count) == (syncs, 2)
        assert timings.bytes > size

    def test_what_failed_took_no_time_and_is_over(
        self, shaky: JournalHarness, sim: SimDisk
    ) -> None:
        shaky.now = 5.0
        shaky.write(b"one")
        sim.faults.fail(1, Trouble.FULL)
        assert shaky.write(b"two").error is not None
        timings = shaky.journal.journal_stats
        assert timings.commit_s.count == 1 and timings.busy_s(60.0) == 0.0
