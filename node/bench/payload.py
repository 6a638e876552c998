"""Messages whose content can be checked by whoever receives one."""

from __future__ import annotations

import struct
from zlib import crc32

_HEAD = struct.Struct(">IQ")
_CHECKSUM = struct.Struct(">I")
HEAD_BYTES = _HEAD.size + _CHECKSUM.size
SIZE_MIN = HEAD_BYTES


class Payload:
    """Messages of `size` bytes from the producer `tag`: tag u32, sequence u64, crc u32, filler."""

    __slots__ = ("_filler", "_tag")

    def __init__(self, tag: int, size: int) -> None:
        if size < SIZE_MIN:
            raise ValueError(f"a message that can be checked has at least {SIZE_MIN} bytes")
        self._tag = tag
        self._filler = bytes((tag + at) & 0xFF for at in range(size - HEAD_BYTES))

    def make(self, sequence: int) -> bytes:
        """The message of this number."""
        head = _HEAD.pack(self._tag, sequence)
        return head + _CHECKSUM.pack(crc32(head)) + self._filler

    def read(self, data: bytes) -> int | None:
        """The number of one of this producer's messages; None for any other content."""
        if len(data) < HEAD_BYTES:
            return None
        tag, sequence = _HEAD.unpack_from(data)
        (checksum,) = _CHECKSUM.unpack_from(data, _HEAD.size)
        is_whole = checksum == crc32(data[: _HEAD.size]) and data[HEAD_BYTES:] == self._filler
        return sequence if is_whole and tag == self._tag else None
