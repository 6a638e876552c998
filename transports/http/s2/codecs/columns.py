"""Records by columns, for readers that want many of them as arrays (docs/reference/s2.md,
"Columns").

A block has consecutive records, little-endian:

    count u32, flags u32, first sequence u64, timestamp u64, bytes of bodies u32, 0 u32
    timestamps   u64 each   flag 1; without it `timestamp` is everybody's
    lengths      u32 each
    bodies
    headers                 flag 2: u32 pairs each, u32 lengths of names and values, all of these
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable
from itertools import chain

from millpond.actors.streams.messages import Headers, RecordColumns

MEDIA_TYPE = b"s2s/columns"
RECORDS_MAX = 16_384
"""The most records of a frame. Other encodings have 1000, as S2 requires."""

_HEAD = struct.Struct("<IIQQII")
_TIMESTAMPS, _HEADERS = 1, 2


def block(span: RecordColumns) -> list[bytes]:
    """A span as a block, in pieces."""
    bodies, timestamps, headers = span.bodies, span.timestamps, span.headers
    flags = _TIMESTAMPS if timestamps is not None else 0
    flags |= _HEADERS if headers is not None else 0
    sizes = array("I", map(len, bodies))
    head = _HEAD.pack(len(bodies), flags, span.first, span.timestamp, sum(sizes), 0)
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
