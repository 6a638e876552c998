"""Reads of forks: the first records of a fork are in the partitions of the streams it comes
from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from millpond.actors.messages import U64_MAX
from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import Chunk, ColdChunk, Position
from millpond.actors.store.interface import Deferred, Fault, LogStore, Seek
from millpond.actors.streams.chunks import truncate_chunk
from millpond.actors.streams.durable.metadata import DurableMetadata

if TYPE_CHECKING:
    from millpond.actors.store.repair.rebuilt_log import LogBase

Chunks = list[Chunk] | Fault


def fork_chain(
    chain: Sequence[tuple[bytes, int]], cell: bytes, point: int
) -> list[tuple[bytes, int]]:
    """The chain of a fork at `point` of the stream `cell`, which has this chain itself."""
    parts: list[tuple[bytes, int]] = []
    below = 0
    for ancestor, end in (*chain, (cell, point)):
        end = min(end, point)
        if end > below:
            parts.append((ancestor, end))
            below = end
    return parts


def base_of(metadata: Mapping[bytes, bytes]) -> LogBase:
    """The point at which the own records of a stream with this metadata begin."""
    from millpond.actors.store.repair.rebuilt_log import LogBase  # few logs are ever rebuilt

    parent = DurableMetadata(metadata).parent
    if parent is None:
        return LogBase()
    last = Position(parent.last_ms, parent.last_seq)
    return LogBase(parent.first, last, parent.last_timestamp, parent.first - parent.point)


class ForkLog:
    """Reads a fork as if all its records were its own."""

    __slots__ = ("_cell", "_parts", "_store")

    def __init__(self, store: LogStore, cell: bytes, parts: Sequence[tuple[bytes, int]]) -> None:
        self._store = store
        self._cell = cell
        self._parts = parts

    def read(self, seek: Seek) -> list[Chunk] | Deferred[Chunks]:
        """Chunks in order, as the store gives them of one log."""
        return self._read(0, seek, [])

    def _read(self, at: int, seek: Seek, found: list[Chunk]) -> list[Chunk] | Deferred[Chunks]:
        """Go on with a part, behind what was found in those before it."""
        for place in range(at, len(self._parts) + 1):
            cell, end = self._part(place)
            if seek.sequence >= end:
                continue
            rest = _rest_of(seek, found)
            if rest is None:
                return found
            chunks = self._store.read(cell, rest)
            if isinstance(chunks, Deferred):
                pending: Deferred[Chunks] = Deferred()
                chunks.when_done(partial(self._found, place, seek, found, pending))
                return pending
            found = _joined(found, chunks, end)
            if found and found[-1].end < end:
                return found
        return found

    def _part(self, place: int) -> tuple[bytes, int]:
        """A partition, and up to which sequence it counts; the last is the fork's own."""
        return self._parts[place] if place < len(self._parts) else (self._cell, U64_MAX)

    def _found(
        self,
        place: int,
        seek: Seek,
        found: list[Chunk],
        pending: Deferred[Chunks],
        chunks: Chunks,
    ) -> None:
        if isinstance(chunks, Fault):
            pending.finish(chunks)
            return
        end = self._part(place)[1]
        found = _joined(found, chunks, end)
        rest: list[Chunk] | Deferred[Chunks] = found
        if not found or found[-1].end >= end:
            rest = self._read(place + 1, seek, found)
        if isinstance(rest, Deferred):
            rest.when_done(pending.finish)
        else:
            pending.finish(rest)


def _rest_of(seek: Seek, found: Sequence[Chunk]) -> Seek | None:
    """The seek for what follows the chunks that were found; None: they are enough."""
    if not found:
        return seek
    left = seek.bytes_max - sum(chunk.size for chunk in found)
    count = seek.count_max - sum(chunk.count for chunk in found[1:])
    if left <= 0 or count <= 0:
        return None
    # The beginning of the answer was found already.
    return Seek(
        SeekBy.SEQUENCE,
        found[-1].end,
        bytes_max=left,
        count_max=count,
        for_sizes=seek.for_sizes,
    )


def _joined(found: list[Chunk], chunks: Sequence[Chunk], end: int) -> list[Chunk]:
    """Behind what was found, what of these chunks lies below a sequence and follows on. A cold one
    cannot be cut."""
    if found and chunks and chunks[0].first > found[-1].end:
        return found
    below = [
        chunk
        for chunk in chunks
        if chunk.end <= end or (chunk.first < end and not isinstance(chunk, ColdChunk))
    ]
    return found + [each if each.end <= end else truncate_chunk(each, end) for each in below]
