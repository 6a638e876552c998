"""Reads a whole journal after a stop of any kind, and tells torn tails from damage.

Later groups tell up to where the journal was synced (`synced_lsn`). A gap in what was never synced
is a torn tail: no caller was promised anything of it, and it is cut. A gap in what was synced is
damage: it is reported, and its partition is not served. So is a wrong bit in the head of a group
whose records are all right: no torn write leaves that, and the records count.

The list of segments and the chain of their headers tell what there was: a segment that is missing,
foreign, zeroed or too short is damage of the names that had records in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import pairwise
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
    Rewrite,
    Scan,
    begins_group,
    decode_header,
    merge_cuts,
)
from millpond.actors.store.journal.segments import Segment, SegmentEnd, listable
from millpond.actors.store.journal.writer import SUFFIX, JournalTail, segment_path
from millpond.actors.store.repair.quarantine import Damage

PAGE_BYTES = 4096
"""A power failure garbles no more than this of a header that was being written."""


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
    such a partition is. `losses` have no owner that can be read. `torn_segment` is the one with a
    torn end (0: none), and may have bytes in front of it that were never synced. `completed` are
    the rows of the segments that are there, `missing` those of the list that are not; `generation`
    is the highest in headers.
    """

    records: list[tuple[int, Record]] = []
    segments: dict[int, int] = {}
    damages: list[Damage] = []
    damaged_lsns: dict[bytes, int] = {}
    damaged_kinds: dict[bytes, PartitionKind] = {}
    torn_bytes: int = 0
    torn_segment: int = 0
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
            self._cut_unsynced(number, cuts)
        self._order_records()
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
        previous = SegmentEnd() if last is None else last.link
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
                    if not row.is_noted:
                        text = f"{exc}; the catalog knows how to read the rest"
                        found.damages.append(Damage(_name_of(number), text))
                    headers[number] = Header(number, row.first_lsn, row.salt, row.last_id)
                    self._headless.add(number)
                elif not is_blank and row is None:
                    text = f"{exc}; nothing in it can be read"
                    self._lost(number, text, None, len(data))
                    is_newest = number > max(self._rows, default=0)
                    if self._known.rows is not None and is_newest and self._was_written(data):
                        # It was listed, or nothing would have been written behind the header.
                        found.generation = self._known.generation + 1
                elif row is not None and (row.end > HEADER_SIZE or not row.is_complete):
                    self._lost(number, f"{exc}; it is zeroed or cut off", row, len(data))
                continue
            if row is not None and (header.salt, header.first_lsn) != (row.salt, row.first_lsn):
                self._lost(number, "this is another segment than the one listed", row, 0)
                continue
            found.segments[number] = len(data)
            headers[number] = header
        return headers

    def _was_written(self, data: bytes) -> bool:
        """True: there was a group in this segment without a header."""
        rows = self._rows.values()
        lsn = max((max(row.first_lsn - 1, row.last_lsn) for row in rows), default=0)
        return any(data[PAGE_BYTES:]) or begins_group(data, lsn)

    def _follow_chain(self, headers: dict[int, Header]) -> None:
        """Segments that headers name before their own. Without a list, they are the list."""
        found, present = self._found, [*headers]
        for header in headers.values():
            link = header.previous
            found.generation = max(found.generation, self._generation_of(header))
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
        newest = max(self._rows, default=0)
        for number, header in headers.items():
            predecessor = header.previous.number
            if number in self._rows or (number > newest and predecessor in self._rows):
                continue
            self._ignored.add(number)  # it was never listed: nothing in it was acknowledged
            if number > newest and predecessor and self._has_records(header):
                # It was listed before anything was in it, so the list is an older one, whatever
                # the generation says: the write of its page was lost.
                found.generation = max(found.generation, self._known.generation + 1)

    def _generation_of(self, header: Header) -> int:
        """The lowest generation that the catalog may have: a segment is listed after it was made,
        and before anything is in it."""
        is_chained = header.version >= 3 and self._known.rows is not None
        if header.number in self._rows or not is_chained:
            return header.generation
        return header.generation + self._has_records(header)

    def _has_records(self, header: Header) -> bool:
        data = self._disk.read(segment_path(self._folder, header.number))
        return any(True for _ in Scan(data, None, header).records())

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
        lsns = [record.lsn for each, record in found.records if each == number]
        is_disordered = any(one >= other for one, other in pairwise(lsns))
        is_short = number not in self._headless or scan.last_lsn < row.last_lsn
        if is_disordered or (not gaps and is_short):
            # In another order, writes of other places took the places of some.
            text = "its checksum is not the one listed"
            last = row.last_lsn
            loss = Loss(_name_of(number), text, row.names, row.first_lsn - 1, last, row.end)
            found.losses.append(loss)
        self._gaps += ((number, gap) for gap in gaps)

    def _cut_unsynced(self, number: int, cuts: dict[int, Cut]) -> None:
        """Cut a segment at the first gap behind the last sync before the disk failed. Records
        behind the gap do not count, because they depend on lost ones."""
        cut, scan = cuts.get(number), self._scans[number]
        if cut is None:
            return
        gap = next((each for each in scan.gaps if each.offset >= cut.synced), None)
        if gap is not None:
            cuts[number] = Cut(gap.offset, cut.synced)
            found = self._found
            found.records = [
                each for each in found.records if each[0] < number or each[1].lsn <= gap.after_lsn
            ]

    def _order_records(self) -> None:
        """Order what is in wrong places: a group that was written over another, or into another
        segment. Its copy in the right place is the same."""
        records = self._found.records
        if any(one[1].lsn >= other[1].lsn for one, other in pairwise(records)):
            by_lsn = {record.lsn: (number, record) for number, record in records}
            self._found.records = [by_lsn[lsn] for lsn in sorted(by_lsn)]

    def _classify_gaps(self, cuts: dict[int, Cut]) -> None:
        """Tell torn tails from damage; what follows a torn tail does not count."""
        found = self._found
        ends = {number: scan.end for number, scan in self._scans.items()}
        lsns = sorted(each.lsn for _, each in found.records) if self._gaps else []
        rests = {each.lsn for _, each in found.records if each.rewrite is Rewrite.REST}
        overwritten = 0
        for number, gap in self._gaps:
            row = self._rows.get(number)
            is_complete = row is not None and row.is_complete
            if not is_complete and number in cuts and gap.offset >= cuts[number].synced:
                continue  # the disk had failed, and what was there was said again
            is_damage = is_complete or gap.after_lsn < found.synced_lsn or number == overwritten
            # A write that did not arrive as a whole leaves more than a wrong bit in a head.
            is_damage = is_damage or gap.is_whole or gap.is_unused or not gap.size
            if not is_damage and self._is_overwritten(number, gap):
                overwritten, is_damage = number, True
            if is_damage:
                behind = bisect_right(lsns, gap.after_lsn)
                next_lsn = lsns[behind] if behind < len(lsns) else None
                if next_lsn in rests:
                    next_lsn -= 1  # no record has the number before
                self._damaged(number, gap, row, next_lsn)
                continue
            found.torn_segment = number
            found.torn_bytes = max(ends[number] - gap.offset, gap.size)
            found.torn_bytes += sum(end for later, end in ends.items() if later > number)
            found.records = [each for each in found.records if each[1].lsn <= gap.after_lsn]
            cuts[number] = Cut(gap.offset, gap.offset)
            for later in found.segments:
                if later > number:
                    cuts[later] = Cut(0, 0)
            return

    def _is_overwritten(self, number: int, gap: Gap) -> bool:
        """True: in the gap, or in a later one of the segment, stands something that was written to
        another place, or a record from behind the gap stands in an earlier segment. A write that
        did not arrive does not leave that."""
        scan, records = self._scans[number], self._found.records
        if any(at < number and record.lsn > gap.after_lsn for at, record in records):
            return True
        lowest: dict[int, int] = {}
        for each in self._scans.values():
            first_lsn = lowest.get(each.header.salt, each.header.first_lsn)
            lowest[each.header.salt] = min(first_lsn, each.header.first_lsn)
        gaps = [each for at, each in self._gaps if at == number and each.offset >= gap.offset]
        return any(scan.has_misplaced(each, *known) for each in gaps for known in lowest.items())

    def _damaged(self, number: int, gap: Gap, row: Segment | None, next_lsn: int | None) -> None:
        """Note a damage or a loss. `next_lsn` is where the records behind the gap begin, if there
        are any."""
        found = self._found
        where = f"{_name_of(number)} at byte {gap.offset}"
        text = f"{gap.size} bytes are not what was written"
        names = row.names if row is not None and row.is_complete else None
        last = max(found.synced_lsn, gap.after_lsn) if next_lsn is None else next_lsn - 1
        # The size tells nothing where other bytes of the segment were written over records.
        size = gap.size if row is None else max(gap.size, row.end)
        loss = Loss(where, text, names, gap.after_lsn, last, size)
        # The head of a group without records looks like that of a record without a name.
        if gap.owner:
            damage = Damage(where, text, gap.owner, records_max=gap.size)
            found.damages.append(damage)
            found.damaged_lsns[gap.owner] = gap.lsn
            found.damaged_kinds[gap.owner] = gap.kind
            # Numbers may be skipped; but behind what was written over a record they may be missing.
            if gap.is_cut and self._misses_more(gap, last):
                found.losses.append(loss)
        elif self._is_nobodys(number, gap, last):
            found.damages.append(Damage(where, text))
        else:
            # The place of a write that went elsewhere: what it was written over is missing before.
            after = min(gap.after_lsn, self._first_missing(number) - 1)
            found.losses.append(msgspec.structs.replace(loss, after_lsn=after))

    def _is_nobodys(self, number: int, gap: Gap, last: int) -> bool:
        """True: no record is missing. The bytes were never used, or are too few for a record: the
        head of a group."""
        if gap.is_group_head:
            return True
        if gap.is_unused:
            # The group behind it may have been written over others, in a complete segment, or by
            # them: then there is another gap.
            row = self._rows.get(number)
            is_only = sum(at == number for at, _ in self._gaps) == 1
            return is_only and (row is None or not row.is_complete)
        return 0 < gap.size <= GROUP_SIZE and last <= gap.after_lsn

    def _first_missing(self, number: int) -> int:
        """The first lsn of a segment that neither a record nor a gap with an owner has there."""
        records = [record for each, record in self._found.records if each == number]
        rests = {each.lsn for each in records if each.rewrite is Rewrite.REST}
        owned = {gap.lsn for each, gap in self._gaps if each == number and gap.owner}
        expected = self._scans[number].header.first_lsn
        for lsn in sorted(owned | {each.lsn for each in records}):
            if lsn > expected + (lsn in rests):  # no record has the number before a REST
                break
            expected = lsn + 1
        return expected

    def _misses_more(self, gap: Gap, last: int) -> bool:
        """True if records up to `last` are missing that no gap tells of. A gap without an owner
        tells of all that is missing around it."""
        around = [each for _, each in self._gaps if gap.after_lsn <= each.after_lsn <= last]
        if not all(each.owner for each in around):
            return False
        return last - gap.after_lsn > len({each.lsn for each in around if each.lsn <= last})

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
