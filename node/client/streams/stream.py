"""One stream of a node, through the node's own requests (docs/reference/wire-protocol.md,
"Streams")."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TypeVar

import anyio
import msgspec

from millpond.actors.errors import (
    BufferFull,
    OutcomeUnknown,
    SequenceMismatch,
    SlowDown,
    StreamExists,
    Trimmed,
)
from millpond.actors.store.changes import Position
from millpond.actors.streams.messages import RecordColumns
from millpond.node.client.payload import as_bytes
from millpond.node.client.state.remote import NodeState
from millpond.node.client.streams.records import Appended, NewRecord, Record, StreamInfo, records_of
from millpond.node.client.streams.requests import StreamRequests
from millpond.node.client.tracing import hook, trace_of, with_trace
from millpond.transports.p2p.streams import bodies as b
from millpond.transports.p2p.streams.operations import Operation

FOLLOW_S = 20.0
WAIT_S_MAX = b.WAIT_MS_MAX / 1000
PAGE = b.RECORDS_MAX
RETRY_S = 0.05, 2.0
TEMPORARY = (OutcomeUnknown, BufferFull, SlowDown)
"""Errors of a read that may pass."""

Start = int | Position | datetime
"""The start of a read: a sequence, an id or a time; from the next record on."""
Body = bytes | bytearray | memoryview
Entry = Body | NewRecord
OnGap = Callable[[int, int], None]
T = TypeVar("T")


class _Page(msgspec.Struct):
    spans: list[RecordColumns]
    next: int
    tail: int
    last_timestamp: int

    @property
    def records(self) -> list[Record]:
        return [record for span in self.spans for record in records_of(span)]


class Stream:
    """One stream of a node, by name. It need not be closed."""

    name: bytes

    def __init__(self, name: bytes, requests: StreamRequests) -> None:
        self.name = name
        self._requests = requests

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"

    @property
    def state(self) -> NodeState:
        """The state of its events, materialized by the node (docs/reference/state.md)."""
        return NodeState(self.name, self._requests)

    async def create(
        self,
        *,
        age_s: int | None = None,
        bytes_max: int | None = None,
        content_type: bytes | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create the stream. Records are removed once they are older than `age_s` seconds, and the
        oldest ones above `bytes_max` bytes. Raises StreamExists."""
        body = b.CreateBody(self.name, age_s, bytes_max, content_type)
        try:
            await self._requests.ask(Operation.CREATE, body, dict)
        except StreamExists:
            if not exist_ok:
                raise

    async def configure(self, *, age_s: int | None = None, bytes_max: int | None = None) -> None:
        """Change the limits; None: as the node is configured. Records keep the age they have."""
        content_type = (await self.info()).content_type
        body = b.CreateBody(self.name, age_s, bytes_max, content_type)
        await self._requests.ask(Operation.CONFIGURE, body, dict)

    async def append(
        self,
        records: Entry | Sequence[Entry],
        *,
        ms: int | None = None,
        match: int | None = None,
        fence: bytes | None = None,
    ) -> Appended:
        """Add records at the end, all or none.

        `ms`: the first part of their ids (NonMonotonicId if it is below the last one). `match`: the
        expected tail (SequenceMismatch). `fence`: the stream's fencing token (Fenced).
        Raises UnknownStream; DataTooLarge above 1000 records or a packet of the node.
        """
        entries = [records] if isinstance(records, Body | NewRecord) else list(records)
        if not entries:
            raise ValueError("there is nothing to append")
        full = [
            each if isinstance(each, NewRecord) else NewRecord(as_bytes(each)) for each in entries
        ]
        if hook.active is not None:
            size = sum(len(each.data) for each in full)
            with hook.active.send(self.name, len(full), size) as span:
                carrier = span.carrier
                traced = [
                    msgspec.structs.replace(each, headers=with_trace(each.headers, carrier))
                    for each in full
                ]
                return await self._append(traced, ms, match, fence)
        return await self._append(full, ms, match, fence)

    async def _append(
        self,
        full: Sequence[NewRecord],
        ms: int | None,
        match: int | None,
        fence: bytes | None,
    ) -> Appended:
        body = b.AppendBody(
            self.name,
            [each.data for each in full],
            ms,
            [each.headers for each in full] if any(each.headers for each in full) else None,
            [each.timestamp for each in full]
            if any(each.timestamp is not None for each in full)
            else None,
            fence,
            match,
        )
        return await self._requests.ask(Operation.APPEND, body, Appended)

    async def read(self, start: Start = 0, count: int = 100, wait_s: float = 0.0) -> list[Record]:
        """At most `count` records from `start` on, or fewer: as many as fit about 256 KiB.

        Trimmed records are left out. Without a record, waits for one for so many seconds.
        """
        now = self._requests.link.now
        give_up_at = now() + wait_s
        while True:
            left_s = max(0.0, min(give_up_at - now(), WAIT_S_MAX))
            page = await self._page(start, min(count, PAGE), left_s)
            if page.spans or now() >= give_up_at:
                return page.records

    async def tail(self, count: int = 10) -> list[Record]:
        """The last `count` records."""
        info = await self.info()
        first = max(info.trim_point, info.tail - count)
        return [record async for record in self.records(first, info.tail)]

    async def records(self, start: Start = 0, end: int | None = None) -> AsyncGenerator[Record]:
        """Records from `start` to before sequence `end`; None: the present tail."""
        async with aclosing(self.pages(start, end)) as pages:
            async for page in pages:
                for record in page:
                    yield record

    async def pages(self, start: Start = 0, end: int | None = None) -> AsyncGenerator[list[Record]]:
        """The same, page by page."""
        while end is None or not isinstance(start, int) or start < end:
            page = await self._page(start, PAGE, 0.0)
            end = page.tail if end is None else end
            records = page.records
            if records and records[-1].sequence >= end:
                records = [record for record in records if record.sequence < end]
            if not records:
                return
            yield records
            start = page.next

    async def follow(
        self, start: Start | None = None, *, on_gap: OnGap | None = None
    ) -> AsyncGenerator[Record]:
        """Records from `start` on (None: from the tail), and then those to come, for ever.

        It reconnects after a lost connection: every record comes once, in order. For records that
        were trimmed before they were read `on_gap` (first, end) is called; without it Trimmed is
        raised. Raises SequenceMismatch if the stream was created again, UnknownStream if deleted.
        """
        async with aclosing(self.follow_pages(start, on_gap=on_gap)) as pages:
            async for page in pages:
                for record in page:
                    yield record

    async def follow_pages(
        self, start: Start | None = None, *, on_gap: OnGap | None = None
    ) -> AsyncGenerator[list[Record]]:
        """The same, page by page."""
        reached: int | None = None
        if start is None:
            start = reached = (await self.info()).tail
        while True:
            page = await self._page_with_retries(start)
            if reached is not None:
                _check_continuity(reached, page, on_gap)
            if page.spans:
                yield page.records
                start = reached = page.next
            elif isinstance(start, int) and page.next > start:
                start = page.next
                reached = None if reached is None else start

    async def trim(self, below: int | Position) -> None:
        """Remove the records below a sequence or an id."""
        if isinstance(below, Position):
            body = b.TrimBody(self.name, id=below)
        else:
            body = b.TrimBody(self.name, below)
        await self._requests.ask(Operation.TRIM, body, dict)

    async def delete(self) -> None:
        """Remove the stream with all its records."""
        await self._requests.ask(Operation.DELETE, b.StreamBody(self.name), dict)

    async def info(self) -> StreamInfo:
        """The stream's tail, trim point, settings and counts. Raises UnknownStream."""
        body = b.StreamBody(self.name)
        return await self._requests.ask(Operation.DESCRIBE, body, StreamInfo)

    async def commit(self, group: str | bytes, offset: int) -> None:
        """Commit the offset of a consumer group: the next sequence that it will process."""
        body = b.CommitBody(self.name, os.fsencode(group), offset)
        await self._requests.ask(Operation.COMMIT, body, dict)

    async def committed(self, group: str | bytes) -> int | None:
        """The committed offset of a group; None: it committed none."""
        body = b.CommittedBody(self.name, os.fsencode(group))
        return (await self._requests.ask(Operation.COMMITTED, body, b.OffsetBody)).offset

    async def _page(self, start: Start, count: int, wait_s: float) -> _Page:
        page = await self._untraced_page(start, count, wait_s)
        if hook.active is not None and (records := page.records):
            carriers = (trace_of(each.headers) for each in records)
            hook.active.received(self.name, filter(None, carriers), len(records))
        return page

    async def _untraced_page(self, start: Start, count: int, wait_s: float) -> _Page:
        match start:
            case Position():
                body = b.ReadBody(self.name, id=start)
            case datetime():
                body = b.ReadBody(self.name, timestamp=max(0, round(start.timestamp() * 1000)))
            case _:
                body = b.ReadBody(self.name, start)
        wait_ms = min(round(wait_s * 1000), b.WAIT_MS_MAX)
        body = msgspec.structs.replace(body, count=count, wait_ms=wait_ms)
        if not wait_ms:
            return await self._requests.ask(Operation.READ, body, _Page)
        waiting = self._requests.link.inflight.streams.waiting_limit
        await waiting.acquire(1)
        try:
            return await self._requests.ask(Operation.READ, body, _Page)
        finally:
            waiting.release(1)

    async def _page_with_retries(self, start: Start) -> _Page:
        """A page, or an empty one after a while; errors that pass are retried."""
        delay_s, delay_s_max = RETRY_S
        while True:
            try:
                return await self._page(start, PAGE, FOLLOW_S)
            except TEMPORARY as error:
                told_s = (error.delay_ms or 0) / 1000
            await anyio.sleep(max(delay_s, told_s))
            delay_s = min(2 * delay_s, delay_s_max)


def stream_name(name: str | bytes) -> bytes:
    """The name as bytes. Raises ValueError for one that no stream can have."""
    found = name.encode() if isinstance(name, str) else name
    if not 0 < len(found) <= b.NAME_BYTES_MAX:
        raise ValueError(f"a stream's name has 1 to {b.NAME_BYTES_MAX} bytes, not {len(found)}")
    return found


def _check_continuity(reached: int, page: _Page, on_gap: OnGap | None) -> None:
    """Check that a page that was read from `reached` on begins there."""
    if page.tail < reached:
        text = f"the stream ends at {page.tail}, before {reached}: it was created again"
        raise SequenceMismatch(text)
    first = page.spans[0].first if page.spans else page.next
    if first > reached:
        if on_gap is None:
            raise Trimmed(f"records {reached} to {first - 1} were trimmed before they were read")
        on_gap(reached, first)
