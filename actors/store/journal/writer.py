"""The journal: segments that groups of records are appended to, in the worker's thread.

A group is written with one call and synced once. After a failed write or sync the segment is closed
for ever after the last group that was stored, and the next segment says so (`cuts`); until that one
is durable, nothing is stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from millpond.actors.store.changes import Change
from millpond.actors.store.checksum import crc32
from millpond.actors.store.filesystem import Disk, File
from millpond.actors.store.index import IndexEntry
from millpond.actors.store.interface import Commit, Deferred
from millpond.actors.store.journal.format import (
    GROUP_SIZE,
    HEADER_SIZE,
    Cut,
    Header,
    encode_group,
    encode_header,
)
from millpond.actors.store.journal.segments import (
    ID_MAX,
    ID_STEP,
    Segment,
    SegmentEnd,
    SegmentList,
    listable,
)
from millpond.actors.store.stats import JournalStats

log = logging.getLogger(__name__)

SUFFIX = ".journal"


def segment_path(folder: Path, number: int) -> Path:
    """The path of a segment; the names sort like the numbers."""
    return folder / f"{number:020}{SUFFIX}"


class CommitGroup(msgspec.Struct, eq=False):
    """Records that are written and synced together, and the commit that tells when they are.

    Made in the loop's thread; once submitted, the writer reads all but `writes` and `callbacks`,
    which are the store's: the changes that the records hold, and the calls for when they are stored
    in a segment, or not (None). `replicated` is the commit of those who wait for more than `commit`
    tells (None: nobody does). `epoch` counts failures of the journal: records written after
    others that failed must fail as well. `names` has the last lsn of each name. `begins_segment`:
    the segment before is completed first.
    """

    epoch: int
    last_lsn: int
    last_id: int = 0
    needs_sync: bool = False
    begins_segment: bool = False
    records: list[bytes] = []
    names: dict[bytes, int] = {}
    commit: Commit = msgspec.field(default_factory=Deferred)
    replicated: Commit | None = None
    writes: list[tuple[IndexEntry, int, Sequence[Change]]] = []
    callbacks: list[Callable[[int | None], None]] = []
    _by_entry: dict[IndexEntry, list[Sequence[Change]]] | None = None
    _sorted: int = 0

    def writes_of(self, entry: IndexEntry) -> Sequence[Sequence[Change]]:
        """The writes of one partition. Each write is looked at once, however often and for whom
        this asks: while the disk fails a group may hold very many."""
        by_entry = self._by_entry
        if by_entry is None:
            by_entry = self._by_entry = {}
        for each, _, changes in self.writes[self._sorted :]:
            by_entry.setdefault(each, []).append(changes)
        self._sorted = len(self.writes)
        return by_entry.get(entry, ())


class CommitOutcome(msgspec.Struct, frozen=True):
    """The outcome of a commit: groups of an epoch before `epoch` are not stored.

    `size` is that of the segment they went to so far; `synced_lsn` is on the disk. `error` tells
    why nothing can be written now.
    """

    epoch: int
    segment: int
    size: int
    synced_lsn: int
    error: str | None = None


class JournalTail(msgspec.Struct, frozen=True):
    """The point at which a journal goes on: after segment `number`, `lsn` and the message id
    `last_id`. The next segment is chained to `previous`."""

    number: int = 0
    lsn: int = 0
    cuts: dict[int, Cut] = {}
    last_id: int = 0
    previous: SegmentEnd = SegmentEnd()


class Journal:
    """Appends groups. `syncs` and `groups` count since the start.

    Groups that no caller waits for are synced within `retry_s` seconds by the clock `now`, and a
    failed write is tried again after as long.
    """

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        salt: int,
        tail: JournalTail,
        *,
        segments: SegmentList,
        segment_bytes: int,
        retry_s: float,
        now: Callable[[], float],
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._salt = salt
        self._segments = segments
        self.id_mark = segments.id_mark
        """Message ids up to this one are reserved."""
        self._segment_bytes = segment_bytes
        self._retry_s = retry_s
        self._now = now
        self._unsynced_at = 0.0
        """Since when there is something that was not synced."""
        self._file: File | None = None
        self._row: Segment | None = None
        """The row of the segment that is open."""
        self._is_listed = False
        """True: the open segment is in the list, and may be written to."""
        self._completed: Segment | None = None
        """The row of the segment before, until the list has it."""
        self._previous = tail.previous
        self._crc = self._synced_crc = 0
        """Of everything in the open segment, and of what was synced."""
        self._names: dict[bytes, int] = {}
        self._left: list[Path] = []
        """Segments in which nothing is stored, and which could not be removed."""
        self._number = tail.number
        self._offset = 0
        self._cuts = dict(tail.cuts)
        self._lsn = tail.lsn
        self._last_id = tail.last_id
        self._synced_lsn = tail.lsn
        self._synced_offset = 0
        self._epoch = 0
        self._error: str | None = None
        self._is_at_work = False
        """At the start of a call: the last one crashed."""
        self.groups = 0
        self.syncs = 0
        self.journal_stats = JournalStats()

    def idle_s(self) -> float | None:
        """The time in seconds to wait for groups before something else is to be done."""
        if self._error or self._is_at_work:
            return self._retry_s
        if self._lsn > self._synced_lsn:
            return max(0.0, self._unsynced_at + self._retry_s - self._now())
        return None

    def takes_quickly(self, group: CommitGroup) -> bool:
        """While nothing is being written: will the group need no new segment, which means a sync of
        the one before it, and no message ids of the catalog? Both may take long."""
        end = self._offset + GROUP_SIZE + sum(map(len, group.records))
        has_segment = self._file is not None and self._is_listed
        return has_segment and end <= self._segment_bytes and group.last_id <= self.id_mark

    def commit(self, groups: list[CommitGroup]) -> CommitOutcome:
        """Write and sync `groups`; without any, sync what is not, or try to write again."""
        if self._is_at_work:
            # A fault of ours: what it had in hand may be written, or not, or half of it.
            self._break(OSError("the writer crashed"))
        self._is_at_work = True
        stats = self.journal_stats
        now = stats.began_at = self._now()
        try:
            if not groups and not self._error:
                self._sync(self._offset)
            elif not self._write(groups, now) and self._error:
                self._rotate()
        except OSError as exc:
            self._break(exc)
        else:
            self._error = None
        stats.began_at = 0.0
        self._is_at_work = False
        return CommitOutcome(self._epoch, self._number, self._offset, self._synced_lsn, self._error)

    def _write(self, groups: list[CommitGroup], now: float) -> bool:
        """Write the groups of this epoch together. False: there are none."""
        records: list[bytes] = []
        names: dict[bytes, int] = {}
        last_lsn = last_id = 0
        needs_sync = begins_segment = is_fresh = False
        for group in groups:
            if group.epoch != self._epoch:
                continue
            is_fresh = True
            begins_segment = begins_segment or group.begins_segment
            needs_sync = needs_sync or group.needs_sync
            if group.last_id > last_id:
                last_id = group.last_id
            if group.records:  # one without records may name an lsn that failed
                records += group.records
                names.update(group.names)
                last_lsn = group.last_lsn
        if begins_segment and self._file is not None and self._offset <= HEADER_SIZE:
            begins_segment = False  # nothing is in the one that is open
        if not records:
            if is_fresh:
                self._sync(self._offset)
                if begins_segment:
                    self._rotate()
            return is_fresh
        data = encode_group(self._salt, records, self._lsn + 1, self._synced_lsn)
        if last_id > self.id_mark:
            mark = min(last_id + ID_STEP, ID_MAX)
            self._segments.reserve_ids(mark)
            self.id_mark = mark
        is_full = self._offset > HEADER_SIZE and self._offset + len(data) > self._segment_bytes
        is_larger = self._row is not None and self._offset + len(data) > self._row.size_max
        if self._file is None or not self._is_listed or is_full or is_larger or begins_segment:
            self._rotate(len(data))
            data = encode_group(self._salt, records, self._lsn + 1, self._synced_lsn)
        assert self._file is not None, "rotation opens a segment or raises"
        self._names.update(names)
        self._file.write(data, self._offset)
        self._crc = crc32(data, self._crc)
        self.groups += 1
        if self._lsn == self._synced_lsn:
            self._unsynced_at = now
        elif now >= self._unsynced_at + self._retry_s:
            needs_sync = True  # that of soft changes is overdue, although writes keep coming
        self._lsn = last_lsn
        if last_id > self._last_id:
            self._last_id = last_id
        end = self._offset + len(data)
        done_at = self._sync(end) if needs_sync else self._now()
        self._offset = end
        self.journal_stats.written(len(records), len(data), done_at)
        return True

    def _sync(self, end: int) -> float:
        """Everything up to the offset `end` is on the disk when this returns. Gives the time."""
        now = self._now()
        if self._lsn > self._synced_lsn:
            if self._file is not None:
                began_at = now
                self._file.sync()
                now = self._now()
                self.journal_stats.sync_s.add(now - began_at)
                self.syncs += 1
            self._synced_lsn = self._lsn
            self._synced_offset, self._synced_crc = end, self._crc
        return now

    def _rotate(self, size: int = 0) -> None:
        """Close the segment for the next one, which is on the disk and in the list before anything
        is in it. `size`: the bytes that it has to take at least."""
        self._sync(self._offset)
        if self._is_listed and self._file is not None:
            self._complete(self._offset, self._crc)
            file, self._file = self._file, None
            file.close()
        if self._file is None:
            self._create(max(self._segment_bytes, HEADER_SIZE + size))
        assert self._row is not None, "it was made"
        self._segments.begin(self._row, self._completed)
        self._completed, self._is_listed = None, True
        self._offset = self._synced_offset = HEADER_SIZE
        log.debug("segment opened: number=%d", self._number)
        left, self._left = self._left, []
        for path in left:
            try:
                self._disk.unlink(path)
            except OSError:
                self._left.append(path)
        if self._row.size_max < HEADER_SIZE + size:  # made before, for a smaller group
            self._rotate(size)

    def _create(self, size_max: int) -> None:
        """Make the next segment. Nothing may be in it before it is listed."""
        segments = self._segments
        self._number += 1
        self._offset = self._synced_offset = 0
        self._names = {}
        file = self._disk.create(segment_path(self._folder, self._number), size_max)
        self._file = file
        header = encode_header(
            Header(
                self._number,
                self._lsn + 1,
                self._salt,
                self._last_id,
                self._cuts,
                self._previous,
                segments.generation,
                segments.id_mark,
            )
        )
        file.write(header, 0)
        file.sync()
        self._disk.sync_folder(self._folder)
        self._crc = self._synced_crc = crc32(header)
        self._row = Segment(self._number, self._salt, self._lsn + 1, size_max)

    def _complete(self, end: int, crc: int) -> None:
        """Nothing more is written to the segment: what was synced ends here."""
        assert self._row is not None, "it was listed"
        self._completed = msgspec.structs.replace(
            self._row,
            end=end,
            crc=crc,
            last_lsn=self._synced_lsn,
            last_id=self._last_id,
            names=listable(self._names),
        )
        self._previous = self._completed.link
        self._row, self._is_listed = None, False

    def _break(self, exc: OSError) -> None:
        """The journal failed: nothing after the last stored group counts, and no waiting group is
        stored."""
        if self._error is None:
            log.error("journal failed: segment=%d error=%s", self._number, exc)
        self._error = str(exc)
        self._epoch += 1
        # Records that were written and not synced may be lost: the store writes them again.
        self._lsn = self._synced_lsn
        if self._file is None or (self._row is not None and not self._is_listed):
            return  # a new segment is sound, and waits for the list
        if self._is_listed:
            self._cuts[self._number] = Cut(self._offset, self._synced_offset)
        file, self._file = self._file, None
        try:
            file.close()
            if self._offset <= HEADER_SIZE:
                self._take_back()
        except OSError as again:
            log.warning("segment is left behind: number=%d error=%s", self._number, again)
            if not self._is_listed and self._offset <= HEADER_SIZE:
                self._left.append(segment_path(self._folder, self._number))
        if self._is_listed:
            self._complete(self._synced_offset, self._synced_crc)

    def _take_back(self) -> None:
        """Remove a segment in which nothing is stored: a long failure would leave one a second.

        Should the power fail now it may be back, with what failed in it: it is not in the list, and
        counts for nothing. The next one has its number.
        """
        if self._is_listed:
            self._segments.forget(self._number)
        self._row, self._is_listed = None, False
        self._disk.unlink(segment_path(self._folder, self._number))
        self._cuts.pop(self._number, None)
        self._number -= 1
        self._offset = self._synced_offset = 0

    def close(self) -> None:
        """Sync, close and complete the row of the segment; raises OSError. A last group without
        records says that all was synced, so that what is damaged later is not taken for a torn
        tail."""
        self._sync(self._offset)
        if self._file is not None and self._is_listed:
            mark = encode_group(self._salt, [], self._lsn + 1, self._synced_lsn)
            self._file.write(mark, self._offset)
            self._file.sync()
            self._complete(self._offset + len(mark), crc32(mark, self._crc))
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
        if self._completed is not None and not self._has_unsynced_end(self._completed.number):
            self._segments.complete(self._completed)
        self._completed = None

    def _has_unsynced_end(self, number: int) -> bool:
        """True for a segment that failed and has stored groups behind what was synced. They count
        by the header of the next segment, or because the segment is not complete."""
        cut = self._cuts.get(number)
        return cut is not None and cut.synced < cut.end
