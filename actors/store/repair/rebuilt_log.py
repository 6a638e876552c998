"""A log put together from its damaged file and from the journal.

Every record keeps its sequence, and no sequence that was given out is given out again: where
records are lost a chunk without data stands for them, which readers step over. Records lost at the
beginning count as trimmed; but the records of a log may begin behind those of another one, which
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
    timestamp are those of the last one there. The `unused` sequences before that point are no
    record's."""

    first: int = 0
    last_id: Position = Position(0, 0)
    last_timestamp: int = 0
    unused: int = 0


SEQUENCE_MAX = 2**63 - 1

BaseOf = Callable[[Mapping[bytes, bytes]], LogBase]
"""Computes it from the metadata of a log."""


def no_base(metadata: Mapping[bytes, bytes]) -> LogBase:
    """All records are the log's own."""
    return LogBase()


class RebuiltLog(msgspec.Struct):
    """`memtable` is all of the log. `lost` are ranges of sequences, first and last; the records
    below `base` belong to another log.

    `is_whole_known`: else records before the first one and after the last one may be lost as well.
    `is_deleted`: the log was deleted, and nothing was written after that. `is_fresh`: the file has
    a log that was deleted, so nothing of it counts. `skipped` are sequences that may have been
    given out to records of which nothing is known.
    """

    memtable: LogMemtable
    lost: list[tuple[int, int]]
    is_whole_known: bool
    base: LogBase = LogBase()
    is_deleted: bool = False
    is_fresh: bool = False
    skipped: tuple[int, int] | None = None

    @property
    def records(self) -> int:
        """The number of records left, those of another log included."""
        memtable = self.memtable
        start, base = memtable.trim_point, self.base
        own = sum(
            max(chunk.end - max(chunk.first, start), 0) for chunk in memtable.chunks if chunk.data
        )
        return max(base.first - base.unused - start, 0) + own


def rebuild_log(
    older: SalvagedLog | None,
    newer: LogMemtable | None,
    tail: int | None,
    base_of: BaseOf = no_base,
    *,
    start: int = 0,
    is_tail_sure: bool = True,
    beyond: int = 0,
    skipped_if_unknown: int = 0,
    first_sequence: int = 0,
) -> RebuiltLog:
    """Put together what its file had, what the journal has over that, and the `tail` that the
    catalog knows (None: it does not), with the `start` of the records up to there. Unless
    `is_tail_sure`, the file may have been longer.

    The journal may have lost `beyond` records more, whose sequences may have been given out;
    `skipped_if_unknown`: so many, where nothing tells the tail. A log of which nothing is left may
    have begun at `first_sequence`.
    """
    newer = LogMemtable(is_oldest=True) if newer is None else newer
    latest, is_fresh = _latest(newer)
    former = [] if older is None or is_fresh else older.chunks
    chunks = _merged(former, latest)
    if chunks is None:
        chunks, is_fresh = latest, True
    if is_fresh:
        older, tail, is_tail_sure = None, None, True
    header = None if older is None else older.header
    is_known = is_tail_sure and (older is None or header is not None or tail is not None)
    end = Chunk(tail or 0, 0, 0, 0, Position(0, 0), Position(0, 0), b"")
    if header is not None:
        first = max(header.tail, end.first)
        end = Chunk(first, 0, 0, header.end_timestamp, Position(0, 0), header.end_id, b"")
    point = max(newer.trim_point, 0 if header is None else header.trim_point)
    metadata = {} if older is None else dict(older.metadata)
    memtable = LogMemtable(is_oldest=True)
    memtable.fold(MetadataSet(*each) for each in {**metadata, **newer.metadata}.items())
    base = base_of({name: value for name, value in memtable.metadata.items() if value is not None})
    if header is None and not base.first:
        if tail is not None:
            point = max(point, start)
        elif not is_known and chunks:
            point = max(point, chunks[0].first)
    lost = _fill(memtable, chunks, point, end, base)
    skipped = None
    beyond = max(beyond, 0 if is_known else skipped_if_unknown)
    if beyond:
        last = _later(end, memtable.chunks[-1]) if memtable.chunks else end
        first = memtable.chunks[-1].end if memtable.chunks else max(end.first, base.first)
        is_unknown = tail is None and header is None and not base.first
        if not memtable.chunks and is_unknown and first_sequence:
            first = memtable.trim_point = first_sequence
        behind = min(first + beyond, SEQUENCE_MAX)
        memtable.add(_lost_chunk(first, behind, last))
        skipped = first, behind - 1
    is_deleted = is_fresh and not memtable
    return RebuiltLog(memtable, lost, is_known, base, is_deleted, is_fresh, skipped)


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
        if chunk.data or kept or is_behind:
            kept.append(chunk)
        else:  # a former repair found these lost
            point, end = chunk.end, _later(end, chunk)
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
