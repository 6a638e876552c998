"""S2S frames: a u24 big-endian length of what follows, a flag byte, a body (A.7).

The flag is `T CC R 0000`: terminal, compression, reconnect advised. A terminal body is a u16
status and the JSON of an error; any other is a message of `s2.proto`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millpond.transports.http.s2.codecs.compression import (
    COMPRESSED_BYTES_MIN,
    Compression,
    DecompressedTooLarge,
    NotCompressed,
    compress,
    decompress,
)
from millpond.transports.http.s2.errors import CodedError, ErrorCode, S2Error

FRAME_BYTES_MAX = 2**21
"""The most bytes of flag and body together, and of a body after decompression."""
HEAD_BYTES = 3
PIECE_BYTES = 2**10
"""Smaller pieces are joined: each would take more memory than its bytes."""

_TERMINAL = 0x80
_COMPRESSION_SHIFT = 5
_COMPRESSIONS = {each << _COMPRESSION_SHIFT: each for each in Compression}
_COMPRESSION_BITS = 0x60
_RECONNECT = 0x10


class BadFrame(CodedError):
    """The session's bytes cannot be read any further (400)."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.BAD_FRAME, text)


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame; `body` as it came, compressed or not."""

    body: bytes
    compression: Compression = Compression.NONE
    is_terminal: bool = False
    advises_reconnect: bool = False

    def message(self) -> bytes:
        """The message of a frame of a client. Raises BadFrame if it is terminal, or does not
        decompress to at most 2 MiB."""
        if self.is_terminal:
            raise BadFrame("only the server ends a session with a terminal frame")
        if self.compression is Compression.NONE:
            return self.body
        try:
            return decompress(self.body, self.compression, FRAME_BYTES_MAX)
        except (NotCompressed, DecompressedTooLarge) as error:
            raise BadFrame(f"frame body: {error}") from None


class Decoder:
    """Bytes in, frames out. After an error nothing more comes: say it, and end the session."""

    __slots__ = ("_frame_bytes_max", "_pieces", "_wanted_bytes", "buffered_bytes", "error")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._pieces: list[bytes] = []
        """A part of a frame. One buffer that grows would be copied, and leave holes in memory."""
        self.buffered_bytes = 0
        """The bytes of a frame that came so far."""
        self._wanted_bytes = HEAD_BYTES
        """The bytes of the frame, or of its head where not more is known."""
        self._frame_bytes_max = frame_bytes_max
        self.error: BadFrame | None = None

    @property
    def is_midway(self) -> bool:
        """A frame has begun, and its end has not come yet."""
        return self.buffered_bytes > 0

    @property
    def missing_bytes(self) -> int:
        """The bytes that the current frame needs to its end, as far as is known; 0: there is no
        frame."""
        return self._wanted_bytes - self.buffered_bytes if self._pieces else 0

    def clear(self) -> None:
        """Discard the frame of which a part has come: nothing more is fed."""
        self._pieces.clear()
        self.buffered_bytes, self._wanted_bytes = 0, HEAD_BYTES

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """The frames that `data` completes, also those before an error."""
        found: list[Frame] = []
        if self.error is not None:
            return found
        buffer = self._join(data)
        if not buffer:
            return found
        at, end = 0, len(buffer)
        self._wanted_bytes = HEAD_BYTES
        while end - at >= HEAD_BYTES:
            size = int.from_bytes(buffer[at : at + HEAD_BYTES], "big")
            if not self._is_possible(size):
                break
            after = at + HEAD_BYTES + size
            if after > end:
                self._wanted_bytes = after - at
                break
            flag = buffer[at + HEAD_BYTES]
            compression = _COMPRESSIONS.get(flag & _COMPRESSION_BITS)
            if compression is None:
                self.error = BadFrame("the frame has an unknown compression")
                break
            body = buffer[at + HEAD_BYTES + 1 : after]
            is_terminal, advises = bool(flag & _TERMINAL), bool(flag & _RECONNECT)
            found.append(Frame(body, compression, is_terminal, advises))
            at = after
        if self.error is None and at < end:
            self._keep(buffer[at:])
        return found

    def _join(self, data: bytes | memoryview) -> bytes:
        """All that is there with `data`, if that may complete a frame; else b"": it is kept."""
        if self.buffered_bytes + len(data) < self._wanted_bytes:
            self._keep(data)
            return b""
        pieces = self._pieces
        pieces.append(bytes(data))
        buffer = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.buffered_bytes = 0
        return buffer

    def _keep(self, data: bytes | memoryview) -> None:
        pieces = self._pieces
        if pieces and len(pieces[-1]) + len(data) <= PIECE_BYTES:
            pieces[-1] += data
        elif data:
            pieces.append(bytes(data))
        self.buffered_bytes += len(data)

    def _is_possible(self, size: int) -> bool:
        """False for a length that no frame may have; its bytes are not waited for."""
        if 0 < size <= self._frame_bytes_max:
            return True
        self.error = BadFrame(f"frame of {size} bytes: 1 to {self._frame_bytes_max} are allowed")
        return False


def encode(
    pieces: Sequence[bytes],
    compression: Compression = Compression.NONE,
    *,
    advises_reconnect: bool = False,
) -> bytes:
    """A message in pieces as a frame; compressed if it is long enough for that (A.7)."""
    flag = _RECONNECT if advises_reconnect else 0
    size = sum(map(len, pieces))
    if compression is not Compression.NONE and size >= COMPRESSED_BYTES_MIN:
        body = compress(b"".join(pieces), compression)
        flag |= compression << _COMPRESSION_SHIFT
        pieces, size = (body,), len(body)
    return b"".join(((size + 1 << 8 | flag).to_bytes(4, "big"), *pieces))


def encode_terminal(error: S2Error) -> bytes:
    """The last frame of a session that fails: what the unary call would have been answered."""
    body = error.status.to_bytes(2, "big") + error.body
    return (len(body) + 1 << 8 | _TERMINAL).to_bytes(4, "big") + body
