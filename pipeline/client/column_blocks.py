"""Records as a node sends them by columns: blocks of consecutive records, little-endian.

    count u32, flags u32, first sequence u64, timestamp u64, bytes of bodies u32, bytes left u32
    timestamps   u64 each   flag 1; without it all have `timestamp`
    lengths      u32 each
    bodies
    headers                 flag 2: u32 pairs each, u32 lengths of names and values, all of these

A record of more than 1 MiB comes in blocks of its own, with a part of its body each: `bytes left`
are in the blocks that follow. Nothing is done for each record: the bodies of a block are a buffer
of Arrow's as they came.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from millpond.pipeline.client.columns import Columns, Numbers
from millpond.pipeline.client.s2_codec import Headers
from millpond.pipeline.errors import PipelineError

_HEAD = struct.Struct("<IIQQII")
_TIMESTAMPS, _HEADERS = 1, 2
RECORD_BYTES_MAX = 2**30
"""A record above this is none of a node's."""


class BlockDecoder:
    """A decoder of the frames of one session."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._first = 0
        self._left = 0

    def decode(self, data: bytes) -> Iterator[Columns]:
        """The blocks of a frame. Raises PipelineError."""
        at = 0
        try:
            while at < len(data):
                columns, left, at = _decode(data, at)
                if left or self._pieces:
                    self._add(columns, left)
                    if left:
                        continue
                    columns = columns._replace(bodies=pa.array([b"".join(self._pieces)]))
                    self._pieces = []
                yield columns
        except (struct.error, ValueError) as error:
            raise PipelineError("bad_answer", f"a batch that cannot be read: {error}") from None

    def _add(self, columns: Columns, left: int) -> None:
        """Keep a piece of a large record. Raises ValueError."""
        if len(columns.bodies) != 1 or left > RECORD_BYTES_MAX:
            raise ValueError("no piece of a record")
        piece = columns.bodies[0].as_py()
        first = int(columns.sequences[0])
        if self._pieces and (first != self._first or left + len(piece) != self._left):
            raise ValueError("a piece that does not continue the one before")
        self._pieces.append(piece)
        self._first, self._left = first, left


def _decode(data: bytes, at: int) -> tuple[Columns, int, int]:
    """A block, how many bytes of its record are left for others, and its end."""
    count, flags, first, timestamp, size, left = _HEAD.unpack_from(data, at)
    at += _HEAD.size
    if not count:
        raise ValueError("a block without records")
    timestamps: Numbers
    if flags & _TIMESTAMPS:
        timestamps = np.frombuffer(data, "<u8", count, at)
        at += 8 * count
    lengths: Numbers = np.frombuffer(data, "<u4", count, at)
    if not flags & _TIMESTAMPS:
        timestamps = np.full(count, timestamp, np.uint64)
    at += 4 * count
    offsets: Numbers = np.empty(count + 1, np.int64)
    offsets[0] = at
    np.cumsum(lengths, out=offsets[1:], dtype=np.int64)
    offsets[1:] += at
    at += size
    if offsets[-1] != at or at > len(data):
        raise ValueError("bodies that are cut off")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    bodies = pa.Array.from_buffers(pa.binary(), count, buffers)
    headers, at = _headers(data, at, count) if flags & _HEADERS else (None, at)
    sequences = np.arange(first, first + count, dtype=np.uint64)
    return Columns(sequences, timestamps, bodies, headers), left, at


def _headers(data: bytes, at: int, count: int) -> tuple[list[Headers], int]:
    pairs = np.frombuffer(data, "<u4", count, at).tolist()
    at += 4 * count
    sizes = np.frombuffer(data, "<u4", 2 * sum(pairs), at).tolist()
    at += 4 * len(sizes)
    if at + sum(sizes) > len(data):
        raise ValueError("headers that are cut off")
    texts = []
    for size in sizes:
        texts.append(data[at : at + size])
        at += size
    found = iter(zip(texts[::2], texts[1::2], strict=True))
    return [[next(found) for _ in range(each)] for each in pairs], at
