"""Publishes a batch: its parts, slice after slice, into its stream.

The first slice carries the list of all parts and decides for them; each is added with the note of
how far the batch got, so that a publisher continues there after a stop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import Failed
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import StagedPart, staged_cell
from millpond.transports.http.cell_client import CellClient
from millpond.transports.http.s2.errors import CodedError, ErrorCode, error_of
from millpond.transports.http.transactions.interface import TransactionNodeServices
from millpond.transports.http.transactions.stage import conflict, drop, extend_retention, replies

SLICE_BYTES = 4 * 2**20
SLICE_ROWS = 10_000
READ_ROWS = 1000
PARTS_MAX = 10_000


class PartRows(msgspec.Struct, frozen=True, gc=False):
    """A part, and how many rows it has."""

    id: str
    rows: int


class Plan(msgspec.Struct, frozen=True, gc=False):
    """The parts of a batch. `once`: its writer writes no other batch.

    `unnamed`: its name was made for this batch.
    """

    parts: list[PartRows]
    once: bool = False
    unnamed: bool = False

    @property
    def rows(self) -> int:
        """The rows of all parts."""
        return sum(each.rows for each in self.parts)


class _Superseded(Exception):
    """A concurrent publisher of the same batch is further ahead."""


class Publisher:
    """Publishes the batches of one writer into the stream with the cell `target`."""

    def __init__(
        self, services: TransactionNodeServices, cells: CellClient, target: bytes, writer: bytes
    ) -> None:
        self._unwanted = services.stages.unwanted
        self._counters = services.transactions
        self._cells = cells
        self._target = target
        self._writer = writer

    async def writer_status(self) -> m.WriterStatus:
        """The progress of the writer. Raises S2Error."""
        reply = await self._cells.request(
            self._target, lambda number: m.GetWriter(number, self._writer)
        )
        return _writer_status(reply)

    async def publish(self, batch: int, plan: Plan) -> bool:
        """Publish a batch, after what is left of the one before it. False: it was published
        already, and these parts are dropped. Raises S2Error."""
        await self.finish()
        is_new = batch > (await self.writer_status()).batch
        if is_new:
            size = await self._check_whole(batch, plan)
            if plan.rows >= SLICE_ROWS or size >= SLICE_BYTES:
                await self._hold(batch, plan)
            await self._go_on(batch, msgspec.json.encode(plan), 0)
            await self.finish()
        else:
            self._counters.duplicates += 1
        await self._drop(batch, plan)
        return is_new

    async def finish(self) -> None:
        """Publish what is left of a batch that was begun. Raises S2Error."""
        while not (status := await self.writer_status()).is_done:
            await self._go_on(status.batch, status.plan, status.rows)
            await self._drop(status.batch, _plan(status.plan))

    async def needs(self, part: StagedPart) -> bool:
        """Whether a batch that is decided, and not published as a whole yet, has this part. Raises
        S2Error; a stream that is gone needs nothing."""
        try:
            status = await self.writer_status()
        except CodedError as error:
            if error.code is ErrorCode.STREAM_NOT_FOUND:
                return False
            raise
        if status.is_done or status.batch != part.batch:
            return False
        return any(each.id.encode() == part.id for each in _plan(status.plan).parts)

    async def _go_on(self, batch: int, plan: bytes, at: int) -> None:
        found = _plan(plan)
        total = found.rows
        try:
            async with aclosing(self._slices(batch, found, at)) as slices:
                async for bodies, headers in slices:
                    is_last = at + len(bodies) >= total
                    at = await self._add(batch, plan, at, bodies, headers, is_last, found)
            if not total:
                await self._add(batch, plan, 0, [], None, True, found)
        except _Superseded:
            return

    async def _add(
        self,
        batch: int,
        plan: bytes,
        at: int,
        bodies: list[bytes],
        headers: list[m.Headers] | None,
        is_last: bool,
        found: Plan,
    ) -> int:
        def make(number: int) -> m.WriterAppend:
            return m.WriterAppend(
                number,
                bodies,
                headers=headers,
                writer=self._writer,
                batch=batch,
                at=at,
                plan=plan,
                is_last=is_last,
                once=found.once or found.unnamed,
                unnamed=found.unnamed,
            )

        size = sum(map(len, bodies))
        status = _writer_status(await self._cells.request(self._target, make, size))
        at += len(bodies)
        if status.batch != batch or status.rows != at or status.is_done != is_last:
            raise _Superseded
        self._counters.published_rows += len(bodies)
        self._counters.published += is_last
        return at

    async def _slices(
        self, batch: int, plan: Plan, skipped: int
    ) -> AsyncGenerator[tuple[list[bytes], list[m.Headers] | None]]:
        bodies: list[bytes] = []
        headers: list[m.Headers] = []
        size = 0
        for each in plan.parts:
            first, skipped = min(skipped, each.rows), max(0, skipped - each.rows)
            while first < each.rows:
                for span in await self._rows(batch, each, first):
                    bodies += span.bodies
                    headers += span.headers or ([] for _ in span.bodies)
                    size += sum(map(len, span.bodies))
                    first = span.first + len(span.bodies)
                if size >= SLICE_BYTES or len(bodies) >= SLICE_ROWS:
                    yield bodies, headers if any(headers) else None
                    bodies, headers, size = [], [], 0
        if bodies:
            yield bodies, headers if any(headers) else None

    async def _rows(self, batch: int, each: PartRows, first: int) -> Sequence[m.RecordColumns]:
        start = Seek(SeekBy.SEQUENCE, sequence=first)
        count = min(READ_ROWS, each.rows - first)
        cell = self._cell(batch, each)
        reply = await self._cells.request(
            cell, lambda number: m.Read(number, start, count, SLICE_BYTES)
        )
        if isinstance(reply, m.Records) and reply.spans and reply.spans[0].first == first:
            return reply.spans
        status = await self.writer_status()
        if status.batch > batch or (status.batch == batch and status.is_done):
            raise _Superseded  # a faster publisher has dropped the part
        raise conflict(f"rows of the part {each.id} are missing")

    async def _check_whole(self, batch: int, plan: Plan) -> int:
        """The bytes of a batch. Raises CodedError unless all of its parts are complete."""
        size = 0
        asked = [self._cell(batch, each) for each in plan.parts]
        found = await replies(self._cells, asked, m.Describe)
        for each, reply in zip(plan.parts, found, strict=True):
            if not isinstance(reply, m.StreamDescription) or reply.info.trim_point:
                raise conflict(f"the part {each.id} does not exist")
            if reply.info.tail != each.rows:
                raise conflict(f"the part {each.id} has {reply.info.tail} rows, not {each.rows}")
            size += reply.info.bytes_kept
        return size

    async def _hold(self, batch: int, plan: Plan) -> None:
        """Between two slices a node may be off for long."""
        await extend_retention(self._cells, [self._part(batch, each) for each in plan.parts])

    async def _drop(self, batch: int, plan: Plan) -> None:
        parts = [self._part(batch, each) for each in plan.parts]
        await drop(self._cells, parts, self._unwanted)

    def _cell(self, batch: int, each: PartRows) -> bytes:
        return staged_cell(self._part(batch, each))

    def _part(self, batch: int, each: PartRows) -> StagedPart:
        return StagedPart(self._target, self._writer, batch, each.id.encode())


def _plan(data: bytes) -> Plan:
    return msgspec.json.decode(data, type=Plan)


def _writer_status(reply: object) -> m.WriterStatus:
    match reply:
        case m.WriterStatus():
            return reply
        case m.StreamFailed(code=Code.GROUPS_FULL):
            text = "the stream remembers as many writers as it can, all of them used lately"
            raise CodedError(ErrorCode.TOO_MANY_WRITERS, text)
        case m.StreamFailed() | Failed():
            raise error_of(reply)
        case _:
            raise AssertionError(f"{reply} says nothing of a writer")
