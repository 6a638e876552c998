"""Looks at the lengths of HTTP/2's frames as they come, before anything waits for their ends.

`h2` keeps a frame until it is whole and measures it then, and takes 64 pieces of a head; so a few
bytes could have it keep megabytes. What it is given is checked here first (RFC 9113, 4.1, 4.2).
"""

from __future__ import annotations

HEADER_BYTES = 9
_HEADERS, _PUSH_PROMISE, _CONTINUATION = 1, 5, 9
_END_HEADERS = 4


class FrameTooLong(Exception):
    """a frame, or a head in several, is longer than is taken"""


class FrameLimiter:
    """Counts through the frames of one connection, behind its preface."""

    __slots__ = (
        "_frame_bytes_max",
        "_head_bytes",
        "_head_bytes_max",
        "_header",
        "_left",
        "frames",
        "is_partial",
    )

    def __init__(self, frame_bytes_max: int, head_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._head_bytes_max = head_bytes_max
        self._header = b""
        self._left = 0
        self._head_bytes = 0
        self.frames = 0
        """The frames that began in the last input."""
        self.is_partial = False
        """The end of a frame, or of a head, is still to come."""

    def check(self, data: bytes) -> None:
        """Raises FrameTooLong."""
        at, size = 0, len(data)
        self.frames = 0
        while at < size:
            if self._left:
                step = min(self._left, size - at)
                self._left -= step
                at += step
                continue
            need = HEADER_BYTES - len(self._header)
            self._header += data[at : at + need]
            at += need
            if len(self._header) == HEADER_BYTES:
                self._begin()
        self.is_partial = bool(self._left or self._header or self._head_bytes)

    def _begin(self) -> None:
        header, self._header = self._header, b""
        self.frames += 1
        length, kind, flags = int.from_bytes(header[:3], "big"), header[3], header[4]
        if length > self._frame_bytes_max:
            raise FrameTooLong
        self._left = length
        if kind in (_HEADERS, _PUSH_PROMISE, _CONTINUATION):
            self._head_bytes += length + 1
            if self._head_bytes > self._head_bytes_max:
                raise FrameTooLong
            if flags & _END_HEADERS:
                self._head_bytes = 0
