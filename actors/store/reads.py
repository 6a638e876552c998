"""Reads of partitions: recent changes from memtables, older ones from the partition's file.

The recent chunks of a log are those that its file may not have yet, in up to three lists that
follow one another: chunks that compaction moves to the file, later ones, and chunks on their way to
the journal. A read looks into these lists as they are; nothing of them is copied but the result.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import msgspec

from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import (
    Chunk,
    ColdChunk,
    LogSnapshot,
    PartitionKind,
    Snapshot,
    StoredKey,
)
from millpond.actors.store.group_commit import GroupCommit
from millpond.actors.store.index import IndexEntry, fold
from millpond.actors.store.interface import ColdReader, Deferred, Fault, Seek, Usage
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.partitions.files import FileJob, PartitionFiles
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.workers import StoreWorker

log = logging.getLogger(__name__)

Chunks = list[Chunk] | Fault

_first = attrgetter("first")
_last_timestamp = attrgetter("last_timestamp")
_last_id = attrgetter("last_id")


def select_chunks(lists: Iterable[Sequence[Chunk]], seek: Seek, trim_point: int) -> list[Chunk]:
    """The chunks of ascending lists that a seek asks for, and that are not wholly trimmed."""
    selected: list[Chunk] = []
    bytes_left, count_left = seek.bytes_max, seek.count_max
    for chunks in lists:
        at = 0 if selected else _start_index(chunks, seek, trim_point)
        for index in range(at, len(chunks)):
            chunk = chunks[index]
            bytes_left -= len(chunk.data)
            if selected:
                if bytes_left < 0 or count_left <= 0:
                    return selected
                # Of the first one most records may be before what is asked for.
                count_left -= chunk.count
            selected.append(chunk)
    return selected


def _start_index(chunks: Sequence[Chunk], seek: Seek, trim_point: int) -> int:
    """The index in a list of the first chunk that a seek asks for."""
    sequence = max(seek.sequence, trim_point)
    at = bisect_right(chunks, sequence, key=_first)
    if at and chunks[at - 1].end > sequence:
        at -= 1
    match seek.by:
        case SeekBy.SEQUENCE:
            return at
        case SeekBy.TIMESTAMP:
            return bisect_left(chunks, seek.timestamp, at, key=_last_timestamp)
        case SeekBy.ID:
            return bisect_left(chunks, seek.id, at, key=_last_id)


class _Recent(NamedTuple):
    """The chunks of a log that are in memory. `is_all`: what else there may be in a file does not
    count."""

    lists: Sequence[Sequence[Chunk]]
    trim_point: int
    is_all: bool

    def select(self, seek: Seek) -> list[Chunk]:
        return select_chunks(self.lists, seek, self.trim_point)

    @property
    def first(self) -> Chunk | None:
        """The first chunk that is not wholly trimmed."""
        for chunks in self.lists:
            if chunks and chunks[-1].end > self.trim_point:
                return chunks[_start_index(chunks, _FROM_START, self.trim_point)]
        return None


_FROM_START = Seek(SeekBy.SEQUENCE)


class LogReader:
    """Reads logs whose latest chunks are in the journal, or on their way there."""

    def __init__(
        self,
        files: PartitionFiles,
        worker: StoreWorker[FileJob],
        groups: GroupCommit,
        usage: Usage,
        mark_damaged: Callable[[IndexEntry], None],
    ) -> None:
        self._files = files
        self._worker = worker
        self._groups = groups
        self._usage = usage
        self._mark_damaged = mark_damaged
        self.cold: ColdReader | None = None
        """Reads chunks that are in the replica alone. None: there is no replica."""

    def log_snapshot(self, entry: IndexEntry) -> LogSnapshot | Deferred[LogSnapshot | Fault]:
        """The bounds and metadata of a log."""
        deferred: Deferred[LogSnapshot | Fault] = Deferred()
        if entry.fault is not None:
            deferred.finish(entry.fault)
        elif entry.has_file and not self._recent(entry).is_all:
            done = partial(self._log_loaded, entry, deferred)
            job = FileJob(partial(self._files.log_snapshot, entry.name), done, name=entry.name)
            self._worker.submit(job, urgent=True)
        else:
            return self._with_memtables(entry, LogSnapshot())
        return deferred

    def _log_loaded(
        self,
        entry: IndexEntry,
        deferred: Deferred[LogSnapshot | Fault],
        result: LogSnapshot | Fault,
    ) -> None:
        if isinstance(result, Fault):
            self._fail(entry, result)
            deferred.finish(result)
        else:
            deferred.finish(self._with_memtables(entry, result))

    def _with_memtables(self, entry: IndexEntry, snapshot: LogSnapshot) -> LogSnapshot:
        for memtable in self._memtables(entry):
            snapshot = memtable.apply_to(snapshot)
        # The size was an estimate until the file was read.
        self._usage.log_bytes += snapshot.bytes - entry.bytes
        entry.bytes = snapshot.bytes
        if not entry.in_flight:
            entry.tail = snapshot.tail
        return snapshot

    def read(self, entry: IndexEntry, seek: Seek) -> list[Chunk] | Deferred[Chunks]:
        """Chunks of a log."""
        deferred: Deferred[Chunks] = Deferred()
        if entry.fault is not None:
            deferred.finish(entry.fault)
            return deferred
        recent = self._recent(entry)
        if recent.is_all or not entry.has_file or _starts_in(seek, recent.first):
            return recent.select(seek)
        self._read_file(entry, seek, deferred)
        return deferred

    def _read_file(self, entry: IndexEntry, seek: Seek, deferred: Deferred[Chunks]) -> None:
        # The file may not know yet what is trimmed.
        trimmed = self._recent(entry).trim_point
        above = msgspec.structs.replace(seek, sequence=max(seek.sequence, trimmed))
        done = partial(self._file_read, entry, seek, deferred)
        job = FileJob(partial(self._files.read, entry.name, above), done, name=entry.name)
        self._worker.submit(job, urgent=True)

    def _file_read(
        self, entry: IndexEntry, seek: Seek, deferred: Deferred[Chunks], result: Chunks
    ) -> None:
        if isinstance(result, Fault):
            self._fail(entry, result)
            deferred.finish(result)
            return
        if not seek.for_sizes and any(isinstance(chunk, ColdChunk) for chunk in result):
            self._fetch(entry, seek, deferred, result)
            return
        recent = self._recent(entry)
        if recent.is_all:  # deleted meanwhile: nothing of the file counts
            deferred.finish(recent.select(seek))
            return
        # The file may have been written meanwhile, so what is in both counts once.
        first, trimmed = recent.first, recent.trim_point
        older = [
            chunk
            for chunk in result
            if (first is None or chunk.first < first.first) and chunk.end > trimmed
        ]
        if not older and any(chunk.end <= trimmed for chunk in result):
            self._read_file(entry, seek, deferred)  # what was found was trimmed meanwhile
        elif older and first is not None and older[-1].end < first.first:
            deferred.finish(older)
        else:
            deferred.finish(select_chunks((older, *recent.lists), seek, trimmed))

    def _fetch(
        self, entry: IndexEntry, seek: Seek, deferred: Deferred[Chunks], chunks: list[Chunk]
    ) -> None:
        """Go on with the data of the chunks that are in the replica alone."""
        if self.cold is None:
            log.error("cold chunks not read, as there is no replica: name=%r", entry.name)
            deferred.finish(Fault.COLD)
        else:
            done = partial(self._file_read, entry, seek, deferred)
            self.cold.fetch(entry.name, chunks, done)

    def _fail(self, entry: IndexEntry, fault: Fault) -> None:
        if fault is Fault.DAMAGED:
            self._mark_damaged(entry)

    def _recent(self, entry: IndexEntry) -> _Recent:
        lists: list[Sequence[Chunk]] = []
        point = 0
        is_fresh = False
        for memtable in self._memtables(entry):
            if memtable.is_fresh:  # nothing of the ones before is left
                lists, point, is_fresh = [], 0, True
            lists.append(memtable.chunks)
            point = max(point, memtable.trim_point)
        return _Recent(lists, point, is_fresh)

    def _memtables(self, entry: IndexEntry) -> list[LogMemtable]:
        """Oldest first."""
        memtables = (
            entry.frozen,
            entry.memtable,
            self._unapplied(entry) if entry.in_flight else None,
        )
        return [memtable for memtable in memtables if isinstance(memtable, LogMemtable)]

    def _unapplied(self, entry: IndexEntry) -> LogMemtable:
        """The writes that are not folded in yet."""
        as_of = (entry.in_flight, entry.lsn, self._groups.epoch)
        if entry.unapplied is None or entry.unapplied[0] != as_of:
            memtable = LogMemtable(is_oldest=False)
            for changes in self._groups.unstored(entry):
                fold(memtable, changes)
            entry.unapplied = (as_of, memtable)
        return entry.unapplied[1]


class QueueLoader:
    """Loads queues from their files, memtables and unstored writes. `mark_damaged` is called with
    partitions whose files are damaged."""

    def __init__(
        self,
        files: PartitionFiles,
        worker: StoreWorker[FileJob],
        groups: GroupCommit,
        usage: Usage,
        mark_damaged: Callable[[IndexEntry], None],
    ) -> None:
        self._files = files
        self._worker = worker
        self._groups = groups
        self._usage = usage
        self._mark_damaged = mark_damaged

    def load(self, entry: IndexEntry) -> Snapshot | Deferred[Snapshot | Fault]:
        """All of a queue; later, if its file has to be read."""
        deferred: Deferred[Snapshot | Fault] = Deferred()
        if entry.fault is not None:
            deferred.finish(entry.fault)
        elif entry.has_file:
            done = partial(self._loaded, entry, deferred)
            job = FileJob(partial(self._files.load, entry.name), done, name=entry.name)
            self._worker.submit(job, urgent=True)
        else:
            return self._with_memtables(entry, Snapshot())
        return deferred

    def _loaded(
        self, entry: IndexEntry, deferred: Deferred[Snapshot | Fault], result: Snapshot | Fault
    ) -> None:
        if isinstance(result, Fault):
            if result is Fault.DAMAGED:
                self._mark_damaged(entry)
            deferred.finish(result)
            return
        snapshot = self._with_memtables(entry, result)
        self._recount(entry, snapshot)
        deferred.finish(snapshot)

    def _with_memtables(self, entry: IndexEntry, snapshot: Snapshot) -> Snapshot:
        for memtable in (entry.frozen, entry.memtable):
            if isinstance(memtable, QueueMemtable):
                snapshot = memtable.apply_to(snapshot)
        if entry.in_flight:
            unstored = QueueMemtable(is_oldest=False)
            for changes in self._groups.unstored(entry):
                fold(unstored, changes)
            snapshot = unstored.apply_to(snapshot)
        if not snapshot.rows and not snapshot.keys and snapshot.subscribers is None:
            snapshot.mode = None
        return snapshot

    def _recount(self, entry: IndexEntry, snapshot: Snapshot) -> None:
        """Count anew: after a crash during compaction, the counts of recovery may be too high."""
        keys = sum(1 for row in snapshot.keys.values() if isinstance(row, StoredKey))
        if snapshot.subscribers is not None:
            keys += len(snapshot.subscribers.by_number)
        size = sum(len(row.data) for row in snapshot.rows)
        usage = self._usage
        usage.messages += len(snapshot.rows) - entry.messages
        usage.bytes += size - entry.bytes
        usage.keys += keys - entry.keys
        entry.messages, entry.bytes, entry.keys = len(snapshot.rows), size, keys


def _starts_in(seek: Seek, chunk: Chunk | None) -> bool:
    """True: the seek asks for nothing before this chunk."""
    if chunk is None:
        return False
    if seek.sequence >= chunk.first:
        return True
    match seek.by:
        case SeekBy.SEQUENCE:
            return False
        case SeekBy.TIMESTAMP:
            return seek.timestamp > chunk.first_timestamp
        case SeekBy.ID:
            return seek.id >= chunk.first_id


def holds_log(entry: IndexEntry) -> bool:
    """True: there is a log, apart from one whose deletion has not come to its file yet."""
    memtable = entry.memtable
    if entry.kind is not PartitionKind.LOG or not isinstance(memtable, LogMemtable | None):
        return False
    if memtable is None or not memtable.is_fresh:
        return entry.has_file or bool(memtable)
    return bool(memtable.chunks or memtable.metadata)
