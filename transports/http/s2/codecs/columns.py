"""Records by columns, for readers that want many of them as arrays (docs/reference/s2.md,
"Columns").

A block has consecutive records, little-endian:

    count u32, flags u32, first sequence u64, timestamp u64, bytes of bodies u32, bytes left u32
    timestamps   u64 each   flag 1; without it `timestamp` is everybody's
    lengths      u32 each
    bodies
    headers                 flag 2: u32 pairs each, u32 lengths of names and values, all of these

A reader that accepts them (`LARGE`) gets records of more than 1 MiB in pieces: blocks of one record
with a part of its body each. `bytes left` of the body are in the blocks that follow, the last one
of which has 0, as all other blocks have, and the record's headers.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from millpond.actors.streams.messages import Headers, RecordColumns

MEDIA_TYPE = b"s2s/columns"
LARGE = MEDIA_TYPE + b";large"
"""The media type of readers that join the pieces of a large record; others are not sent any."""
RECORDS_MAX = 16_384
"""The most records of a frame. Other encodings have 1000, as S2 requires."""

_HEAD = struct.Struct("<IIQQII")
_TIMESTAMPS, _HEADERS = 1, 2


PIECE_BYTES = 2**20
"""The most bytes of a record in one block of it: a frame has at most 2 MiB."""


def is_large(span: RecordColumns) -> bool:
    """Whether the span is one record that takes several blocks."""
    return len(span.bodies) == 1 and len(span.bodies[0]) > PIECE_BYTES


def pieces_of(span: RecordColumns) -> Iterator[list[bytes]]:
    """The blocks of a large record, each in pieces."""
    (body,) = span.bodies
    view = memoryview(body)
    for at in range(0, len(body), PIECE_BYTES):
        piece = bytes(view[at : at + PIECE_BYTES])
        left = len(body) - at - len(piece)
        headers = None if left else span.headers
        yield block(msgspec.structs.replace(span, bodies=[piece], headers=headers), left)


def block(span: RecordColumns, left: int = 0) -> list[bytes]:
    """A span as a block, in pieces; `left` bytes of its record follow."""
    bodies, timestamps, headers = span.bodies, span.timestamps, span.headers
    flags = _TIMESTAMPS if timestamps is not None else 0
    flags |= _HEADERS if headers is not None else 0
    sizes = array("I", map(len, bodies))
    head = _HEAD.pack(len(bodies), flags, span.first, span.timestamp, sum(sizes), left)
    pieces = [head]
    if timestamps is not None:
        pieces.append(_little(array("Q", timestamps)))
    pieces.append(_little(sizes))
    pieces += bodies
    if headers is not None:
        pieces += _pairs(headers)
    return pieces


def _pairs(headers: Iterable[Headers]) -> list[bytes]:
    rows = list(headers)
    texts = list(chain.from_iterable(chain.from_iterable(rows)))
    return [
        _little(array("I", map(len, rows))),
        _little(array("I", map(len, texts))),
        *texts,
    ]


def _little(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
