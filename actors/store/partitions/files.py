"""Everything behind the journal: the partitions' files, the catalog, and old segments.

Used by one thread at a time: by recovery, and by the worker for partitions from then on.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple, TypeVar

import msgspec

from millpond.actors.store.catalog_copy import write_copy
from millpond.actors.store.changes import (
    Chunk,
    ColdReference,
    LogSnapshot,
    PartitionKind,
    Snapshot,
)
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.index import Memtable
from millpond.actors.store.interface import Fault, Seek
from millpond.actors.store.journal.segments import Segment
from millpond.actors.store.journal.writer import segment_path
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.partitions.catalog import (
    CATALOG,
    GENERATION,
    ID_MARK,
    MISSING,
    Catalog,
    check_listed,
    rebuild,
)
from millpond.actors.store.partitions.file_pool import FilePool, file_name
from millpond.actors.store.partitions.log_tables import LocalBytes
from millpond.actors.store.partitions.metadata import PartitionMetadata
from millpond.actors.store.partitions.partition import Damaged, Partition, ScrubPoint
from millpond.actors.store.partitions.sqlite import UnknownFormat
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.repair.quarantine import Damage, write_report
from millpond.actors.store.snapshot import FilesSnapshot, StoreSnapshot

log = logging.getLogger(__name__)

MADE_ANEW = "it was damaged, and is made anew from the files and what the node knows"

T = TypeVar("T")


class FlushJob(msgspec.Struct, frozen=True):
    """A memtable on its way to its file: all changes up to `applied`, except those in the rewrite
    of lsn `frozen_at`. `is_last`: nothing else is stored, so an empty file is not needed."""

    name: bytes
    kind: PartitionKind
    memtable: Memtable
    applied: int
    frozen_at: int
    is_last: bool


class FileJob:
    """A job for the worker that reads and writes files.

    It runs off the loop; `done` gets its result in the loop, or the fault that the disk had.
    `name` is the partition's, for the log; None if the job is for all of them.
    """

    __slots__ = ("_done", "_result", "_run", "damage", "name")

    def __init__(
        self,
        run: Callable[[], Any],
        done: Callable[[Any], None] | None = None,
        *,
        name: bytes | None = None,
    ) -> None:
        self._run = run
        self._done = done
        self.name = name
        self.damage: str | None = None
        """The damage of the partition; None: there is none."""
        self._result: Any = None

    def run(self) -> None:
        """Run in the worker's thread; errors of the disk become faults here."""
        try:
            self._result = self._run()
        except Damaged as exc:
            self.damage = str(exc)
            self._result = Fault.DAMAGED
        except (sqlite3.Error, OSError) as exc:
            log.error("partition not read or written: name=%r error=%s", self.name, exc)
            self._result = Fault.UNREADABLE

    def report(self) -> None:
        """Give the result, in the loop's thread."""
        if self._done is not None:
            self._done(self._result)

    def crashed(self) -> None:
        """Report that the job raised something else."""
        self._result = Fault.UNREADABLE
        self.report()


class OldestLocal(NamedTuple):
    """The bytes of a log, and the oldest of its chunks that are in its file."""

    bytes: LocalBytes
    chunks: list[Chunk]


class PartitionFiles:
    """The files of all partitions, with their catalog. `facts` are those that the catalog has.

    The methods raise Damaged, sqlite3.Error and OSError; the journal's writer changes the list of
    segments from its own thread, under the catalog's lock.
    """

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        pool: FilePool,
        catalog: Catalog,
        facts: Mapping[str, int],
        names: Iterable[bytes] = (),
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._pool = pool
        self._catalog = catalog
        self._facts = dict(facts)
        self._lock = RLock()
        self._segments = catalog.segments()
        self._marks = {name: n for name, n in catalog.marks().items() if name != GENERATION}
        self._names = set(names)
        """The partitions that have a file, for a catalog that has to be made anew."""
        self._found: list[Damage] = []
        self._is_catalog_lost = False
        self._may_rebuild = True
        self._partitions: list[PartitionMetadata] = []
        self._removed: list[bytes] = []
        self._is_marked = False
        self._snapshot: FilesSnapshot | None = None

    def mark(self, names: Iterable[tuple[bytes, PartitionKind]]) -> None:
        """Mark these partitions in the catalog before their files change: after a crash the files
        count, not the catalog."""
        self._partitions.clear()
        self._removed.clear()
        self._is_marked = False
        self._with_catalog(lambda catalog: catalog.mark(names))
        self._is_marked = True

    def apply(self, flush: FlushJob) -> bool:
        """Write a memtable to its file. False: nothing is left in it, and it is gone."""
        if not self._is_marked:
            raise OSError("the catalog could not be written, so the files must not be")
        name, pool, content = (
            flush.name,
            self._pool,
            (flush.memtable, flush.applied, flush.frozen_at),
        )
        self._keep(name)
        try:
            partition = self._existing(name, flush.kind)
            if partition is not None:
                metadata = partition.apply(*content)
            else:
                metadata = pool.make(name, flush.kind, *content)
        except BaseException as exc:
            pool.forget(name)
            if self._snapshot is not None and not isinstance(exc, Damaged):
                # It may be that the disk is full of what a snapshot keeps.
                self._snapshot.lose(f"the files of the node cannot be written: {exc}")
            raise
        if flush.is_last and _is_over(metadata, flush.memtable):
            self._removed.append(name)
            return False
        self._names.add(name)
        self._partitions.append(metadata)
        return True

    def record(self) -> None:
        """Enter what was applied since `mark` in the catalog, and remove empty files.

        The catalog says first that such a file may be missing: one that is listed and missing is
        damage.
        """
        removed = self._removed
        self._with_catalog(lambda catalog: catalog.record(self._partitions, [], {}))
        if removed:
            self._with_catalog(lambda catalog: catalog.retire(removed))
            for name in removed:
                self._keep(name)
                self._pool.remove(name)
            self._names.difference_update(removed)
            self._with_catalog(lambda catalog: catalog.record([], removed, {}))
        self._may_rebuild = True

    # A snapshot.

    def begin_snapshot(self, last_segment: int, stored_lsn: int) -> StoreSnapshot:
        """The files as they are now, the catalog, and the segments up to this one, which are
        complete and have everything up to `stored_lsn`, unless there are later ones. Changes of
        files keep what the snapshot has until `end_snapshot`."""
        with self._lock:
            segments = [row for number, row in self._segments.items() if number <= last_segment]
            later = [row for number, row in self._segments.items() if number > last_segment]
            catalog = self._with_catalog(lambda catalog: catalog.copy(2**62))
        if catalog is None or not all(row.is_complete for row in segments):
            raise OSError("a segment of the journal could not be completed")
        self._snapshot = FilesSnapshot(self._pool.paths(), self._disk)
        lsn = min((row.first_lsn - 1 for row in later), default=stored_lsn)
        numbers = [row.number for row in later]
        return StoreSnapshot(lsn, segments, numbers, catalog.data, self._snapshot)

    def end_snapshot(self) -> None:
        """Keep nothing more for a snapshot; nothing happens if there is none."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.lose("it is over")

    def _keep(self, name: bytes) -> None:
        if self._snapshot is not None:
            self._snapshot.keep(self._pool.path(name))

    def _with_catalog(self, step: Callable[[Catalog], T]) -> T:
        """A catalog that turns out to be damaged is made anew at once, as a restart would do."""
        with self._lock:
            try:
                if not self._is_catalog_lost:
                    return step(self._catalog)
            except UnknownFormat:
                raise
            except Damaged as exc:
                # It reads every file: not again before one that was made has proved itself.
                if not self._may_rebuild:
                    raise
                log.error("catalog damaged, making it anew: %s", exc)
            self._rebuild_catalog()
            return step(self._catalog)

    def check_catalog(self) -> None:
        """Look at everything in the catalog, and make it anew if something is wrong. The journal's
        writer waits meanwhile."""

        def check(catalog: Catalog) -> None:
            if wrong := catalog.verify():
                raise Damaged(wrong[0])

        self._with_catalog(check)

    def mend_catalog(self) -> None:
        """Make the catalog anew if the journal's writer found it damaged."""
        self._with_catalog(lambda catalog: None)

    # The list of segments, for the journal's writer.

    @property
    def generation(self) -> int:
        return self._catalog.generation

    @property
    def id_mark(self) -> int:
        return self._marks.get(ID_MARK, 0)

    def begin(self, opened: Segment, completed: Segment | None) -> None:
        self._change_segments([opened] if completed is None else [completed, opened], [], {})

    def complete(self, segment: Segment) -> None:
        self._change_segments([segment], [], {})

    def forget(self, number: int) -> None:
        self._change_segments([], [number], {})

    def reserve_ids(self, mark: int) -> None:
        self._change_segments([], [], {ID_MARK: mark})

    def _change_segments(
        self, written: list[Segment], forgotten: list[int], marks: dict[str, int]
    ) -> None:
        """Change the list, in the catalog and in memory. Raises OSError: only the thread that reads
        files may make a damaged catalog anew."""
        with self._lock:
            if self._is_catalog_lost:
                raise OSError("the catalog is damaged, and is made anew")
            try:
                self._catalog.change_segments(written, forgotten, marks)
            except Damaged as exc:
                log.error("catalog damaged: %s", exc)
                self._is_catalog_lost = True
                self._catalog.close()
                raise OSError(f"the catalog is damaged: {exc}") from exc
            except sqlite3.Error as exc:
                raise OSError(f"the catalog cannot be written: {exc}") from exc
            self._segments.update((each.number, each) for each in written)
            for number in forgotten:
                self._segments.pop(number, None)
            self._marks.update(marks)

    def _rebuild_catalog(self) -> None:
        """Make the catalog from the files and the facts; after a crash a restart makes it."""
        self._may_rebuild = False
        if not self._is_catalog_lost:
            self._is_catalog_lost = True
            self._catalog.close()
        self._pool.close()
        catalog, unreadable = rebuild(self._folder / CATALOG, self._pool, self._disk)
        try:
            names = {self._pool.path(name): name for name in self._names}
            damages = [Damage(CATALOG, MADE_ANEW)]
            damages += (Damage(file.name, text, names.get(file)) for file, text in unreadable)
            damages += (
                Damage(file_name(name), MISSING, name)
                for name in sorted(self._names - catalog.partitions().keys())
                if not self._pool.has(name)
            )
            for damage in damages:
                self._report(damage)
            catalog.resume(self._catalog.generation)
            catalog.record([], [], self._facts)
            catalog.change_segments(self._segments.values(), (), self._marks)
        except BaseException:
            catalog.close()
            raise
        self._catalog = catalog
        self._is_catalog_lost = False

    def _report(self, damage: Damage) -> None:
        write_report(self._folder / "damaged", self._disk, damage)
        self._found.append(damage)

    def take_damages(self) -> list[Damage]:
        """The damages that were found since the last call. Any thread may call."""
        found, self._found = self._found, []
        return found

    def drop_segment(self, number: int) -> None:
        """Remove a segment that is not needed. Segments are removed in their order, because a later
        one may end a rewrite that an older one begins."""
        self.forget(number)
        journal = self._folder / "journal"
        self._disk.unlink(segment_path(journal, number))
        self._disk.sync_folder(journal)

    def load(self, name: bytes) -> Snapshot:
        """The content of a queue's file."""
        partition = self._existing(name, PartitionKind.QUEUE)
        return partition.load() if partition is not None else Snapshot()

    def log_snapshot(self, name: bytes) -> LogSnapshot:
        """The metadata that the file of a log has."""
        partition = self._existing(name, PartitionKind.LOG)
        return partition.log_snapshot() if partition is not None else LogSnapshot()

    def read(self, name: bytes, seek: Seek) -> list[Chunk]:
        """Chunks that the file of a log has."""
        partition = self._existing(name, PartitionKind.LOG)
        return partition.read(seek) if partition is not None else []

    # Cold chunks.

    def oldest_local(
        self, name: bytes, keep_bytes: int, bytes_max: int, count_max: int
    ) -> OldestLocal:
        """The bytes of a log, and of the chunks in its file the oldest, up to these limits, beyond
        the newest `keep_bytes`. None if that is less than would make an object."""
        partition = self._existing(name, PartitionKind.LOG)
        if partition is None:
            return OldestLocal(LocalBytes(0, 0), [])
        found = partition.local_bytes()
        excess = found.local - keep_bytes
        if excess < min(bytes_max, max(keep_bytes // 4, 1)):
            return OldestLocal(found, [])
        return OldestLocal(found, partition.oldest_local(min(excess, bytes_max), count_max))

    def make_cold(self, name: bytes, moved: Sequence[tuple[Chunk, ColdReference]]) -> LocalBytes:
        """Put references in the place of chunks' data; gives the bytes of the log after that.

        The log stays what it was, so the catalog has nothing to say of it, and an older copy of the
        file is as good.
        """
        partition = self._existing(name, PartitionKind.LOG)
        if partition is None:
            return LocalBytes(0, 0)
        self._keep(name)  # as the snapshot has it
        try:
            partition.make_cold(moved)
            return partition.local_bytes()
        except BaseException:
            self._pool.forget(name)
            raise

    def next_cold(self, name: bytes, sequence: int) -> ColdReference | None:
        """The reference of the first cold chunk from a sequence on."""
        partition = self._existing(name, PartitionKind.LOG)
        return None if partition is None else partition.next_cold(sequence)

    # The scrub.

    def names(self) -> list[bytes]:
        """The partitions that have a file."""
        return sorted(self._names)

    def complete_segments(self) -> list[int]:
        """The numbers of the segments that nothing is written to."""
        with self._lock:
            return [number for number, row in self._segments.items() if row.is_complete]

    def segment(self, number: int) -> Segment | None:
        """The row of a segment; None if it is not listed."""
        return self._segments.get(number)

    def scrub(
        self, name: bytes, point: ScrubPoint | None, bytes_max: int
    ) -> tuple[int, ScrubPoint | None]:
        """Read a slice of a file from `point` on. Gives the bytes read, and where to go on."""
        listed = self._with_catalog(lambda catalog: catalog.row(name))
        partition = None if listed is None else self._existing(name, listed.metadata.kind)
        if partition is None:
            return 0, None
        size = self._disk.weight(self._pool.path(name))
        if point is None and size <= bytes_max:
            if wrong := partition.verify():
                raise Damaged("; ".join(wrong[:10]))
            return size, None
        return partition.scrub(point, bytes_max)

    def _existing(self, name: bytes, kind: PartitionKind) -> Partition | None:
        """The partition, if the catalog lists it; a file that is opened is compared with its row.

        Raises Damaged if the listed file is missing, or is another one.
        """
        if self._pool.is_open(name):
            return self._pool.existing(name, kind)
        try:
            listed = self._with_catalog(lambda catalog: catalog.row(name))
        except Damaged as exc:
            raise OSError(f"the catalog is damaged: {exc}") from exc
        partition = self._pool.existing(name, kind)
        try:
            check_listed(listed, None if partition is None else partition.metadata)
        except BaseException:
            self._pool.forget(name)
            raise
        return partition

    def save_facts(self, facts: dict[str, int]) -> None:
        """Keep facts of the node."""
        with self._lock:
            self._catalog.record([], [], facts)
            self._facts.update(facts)

    def copy_catalog(self) -> None:
        """Leave a copy of the catalog, to which nothing is written after that, unless it is too
        large."""
        try:
            with self._lock:
                copy = None if self._is_catalog_lost else self._catalog.copy()
            if copy is not None:
                write_copy(self._folder, self._disk, copy)
        except (Damaged, sqlite3.Error, OSError) as exc:
            log.warning("catalog not copied: error=%s", exc)

    def close(self) -> None:
        self._pool.close()
        self._catalog.close()


def _is_over(metadata: PartitionMetadata, memtable: Memtable) -> bool:
    """True: nothing needs the file any more."""
    match memtable:
        case QueueMemtable():
            return not metadata.messages and not metadata.keys
        case LogMemtable():
            return memtable.is_fresh and not memtable.chunks and not memtable.metadata
