"""Looks at the lengths of HTTP/2's frames as they come, before anything waits for their ends.

`h2` keeps a frame until it is whole and measures it then, and takes 64 pieces of a head; so a few
bytes could have it keep megabytes. Its input is checked here first (RFC 9113, 4.1, 4.2).
"""

from __future__ import annotations

HEADER_BYTES = 9
_HEADERS, _PUSH_PROMISE, _CONTINUATION = 1, 5, 9
_END_HEADERS = 4


class FrameTooLong(Exception):
    """a frame is longer than is taken"""


class HeadTooLong(Exception):
    """a head, in one frame or several, is longer than is taken"""


class FrameLimiter:
    """The limits on the frames of one connection, applied behind its preface as they come."""

    __slots__ = (
        "_frame_bytes_max",
        "_head_bytes_max",
        "_header",
        "_is_head_ending",
        "_left",
        "frames",
        "head_bytes",
        "is_partial",
        "whole_from",
        "whole_head_bytes",
    )

    def __init__(self, frame_bytes_max: int, head_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._head_bytes_max = head_bytes_max
        self._header = b""
        self._left = 0
        self._is_head_ending = False
        """The frame under way is the last of a head."""
        self.head_bytes = 0
        """The bytes of a head whose end has not come."""
        self.whole_head_bytes = 0
        """The bytes of the head with whose end the last input ended; 0: it ended with none."""
        self.frames = 0
        """The frames that began in the last input."""
        self.is_partial = False
        """The end of a frame, or of a head, is still to come."""
        self.whole_from = 0
        """The place in the last input behind the frame, or the head, that had begun before; the end
        of what was looked at where it goes on."""

    def check(self, data: bytes, at: int) -> int:
        """Look at the input from `at` on, up to the end of the first head. Gives the place behind
        it, or the end of the input. Raises FrameTooLong and HeadTooLong."""
        size = len(data)
        self.frames = self.whole_head_bytes = 0
        is_within = self.is_partial
        self.whole_from = at
        while at < size and not self.whole_head_bytes:
            if self._left:
                step = min(self._left, size - at)
                self._left -= step
                at += step
            else:
                need = HEADER_BYTES - len(self._header)
                self._header += data[at : at + need]
                at = min(at + need, size)
                if len(self._header) == HEADER_BYTES:
                    self._begin()
            if self._is_head_ending and not self._left:
                self._is_head_ending = False
                self.whole_head_bytes, self.head_bytes = self.head_bytes, 0
            if is_within:
                self.whole_from = at
                is_within = bool(self._left or self._header or self.head_bytes)
        self.is_partial = bool(self._left or self._header or self.head_bytes)
        return at

    def _begin(self) -> None:
        header, self._header = self._header, b""
        self.frames += 1
        length, kind, flags = int.from_bytes(header[:3], "big"), header[3], header[4]
        if length > self._frame_bytes_max:
            raise FrameTooLong
        self._left = length
        if kind in (_HEADERS, _PUSH_PROMISE, _CONTINUATION):
            self.head_bytes += length + 1
            if self.head_bytes > self._head_bytes_max:
                raise HeadTooLong
            self._is_head_ending = bool(flags & _END_HEADERS)
