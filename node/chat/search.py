"""Search over the histories of a node: the index is made, and brought up to date, by searches."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

import anyio
import msgspec

from millpond.actors.errors import NotAllowed, UnknownStream
from millpond.node.chat.local_stream import LocalStream
from millpond.node.chat.records import Record, Unreadable, conversation_stream, decode_record
from millpond.node.chat.search_index import TEXT_BYTES_MAX, FoundMessage, SearchIndex

log = logging.getLogger(__name__)

PAGE = 1000
INDEXED_S = 3.0
"""The time that one search spends on the index before it answers with what it has."""
IDLE_S = 600.0
"""The time after the last search at which the index is dropped."""
QUERY_CHARS_MAX = 256
FOUND_MAX = 50
"""The most messages in one answer."""
OFFSET_MAX = 10_000


class IndexedRange(msgspec.Struct):
    """The records `first` to before `end` of a stream are in the index, or were too old."""

    incarnation: int
    first: int
    end: int


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
        peers: Sequence[bytes],
        only: bytes | None,
        limit: int,
        offset: int,
    ) -> SearchResult:
        """Messages with the words of a query, in the conversations with `peers` (public keys), or
        with `only` one of them.

        Raises NotAllowed if this SQLite cannot search, and the errors of the streams.
        """
        async with self._lock:
            try:
                if self._index is None:
                    self._index = await anyio.to_thread.run_sync(SearchIndex)
            except sqlite3.OperationalError as error:
                raise NotAllowed("the SQLite of this Python has no FTS5") from error
            self._used_at = self._now()
            until = self._tick() + INDEXED_S
            await self._forget({conversation_stream(each) for each in peers})
            is_done = True
            for public in peers if only is None else [only]:
                is_done = is_done and await self._update(public, until)
            conversation = None if only is None else conversation_stream(only)
            work = partial(self._index.find, query, conversation, limit, offset)
            found = await anyio.to_thread.run_sync(work)
            return SearchResult(found, not is_done, self._has_left_out)

    async def drop_idle(self) -> None:
        """Drop an index that nobody has used for a while."""
        if self._index is not None and self._now() > self._used_at + IDLE_S:
            async with self._lock:
                self._drop()

    def _drop(self) -> None:
        if self._index is not None:
            self._index.close()
        self._index = None
        self._ranges.clear()
        self._has_left_out = False

    async def _forget(self, known: set[bytes]) -> None:
        """Begin anew without conversations of peers that are no contacts any more."""
        if not self._ranges.keys() <= known:
            self._drop()
            self._index = await anyio.to_thread.run_sync(SearchIndex)

    async def _update(self, public: bytes, until: float) -> bool:
        """Index what is new of a conversation, then what is older; False: time is up."""
        name = conversation_stream(public)
        stream = self._open_stream(name)
        try:
            description = await stream.describe()
        except UnknownStream:
            return True
        info = description.info
        known = self._ranges.get(name)
        if known is not None and known.incarnation != description.incarnation:
            await self._forget(set())  # another history: begin anew
            known = None
        if known is None:
            known = IndexedRange(description.incarnation, info.tail, info.tail)
            self._ranges[name] = known
        while known.end < info.tail:
            end = min(known.end + PAGE, info.tail)
            await self._add(stream, known.end, end)
            known.end = end
            if self._tick() > until:
                return False
        while known.first > info.trim_point:
            if self.text_bytes >= self._text_bytes_max:
                self._has_left_out = True
                return True
            first = max(info.trim_point, known.first - PAGE)
            await self._add(stream, first, known.first)
            known.first = first
            if self._tick() > until:
                return known.first <= info.trim_point
        return True

    async def _add(self, stream: LocalStream, first: int, end: int) -> None:
        assert self._index is not None
        bodies = [each async for each in stream.read(first, end)]
        await anyio.to_thread.run_sync(self._index.add, stream.name, _records(bodies))


def _records(bodies: Sequence[tuple[int, bytes]]) -> list[tuple[int, Record]]:
    found = []
    for sequence, body in bodies:
        try:
            found.append((sequence, decode_record(body)))
        except Unreadable:
            continue  # of a later version
    return found
