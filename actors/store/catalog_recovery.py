"""The catalog at a start: opened; where it is lost, damaged or old, the copy of the last clean stop
takes its place, or it is made anew from the files.

Only the catalog proves that a file or the last segment is missing. Without it every partition may
have lost something, also one that nothing is known of: that is reported before a new catalog is
there, and nothing is served until a repair.
"""

from __future__ import annotations

import logging
from pathlib import Path

from millpond.actors.store.catalog_copy import COPY, read_copy
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.journal.reader import segment_numbers
from millpond.actors.store.partitions.catalog import CATALOG, FIRST_SEQUENCE, Catalog, rebuild
from millpond.actors.store.partitions.file_pool import FilePool, remove_beside
from millpond.actors.store.partitions.partition import Damaged
from millpond.actors.store.partitions.sqlite import UnknownFormat
from millpond.actors.store.repair.quarantine import RECORDS_UNKNOWN, Damage, write_report

log = logging.getLogger(__name__)

JOURNAL, PARTITIONS, DAMAGED = "journal", "partitions", "damaged"
"""The folders of a store."""
LOST = "it is lost"
OLD = "an older copy is back"
RESTORED = "the copy of the last clean stop takes its place, and nothing is lost"
MADE_ANEW = "it is made anew from the files and the journal, and does not tell what is missing"


def has_traces(folder: Path, disk: Disk) -> bool:
    """True: a store was in the folder. The first start makes the catalog before these folders; that
    of the journal alone may have been made by an operator."""
    has_folders = not {PARTITIONS, DAMAGED, COPY}.isdisjoint(disk.names(folder))
    return has_folders or bool(segment_numbers(folder / JOURNAL, disk))


def lost_catalog(text: str) -> Damage:
    """The damage of a folder without the catalog that it had."""
    return Damage(CATALOG, text, is_all=True, records_max=RECORDS_UNKNOWN)


def first_sequence_after(now: float) -> int:
    """The first sequence of new logs after such a loss: no lost log has had it. The time makes it
    higher than that of an earlier loss, which only the lost catalog knew."""
    return max(RECORDS_UNKNOWN, int(now * 1e6))


class CatalogRecovery:
    """Opens the catalog of a folder. `damages` are those of the catalog, and files that do not say
    whose they are, where it was made anew: then it proves nothing about the files. `now`: seconds
    since 1970, 0 if unknown."""

    def __init__(self, folder: Path, disk: Disk, pool: FilePool, now: float) -> None:
        self._folder = folder
        self._disk = disk
        self._pool = pool
        self._now = now
        self._may_restore = True
        """True: nothing shows that the copy of the last clean stop is old."""
        self.damages: list[Damage] = []
        self.is_made_anew = False

    def open(self, *, was_used: bool) -> Catalog:
        """The catalog; that of a folder which was never used is empty. A copy that cannot be read
        now only matters where it is needed. Raises OSError, sqlite3.Error."""
        path = self._folder / CATALOG
        if was_used and not self._disk.has(path):
            return self.replace(LOST)
        try:
            catalog = Catalog(path, self._disk)
        except UnknownFormat:
            raise  # of a later version, which knows what is in it
        except Damaged as exc:
            return self.replace(str(exc))
        try:
            copy = read_copy(self._folder, self._disk)
        except OSError as exc:
            log.warning("copy of the catalog not read: error=%s", exc)
            return catalog
        if copy is not None and copy.generation > catalog.generation:
            catalog.close()
            return self.replace(OLD)
        self._may_restore = copy is not None and copy.generation == catalog.generation
        return catalog

    def replace(self, text: str) -> Catalog:
        """Another catalog; `text` says what is wrong with the one that there was. The journal may
        show that this one is old as well. Raises OSError, sqlite3.Error."""
        copy = read_copy(self._folder, self._disk) if self._may_restore else None
        self._may_restore = False
        if copy is None:
            return self._make_anew(text)
        log.error("catalog damaged, restoring it from its copy: %s", text)
        self.damages = [Damage(CATALOG, f"{text}; {RESTORED}")]
        self._pool.close()
        path, disk = self._folder / CATALOG, self._disk
        if disk.has(path):
            disk.unlink(path)
            disk.sync_folder(self._folder)
        remove_beside(path, disk)
        disk.install(path, copy.data)
        try:
            return Catalog(path, disk)
        except UnknownFormat:
            raise
        except Damaged as exc:
            return self._make_anew(str(exc))

    def _make_anew(self, text: str) -> Catalog:
        """A catalog of what the files say of themselves."""
        log.error("catalog damaged, making it anew: %s", text)
        damage = lost_catalog(f"{text}; {MADE_ANEW}")
        # Before the new one is there, which a start after a crash would believe.
        write_report(self._folder / DAMAGED, self._disk, damage)
        self._pool.close()
        marks = {FIRST_SEQUENCE: first_sequence_after(self._now)}
        catalog, unreadable = rebuild(self._folder / CATALOG, self._pool, self._disk, marks)
        self.damages = [damage, *(Damage(file.name, wrong) for file, wrong in unreadable)]
        self.is_made_anew = True
        return catalog
