"""A log put together from its damaged file and from the journal.

Every record keeps its sequence, and no sequence that was given out is given out again: where
records are lost a chunk without data stands for them, which readers step over. What is lost at the
beginning counts as trimmed; but the records of a log may begin behind those of another one, which
are not lost (`LogBase`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import msgspec

from millpond.actors.store.changes import Chunk, LogChange, MetadataSet, Position
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.repair.salvage import SalvagedLog


class LogBase(msgspec.Struct, frozen=True):
    """The point at which the own records of a log begin: those below are another log's. The id and
    timestamp are those of the last one there."""

    first: int = 0
    last_id: Position = Position(0, 0)
    last_timestamp: int = 0


BaseOf = Callable[[Mapping[bytes, bytes]], LogBase]
"""Computes it from the metadata of a log."""


def no_base(metadata: Mapping[bytes, bytes]) -> LogBase:
    """All records are the log's own."""
    return LogBase()


class RebuiltLog(msgspec.Struct):
    """`memtable` is all of the log. `lost` are ranges of sequences, first and last; the records
    below `base` belong to another log.

    `is_whole_known`: else records before the first one and after the last one may be lost as well.
    """

    memtable: LogMemtable
    lost: list[tuple[int, int]]
    is_whole_known: bool
    base: int = 0

    @property
    def records(self) -> int:
        """The number of records left, those of another log included."""
        memtable = self.memtable
        tail = memtable.chunks[-1].end if memtable.chunks else self.base
        start = memtable.trim_point
        return tail - start - sum(last + 1 - first for first, last in self.lost if first >= start)


def rebuild_log(
    below: SalvagedLog | None,
    above: LogMemtable | None,
    tail: int | None,
    base_of: BaseOf = no_base,
) -> RebuiltLog:
    """Put together what its file had, what the journal has over that, and the `tail` that the
    catalog knows (None: it does not)."""
    above = LogMemtable(is_oldest=True) if above is None else above
    newer, is_fresh = _latest(above)
    older = [] if below is None or is_fresh else below.chunks
    chunks = _merged(older, newer)
    if chunks is None:
        chunks, is_fresh = newer, True
    if is_fresh:
        below, tail = None, None
    header = None if below is None else below.header
    is_known = below is None or header is not None
    if header is not None:
        end = Chunk(header.tail, 0, 0, header.end_timestamp, Position(0, 0), header.end_id, b"")
    else:
        end = Chunk(tail or 0, 0, 0, 0, Position(0, 0), Position(0, 0), b"")
    point = max(above.trim_point, 0 if header is None else header.trim_point)
    metadata = {} if below is None else dict(below.metadata)
    memtable = LogMemtable(is_oldest=True)
    memtable.fold(MetadataSet(*each) for each in {**metadata, **above.metadata}.items())
    base = base_of({name: value for name, value in memtable.metadata.items() if value is not None})
    if not is_known and chunks and not base.first:
        point = max(point, chunks[0].first)
    return RebuiltLog(memtable, _fill(memtable, chunks, point, end, base), is_known, base.first)


def _latest(memtable: LogMemtable) -> tuple[list[Chunk], bool]:
    """The chunks in the journal of the log that there is now. True: it is another one than that in
    the file. That it was deleted in between may be told by nothing but sequences that go back."""
    chunks, start = memtable.chunks, 0
    for at, (one, other) in enumerate(pairwise(chunks), 1):
        if other.first < one.end:
            start = at
    return chunks[start:], memtable.is_fresh or start > 0


def _merged(older: list[Chunk], newer: list[Chunk]) -> list[Chunk] | None:
    """All of them, ascending; None: both have the same sequences with different records."""
    by_first = {each.first: each for each in older}
    for chunk in newer:
        if by_first.setdefault(chunk.first, chunk) != chunk:
            return None
    chunks = [by_first[first] for first in sorted(by_first)]
    is_one_log = all(one.end <= other.first for one, other in pairwise(chunks))
    return chunks if is_one_log else None


def _fill(
    memtable: LogMemtable, chunks: list[Chunk], point: int, end: Chunk, base: LogBase
) -> list[tuple[int, int]]:
    """Bring chunks into a memtable, without holes up to `end`; gives what is lost."""
    tail = max(end.first, chunks[-1].end if chunks else 0)
    point = min(point, max(tail, base.first))
    before = Chunk(base.first, 0, 0, base.last_timestamp, base.last_id, base.last_id, b"")
    is_behind = point < base.first
    """There are records before the first one here, so what is lost behind them is a hole."""
    kept: list[Chunk] = []
    lost: list[tuple[int, int]] = []
    at = max(point, base.first)
    for chunk in chunks:
        if chunk.end <= point:
            end = _later(end, chunk)
            continue
        if chunk.first > at:
            lost.append((at, chunk.first - 1))
            if kept or is_behind:
                kept.append(_lost_chunk(at, chunk.first, kept[-1] if kept else before))
            else:
                point = chunk.first
        kept.append(chunk)
        at = chunk.end
    if at < tail:
        lost.append((at, tail - 1))
        point = point if kept or is_behind else tail
    if tail and (at < tail or not kept):
        kept.append(_lost_chunk(at, tail, _later(end, kept[-1] if kept else before)))
    changes: list[LogChange] = [*kept]
    memtable.fold(changes)
    memtable.trim_point = point
    return lost


def _lost_chunk(first: int, end: int, before: Chunk) -> Chunk:
    """A chunk for records that are lost; its times and ids are at the end of what was before."""
    times = before.last_timestamp, before.last_timestamp
    return Chunk(first, end - first, *times, before.last_id, before.last_id, b"")


def _later(one: Chunk, other: Chunk) -> Chunk:
    return one if one.last_id >= other.last_id else other
