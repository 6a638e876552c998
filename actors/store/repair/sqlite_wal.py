"""The write-ahead log of an SQLite file, read without SQLite.

SQLite stops at the first frame with a wrong checksum. Checksums are chained, and each frame has the
one up to itself, so what follows a damaged frame can be checked all the same.
https://sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

PAGE_BYTES = 4096
"""Of all files of the store."""

_HEADER = Struct(">IIII8s8s")  # magic, format, page size, checkpoints, salts, checksums
_FRAME = Struct(">II8s8s")  # page, pages after a commit, salts, checksums
_SUMS = Struct(">II")
_BIG_ENDIAN = 0x377F0683
_FRAME_BYTES = _FRAME.size + PAGE_BYTES
_MASK = 2**32 - 1


class WalPage(NamedTuple):
    """A page in a log. `is_sound`: the checksum of its frame is right."""

    number: int
    data: bytes
    is_sound: bool


class WalPages(NamedTuple):
    """The pages in a log, in the order of writing, up to the last commit.

    `page_count`: how many pages the file has after it; 0 if that is not known. `is_damaged`: SQLite
    takes not all of it.
    """

    pages: list[WalPage]
    page_count: int
    is_damaged: bool


def read_wal(wal: bytes) -> WalPages:
    """The pages of the transactions in a log; damaged ones as well.

    A log is written from its beginning again and again, with other salts each time, so what has the
    salts of the header is of the last time. A damaged frame that says that it is a commit counts
    as one.
    """
    if len(wal) < _HEADER.size + _FRAME_BYTES:
        return WalPages([], 0, False)
    magic, _, _, _, salts, sums = _HEADER.unpack_from(wal)
    is_big = magic == _BIG_ENDIAN
    is_damaged = _checksum(wal[:24], (0, 0), is_big=is_big) != _SUMS.unpack(sums)
    if is_damaged:
        # The header is damaged; the frames repeat the salts.
        salts = wal[_HEADER.size + 8 : _HEADER.size + 16]
    offsets = range(_HEADER.size, len(wal) - _FRAME_BYTES + 1, _FRAME_BYTES)
    of_this_time = [at for at in offsets if wal[at + 8 : at + 16] == salts]
    pages: list[WalPage] = []
    committed = page_count = 0
    for at in range(_HEADER.size, max(of_this_time, default=0) + 1, _FRAME_BYTES):
        number, size, _, own_sums = _FRAME.unpack_from(wal, at)
        data = wal[at + _FRAME.size : at + _FRAME_BYTES]
        before = _checksum(wal[at : at + 8], _SUMS.unpack(sums), is_big=is_big)
        is_sound = _checksum(data, before, is_big=is_big) == _SUMS.unpack(own_sums)
        pages.append(WalPage(number, data, is_sound))
        if size:
            committed, page_count = len(pages), size if is_sound else 0
        sums = own_sums
    del pages[committed:]
    is_damaged = bool(pages) and (is_damaged or not all(page.is_sound for page in pages))
    return WalPages(pages, page_count, is_damaged)


def _checksum(data: bytes, before: tuple[int, int], *, is_big: bool) -> tuple[int, int]:
    """The checksum of SQLite's log over a multiple of eight bytes, continued from another."""
    one, other = before
    words = Struct((">" if is_big else "<") + "II")
    for first, second in words.iter_unpack(data):
        one = (one + first + other) & _MASK
        other = (other + second + one) & _MASK
    return one, other
