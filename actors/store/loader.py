"""Rebuilds what a queue is built from: its file, the layers over it, and what is on its way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from millpond.actors.store.changes import Snapshot, StoredKey
from millpond.actors.store.group_commit import GroupCommit
from millpond.actors.store.index import IndexEntry, fold
from millpond.actors.store.interface import Deferred, Fault, Usage
from millpond.actors.store.jobs import FileJob
from millpond.actors.store.partitions.files import PartitionFiles
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.workers import StoreWorker


class QueueLoader:
    """`damaged` hears of files that are not what was written."""

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

    def load(self, entry: IndexEntry) -> Snapshot | Deferred[Snapshot | Fault]:
        """All of a queue; later, if its file has to be read."""
        pending: Deferred[Snapshot | Fault] = Deferred()
        if entry.fault is not None:
            pending.finish(entry.fault)
        elif entry.has_file:
            done = partial(self._loaded, entry, pending)
            job = FileJob(partial(self._library.load, entry.name), done, name=entry.name)
            self._lane.submit(job, urgent=True)
        else:
            return self._on_top(entry, Snapshot())
        return pending

    def _loaded(
        self, entry: IndexEntry, pending: Deferred[Snapshot | Fault], result: Snapshot | Fault
    ) -> None:
        if isinstance(result, Fault):
            if result is Fault.DAMAGED:
                self._damaged(entry)
            pending.finish(result)
            return
        snapshot = self._on_top(entry, result)
        self._recount(entry, snapshot)
        pending.finish(snapshot)

    def _on_top(self, entry: IndexEntry, below: Snapshot) -> Snapshot:
        for layer in (entry.frozen, entry.layer):
            if isinstance(layer, QueueMemtable):
                below = layer.apply_to(below)
        if entry.in_flight:
            waiting = QueueMemtable(is_base=False)
            for changes in self._groups.waiting(entry):
                fold(waiting, changes)
            below = waiting.apply_to(below)
        if not below.rows and not below.keys and below.subscribers is None:
            below.mode = None
        return below

    def _recount(self, entry: IndexEntry, snapshot: Snapshot) -> None:
        """After a crash within a round, what recovery counted may be too much."""
        keys = sum(1 for row in snapshot.keys.values() if isinstance(row, StoredKey))
        if snapshot.subscribers is not None:
            keys += len(snapshot.subscribers.members)
        size = sum(len(row.data) for row in snapshot.rows)
        usage = self._usage
        usage.messages += len(snapshot.rows) - entry.messages
        usage.bytes += size - entry.bytes
        usage.keys += keys - entry.keys
        entry.messages, entry.bytes, entry.keys = len(snapshot.rows), size, keys
