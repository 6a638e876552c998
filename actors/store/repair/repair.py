"""The repair of a damaged partition: a new file with what is still good; the old one is
quarantined."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import assert_never

import msgspec

from millpond.actors.messages import Durability
from millpond.actors.store.changes import (
    AttemptsSet,
    KeyRetained,
    ModeSet,
    PartitionKind,
    QueueChange,
    Snapshot,
    StoredKey,
)
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.index import IndexEntry, Memtable
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.partitions.catalog import CATALOG, LAST_LSN, Catalog
from millpond.actors.store.partitions.file_pool import FilePool, file_name
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.recovery import Recovered, recover
from millpond.actors.store.repair.quarantine import Damage, report_path
from millpond.actors.store.repair.rebuilt_log import BaseOf, no_base, rebuild_log
from millpond.actors.store.repair.salvage import Salvaged, kind_in, salvage, salvage_log
from millpond.actors.store.settings import StoreSettings

WAL = "-wal"
"""The write-ahead log: transactions that SQLite has not put into the file yet."""


class NotRepairable(Exception):
    """Nothing can be done here; the text says why."""


class Repaired(msgspec.Struct, frozen=True):
    """A channel or log has `messages` now; its old file, which had `in_file` that could be read, is
    in `aside`.

    Of a channel `lost` are ids that were in the old file and could not be read; there may have been
    more. Of a log `lost_records` are ranges of sequences, first and last; unless
    `is_whole_known`, records before the first and after the last one may be lost as well.
    """

    kind: PartitionKind | None
    messages: int
    in_file: int
    aside: Path | None = None
    lost: list[int] = []
    lost_records: list[tuple[int, int]] = []
    is_whole_known: bool = True


def repair(folder: Path, disk: Disk, name: bytes, base_of: BaseOf = no_base) -> Repaired:
    """Repair the channel or log `name` in the folder of a stopped node. Its note of damage goes
    last, so a repair that does not come to its end is begun anew. `base_of` tells which records of
    a log are its own.

    Raises NotRepairable, and what recovery raises.
    """
    found = recover(folder, disk, lambda name: Durability.DISK, StoreSettings())
    found.files.close()
    pool = FilePool(folder / "partitions", disk)
    entry = found.entries.get(name)
    if entry is None and not pool.has(name):
        raise NotRepairable("the node keeps nothing of this name")
    aside = _set_aside(folder / "damaged", pool.path(name), disk)
    lsn = found.tail.lsn
    with closing(Catalog(folder / CATALOG, disk)) as catalog:
        partition = _Repair(pool, catalog, disk, name, entry)
        kind = _kind(found, pool.path(name), disk, name)
        match kind:
            case PartitionKind.QUEUE:
                done = partition.queue(lsn, aside)
            case PartitionKind.LOG:
                done = partition.log(lsn, aside, base_of)
            case None:
                done = partition.nothing(aside)
            case _:
                assert_never(kind)
    for note in _report_paths(folder / "damaged", name):
        disk.unlink(note)
    disk.sync_folder(folder / "damaged")
    return done


def _kind(found: Recovered, path: Path, disk: Disk, name: bytes) -> PartitionKind | None:
    """None: nothing is left that could tell."""
    entry = found.entries.get(name)
    if entry is not None and (entry.has_file or entry.memtable is not None):
        return entry.kind
    kind = found.damaged_kinds.get(name)
    return kind_in(path, disk) if kind is None and disk.has(path) else kind


class _Repair:
    """Makes the new file of one partition."""

    def __init__(
        self, pool: FilePool, catalog: Catalog, disk: Disk, name: bytes, entry: IndexEntry | None
    ) -> None:
        self._pool = pool
        self._catalog = catalog
        self._disk = disk
        self._name = name
        self._memtable = None if entry is None else entry.memtable

    def queue(self, lsn: int, aside: Path | None) -> Repaired:
        """A queue has no order that a hole could break: what is good stays."""
        path = self._pool.path(self._name)
        old = Salvaged(Snapshot(), []) if aside is None else salvage(path, self._disk)
        in_file = len(old.snapshot.rows)
        snapshot = old.snapshot
        if isinstance(self._memtable, QueueMemtable):
            snapshot = self._memtable.apply_to(snapshot)
        memtable = QueueMemtable(is_oldest=True)
        memtable.fold(_changes(snapshot))
        self._replace(PartitionKind.QUEUE, memtable, lsn)
        return Repaired(PartitionKind.QUEUE, len(snapshot.rows), in_file, aside, lost=old.lost)

    def log(self, lsn: int, aside: Path | None, base_of: BaseOf) -> Repaired:
        """Records keep their sequences, whatever is missing before them."""
        path, name = self._pool.path(self._name), self._name
        old = None if aside is None else salvage_log(path, self._disk)
        metadata = None
        if name not in self._catalog.dirty():
            metadata = self._catalog.partitions().get(name)
        above = self._memtable if isinstance(self._memtable, LogMemtable) else None
        rebuilt = rebuild_log(old, above, None if metadata is None else metadata.tail, base_of)
        self._replace(PartitionKind.LOG, rebuilt.memtable, lsn)
        return Repaired(
            PartitionKind.LOG,
            rebuilt.records,
            0 if old is None else sum(chunk.count for chunk in old.chunks),
            aside,
            lost_records=rebuilt.lost,
            is_whole_known=rebuilt.is_whole_known,
        )

    def nothing(self, aside: Path | None) -> Repaired:
        """Make an empty partition: nothing tells what kind it was."""
        self._catalog.mark([(self._name, PartitionKind.QUEUE)])
        self._pool.remove(self._name)
        self._catalog.record([], [self._name], {})
        return Repaired(None, 0, 0, aside)

    def _replace(self, kind: PartitionKind, memtable: Memtable, lsn: int) -> None:
        """A file that has everything up to `lsn`, so that the journal's records count no more."""
        self._catalog.mark([(self._name, kind)])
        metadata = self._pool.make(self._name, kind, memtable, lsn, lsn + 1)
        # The file knows a higher lsn than the journal has, and nothing is lost.
        self._catalog.change_segments(marks={LAST_LSN: lsn + 1})
        self._catalog.record([metadata], [], {})


def _set_aside(folder: Path, path: Path, disk: Disk) -> Path | None:
    """A copy, with what lies beside the file, under a name that is not taken."""
    if not disk.has(path):
        return None
    taken, number = set(disk.names(folder)), 1
    while f"{path.name}.{number}" in taken:
        number += 1
    aside = folder / f"{path.name}.{number}"
    for end in ("", WAL):
        source = path.with_name(path.name + end)
        if disk.has(source):
            disk.install(aside.with_name(aside.name + end), disk.read(source))
    return aside


def _changes(snapshot: Snapshot) -> Iterator[QueueChange]:
    if snapshot.mode is not None:
        yield ModeSet(snapshot.mode)
    yield from snapshot.rows
    for key, left in snapshot.keys.items():
        if isinstance(left, StoredKey):
            yield KeyRetained(key, left)
    for message_id, attempts in snapshot.attempts.items():
        yield AttemptsSet(message_id, attempts)
    if snapshot.subscribers is not None:
        yield from snapshot.subscribers.changes()
    if snapshot.attributes is not None:
        yield from snapshot.attributes.changes()


def _report_paths(folder: Path, name: bytes) -> Iterator[Path]:
    """The report of the channel, and one of its file from before its name was known."""
    path = file_name(name)
    yield report_path(folder, Damage("", "", name))
    yield report_path(folder, Damage(path.rpartition("/")[2], ""))
