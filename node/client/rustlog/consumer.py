"""Follows partitions of a topic for a consumer group, and commits how far it got."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal, Self

import anyio
import msgspec

from millpond.actors.errors import OutcomeUnknown, RequestError
from millpond.node.client.errors import ConnectionLost
from millpond.node.client.requests.errors import NotDone, OffsetOutOfRange, ServerFailed

if TYPE_CHECKING:
    from millpond.node.client.rustlog.client import Rustlog

AGAIN_S = 0.2
IDLE_S_MIN = 0.005
LEAVE_S = 2.0


class ConsumerSettings(msgspec.Struct, frozen=True):
    """`start`: where a group begins that committed nothing yet.

    `on_trimmed`: where records were removed before they were read, raise OffsetOutOfRange, or go on
    behind them and count them in `skipped`. `commit_ms`: how often it commits by itself; None: only
    `commit` does. `fetch_bytes`: about so much is fetched of a partition at once. `idle_ms`: how
    long it rests at most where nothing new is; RustLog has no fetch that waits.
    """

    start: Literal["earliest", "latest"] = "earliest"
    on_trimmed: Literal["raise", "skip"] = "raise"
    commit_ms: int | None = 1000
    fetch_bytes: int = 2**20
    idle_ms: int = 100


CONSUMER = ConsumerSettings()


class ConsumedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of a partition; `timestamp` in microseconds since the Unix epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    data: bytes


class RustlogConsumer:
    """Iterate over it; one task at a time. Each record is given out at least once per group.

    A record counts as processed once the next one is asked for, or the block ends without an error.
    `skipped` records were trimmed before they were read.
    """

    skipped: int

    def __init__(
        self,
        rustlog: Rustlog,
        group: str,
        topic: str,
        offsets: dict[int, int],
        settings: ConsumerSettings,
    ) -> None:
        self.skipped = 0
        self._rustlog = rustlog
        self._group = group
        self._topic = topic
        self._settings = settings
        self._fetch_at = dict(offsets)
        self._processed = dict(offsets)
        self._committed = dict(offsets)
        self._ready: deque[ConsumedRecord] = deque()
        self._in_hand: ConsumedRecord | None = None
        self._commit_at = 0.0
        self._idle_s = IDLE_S_MIN
        self._errors: list[Exception] = []

    @property
    def positions(self) -> dict[int, int]:
        """By partition, the offset of the next record to process."""
        return dict(self._processed)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumedRecord:
        """The next record of any partition. Raises RequestErrors and ConnectionLost."""
        self._done_with_it()
        while True:
            await self._commit_if_due()
            if self._ready:
                self._in_hand = self._ready.popleft()
                return self._in_hand
            await self._fetch_all()

    async def commit(self) -> None:
        """Tell the server what is processed; the record in hand is not."""
        for partition, offset in self._processed.items():
            if self._committed[partition] != offset:
                await self._commit(partition, offset)
                self._committed[partition] = offset

    def seek(self, partition: int, offset: int) -> None:
        """Go on at `offset`, forwards or backwards; KeyError for a partition not followed."""
        if partition not in self._processed:
            raise KeyError(partition)
        self._processed[partition] = self._fetch_at[partition] = offset
        self._ready = deque(one for one in self._ready if one.partition != partition)
        if self._in_hand is not None and self._in_hand.partition == partition:
            self._in_hand = None

    @asynccontextmanager
    async def committing(self) -> AsyncIterator[None]:
        """Commit at the end of the block, if it commits by itself."""
        is_clean = False
        try:
            yield
            is_clean = True
        finally:
            if is_clean:
                self._done_with_it()
            if self._settings.commit_ms is not None and not self._rustlog.closed:
                with anyio.move_on_after(LEAVE_S, shield=True):
                    await self.commit()

    def _done_with_it(self) -> None:
        if self._in_hand is not None:
            self._processed[self._in_hand.partition] = self._in_hand.offset + 1
            self._in_hand = None

    async def _commit_if_due(self) -> None:
        commit_ms = self._settings.commit_ms
        if commit_ms is None or anyio.current_time() < self._commit_at:
            return
        await self.commit()
        self._commit_at = anyio.current_time() + commit_ms / 1000

    async def _commit(self, partition: int, offset: int) -> None:
        """Until it is answered: the same commit twice is one."""
        while True:
            try:
                return await self._rustlog.commit(self._group, self._topic, partition, offset)
            except (NotDone, OutcomeUnknown) as error:
                if self._rustlog.closed or isinstance(error, ServerFailed):
                    raise
            await anyio.sleep(AGAIN_S)

    async def _fetch_all(self) -> None:
        """Ask for what every partition has next; rest where none has anything."""
        self._errors.clear()
        async with anyio.create_task_group() as tasks:
            for partition in self._fetch_at:
                tasks.start_soon(self._fetch, partition)
        if self._ready:
            self._idle_s = IDLE_S_MIN
            return
        for error in self._errors:
            if self._rustlog.closed or not isinstance(error, NotDone):
                raise error
        await anyio.sleep(AGAIN_S if self._errors else self._idle_s)
        self._idle_s = min(2 * self._idle_s, self._settings.idle_ms / 1000)

    async def _fetch(self, partition: int) -> None:
        offset = self._fetch_at[partition]
        try:
            fetched = await self._rustlog.fetch(
                self._topic,
                offset,
                partition=partition,
                max_bytes=self._settings.fetch_bytes,
                group=self._group,
            )
        except OffsetOutOfRange as error:
            self._trimmed(partition, offset, error)
            return
        except (RequestError, ConnectionLost) as error:
            self._errors.append(error)
            return
        self._fetch_at[partition] = fetched.next_offset
        self._ready.extend(
            ConsumedRecord(self._topic, partition, one.offset, one.timestamp, one.data)
            for one in fetched.records
        )

    def _trimmed(self, partition: int, offset: int, error: OffsetOutOfRange) -> None:
        if self._settings.on_trimmed == "raise" or error.start is None or error.start <= offset:
            self._errors.append(error)
        else:
            self.skipped += error.start - offset
            self._fetch_at[partition] = error.start


async def first_offsets(
    rustlog: Rustlog,
    group: str,
    topic: str,
    partitions: Iterable[int] | None,
    settings: ConsumerSettings,
) -> dict[int, int]:
    """By partition, where the group goes on. Raises UnknownTopic and UnknownPartition."""
    rows = {row.partition: row for row in await rustlog.describe(topic)}
    chosen = sorted(rows) if partitions is None else list(partitions)
    offsets: dict[int, int] = {}
    for partition in chosen:
        offset = await rustlog.committed(group, topic, partition)
        if offset is None:
            row = rows.get(partition) or await rustlog.describe_partition(topic, partition)
            is_first = settings.start == "earliest"
            offset = row.log_start_offset if is_first else row.high_watermark
        offsets[partition] = offset
    return offsets
