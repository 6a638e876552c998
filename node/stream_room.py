"""The streams of a node: what they share, and how their cells are built and found again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import anyio
import msgspec

from actors.cell import Loading
from actors.messages import Durability, Mail
from actors.store.changes import LogSnapshot
from actors.store.durable import DurableStore
from actors.store.memory import MemoryStore
from actors.store.seam import Fault, Pending
from actors.streams.directory import Directory
from actors.streams.names import RESERVED, TOPICS, stream_of
from actors.streams.settings import StreamCounters, StreamLimits, StreamShared
from actors.streams.shelf import Shelf
from actors.streams.stream import Stream
from actors.streams.topics import Topics
from node.rules import RuleBook

log = logging.getLogger(__name__)

ADOPT_AFTER_S = 10.0
ADOPT_EVERY_S = 0.02
"""Streams that nobody asks for are looked at one after the other: something may be too old."""


class StreamRoom:
    """Cells whose names are reserved are streams, or the catalogue of topics."""

    def __init__(
        self,
        book: RuleBook[StreamLimits],
        store: DurableStore | MemoryStore,
        post: Callable[[bytes, Mail], None],
        shelf_bytes_max: int,
    ) -> None:
        self.directory = Directory()
        self.counters = StreamCounters()
        self._store = store
        self._book = book
        self._shared = StreamShared(
            store,
            post,
            self.directory,
            store.usage,
            store.health,
            self.counters,
            Shelf(shelf_bytes_max),
        )

    def spawn(self, cell: bytes, outline: LogSnapshot) -> Stream | Topics:
        """The behaviour of a reserved cell."""
        name = stream_of(cell)
        if name is None:
            return Topics(outline, self.directory)
        is_kept = self._store.durability(cell) is not Durability.MEMORY
        limits = msgspec.structs.replace(self._book.settings(name), is_kept=is_kept)
        return Stream(name, outline, limits, self._shared)

    def load(self, cell: bytes) -> Loading:
        """What a cell is built from, whatever it is."""
        return self._store.outline(cell) if is_reserved(cell) else self._store.load(cell)

    def kept(self) -> Iterator[tuple[bytes, float]]:
        """Cells of streams that a restart found, and after how many seconds to look at each."""
        after_s = ADOPT_AFTER_S
        for cell in self._store.logs():
            name = stream_of(cell)
            if cell == TOPICS:
                yield cell, 0.0  # it may have to go on removing a topic
            elif name is not None:
                self.directory.sync_stream(name, is_created=True)
                yield cell, after_s
                after_s += ADOPT_EVERY_S

    async def open(self) -> None:
        """Learn which topics there are, before anybody asks for one."""
        outline = self._store.outline(TOPICS)
        found = await _finished(outline) if isinstance(outline, Pending) else outline
        if isinstance(found, Fault):
            log.error("topics not loaded: fault=%s", found.name)
        else:
            Topics(found, self.directory)


def is_reserved(cell: bytes) -> bool:
    """Is the cell none of the channels?"""
    return cell.startswith(RESERVED)


async def _finished(pending: Pending[LogSnapshot | Fault]) -> LogSnapshot | Fault:
    results: list[LogSnapshot | Fault] = []
    done = anyio.Event()

    def finish(result: LogSnapshot | Fault) -> None:
        results.append(result)
        done.set()

    pending.when_done(finish)
    await done.wait()
    return results[0]
