"""Everything behind the journal: the partitions' files, the catalog, and old segments.

Used by one thread at a time: by recovery, and by the worker for partitions from then on.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from millpond.actors.store.changes import Chunk, LogSnapshot, PartitionKind, Snapshot
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.index import Memtable
from millpond.actors.store.interface import Fault, Seek
from millpond.actors.store.journal.writer import segment_path
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.partitions.catalog import CATALOG, Catalog, rebuild
from millpond.actors.store.partitions.file_pool import FilePool
from millpond.actors.store.partitions.metadata import PartitionMetadata
from millpond.actors.store.partitions.partition import Damaged
from millpond.actors.store.partitions.sqlite import UnknownFormat
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.repair.quarantine import Damage, write_report

log = logging.getLogger(__name__)


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

    __slots__ = ("_done", "_name", "_result", "_run")

    def __init__(
        self,
        run: Callable[[], Any],
        done: Callable[[Any], None] | None = None,
        *,
        name: bytes | None = None,
    ) -> None:
        self._run = run
        self._done = done
        self._name = name
        self._result: Any = None

    def run(self) -> None:
        """Run in the worker's thread; errors of the disk become faults here."""
        try:
            self._result = self._run()
        except Damaged as exc:
            log.error("partition damaged: name=%r error=%s", self._name, exc)
            self._result = Fault.DAMAGED
        except (sqlite3.Error, OSError) as exc:
            log.error("partition not read or written: name=%r error=%s", self._name, exc)
            self._result = Fault.UNREADABLE

    def report(self) -> None:
        """Give the result, in the loop's thread."""
        if self._done is not None:
            self._done(self._result)

    def crashed(self) -> None:
        """Report that the job raised something else."""
        self._result = Fault.UNREADABLE
        self.report()


class PartitionFiles:
    """The files of all partitions, with their catalog. `facts` are those that the catalog has.

    The methods raise Damaged, sqlite3.Error and OSError.
    """

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        pool: FilePool,
        catalog: Catalog,
        facts: Mapping[str, int],
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._pool = pool
        self._catalog = catalog
        self._facts = dict(facts)
        self._is_catalog_lost = False
        self._may_rebuild = True
        self._partitions: list[PartitionMetadata] = []
        self._removed: list[bytes] = []
        self._is_marked = False

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
        try:
            if pool.has(name):
                metadata = pool.open(name, flush.kind).apply(*content)
            else:
                metadata = pool.make(name, flush.kind, *content)
        except BaseException:
            pool.forget(name)
            raise
        if flush.is_last and _is_over(metadata, flush.memtable):
            pool.remove(name)
            self._removed.append(name)
            return False
        self._partitions.append(metadata)
        return True

    def record(self) -> None:
        """Enter what was applied since `mark` in the catalog."""
        self._with_catalog(lambda catalog: catalog.record(self._partitions, self._removed, {}))
        self._may_rebuild = True

    def _with_catalog(self, step: Callable[[Catalog], None]) -> None:
        """A catalog that turns out to be damaged is made anew at once, as a restart would do."""
        try:
            if not self._is_catalog_lost:
                step(self._catalog)
                return
        except UnknownFormat:
            raise
        except Damaged as exc:
            # It reads every file: not again before one that was made has proved itself.
            if not self._may_rebuild:
                raise
            log.error("catalog damaged, making it anew: %s", exc)
        self._rebuild_catalog()
        step(self._catalog)

    def _rebuild_catalog(self) -> None:
        """Make the catalog from the files and the facts; after a crash a restart makes it."""
        self._may_rebuild = False
        if not self._is_catalog_lost:
            self._is_catalog_lost = True
            self._catalog.close()
        self._pool.close()
        catalog, unreadable = rebuild(self._folder / CATALOG, self._pool, self._disk)
        try:
            for file, text in unreadable:
                log.error("damaged: name=None where=%s: %s", file.name, text)
                write_report(self._folder / "damaged", self._disk, Damage(file.name, text))
            catalog.record([], [], self._facts)
        except BaseException:
            catalog.close()
            raise
        self._catalog = catalog
        self._is_catalog_lost = False

    def drop_segment(self, number: int) -> None:
        """Remove a segment that is not needed. Segments are removed in their order, because a later
        one may end a rewrite that an older one begins."""
        journal = self._folder / "journal"
        self._disk.unlink(segment_path(journal, number))
        self._disk.sync_folder(journal)

    def load(self, name: bytes) -> Snapshot:
        """The content of a queue's file."""
        partition = self._pool.existing(name, PartitionKind.QUEUE)
        return partition.load() if partition is not None else Snapshot()

    def log_snapshot(self, name: bytes) -> LogSnapshot:
        """The metadata that the file of a log has."""
        partition = self._pool.existing(name, PartitionKind.LOG)
        return partition.log_snapshot() if partition is not None else LogSnapshot()

    def read(self, name: bytes, seek: Seek) -> list[Chunk]:
        """Chunks that the file of a log has."""
        partition = self._pool.existing(name, PartitionKind.LOG)
        return partition.read(seek) if partition is not None else []

    def save_facts(self, facts: dict[str, int]) -> None:
        """Keep facts of the node."""
        self._catalog.record([], [], facts)
        self._facts.update(facts)

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
