"""The streams of a node: what they share, and how their cells are built and found again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

import anyio
import msgspec

from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.messages import Durability, Mail
from millpond.actors.runtime.cell import Loading
from millpond.actors.state.cell import StateCell, StateShared
from millpond.actors.state.checkpoint_store import Checkpoints
from millpond.actors.state.messages import StateLimits
from millpond.actors.state.usage import StateUsage
from millpond.actors.store.changes import LogSnapshot
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.interface import Fault, Kept, Pending
from millpond.actors.store.memory import MemoryStore
from millpond.actors.streams.catalogs.access_tokens import IssuedBook, IssuedTokens
from millpond.actors.streams.catalogs.basins import BasinBook, Basins
from millpond.actors.streams.catalogs.topics import Topics
from millpond.actors.streams.directory import Directory, Stages
from millpond.actors.streams.names import (
    BASINS,
    RESERVED,
    TOKENS,
    TOPICS,
    basin_stream_of,
    label_of,
    part_of,
    state_of,
    stream_cell,
    stream_of,
)
from millpond.actors.streams.record_cache import Shelf
from millpond.actors.streams.settings import StreamCounters, StreamLimits, StreamShared
from millpond.actors.streams.stream import Stream
from millpond.node.config_rules import RuleBook

log = logging.getLogger(__name__)

ADOPT_AFTER_S = 10.0
ADOPT_EVERY_S = 0.02
"""Streams that nobody asks for are looked at one after the other: something may be too old."""
TEE_EVERY_S = 0.002


class StreamRoom:
    """Cells whose names are reserved are streams, or the catalogue of topics."""

    def __init__(
        self,
        book: RuleBook[StreamLimits],
        store: DurableStore | MemoryStore,
        post: Callable[[bytes, Mail], None],
        shelf_bytes_max: int,
        basin: bytes,
        now: Callable[[], float],
        states: StateLimits,
    ) -> None:
        self.directory = Directory()
        self.stages = Stages()
        self.basins = BasinBook(basin, self.directory, int(now() * 1000))
        self.tokens = IssuedBook()
        self.counters = StreamCounters()
        self.states = StateUsage()
        self._state_shared = StateShared(post, states, self.states)
        self.checkpoints = _checkpoints(store, states, self.directory)
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

    def spawn(
        self, cell: bytes, outline: LogSnapshot
    ) -> Stream | Topics | Basins | IssuedTokens | StateCell:
        """The behaviour of a reserved cell."""
        if cell == TOPICS:
            return Topics(outline, self.directory)
        if cell == BASINS:
            return Basins(outline, self.basins)
        if cell == TOKENS:
            return IssuedTokens(outline, self.tokens)
        state = state_of(cell)
        if state is not None:
            is_kept = self._store.durability(stream_cell(state)) is not Durability.MEMORY
            return StateCell(state, self._state_shared, self.checkpoints if is_kept else None)
        name, shared = stream_of(cell), self._shared
        if part_of(cell) is not None:
            name, shared = cell, msgspec.structs.replace(shared, directory=self.stages)
        elif name is None:
            basin, name = basin_stream_of(cell) or (b"", b"")
            streams = self.basins.other_streams(basin)
            shared = msgspec.structs.replace(shared, directory=streams)
        is_kept = self._store.durability(cell) is not Durability.MEMORY
        settings = self._book.settings(label_of(cell) or b"")
        limits = msgspec.structs.replace(settings, is_kept=is_kept)
        return Stream(name, outline, limits, shared)

    def age_s(self, label: bytes) -> int:
        """How old records get in a stream that was told nothing of it; 0: no limit."""
        return self._book.settings(label).age_s

    def load(self, cell: bytes) -> Loading:
        """What a cell is built from, whatever it is."""
        if state_of(cell) is not None:
            return LogSnapshot()  # it keeps nothing
        return self._store.outline(cell) if is_reserved(cell) else self._store.load(cell)

    def kept(self) -> Iterator[tuple[bytes, float]]:
        """Cells of streams that a restart found, and after how many seconds to look at each."""
        after_s = ADOPT_AFTER_S
        if self.checkpoints is not None:
            streams = (stream_of(cell) for cell in self._store.logs())
            self.checkpoints.keep_only(name for name in streams if name is not None)
        for cell in self._store.logs():
            if cell in (TOPICS, BASINS, TOKENS):
                yield cell, 0.0  # it may have to go on removing something
            elif self._learn(cell):
                yield cell, after_s
                after_s += ADOPT_EVERY_S

    def _learn(self, cell: bytes) -> bool:
        """A cell is kept. Is it a stream's?"""
        name, other = stream_of(cell), basin_stream_of(cell)
        if name is not None:
            self.directory.sync_stream(name, is_created=True)
        elif other is not None:
            self.basins.other_streams(other[0]).sync_stream(other[1], is_created=True)
        elif part_of(cell) is not None:
            self.stages.sync_stream(cell, is_created=True)
        else:
            return False
        return True

    def close(self) -> None:
        """What is to be written is written after this."""
        if self.checkpoints is not None:
            self.checkpoints.close()

    async def open(self) -> None:
        """Learn which topics, basins and tokens there are, before anybody asks for one."""
        topics = await self._outline(TOPICS)
        if topics is not None:
            Topics(topics, self.directory)
        basins = await self._outline(BASINS)
        if basins is not None:
            Basins(basins, self.basins)
        tokens = await self._outline(TOKENS)
        if tokens is not None:
            IssuedTokens(tokens, self.tokens)

    async def _outline(self, cell: bytes) -> LogSnapshot | None:
        outline = self._store.outline(cell)
        found = await _finished(outline) if isinstance(outline, Pending) else outline
        if isinstance(found, Fault):
            log.error("catalogue not loaded: cell=%r fault=%s", cell, found.name)
            return None
        return found


def _checkpoints(
    store: DurableStore | MemoryStore, limits: StateLimits, directory: Directory
) -> Checkpoints | None:
    if not isinstance(store, DurableStore) or not limits.disk_bytes_max:
        return None
    checkpoints = Checkpoints(
        store.folder,
        store.disk,
        store.around,
        limits.disk_bytes_max,
        directory.streams.__contains__,
    )
    directory.on_gone = checkpoints.forget
    return checkpoints


def first_looks(
    kept: Iterable[Kept], book: RuleBook[ChannelSettings], now: float
) -> Iterator[tuple[bytes, float]]:
    """When to look at each channel that a restart found. Those that feed a stream come one after
    the other: it may lack what they hold."""
    tee_at = now
    for each in kept:
        if book.settings(each.name).tee:
            yield each.name, min(each.deadline, tee_at)
            tee_at += TEE_EVERY_S
        else:
            yield each.name, each.deadline


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
