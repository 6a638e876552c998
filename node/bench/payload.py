"""What the messages say, so that whoever gets one can tell whether it is the right one."""

from __future__ import annotations

import struct
from zlib import crc32

_SAID = struct.Struct(">IQ")
_CHECKSUM = struct.Struct(">I")
HEAD_BYTES = _SAID.size + _CHECKSUM.size
SIZE_MIN = HEAD_BYTES


class Payload:
    """Messages of `size` bytes from the producer `tag`: tag u32, sequence u64, crc u32, filler."""

    __slots__ = ("_filler", "_tag")

    def __init__(self, tag: int, size: int) -> None:
        if size < SIZE_MIN:
            raise ValueError(f"a message that can be checked has at least {SIZE_MIN} bytes")
        self._tag = tag
        self._filler = bytes((tag + place) & 0xFF for place in range(size - HEAD_BYTES))

    def make(self, sequence: int) -> bytes:
        """The message at this place."""
        said = _SAID.pack(self._tag, sequence)
        return said + _CHECKSUM.pack(crc32(said)) + self._filler

    def read(self, data: bytes) -> int | None:
        """The sequence of one of this producer's messages; None: it is not what was put."""
        if len(data) < HEAD_BYTES:
            return None
        tag, sequence = _SAID.unpack_from(data)
        (checksum,) = _CHECKSUM.unpack_from(data, _SAID.size)
        is_whole = checksum == crc32(data[: _SAID.size]) and data[HEAD_BYTES:] == self._filler
        return sequence if is_whole and tag == self._tag else None
