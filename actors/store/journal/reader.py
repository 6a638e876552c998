"""Reads a whole journal after a stop of any kind, and tells torn tails from damage.

Later groups tell up to where the journal was synced (`synced_lsn`). A gap in what was never synced
is a torn tail: no caller was promised anything of it, and it is cut. A gap in what was synced is
damage: it is reported, and its partition is not served.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from millpond.actors.store.changes import PartitionKind
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.journal.format import (
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
from millpond.actors.store.journal.writer import SUFFIX, JournalTail, segment_path
from millpond.actors.store.repair.quarantine import Damage


class JournalContents(msgspec.Struct):
    """The contents of a journal: `records` in order; `segments` maps numbers to bytes on the disk.

    `damaged_lsns`: the last record of a partition that is damaged, by name; `damaged_kinds`: what
    such a partition is.
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


def segment_numbers(folder: Path, disk: Disk) -> list[int]:
    """The segments there are, ascending."""
    names = (name.removesuffix(SUFFIX) for name in disk.names(folder) if name.endswith(SUFFIX))
    return sorted(int(name) for name in names if name.isdecimal())


def read_journal(folder: Path, disk: Disk) -> JournalContents:
    """Every record that counts, in order. Raises UnknownVersion, OSError; changes nothing."""
    found = JournalContents()
    headers = _headers(folder, disk, found)
    cuts = merge_cuts(headers)
    gaps: list[tuple[int, Gap]] = []
    ends: dict[int, int] = {}
    lsn = 0
    for number, header in headers.items():
        data = disk.read(segment_path(folder, number))
        cut = cuts.get(number)
        scan = Scan(data, None if cut is None else cut.end)
        found.records += ((number, record) for record in scan.records())
        gaps += ((number, gap) for gap in scan.gaps)
        found.segments[number] = len(data)
        ends[number] = scan.end
        # Nothing begins a segment before all that came earlier was synced.
        found.synced_lsn = max(found.synced_lsn, scan.synced_lsn, header.first_lsn - 1)
        found.last_id = max(found.last_id, header.last_id)
        lsn = max(lsn, scan.last_lsn)
    _classify_gaps(found, gaps, cuts, ends)
    if found.records:
        lsn = max(header.first_lsn - 1 for header in headers.values())
        lsn = max(lsn, found.records[-1][1].lsn)
    number = max(segment_numbers(folder, disk), default=0)
    found.tail = JournalTail(number, lsn, cuts)
    return found


def _headers(folder: Path, disk: Disk, found: JournalContents) -> dict[int, Header]:
    """Headers by number. A segment without one was never used, unless there is more in it."""
    headers: dict[int, Header] = {}
    for number in segment_numbers(folder, disk):
        data = disk.read(segment_path(folder, number))
        try:
            headers[number] = decode_header(data)
        except BadHeader as exc:
            found.segments[number] = 0
            if data.count(0, HEADER_SIZE) != max(len(data) - HEADER_SIZE, 0):
                where = f"{number:020}{SUFFIX}"
                found.damages.append(Damage(where, f"{exc}; nothing in it can be read"))
    return headers


def _classify_gaps(
    found: JournalContents, gaps: list[tuple[int, Gap]], cuts: dict[int, Cut], ends: dict[int, int]
) -> None:
    """Tell torn tails from damage; what follows a torn tail does not count."""
    for number, gap in gaps:
        if number in cuts and gap.offset >= cuts[number].synced:
            continue  # the disk had failed, and what was there was said again
        if gap.after_lsn < found.synced_lsn:
            where = f"{number:020}{SUFFIX} at byte {gap.offset}"
            text = f"{gap.size} bytes are not what was written"
            found.damages.append(Damage(where, text, gap.owner))
            if gap.owner is not None:
                found.damaged_lsns[gap.owner] = gap.after_lsn + 1
                found.damaged_kinds[gap.owner] = gap.kind
            continue
        found.torn_bytes = max(ends[number] - gap.offset, gap.size)
        found.torn_bytes += sum(end for later, end in ends.items() if later > number)
        found.records = [each for each in found.records if each[1].lsn <= gap.after_lsn]
        cuts[number] = Cut(gap.offset, gap.offset)
        for later in found.segments:
            if later > number:
                cuts[later] = Cut(0, 0)
        return
