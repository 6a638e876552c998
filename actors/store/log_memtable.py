"""The memtable of a log: the latest chunks and the metadata that its file has not yet.

Chunks are only ever added at the end and taken away at the front, so a memtable is a list; one that
was deleted and made anew says so first (`is_fresh`), and then stands for itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import assert_never

import msgspec

from millpond.actors.store.changes import (
    Chunk,
    LogChange,
    LogDeleted,
    LogSnapshot,
    LogTrimmed,
    MetadataSet,
)

CHUNK_BYTES = 96
"""The size of a chunk in the journal besides its data, about."""


class LogMemtable:
    """The chunks, metadata and trim point that changed. Chunks ascend; `metadata` that map to None
    remove what the file or an older memtable has.

    `is_oldest`: there is neither. `is_fresh`: the log was deleted, so nothing of them counts.
    """

    __slots__ = ("chunk_bytes", "chunks", "is_fresh", "is_oldest", "metadata", "trim_point")

    def __init__(self, *, is_oldest: bool) -> None:
        self.is_oldest = is_oldest
        self.is_fresh = False
        self.chunks: list[Chunk] = []
        self.chunk_bytes = 0
        self.trim_point = 0
        self.metadata: dict[bytes, bytes | None] = {}

    def __bool__(self) -> bool:
        """True: there is something that a restart would have to know."""
        return bool(self.chunks or self.trim_point or self.metadata or self.is_fresh)

    @property
    def size(self) -> int:
        """Bytes it takes to say it again in the journal, roughly."""
        return self.chunk_bytes + CHUNK_BYTES * len(self.chunks) + self.lesser_size

    @property
    def lesser_size(self) -> int:
        """The part of `size` that is not chunks."""
        return sum(len(name) + len(value or b"") + 16 for name, value in self.metadata.items())

    def fold(self, changes: Iterable[LogChange]) -> bool:
        """Take in what was written. True: a restart needs something of it."""
        for change in changes:
            match change:
                case Chunk():
                    self.add(change)
                case LogTrimmed():
                    self._trim(change.point)
                case MetadataSet():
                    self._set_metadata(change)
                case LogDeleted():
                    self._drop()
                case _:
                    assert_never(change)
        return bool(self)

    def add(self, chunk: Chunk) -> None:
        """The log got longer."""
        self.chunks.append(chunk)
        self.chunk_bytes += len(chunk.data)

    def _trim(self, point: int) -> None:
        self.trim_point = max(self.trim_point, point)
        # The last chunk stays even if it is trimmed: the tail and the last id are read from it.
        count = bisect_right(self.chunks[:-1], point, key=_end)
        self.chunk_bytes -= sum(len(chunk.data) for chunk in self.chunks[:count])
        del self.chunks[:count]

    def strip(self) -> None:
        """Let go of the data of a last chunk that is trimmed; only where there is no file."""
        if self.chunks and self.chunks[-1].end <= self.trim_point:
            self.chunk_bytes -= len(self.chunks[-1].data)
            self.chunks[-1] = msgspec.structs.replace(self.chunks[-1], data=b"")

    def _set_metadata(self, note: MetadataSet) -> None:
        if note.value is None and self.is_oldest:
            self.metadata.pop(note.name, None)
        else:
            self.metadata[note.name] = note.value

    def _drop(self) -> None:
        self.__init__(is_oldest=self.is_oldest)  # type: ignore[misc]  # everything goes
        self.is_fresh = not self.is_oldest

    def changes(self) -> Iterator[LogChange]:
        """The changes that make this memtable again."""
        if self.is_fresh:
            yield LogDeleted()
        yield from self.chunks
        if self.trim_point:
            yield LogTrimmed(self.trim_point)
        for name, value in self.metadata.items():
            yield MetadataSet(name, value)

    def split(self, count: int) -> tuple[LogMemtable, LogMemtable]:
        """The part to flush, and the part that stays: the last `count` chunks. Both are new."""
        moved, stays = LogMemtable(is_oldest=self.is_oldest), LogMemtable(is_oldest=False)
        moved.is_fresh, moved.trim_point = self.is_fresh, self.trim_point
        moved.metadata = dict(self.metadata)
        at = max(len(self.chunks) - count, 0)
        for memtable, chunks in ((moved, self.chunks[:at]), (stays, self.chunks[at:])):
            memtable.chunks = chunks
            memtable.chunk_bytes = sum(len(chunk.data) for chunk in chunks)
        return moved, stays

    def apply_to(self, older: LogSnapshot) -> LogSnapshot:
        """The metadata of `older` and this memtable together; `older` may be changed."""
        metadata = LogSnapshot() if self.is_fresh or self.is_oldest else older
        _trim_size(metadata, self.trim_point)
        metadata.bytes += self.chunk_bytes
        if self.chunks:
            last = self.chunks[-1]
            if last.end <= self.trim_point:
                metadata.bytes -= len(last.data)
            metadata.tail = last.end
            metadata.last_id, metadata.last_timestamp = last.last_id, last.last_timestamp
        metadata.trim_point = max(metadata.trim_point, self.trim_point)
        for name, value in self.metadata.items():
            if value is None:
                metadata.metadata.pop(name, None)
            else:
                metadata.metadata[name] = value
        return metadata


def _trim_size(metadata: LogSnapshot, point: int) -> None:
    """Estimate the size that is left of older chunks once they are trimmed."""
    if point > metadata.trim_point:
        left, count = max(metadata.tail - point, 0), metadata.tail - metadata.trim_point
        metadata.bytes = metadata.bytes * left // count if count > 0 else 0


def _end(chunk: Chunk) -> int:
    return chunk.end
