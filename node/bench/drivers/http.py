"""A parser of HTTP/1.1 responses; the body of a session comes piece by piece."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

END = b"\r\n\r\n"
CRLF = b"\r\n"
NO_CONTENT = 204


class NotHttp(Exception):
    """The bytes are no HTTP; no more can be read."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A part of a response's body. `is_first` and `is_last` of that response."""

    status: int
    body: bytes
    is_first: bool
    is_last: bool


class Responses:
    """A parser of responses: a whole one is one piece, a chunked one is a piece for each chunk."""

    def __init__(self) -> None:
        self._buffer = b""
        self._status = 0
        self._left: int | None = None
        """Bytes of the body; None: it is chunked."""
        self._is_within = self._is_begun = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The pieces that these bytes complete. Raises NotHttp."""
        self._buffer += data
        while True:
            if not self._is_within and not self._head():
                return
            piece = self._whole() if self._left is not None else self._chunk()
            if piece is None:
                return
            self._is_begun = True
            self._is_within = not piece.is_last
            yield piece

    def _head(self) -> bool:
        end = self._buffer.find(END)
        if end < 0:
            return False
        first, *lines = self._buffer[:end].split(CRLF)
        if not first.startswith(b"HTTP/1.1 ") or not first[9:12].isdigit():
            raise NotHttp(f"no response: {first[:40]!r}")
        self._buffer = self._buffer[end + 4 :]
        headers = dict(_field(line) for line in lines)
        self._status = int(first[9:12])
        length = headers.get(b"content-length")
        self._left = 0 if self._status == NO_CONTENT else None if length is None else int(length)
        self._is_within, self._is_begun = True, False
        return True

    def _whole(self) -> Piece | None:
        left = self._left
        assert left is not None
        if len(self._buffer) < left:
            return None
        body, self._buffer = self._buffer[:left], self._buffer[left:]
        return Piece(self._status, body, is_first=True, is_last=True)

    def _chunk(self) -> Piece | None:
        """All chunks that are here, as one piece; the last one may be among them."""
        buffer, at, bodies, is_last = self._buffer, 0, [], False
        while not is_last:
            line = buffer.find(CRLF, at)
            if line < 0:
                break
            size = int(buffer[at:line], 16)
            end = line + 2 + size + 2
            if len(buffer) < end:
                break
            bodies.append(buffer[line + 2 : end - 2])
            at, is_last = end, not size
        if not bodies:
            return None
        self._buffer = buffer[at:]
        return Piece(self._status, b"".join(bodies), not self._is_begun, is_last)


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.strip().lower(), value.strip()
