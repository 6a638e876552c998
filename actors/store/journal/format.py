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
from millpond.actors.store.journal.segments import Link

FORMAT_VERSION = 3
"""The version that is written; earlier ones are read. Version 2 has changes of subscribers and of
terms, version 3 chains segments."""
MAGIC = b"MILLPOND JOURNAL"
GROUP_MAGIC = 0x50554F52  # "ROUP"
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
    previous: Link = Link()
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
    """Bytes that are no records. `owner` is whose they were, and of what `kind` that is, if that
    can still be read."""

    offset: int
    size: int
    after_lsn: int
    owner: bytes | None = None
    kind: PartitionKind = PartitionKind.QUEUE


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
    return Header(number, first_lsn, salt, last_id, cuts, Link(*previous), generation, id_mark)


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
    """Reads a segment's records in order, and steps over what is none.

    `end` is the offset after the last group that is complete; `gaps` what was stepped over. What
    follows `cut` does not count, and a group that is cut through has no gap.
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
        data, at = self._data, HEADER_SIZE
        while at < len(data):
            group = self._group(at)
            if group is not None:
                yield from self._read_group(at, *group)
                at += GROUP_SIZE + group[1]
                continue
            found = self._next_group(at + 1)
            if found == len(data) and _is_blank(data, at, found):
                return  # reserved, and never written
            # Only the group's head may be damaged: its records have heads of their own.
            yield from self._records(at, found, 0)
            at = found

    def _read_group(
        self, at: int, first_lsn: int, length: int, synced_lsn: int
    ) -> Iterator[Record]:
        end = at + GROUP_SIZE + length
        self.synced_lsn = max(self.synced_lsn, synced_lsn)
        yield from self._records(at + GROUP_SIZE, min(end, len(self._data)), synced_lsn)
        if end > len(self._data):
            if not self._is_cut:
                self.gaps.append(Gap(len(self._data), end - len(self._data), self.last_lsn))
        else:
            self.end = end

    def _group(self, at: int) -> tuple[int, int, int] | None:
        """First lsn, length and synced lsn of the group at an offset."""
        data = self._data
        if at + GROUP_SIZE > len(data):
            return None
        magic, length, first_lsn, synced_lsn, _ = _GROUP.unpack_from(data, at)
        (crc,) = _CRC.unpack_from(data, at + _GROUP.size)
        if magic != GROUP_MAGIC or crc != crc32(data[at : at + _GROUP.size], self._salt):
            return None
        if first_lsn <= self.last_lsn:
            return None  # an earlier one, in another place
        return first_lsn, length, synced_lsn

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
            if head is None:
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
                self.gaps.append(Gap(at, length, self.last_lsn, name, PartitionKind(kind)))
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
            if self._head(at, end):
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
        number = int.from_bytes(raw, "little")
        for bit in range(8 * RECORD_SIZE):
            flipped = (number ^ 1 << bit).to_bytes(RECORD_SIZE, "little")
            fields = self._checked_head(flipped, at, end, None)
            if fields is not None and fields[4] > self.last_lsn:
                return fields
        if len(name) == name_size <= FLIPPED_NAME_MAX:
            number = int.from_bytes(name, "little")
            for bit in range(8 * name_size):
                other = (number ^ 1 << bit).to_bytes(name_size, "little")
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


def _numbered(before: bytes, lsn: int) -> re.Pattern[bytes]:
    """A pattern, and after it a number that is at or not far above `lsn`.

    Only what it matches is worth a checksum: bytes that a client chose could make many look so.
    """
    high = b"|".join(re.escape(each.to_bytes(5, "little")) for each in (lsn >> 24, (lsn >> 24) + 1))
    return re.compile(before + b"(?!\\0{8})...(?:%b)" % high, re.DOTALL)


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
