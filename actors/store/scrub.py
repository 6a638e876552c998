"""The scrub: reads what nobody requests, so that damage is found while there is still a copy.

A pass reads every partition file and every complete segment of the journal in slices, and makes the
checks of ordinary reads: checksums, joins of chunks, counts, the row of the catalog. It runs in the
thread that reads files; whoever calls `step` sees to the rate.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import deque
from pathlib import Path

import msgspec

from millpond.actors.store.checksum import crc32
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.journal.writer import segment_path
from millpond.actors.store.partitions.file_pool import file_name
from millpond.actors.store.partitions.files import PartitionFiles
from millpond.actors.store.partitions.partition import Damaged, ScrubPoint
from millpond.actors.store.partitions.sqlite import UnknownFormat
from millpond.actors.store.repair.quarantine import Damage

log = logging.getLogger(__name__)


class ScrubSlice(msgspec.Struct):
    """The result of a step: `size` bytes were read. `is_last`: the pass has come to its end.

    `damages` were found; `bad_segments` are numbers of segments that a restart could not read.
    `errors` are those of the disk, where something could not be read now.
    """

    size: int = 0
    is_last: bool = False
    damages: list[Damage] = []
    bad_segments: list[int] = []
    errors: list[sqlite3.Error | OSError] = []


class Scrub:
    """One pass after the other. `progress` is the part of this pass that is done, 0 to 1."""

    def __init__(self, folder: Path, disk: Disk, files: PartitionFiles) -> None:
        self._folder = folder
        self._disk = disk
        self._files = files
        self._items: deque[bytes | int] = deque()
        """The names and segment numbers that are left."""
        self._point: ScrubPoint | None = None
        """The point in the first of them."""
        self._total = 0

    @property
    def progress(self) -> float:
        return 1 - len(self._items) / self._total if self._total else 0.0

    def run(self) -> list[Damage]:
        """A whole pass. Gives what is damaged. Raises OSError, sqlite3.Error where something cannot
        be read now."""
        self._items.clear()
        damages: list[Damage] = []
        is_last = False
        while not is_last:
            done = self.step(2**24)
            if done.errors:
                raise done.errors[0]
            damages += done.damages
            is_last = done.is_last
        return damages

    def step(self, bytes_max: int) -> ScrubSlice:
        """Read about `bytes_max` bytes; a small file and a segment are read whole."""
        done = ScrubSlice()
        if not self._items:
            self._items.extend(self._files.names())
            self._items.extend(self._files.complete_segments())
            self._total, self._point = len(self._items), None
        while self._items and done.size < bytes_max:
            item = self._items[0]
            try:
                if isinstance(item, int):
                    self._read_segment(item, done)
                else:
                    self._read_partition(item, bytes_max - done.size, done)
            except UnknownFormat:
                raise
            except Damaged as exc:
                assert isinstance(item, bytes), "segments raise nothing"
                done.damages.append(Damage(file_name(item), str(exc), item))
                self._point = None
            except (sqlite3.Error, OSError) as exc:
                log.warning("not scrubbed: item=%r error=%s", item, exc)
                done.errors.append(exc)
                self._point = None
            if self._point is None:
                self._items.popleft()
        done.is_last = not self._items
        return done

    def _read_partition(self, name: bytes, bytes_max: int, done: ScrubSlice) -> None:
        size, self._point = self._files.scrub(name, self._point, bytes_max)
        done.size += size

    def _read_segment(self, number: int, done: ScrubSlice) -> None:
        row = self._files.segment(number)
        if row is None:
            return  # removed meanwhile
        path = segment_path(self._folder / "journal", number)
        if not self._disk.has(path):
            text = "the segment is missing"
        else:
            data = self._disk.read(path)
            done.size += len(data)
            if len(data) >= row.end and crc32(data[: row.end], 0) == row.crc:
                return
            text = "its checksum is not the one listed"
        if self._files.segment(number) is not None and not row.is_noted:
            # Everything in it is in memory, and goes elsewhere from there.
            done.damages.append(Damage(path.name, f"{text}; found while the node runs"))
            done.bad_segments.append(number)
