"""Positions in a log, for packages that do not know the store."""

from __future__ import annotations

from enum import Enum, auto

import msgspec


class Position(msgspec.Struct, frozen=True, gc=False, order=True):
    """The id of a record, as S3P counts them: two u64, compared in this order."""

    ms: int
    seq: int


class SeekBy(Enum):
    """The unit of a position to read a log from."""

    SEQUENCE = auto()
    TIMESTAMP = auto()
    ID = auto()


class Seek(msgspec.Struct, frozen=True):
    """Read from the first chunk that ends after `sequence` and, if they are what counts, holds a
    record at or above the timestamp or id, for about `bytes_max` bytes and no more chunks than
    hold `count_max` records (at least one chunk, if there is any). With `for_sizes` chunks whose
    data is in the replica alone come without it, as `ColdChunk`."""

    by: SeekBy
    sequence: int = 0
    timestamp: int = 0
    id: Position = Position(0, 0)
    bytes_max: int = 2**20
    count_max: int = 2**63
    for_sizes: bool = False
