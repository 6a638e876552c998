"""The store on disk: a journal that makes changes durable, and partition files behind it.

The way of a change: `write` numbers it and adds it to the open group; at the end of the loop's
pass the group goes to the journal's worker; when it is on the disk, the change is folded into its
partition's memtable and the caller is told. Compaction moves memtables to files.
docs/internals/storage.md describes all of it, docs/reference/on-disk-format.md the bytes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from millpond.actors.messages import Durability
from millpond.actors.store.changes import (
    AttemptsSet,
    Change,
    Chunk,
    ColdReference,
    LogSnapshot,
    PartitionKind,
    Snapshot,
    StoredMessage,
    kind_of,
)
from millpond.actors.store.compaction import Compactor
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.group_commit import GroupCommit, UnackedWrites
from millpond.actors.store.index import IndexEntry, count_usage, fold, may_overlap, new_memtable
from millpond.actors.store.interface import (
    ChunkCipher,
    ColdReader,
    Commit,
    Deferred,
    Fault,
    Health,
    JournalFollower,
    PartitionUsage,
    Seek,
    StoredQueue,
    Usage,
    decrypted_chunks,
    encrypted_changes,
    refused,
)
from millpond.actors.store.journal.format import Rewrite
from millpond.actors.store.journal.writer import CommitGroup, CommitOutcome, Journal
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.memory import MemoryStore
from millpond.actors.store.message_attributes import DueAt
from millpond.actors.store.partitions.file_pool import file_name, is_file_name
from millpond.actors.store.partitions.files import FileJob, OldestLocal
from millpond.actors.store.partitions.log_tables import LocalBytes
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.reads import LogReader, QueueLoader, holds_log
from millpond.actors.store.recovery import Recovered, recover
from millpond.actors.store.repair.quarantine import Damage, log_damage, write_report
from millpond.actors.store.scrub import Scrub, ScrubSlice
from millpond.actors.store.settings import StoreEnvironment, StoreSettings
from millpond.actors.store.snapshot import StoreSnapshot
from millpond.actors.store.stats import StoreStats
from millpond.actors.store.workers import StoreWorker, WorkerTask

log = logging.getLogger(__name__)

T = TypeVar("T")

SCRUB_BYTES = 2**20
SnapshotDone = Callable[[StoreSnapshot | Fault], None]
"""A slice of the scrub, where no rate is set."""


class DurableStore:
    """All partitions of a node in one data folder. Call `open` before anything else.

    `cipher` (None: nothing is encrypted) and `follower` (None: there is none) may be set before
    `open`.
    """

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        settings: StoreSettings,
        environment: StoreEnvironment,
        durability: Callable[[bytes], Durability],
    ) -> None:
        self.folder = folder
        self.disk = disk
        self._settings = settings
        self.environment = environment
        self._durability = durability
        self.cipher: ChunkCipher | None = None
        self.follower: JournalFollower | None = None
        self.usage = Usage()
        self.health = Health()
        self.damages: list[Damage] = []
        self._memory = MemoryStore(self.usage)
        self._entries: dict[bytes, IndexEntry] = {}
        self._unsynced: dict[IndexEntry, None] = {}
        self._delayed: deque[Commit] = deque()
        self._unreplicated: deque[tuple[int, Commit]] = deque()
        """Commits that wait until their lsn is replicated."""
        self._stored_lsn = 0
        self._stored_queues: list[StoredQueue] = []
        self._snapshot_done: SnapshotDone | None = None

    # Start and end.

    def open(self, *, was_used: bool | None = None, suffix_after: int | None = None) -> Recovered:
        """Find what a former run left. `was_used`: there was one, or none that stored anything,
        whatever the folder has; None: the folder tells. `suffix_after` is that of `recover`. Raises
        Damaged, UnknownVersion, OSError, sqlite3.Error."""
        settings, environment = self._settings, self.environment
        found = recover(
            self.folder,
            self.disk,
            self._durability,
            settings,
            was_used=was_used,
            now=environment.now(),
            suffix_after=suffix_after,
        )
        self.salt = salt = environment.salt()
        self._groups = GroupCommit(salt, found.tail.lsn, environment.soon)
        self._files = found.files
        self._entries = found.entries
        self._stored_queues = found.stored_queues
        self._stored_lsn = found.tail.lsn
        self.damages.extend(found.damages)
        self._is_all_lost = any(damage.is_all for damage in found.damages)
        self._refused_files = {
            path for each in found.damages if (path := _nameless_file(each)) is not None
        }
        self._first_sequence = found.first_sequence
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
            segments=self._files,
            segment_bytes=settings.segment_bytes,
            retry_s=settings.retry_s,
            now=environment.now,
        )
        self.journal_stats = self._journal.journal_stats
        self._start_workers(found)
        return found

    def _start_workers(self, found: Recovered) -> None:
        self._is_ended = False
        environment = self.environment
        self._compactor = compactor = Compactor(
            self._settings,
            self._groups,
            self._files,
            environment.now,
            mark_damaged=self._mark_damaged,
            forget_if_idle=self._forget_if_idle,
        )
        self._scrub = Scrub(self.folder, self.disk, self._files)
        self._scrub_at = environment.now() + self._settings.scrub_delay_s
        self._is_scrubbing = False
        self._scrub_bytes = self._scrub_passes = 0
        self._scrubbed_at = 0.0
        self._file_worker: StoreWorker[FileJob] = environment.worker(
            "files",
            WorkerTask(
                _run_jobs, self._jobs_done, _jobs_crashed, idle_s=self._files_idle_s, batch_max=1
            ),
        )
        compactor.start(
            self._file_worker, found.segments, found.tail.number + 1, lsn=found.tail.lsn
        )
        for entry in found.entries.values():
            if entry.memtable is not None:
                compactor.pin(entry)
            if entry.fault is not None:
                compactor.exempt(entry)
        parts = (self._files, self._file_worker, self._groups, self.usage, self._mark_damaged)
        self._logs, self._queues = LogReader(*parts), QueueLoader(*parts)
        self._journal_worker: StoreWorker[CommitGroup] = environment.worker(
            "journal",
            WorkerTask(
                self._journal.commit, self._done, self._crashed, idle_s=self._journal.idle_s
            ),
        )
        self._groups.start(self._journal_worker, self._journal.takes_quickly)

    def end(self) -> None:
        """Take nothing more. `close` follows, and may be in another thread."""
        if not self._is_ended:
            self._is_ended = True
            self._groups.end()
            self._journal_worker.end()
            self._file_worker.end()

    def close(self) -> None:
        """Everything written is on the disk when this returns, if the disk takes it."""
        self.end()
        self._journal_worker.close()
        self._file_worker.close()
        try:
            self._journal.close()
        except OSError as exc:
            log.error("journal does not close: error=%s", exc)
        else:
            self._files.copy_catalog()
        self._files.close()

    @property
    def stored_lsn(self) -> int:
        """The number of the last record that is stored."""
        return self._stored_lsn

    @property
    def stats(self) -> StoreStats:
        """Counts since the start, and sizes now."""
        journal, compactor, entries = self._journal, self._compactor, self._entries.values()
        return StoreStats(
            journal.groups,
            journal.syncs,
            compactor.flushes,
            compactor.rewrites,
            segments=compactor.segment_count,
            journal_bytes=compactor.journal_bytes,
            files=sum(entry.has_file for entry in entries),
            damaged=sum(entry.fault is not None for entry in entries),
            damages=len(self.damages),
            scrub_bytes=self._scrub_bytes,
            scrub_passes=self._scrub_passes,
            scrub_progress=self._scrub.progress,
            scrubbed_at=self._scrubbed_at,
        )

    def save_facts(self, facts: dict[str, int]) -> None:
        """Store facts of the node, such as its instance; only right after `open`."""
        self._files.save_facts(facts)
        self.facts.update(facts)

    def vacate(self) -> None:
        """Have all that the journal holds written elsewhere, in new segments or in files, so that
        `complete_segment` lets go of the segments that are there now."""
        self._compactor.evacuate_all()
        self._groups.sync()

    def complete_segment(self) -> None:
        """Have the next segment of the journal begun, and those removed that nothing needs."""
        self._groups.begin_segment()

    # Snapshots.

    def begin_snapshot(self, done: SnapshotDone) -> None:
        """Call with a snapshot of this moment or a later one, which has everything that was stored,
        reported and acknowledged before this call; or with the fault that prevents it.
        `end_snapshot` has to follow in either case, and may come before. One at a time."""
        self._snapshot_done = done
        self._compactor.pause(partial(self._sync_snapshot, done))

    def release_segments(self) -> None:
        """The segments of the snapshot are copied: they may go."""
        self._compactor.keep_segments(0)

    def end_snapshot(self) -> None:
        """Keep nothing more for a snapshot."""
        self._snapshot_done = None
        self._compactor.resume()
        self._compactor.keep_segments(0)
        self._file_worker.submit(FileJob(self._files.end_snapshot))

    # Each step is of one snapshot, known by its `done`: one that was ended may still wait for the
    # disk when the next one begins, and stops there.

    def _sync_snapshot(self, done: SnapshotDone) -> None:
        # Acks that no client waits for are in the open group: they are stored first.
        self._snapshot_step(done, self._groups.sync, self._cut_snapshot)

    def _cut_snapshot(self, done: SnapshotDone, _: int) -> None:
        self._snapshot_step(done, self._groups.begin_segment, self._snapshot_files)

    def _snapshot_step(
        self,
        done: SnapshotDone,
        write: Callable[[], None],
        then: Callable[[SnapshotDone, int], None],
    ) -> None:
        def stored(segment: int | None) -> None:
            if segment is None:
                self._finish_snapshot(done, Fault.NOT_STORED)
            elif self._snapshot_done is done:
                then(done, segment)

        if self._snapshot_done is not done:
            return
        if self._groups.is_broken:
            self._finish_snapshot(done, Fault.NOT_STORED)
            return
        write()
        self._groups.when_stored(stored)

    def _snapshot_files(self, done: SnapshotDone, segment: int) -> None:
        """All before this segment is complete."""
        self._compactor.keep_segments(segment - 1)
        begin = partial(self._files.begin_snapshot, segment - 1, self._stored_lsn)
        self._file_worker.submit(FileJob(begin, partial(self._finish_snapshot, done)))

    def _finish_snapshot(self, done: SnapshotDone, result: StoreSnapshot | Fault) -> None:
        if self._snapshot_done is done:
            self._snapshot_done = None
            self._compactor.resume()
            done(result)

    # The interface.

    def _refuses(self, name: bytes) -> bool:
        """True: nothing is known of this name, and it may have lost everything."""
        if not self._is_all_lost and not self._refused_files:
            return False
        if self._durability(name) is Durability.MEMORY:
            return False
        return self._is_all_lost or Path(file_name(name)).name in self._refused_files

    def durability(self, name: bytes) -> Durability:
        entry = self._entries.get(name)
        return entry.durability if entry is not None else self._durability(name)

    def partition_usage(self, name: bytes) -> PartitionUsage:
        entry = self._entries.get(name)
        return entry.usage() if entry is not None else self._memory.partition_usage(name)

    def stored_queues(self) -> Iterator[StoredQueue]:
        yield from self._stored_queues

    def write(self, name: bytes, changes: Sequence[Change]) -> Commit | None:
        if self.cipher is not None and self.cipher.covers(name):
            changes = encrypted_changes(self.cipher, name, changes)
        entry = self._entries.get(name)
        if entry is None:
            durability = self._durability(name)
            if durability is Durability.MEMORY:
                self._memory.write(name, changes)
                return None
            if self._refuses(name):
                return refused()
            entry = IndexEntry(name, kind_of(changes[0]), durability)
            self._entries[name] = entry
        is_replicated = entry.durability is Durability.REPLICATED
        is_awaited = count_usage(entry, changes, self.usage, 1)
        is_refused = entry.fault is not None or not self.health.is_writable
        if is_awaited and (is_refused or (is_replicated and self._is_refusing)):
            count_usage(entry, changes, self.usage, -1)
            self._forget_if_idle(entry)
            return refused()
        groups = self._groups
        if groups.is_broken and groups.is_overfull and all(map(_may_fail_for_ever, changes)):
            return None  # everything else comes to an end
        group = groups.write(entry, changes)
        if not is_awaited:
            return None
        for change in reversed(changes):
            if type(change) is StoredMessage:
                group.last_id = change.id  # ids ascend
                break
        if entry.durability >= Durability.DISK:
            group.needs_sync = True
        if not is_replicated:
            return group.commit
        if group.replicated is None:
            group.replicated = Deferred()
        return group.replicated

    @property
    def _is_refusing(self) -> bool:
        return self.follower is None or self.follower.is_refusing

    def _is_ahead(self, entry: IndexEntry) -> bool:
        """True: a partition has something that is not replicated: it was written a moment ago,
        refused, or left by an earlier run. It is not served: else an answer would be about that."""
        if entry.durability is not Durability.REPLICATED:
            return False
        return self.follower is None or entry.lsn > self.follower.replicated_lsn

    def _once_replicated(self, read: Callable[[], Any]) -> Deferred[Any]:
        """The result of `read` once everything that is stored is replicated; a fault if that is
        refused."""
        answer: Deferred[Any] = Deferred()
        if self.follower is None or self.follower.is_refusing:
            answer.finish(Fault.NOT_REPLICATED)
            return answer

        def went_on(fault: Fault | None) -> None:
            found = Fault.NOT_REPLICATED if fault is not None else read()
            if isinstance(found, Deferred):
                found.when_done(answer.finish)
            else:
                answer.finish(found)

        commit: Commit = Deferred()
        commit.when_done(went_on)
        self._unreplicated.append((self._stored_lsn, commit))
        self.follower.hurry()
        return answer

    def load(self, name: bytes) -> Snapshot | Deferred[Snapshot | Fault]:
        entry = self._entries.get(name)
        if entry is not None and self._is_ahead(entry):
            return self._once_replicated(partial(self.load, name))
        if entry is not None:
            return self._queues.load(entry)
        return _damaged() if self._refuses(name) else self._memory.load(name)

    def logs(self) -> Iterator[bytes]:
        return (entry.name for entry in self._entries.values() if holds_log(entry))

    def log_snapshot(self, name: bytes) -> LogSnapshot | Deferred[LogSnapshot | Fault]:
        entry = self._entries.get(name)
        if entry is not None and self._is_ahead(entry):
            return self._once_replicated(partial(self.log_snapshot, name))
        if entry is not None:
            return self._logs.log_snapshot(entry)
        if self._refuses(name):
            return _damaged()
        if self._first_sequence and self._durability(name) is not Durability.MEMORY:
            return LogSnapshot(self._first_sequence, self._first_sequence)
        return self._memory.log_snapshot(name)

    def log_tail(self, name: bytes) -> int | None:
        """The tail of the log `name`, where it is in memory and nothing is on its way to the disk;
        None: `log_snapshot` knows."""
        entry = self._entries.get(name)
        return self._memory.log_tail(name) if entry is None else entry.stored_tail

    def read(self, name: bytes, seek: Seek) -> list[Chunk] | Deferred[list[Chunk] | Fault]:
        cipher = self.cipher
        if cipher is None or not cipher.covers(name):
            return self._read(name, seek)
        found = self._read(name, seek)
        chunks = found if isinstance(found, Deferred) else decrypted_chunks(cipher, name, found)
        if isinstance(chunks, list):
            return chunks
        answer: Deferred[list[Chunk] | Fault] = Deferred()
        if isinstance(chunks, Fault):
            answer.finish(chunks)
        else:
            chunks.when_done(lambda result: answer.finish(decrypted_chunks(cipher, name, result)))
        return answer

    def _read(self, name: bytes, seek: Seek) -> list[Chunk] | Deferred[list[Chunk] | Fault]:
        entry = self._entries.get(name)
        if entry is not None:
            return self._logs.read(entry, seek)
        return _damaged() if self._refuses(name) else self._memory.read(name, seek)

    # Cold chunks.

    def read_cold_with(self, cold: ColdReader | None) -> None:
        """Have this read chunks that are in the replica alone; after `open`."""
        self._logs.cold = cold

    def logs_with_files(self) -> Iterator[tuple[bytes, int]]:
        """The names of logs with a file, and their bytes, about. Logs may come and go meanwhile."""
        for entry in list(self._entries.values()):
            if entry.kind is PartitionKind.LOG and entry.has_file and entry.fault is None:
                yield entry.name, entry.bytes

    def oldest_local(
        self,
        name: bytes,
        keep_bytes: int,
        bytes_max: int,
        count_max: int,
        done: Callable[[OldestLocal | Fault], None],
    ) -> None:
        """Call with what `PartitionFiles.oldest_local` gives."""
        read = partial(self._files.oldest_local, name, keep_bytes, bytes_max, count_max)
        self._submit_cold(name, read, done)

    def make_cold(
        self,
        name: bytes,
        moved: Sequence[tuple[Chunk, ColdReference]],
        done: Callable[[LocalBytes | Fault], None],
    ) -> None:
        """Have references take the place of chunks' data; call with the bytes of the log after
        that."""
        self._submit_cold(name, partial(self._files.make_cold, name, moved), done)

    def next_cold(
        self, name: bytes, sequence: int, done: Callable[[ColdReference | Fault | None], None]
    ) -> None:
        """Call with the reference of the first cold chunk from a sequence on."""
        self._submit_cold(name, partial(self._files.next_cold, name, sequence), done)

    def _submit_cold(self, name: bytes, run: Callable[[], T], done: Callable[[Any], None]) -> None:
        if self._is_ended:
            done(Fault.UNREADABLE)
        else:
            self._file_worker.submit(FileJob(run, done, name=name))

    # Groups that were written.

    def _done(self, groups: list[CommitGroup], outcome: CommitOutcome) -> None:
        compactor, commits = self._compactor, self._groups
        if outcome.size:
            compactor.segment_written(outcome.segment, outcome.size)
        for group in groups:
            if commits.take_stored(group, outcome.epoch):
                self._apply(group, outcome)
        may_step = compactor.advance(self._stored_lsn, outcome.synced_lsn)
        if outcome.synced_lsn >= self._stored_lsn:
            self._unsynced.clear()
        if outcome.epoch > commits.epoch:
            self._fail(outcome)
        elif commits.is_broken and outcome.error is None:
            self._resume()
        if may_step or self._delayed or not self.health.is_writable:
            self._compact()

    def _apply(self, group: CommitGroup, outcome: CommitOutcome) -> None:
        """Fold what is stored into memtables, and tell the callers."""
        compactor, segment = self._compactor, outcome.segment
        self._stored_lsn = group.last_lsn
        is_synced = group.last_lsn <= outcome.synced_lsn
        for entry, lsn, changes in group.writes:
            entry.in_flight -= 1
            was_pinned = entry.memtable is not None
            entry.fold(lsn, changes, segment)
            if entry.memtable is not None:
                if not was_pinned:
                    compactor.pin(entry)
                if entry.has_file and self._has_waste(entry):
                    compactor.prefer(entry)
            else:
                if was_pinned:
                    compactor.unpin(entry)
                self._forget_if_idle(entry)
            if not is_synced:
                self._unsynced[entry] = None
        if group.last_id > self.last_id:
            self.last_id = group.last_id
        for callback in group.callbacks:
            callback(segment)
        if group.replicated is not None:
            self._unreplicated.append((group.last_lsn, group.replicated))
        is_behind = False
        if self.follower is not None:
            is_awaited = group.replicated is not None
            self.follower.take(group.records, group.last_lsn, is_awaited=is_awaited)
            is_behind = self.follower.is_behind
        if self._delayed or is_behind or self._compactor.is_congested:
            self._delayed.append(group.commit)
        else:
            group.commit.finish(None)

    @property
    def _is_congested(self) -> bool:
        """True: callers are told later, so that no more comes than can be worked on."""
        follower = self.follower
        return self._compactor.is_congested or (follower is not None and follower.is_behind)

    def release_commits(self) -> None:
        """The follower went on: tell the callers that wait for that."""
        while self._delayed and not self._is_congested:
            self._delayed.popleft().finish(None)
        waiting = self._unreplicated
        while waiting and self.follower and waiting[0][0] <= self.follower.replicated_lsn:
            waiting.popleft()[1].finish(None)

    def refuse_unreplicated(self) -> None:
        """The follower is refusing: tell the callers that wait for it. Their writes are stored, and
        come to be replicated."""
        refused, self._unreplicated = self._unreplicated, deque()
        for _, commit in refused:
            commit.finish(Fault.NOT_STORED)

    def _has_waste(self, entry: IndexEntry) -> bool:
        """True: much of the partition's file is gone."""
        memtable = entry.memtable
        if isinstance(memtable, QueueMemtable):
            is_empty = not entry.messages and not entry.keys
            return is_empty or memtable.removed_bytes > self._settings.waste_bytes_max
        return isinstance(memtable, LogMemtable) and (memtable.is_fresh or memtable.trim_point > 0)

    def _forget_if_idle(self, entry: IndexEntry) -> None:
        if entry.is_idle:
            if entry.kind is PartitionKind.LOG:
                self.usage.log_bytes -= entry.bytes
                entry.bytes = 0
            self._entries.pop(entry.name, None)

    # Failures of the disk.

    def _fail(self, outcome: CommitOutcome) -> None:
        """The groups on their way are lost, except changes that no caller waits for: those are
        written again."""
        self._file_worker.submit(FileJob(self._files.mend_catalog))
        self.health.failures += 1
        self.health.is_writable = False
        self.health.reason = outcome.error or "the journal failed"
        while self._delayed:
            self._delayed.popleft().finish(None)
        failed = self._groups.fail(outcome.epoch)
        unacked = UnackedWrites()
        again: list[tuple[IndexEntry, Sequence[Change]]] = []
        for group in failed:
            for entry, _, changes in group.writes:
                entry.in_flight -= 1
                valid, lost = unacked.split(entry, changes)
                if lost:
                    count_usage(entry, lost, self.usage, -1)
                if valid:
                    again.append((entry, valid))
        for entry, changes in again:
            self._groups.write(entry, changes)
        for group in failed:
            for callback in group.callbacks:
                callback(None)
            group.commit.finish(Fault.NOT_STORED)
            if group.replicated is not None:
                group.replicated.finish(Fault.NOT_STORED)
        for entry in unacked.affected:
            self._forget_if_idle(entry)
        self._compactor.make_space()

    def _resume(self) -> None:
        """The journal is written again: rewrite what may have been lost with the segment."""
        log.warning("journal resumed: segment=%d", self._compactor.current_segment)
        unsynced, self._unsynced = self._unsynced, {}
        for entry in unsynced:
            is_oldest = not entry.has_file and entry.frozen is None
            memtable = new_memtable(entry.kind, is_oldest=is_oldest)
            # The frozen memtable may get to the file after this, so removals leave a trace.
            overlaps = entry.frozen is not None or may_overlap(entry.memtable)
            if isinstance(memtable, QueueMemtable):
                memtable.may_overlap = overlaps
            for each in (entry.frozen, entry.memtable):
                if each is not None:
                    fold(memtable, each.changes())
            kind = Rewrite.MENDED if overlaps else Rewrite.WHOLE
            self._groups.rewrite(entry, memtable, kind)
        if unsynced:
            self._groups.when_stored(partial(self._rewritten, unsynced))
        self._groups.resume()

    def _rewritten(self, entries: dict[IndexEntry, None], segment: int | None) -> None:
        """If the disk failed once more, the memtables are still all there is of it."""
        if segment is None:
            self._unsynced = {**entries, **self._unsynced}

    def _crashed(self, groups: list[CommitGroup], exc: Exception) -> None:
        """A bug in the writer: nothing is known of what it had in hand."""
        segment = self._compactor.current_segment
        self._fail(CommitOutcome(self._groups.epoch + 1, segment, 0, 0, f"crashed: {exc!r}"))

    def _compact(self) -> None:
        """Take a step of compaction, and see whether there is space for more."""
        if not self._groups.is_broken:
            self._compactor.step()
            health, is_writable = self.health, not self._compactor.is_full
            if is_writable is not health.is_writable:
                health.is_writable = is_writable
                full = "the journal is full: files cannot be written"
                health.reason = "" if is_writable else full
        self.release_commits()

    def _jobs_done(self, jobs: list[FileJob], _: None) -> None:
        for job in jobs:
            if job.damage is not None and job.name is not None:
                self._add_damage(Damage(file_name(job.name), job.damage, job.name))
            job.report()
        for damage in self._files.take_damages():
            self._add_damage(damage)
        self._compact()
        if self._settings.scrub_bytes_s and self.environment.now() >= self._scrub_at:
            self.scrub_step()

    def _files_idle_s(self) -> float | None:
        if self._compactor.needs_retry:
            return self._settings.retry_s
        if not self._settings.scrub_bytes_s or self._is_scrubbing:
            return None
        return max(0.0, self._scrub_at - self.environment.now())

    # The scrub.

    def scrub_step(self) -> None:
        """Have the next slice of the scrub read: a second's worth."""
        if not self._is_scrubbing:
            self._is_scrubbing = True
            step = partial(self._scrub.step, self._settings.scrub_bytes_s or SCRUB_BYTES)
            self._file_worker.submit(FileJob(step, self._scrubbed))

    def _scrubbed(self, result: ScrubSlice | Fault) -> None:
        settings, now = self._settings, self.environment.now()
        self._is_scrubbing = False
        self._scrub_at = now + settings.scrub_delay_s
        if not isinstance(result, Fault):
            self._scrub_bytes += result.size
            for damage in result.damages:
                self._add_damage(damage)
            for number in result.bad_segments:
                self._compactor.evacuate(number)
            self._scrub_at = now + max(1.0, result.size / (settings.scrub_bytes_s or SCRUB_BYTES))
            if result.is_last:
                self._scrub_passes += 1
                self._scrubbed_at, self._scrub_at = now, now + settings.scrub_every_s
        self._file_worker.submit(FileJob(lambda: None))  # it computes anew how long it may sleep

    def _mark_damaged(self, entry: IndexEntry) -> None:
        if entry.fault is None:
            text = "the file of a partition is damaged"
            self._add_damage(Damage(file_name(entry.name), text, entry.name))

    def _add_damage(self, damage: Damage) -> None:
        """The one place where damage becomes known while the node runs: the partition is not
        served, `damages` and the log tell of it, and a report tells the next start."""
        known = ((each.where, each.name) for each in self.damages)
        if (damage.where, damage.name) in known:
            return
        self.damages.append(damage)
        if (path := _nameless_file(damage)) is not None:
            self._refused_files.add(path)
        log_damage(damage)
        entry = None if damage.name is None else self._entries.get(damage.name)
        if entry is not None:
            entry.fault = Fault.DAMAGED
            self._compactor.exempt(entry)
        report = partial(write_report, self.folder / "damaged", self.disk, damage)
        self._file_worker.submit(FileJob(report))


def _nameless_file(damage: Damage) -> str | None:
    """The name of a damaged file that does not say whose it is: the hash of a partition's name.
    None: the damage is another one."""
    path = Path(damage.where).name
    return path if damage.name is None and is_file_name(path) else None


def _may_fail_for_ever(change: Change) -> bool:
    """True for what each failed delivery of a message writes."""
    return isinstance(change, AttemptsSet | DueAt)


def _damaged() -> Deferred[Any]:
    return _failed(Fault.DAMAGED)


def _failed(fault: Fault) -> Deferred[Any]:
    answer: Deferred[Any] = Deferred()
    answer.finish(fault)
    return answer


def _run_jobs(jobs: list[FileJob]) -> None:
    for job in jobs:
        job.run()


def _jobs_crashed(jobs: list[FileJob], _: Exception) -> None:
    for job in jobs:
        job.crashed()
