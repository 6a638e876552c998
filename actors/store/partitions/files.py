"""Everything behind the journal: the partitions' files, the catalogue, and old segments.

Used by one thread at a time: by recovery, and by the lane for partitions from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from millpond.actors.store.changes import Chunk, LogSnapshot, PartitionKind, Snapshot
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.index import Memtable
from millpond.actors.store.interface import Seek
from millpond.actors.store.journal.writer import segment_path
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.partitions.catalog import CATALOG, Catalog, rebuild
from millpond.actors.store.partitions.file_pool import FilePool
from millpond.actors.store.partitions.metadata import PartitionMetadata
from millpond.actors.store.partitions.partition import Damaged, Partition
from millpond.actors.store.partitions.sqlite import UnknownFormat
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.repair.quarantine import Damage, write_report

log = logging.getLogger(__name__)


class FlushJob(msgspec.Struct, frozen=True):
    """A layer on its way to its file: all there is up to `applied`, but what a carry of lsn
    `frozen_at` has. `is_last`: nothing else is kept, so an empty file is not needed."""

    name: bytes
    kind: PartitionKind
    layer: Memtable
    applied: int
    frozen_at: int
    is_last: bool


class PartitionFiles:
    """Raises Damaged, sqlite3.Error and OSError. `facts` are those that the catalogue has."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        shelf: FilePool,
        catalogue: Catalog,
        facts: Mapping[str, int],
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._shelf = shelf
        self._catalogue = catalogue
        self._facts = dict(facts)
        self._is_catalogue_lost = False
        self._may_mend = True
        self._outlines: list[PartitionMetadata] = []
        self._removed: list[bytes] = []
        self._is_marked = False

    def mark(self, names: Iterable[tuple[bytes, PartitionKind]]) -> None:
        """These files are about to change: after a crash they are asked themselves."""
        self._outlines.clear()
        self._removed.clear()
        self._is_marked = False
        self._in_catalogue(lambda catalogue: catalogue.mark(names))
        self._is_marked = True

    def apply(self, flush: FlushJob) -> bool:
        """Write a layer to its file. False: nothing is left in it, and it is gone."""
        if not self._is_marked:
            raise OSError("the catalogue could not be written, so the files must not be")
        name, shelf, content = (
            flush.name,
            self._shelf,
            (flush.layer, flush.applied, flush.frozen_at),
        )
        try:
            if shelf.has(name):
                outline = shelf.open(name, flush.kind).apply(*content)
            else:
                outline = shelf.make(name, flush.kind, *content)
        except BaseException:
            shelf.forget(name)
            raise
        if flush.is_last and _is_over(outline, flush.layer):
            shelf.remove(name)
            self._removed.append(name)
            return False
        self._outlines.append(outline)
        return True

    def record(self) -> None:
        """Enter what was applied since `mark` in the catalogue."""
        self._in_catalogue(lambda catalogue: catalogue.record(self._outlines, self._removed, {}))
        self._may_mend = True

    def _in_catalogue(self, step: Callable[[Catalog], None]) -> None:
        """A catalogue that turns out to be damaged is made anew at once, as a restart would do."""
        try:
            if not self._is_catalogue_lost:
                step(self._catalogue)
                return
        except UnknownFormat:
            raise
        except Damaged as exc:
            # It reads every file: not again before one that was made has proved itself.
            if not self._may_mend:
                raise
            log.error("catalogue damaged, making it anew: %s", exc)
        self._make_catalogue()
        step(self._catalogue)

    def _make_catalogue(self) -> None:
        """From what the files say, with the facts; what a crash leaves of it a restart makes."""
        self._may_mend = False
        if not self._is_catalogue_lost:
            self._is_catalogue_lost = True
            self._catalogue.close()
        self._shelf.close()
        catalogue, unreadable = rebuild(self._folder / CATALOG, self._shelf, self._disk)
        try:
            for file, text in unreadable:
                log.error("damaged: name=None where=%s: %s", file.name, text)
                write_report(self._folder / "damaged", self._disk, Damage(file.name, text))
            catalogue.record([], [], self._facts)
        except BaseException:
            catalogue.close()
            raise
        self._catalogue = catalogue
        self._is_catalogue_lost = False

    def drop_segment(self, number: int) -> None:
        """Remove a segment that nobody needs, before any later one goes: those have the end of
        what it began."""
        journal = self._folder / "journal"
        self._disk.unlink(segment_path(journal, number))
        self._disk.sync_folder(journal)

    def load(self, name: bytes) -> Snapshot:
        """What the file of a queue has."""
        partition = self._existing(name, PartitionKind.QUEUE)
        return partition.load() if partition is not None else Snapshot()

    def log_outline(self, name: bytes) -> LogSnapshot:
        """The outline that the file of a log has."""
        partition = self._existing(name, PartitionKind.LOG)
        return partition.log_outline() if partition is not None else LogSnapshot()

    def read(self, name: bytes, seek: Seek) -> list[Chunk]:
        """Chunks that the file of a log has."""
        partition = self._existing(name, PartitionKind.LOG)
        return partition.read(seek) if partition is not None else []

    def _existing(self, name: bytes, kind: PartitionKind) -> Partition | None:
        return self._shelf.existing(name, kind)

    def note(self, facts: dict[str, int]) -> None:
        """Keep facts of the node."""
        self._catalogue.record([], [], facts)
        self._facts.update(facts)

    def close(self) -> None:
        self._shelf.close()
        self._catalogue.close()


def _is_over(outline: PartitionMetadata, layer: Memtable) -> bool:
    """Does nothing need the file any more?"""
    match layer:
        case QueueMemtable():
            return not outline.messages and not outline.keys
        case LogMemtable():
            return layer.is_fresh and not layer.chunks and not layer.metadata
