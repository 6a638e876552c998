"""Records as a node sends them by columns: blocks of consecutive records, little-endian.

    count u32, flags u32, first sequence u64, timestamp u64, bytes of bodies u32, 0 u32
    timestamps   u64 each   flag 1; without it all have `timestamp`
    lengths      u32 each
    bodies
    headers                 flag 2: u32 pairs each, u32 lengths of names and values, all of these

Nothing is done for each record: the bodies of a block are a buffer of Arrow's as they came.
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


def decode_blocks(data: bytes) -> Iterator[Columns]:
    """The blocks of a frame. Raises PipelineError."""
    at = 0
    try:
        while at < len(data):
            columns, at = _decode(data, at)
            yield columns
    except (struct.error, ValueError) as error:
        raise PipelineError("bad_answer", f"a batch that cannot be read: {error}") from None


def _decode(data: bytes, at: int) -> tuple[Columns, int]:
    """A block and its end."""
    count, flags, first, timestamp, size, _ = _HEAD.unpack_from(data, at)
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
    return Columns(sequences, timestamps, bodies, headers), at


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
