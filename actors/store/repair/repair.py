"""The repair of a damaged partition: a new file with what is still good; the old one is
quarantined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, assert_never

import msgspec

from millpond.actors.messages import Durability
from millpond.actors.store.changes import (
    AttemptsSet,
    KeyRetained,
    MetadataSet,
    ModeSet,
    PartitionKind,
    QueueChange,
    Snapshot,
    StoredKey,
)
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.index import IndexEntry, Memtable
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.partitions.catalog import CATALOG, LAST_LSN, Catalog, Listed
from millpond.actors.store.partitions.file_pool import FilePool, file_name
from millpond.actors.store.partitions.metadata import FileHeader, PartitionMetadata
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.recovery import Recovered, recover
from millpond.actors.store.repair.damaged_logs import drop_copy, kept_copy, log_of
from millpond.actors.store.repair.quarantine import Damage, report_path, write_report
from millpond.actors.store.repair.rebuilt_log import BaseOf, no_base, rebuild_log
from millpond.actors.store.repair.salvage import SalvagedFile, read_partition
from millpond.actors.store.scrub import Scrub
from millpond.actors.store.settings import StoreSettings


class NotRepairable(Exception):
    """Nothing can be done here; the text says why."""


class LogRules(NamedTuple):
    """What a repair has to know of a log and the store does not.

    `base_of` computes which records are its own. `creation_of` gives the metadata without which a
    log of this name is not served; None: it is served without any.
    """

    base_of: BaseOf = no_base
    creation_of: Callable[[bytes], MetadataSet | None] = lambda name: None


NO_RULES = LogRules()
SKIPPED_IF_UNKNOWN = 2**40
"""Sequences that are not given out again where nothing tells how many were."""


class Repaired(msgspec.Struct, frozen=True):
    """A channel or log has `messages` now; its old file, which had `in_file` that could be read,
    was moved to `moved`.

    Of a channel, `lost` are ids that were in the old file and could not be read, and `lost_count`
    is how many messages of it are lost; None: there may be more than those.
    Of a log, `lost_records` are ranges of sequences, first and last; unless `is_whole_known`,
    records before the first and after the last one may be lost as well. `skipped` are sequences
    that may have been given out to records of which nothing is known, and are not given out again.
    `lost_metadata` is the number of its properties that could not be read, and `is_created_anew`:
    the one without which it is not served was among them, so it has a new one.
    `is_gone`: there is no such channel or log any more.
    """

    kind: PartitionKind | None
    messages: int
    in_file: int
    moved: Path | None = None
    lost: list[int] = []
    lost_count: int | None = 0
    lost_records: list[tuple[int, int]] = []
    is_whole_known: bool = True
    skipped: tuple[int, int] | None = None
    lost_metadata: int = 0
    is_created_anew: bool = False
    is_gone: bool = False

    @property
    def is_complete(self) -> bool:
        """True: nothing of the file is lost."""
        is_known = self.lost_count == 0 and self.is_whole_known and self.skipped is None
        is_lost = self.lost or self.lost_records or self.lost_metadata or self.is_created_anew
        return is_known and not is_lost


class FolderRepair:
    """The repairs of the folder of a stopped node; `rules` tell of logs what the store does not
    know."""

    def __init__(self, folder: Path, disk: Disk, rules: LogRules = NO_RULES) -> None:
        """Find what there is. Raises what recovery raises."""
        self._folder = folder
        self._reports = folder / "damaged"
        self._disk = disk
        self._rules = rules
        self._found = recover(folder, disk, lambda name: Durability.DISK, StoreSettings())
        self._files = self._found.files
        self.damages = list(self._found.damages)
        """All that is known to be damaged."""
        self._pool = FilePool(folder / "partitions", disk)

    def close(self) -> None:
        """Give the files up."""
        self._files.close()

    def scrub(self) -> list[Damage]:
        """Read everything; gives all that is damaged, also what no report tells of."""
        known = {damage.name for damage in self.damages if damage.name is not None}
        for damage in Scrub(self._folder, self._disk, self._files).run():
            if damage.name is None or damage.name not in known:
                write_report(self._reports, self._disk, damage)
                self.damages.append(damage)
        return self.damages

    def names(self) -> list[bytes]:
        """The partitions that are not served, or would not be when they are read."""
        entries = self._found.entries.values()
        refused = {entry.name for entry in entries if entry.fault is not None}
        return sorted(refused | {each.name for each in self.damages if each.name is not None})

    def repair(self, name: bytes) -> Repaired:
        """Repair the channel or log `name`. Its note of damage goes last, so a repair that does not
        come to its end is begun anew.

        Raises NotRepairable, Damaged, OSError and sqlite3.Error.
        """
        self._files.close()
        found, disk, rules = self._found, self._disk, self._rules
        path, entry = self._pool.path(name), found.entries.get(name)
        if entry is None and not self._pool.has(name):
            raise NotRepairable("the node keeps nothing of this name")
        copy = kept_copy(self._reports, path)
        source = copy if disk.has(copy) else path
        old = read_partition(source, disk, name)
        moved = _quarantine(self._reports, source, path.name, disk)
        with closing(Catalog(self._folder / CATALOG, disk)) as catalog:
            partition = _Repair(self._pool, catalog, name, entry, old, moved)
            kind = partition.kind(found, rules)
            match kind:
                case PartitionKind.QUEUE:
                    done = partition.queue(found.tail.lsn)
                case PartitionKind.LOG:
                    done = partition.log(found.tail.lsn, rules, self._records_beyond(name))
                case None:
                    done = partition.nothing()
                case _:
                    assert_never(kind)
        drop_copy(self._reports, path, disk)
        for note in _report_paths(self._reports, name):
            disk.unlink(note)
        disk.sync_folder(self._reports)
        return done

    def _records_beyond(self, name: bytes) -> int:
        """The number of records that the journal may have lost of a log."""
        of_name = (each for each in self.damages if each.is_all or each.name == name)
        return sum(damage.records_max for damage in of_name)

    def forget_unnamed(self) -> list[Damage]:
        """Remove the reports that name no partition, once everything is repaired; gives those."""
        unnamed = [damage for damage in self.damages if damage.name is None]
        for damage in unnamed:
            self._disk.unlink(report_path(self._reports, damage))
        self._disk.sync_folder(self._reports)
        return unnamed


def repair(folder: Path, disk: Disk, name: bytes, rules: LogRules = NO_RULES) -> Repaired:
    """Repair one channel or log in the folder of a stopped node. Raises NotRepairable, and what
    recovery raises."""
    with closing(FolderRepair(folder, disk, rules)) as repairs:
        return repairs.repair(name)


class _Repair:
    """Makes the new file of one partition."""

    def __init__(
        self,
        pool: FilePool,
        catalog: Catalog,
        name: bytes,
        entry: IndexEntry | None,
        old: SalvagedFile,
        moved: Path | None,
    ) -> None:
        self._pool = pool
        self._catalog = catalog
        self._name = name
        self._entry = entry
        self._old = old
        self._moved = moved
        self._listed = catalog.row(name)

    def kind(self, found: Recovered, rules: LogRules) -> PartitionKind | None:
        """The kind of the partition; None: nothing is left that could tell."""
        entry = self._entry
        if self._listed is not None:
            return self._listed.metadata.kind
        if entry is not None and (entry.has_file or entry.memtable is not None):
            return entry.kind
        kind = found.damaged_kinds.get(self._name) or self._old.kind
        if kind is None and rules.creation_of(self._name) is not None:
            return PartitionKind.LOG
        return kind

    def queue(self, lsn: int) -> Repaired:
        """A queue has no order that a hole could break: what is good stays."""
        newer = self._newer_listed()
        is_exact = newer is not None and not self._is_row_old
        found = self._old.queue(newer.last_id if newer is not None and is_exact else None)
        snapshot = found.snapshot
        in_file = len(snapshot.rows)
        lost_count = found.lost_count
        if newer is not None:
            missing = max(newer.messages - in_file, len(found.lost))
            lost_count = None if self._is_row_old else max(missing, lost_count or 0)
            snapshot.mode = newer.mode if snapshot.mode is None else snapshot.mode
        elif self._moved is None and lost_count is None and self._listed is None:
            lost_count = 0  # there was no file
        memtable = self._memtable()
        lost = found.lost
        if isinstance(memtable, QueueMemtable):
            # What was removed later, or was written again, is not lost.
            there = {row.id for row in snapshot.rows}
            settled = {*memtable.removed, *memtable.rows} - there
            lost = [each for each in lost if each not in settled]
            if lost_count is not None:
                lost_count = max(lost_count - len(settled & set(memtable.removed)), len(lost))
            snapshot = memtable.apply_to(snapshot)
        rebuilt = QueueMemtable(is_oldest=True)
        rebuilt.fold(_changes(snapshot))
        self._replace(PartitionKind.QUEUE, rebuilt, lsn)
        return Repaired(
            PartitionKind.QUEUE,
            len(snapshot.rows),
            in_file,
            self._moved,
            lost=lost,
            lost_count=lost_count,
        )

    def log(self, lsn: int, rules: LogRules, beyond: int) -> Repaired:
        """Records keep their sequences, whatever is missing before them. The journal may have lost
        `beyond` records behind them."""
        newer = self._newer_listed()
        is_exact = newer is not None and not self._is_row_old
        # The write-ahead log of a file may be there without the file.
        old = None
        if self._moved is not None or not self._old.is_empty:
            old = self._old.log(newer.tail if newer is not None and is_exact else None)
        memtable = self._memtable()
        rebuilt = rebuild_log(
            old,
            memtable if isinstance(memtable, LogMemtable) else None,
            None if newer is None else newer.tail,
            rules.base_of,
            start=0 if newer is None else newer.tail - newer.messages,
            is_tail_sure=newer is None or not self._is_row_old,
            beyond=beyond,
            skipped_if_unknown=SKIPPED_IF_UNKNOWN,
        )
        creation = None if rebuilt.is_deleted else rules.creation_of(self._name)
        is_created_anew = (
            creation is not None and rebuilt.memtable.metadata.get(creation.name) is None
        )
        if is_created_anew and creation is not None:
            rebuilt.memtable.fold([creation])
        self._replace(PartitionKind.LOG, rebuilt.memtable, lsn)
        return Repaired(
            PartitionKind.LOG,
            rebuilt.records,
            0 if old is None else sum(chunk.count for chunk in old.chunks if chunk.data),
            self._moved,
            lost_records=rebuilt.lost,
            is_whole_known=rebuilt.is_whole_known,
            skipped=rebuilt.skipped,
            lost_metadata=0 if old is None else old.lost_metadata,
            is_created_anew=is_created_anew,
            is_gone=rebuilt.is_deleted,
        )

    def nothing(self) -> Repaired:
        """Make an empty partition: nothing tells what kind it was."""
        self._catalog.mark([(self._name, PartitionKind.QUEUE)])
        self._pool.remove(self._name)
        self._catalog.record([], [self._name], {})
        return Repaired(None, 0, 0, self._moved, lost_count=None, is_gone=True)

    def _memtable(self) -> Memtable | None:
        return None if self._entry is None else self._entry.memtable

    def _newer_listed(self) -> PartitionMetadata | None:
        """What the catalog knows, unless the file itself knows as much or more."""
        listed, header = self._listed, self._old.header
        if listed is None or (header is not None and not _is_newer(listed, header)):
            return None
        is_new = listed.is_dirty and not listed.metadata.applied
        return None if is_new else listed.metadata

    @property
    def _is_row_old(self) -> bool:
        """True: the file may have changed after the row of the catalog."""
        return self._listed is not None and self._listed.is_dirty

    def _replace(self, kind: PartitionKind, memtable: Memtable, lsn: int) -> None:
        """A file that has everything up to `lsn`, so that the journal's records count no more."""
        self._catalog.mark([(self._name, kind)])
        metadata = self._pool.make(self._name, kind, memtable, lsn, lsn + 1)
        # The file knows a higher lsn than the journal has, and nothing is lost.
        self._catalog.change_segments(marks={LAST_LSN: lsn + 1})
        self._catalog.record([metadata], [], {})


def _is_newer(listed: Listed, header: FileHeader) -> bool:
    metadata = listed.metadata
    return (metadata.frozen_at, metadata.applied) > (header.frozen_at, header.applied)


def _quarantine(folder: Path, path: Path, name: str, disk: Disk) -> Path | None:
    """A copy of a file and its log in `folder`, under `name` and a number that is not taken; None:
    there is neither."""
    if not disk.has(path) and not disk.has(log_of(path)):
        return None
    taken, number = set(disk.names(folder)), 1
    while f"{name}.{number}" in taken:
        number += 1
    moved = folder / f"{name}.{number}"
    for source, target in ((path, moved), (log_of(path), log_of(moved))):
        if disk.has(source):
            disk.install(target, disk.read(source))
    return moved


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
