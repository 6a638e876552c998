"""The list of the journal's segments: what proves that one is missing, or is not what was written.

The catalog keeps it. A segment is listed before anything in it is acknowledged, its row is
completed when the next one begins, and it leaves the list before its file is removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

ID_MAX = 2**63 - 1
ID_STEP = 5 * 60 * 1000 << 22
"""Message ids are reserved so far ahead: those of five minutes."""
NAMES_BYTES_MAX = 4 * 2**20
"""The names of a segment are listed up to about this size; of more, any name may be in it."""


class SegmentEnd(NamedTuple):
    """A segment as the next one knows it: its number, its end, and the CRC of all before that."""

    number: int = 0
    end: int = 0
    crc: int = 0


class Segment(msgspec.Struct, frozen=True):
    """The row of a segment.

    It gets `size_max` bytes at most. Once complete, `crc` covers everything before `end`, which was
    synced; the last lsn and message id up to there are `last_lsn` and `last_id`, and `names` maps
    each name to its last lsn in the segment (None: unknown). `is_noted`: damage in it is reported,
    and the rest of the row tells what is there since; another loss is found again.
    """

    number: int
    salt: int
    first_lsn: int
    size_max: int
    end: int = 0
    crc: int = 0
    last_lsn: int = 0
    last_id: int = 0
    names: dict[bytes, int] | None = None
    is_noted: bool = False

    @property
    def is_complete(self) -> bool:
        """True: nothing is written to the segment any more."""
        return self.end > 0

    @property
    def link(self) -> SegmentEnd:
        """The segment as the next one knows it."""
        return SegmentEnd(self.number, self.end, self.crc)


class SegmentList(Protocol):
    """The list, as the journal's writer changes it: durable on return. Methods raise OSError."""

    @property
    def generation(self) -> int:
        """A number that each change of the catalog raises."""

    @property
    def id_mark(self) -> int:
        """The highest message id that may be acknowledged."""

    def begin(self, opened: Segment, completed: Segment | None) -> None:
        """List a new segment, and complete the row of the one before."""

    def complete(self, segment: Segment) -> None:
        """Complete the row of the last segment: the node stops."""

    def forget(self, number: int) -> None:
        """Take a segment from the list: its file is about to be removed."""

    def reserve_ids(self, mark: int) -> None:
        """Raise the id mark."""


class MemorySegments:
    """A list in memory, for a journal without a catalog."""

    def __init__(self) -> None:
        self.generation = 0
        self.id_mark = 0
        self.rows: dict[int, Segment] = {}

    def begin(self, opened: Segment, completed: Segment | None) -> None:
        if completed is not None:
            self.rows[completed.number] = completed
        self.rows[opened.number] = opened
        self.generation += 1

    def complete(self, segment: Segment) -> None:
        self.rows[segment.number] = segment
        self.generation += 1

    def forget(self, number: int) -> None:
        self.rows.pop(number, None)
        self.generation += 1

    def reserve_ids(self, mark: int) -> None:
        self.id_mark = mark
        self.generation += 1


def listable(names: Mapping[bytes, int]) -> dict[bytes, int] | None:
    """A copy of the names, or None if they are too many to be listed."""
    return dict(names) if sum(map(len, names)) + 16 * len(names) <= NAMES_BYTES_MAX else None
