"""The copy of a snapshot: a data folder as a clean stop at its moment would have left it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from millpond.actors.store.catalog_recovery import JOURNAL, PARTITIONS
from millpond.actors.store.checksum import crc32
from millpond.actors.store.filesystem import Disk, OsDisk
from millpond.actors.store.journal.segments import Segment
from millpond.actors.store.journal.writer import segment_path
from millpond.actors.store.partitions.catalog import CATALOG, Catalog
from millpond.actors.store.partitions.file_pool import BESIDE
from millpond.actors.store.snapshot import SMALL_BYTES_MAX, KeptFile, SnapshotLost, StoreSnapshot


class SnapshotCopy:
    """Writes the snapshot of the store in `source` into the folder `target`, which is made.

    `wrote` is called as bytes are written, with their number, and ends the copy by what it raises;
    `finished` with each file that is whole, which is not synced yet. The methods raise these,
    SnapshotLost, OSError and sqlite3.Error.
    """

    def __init__(
        self,
        source: Path,
        disk: Disk,
        target: Path,
        wrote: Callable[[int], None],
        finished: Callable[[Path], None],
    ) -> None:
        self._source = source
        self._disk = disk
        self._target = target
        self._wrote = wrote
        self._finished = finished

    def copy_segments(self, snapshot: StoreSnapshot) -> None:
        """Copy the journal. The store may let go of its segments after that."""
        folder = self._target / JOURNAL
        folder.mkdir(mode=0o700, parents=True)
        for row in snapshot.segments:
            self._copy_segment(row, folder)

    def _copy_segment(self, row: Segment, folder: Path) -> None:
        path = segment_path(self._source / JOURNAL, row.number)
        try:
            data = self._disk.read(path)
        except FileNotFoundError:
            raise SnapshotLost(f"segment {row.number} of the journal went") from None
        if crc32(data[: row.end], 0) != row.crc and not row.is_noted:
            raise SnapshotLost(f"segment {row.number} of the journal is damaged")
        # The rest was reserved. Behind the end may be groups that were not synced, and count.
        data = data[: max(row.end, len(data.rstrip(b"\0")))]
        target = segment_path(folder, row.number)
        target.write_bytes(data)
        self._wrote(len(data))
        self._finished(target)

    def copy_files(self, snapshot: StoreSnapshot) -> None:
        """Copy the partition files."""
        files = snapshot.files
        (self._target / PARTITIONS).mkdir(mode=0o700, parents=True)
        while (kept := files.take()) is not None:
            with closing(kept):
                self._copy_file(kept, snapshot)

    def _copy_file(self, kept: KeptFile, snapshot: StoreSnapshot) -> None:
        def wrote(size: int) -> None:
            self._wrote(size)
            # While a large file is copied many others may change: small ones come between.
            while (other := snapshot.files.take(bytes_max=SMALL_BYTES_MAX)) is not None:
                with closing(other):
                    self._copy_small(other)

        target = self._path_of(kept)
        kept.copy_to(target, wrote)
        self._finish(target)

    def _copy_small(self, kept: KeptFile) -> None:
        target = self._path_of(kept)
        kept.copy_to(target, self._wrote)
        self._finish(target)

    def _path_of(self, kept: KeptFile) -> Path:
        target = self._target / PARTITIONS / kept.path.parent.name / kept.path.name
        target.parent.mkdir(mode=0o700, exist_ok=True)
        return target

    def _finish(self, target: Path) -> None:
        self._finished(target)
        for end in BESIDE[:1]:  # of a file that SQLite cannot read
            log = target.with_name(target.name + end)
            if log.exists():
                self._finished(log)

    def write_catalog(self, snapshot: StoreSnapshot) -> None:
        """Write the catalog, last of all: a folder without one is not served."""
        path, draft = self._target / CATALOG, self._target / f"{CATALOG}.new"
        draft.write_bytes(snapshot.catalog)
        with closing(Catalog(draft, OsDisk())) as catalog:
            catalog.change_segments(forgotten=snapshot.later)
        draft.replace(path)
        self._wrote(path.stat().st_size)
        self._finished(path)
