"""Search over the histories of a node: the index is made, and brought up to date, by searches."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

import anyio
import msgspec

from millpond.actors.errors import NotAllowed, UnknownStream
from millpond.node.chat.local_stream import LocalStream
from millpond.node.chat.records import Record, Unreadable, decode_record

if TYPE_CHECKING:
    from millpond.node.chat.search_index import FoundMessage, SearchIndex

log = logging.getLogger(__name__)

TEXT_BYTES_MAX = 32 * 2**20
"""The most bytes of texts in an index, with all conversations; the index is about as large."""
PAGE = 1000
PAGE_BYTES = 2**20
"""Of so many bytes of records the index takes the texts at once."""
GROWTH = 2
"""An index with so many times its limit, for all the new messages, is made anew."""
INDEXED_S = 3.0
"""The time that one search spends on the index before it answers with what it has."""
IDLE_S = 600.0
"""The time after the last search at which the index is dropped."""
QUERY_CHARS_MAX = 256
FOUND_MAX = 50
"""The most messages in one answer."""
OFFSET_MAX = 10_000


class IndexedRange(msgspec.Struct):
    """The records `first` to before `end` of a stream are in the index, the oldest of `oldest_at`
    (ms)."""

    incarnation: int
    first: int
    end: int
    oldest_at: float


class SearchResult(msgspec.Struct):
    """Messages, the newest first. `is_indexing`: ask again, as not all is searched yet.
    `has_left_out`: the oldest are not searched, since the index is full."""

    found: list[FoundMessage]
    is_indexing: bool
    has_left_out: bool


class Search:
    """The search of one node. `stream` opens the local stream of a name; `now` in seconds."""

    def __init__(
        self,
        stream: Callable[[bytes], LocalStream],
        now: Callable[[], float],
        text_bytes_max: int = TEXT_BYTES_MAX,
        tick: Callable[[], float] = monotonic,
    ) -> None:
        self._open_stream = stream
        self._now = now
        self._tick = tick
        self._text_bytes_max = text_bytes_max
        self._lock = anyio.Lock()
        self._index: SearchIndex | None = None
        self._ranges: dict[bytes, IndexedRange] = {}
        self._used_at = 0.0
        self._has_left_out = False

    @property
    def text_bytes(self) -> int:
        """The bytes of texts in the index."""
        return 0 if self._index is None else self._index.text_bytes

    async def find(
        self,
        query: str,
        streams: Sequence[bytes],
        only: bytes | None,
        limit: int,
        offset: int,
    ) -> SearchResult:
        """Messages with the words of a query, in the histories with the names `streams`, or in
        `only` one of them.

        Raises NotAllowed if this SQLite cannot search, and the errors of the streams.
        """
        async with self._lock:
            try:
                if self._index is None:
                    self._index = await anyio.to_thread.run_sync(_new_index)
            except sqlite3.OperationalError as error:
                raise NotAllowed("the SQLite of this Python has no FTS5") from error
            self._used_at = self._now()
            until = self._tick() + INDEXED_S
            is_gone = not self._ranges.keys() <= set(streams)
            if is_gone or self.text_bytes > GROWTH * self._text_bytes_max:
                await self._begin_anew()
            is_done = await self._update(streams if only is None else [only], until)
            work = partial(self._index.find, query, only, limit, offset)
            found = await anyio.to_thread.run_sync(work)
            return SearchResult(found, not is_done, self._has_left_out)

    async def drop_idle(self) -> None:
        """Drop an index that nobody has used for a while."""
        if self._index is not None and not 0.0 <= self._now() - self._used_at <= IDLE_S:
            async with self._lock:
                self._drop()

    def _drop(self) -> None:
        if self._index is not None:
            self._index.close()
        self._index = None
        self._ranges.clear()
        self._has_left_out = False

    async def _begin_anew(self) -> None:
        self._drop()
        self._index = await anyio.to_thread.run_sync(_new_index)

    async def _update(self, streams: Sequence[bytes], until: float) -> bool:
        """Index what is new of conversations, then what is older, the newest of all of them first;
        False: time is up, or the index was begun anew."""
        older: list[tuple[LocalStream, IndexedRange, int]] = []
        for name in streams:
            stream = self._open_stream(name)
            try:
                description = await stream.describe()
            except UnknownStream:
                continue
            info, known = description.info, self._ranges.get(stream.name)
            if known is not None and known.incarnation != description.incarnation:
                await self._begin_anew()  # another history
                return False
            if known is None:
                known = IndexedRange(
                    description.incarnation, info.tail, info.tail, info.last_timestamp
                )
                self._ranges[stream.name] = known
            while known.end < info.tail:
                end = min(known.end + PAGE, info.tail)
                await self._add(stream, known.end, end)
                known.end = end
                if self._tick() > until:
                    return False
            if known.first > info.trim_point:
                older.append((stream, known, info.trim_point))
        return await self._add_older(older, until)

    async def _add_older(
        self, older: list[tuple[LocalStream, IndexedRange, int]], until: float
    ) -> bool:
        while older:
            if self.text_bytes >= self._text_bytes_max:
                self._has_left_out = True
                return True
            stream, known, trim_point = newest = max(older, key=lambda each: each[1].oldest_at)
            first = max(trim_point, known.first - PAGE)
            known.oldest_at = min(known.oldest_at, await self._add(stream, first, known.first))
            known.first = first
            if first <= trim_point:
                older = [each for each in older if each is not newest]
            if self._tick() > until:
                return not older
        return True

    async def _add(self, stream: LocalStream, first: int, end: int) -> float:
        """Index records; gives the time of the oldest."""
        bodies: list[tuple[int, bytes]] = []
        oldest_at, size = inf, 0
        async for sequence, body in stream.read(first, end):
            bodies.append((sequence, body))
            size += len(body)
            if size >= PAGE_BYTES:
                oldest_at = min(oldest_at, await self._add_bodies(stream.name, bodies))
                bodies, size = [], 0
        return min(oldest_at, await self._add_bodies(stream.name, bodies))

    async def _add_bodies(self, name: bytes, bodies: Sequence[tuple[int, bytes]]) -> float:
        assert self._index is not None
        records = _records(bodies)
        await anyio.to_thread.run_sync(self._index.add, name, records)
        return min((record.at for _, record in records), default=inf)


def _records(bodies: Sequence[tuple[int, bytes]]) -> list[tuple[int, Record]]:
    found = []
    for sequence, body in bodies:
        try:
            found.append((sequence, decode_record(body)))
        except Unreadable:
            continue  # of a later version
    return found


def _new_index() -> SearchIndex:
    from millpond.node.chat.search_index import SearchIndex  # its patterns take time to make

    return SearchIndex()
