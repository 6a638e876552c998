"""Recovery: the catalog, the journal over it, and the memtables that come of both at a start.

Nothing is opened that the catalog can answer for, so the time it takes grows with the journal
(whose size is bounded) and the number of partitions, not with what is in them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import closing, suppress
from math import inf
from pathlib import Path

import msgspec

from millpond.actors.messages import Durability
from millpond.actors.store.catalog_copy import remove_copy
from millpond.actors.store.catalog_recovery import (
    DAMAGED,
    JOURNAL,
    OLD,
    PARTITIONS,
    CatalogRecovery,
    has_traces,
)
from millpond.actors.store.changes import (
    Change,
    Chunk,
    MessageRemoved,
    PartitionKind,
    StoredMessage,
)
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.index import IndexEntry, fold, new_memtable
from millpond.actors.store.interface import Fault, StoredQueue
from millpond.actors.store.journal.change_codec import BadChange, decode
from millpond.actors.store.journal.format import Record, Rewrite
from millpond.actors.store.journal.reader import (
    JournalContents,
    Loss,
    SegmentsKnown,
    read_journal,
)
from millpond.actors.store.journal.writer import JournalTail, segment_path
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.partitions.catalog import (
    FIRST_SEQUENCE,
    ID_MARK,
    LAST_ID,
    LAST_LSN,
    MISSING,
    UNLISTED,
    Catalog,
    Listed,
    check_listed,
)
from millpond.actors.store.partitions.file_pool import FilePool, file_name
from millpond.actors.store.partitions.files import PartitionFiles
from millpond.actors.store.partitions.metadata import PartitionMetadata
from millpond.actors.store.partitions.partition import Damaged
from millpond.actors.store.partitions.sqlite import UnknownFormat
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.repair.damaged_logs import drop_copy, keep_damaged_logs
from millpond.actors.store.repair.quarantine import Damage, log_damage, read_reports, write_report
from millpond.actors.store.settings import StoreSettings


class JournalSuffix(msgspec.Struct, frozen=True):
    """The records behind an lsn, without rewrites, and the first and last lsn that the journal has
    of each run of the node, by the salt of the run. Up to `lost_lsn` a segment that failed may
    have lost records, of which only rewrites are left."""

    records: list[Record]
    runs: dict[int, tuple[int, int]]
    lost_lsn: int = 0

    def has(self, lsn: int, salt: int) -> bool:
        """True: the run of this salt wrote this record, it is still there, or was the last one
        before the journal begins, and so are all behind it."""
        first, last = self.runs.get(salt, (0, -1))
        return lsn >= self.lost_lsn and first - 1 <= lsn <= last


class Recovered(msgspec.Struct):
    """A store as it was. `damages` is all that is known to be damaged, of this and former runs;
    `damaged_kinds` tells what those are of which the journal has something, or had. Logs that
    nothing is known of begin at `first_sequence`. `suffix` is what `recover` was asked for.
    """

    files: PartitionFiles
    entries: dict[bytes, IndexEntry]
    stored_queues: list[StoredQueue]
    tail: JournalTail
    segments: dict[int, int]
    facts: dict[str, int]
    last_id: int
    records: int
    torn_bytes: int
    damages: list[Damage]
    damaged_kinds: dict[bytes, PartitionKind]
    first_sequence: int = 0
    suffix: JournalSuffix | None = None


def recover(
    folder: Path,
    disk: Disk,
    durability: Callable[[bytes], Durability],
    settings: StoreSettings,
    *,
    was_used: bool | None = None,
    now: float = 0.0,
    suffix_after: int | None = None,
) -> Recovered:
    """Read everything back. `was_used`: something else proves that a store was in the folder, or
    that nothing was stored there. `now` is in seconds since 1970, 0 if it is unknown. The records
    behind the lsn `suffix_after` are given as well, if all are there. Raises Damaged,
    UnknownVersion, OSError, sqlite3.Error."""
    pool = FilePool(folder / PARTITIONS, disk, handles_max=settings.handles_max)
    opening = CatalogRecovery(folder, disk, pool, now)
    was_used = has_traces(folder, disk) if was_used is None else was_used
    if was_used:
        _make_folders(folder, disk)
    else:
        disk.make_folder(folder)
    copied = keep_damaged_logs(pool.paths(), folder / DAMAGED, disk)
    catalog = opening.open(was_used=was_used)
    # A crash before this leaves a catalog alone, or a folder that was never used.
    _make_folders(folder, disk)
    try:
        found = _recover(folder, disk, durability, pool, copied, catalog, opening, suffix_after)
    except UnknownFormat:
        raise
    except Damaged as exc:
        # A part of it that is not read when it is opened, such as an index.
        catalog.close()
        catalog = opening.replace(str(exc))
        found = _recover(folder, disk, durability, pool, copied, catalog, opening, suffix_after)
    # Recovery would make its own changes again from the copy; later ones the copy does not have.
    remove_copy(folder, disk)
    return found


def _make_folders(folder: Path, disk: Disk) -> None:
    for part in (JOURNAL, PARTITIONS, DAMAGED):
        disk.make_folder(folder / part)


def _recover(
    folder: Path,
    disk: Disk,
    durability: Callable[[bytes], Durability],
    pool: FilePool,
    copied: list[Path],
    catalog: Catalog,
    opening: CatalogRecovery,
    suffix_after: int | None,
) -> Recovered:
    """Read everything that the catalog tells of; `copied` are files whose logs were damaged. Raises
    Damaged if the catalog is."""
    file_damages: list[Damage] = []
    partitions, resolved = _partitions(catalog, pool, file_damages)
    for path in () if opening.is_made_anew else copied:
        file_damages += _damages_of_log(path, catalog, pool, folder / DAMAGED, disk)
    found = read_journal(folder / JOURNAL, disk, segments_known(catalog, partitions))
    if found.generation > catalog.generation and not opening.is_made_anew:
        # An older copy, or one without marks: what it lists is not what there is.
        catalog.close()
        catalog = opening.replace(OLD)
        return _recover(folder, disk, durability, pool, copied, catalog, opening, suffix_after)
    if resolved:
        # A dirty row that never had a change would let its file be missing later. Not before the
        # generations were compared, because this raises that of an older catalog.
        rows = [partitions[name] for name in resolved if name in partitions]
        catalog.record(rows, [name for name in resolved if name not in partitions], {})
    catalog.resume(found.generation)
    _make_durable(folder / JOURNAL, disk, found)
    lost = journal_damages(found, partitions)
    _raise_first_sequence(catalog, lost)
    damages = [*opening.damages, *file_damages, *lost]
    entries: dict[bytes, IndexEntry] = {}
    kept: list[StoredQueue] = []
    rebuilder = _Rebuilder(durability, partitions, damages)
    by_name: dict[bytes, list[tuple[int, Record]]] = {name: [] for name in partitions}
    for number, record in found.records:
        by_name.setdefault(record.name, []).append((number, record))
    for name, records in by_name.items():
        entry, deadline = rebuilder.build(name, records)
        if not entry.is_idle:
            entries[name] = entry
            if entry.kind is PartitionKind.QUEUE and (entry.messages or entry.keys):
                kept.append(StoredQueue(name, deadline))
    damages = _with_names(damages, by_name)
    reported = {damage.name for damage in read_reports(folder / DAMAGED, disk)}
    is_journal_harmed = bool(found.losses) or any(
        damage.name not in reported for damage in found.damages
    )
    damages = _note_damages(folder / DAMAGED, disk, damages)
    kinds = _damaged_kinds(damages, found, by_name)
    for damage in damages:
        if damage.name is not None:
            kind = kinds.get(damage.name, PartitionKind.QUEUE)
            _entry_of(entries, damage.name, kind, durability).fault = Fault.DAMAGED
    if any(damage.is_all for damage in damages):
        for entry in entries.values():
            entry.fault = Fault.DAMAGED
    facts, marks = catalog.facts(), catalog.marks()
    used = (max(metadata.applied, metadata.frozen_at) for metadata in partitions.values())
    lsn = max(found.tail.lsn, *used, marks.get(LAST_LSN, 0))
    last_id = max(found.last_id, rebuilder.last_id, marks.get(LAST_ID, 0))
    if is_journal_harmed or LAST_LSN not in marks:
        # Ids that were in what is lost are not given out again.
        last_id = max(last_id, marks.get(ID_MARK, 0), found.id_mark)
    _list_segments(catalog, found, lsn, last_id, is_harmed=is_journal_harmed)
    return Recovered(
        files=PartitionFiles(folder, disk, pool, catalog, facts, partitions),
        entries=entries,
        stored_queues=[each for each in kept if entries[each.name].fault is None],
        tail=JournalTail(found.tail.number, lsn, found.tail.cuts, last_id, found.tail.previous),
        segments=found.segments,
        facts=facts,
        last_id=last_id,
        records=len(found.records),
        torn_bytes=found.torn_bytes,
        damages=damages,
        damaged_kinds=kinds,
        first_sequence=marks.get(FIRST_SEQUENCE, 0),
        suffix=None if suffix_after is None or damages else _suffix(found, suffix_after),
    )


def _suffix(found: JournalContents, lsn: int) -> JournalSuffix | None:
    """None: the journal does not go back to that lsn. Segments go oldest first, so all behind one
    that is there are there."""
    rows = sorted(found.completed, key=lambda each: each.number)
    if not rows and lsn >= found.tail.lsn:
        return JournalSuffix([], {})
    if not rows or rows[0].first_lsn > lsn + 1:
        return None
    runs: dict[int, tuple[int, int]] = {}
    for each in rows:
        first, _ = runs.get(each.salt, (each.first_lsn, 0))
        runs[each.salt] = first, max(each.last_lsn, each.first_lsn - 1)
    records = [
        record for _, record in found.records if record.lsn > lsn and record.rewrite is Rewrite.NONE
    ]
    return JournalSuffix(records, runs, _lost_lsn(found))


def _lost_lsn(found: JournalContents) -> int:
    """The lsn before the first record behind the last segment that failed."""
    last_cut = max(found.tail.cuts, default=-1)
    if last_cut < 0:
        return 0
    first = min((each.lsn for number, each in found.records if number > last_cut), default=None)
    return found.tail.lsn if first is None else first - 1


def _raise_first_sequence(catalog: Catalog, lost: Iterable[Damage]) -> None:
    """Have new logs begin above all records that a log may have had in lost parts of the journal;
    before these are reported."""
    if records_max := sum(damage.records_max for damage in lost if damage.is_all):
        first = catalog.marks().get(FIRST_SEQUENCE, 0) + records_max
        catalog.change_segments(marks={FIRST_SEQUENCE: first})


def segments_known(
    catalog: Catalog, partitions: Mapping[bytes, PartitionMetadata]
) -> SegmentsKnown:
    """The knowledge of the catalog about the journal."""
    marks = catalog.marks()
    if LAST_LSN not in marks:
        return SegmentsKnown()
    proven = max((each.applied for each in partitions.values()), default=0)
    rows = catalog.segments()
    return SegmentsKnown(rows, proven, marks[LAST_LSN], catalog.generation)


def _list_segments(
    catalog: Catalog, found: JournalContents, lsn: int, last_id: int, *, is_harmed: bool
) -> None:
    """Write the list of segments as they are now. Damage is reported before."""
    marks = catalog.marks()
    changed = {}
    if LAST_LSN not in marks or is_harmed:
        changed = {LAST_LSN: lsn, LAST_ID: last_id, ID_MARK: max(last_id, marks.get(ID_MARK, 0))}
    listed = catalog.segments()
    written = [row for row in found.completed if listed.get(row.number) != row]
    present = {row.number for row in found.completed}
    gone = [number for number in listed if number not in present]
    if written or gone or changed:
        catalog.change_segments(written, gone, changed)


def _partitions(
    catalog: Catalog, pool: FilePool, damages: list[Damage]
) -> tuple[dict[bytes, PartitionMetadata], list[bytes]]:
    """Metadata by name; of files that were being changed, from the files themselves: the second
    are the names of these, whose rows are still to be written.

    A file that is listed and missing, or there and not listed, damages its partition.
    """
    partitions = catalog.partitions()
    dirty = catalog.dirty()
    resolved: list[bytes] = []
    for name in sorted(dirty):
        listed = Listed(partitions[name], is_dirty=True)
        try:
            partition = pool.existing(name, listed.metadata.kind)
            check_listed(listed, None if partition is None else partition.metadata)
        except UnknownFormat:
            raise
        except Damaged as exc:
            pool.forget(name)
            damages.append(Damage(file_name(name), str(exc), name))
            continue
        if partition is None or not partition.metadata.applied:
            del partitions[name]
        else:
            partitions[name] = partition.metadata
        resolved.append(name)
    damages += unlisted_damages(partitions.keys() - dirty, partitions.keys() | dirty, pool)
    return partitions, resolved


def _damages_of_log(
    path: Path, catalog: Catalog, pool: FilePool, reports: Path, disk: Disk
) -> Iterator[Damage]:
    """The damage of a file whose log is damaged; if nothing is missing, its copy is not needed."""
    name: bytes | None = None
    try:
        with closing(pool.look(path)) as partition:
            name = partition.metadata.name or None
            listed = None if name is None else catalog.row(name)
            check_listed(listed, partition.metadata if name is not None else None)
    except UnknownFormat:
        raise
    except (Damaged, sqlite3.Error) as exc:
        yield Damage(path.name, f"its write-ahead log is damaged; {exc}", name)
        return
    drop_copy(reports, path, disk)


def unlisted_damages(clean: Set[bytes], listed: Set[bytes], pool: FilePool) -> Iterator[Damage]:
    """Files of the partitions `clean` that are missing, and files of none that is `listed`.

    Names are compared; no listed file is opened.
    """
    names = {pool.path(name): name for name in listed}
    found = set(pool.paths())
    for name in sorted(clean):
        if pool.path(name) not in found:
            yield Damage(file_name(name), MISSING, name)
    for path in sorted(found - names.keys()):
        where = f"{path.parent.name}/{path.name}"
        try:
            with closing(pool.look(path)) as partition:
                if partition.is_named:
                    yield Damage(where, UNLISTED, partition.metadata.name)
        except UnknownFormat:
            raise
        except (Damaged, sqlite3.Error) as exc:
            yield Damage(path.name, f"{UNLISTED}; {exc}")


def journal_damages(
    found: JournalContents, partitions: Mapping[bytes, PartitionMetadata]
) -> list[Damage]:
    """The damages of the journal, except where the file or a later rewrite has all the changes (or
    is repaired)."""
    have = {name: metadata.applied for name, metadata in partitions.items()}
    if not found.damages and not found.losses:
        return []
    by_name: dict[bytes, list[tuple[int, Record]]] = {}
    for number, record in found.records:
        by_name.setdefault(record.name, []).append((number, record))
    for name, records in by_name.items():
        metadata = partitions.get(name)
        rewritten = _effective_rewrite(records, 0 if metadata is None else metadata.frozen_at)
        if rewritten is not None:
            have[name] = max(have.get(name, 0), rewritten[1].as_of)
    appended = _AppendLsns(by_name)
    lsns = found.damaged_lsns
    damages = [
        damage if damage.name is None else appended.bound(damage, lsns[damage.name])
        for damage in found.damages
        if damage.name is None or have.get(damage.name, 0) < lsns[damage.name]
    ]
    for loss in found.losses:
        damages += _damages_of(loss, have, appended)
    return damages


class _AppendLsns:
    """The lsns of the last appends to logs, for those that are asked for."""

    def __init__(self, by_name: Mapping[bytes, list[tuple[int, Record]]]) -> None:
        self._by_name = by_name

    def bound(self, damage: Damage, lsn: int) -> Damage:
        """The damage of a name that lost records up to this lsn: if there is a later append, it
        tells the sequences of all records before, and none behind it was lost."""
        if damage.name is None or self._last(damage.name) <= lsn:
            return damage
        return msgspec.structs.replace(damage, records_max=0)

    def _last(self, name: bytes) -> int:
        for _, record in reversed(self._by_name.get(name, ())):
            if record.kind is PartitionKind.LOG and record.rewrite is Rewrite.NONE:
                with suppress(BadChange):
                    if any(isinstance(each, Chunk) for each in decode(record.body)):
                        return record.lsn
        return 0


def _damages_of(loss: Loss, have: Mapping[bytes, int], appended: _AppendLsns) -> list[Damage]:
    """The damages of those names that lost something; `have` tells up to which lsn they did
    not."""
    if loss.names is None:
        return [Damage(loss.where, loss.text, None, is_all=True, records_max=loss.size)]
    damages = [
        appended.bound(Damage(loss.where, loss.text, name, records_max=loss.size), loss.last_lsn)
        for name, last in loss.names.items()
        if last > loss.after_lsn and have.get(name, 0) < min(last, loss.last_lsn)
    ]
    return damages or [Damage(loss.where, f"{loss.text}; nothing in it is needed")]


def _with_names(damages: list[Damage], names: Iterable[bytes]) -> list[Damage]:
    """Damages of files that do not say whose they are, with the name that the file's name is the
    hash of, if that is one of these."""
    if all(damage.name is not None for damage in damages):
        return damages
    by_file = {Path(file_name(name)).name: name for name in names}
    return [
        msgspec.structs.replace(damage, name=damage.name or by_file.get(Path(damage.where).name))
        for damage in damages
    ]


def _make_durable(folder: Path, disk: Disk, found: JournalContents) -> None:
    """Write to the disk what may be in the system's memory only: it is served, so it must not get
    lost.

    Changes not known to be synced are written again: after a sync that failed, the system may take
    it for clean, and a sync would do nothing.
    """
    # A segment that was taken back may not return under the number of the next one.
    disk.sync_folder(folder)
    doubtful = {number for number, record in found.records if record.lsn > found.synced_lsn}
    doubtful.add(found.torn_segment)
    for number, size in found.segments.items():
        if size:
            path = segment_path(folder, number)
            file = disk.open(path)
            try:
                if number in doubtful:
                    # The rest was reserved, and reads as zeros.
                    file.write(disk.read(path)[:size].rstrip(b"\0"), 0)
                file.sync()
            finally:
                file.close()


def _note_damages(folder: Path, disk: Disk, damages: list[Damage]) -> list[Damage]:
    """Write reports of new damages; gives all damages."""
    for damage in damages:
        log_damage(damage)
        write_report(folder, disk, damage)
    return read_reports(folder, disk)


def _damaged_kinds(
    damages: list[Damage], found: JournalContents, by_name: dict[bytes, list[tuple[int, Record]]]
) -> dict[bytes, PartitionKind]:
    kinds = dict(found.damaged_kinds)
    for damage in damages:
        if damage.name is not None:
            kinds.update((damage.name, record.kind) for _, record in by_name.get(damage.name, ()))
    return kinds


def _entry_of(
    entries: dict[bytes, IndexEntry],
    name: bytes,
    kind: PartitionKind,
    durability: Callable[[bytes], Durability],
) -> IndexEntry:
    entry = entries.get(name)
    if entry is None:
        entry = entries[name] = IndexEntry(name, kind, at_least_os(durability(name)))
    return entry


def at_least_os(durability: Durability) -> Durability:
    """The durability of data that is on the disk already: at least that of the system's memory."""
    return max(durability, Durability.OS)


class _Rebuilder:
    """Makes entries of metadata and records."""

    def __init__(
        self,
        durability: Callable[[bytes], Durability],
        partitions: dict[bytes, PartitionMetadata],
        damages: list[Damage],
    ) -> None:
        self._durability = durability
        self._partitions = partitions
        self._damages = damages
        self.last_id = max((metadata.last_id for metadata in partitions.values()), default=0)

    def build(self, name: bytes, records: list[tuple[int, Record]]) -> tuple[IndexEntry, float]:
        """The entry of a partition, and when the first of it may expire."""
        metadata = self._partitions.get(name)
        kind = metadata.kind if metadata is not None else records[0][1].kind
        entry = IndexEntry(name, kind, at_least_os(self._durability(name)))
        if metadata is not None:
            entry.has_file = True
            entry.lsn = metadata.applied
            entry.mode = metadata.mode
            entry.bytes = metadata.bytes
            if kind is PartitionKind.QUEUE:
                entry.messages, entry.keys = metadata.messages, metadata.keys
        try:
            self._replay(entry, records)
        except BadChange as exc:
            self._damages.append(Damage("journal", str(exc), name))
        deadline = metadata.deadline if metadata is not None else inf
        if isinstance(entry.memtable, QueueMemtable):
            self._count_queue(entry, entry.memtable)
            deadline = min(deadline, entry.memtable.deadline)
        elif isinstance(entry.memtable, LogMemtable):
            # The trimmed part of a file is counted once its stream is used.
            entry.bytes = entry.memtable.chunk_bytes + (
                0 if entry.memtable.is_fresh else entry.bytes
            )
        return entry, deadline

    def _replay(self, entry: IndexEntry, records: list[tuple[int, Record]]) -> None:
        """Fold what neither the file nor the rewrite that counts has."""
        metadata = self._partitions.get(entry.name)
        rewritten = _effective_rewrite(records, metadata.frozen_at if metadata is not None else 0)
        base = entry.lsn if rewritten is None else max(entry.lsn, rewritten[1].as_of)
        needed = [] if rewritten is None else [rewritten]
        needed += (
            each for each in records if each[1].rewrite is Rewrite.NONE and each[1].lsn > base
        )
        memtable = new_memtable(entry.kind, is_oldest=not entry.has_file)
        if isinstance(memtable, QueueMemtable) and rewritten is not None:
            memtable.may_overlap = entry.has_file and rewritten[1].rewrite is Rewrite.MENDED
        for _, record in records:
            if record.rewrite is Rewrite.NONE and record.lsn <= base:
                with suppress(BadChange):  # nothing of it is served
                    self._see_ids(decode(record.body))
        entry.lsn = base
        for _, record in needed:
            changes = list(decode(record.body))
            fold(memtable, changes)
            self._see_ids(changes)
            entry.lsn = max(entry.lsn, record.lsn if record.rewrite is Rewrite.NONE else base)
        if isinstance(memtable, QueueMemtable) and metadata is not None:
            memtable.forget_removed(above=metadata.last_id)
        elif isinstance(memtable, LogMemtable):
            self._check_joins(entry.name, memtable, 0 if metadata is None else metadata.tail)
        if memtable:
            entry.memtable = memtable
            entry.oldest_segment = min(number for number, _ in needed)

    def _check_joins(self, name: bytes, memtable: LogMemtable, tail: int) -> None:
        """The chunks of the journal follow one another, and those of the file."""
        end = 0 if memtable.is_fresh else max(tail, memtable.trim_point if tail else 0)
        for chunk in memtable.chunks:
            if end and chunk.first > end:
                text = f"records {end} to {chunk.first - 1} are missing"
                self._damages.append(Damage("journal", text, name))
                return
            end = chunk.end

    def _see_ids(self, changes: Iterable[Change]) -> None:
        """Ids of messages that are gone again must not come a second time either."""
        ids = (each.id for each in changes if isinstance(each, StoredMessage | MessageRemoved))
        self.last_id = max(self.last_id, *ids, 0)

    def _count_queue(self, entry: IndexEntry, memtable: QueueMemtable) -> None:
        entry.messages += len(memtable.rows) - len(memtable.removed)
        entry.bytes += memtable.row_bytes - memtable.removed_bytes
        entry.keys += memtable.keys_added
        if memtable.mode is not None:
            entry.mode = memtable.mode


def _effective_rewrite(
    records: list[tuple[int, Record]], frozen_at: int
) -> tuple[int, Record] | None:
    """The latest whole rewrite since the last flush froze the memtable, or that flush's rest."""
    counts = None
    for each in records:
        record = each[1]
        is_whole = record.rewrite in (Rewrite.WHOLE, Rewrite.MENDED) and record.lsn > frozen_at
        if is_whole or (record.rewrite is Rewrite.REST and record.lsn == frozen_at):
            counts = each
    return counts
