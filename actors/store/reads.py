"""Ranges of a log: recent chunks from memory, older ones from its file.

Recent are those that the file may not have yet, in up to three lists that follow one another: what
a round moves to the file, what came since, and what is on its way to the journal. A read looks into
these lists as they are; nothing of them is copied but what it gives.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import msgspec

from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import Chunk, LogSnapshot, PartitionKind
from millpond.actors.store.group_commit import GroupCommit
from millpond.actors.store.index import IndexEntry, fold
from millpond.actors.store.interface import Deferred, Fault, Seek, Usage
from millpond.actors.store.jobs import FileJob
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.partitions.files import PartitionFiles
from millpond.actors.store.workers import StoreWorker

Chunks = list[Chunk] | Fault

_first = attrgetter("first")
_last_timestamp = attrgetter("last_timestamp")
_last_id = attrgetter("last_id")


def pick(lists: Iterable[Sequence[Chunk]], seek: Seek, trim_point: int) -> list[Chunk]:
    """Those of ascending chunks in lists that are asked for, and not wholly trimmed."""
    picked: list[Chunk] = []
    bytes_left, count_left = seek.bytes_max, seek.count_max
    for chunks in lists:
        at = 0 if picked else _place(chunks, seek, trim_point)
        for index in range(at, len(chunks)):
            chunk = chunks[index]
            bytes_left -= len(chunk.data)
            if picked:
                if bytes_left < 0 or count_left <= 0:
                    return picked
                # Of the first one most records may be before what is asked for.
                count_left -= chunk.count
            picked.append(chunk)
    return picked


def _place(chunks: Sequence[Chunk], seek: Seek, trim_point: int) -> int:
    """SeekBy in a list the first chunk is that is asked for."""
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
    """What is in memory of a log. `is_all`: what else there may be in a file does not count."""

    lists: Sequence[Sequence[Chunk]]
    trim_point: int
    is_all: bool

    def pick(self, seek: Seek) -> list[Chunk]:
        return pick(self.lists, seek, self.trim_point)

    @property
    def first(self) -> Chunk | None:
        """The first chunk that is not wholly trimmed."""
        for chunks in self.lists:
            if chunks and chunks[-1].end > self.trim_point:
                return chunks[_place(chunks, _FROM_START, self.trim_point)]
        return None


_FROM_START = Seek(SeekBy.SEQUENCE)


class LogReader:
    """Reads logs whose latest chunks are in the journal, or on their way there."""

    def __init__(
        self,
        library: PartitionFiles,
        lane: StoreWorker[FileJob],
        groups: GroupCommit,
        usage: Usage,
        damaged: Callable[[IndexEntry], None],
    ) -> None:
        self._library = library
        self._lane = lane
        self._groups = groups
        self._usage = usage
        self._damaged = damaged

    def log_snapshot(self, entry: IndexEntry) -> LogSnapshot | Deferred[LogSnapshot | Fault]:
        """The outline of a log."""
        pending: Deferred[LogSnapshot | Fault] = Deferred()
        if entry.fault is not None:
            pending.finish(entry.fault)
        elif entry.has_file and not self._recent(entry).is_all:
            done = partial(self._outlined, entry, pending)
            job = FileJob(partial(self._library.log_outline, entry.name), done, name=entry.name)
            self._lane.submit(job, urgent=True)
        else:
            return self._on_top(entry, LogSnapshot())
        return pending

    def _outlined(
        self, entry: IndexEntry, pending: Deferred[LogSnapshot | Fault], result: LogSnapshot | Fault
    ) -> None:
        if isinstance(result, Fault):
            self._fail(entry, result)
            pending.finish(result)
        else:
            pending.finish(self._on_top(entry, result))

    def _on_top(self, entry: IndexEntry, below: LogSnapshot) -> LogSnapshot:
        for layer in self._layers(entry):
            below = layer.apply_to(below)
        # What was counted without a look at the file was a guess.
        self._usage.log_bytes += below.bytes - entry.bytes
        entry.bytes = below.bytes
        return below

    def read(self, entry: IndexEntry, seek: Seek) -> list[Chunk] | Deferred[Chunks]:
        """Chunks of a log."""
        pending: Deferred[Chunks] = Deferred()
        if entry.fault is not None:
            pending.finish(entry.fault)
            return pending
        recent = self._recent(entry)
        if recent.is_all or not entry.has_file or _begins_in(seek, recent.first):
            return recent.pick(seek)
        self._ask(entry, seek, pending)
        return pending

    def _ask(self, entry: IndexEntry, seek: Seek, pending: Deferred[Chunks]) -> None:
        # The file may not know yet what is trimmed.
        trimmed = self._recent(entry).trim_point
        above = msgspec.structs.replace(seek, sequence=max(seek.sequence, trimmed))
        done = partial(self._found, entry, seek, pending)
        job = FileJob(partial(self._library.read, entry.name, above), done, name=entry.name)
        self._lane.submit(job, urgent=True)

    def _found(
        self, entry: IndexEntry, seek: Seek, pending: Deferred[Chunks], result: Chunks
    ) -> None:
        if isinstance(result, Fault):
            self._fail(entry, result)
            pending.finish(result)
            return
        recent = self._recent(entry)
        if recent.is_all:  # deleted meanwhile: nothing of the file counts
            pending.finish(recent.pick(seek))
            return
        # The file may have been written meanwhile, so what is in both counts once.
        first, trimmed = recent.first, recent.trim_point
        older = [
            chunk
            for chunk in result
            if (first is None or chunk.first < first.first) and chunk.end > trimmed
        ]
        if not older and any(chunk.end <= trimmed for chunk in result):
            self._ask(entry, seek, pending)  # what was found was trimmed meanwhile
        elif older and first is not None and older[-1].end < first.first:
            pending.finish(older)
        else:
            pending.finish(pick((older, *recent.lists), seek, trimmed))

    def _fail(self, entry: IndexEntry, fault: Fault) -> None:
        if fault is Fault.DAMAGED:
            self._damaged(entry)

    def _recent(self, entry: IndexEntry) -> _Recent:
        lists: list[Sequence[Chunk]] = []
        point = 0
        is_fresh = False
        for layer in self._layers(entry):
            if layer.is_fresh:  # nothing of the ones before is left
                lists, point, is_fresh = [], 0, True
            lists.append(layer.chunks)
            point = max(point, layer.trim_point)
        return _Recent(lists, point, is_fresh)

    def _layers(self, entry: IndexEntry) -> list[LogMemtable]:
        """Oldest first."""
        layers = (entry.frozen, entry.layer, self._ahead(entry) if entry.in_flight else None)
        return [layer for layer in layers if isinstance(layer, LogMemtable)]

    def _ahead(self, entry: IndexEntry) -> LogMemtable:
        """What is written and not folded in yet."""
        as_of = (entry.in_flight, entry.lsn, self._groups.epoch)
        if entry.ahead is None or entry.ahead[0] != as_of:
            layer = LogMemtable(is_base=False)
            for changes in self._groups.waiting(entry):
                fold(layer, changes)
            entry.ahead = (as_of, layer)
        return entry.ahead[1]


def _begins_in(seek: Seek, chunk: Chunk | None) -> bool:
    """Is nothing before this chunk asked for?"""
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
    """Is there a log, apart from one whose deletion has not come to its file yet?"""
    layer = entry.layer
    if entry.kind is not PartitionKind.LOG or not isinstance(layer, LogMemtable | None):
        return False
    if layer is None or not layer.is_fresh:
        return entry.has_file or bool(layer)
    return bool(layer.chunks or layer.metadata)
