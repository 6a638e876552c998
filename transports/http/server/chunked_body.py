"""Chunked bodies (RFC 9112, 7.1): where one ends, so that the request behind it is not parsed
with it. The parser judges the framing; this only follows it.
"""

from __future__ import annotations

import re
from math import inf

END = b"\r\n\r\n"
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}(?![0-9A-Fa-f])")
_LINE_BYTES = 32
"""The beginning of a chunk's line that is kept while the rest of it is awaited: more than a size
has."""


class ChunkedBody:
    """The position in a body in chunks, whose bytes come in any pieces."""

    __slots__ = ("_is_last", "_left", "_line", "_tail")

    def __init__(self) -> None:
        self._left: float = 0
        """The bytes of the chunk, and the end of its line, that are to come."""
        self._line = b""
        self._is_last = False
        """True: the chunk of size 0 has begun."""
        self._tail = b"\r\n"
        """The last three bytes behind that size, where the end of the trailers may have begun."""

    def size_to_end(self, piece: bytes, start: int, stop: int) -> int:
        """The bytes of a piece from `start` up to the end of the body; all up to `stop` if it is
        not there. The next call goes on behind them. A broken size has no end."""
        at = start
        while at < stop and not self._is_last:
            if self._left:
                step = int(min(self._left, stop - at))
                self._left -= step
                at += step
            else:
                at = self._read_size(piece, at, stop)
        if at < stop:
            return self._end_of_trailers(piece, at, stop) - start
        return stop - start

    def _read_size(self, piece: bytes, at: int, stop: int) -> int:
        """Read a chunk's line. Returns the index behind what there is of it."""
        end = piece.find(b"\n", at, stop) + 1
        line = self._line + piece[at : min(end or stop, at + _LINE_BYTES)]
        if not end:
            self._line = line[:_LINE_BYTES]
            return stop
        self._line = b""
        size = _SIZE.match(line)
        self._left = inf if size is None else int(size[0], 16)
        self._is_last = not self._left
        if self._left:
            self._left += len(b"\r\n")
        return end

    def _end_of_trailers(self, piece: bytes, at: int, stop: int) -> int:
        before = self._tail
        straddling = (before + piece[at : min(stop, at + len(END) - 1)]).find(END)
        if straddling >= 0:
            return at + straddling + len(END) - len(before)
        end = piece.find(END, at, stop)
        if end >= 0:
            return end + len(END)
        self._tail = (before + piece[max(at, stop - 3) : stop])[-3:]
        return stop
