"""The repair of a damaged partition: a new file with what is still good; the old one is
quarantined."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
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
from millpond.actors.store.partitions.file_pool import FilePool, file_name, file_seed, remove_beside
from millpond.actors.store.partitions.metadata import FileHeader, PartitionMetadata
from millpond.actors.store.partitions.partition import Damaged
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.recovery import Recovered, recover
from millpond.actors.store.repair.damaged_logs import drop_copy, kept_copy, log_of
from millpond.actors.store.repair.quarantine import (
    RECORDS_UNKNOWN,
    Damage,
    report_path,
    write_report,
)
from millpond.actors.store.repair.rebuilt_log import BaseOf, RebuiltLog, no_base, rebuild_log
from millpond.actors.store.repair.salvage import (
    OnPage,
    SalvagedFile,
    SalvagedLog,
    has_removed,
    read_partition,
)
from millpond.actors.store.scrub import Scrub
from millpond.actors.store.settings import StoreSettings

OUTCOME = ".repaired"


class NotRepairable(Exception):
    """Nothing can be done here; the text says why."""


class LogRules(NamedTuple):
    """Facts about a log that a repair needs and the store does not.

    `base_of` computes which records are its own. `creation_of` gives the metadata without which a
    log of this name is not served; None: it is served without any.
    """

    base_of: BaseOf = no_base
    creation_of: Callable[[bytes], MetadataSet | None] = lambda name: None


NO_RULES = LogRules()


class Repaired(msgspec.Struct, frozen=True):
    """A channel or log has `messages` now; its old file, which had `in_file` that could be read,
    was moved to `moved`.

    Of a channel, `lost` are ids that were in the old file and could not be read, and `lost_count`
    is how many messages of it are lost; None: there may be more than those. `is_lost_minimum`: at
    least so many, because the file may have messages that were removed, which hide as many. Unless
    `is_delivery_known`, some subscribers, acks, attempts or attributes of messages may be lost.
    Of a log, `lost_records` are ranges of sequences, first and last; unless `is_whole_known`,
    records before the first and after the last one may be lost as well. `skipped` are sequences
    that may have been given out to records of which nothing is known, and are not given out again.
    Unless `is_lost_counted`, some of `lost_records` an earlier repair had lost or skipped.
    `lost_metadata` is the number of its properties that are missing, at least; unless
    `is_metadata_known`, nothing tells whether more of them are. `is_created_anew`: the one without
    which it is not served was among them, so it has a new one.
    `is_gone`: there is no such channel or log any more.
    """

    kind: PartitionKind | None
    messages: int
    in_file: int
    moved: Path | None = None
    lost: list[int] = []
    lost_count: int | None = 0
    is_lost_minimum: bool = False
    is_delivery_known: bool = True
    lost_records: list[tuple[int, int]] = []
    is_whole_known: bool = True
    is_lost_counted: bool = True
    skipped: tuple[int, int] | None = None
    lost_metadata: int = 0
    is_metadata_known: bool = True
    is_created_anew: bool = False
    is_gone: bool = False

    @property
    def is_complete(self) -> bool:
        """True: nothing of the file is lost."""
        is_known = self.is_whole_known and self.skipped is None
        is_known = is_known and self.lost_count == 0 and not self.is_lost_minimum
        is_known = is_known and self.is_delivery_known and self.is_metadata_known
        is_lost = self.lost or self.lost_records or self.lost_metadata or self.is_created_anew
        return is_known and not is_lost


class _Finished(msgspec.Struct, frozen=True):
    """The outcome of a repair, written before its new file, which has everything up to `lsn`. If
    the repair is interrupted behind that, the next one tells what was lost: the new file does not.
    `damages` are those that it repaired.
    """

    name: bytes
    lsn: int
    done: Repaired
    damages: list[Damage]


class FolderRepair:
    """The repairs of the folder of a stopped node; `rules` tell of logs what the store does not
    know."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        rules: LogRules = NO_RULES,
        *,
        was_used: bool | None = None,
        now: float = 0.0,
    ) -> None:
        """Find what there is; the last two are recovery's. Raises what recovery raises."""
        self._folder = folder
        self._reports = folder / "damaged"
        self._disk = disk
        self._rules = rules
        self._found = recover(
            folder,
            disk,
            lambda name: Durability.DISK,
            StoreSettings(),
            was_used=was_used,
            now=now,
        )
        self._files = self._found.files
        self.damages = list(self._found.damages)
        """All that is known to be damaged, or was before an interrupted repair."""
        repaired = (damage for each in self._outcomes() for damage in each.damages)
        self.damages += (each for each in repaired if each not in self._found.damages)
        self._pool = FilePool(folder / "partitions", disk)

    def close(self) -> None:
        """Give the files up."""
        self._files.close()

    def scrub(self) -> list[Damage]:
        """Read everything; gives all that is damaged, also what no report tells of. Raises OSError,
        sqlite3.Error where something cannot be read now."""
        known = {damage.name for damage in self.damages if damage.name is not None}
        self._files.check_catalog()
        found = Scrub(self._folder, self._disk, self._files).run()
        self.damages += self._files.take_damages()  # of the catalog; it is reported already
        for damage in found:
            if damage.name is None or damage.name not in known:
                write_report(self._reports, self._disk, damage)
                self.damages.append(damage)
        return self.damages

    def names(self) -> list[bytes]:
        """The partitions that are not served, or would not be when they are read."""
        entries = self._found.entries.values()
        refused = {entry.name for entry in entries if entry.fault is not None}
        refused |= {each.name for each in self.damages if each.name is not None}
        # An interrupted repair may have been one of a partition without a damage of its own.
        return sorted(refused | {each.name for each in self._outcomes()})

    def repair(self, name: bytes, on_page: OnPage | None = None) -> Repaired:
        """Repair the channel or log `name`. Its report of damage goes last, so an interrupted
        repair is begun anew; behind the new file only the rest is done. `on_page` is called while
        its file is read.

        Raises NotRepairable, Damaged, OSError and sqlite3.Error.
        """
        self._files.close()
        path, entry = self._pool.path(name), self._found.entries.get(name)
        outcome = _outcome_path(self._reports, path)
        if entry is None and not self._pool.has(name):
            self._disk.unlink(outcome)
            raise NotRepairable("the node keeps nothing of this name")
        done = self._finished(name, entry) or self._rebuild(name, entry, on_page)
        drop_copy(self._reports, path, self._disk)
        for report in _report_paths(self._reports, name):
            self._disk.unlink(report)
        self._disk.sync_folder(self._reports)
        with suppress(OSError):  # what is left of it has the next repair tell the same again
            self._disk.unlink(outcome)
            self._disk.sync_folder(self._reports)
        return done

    def _rebuild(self, name: bytes, entry: IndexEntry | None, on_page: OnPage | None) -> Repaired:
        """Replace the file of a partition."""
        found, disk, path = self._found, self._disk, self._pool.path(name)
        copy = kept_copy(self._reports, path)
        source = copy if disk.has(copy) else path
        seeds = {file_seed(each) for each in self._pool.paths()}
        old = read_partition(source, disk, name, self._pool.path, seeds, on_page)
        moved = _quarantine(self._reports, source, path.name, disk)
        with closing(Catalog(self._folder / CATALOG, disk)) as catalog:
            partition = _Repair(self._pool, catalog, name, entry, old, moved)
            kind = partition.kind(found, self._rules)
            memtable: QueueMemtable | LogMemtable
            match kind:
                case PartitionKind.QUEUE:
                    done, memtable = partition.queue()
                case PartitionKind.LOG:
                    done, memtable = partition.log(
                        self._rules, self._records_beyond(name), found.first_sequence
                    )
                case None:
                    return partition.nothing()
                case _:
                    assert_never(kind)
            finished = _Finished(name, found.tail.lsn, done, self._damages_of(name))
            outcome = _outcome_path(self._reports, path)
            disk.install(outcome, msgspec.json.encode(finished, enc_hook=str))
            partition.replace(kind, memtable, finished.lsn)
        return done

    def _finished(self, name: bytes, entry: IndexEntry | None) -> Repaired | None:
        """The outcome of an interrupted repair whose new file is there, if nothing is damaged that
        it did not repair, and nothing was written since."""
        path = self._pool.path(name)
        known = next((each for each in self._outcomes() if each.name == name), None)
        is_later = entry is not None and entry.memtable is not None
        if known is None or is_later or not self._disk.has(path):
            return None
        if any(each not in known.damages for each in self._damages_of(name)):
            return None
        try:
            with closing(self._pool.look(path)) as partition:
                metadata = partition.metadata
                is_there = (metadata.applied, metadata.frozen_at) == (known.lsn, known.lsn + 1)
                return known.done if is_there and not partition.verify() else None
        except (Damaged, sqlite3.Error):
            return None

    def _outcomes(self) -> Iterator[_Finished]:
        """The outcomes that interrupted repairs left."""
        for each in self._disk.names(self._reports):
            if each.endswith(OUTCOME):
                data = self._disk.read(self._reports / each)
                with suppress(msgspec.DecodeError):
                    yield msgspec.json.decode(data, type=_Finished, dec_hook=_path)

    def _damages_of(self, name: bytes) -> list[Damage]:
        return [each for each in self.damages if each.name == name]

    def _records_beyond(self, name: bytes) -> int:
        """The number of records that the journal may have lost of a log."""
        of_name = (each for each in self.damages if each.is_all or each.name == name)
        return sum(damage.records_max for damage in of_name)

    @property
    def unnamed(self) -> list[Damage]:
        """The damages that name no partition."""
        return [damage for damage in self.damages if damage.name is None]

    def forget_unnamed(self) -> list[Damage]:
        """Remove the reports that name no partition, once everything is repaired; gives those.
        Files that nothing lists and that do not say whose they are are moved away first."""
        unnamed = self.unnamed
        self._move_away({Path(damage.where).name for damage in unnamed})
        for damage in unnamed:
            self._disk.unlink(report_path(self._reports, damage))
        self._disk.sync_folder(self._reports)
        return unnamed

    def _move_away(self, names: set[str]) -> None:
        """Move files with these names to the reports, unless they are listed by now."""
        unlisted = {path for path in self._pool.paths() if path.name in names}
        if not unlisted:
            return
        self._files.close()
        with closing(Catalog(self._folder / CATALOG, self._disk)) as catalog:
            unlisted -= {self._pool.path(name) for name in catalog.partitions()}
        for path in unlisted:
            _quarantine(self._reports, path, path.name, self._disk)
            remove_beside(path, self._disk)
            self._disk.unlink(path)
            self._disk.sync_folder(path.parent)


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

    def queue(self) -> tuple[Repaired, QueueMemtable]:
        """A queue has no order that a hole could break: what is good stays."""
        newer = self._newer_listed()
        is_known = newer is not None and not self._is_end_open
        found = self._old.queue(newer.last_id if newer is not None and is_known else None)
        snapshot = found.snapshot
        in_file = len(snapshot.rows)
        lost_count = found.lost_count
        if newer is not None:
            missing = max(newer.messages - in_file, len(found.lost))
            # An older copy has messages that are removed since, so the numbers tell nothing.
            is_older_copy = self._old.header is not None
            is_counted = not self._is_row_old and not is_older_copy
            # So does an older copy of a page.
            is_counted = is_counted and not has_removed(newer, snapshot.rows)
            is_counted = is_counted and not found.has_older
            lost_count = max(missing, lost_count or 0) if is_counted else None
            snapshot.mode = newer.mode if snapshot.mode is None else snapshot.mode
        elif self._moved is None and lost_count is None and self._listed is None:
            lost_count = 0  # there was no file
        # A page that is an older copy has messages that were removed later. Nothing is hidden where
        # no message was read, or each that is missing is known by its id.
        is_minimum = in_file > 0 and lost_count is not None and lost_count > len(found.lost)
        memtable = self._memtable()
        lost = found.lost
        if isinstance(memtable, QueueMemtable):
            # Rows that were removed later, or written again, are not lost.
            there = {row.id for row in snapshot.rows}
            settled = {*memtable.removed, *memtable.rows} - there
            lost = [each for each in lost if each not in settled]
            if lost_count is not None:
                lost_count = max(lost_count - len(settled & set(memtable.removed)), len(lost))
            snapshot = memtable.apply_to(snapshot)
        rebuilt = QueueMemtable(is_oldest=True)
        rebuilt.fold(_changes(snapshot))
        done = Repaired(
            PartitionKind.QUEUE,
            len(snapshot.rows),
            in_file,
            self._moved,
            lost=lost,
            lost_count=lost_count,
            is_lost_minimum=is_minimum,
            is_delivery_known=found.is_delivery_known or not self._had_file,
        )
        return done, rebuilt

    def log(
        self, rules: LogRules, beyond: int, first_sequence: int
    ) -> tuple[Repaired, LogMemtable]:
        """Records keep their sequences, whatever is missing before them. The journal may have lost
        `beyond` records behind them. One of which nothing is left began at `first_sequence`."""
        newer = self._newer_listed()
        # The write-ahead log of a file may be there without the file.
        old = None
        if self._moved is not None or not self._old.is_empty:
            is_known = newer is not None and not self._is_end_open
            tail = newer.tail if newer is not None and is_known else None
            old = self._old.log(tail, is_header_old=newer is not None)
        memtable = self._memtable()
        rebuilt = rebuild_log(
            old,
            memtable if isinstance(memtable, LogMemtable) else None,
            None if newer is None else newer.tail,
            rules.base_of,
            start=0 if newer is None else newer.tail - newer.messages,
            is_tail_sure=newer is None or not self._is_row_old,
            beyond=beyond,
            skipped_if_unknown=RECORDS_UNKNOWN,
            first_sequence=first_sequence,
        )
        creation = None if rebuilt.is_deleted else rules.creation_of(self._name)
        is_created_anew = (
            creation is not None and rebuilt.memtable.metadata.get(creation.name) is None
        )
        if is_created_anew and creation is not None:
            rebuilt.memtable.fold([creation])
        done = Repaired(
            PartitionKind.LOG,
            rebuilt.records,
            0 if old is None else sum(chunk.count for chunk in old.chunks if chunk.data),
            self._moved,
            lost_records=rebuilt.lost,
            is_whole_known=rebuilt.is_whole_known,
            is_lost_counted=not rebuilt.lost or self._knows_earlier_losses(old),
            skipped=rebuilt.skipped,
            lost_metadata=0 if old is None else old.lost_metadata,
            is_metadata_known=self._knows_metadata(old, rebuilt),
            is_created_anew=is_created_anew,
            is_gone=rebuilt.is_deleted,
        )
        return done, rebuilt.memtable

    def _knows_earlier_losses(self, old: SalvagedLog | None) -> bool:
        """True: all that earlier repairs of the log lost or skipped is known."""
        newer = self._newer_listed()
        header = self._old.header if newer is None else newer
        found = 0 if old is None else sum(each.count for each in old.chunks if not each.data)
        return header is None or header.keys <= found

    def _knows_metadata(self, old: SalvagedLog | None, rebuilt: RebuiltLog) -> bool:
        """True: the properties in the file are counted, or those of another log."""
        if rebuilt.is_fresh or not self._had_file:
            return True
        return old is not None and old.is_metadata_known

    def nothing(self) -> Repaired:
        """Make an empty partition: nothing tells what kind it was."""
        self._catalog.mark([(self._name, PartitionKind.QUEUE)])
        self._pool.remove(self._name)
        self._catalog.record([], [self._name], {})
        return Repaired(None, 0, 0, self._moved, lost_count=None, is_gone=True)

    def replace(self, kind: PartitionKind, memtable: QueueMemtable | LogMemtable, lsn: int) -> None:
        """A file that has everything up to `lsn`, so that the journal's records count no more."""
        self._catalog.mark([(self._name, kind)])
        # First: the file knows a higher lsn than the journal has, and nothing is lost.
        self._catalog.change_segments(marks={LAST_LSN: lsn + 1})
        metadata = self._pool.make(self._name, kind, memtable, lsn, lsn + 1)
        self._catalog.record([metadata], [], {})

    def _memtable(self) -> Memtable | None:
        return None if self._entry is None else self._entry.memtable

    def _newer_listed(self) -> PartitionMetadata | None:
        """The catalog's facts, unless the file itself knows as much or more."""
        listed, header = self._listed, self._old.header
        if listed is None or (header is not None and not _is_newer(listed, header)):
            return None
        is_new = listed.is_dirty and not listed.metadata.applied
        return None if is_new else listed.metadata

    @property
    def _had_file(self) -> bool:
        """True: there is a file, or the catalog knows one."""
        return self._moved is not None or self._newer_listed() is not None

    @property
    def _is_end_open(self) -> bool:
        """True: nothing tells the end of the file."""
        return self._is_row_old and self._old.header is None

    @property
    def _is_row_old(self) -> bool:
        """True: the file may have changed after the row of the catalog."""
        return self._listed is not None and self._listed.is_dirty


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


def _outcome_path(folder: Path, path: Path) -> Path:
    """The file, among the reports, with the outcome of the repair of a partition's file."""
    return folder / (path.name + OUTCOME)


def _path(kind: type[Path], text: str) -> Path:
    """A path, as msgspec finds it in an outcome."""
    return kind(text)


def _report_paths(folder: Path, name: bytes) -> Iterator[Path]:
    """The report of the channel, and one of its file from before its name was known."""
    path = file_name(name)
    yield report_path(folder, Damage("", "", name))
    yield report_path(folder, Damage(path.rpartition("/")[2], ""))
