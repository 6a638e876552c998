"""Ranges of a log: recent chunks from memory, older ones from its file."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from actors.store.changes import Chunk, LogSnapshot
from actors.store.entry import Entry
from actors.store.jobs import Job
from actors.store.lanes import Lane
from actors.store.log_layer import LogLayer
from actors.store.partitions.library import Library
from actors.store.seam import Fault, Pending, Seek, Where

Chunks = list[Chunk] | Fault


def reaches(seek: Seek, chunk: Chunk) -> bool:
    """Does the chunk hold something at or above what is sought?"""
    match seek.where:
        case Where.SEQUENCE:
            return chunk.end > seek.sequence
        case Where.TIMESTAMP:
            return chunk.last_timestamp >= seek.timestamp
        case Where.ID:
            return chunk.last_id >= seek.id


def pick(chunks: list[Chunk], seek: Seek) -> list[Chunk]:
    """Those of ascending chunks that are asked for."""
    at = bisect_left(chunks, True, key=partial(reaches, seek))
    picked: list[Chunk] = []
    size = 0
    for chunk in chunks[at:]:
        if picked and size + len(chunk.data) > seek.bytes_max:
            break
        picked.append(chunk)
        size += len(chunk.data)
    return picked


class LogReader:
    """Reads logs whose latest chunks are in the journal."""

    def __init__(self, library: Library, lane: Lane[Job], damaged: Callable[[Entry], None]) -> None:
        self._library = library
        self._lane = lane
        self._damaged = damaged

    def outline(self, entry: Entry) -> LogSnapshot | Pending[LogSnapshot | Fault]:
        """The outline of a log."""
        pending: Pending[LogSnapshot | Fault] = Pending()
        if entry.fault is not None:
            pending.finish(entry.fault)
        elif entry.has_file and not _is_fresh(entry):
            done = partial(self._outlined, entry, pending)
            job = Job(partial(self._library.log_outline, entry.name), done)
            self._lane.submit(job, urgent=True)
        else:
            return _on_top(entry, LogSnapshot())
        return pending

    def _outlined(
        self, entry: Entry, pending: Pending[LogSnapshot | Fault], result: LogSnapshot | Fault
    ) -> None:
        if isinstance(result, Fault):
            self._fail(entry, result)
            pending.finish(result)
        else:
            pending.finish(_on_top(entry, result))

    def read(self, entry: Entry, seek: Seek) -> list[Chunk] | Pending[Chunks]:
        """Chunks of a log."""
        pending: Pending[Chunks] = Pending()
        recent = _recent(entry)
        is_recent = bool(recent) and reaches(seek, recent[0]) and _begins_in(seek, recent[0])
        if entry.fault is not None:
            pending.finish(entry.fault)
        elif not entry.has_file or _is_fresh(entry) or is_recent:
            return pick(recent, seek)
        else:
            self._ask(entry, seek, pending)
        return pending

    def _ask(self, entry: Entry, seek: Seek, pending: Pending[Chunks]) -> None:
        # The file may not know yet what is trimmed.
        above = msgspec.structs.replace(seek, sequence=max(seek.sequence, _trim_point(entry)))
        done = partial(self._found, entry, seek, pending)
        self._lane.submit(Job(partial(self._library.read, entry.name, above), done), urgent=True)

    def _found(self, entry: Entry, seek: Seek, pending: Pending[Chunks], result: Chunks) -> None:
        if isinstance(result, Fault):
            self._fail(entry, result)
            pending.finish(result)
            return
        recent = _recent(entry)
        if _is_fresh(entry):  # deleted meanwhile: nothing of the file counts
            pending.finish(pick(recent, seek))
            return
        # The file may have been written meanwhile, so what is in both counts once.
        first = recent[0].first if recent else None
        trimmed = _trim_point(entry)
        older = [
            chunk
            for chunk in result
            if (first is None or chunk.first < first) and chunk.end > trimmed
        ]
        if not older and any(chunk.end <= trimmed for chunk in result):
            self._ask(entry, seek, pending)  # what was found was trimmed meanwhile
        elif older and recent and older[-1].end < recent[0].first:
            pending.finish(pick(older, seek))
        else:
            pending.finish(pick([*older, *recent], seek))

    def _fail(self, entry: Entry, fault: Fault) -> None:
        if fault is Fault.DAMAGED:
            self._damaged(entry)


def _layers(entry: Entry) -> Iterable[LogLayer]:
    for layer in (entry.frozen, entry.layer):
        if isinstance(layer, LogLayer):
            yield layer


def _is_fresh(entry: Entry) -> bool:
    return any(layer.is_fresh for layer in _layers(entry))


def _trim_point(entry: Entry) -> int:
    point = 0
    for layer in _layers(entry):
        point = layer.trim_point if layer.is_fresh else max(point, layer.trim_point)
    return point


def _recent(entry: Entry) -> list[Chunk]:
    """Chunks in memory that are not trimmed; of a log that was deleted, only the new ones."""
    chunks: list[Chunk] = []
    for layer in _layers(entry):
        chunks = list(layer.chunks) if layer.is_fresh else chunks + layer.chunks
    trimmed = _trim_point(entry)
    return [chunk for chunk in chunks if chunk.end > trimmed]


def _begins_in(seek: Seek, chunk: Chunk) -> bool:
    """Is nothing before this chunk asked for?"""
    match seek.where:
        case Where.SEQUENCE:
            return seek.sequence >= chunk.first
        case Where.TIMESTAMP:
            return seek.timestamp > chunk.first_timestamp
        case Where.ID:
            return seek.id >= chunk.first_id


def _on_top(entry: Entry, below: LogSnapshot) -> LogSnapshot:
    for layer in _layers(entry):
        below = layer.apply_to(below)
    return below
