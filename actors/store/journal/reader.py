"""Reads a whole journal after a stop of any kind, and tells torn tails from damage.

Later groups tell up to where the journal was synced (`synced_lsn`). A gap in what was never synced
is a torn tail: no caller was promised anything of it, and it is cut. A gap in what was synced is
damage: it is reported, and its partition is not served.

The list of segments and the chain of their headers tell what there was: a segment that is missing,
foreign, zeroed or too short is damage of the names that had records in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from millpond.actors.store.changes import PartitionKind
from millpond.actors.store.checksum import crc32
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.journal.format import (
    GROUP_SIZE,
    HEADER_SIZE,
    BadHeader,
    Cut,
    Gap,
    Header,
    Record,
    Scan,
    decode_header,
    merge_cuts,
)
from millpond.actors.store.journal.segments import Link, Segment, listable
from millpond.actors.store.journal.writer import SUFFIX, JournalTail, segment_path
from millpond.actors.store.repair.quarantine import Damage


class SegmentsKnown(msgspec.Struct, frozen=True):
    """The knowledge of the catalog about the journal.

    `rows` is None if there is no list: the catalog is of an older version, or was made anew.
    `proven_lsn` was on the disk for sure, because a file has it; up to `accepted_lsn` the loss of
    records is reported already. `generation` is the catalog's.
    """

    rows: Mapping[int, Segment] | None = None
    proven_lsn: int = 0
    accepted_lsn: int = 0
    generation: int = 0


class Loss(msgspec.Struct, frozen=True):
    """Records that are missing, and whose names cannot be read: those with lsns above `after_lsn`
    and up to `last_lsn`, in `size` bytes. `names` may have lost something, with the last lsn that
    each had there; None: any name may."""

    where: str
    text: str
    names: Mapping[bytes, int] | None
    after_lsn: int
    last_lsn: int
    size: int


class JournalContents(msgspec.Struct):
    """The contents of a journal: `records` in order; `segments` maps numbers to bytes on the disk.

    `damaged_lsns`: the last record of a partition that is damaged, by name; `damaged_kinds`: what
    such a partition is. `losses` have no owner that can be read. `completed` are the rows of the
    segments that are there, `missing` those of the list that are not; `generation` is the highest
    in headers.
    """

    records: list[tuple[int, Record]] = []
    segments: dict[int, int] = {}
    damages: list[Damage] = []
    damaged_lsns: dict[bytes, int] = {}
    damaged_kinds: dict[bytes, PartitionKind] = {}
    torn_bytes: int = 0
    tail: JournalTail = JournalTail()
    last_id: int = 0
    synced_lsn: int = 0
    losses: list[Loss] = []
    completed: list[Segment] = []
    missing: list[int] = []
    generation: int = 0
    id_mark: int = 0


def segment_numbers(folder: Path, disk: Disk) -> list[int]:
    """The segments there are, ascending."""
    names = (name.removesuffix(SUFFIX) for name in disk.names(folder) if name.endswith(SUFFIX))
    return sorted(int(name) for name in names if name.isdecimal())


NOTHING_KNOWN = SegmentsKnown()


def read_journal(folder: Path, disk: Disk, known: SegmentsKnown = NOTHING_KNOWN) -> JournalContents:
    """Every record that counts, in order. Raises UnknownVersion, OSError; changes nothing."""
    return _Reader(folder, disk, known).read()


def _name_of(number: int) -> str:
    return f"{number:020}{SUFFIX}"


class _Reader:
    """Reads one journal. `_rows` are the segments that there must be, with what is known of them:
    those of the list, or those that a later header is chained to."""

    def __init__(self, folder: Path, disk: Disk, known: SegmentsKnown) -> None:
        self._folder = folder
        self._disk = disk
        self._known = known
        self._found = JournalContents(synced_lsn=known.proven_lsn)
        self._numbers = segment_numbers(folder, disk)
        self._rows: dict[int, Segment] = dict(known.rows or {})
        self._ignored: set[int] = set()
        self._headless: set[int] = set()
        """The segments whose header is damaged, and is replaced by what their row knows."""
        self._gaps: list[tuple[int, Gap]] = []
        self._scans: dict[int, Scan] = {}

    def read(self) -> JournalContents:
        found = self._found
        headers = self._headers()
        self._follow_chain(headers)
        self._find_missing()
        for number in self._ignored:
            del headers[number]
        cuts = merge_cuts(headers)
        for number, header in headers.items():
            self._read_segment(number, header, cuts)
        self._classify_gaps(cuts)
        lsn = max((scan.last_lsn for scan in self._scans.values()), default=0)
        if found.records:
            lsn = max(header.first_lsn - 1 for header in headers.values())
            lsn = max(lsn, found.records[-1][1].lsn)
        self._check_end(lsn)
        self._complete(cuts)
        lsn = max(lsn, self._known.proven_lsn, *(row.last_lsn for row in self._rows.values()), 0)
        number = max((*self._numbers, *self._rows), default=0)
        last = max((each for each in found.completed), key=_number, default=None)
        previous = Link() if last is None else last.link
        found.tail = JournalTail(number, lsn, cuts, 0, previous)
        return found

    def _headers(self) -> dict[int, Header]:
        """Headers by number. A segment without one was never used, unless there is more in it, or
        it is listed."""
        found, headers = self._found, dict[int, Header]()
        for number in self._numbers:
            data = self._disk.read(segment_path(self._folder, number))
            row = self._rows.get(number)
            found.segments[number] = 0
            try:
                header = decode_header(data)
            except BadHeader as exc:
                is_blank = data.count(0, HEADER_SIZE) == max(len(data) - HEADER_SIZE, 0)
                if row is not None and not is_blank and row.salt:
                    # The row knows enough to read what follows.
                    text = f"{exc}; the catalog knows how to read the rest"
                    found.damages.append(Damage(_name_of(number), text))
                    headers[number] = Header(number, row.first_lsn, row.salt, row.last_id)
                    self._headless.add(number)
                elif not is_blank and row is None:
                    text = f"{exc}; nothing in it can be read"
                    self._lost(number, text, None, len(data))
                elif row is not None and (row.end > HEADER_SIZE or not row.is_complete):
                    self._lost(number, f"{exc}; it is zeroed or cut off", row, len(data))
                continue
            if row is not None and (header.salt, header.first_lsn) != (row.salt, row.first_lsn):
                self._lost(number, "this is another segment than the one listed", row, 0)
                continue
            found.segments[number] = len(data)
            headers[number] = header
        return headers

    def _follow_chain(self, headers: dict[int, Header]) -> None:
        """What the headers say of the segments before them. Without a list, they are the list."""
        present = [*headers]
        for header in headers.values():
            found, link = self._found, header.previous
            found.generation = max(found.generation, header.generation)
            found.id_mark = max(found.id_mark, header.id_mark)
            row = self._rows.get(link.number)
            if row is not None and not row.is_complete:
                self._rows[link.number] = msgspec.structs.replace(
                    row, end=link.end, crc=link.crc, last_lsn=header.first_lsn - 1
                )
            elif row is None and self._known.rows is None and link.number >= min(present):
                before = headers.get(link.number)
                salt, first = (before.salt, before.first_lsn) if before is not None else (0, 0)
                last = header.first_lsn - 1
                self._rows[link.number] = Segment(
                    link.number, salt, first, link.end, link.end, link.crc, last
                )
        if self._known.rows is None:
            return
        for number, header in headers.items():
            is_next = number > max(self._rows, default=0)
            if number not in self._rows and not (is_next and header.previous.number in self._rows):
                self._ignored.add(number)  # it was never listed: nothing in it was acknowledged

    def _find_missing(self) -> None:
        for number, row in self._rows.items():
            if number not in self._numbers:
                self._found.missing.append(number)
                if row.end > HEADER_SIZE or not row.is_complete:
                    self._lost(number, "the segment is missing", row, 0)

    def _lost(self, number: int, text: str, row: Segment | None, size: int) -> None:
        """All of a segment is lost."""
        if row is None:
            # Nothing is known of it: it was perhaps never listed.
            if self._known.rows is None:
                last = self._known.proven_lsn
                self._found.losses.append(Loss(_name_of(number), text, None, 0, last, size))
            return
        self._found.missing.append(number)
        names = row.names if row.is_complete else None
        size = row.end if row.is_complete else row.size_max
        after, last = row.first_lsn - 1, row.last_lsn
        self._found.losses.append(Loss(_name_of(number), text, names, after, last, size))

    def _read_segment(self, number: int, header: Header, cuts: Mapping[int, Cut]) -> None:
        found = self._found
        data = self._disk.read(segment_path(self._folder, number))
        row = self._rows.get(number)
        end = None
        if number in cuts:
            end = cuts[number].end
        elif row is not None and row.is_complete:
            end = row.end  # what follows was torn off by a crash
        scan = self._scans[number] = Scan(data, end, header)
        found.records += ((number, record) for record in scan.records())
        # Nothing begins a segment before all that came earlier was synced.
        found.synced_lsn = max(found.synced_lsn, scan.synced_lsn, header.first_lsn - 1)
        found.last_id = max(found.last_id, header.last_id)
        if row is None or not row.is_complete:
            self._gaps += ((number, gap) for gap in scan.gaps)
            if row is not None and len(data) < row.size_max:
                text = f"it is cut off: {len(data)} bytes, and {row.size_max} were reserved"
                size, last = row.size_max - len(data), max(scan.last_lsn, self._known.proven_lsn)
                loss = Loss(_name_of(number), text, None, scan.last_lsn, last, size)
                found.losses.append(loss)
            return
        found.synced_lsn = max(found.synced_lsn, row.last_lsn)
        found.last_id = max(found.last_id, row.last_id)
        if len(data) >= row.end and crc32(data[: row.end], 0) == row.crc:
            return
        gaps = [gap for gap in scan.gaps if gap.offset < row.end]
        end = max((gap.offset + gap.size for gap in gaps), default=0)
        if max(end, scan.end) < row.end:
            at = max(end, scan.end)
            gaps.append(Gap(at, row.end - at, scan.last_lsn))
        if not gaps and (number not in self._headless or scan.last_lsn < row.last_lsn):
            text = "its checksum is not the one listed"
            last = row.last_lsn
            loss = Loss(_name_of(number), text, row.names, row.first_lsn - 1, last, row.end)
            found.losses.append(loss)
        self._gaps += ((number, gap) for gap in gaps)

    def _classify_gaps(self, cuts: dict[int, Cut]) -> None:
        """Tell torn tails from damage; what follows a torn tail does not count."""
        found = self._found
        ends = {number: scan.end for number, scan in self._scans.items()}
        for number, gap in self._gaps:
            row = self._rows.get(number)
            is_complete = row is not None and row.is_complete
            if not is_complete and number in cuts and gap.offset >= cuts[number].synced:
                continue  # the disk had failed, and what was there was said again
            if is_complete or gap.after_lsn < found.synced_lsn:
                self._damaged(number, gap, row)
                continue
            found.torn_bytes = max(ends[number] - gap.offset, gap.size)
            found.torn_bytes += sum(end for later, end in ends.items() if later > number)
            found.records = [each for each in found.records if each[1].lsn <= gap.after_lsn]
            cuts[number] = Cut(gap.offset, gap.offset)
            for later in found.segments:
                if later > number:
                    cuts[later] = Cut(0, 0)
            return

    def _damaged(self, number: int, gap: Gap, row: Segment | None) -> None:
        found = self._found
        where = f"{_name_of(number)} at byte {gap.offset}"
        text = f"{gap.size} bytes are not what was written"
        # The head of a group without records looks like that of a record without a name.
        if gap.owner:
            damage = Damage(where, text, gap.owner, records_max=gap.size)
            found.damages.append(damage)
            found.damaged_lsns[gap.owner] = gap.after_lsn + 1
            found.damaged_kinds[gap.owner] = gap.kind
        elif gap.size <= GROUP_SIZE:
            # Too few for a record: the head of a group, or bytes between groups.
            found.damages.append(Damage(where, text))
        else:
            names = row.names if row is not None and row.is_complete else None
            later = (each.lsn for _, each in found.records if each.lsn > gap.after_lsn)
            last = min(later, default=max(found.synced_lsn, gap.after_lsn) + 1) - 1
            found.losses.append(Loss(where, text, names, gap.after_lsn, last, gap.size))

    def _check_end(self, lsn: int) -> None:
        """Something knows of records behind the last one that is there."""
        found, known = self._found, self._known
        if max(lsn, known.accepted_lsn) >= known.proven_lsn or found.losses:
            return
        newest = max(self._rows, default=0)
        size = max((row.size_max for row in self._rows.values()), default=0)
        text = f"the journal ends at lsn {lsn}, and a file has changes up to {known.proven_lsn}"
        where = _name_of(newest) if newest else "journal"
        found.losses.append(Loss(where, text, None, lsn, known.proven_lsn, size))

    def _complete(self, cuts: Mapping[int, Cut]) -> None:
        """The rows of all segments as they are now, so that later losses are found."""
        found = self._found
        names: dict[int, dict[bytes, int]] = {number: {} for number in self._scans}
        for number, record in found.records:
            names[number][record.name] = record.lsn
        places = [each.where for each in found.damages] + [each.where for each in found.losses]
        harmed = {int(where[:20]) for where in places if where[:20].isdigit()}
        for number, scan in self._scans.items():
            row = self._rows.get(number)
            is_listed = row is not None and self._known.rows is not None
            if is_listed and row is not None and row.is_complete and number not in harmed:
                listed = (self._known.rows or {})[number]
                if listed.is_complete:
                    found.completed.append(listed)
                    continue
            data = self._disk.read(segment_path(self._folder, number))
            end = min(cuts[number].end if number in cuts else scan.end, len(data))
            end = max(end, HEADER_SIZE) if row is None or not row.is_complete else row.end
            end = min(end, len(data))
            found.completed.append(
                Segment(
                    number,
                    scan.header.salt,
                    scan.header.first_lsn,
                    end,
                    end,
                    crc32(data[:end], 0),
                    max(names[number].values(), default=scan.header.first_lsn - 1),
                    max(found.last_id, 0),
                    listable(names[number]),
                    is_noted=number in harmed,
                )
            )


def _number(segment: Segment) -> int:
    return segment.number
