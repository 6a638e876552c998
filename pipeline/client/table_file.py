"""Tables of an SQLite file that is read in ranges, as from an object store.

A reader of the file format (https://sqlite.org/fileformat2.html) for whole tables with integer
keys: no index, no write-ahead log. A file of gigabytes is not fetched as a whole; pages that follow
one another come in one request. A file in which something is wrong raises `DamagedFile`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Value = int | float | bytes | str | None
Row = tuple[int, list[Value]]
"""The key of a row, and its columns; that of the key itself is None."""

EXTENT_BYTES_MIN, EXTENT_BYTES_MAX = 2**16, 2**22
EXTENTS_MAX = 6
"""Ranges that are kept: of the tree, of the rows, and of their long values."""
DEPTH_MAX = 20
_MAGIC = b"SQLite format 3\0"
_INTERIOR, _LEAF = 5, 13
_SIZES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)


class DamagedFile(Exception):
    """The file does not hold what was written."""


class PagedFile:
    """The pages of a file of `size` bytes, which `read(start, end)` reads."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read, self._size = read, size
        self._extents: list[tuple[int, bytes]] = []
        self._ahead = EXTENT_BYTES_MIN
        head = self.bytes_at(0, 100, 100)
        if not head.startswith(_MAGIC) or head[20]:
            raise DamagedFile("it is no file of a store")
        (page_bytes,) = struct.unpack_from(">H", head, 16)
        self.page_bytes = 65536 if page_bytes == 1 else page_bytes
        if self.page_bytes < 512 or size % self.page_bytes:
            raise DamagedFile("it is cut off")
        self.page_count = size // self.page_bytes
        self.version, self.application = struct.unpack_from(">I4xI", head, 60)

    def page(self, number: int) -> bytes:
        """A page, by its number from 1."""
        return self.pages(number, 1)

    def pages(self, number: int, most: int) -> bytes:
        """Up to `most` pages from a number on: those that one request brings."""
        if not 1 <= number <= self.page_count:
            raise DamagedFile(f"there is no page {number}")
        size = self.page_bytes
        most = min(most, self.page_count - number + 1)
        return self.bytes_at((number - 1) * size, size, most * size)

    def bytes_at(self, start: int, least: int, most: int) -> bytes:
        """From `start` on, `least` to `most` bytes: of a kept range if possible."""
        for index, (first, data) in enumerate(self._extents):
            if first <= start and start + least <= first + len(data):
                if index:
                    self._extents.insert(0, self._extents.pop(index))
                return data[start - first : start - first + most]
        ends = (start - first - len(data) for first, data in self._extents)
        follows = any(0 <= each <= EXTENT_BYTES_MIN for each in ends)
        self._ahead = min(2 * self._ahead, EXTENT_BYTES_MAX) if follows else EXTENT_BYTES_MIN
        end = min(start + max(self._ahead, least, min(most, EXTENT_BYTES_MAX)), self._size)
        data = self._read(start, end)
        if len(data) != end - start or len(data) < least:
            raise DamagedFile("it is cut off")
        self._extents.insert(0, (start, data))
        del self._extents[EXTENTS_MAX:]
        return data[:most]


class TableFile:
    """The tables of a file."""

    def __init__(self, pages: PagedFile) -> None:
        self._pages = pages
        self._roots: dict[str, int] = {}
        self._left = 0
        """The pages that may still be read: a damaged tree may have no end."""
        for _, (kind, name, _, root) in self._whole_rows(1, 0, 4):
            if kind == "table" and isinstance(name, str) and isinstance(root, int):
                self._roots[name] = root

    def rows(self, table: str, width: int, start: int = -(2**63)) -> Iterator[Row]:
        """The rows of a table with a key of at least `start`, ascending: the first `width` columns,
        or all (0)."""
        return self._whole_rows(self._root(table), start, width)

    def floor(self, table: str, key: int) -> int | None:
        """The greatest key of a row that is not above `key`."""
        self._left = DEPTH_MAX * DEPTH_MAX
        return self._floor(self._root(table), key, 0)

    def _root(self, table: str) -> int:
        if table not in self._roots:
            raise DamagedFile(f"there is no table {table}")
        return self._roots[table]

    def _whole_rows(self, root: int, start: int, width: int) -> Iterator[Row]:
        self._left = 2 * self._pages.page_count
        before = None
        for key, columns in self._rows(root, start, 0):
            if (before is not None and key <= before) or len(columns) < width:
                raise DamagedFile(f"row {key} is in no place of it")
            before = key
            yield key, columns[:width] if width else columns

    # The tree.

    def _cells(self, number: int, depth: int) -> tuple[bytes, bool, list[int], int]:
        """A page of the tree: its bytes, whether it is a leaf, its cells, its last child."""
        self._spend(1)
        if depth > DEPTH_MAX:
            raise DamagedFile("a tree without an end")
        page = self._pages.page(number)
        at = 100 if number == 1 else 0
        kind, _, count, _, _ = struct.unpack_from(">BHHHB", page, at)
        if kind not in (_INTERIOR, _LEAF):
            raise DamagedFile(f"page {number} is none of a table")
        is_leaf = kind == _LEAF
        begin = at + (8 if is_leaf else 12)
        if begin + 2 * count > len(page):
            raise DamagedFile(f"page {number} has too many rows")
        last = 0 if is_leaf else struct.unpack_from(">I", page, at + 8)[0]
        return page, is_leaf, list(struct.unpack_from(f">{count}H", page, begin)), last

    def _spend(self, pages: int) -> None:
        self._left -= pages
        if self._left < 0:
            raise DamagedFile("a tree without an end")

    def _children(self, page: bytes, cells: list[int], last: int) -> tuple[list[int], list[int]]:
        """The children of a page, and the greatest keys of all but the last one."""
        children, keys = [], []
        for cell in cells:
            children.append(_number(page, cell, ">I"))
            keys.append(_varint(page, cell + 4)[0])
        return [*children, last], keys

    def _rows(self, number: int, start: int, depth: int) -> Iterator[Row]:
        page, is_leaf, cells, last = self._cells(number, depth)
        if not is_leaf:
            children, keys = self._children(page, cells, last)
            for child in children[bisect_left(keys, start) :]:
                yield from self._rows(child, start, depth + 1)
            return
        for cell in cells:
            size, at = _varint(page, cell)
            key, at = _varint(page, at)
            if key >= start:
                yield key, _columns(self._payload(page, at, size))

    def _floor(self, number: int, key: int, depth: int) -> int | None:
        page, is_leaf, cells, last = self._cells(number, depth)
        if is_leaf:
            found = None
            for cell in cells:
                row = _varint(page, _varint(page, cell)[1])[0]
                if row > key:
                    break
                found = row
            return found
        children, keys = self._children(page, cells, last)
        at = bisect_left(keys, key)
        found = self._floor(children[at], key, depth + 1)
        if found is None and at:  # the greatest one of the child before
            found = self._floor(children[at - 1], key, depth + 1)
        return found

    # Values that are longer than a page.

    def _payload(self, page: bytes, at: int, size: int) -> bytes:
        usable = self._pages.page_bytes
        if not 0 <= size <= self._pages.page_count * usable:
            raise DamagedFile("a row is longer than the file")
        if size <= usable - 35:
            local = size
        else:
            least = (usable - 12) * 32 // 255 - 23
            local = least + (size - least) % (usable - 4)
            local = local if local <= usable - 35 else least
        pieces = [page[at : at + local]]
        if len(pieces[0]) < local:
            raise DamagedFile("a row is cut off")
        if local < size:
            pieces += self._overflow(_number(page, at + local, ">I"), size - local)
        return b"".join(pieces)

    def _overflow(self, number: int, left: int) -> Iterator[bytes]:
        """The rest of a row: a chain of pages, most of which follow one another."""
        room = self._pages.page_bytes - 4
        self._spend(-(-left // room))
        while left:
            wanted = -(-left // room)
            found = np.frombuffer(self._pages.pages(number, wanted), np.uint8)
            rows = found[: len(found) // (room + 4) * (room + 4)].reshape(-1, room + 4)
            following = np.ascontiguousarray(rows[:, :4]).view(">u4").ravel()
            expected: Any = np.arange(number + 1, number + 1 + len(rows), dtype=np.int64)
            odd = np.nonzero(following.astype(np.int64) != expected)[0]
            count = min(int(odd[0]) + 1 if len(odd) else len(rows), wanted)
            data = rows[:count, 4:].tobytes()[:left]
            yield data
            left -= len(data)
            number = int(following[count - 1])


def _number(data: bytes, at: int, form: str) -> int:
    try:
        found: int = struct.unpack_from(form, data, at)[0]
    except struct.error:
        raise DamagedFile("a page is cut off") from None
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of up to 64 bits, and its end."""
    found = 0
    try:
        for index in range(8):
            byte = data[at + index]
            found = found << 7 | byte & 0x7F
            if byte < 0x80:
                return found, at + index + 1
        found = found << 8 | data[at + 8]
    except IndexError:
        raise DamagedFile("a page is cut off") from None
    return found - 2**64 if found >= 2**63 else found, at + 9


def _columns(record: bytes) -> list[Value]:
    size, at = _varint(record, 0)
    found: list[Value] = []
    body = size
    while at < size:
        kind, at = _varint(record, at)
        if kind >= 12:
            end = body + (kind - 12) // 2
            piece = record[body:end]
            if len(piece) < end - body:
                raise DamagedFile("a row is cut off")
            found.append(piece if kind % 2 == 0 else piece.decode("utf-8", "replace"))
        elif kind in (8, 9):
            end = body
            found.append(kind - 8)
        elif 0 <= kind < 8:
            end = body + _SIZES[kind]
            if end > len(record):
                raise DamagedFile("a row is cut off")
            piece = record[body:end]
            if kind == 7:
                found.append(float(struct.unpack(">d", piece)[0]))
            else:
                found.append(int.from_bytes(piece, signed=True) if kind else None)
        else:
            raise DamagedFile("a row of no known form")
        body = end
    return found
