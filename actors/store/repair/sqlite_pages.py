"""The pages of an SQLite file and of its write-ahead log, read without SQLite.

SQLite follows pointers from the first page on, and gives up at the first page that is wrong. This
reader takes every page by itself: a row counts if `decode` says that it is what was written (rows
of the store have checksums), whatever is wrong around it. The file format is
https://sqlite.org/fileformat2.html. Nothing here reads a disk. Any bytes give rows or none, in a
time that grows with their number alone.

Files of the store have pages of 4096 bytes, nothing reserved in them, and a pointer map
(`auto_vacuum`), which says of each page what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from itertools import pairwise
from struct import Struct
from typing import Generic, NamedTuple, TypeVar

from millpond.actors.store.repair.sqlite_wal import PAGE_BYTES, read_wal

T = TypeVar("T")

Value = int | float | bytes | None

COLUMNS_MAX = 32
CHAIN_READS_MAX = 16
"""So often an overflow page is read: a page belongs to one row, and to older copies of that row."""
_PAGES_A_MAP = PAGE_BYTES // 5
_LOCK_PAGE = 2**30 // PAGE_BYTES + 1
"""The page that SQLite never uses."""
_HEADER_BYTES = 100
_OVERFLOW_BYTES = PAGE_BYTES - 4
_LOCAL_MIN = (PAGE_BYTES - 12) * 32 // 255 - 23
_LOCAL_MAX = {True: PAGE_BYTES - 35, False: (PAGE_BYTES - 12) * 64 // 255 - 23}
"""By whether the page is of a table."""
_CELL_BYTES_MIN = 4

_HEAD = Struct(">BHHHB")  # type, first free block, cells, where their content begins, fragments
_PAIR = Struct(">HH")  # a free block: the next one, its size
_U16, _U32 = Struct(">H"), Struct(">I")
_FLOAT = Struct(">d")
_INT_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_SIZES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
"""In bytes, of the serial types 0 to 9."""


class _Type(IntEnum):
    """The type of a page of a b-tree."""

    INDEX_INTERIOR = 2
    TABLE_INTERIOR = 5
    INDEX_LEAF = 10
    TABLE_LEAF = 13


class _Use(IntEnum):
    """The use of a page as the pointer map says."""

    UNKNOWN = 0
    ROOT = 1
    FREE = 2
    OVERFLOW_FIRST = 3
    OVERFLOW = 4
    TREE = 5
    MAP = 6
    """A page of the pointer map itself, which has no rows."""


class FoundRow(NamedTuple, Generic[T]):
    """A row that `decode` took. `rowid` is None in an index.

    `is_current`: it is on a page that is in use, as that was written last. Others are on pages that
    are free now, or in older copies of a page: rows that were removed, or that moved. `page`
    numbers the copies of pages in the order of reading.
    """

    rowid: int | None
    row: T
    is_current: bool
    page: int


class BadRow(NamedTuple):
    """A row of a sound page in use that `decode` did not take, with as many columns as it has."""

    rowid: int
    columns: int
    page: int


Decode = Callable[[int | None, tuple[Value, ...]], T | None]


def read_rows(
    file: bytes, wal: bytes, decode: Decode[T], bad: list[BadRow] | None = None
) -> Iterator[FoundRow[T]]:
    """Every row in a file with its write-ahead log (empty: there is none) that `decode` takes.

    `decode` gets the rowid (None in an index) and the columns, texts as bytes; it gives None for
    what is no row. A row may come several times. Those of later versions of a page come later, and
    all older copies before what is current. `bad` gets the rows that are known to be there and are
    not what was written.
    """
    return _Reader(_Pages(file, wal), decode, [] if bad is None else bad).rows()


class _Pages:
    """The pages by number, from 1, each as it was written last."""

    def __init__(self, file: bytes, wal: bytes) -> None:
        self._file = file
        self._file_count = -(-len(file) // PAGE_BYTES)
        self._latest: dict[int, bytes] = {}
        self._older: list[tuple[int, bytes]] = []
        self._besides: list[tuple[int, bytes]] = []
        log = read_wal(wal)
        most = self._file_count + len(log.pages)
        for number, data, is_sound in log.pages:
            if not 0 < number <= most:
                self._besides.append((0, data))
                continue
            before = self._latest.pop(number, None) or self._in_file(number)
            if before:
                # It may be that the page before is the better one, or another page.
                (self._older if is_sound else self._besides).append((number, before))
            self._latest[number] = data
        self.count = max(self._file_count, max(self._latest, default=0))
        self.last_used = log.page_count or self.count
        """The pages behind it were given back."""

    def __getitem__(self, number: int) -> bytes:
        """A page; empty if it is missing, filled with zeros if a part of it is."""
        found = self._latest.get(number)
        return self._in_file(number) if found is None else found

    def latest(self) -> Iterator[tuple[int, bytes]]:
        """All pages: those of the file first, then those of the log in the order of writing. Where
        it is not sure which one was written last, both."""
        for number in range(1, self._file_count + 1):
            if number not in self._latest:
                yield number, self._in_file(number)
        yield from self._besides
        yield from self._latest.items()

    def older(self) -> list[tuple[int, bytes]]:
        """Older copies of pages, of each the oldest first."""
        return list(self._older)

    def _in_file(self, number: int) -> bytes:
        data = self._file[(number - 1) * PAGE_BYTES : number * PAGE_BYTES]
        return data.ljust(PAGE_BYTES, b"\0") if data else b""


class _Reader(Generic[T]):
    """Reads all pages of a file once."""

    def __init__(self, pages: _Pages, decode: Decode[T], bad: list[BadRow]) -> None:
        self._pages = pages
        self._decode = decode
        self._bad = bad
        self._uses, self._next = _pointer_map(pages)
        self._free, self._is_free_complete = _free_pages(pages)
        self._chain_reads: dict[int, int] = {}
        self._seen: set[int] = set()
        self._pages_read = 0

    def rows(self) -> Iterator[FoundRow[T]]:
        older, current = self._pages.older(), list[tuple[int, bytes]]()
        for number, data in self._pages.latest():
            (current if self._is_used(number) else older).append((number, data))
        for number, data in older:
            yield from self._page(number, data, is_current=False)
        for number, data in current:
            yield from self._page(number, data, is_current=True)

    def _is_used(self, number: int) -> bool:
        use = self._uses.get(number, _Use.UNKNOWN)
        if number > self._pages.last_used or use is _Use.MAP:
            return False
        # One of the two may be damaged, or an older copy of itself.
        if self._is_free_complete and number not in self._free:
            return True
        return use is not _Use.FREE and (use is not _Use.UNKNOWN or number not in self._free)

    def _page(self, number: int, data: bytes, *, is_current: bool) -> Iterator[FoundRow[T]]:
        self._pages_read += 1
        start = _HEADER_BYTES if number == 1 else 0
        use = self._uses.get(number, _Use.UNKNOWN)
        try:
            kind: _Type | None = _Type(data[start])
        except ValueError:
            # An overflow page begins with the number of the next one, and never with a type.
            if use not in (_Use.ROOT, _Use.TREE):
                return
            kind = None
        if kind is not None:
            layout = _Layout(data, start, kind)
            if layout.is_sound:
                if kind is not _Type.TABLE_INTERIOR:
                    yield from self._cells(layout, layout.offsets, is_current=is_current)
                return
        # Bytes of the page are wrong: it is read as each kind of page that it may have been.
        for each in (_Type.TABLE_LEAF, _Type.INDEX_LEAF, _Type.INDEX_INTERIOR):
            yield from self._damaged_page(_Layout(data, start, each), is_current=is_current)

    def _damaged_page(self, layout: _Layout, *, is_current: bool) -> Iterator[FoundRow[T]]:
        """Good cells where pointers are, also where those are that are not counted, and behind good
        cells. The bytes within a good cell are its content, which a client may have chosen."""
        good: list[tuple[int, int]] = []
        waiting: list[int] = []
        tried: set[int] = set()
        slots = layout.slots()
        while True:
            lowest = min(good, default=(PAGE_BYTES, 0))[0]
            at = waiting.pop() if waiting else next(slots, (PAGE_BYTES, 0))
            if isinstance(at, tuple):
                slot, at = at
                if slot >= lowest:
                    return
            if at in tried or any(first <= at < end for first, end in good):
                continue
            tried.add(at)
            cell = layout.cell(at)
            found = None if cell is None else self._row(cell)
            if cell is not None and found is not None:
                good.append((at, cell.end))
                waiting.append(cell.end)
                yield FoundRow(cell.rowid, found, is_current, self._pages_read)

    def _cells(
        self, layout: _Layout, offsets: list[int], *, is_current: bool
    ) -> Iterator[FoundRow[T]]:
        cells = [layout.cell(at) for at in offsets]
        for index, (at, cell) in enumerate(zip(offsets, cells, strict=True)):
            if cell is None:
                continue
            key = hash((layout.data[at : cell.end], is_current))
            if key in self._seen:
                continue
            found = self._row(cell)
            if found is not None:
                self._seen.add(key)
                yield FoundRow(cell.rowid, found, is_current, self._pages_read)
            elif is_current and cell.rowid is not None and _is_in_order(cells, index):
                columns = _column_count(cell.local)
                self._bad.append(BadRow(cell.rowid, columns, self._pages_read))

    def _row(self, cell: _Cell) -> T | None:
        """The row in a cell, with what of it is on other pages; None if it is not good."""
        if cell.overflow is None:
            return self._decoded(cell.rowid, cell.local)
        # The pages tell which one comes next, and so does the pointer map.
        for follow in (self._following, self._mapped):
            rest = self._chain(cell.overflow, cell.size - len(cell.local), follow)
            if rest is not None:
                found = self._decoded(cell.rowid, cell.local + rest)
                if found is not None:
                    return found
        return None

    def _decoded(self, rowid: int | None, payload: bytes) -> T | None:
        values = _record(payload)
        return None if values is None else self._decode(rowid, values)

    def _chain(self, number: int, size: int, follow: Callable[[int], int]) -> bytes | None:
        """So many bytes of a chain of overflow pages; None if it ends before."""
        if size > self._pages.count * _OVERFLOW_BYTES:
            return None
        parts: list[bytes] = []
        while size > 0:
            reads = self._chain_reads.get(number, 0)
            data = self._pages[number] if number else b""
            if not data or reads >= CHAIN_READS_MAX:
                return None
            self._chain_reads[number] = reads + 1
            part = data[4 : 4 + size]
            parts.append(part)
            size -= len(part)
            number = follow(number)
        return b"".join(parts)

    def _following(self, number: int) -> int:
        following: int = _U32.unpack_from(self._pages[number])[0]
        return following

    def _mapped(self, number: int) -> int:
        return self._next.get(number, 0)


class _Cell(NamedTuple):
    """A cell of a page: a payload of `size` bytes, of which `local` are on the page and the others
    on the pages from `overflow` on."""

    rowid: int | None
    size: int
    local: bytes
    overflow: int | None
    end: int


def _is_in_order(cells: Sequence[_Cell | None], index: int) -> bool:
    """True: the number of a row lies between those around it, so it may be what was written."""
    around = (cells[at] for at in range(max(index - 1, 0), min(index + 2, len(cells))))
    numbers = [cell.rowid for cell in around if cell is not None and cell.rowid is not None]
    return all(one < other for one, other in pairwise(numbers))


class _Layout:
    """A page as one of a kind. `offsets` are those of its cells."""

    def __init__(self, data: bytes, start: int, kind: _Type) -> None:
        self.data = data
        self._kind = kind
        _, self._free_block, count, content, self._fragments = _HEAD.unpack_from(data, start)
        is_leaf = kind in (_Type.TABLE_LEAF, _Type.INDEX_LEAF)
        self._pointers_at = start + (8 if is_leaf else 12)
        self._content = content or PAGE_BYTES * 16  # 65536 is written as 0
        end = self._pointers_at + 2 * count
        self.offsets: list[int] = []
        if end <= min(self._content, PAGE_BYTES):
            self.offsets = [_U16.unpack_from(data, at)[0] for at in range(end - 2 * count, end, 2)]
            self.is_sound = self._is_accounted_for(end)
        else:
            self.is_sound = False

    def _is_accounted_for(self, pointers_end: int) -> bool:
        """Each byte is one of the head, a cell, a free block, a fragment or between head and
        content."""
        extents: list[tuple[int, int]] = []
        for at in self.offsets:
            end = self._cell_end(at)
            if end is None:
                return False
            extents.append((at, end))
        block, fragments = self._free_block, self._fragments
        while block:
            if block + 4 > PAGE_BYTES:
                return False
            following, size = _PAIR.unpack_from(self.data, block)
            extents.append((block, block + size))
            if size < 4 or (following and following < block + size):
                return False
            block = following
        at = self._content
        if not extents:
            return at == PAGE_BYTES or at >= PAGE_BYTES * 16
        for first, end in sorted(extents):
            if first < at or first < pointers_end:
                return False
            fragments -= first - at
            at = end
        is_whole: bool = at + fragments == PAGE_BYTES
        return is_whole

    def slots(self) -> Iterator[tuple[int, int]]:
        """The pointers that there may be, each with its own offset."""
        for at in range(self._pointers_at, PAGE_BYTES - 1, 2):
            (offset,) = _U16.unpack_from(self.data, at)
            if at + 2 <= offset <= PAGE_BYTES - _CELL_BYTES_MIN:
                yield at, offset

    def cell(self, at: int) -> _Cell | None:
        """The cell at an offset; None if there cannot be one."""
        data = self.data
        if self._kind is _Type.INDEX_INTERIOR:
            at += 4  # the page with what comes before
        size, at = _varint(data, at)
        rowid: int | None = None
        is_table = self._kind is _Type.TABLE_LEAF
        if is_table:
            number, at = _varint(data, at)
            rowid = number if number < 2**63 else number - 2**64
        if at > PAGE_BYTES:
            return None
        local, end = _local_bytes(size, is_table=is_table), at
        end += local
        overflow: int | None = None
        if local < size:
            if end + 4 > PAGE_BYTES:
                return None
            (overflow,) = _U32.unpack_from(data, end)
            end += 4
        if end > PAGE_BYTES:
            return None
        return _Cell(rowid, size, data[at : at + local], overflow, end)

    def _cell_end(self, at: int) -> int | None:
        if self._kind is _Type.TABLE_INTERIOR:
            _, end = _varint(self.data, at + 4)
            return end if end <= PAGE_BYTES else None
        cell = self.cell(at)
        return None if cell is None else max(cell.end, at + _CELL_BYTES_MIN)


def _local_bytes(size: int, *, is_table: bool) -> int:
    """The number of bytes of a payload that are on the page of its cell."""
    most = _LOCAL_MAX[is_table]
    if size <= most:
        return size
    local = _LOCAL_MIN + (size - _LOCAL_MIN) % _OVERFLOW_BYTES
    return local if local <= most else _LOCAL_MIN


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An integer of 1 to 9 bytes and its end, which is beyond the data if that is too short."""
    number = 0
    some = data[at : at + 9]
    for index, byte in enumerate(some):
        if index == 8:
            return number << 8 | byte, at + 9
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            return number, at + index + 1
    return 0, len(data) + 1


def _record(payload: bytes) -> tuple[Value, ...] | None:
    """The columns of a record; None if it is none."""
    types = _column_types(payload)
    if types is None:
        return None
    at = types[0]
    values: list[Value] = []
    for kind in types[1:]:
        size = _size_of(kind)
        part = payload[at : at + size]
        at += size
        if kind >= 12:
            values.append(part)
        elif kind == 7:
            values.append(_FLOAT.unpack(part)[0] if len(part) == 8 else None)
        elif kind in (8, 9):
            values.append(kind - 8)
        else:
            values.append(int.from_bytes(part, signed=True) if kind else None)
    return tuple(values) if at == len(payload) else None


def _column_types(payload: bytes) -> list[int] | None:
    """The size of a record's header and the serial types of its columns; None if it has none."""
    end, at = _varint(payload, 0)
    if not 0 < end - at <= 9 * COLUMNS_MAX or end > len(payload):
        return None
    types = [end]
    while at < end:
        kind, at = _varint(payload, at)
        if kind in (10, 11) or len(types) > COLUMNS_MAX:
            return None
        types.append(kind)
    return types if at == end else None


def _column_count(payload: bytes) -> int:
    types = _column_types(payload)
    return 0 if types is None else len(types) - 1


def _size_of(kind: int) -> int:
    return (kind - 12) // 2 if kind >= 12 else _SIZES[kind]


def _pointer_map(pages: _Pages) -> tuple[dict[int, _Use], dict[int, int]]:
    """The use of each page, and the overflow page that follows a page."""
    uses: dict[int, _Use] = {}
    following: dict[int, int] = {}
    for first in range(2, pages.count + 1, _PAGES_A_MAP + 1):
        at = first + 1 if first == _LOCK_PAGE else first
        data = pages[at]
        for place, number in enumerate(range(at + 1, at + 1 + len(data) // 5)):
            use = data[5 * place]
            if number > pages.count:
                break
            if use not in (1, 2, 3, 4, 5):
                continue
            uses[number] = _Use(use)
            if use == _Use.OVERFLOW:
                (before,) = _U32.unpack_from(data, 5 * place + 1)
                following.setdefault(before, number)
        uses[at] = _Use.MAP
    return uses, following


def _free_pages(pages: _Pages) -> tuple[set[int], bool]:
    """The pages in the list of free ones, as far as it can be followed. True: these are as many as
    the first page counts."""
    free: set[int] = set()
    trunk, expected = Struct(">II").unpack_from(pages[1], 32) if pages[1] else (0, 0)
    while trunk not in free and pages[trunk] and trunk > 1:
        free.add(trunk)
        data = pages[trunk]
        trunk, count = Struct(">II").unpack_from(data)
        leaves = data[8 : 8 + 4 * min(count, PAGE_BYTES // 4 - 2)]
        free.update(number for (number,) in _U32.iter_unpack(leaves))
    return free, bool(pages[1]) and len(free) == expected
