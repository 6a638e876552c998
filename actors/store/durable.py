"""The store on disk: a journal that makes changes durable, and files behind it that hold them.

The way of a change: `write` numbers it and adds it to the open group; at the end of the loop's
pass the group goes to the writer's lane; when it is on the disk, the change is folded into its
partition's layer and whoever waits is told. Rounds move layers to files. docs/internals/storage.md
tells the whole story, docs/reference/on-disk-format.md the bytes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from millpond.actors.messages import Durability
from millpond.actors.store.changes import (
    AttemptsSet,
    Change,
    Chunk,
    LogSnapshot,
    PartitionKind,
    Snapshot,
    StoredMessage,
    kind_of,
)
from millpond.actors.store.compaction import Compactor
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.group_commit import GroupCommit
from millpond.actors.store.index import IndexEntry, Memtable, count_usage, fold, new_memtable
from millpond.actors.store.interface import (
    Commit,
    Deferred,
    Fault,
    Health,
    PartitionUsage,
    Seek,
    StoredQueue,
    Usage,
)
from millpond.actors.store.jobs import FileJob
from millpond.actors.store.journal.change_codec import encode
from millpond.actors.store.journal.format import Rewrite
from millpond.actors.store.journal.writer import CommitGroup, CommitOutcome, Journal
from millpond.actors.store.loader import QueueLoader
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.memory import MemoryStore
from millpond.actors.store.message_attributes import DueAt
from millpond.actors.store.partitions.file_pool import file_name
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.reads import LogReader, holds_log
from millpond.actors.store.recovery import Recovered, recover
from millpond.actors.store.remains import UnackedWrites
from millpond.actors.store.repair.quarantine import Damage, write_report
from millpond.actors.store.settings import StoreEnvironment, StoreSettings
from millpond.actors.store.stats import StoreStats
from millpond.actors.store.workers import StoreWorker, WorkerTask

log = logging.getLogger(__name__)


class DurableStore:
    """All partitions of a node in one folder. `open` before anything else."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        settings: StoreSettings,
        surroundings: StoreEnvironment,
        durability: Callable[[bytes], Durability],
    ) -> None:
        self.folder = folder
        self.disk = disk
        self._settings = settings
        self.around = surroundings
        self._durability = durability
        self.usage = Usage()
        self.health = Health()
        self._memory = MemoryStore(self.usage)
        self._entries: dict[bytes, IndexEntry] = {}
        self._unsynced: dict[IndexEntry, None] = {}
        self._delayed: deque[Commit] = deque()
        self._lsn_kept = 0
        self._kept: list[StoredQueue] = []

    # Start and end.

    def open(self) -> Recovered:
        """Find what a former run left. Raises Damaged, UnknownVersion, OSError, sqlite3.Error."""
        settings, around = self._settings, self.around
        found = recover(self.folder, self.disk, self._durability, settings)
        salt = around.salt()
        self._groups = GroupCommit(salt, found.tail.lsn, around.soon)
        self._library = found.library
        self._entries = found.entries
        self._kept = found.kept
        self._lsn_kept = found.tail.lsn
        self.last_id = found.last_id
        self.facts = found.facts
        for entry in found.entries.values():
            self.usage.messages += entry.messages
            if entry.kind is PartitionKind.LOG:
                self.usage.log_bytes += entry.bytes
            else:
                self.usage.bytes += entry.bytes
            self.usage.keys += entry.keys
        self._journal = Journal(
            self.folder / "journal",
            self.disk,
            salt,
            found.tail,
            segment_bytes=settings.segment_bytes,
            retry_s=settings.retry_s,
            now=around.now,
        )
        self.timings = self._journal.timings
        self._start_lanes(found)
        return found

    def _start_lanes(self, found: Recovered) -> None:
        around = self.around
        self._rounds = Compactor(self._settings, self, self._library, around.now)
        self._files: StoreWorker[FileJob] = around.worker(
            "files",
            WorkerTask(
                _run_jobs, self._jobs_done, _fail_jobs, idle_s=self._files_idle_s, batch_max=1
            ),
        )
        self._rounds.start(self._files)
        self._rounds.segments.update(found.segments)
        self._rounds.current = found.tail.number + 1
        self._rounds.kept_lsn = self._rounds.synced_lsn = found.tail.lsn
        for entry in found.entries.values():
            if entry.layer is not None:
                self._rounds.hold(entry)
        self._logs = LogReader(self._library, self._files, self._groups, self.usage, self.damaged)
        self._queues = QueueLoader(
            self._library, self._files, self._groups, self.usage, self.damaged
        )
        self._writer: StoreWorker[CommitGroup] = around.worker(
            "journal",
            WorkerTask(
                self._journal.commit, self._done, self._crashed, idle_s=self._journal.idle_s
            ),
        )
        self._groups.start(self._writer)

    def close(self) -> None:
        """Everything written is on the disk when this returns, if the disk takes it."""
        self._groups.seal()
        self._writer.close()
        self._files.close()
        try:
            self._journal.close()
        except OSError as exc:
            log.error("journal does not close: error=%s", exc)
        self._library.close()

    @property
    def counters(self) -> StoreStats:
        journal, rounds, entries = self._journal, self._rounds, self._entries.values()
        return StoreStats(
            journal.groups,
            journal.syncs,
            rounds.flushes,
            rounds.carries,
            segments=len(rounds.segments),
            journal_bytes=rounds.journal_bytes,
            files=sum(entry.has_file for entry in entries),
            damaged=sum(entry.fault is not None for entry in entries),
        )

    def note(self, facts: dict[str, int]) -> None:
        """Keep facts of the node, such as its instance; only right after `open`."""
        self._library.note(facts)
        self.facts.update(facts)

    # The seam.

    def durability(self, name: bytes) -> Durability:
        entry = self._entries.get(name)
        return entry.durability if entry is not None else self._durability(name)

    def partition_usage(self, name: bytes) -> PartitionUsage:
        entry = self._entries.get(name)
        return entry.weight() if entry is not None else self._memory.partition_usage(name)

    def kept(self) -> Iterator[StoredQueue]:
        yield from self._kept

    def write(self, name: bytes, changes: Sequence[Change]) -> Commit | None:
        entry = self._entries.get(name)
        if entry is None:
            durability = self._durability(name)
            if durability is Durability.MEMORY:
                self._memory.write(name, changes)
                return None
            entry = IndexEntry(name, kind_of(changes[0]), durability)
            self._entries[name] = entry
        is_hard = count_usage(entry, changes, self.usage, 1)
        if is_hard and not self.health.is_writable:
            count_usage(entry, changes, self.usage, -1)
            self._forget_idle(entry)
            refused: Commit = Deferred()
            refused.finish(Fault.NOT_KEPT)
            return refused
        if self._groups.is_crowded and all(
            type(change) in (AttemptsSet, DueAt) for change in changes
        ):
            return None  # deliveries may fail for ever; everything else comes to an end
        group = self._groups.write(entry, changes)
        if not is_hard:
            return None
        for change in reversed(changes):
            if type(change) is StoredMessage:
                group.last_id = change.id  # ids ascend
                break
        if entry.durability is Durability.DISK:
            group.needs_sync = True
        return group.commit

    def load(self, name: bytes) -> Snapshot | Deferred[Snapshot | Fault]:
        entry = self._entries.get(name)
        return self._memory.load(name) if entry is None else self._queues.load(entry)

    def logs(self) -> Iterator[bytes]:
        return (entry.name for entry in self._entries.values() if holds_log(entry))

    def log_snapshot(self, name: bytes) -> LogSnapshot | Deferred[LogSnapshot | Fault]:
        entry = self._entries.get(name)
        return self._memory.log_snapshot(name) if entry is None else self._logs.log_snapshot(entry)

    def read(self, name: bytes, seek: Seek) -> list[Chunk] | Deferred[list[Chunk] | Fault]:
        entry = self._entries.get(name)
        return self._memory.read(name, seek) if entry is None else self._logs.read(entry, seek)

    # What becomes of groups.

    def _done(self, groups: list[CommitGroup], outcome: CommitOutcome) -> None:
        if outcome.size:
            self._rounds.segments[outcome.segment] = outcome.size
            self._rounds.current = outcome.segment
        self._groups.room_bytes = self._settings.segment_bytes - outcome.size
        for group in self._groups.kept(groups, outcome.epoch):
            self._keep(group, outcome)
        self._rounds.kept_lsn, self._rounds.synced_lsn = self._lsn_kept, outcome.synced_lsn
        if outcome.synced_lsn >= self._lsn_kept:
            self._unsynced.clear()
        if outcome.epoch > self._groups.epoch:
            self._fail(outcome)
        elif self._groups.is_broken and outcome.error is None:
            self._mend()
        self._look_after()

    def _keep(self, group: CommitGroup, outcome: CommitOutcome) -> None:
        rounds, segment = self._rounds, outcome.segment
        self._lsn_kept = group.last_lsn
        is_synced = group.last_lsn <= outcome.synced_lsn
        for entry, lsn, changes in group.writes:
            entry.in_flight -= 1
            was_held = entry.layer is not None
            entry.fold(lsn, changes, segment)
            if entry.layer is not None:
                if not was_held:
                    rounds.hold(entry)
                if entry.has_file:
                    self._look_for_waste(entry)
            else:
                if was_held:
                    rounds.let_go(entry)
                self._forget_idle(entry)
            if not is_synced:
                self._unsynced[entry] = None
        if group.last_id > self.last_id:
            self.last_id = group.last_id
        for kept in group.kept:
            kept(segment)
        if self._delayed or rounds.is_congested:
            self._delayed.append(group.commit)
        else:
            group.commit.finish(None)

    def _look_for_waste(self, entry: IndexEntry) -> None:
        layer = entry.layer
        if isinstance(layer, QueueMemtable):
            is_empty = not entry.messages and not entry.keys
            if is_empty or (layer.gone_bytes > self._settings.waste_bytes_max):
                self._rounds.urge(entry)
        elif isinstance(layer, LogMemtable) and (layer.is_fresh or layer.trim_point):
            self._rounds.urge(entry)

    def _forget_idle(self, entry: IndexEntry) -> None:
        if entry.is_idle:
            if entry.kind is PartitionKind.LOG:
                self.usage.log_bytes -= entry.bytes
                entry.bytes = 0
            self._entries.pop(entry.name, None)

    # When the disk fails.

    def _fail(self, outcome: CommitOutcome) -> None:
        """Nothing that is on its way is kept, but what nobody waits for: that is tried again."""
        self.health.failures += 1
        self.health.is_writable = False
        self.health.reason = outcome.error or "the journal failed"
        while self._delayed:
            self._delayed.popleft().finish(None)
        failed = self._groups.break_off(outcome.epoch)
        remains = UnackedWrites()
        again: list[tuple[IndexEntry, Sequence[Change]]] = []
        for group in failed:
            for entry, _, changes in group.writes:
                entry.in_flight -= 1
                stands, lost = remains.part(entry, changes)
                if lost:
                    count_usage(entry, lost, self.usage, -1)
                if stands:
                    again.append((entry, stands))
        for entry, changes in again:
            self._groups.write(entry, changes)
        for group in failed:
            for kept in group.kept:
                kept(None)
            group.commit.finish(Fault.NOT_KEPT)
        for entry in remains.losers:
            self._forget_idle(entry)

    def _mend(self) -> None:
        """The journal is written again: say again what may have been lost with the segment."""
        log.warning("journal mended: segment=%d", self._rounds.current)
        unsynced, self._unsynced = self._unsynced, {}
        for entry in unsynced:
            layer = new_memtable(entry.kind, is_base=not entry.has_file and entry.frozen is None)
            if isinstance(layer, QueueMemtable):
                # What is frozen may get to the file after this, so what goes leaves a trace.
                layer.is_doubtful = entry.frozen is not None
            for each in (entry.frozen, entry.layer):
                if each is not None:
                    fold(layer, each.changes())
            carry = Rewrite.WHOLE if entry.frozen is None else Rewrite.MENDED
            self.carry(entry, layer, entry.lsn, carry)
        if unsynced:
            self._groups.after(partial(self._said_again, unsynced))
        self._groups.mend()

    def _said_again(self, entries: dict[IndexEntry, None], segment: int | None) -> None:
        """If the disk failed once more, there is still nothing else that has it."""
        if segment is None:
            self._unsynced = {**entries, **self._unsynced}

    def _crashed(self, groups: list[CommitGroup], exc: Exception) -> None:
        """A fault of ours in the writer: nothing is known of what it had in hand."""
        outcome = CommitOutcome(
            self._groups.epoch + 1, self._rounds.current, 0, 0, f"crashed: {exc!r}"
        )
        self._fail(outcome)

    def _look_after(self) -> None:
        """Rounds, and whether there is room for more."""
        if not self._groups.is_broken:
            self._rounds.step()
            self._look_at_room()
        while self._delayed and not self._rounds.is_congested:
            self._delayed.popleft().finish(None)

    def _look_at_room(self) -> None:
        health = self.health
        is_writable = not self._rounds.is_behind
        if is_writable is not health.is_writable:
            health.is_writable = is_writable
            health.reason = "" if is_writable else "the journal is full: files cannot be written"

    def _jobs_done(self, jobs: list[FileJob], _: None) -> None:
        for job in jobs:
            job.report()
        self._look_after()

    def _files_idle_s(self) -> float | None:
        return self._settings.retry_s if self._rounds.must_try_again else None

    # What rounds need.

    def carry(self, entry: IndexEntry, layer: Memtable, as_of: int, carry: Rewrite) -> int:
        group = self._groups.add(entry, encode(layer.changes()), carry, as_of)
        group.needs_sync = True
        return group.last_lsn

    def stamp(self) -> int:
        return self._groups.stamp()

    def sync(self) -> None:
        self._groups.sync()

    def after_group(self, kept: Callable[[int | None], None]) -> None:
        self._groups.after(kept)

    def damaged(self, entry: IndexEntry) -> None:
        if entry.fault is None:
            entry.fault = Fault.DAMAGED
            damage = Damage(file_name(entry.name), "the file of a partition is damaged", entry.name)
            note = partial(write_report, self.folder / "damaged", self.disk, damage)
            self._files.submit(FileJob(note))

    def settled(self, entry: IndexEntry) -> None:
        self._forget_idle(entry)


def _run_jobs(jobs: list[FileJob]) -> None:
    for job in jobs:
        job.attempt()


def _fail_jobs(jobs: list[FileJob], _: Exception) -> None:
    for job in jobs:
        job.fail()
