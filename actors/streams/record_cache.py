"""The record cache: records that reads showed lately, by columns and as protocols encode them.

One cache serves all streams of a node, so that idle ones cost nothing. Records never change, and a
cached chunk is shown only in the place of a chunk that the store gives: trims need no action.
Deleted streams are removed, as their sequences begin anew.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from operator import attrgetter

from millpond.actors.store.changes import Chunk
from millpond.actors.streams.chunks import BadChunk, columns_of, join_columns, slice_columns
from millpond.actors.streams.messages import RecordColumns, RecordFilter, RecordFormat

CACHE_BYTES_MAX = 2**26
"""Of all streams of a node together; the oldest goes first."""
CACHED_CHUNK_BYTES = 700
"""The memory of a cached chunk besides its records and their encodings, about."""
RECORD_BYTES = 44
"""The memory of a record besides its bytes: its object, and its place in a list."""
TIMESTAMP_BYTES = 40
ID_BYTES = 80
HEADERS_BYTES = 72
PAIR_BYTES = 140
"""The memory of a record's own timestamp, id, headers; of a header besides its bytes."""
END_BYTES = 36
SLICE_READERS_MIN = 4
"""The ends of records are computed for so many readers: it takes longer than to encode a slice
anew."""
SMALL_RECORDS_MAX = 8
SMALL_BYTES_MAX = 8192
"""Chunks up to here are joined to one cached chunk."""
JOINED_RECORDS_MAX = 128

_first = attrgetter("first")


class CachedChunk:
    """The records of one or several chunks. An encoding is cached once a second reader wants it."""

    __slots__ = (
        "_cache",
        "_encodings",
        "_ends",
        "_is_full",
        "count",
        "first",
        "memory_bytes",
        "owner",
        "readers",
        "size",
        "span",
    )

    def __init__(self, cache: RecordCache, owner: StreamCache, span: RecordColumns) -> None:
        bodies = span.bodies
        self._cache = cache
        self._encodings: dict[RecordFormat, bytes] | None = None
        self._ends: dict[RecordFormat, Sequence[int]] | None = None
        self._is_full: bool | None = None
        self.owner = owner
        self.first = span.first
        self.count = len(bodies)
        self.span = span
        self.size = len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies))
        """Bytes of all bodies."""
        self.readers = 1
        self.memory_bytes = CACHED_CHUNK_BYTES + _columns_bytes(span) + self.size
        """The memory it takes; 0: it is not in the cache any more."""

    def is_plain(self, record_filter: RecordFilter) -> bool:
        """True: the filter passes all records."""
        return (
            (record_filter.commands or self.span.headers is None)
            and (record_filter.empty or not self._has_empty())
            and self.size <= record_filter.body_bytes_max
        )

    def _has_empty(self) -> bool:
        """True: a record is empty; computed once, when a filter asks for it."""
        if self._is_full is None:
            self._is_full = b"" not in self.span.bodies
        return not self._is_full

    def encoded(self, record_format: RecordFormat) -> bytes:
        """All records as `record_format` writes them."""
        encodings = self._encodings
        if encodings is not None and (data := encodings.get(record_format)) is not None:
            return data
        data = record_format.encode(self.span)
        if self.readers > 1:
            if encodings is None:
                encodings = self._encodings = {}
            encodings[record_format] = data
            self._cache.grow(self, len(data))
        return data

    def ends(self, record_format: RecordFormat) -> Sequence[int]:
        """The ends of the records within the encoded bytes."""
        if self._ends is None:
            self._ends = {}
        ends = self._ends.get(record_format)
        if ends is None:
            ends = self._ends[record_format] = record_format.ends(self.span)
            self._cache.grow(self, len(ends) * END_BYTES)
        return ends


class CachedSlice:
    """The records `begin` to before `end` of a cached chunk."""

    __slots__ = ("_begin", "_cached", "_end", "span")

    def __init__(self, cached: CachedChunk, begin: int, end: int) -> None:
        self._cached = cached
        self._begin = begin
        self._end = end
        self.span = slice_columns(cached.span, begin, end)

    def encoded(self, record_format: RecordFormat) -> bytes:
        """The records as `record_format` writes them."""
        cached, begin = self._cached, self._begin
        if cached.readers < SLICE_READERS_MIN:
            return record_format.encode(self.span)
        ends = cached.ends(record_format)
        return cached.encoded(record_format)[ends[begin - 1] if begin else 0 : ends[self._end - 1]]


class StreamCache:
    """The cached chunks of one stream, by the first sequences of their chunks."""

    __slots__ = ("_cache", "_items")

    def __init__(self, cache: RecordCache) -> None:
        self._cache = cache
        self._items: dict[int, CachedChunk] = {}

    def cached(
        self,
        chunks: Sequence[Chunk],
        at: int,
        columns: Mapping[int, tuple[Chunk, RecordColumns]],
        *,
        is_kept: bool = True,
    ) -> tuple[CachedChunk, int]:
        """A cached chunk that begins with the chunk at `at`, and the place of the chunk behind it.

        Small chunks share one. `columns` has spans by their first sequence. A new one is cached if
        it `is_kept`. Raises BadChunk."""
        chunk = chunks[at]
        cached = self._items.get(chunk.first)
        if cached is None:
            after = at + 1 if chunk.first in columns else _alike(chunks, at)
            if after > at + 1:
                spans = _without_headers(_readable(chunks[at:after]))
                after = at + len(spans)
                span = join_columns(spans) if len(spans) > 1 else spans[0]
            else:
                entry = columns.get(chunk.first)
                span = columns_of(chunk) if entry is None else entry[1]
            cached = CachedChunk(self._cache, self, span)
            if is_kept:
                self._items[chunk.first] = cached
                self._cache.add(cached)
            else:
                cached.memory_bytes = 0
            return cached, after
        cached.readers += 1
        if cached.count == chunk.count:
            return cached, at + 1
        return cached, bisect_left(chunks, cached.first + cached.count, at + 1, key=_first)

    def drop(self, cached: CachedChunk) -> None:
        """The chunk is not in the cache any more."""
        if self._items.get(cached.first) is cached:
            del self._items[cached.first]

    def clear(self) -> None:
        """The stream is deleted. The cache evicts its chunks in time."""
        self._items = {}


def _columns_bytes(span: RecordColumns) -> int:
    """The memory of the columns, about, without the bytes of bodies."""
    each = RECORD_BYTES
    if span.timestamps is not None:
        each += TIMESTAMP_BYTES
    if span.ids is not None:
        each += ID_BYTES
    weight = each * len(span.bodies)
    for pairs in span.headers or ():
        weight += HEADERS_BYTES
        for name, value in pairs:
            weight += PAIR_BYTES + len(name) + len(value)
    return weight


def _readable(chunks: Sequence[Chunk]) -> list[RecordColumns]:
    """Those before the first one that cannot be read. Raises BadChunk if that is the first one."""
    spans = [columns_of(chunks[0])]
    try:
        spans.extend(columns_of(each) for each in chunks[1:])
    except BadChunk:
        pass  # the error is raised by a read that begins there
    return spans


def _without_headers(spans: list[RecordColumns]) -> list[RecordColumns]:
    """Those before the first one with headers; the first one in any case."""
    for at, span in enumerate(spans):
        if span.headers is not None:
            return spans[: max(at, 1)]
    return spans


def _alike(chunks: Sequence[Chunk], at: int) -> int:
    """Up to where chunks follow one another that are small."""
    after, left = at, JOINED_RECORDS_MAX
    end = chunks[at].first
    while after < len(chunks):
        chunk = chunks[after]
        left -= chunk.count
        if chunk.first != end or chunk.count > SMALL_RECORDS_MAX or left < 0:
            break
        if len(chunk.data) > SMALL_BYTES_MAX:
            break
        end += chunk.count
        after += 1
    return max(after, at + 1)


class RecordCache:
    """All cached chunks, oldest first, up to about `bytes_max` together."""

    __slots__ = ("_bytes_max", "_items", "size")

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._items: deque[CachedChunk] = deque()
        self.size = 0

    def add(self, cached: CachedChunk) -> None:
        """Cache a chunk, and evict others for it."""
        self._items.append(cached)
        self.size += cached.memory_bytes
        self._evict()

    def grow(self, cached: CachedChunk, size: int) -> None:
        """A chunk that may be cached has got larger."""
        if cached.memory_bytes:
            cached.memory_bytes += size
            self.size += size
            self._evict()

    def _evict(self) -> None:
        while self.size > self._bytes_max:
            cached = self._items.popleft()
            self.size -= cached.memory_bytes
            cached.memory_bytes = 0
            cached.owner.drop(cached)
