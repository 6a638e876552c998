"""A live view of a stream's state in this process: `async with follow_state(stream) as view`.

It reconnects after a lost connection, and continues from a checkpoint after a restart. Each record
is applied once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec
from anyio import to_thread

from millpond.actors.errors import RequestError, SequenceMismatch, Trimmed
from millpond.actors.state.events import Control
from millpond.actors.state.fold import (
    BadCheckpoint,
    Changed,
    ControlApplied,
    Fold,
    InvalidEvent,
    OnInvalid,
    OnReset,
    Rejected,
    StateReset,
)
from millpond.actors.state.schema import Collection, StreamState, Table
from millpond.actors.state.stats import EventStats
from millpond.node import atomic_files as files
from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.client.state.changes import SIZE_MAX, Changes
from millpond.node.client.streams.records import Record
from millpond.node.client.streams.stream import Stream
from millpond.node.error_groups import single_errors

EVERY = 10_000
QUARANTINE_MAX = 1000
ENDS = (RequestError, ChannelClosed, ConnectionLost, InvalidEvent, StateReset, OSError)
"""Errors that may end the following of a stream."""


class FollowSettings(msgspec.Struct, frozen=True):
    """Settings of following a stream.

    `from_node`: without a checkpoint, begin with the state that the node has materialized. The node
    has no schemas: a value that does not fit is left out, where a replay would keep an older one.
    `checkpoint`: a file; written behind each snapshot, every `every` records and at the end.
    `skip_gaps`: go on where records were trimmed before they were read; they are counted.
    """

    on_invalid: OnInvalid = OnInvalid.DROP
    on_reset: OnReset = OnReset.CLEAR
    quarantine_max: int = QUARANTINE_MAX
    checkpoint: Path | None = None
    every: int = EVERY
    from_node: bool = False
    skip_gaps: bool = False


V = TypeVar("V", covariant=True)
T = TypeVar("T")


class TableView(Mapping[str, V]):
    """The values of a collection by key, converted to the type of its schema."""

    def __init__(self, table: Table, values: Mapping[str, object]) -> None:
        self._table = table
        self._values = values

    def __getitem__(self, key: str) -> V:
        value: V = self._table.typed(self._values[key])
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class StateView:
    """A live state. It changes between two awaits, never within one pass of the loop.

    `failure` is why it follows no more. `quarantined` has the last records that changed nothing,
    with OnInvalid.QUARANTINE.
    """

    stream: Stream
    failure: Exception | None
    quarantined: deque[Rejected]

    def __init__(
        self, stream: Stream, definition: StreamState | None, settings: FollowSettings
    ) -> None:
        self.stream = stream
        self.failure = None
        self.quarantined = deque(maxlen=settings.quarantine_max)
        self._definition = definition
        self._settings = settings
        self._fold = self._new_fold()
        self._born = 0
        self._last: Record | None = None
        self._kept_at = 0
        self._wants_checkpoint = False
        self._subscribers: dict[Changes, None] = {}
        self._moved = anyio.Event()
        self._whole_from = 0
        """The state that came from the node is whole from this position on."""

    # The state.

    def get(self, kind: str, key: str, default: object = None) -> object:
        """The value at `(kind, key)`, as JSON has it."""
        return self._fold.state.get(kind, key, default)

    def get_type(self, kind: str) -> Mapping[str, object]:
        """All values of a type."""
        return self._fold.state.get_type(kind)

    def __getitem__(self, name: str) -> TableView[object]:
        """All values of a collection of the definition."""
        if self._definition is None:
            raise KeyError(name)
        table = self._definition[name]
        return TableView(table, self._fold.state.get_type(table.type))

    def table(self, collection: Collection[T]) -> TableView[T]:
        """The same, by the collection instead of its name: a type checker knows what the values
        are. Raises KeyError for a collection that the definition does not have."""
        definition = self._definition
        table = None if definition is None else definition.of_type(collection.type)
        if table is None or table.collection is not collection:
            raise KeyError(collection.type)
        return TableView(table, self._fold.state.get_type(table.type))

    @property
    def types(self) -> list[str]:
        """The types that have a value."""
        return self._fold.state.types

    @property
    def position(self) -> int:
        """The sequence of the next record."""
        return self._fold.position

    @property
    def stats(self) -> EventStats:
        """Counts of the events so far."""
        return self._fold.stats

    def changes(
        self, kind: str | None = None, key: str | None = None, size_max: int = SIZE_MAX
    ) -> Changes:
        """Changes from now on, of a type or of one key; use it as a context."""
        return Changes(kind, key, size_max, self._subscribers, lambda: self.failure)

    async def applied(self, sequence: int) -> None:
        """Wait until the record of that sequence is in the state."""
        while self.position <= sequence or self.position < self._whole_from:
            if self.failure is not None:
                raise self.failure
            if self._moved.is_set():
                self._moved = anyio.Event()
            await self._moved.wait()

    async def caught_up(self) -> None:
        """Wait until the state has every record that the stream has now."""
        await self.applied((await self.stream.info()).tail - 1)

    def checkpoint(self) -> bytes:
        """The state and its position, for `Fold.restore`."""
        return self._fold.checkpoint(self._born, _witness(self._last) if self._last else "")

    # The task.

    async def run(self) -> None:
        """Follow until cancelled, or until something ends it: then `failure` says what."""
        try:
            await self._open()
            while True:
                await self._follow()
        except ENDS as exc:
            # The tasks that wait for the state raise it, and so does the end of the block.
            self.failure = exc
        finally:
            for changes in self._subscribers:
                changes.end()
            self._moved.set()

    async def _open(self) -> None:
        info = await self.stream.info()
        self._born = info.created_ms
        if await self._restore():
            missed = info.trim_point - self.position
            if missed > 0:
                self._pass_over(self.position, info.trim_point)
        elif self._settings.from_node:
            await self._take_over()

    async def _restore(self) -> bool:
        path = self._settings.checkpoint
        if path is None:
            return False
        data = await to_thread.run_sync(_read, path)
        if data is None:
            return False
        try:
            await self._check_witness(self._fold.restore(data, self._born))
        except BadCheckpoint:
            self._fold = self._new_fold()  # of a stream that was deleted: from the beginning
            return False
        self._kept_at = self.position
        self._moved.set()
        return True

    async def _check_witness(self, witness: str) -> None:
        """A stream with less than disk durability may have lost its end, and have another one.

        Raises BadCheckpoint.
        """
        if witness:
            sequence = int(witness.partition(" ")[0])
            found = await self.stream.read(sequence, 1)
            is_trimmed = bool(found) and found[0].sequence > sequence
            if found and not is_trimmed and _witness(found[0]) != witness:
                raise BadCheckpoint("the stream has another record there")
            self._last = found[0] if found and not is_trimmed else None

    async def _take_over(self) -> None:
        """Begin with the node's state: its pages, then the records since the first page."""
        first: int | None = None
        async for position, rows in self.stream.state.pages():
            first = position if first is None else first
            self._whole_from = position
            for row in rows:
                self._fold.put(row.type, row.key, row.value)
        self._fold.skip_to(first or 0)
        self._moved.set()

    async def _follow(self) -> None:
        pages = self.stream.follow_pages(self.position, on_gap=self._pass_over)
        try:
            async with aclosing(pages):
                async for page in pages:
                    await self._check_same()
                    self._apply(page)
                    await self._keep()
        except SequenceMismatch:
            # It was deleted and created again: as with a reset.
            if self._settings.on_reset is OnReset.STOP:
                raise StateReset(0) from None
            self._fold, self._last = self._new_fold(), None
            self._whole_from = self._kept_at = 0
            self._tell(ControlApplied(0, Control.RESET))
            self._born = (await self.stream.info()).created_ms

    async def _check_same(self) -> None:
        """A page may be of another stream of that name, which was created in the meantime. If the
        stream is as old after the page as before, the page is its own: a deleted stream does not
        come back.

        Raises SequenceMismatch.
        """
        if (await self.stream.info()).created_ms != self._born:
            raise SequenceMismatch("the stream was created again")

    def _apply(self, page: list[Record]) -> None:
        fold, has_subscribers = self._fold, bool(self._subscribers)
        try:
            for record in page:
                last, self._last = self._last, record
                if not record.data or _is_command(record):
                    fold.skip_to(record.sequence + 1)
                    continue
                try:
                    taken = fold.take(record.sequence, record.data)
                except (InvalidEvent, StateReset):
                    self._last = last
                    raise
                match taken:
                    case Rejected() if self._settings.on_invalid is OnInvalid.QUARANTINE:
                        self.quarantined.append(taken)
                    case ControlApplied(control=control):
                        self._wants_checkpoint |= control is Control.SNAPSHOT_END
                        self._tell(taken)
                    case Changed() if has_subscribers:
                        self._tell(taken)
        finally:
            self._moved.set()

    def _tell(self, taken: Changed | ControlApplied) -> None:
        for changes in self._subscribers:
            changes.tell(taken)

    async def _keep(self) -> None:
        is_due = self._wants_checkpoint or self.position - self._kept_at >= self._settings.every
        if is_due:
            await self.keep()

    async def keep(self) -> None:
        """Write the checkpoint file now, if there is to be one."""
        path = self._settings.checkpoint
        if path is None or self.position == self._kept_at or self.position < self._whole_from:
            return
        position, data = self.position, self.checkpoint()
        await to_thread.run_sync(files.replace, path, data)
        self._kept_at, self._wants_checkpoint = position, False

    def _pass_over(self, first: int, end: int) -> None:
        """Records were trimmed before they were read."""
        if not self._settings.skip_gaps:
            raise Trimmed(f"records {first} to {end - 1} were trimmed before they were read")
        self._fold.stats.missed += end - first
        self._fold.skip_to(end)

    def _new_fold(self) -> Fold:
        settings = self._settings
        return Fold(self._definition, settings.on_invalid, settings.on_reset)


@asynccontextmanager
async def follow_state(
    stream: Stream,
    definition: StreamState | None = None,
    settings: FollowSettings | None = None,
) -> AsyncIterator[StateView]:
    """Follow a stream's state for the block. An error that ends the following is raised by the
    tasks that wait for the view, else at the end of the block.

    Raises InvalidEvent and StateReset, where the settings say so, Trimmed, and what
    `Stream.follow` raises.
    """
    view = StateView(stream, definition, settings or FollowSettings())
    with single_errors():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(view.run)
            yield view
            tasks.cancel_scope.cancel()
    await view.keep()
    if view.failure is not None:
        raise view.failure


def _witness(record: Record) -> str:
    """A text that tells a record from another one of the same sequence."""
    digest = blake2b(record.data, digest_size=16).hexdigest()
    return f"{record.sequence} {record.id.ms}-{record.id.seq} {record.timestamp} {digest}"


def _is_command(record: Record) -> bool:
    return len(record.headers) == 1 and not record.headers[0][0]


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
