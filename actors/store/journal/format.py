"""The journal's bytes: a header for each segment, groups that are written at once, and in them
records, each with an owner, a number (lsn) and checksums of its own.

The head of a record has a checksum apart from that of its body: when a body is damaged, whose it
was is still known, and where the next record begins. Every checksum starts from the segment's
salt, a secret of the node: without it a client's message could hold bytes that look like records,
and be taken for them when a torn group is searched for what is left.
docs/reference/on-disk-format.md has the tables. Numbers are little-endian, checksums are CRC-32.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

import msgspec

from millpond.actors.store.changes import PartitionKind
from millpond.actors.store.checksum import crc32
from millpond.actors.store.journal.segments import SegmentEnd

FORMAT_VERSION = 4
"""The version that is written; earlier ones are read. Version 2 has changes of subscribers and of
terms, version 3 chains segments, version 4 has deadlines that were corrected."""
MAGIC = b"MILLPOND JOURNAL"
GROUP_MAGIC = 0x50554F52  # "ROUP"
CONTIGUOUS = 4
"""From this version on, the first lsn of a group follows the last record before it; numbers that no
record has are those of the group behind them."""
CUTS_MAX = 62
NAME_BYTES_MAX = 2**12 - 1

_HEADER = Struct("<16sHHIQQQ")  # magic, version, cuts, salt, number, first lsn, last id
_CUT = Struct("<QQQ")  # number of an earlier segment, where it ends, where it was synced to
_CHAIN = Struct("<QQIIQQ")  # number, end and crc of the one before, zero, generation, id mark
_CHAIN_AT = _HEADER.size + CUTS_MAX * _CUT.size
_GROUP = Struct("<IIQQI")  # magic, length of the records, first lsn, synced lsn, records
_RECORD = Struct("<IHBBQQI")  # length of the body, of the name, kind, rewrite, lsn, as of, crc
_CRC = Struct("<I")

HEADER_SIZE = 1588
GROUP_SIZE = _GROUP.size + _CRC.size
RECORD_SIZE = _RECORD.size + _CRC.size
_GROUP_LIKE = re.compile(re.escape(_CRC.pack(GROUP_MAGIC)))
_BEFORE_FIRST_LSN = re.escape(_CRC.pack(GROUP_MAGIC)) + b"...."
_BEFORE_LSN = b"[\\0-\x0f][\\0\1][\\0-\3]"  # NAME_BYTES_MAX, kinds, rewrites
_NAME_HIGH_AT = 5
_NAME_SIZE, _NAME_SIZE_AT = Struct("<H"), 4
FLIPPED_NAME_MAX = 256
"""A bit that flipped is looked for in names up to this length in bytes."""

_pack_record = _RECORD.pack
_pack_crc = _CRC.pack


class UnknownVersion(Exception):
    """The journal was written by a later version of Millpond."""


class BadHeader(ValueError):
    """A segment without a valid header: it was never used, or it is damaged."""


class Cut(NamedTuple):
    """The end of a segment that failed, or was torn. From `synced` to `end` it was stored without a
    sync, and may have been lost; nothing after `end` counts."""

    end: int
    synced: int


class Header(msgspec.Struct, frozen=True):
    """The start of a segment. `cuts`: where earlier segments end, whatever follows there.

    `last_id` is the highest message id given out before. From version 3 on `previous` is the
    segment before, and `generation` and `id_mark` are those of the catalog.
    """

    number: int
    first_lsn: int
    salt: int
    last_id: int = 0
    cuts: dict[int, Cut] = {}
    previous: SegmentEnd = SegmentEnd()
    generation: int = 0
    id_mark: int = 0
    version: int = FORMAT_VERSION


class Rewrite(IntEnum):
    """The meaning of a record that rewrites its partition as it was at an earlier lsn (`as_of`).

    NONE: nothing, these are changes. WHOLE: all there was besides its file, unless the file was
    frozen for a flush later (`frozen_at`). REST: what stayed when the file was frozen at this very
    record; of no account unless that flush came to its end, and was the last. MENDED: as WHOLE,
    said while the file was frozen, so some of it may be in the file as well.
    """

    NONE = 0
    WHOLE = 1
    REST = 2
    MENDED = 3


class Record(NamedTuple):
    """Changes of one partition."""

    lsn: int
    kind: PartitionKind
    name: bytes
    rewrite: Rewrite
    as_of: int
    body: bytes
    synced_lsn: int


class Gap(NamedTuple):
    """Bytes that are no records. `owner` is whose they were, of what `kind` that is, and the `lsn`
    they had, if that can still be read. `is_cut`: that record was longer, and something else
    begins before its end. `is_group_head`: nothing else is in it, as its checksum shows;
    `is_whole`: all records of that group are right. `is_unused`: the group behind it has the next
    number, so nothing was ever written to it, and that group is in a wrong place."""

    offset: int
    size: int
    after_lsn: int
    owner: bytes | None = None
    kind: PartitionKind = PartitionKind.QUEUE
    lsn: int = 0
    is_cut: bool = False
    is_group_head: bool = False
    is_whole: bool = False
    is_unused: bool = False


def encode_header(header: Header) -> bytes:
    """The first HEADER_SIZE bytes of a segment; of more cuts than fit, the latest count."""
    cuts = sorted(header.cuts.items())[-CUTS_MAX:]
    count, numbers = len(cuts), (header.number, header.first_lsn, header.last_id)
    head = _HEADER.pack(MAGIC, FORMAT_VERSION, count, header.salt, *numbers)
    head += b"".join(_CUT.pack(number, *cut) for number, cut in cuts)
    head = head.ljust(_CHAIN_AT, b"\0")
    head += _CHAIN.pack(*header.previous, 0, header.generation, header.id_mark)
    head = head.ljust(HEADER_SIZE - _CRC.size, b"\0")
    return head + _CRC.pack(crc32(head))


def decode_header(data: bytes) -> Header:
    """Raises BadHeader, UnknownVersion."""
    if len(data) < HEADER_SIZE or not data.startswith(MAGIC):
        raise BadHeader("no journal header")
    _, version, count, salt, number, first_lsn, last_id = _HEADER.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, HEADER_SIZE - _CRC.size)
    if crc != crc32(data[: HEADER_SIZE - _CRC.size]):
        raise BadHeader("the checksum of the journal's header is wrong")
    if not 1 <= version <= FORMAT_VERSION:
        raise UnknownVersion(f"journal format {version}; this version reads 1 to {FORMAT_VERSION}")
    found = (_CUT.unpack_from(data, _HEADER.size + each * _CUT.size) for each in range(count))
    cuts = {cut: Cut(end, synced) for cut, end, synced in found}
    if version < 3:
        return Header(number, first_lsn, salt, last_id, cuts, version=version)
    *previous, _, generation, id_mark = _CHAIN.unpack_from(data, _CHAIN_AT)
    link = SegmentEnd(*previous)
    return Header(number, first_lsn, salt, last_id, cuts, link, generation, id_mark, version)


def encode_record(
    salt: int,
    lsn: int,
    kind: PartitionKind,
    name: bytes,
    body: bytes,
    rewrite: Rewrite = Rewrite.NONE,
    as_of: int = 0,
) -> bytes:
    """One record; groups are made of them."""
    head = _pack_record(len(body), len(name), kind, rewrite, lsn, as_of, crc32(body, salt))
    return b"".join((head, _pack_crc(crc32(head + name, salt)), name, body))


def encode_group(salt: int, records: list[bytes], first_lsn: int, synced_lsn: int) -> bytes:
    """Records that are written together. Everything up to `synced_lsn` was synced before."""
    length = sum(map(len, records))
    head = _GROUP.pack(GROUP_MAGIC, length, first_lsn, synced_lsn, len(records))
    return b"".join((head, _CRC.pack(crc32(head, salt)), *records))


class Scan:
    """Reads a segment's records in order, and steps over what is none. A group that does not begin
    with the next number took the place of another: it is read, with a gap of no bytes before it,
    and groups of lower numbers may follow.

    `end` is the offset after the last group that is complete; `gaps` what was stepped over. Records
    behind `cut` do not count, and a group that is cut through has no gap.
    """

    def __init__(self, data: bytes, cut: int | None = None, header: Header | None = None) -> None:
        self.header = decode_header(data) if header is None else header
        self._data = data if cut is None else data[:cut]
        self._is_cut = cut is not None
        self._salt = self.header.salt
        self.gaps: list[Gap] = []
        self.end = HEADER_SIZE
        self.last_lsn = self.header.first_lsn - 1
        self.synced_lsn = 0

    def records(self) -> Iterator[Record]:
        """Every record whose checksums are right."""
        last_lsn = self.last_lsn
        for record in self._records_by_place():
            last_lsn = max(last_lsn, record.lsn)
            yield record
        self.last_lsn = max(last_lsn, self.last_lsn)

    def has_misplaced(self, gap: Gap, salt: int, first_lsn: int) -> bool:
        """True: in the gap, and not behind zeros, stands the head of a group or record that was
        written to another place: one of a lower lsn than the gap's, or of another segment, whose
        `salt` and `first_lsn` these are."""
        start, is_own = gap.offset, salt == self._salt
        end = start + len(self._data[start : start + gap.size].rstrip(b"\0"))
        other = Scan(self._data, None, Header(self.header.number, first_lsn, salt))
        for at in other._offsets_like_heads(start, end):
            lsn = other._lsn_at(at)
            if lsn is not None and (not is_own or lsn <= gap.after_lsn):
                return at == start or not _is_blank(self._data, start, at)
        return False

    def _offsets_like_heads(self, start: int, end: int) -> Iterator[int]:
        data, end = self._data, min(end + RECORD_SIZE, len(self._data))
        yield from (match.start() for match in _GROUP_LIKE.finditer(data, start, end))
        like_a_head, at = _numbered(_BEFORE_LSN, self.header.first_lsn), start + _NAME_HIGH_AT
        while match := like_a_head.search(data, at, end):
            yield match.start() - _NAME_HIGH_AT
            at = match.start() + 1

    def _lsn_at(self, at: int) -> int | None:
        """The lsn of the head of a group or record at an offset; None: there is none."""
        head = self._head(at, len(self._data))
        if head is not None:
            return head[4]
        raw = self._data[at : at + GROUP_SIZE]
        if len(raw) < GROUP_SIZE or not self._is_group_head(raw):
            return None
        _, _, first_lsn, _, _ = _GROUP.unpack_from(raw)
        return int(first_lsn)

    def _records_by_place(self) -> Iterator[Record]:
        data, at = self._data, HEADER_SIZE
        while at < len(data):
            group = self._group(at)
            is_flipped = group is None
            if group is None:
                group = self._unflipped_group(at)
            if group is not None:
                read = self._read_flipped_group if is_flipped else self._read_group
                yield from read(at, *group)
                at += GROUP_SIZE + group[1]
                continue
            found = self._next_group(at + 1)
            if found == len(data) and _is_blank(data, at, found):
                return  # reserved, and never written
            # Only the group's head may be damaged: its records have heads of their own.
            first = len(self.gaps)
            yield from self._records(at, found, 0)
            self._mark_unused(first, found)
            at = found

    def _read_group(
        self, at: int, first_lsn: int, length: int, synced_lsn: int
    ) -> Iterator[Record]:
        end = at + GROUP_SIZE + length
        self.synced_lsn = max(self.synced_lsn, synced_lsn)
        before, is_misplaced = self.last_lsn, self._is_misplaced(at, first_lsn)
        if is_misplaced:
            self.gaps.append(Gap(at, 0, before))
        yield from self._records(at + GROUP_SIZE, min(end, len(self._data)), synced_lsn)
        if is_misplaced:
            self.last_lsn = before
        if end > len(self._data):
            if not self._is_cut:
                self.gaps.append(Gap(len(self._data), end - len(self._data), self.last_lsn))
        else:
            self.end = end

    def _is_misplaced(self, at: int, first_lsn: int) -> bool:
        """True: records below this lsn should be before an offset, and no gap takes their place."""
        if self.header.version < CONTIGUOUS or first_lsn <= self.last_lsn + 1:
            return False
        last = self.gaps[-1] if self.gaps else Gap(0, 0, -1)
        return last.offset + last.size < at and last.after_lsn < self.last_lsn

    def _mark_unused(self, first: int, at: int) -> None:
        """Mark the gap since the last group, if the group at an offset has the next number."""
        group = self._group(at)
        if group is not None and group[0] == self.last_lsn + 1 and len(self.gaps) == first + 1:
            gap = self.gaps[first]
            if gap.after_lsn == self.last_lsn and gap.offset + gap.size == at:
                self.gaps[first] = gap._replace(is_unused=True)

    def _read_flipped_group(
        self, at: int, first_lsn: int, length: int, synced_lsn: int
    ) -> Iterator[Record]:
        """The same, of a group whose head has a wrong bit: its gap comes before those in it."""
        index = len(self.gaps)
        self.gaps.append(Gap(at, GROUP_SIZE, self.last_lsn, is_group_head=True))
        yield from self._read_group(at, first_lsn, length, synced_lsn)
        is_whole = length > 0 and len(self.gaps) == index + 1
        self.gaps[index] = self.gaps[index]._replace(is_whole=is_whole)

    def _group(self, at: int) -> tuple[int, int, int] | None:
        """First lsn, length and synced lsn of the group at an offset."""
        if at + GROUP_SIZE > len(self._data):
            return None
        return self._checked_group(self._data[at : at + GROUP_SIZE])

    def _unflipped_group(self, at: int) -> tuple[int, int, int] | None:
        """The same, of a head with a single bit that is not what was written."""
        raw = self._data[at : at + GROUP_SIZE]
        if at + GROUP_SIZE > len(self._data) or not raw.strip(b"\0"):
            return None
        return next(filter(None, map(self._checked_group, _unflipped(raw))), None)

    def _checked_group(self, raw: bytes) -> tuple[int, int, int] | None:
        if not self._is_group_head(raw):
            return None
        _, length, first_lsn, synced_lsn, _ = _GROUP.unpack_from(raw)
        if first_lsn <= self.last_lsn:
            return None  # an earlier one, in another place
        return first_lsn, length, synced_lsn

    def _is_group_head(self, raw: bytes) -> bool:
        (magic,), (crc,) = _CRC.unpack_from(raw), _CRC.unpack_from(raw, _GROUP.size)
        return bool(magic == GROUP_MAGIC and crc == crc32(raw[: _GROUP.size], self._salt))

    def _next_group(self, at: int) -> int:
        """The offset of the next group at or after `at`; the end if there is none."""
        like_a_group = _numbered(_BEFORE_FIRST_LSN, self.last_lsn + 1)
        while match := like_a_group.search(self._data, at):
            at = match.start()
            if self._group(at) is not None:
                return at
            at += 1
        return len(self._data)

    def _records(self, at: int, end: int, synced_lsn: int) -> Iterator[Record]:
        data = self._data
        while at < end:
            head = self._head(at, end)
            is_flipped = head is None
            if head is None:
                head = self._unflipped_head(at, end)
            if head is None or head[4] <= self.last_lsn:  # an earlier one, in another place
                found = self._next_record(at + 1, end)
                self.gaps.append(Gap(at, found - at, self.last_lsn))
                at = found
                continue
            size, name, kind, rewrite, lsn, as_of, crc = head
            start = at + RECORD_SIZE + len(name)
            body = data[start : start + size]
            is_cut = len(body) < size or start + size > end
            if is_flipped or is_cut or crc32(body, self._salt) != crc:
                length = min(start + size, end) - at
                owned = (name, PartitionKind(kind), lsn, start + size > end)
                self.gaps.append(Gap(at, length, self.last_lsn, *owned))
            else:
                yield Record(
                    lsn, PartitionKind(kind), name, Rewrite(rewrite), as_of, body, synced_lsn
                )
            self.last_lsn = max(self.last_lsn, lsn)
            at = min(start + size, end)

    def _next_record(self, at: int, end: int) -> int:
        """The offset of the next record at or after `at`; `end` if there is none."""
        if _is_blank(self._data, at, end):
            return end
        like_a_head = _numbered(_BEFORE_LSN, self.last_lsn + 1)
        while match := like_a_head.search(self._data, at + _NAME_HIGH_AT, end):
            at = match.start() - _NAME_HIGH_AT
            head = self._head(at, end)
            if head is not None and head[4] > self.last_lsn:
                return at
            at += 1
        return end

    def _unflipped_head(
        self, at: int, end: int
    ) -> tuple[int, bytes, int, int, int, int, int] | None:
        """The same, of a head with a single bit that is not what was written: the checksum tells
        which. So the most frequent damage is known to be its owner's alone."""
        raw = self._data[at : at + RECORD_SIZE]
        if at + RECORD_SIZE > end or not raw.strip(b"\0"):
            return None
        (name_size,) = _NAME_SIZE.unpack_from(raw, _NAME_SIZE_AT)
        name = self._data[at + RECORD_SIZE : min(at + RECORD_SIZE + name_size, end)]
        for flipped in _unflipped(raw):
            fields = self._checked_head(flipped, at, end, None)
            if fields is not None and fields[4] > self.last_lsn:
                return fields
        if len(name) == name_size <= FLIPPED_NAME_MAX:
            for other in _unflipped(name):
                fields = self._checked_head(raw, at, end, other)
                if fields is not None and fields[4] > self.last_lsn:
                    return fields
        return None

    def _checked_head(
        self, raw: bytes, at: int, end: int, name: bytes | None
    ) -> tuple[int, bytes, int, int, int, int, int] | None:
        size, name_size, kind, rewrite, lsn, as_of, crc = _RECORD.unpack_from(raw)
        start = at + RECORD_SIZE
        if start + name_size > end or name_size > NAME_BYTES_MAX or kind > 1 or rewrite > 3:
            return None
        name = self._data[start : start + name_size] if name is None else name
        (head_crc,) = _CRC.unpack_from(raw, _RECORD.size)
        if head_crc != crc32(name, crc32(raw[: _RECORD.size], self._salt)):
            return None
        return size, name, kind, rewrite, lsn, as_of, crc

    def _head(self, at: int, end: int) -> tuple[int, bytes, int, int, int, int, int] | None:
        """Length of the body, name, kind, rewrite, lsn, as of and checksum of what is there."""
        data = self._data
        if at + RECORD_SIZE > end:
            return None
        size, name_size, kind, rewrite, lsn, as_of, crc = _RECORD.unpack_from(data, at)
        start = at + RECORD_SIZE
        if start + name_size > end:
            return None
        (head_crc,) = _CRC.unpack_from(data, at + _RECORD.size)
        name = data[start : start + name_size]
        if head_crc != crc32(name, crc32(data[at : at + _RECORD.size], self._salt)):
            return None
        return size, name, kind, rewrite, lsn, as_of, crc


def _unflipped(data: bytes) -> Iterator[bytes]:
    """The same bytes with each of their bits changed in turn."""
    number = int.from_bytes(data, "little")
    return ((number ^ 1 << bit).to_bytes(len(data), "little") for bit in range(8 * len(data)))


def _numbered(before: bytes, lsn: int) -> re.Pattern[bytes]:
    """A pattern, and after it a number that is at or not far above `lsn`.

    Only what it matches is worth a checksum: bytes that a client chose could make many look so.
    """
    high = b"|".join(re.escape(each.to_bytes(5, "little")) for each in (lsn >> 24, (lsn >> 24) + 1))
    return re.compile(before + b"(?!\\0{8})...(?:%b)" % high, re.DOTALL)


def begins_group(data: bytes, lsn: int) -> bool:
    """True: a group with records above `lsn` was written to a segment whose header, and so its
    salt, is lost. Checksums cannot be looked at."""
    return _numbered(_BEFORE_FIRST_LSN, lsn + 1).search(data, HEADER_SIZE) is not None


def _is_blank(data: bytes, start: int, end: int) -> bool:
    return data.count(0, start, end) == end - start


def merge_cuts(headers: Mapping[int, Header]) -> dict[int, Cut]:
    """The end of each segment as later segments say; the earliest of them counts."""
    cuts: dict[int, Cut] = {}
    for number, header in sorted(headers.items()):
        for earlier, cut in header.cuts.items():
            if earlier < number:
                cuts.setdefault(earlier, cut)
    return cuts
