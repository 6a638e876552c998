"""Read sessions (A.5, A.7, A.8): records as they come, heartbeats between them, over S2S or SSE."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf
from typing import Protocol

from millpond.actors.positions import Seek, SeekBy
from millpond.actors.streams import messages as m
from millpond.actors.streams.messages import ALL_RECORDS
from millpond.transports.http.cell_client import CellClient
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.s2.auto_create import describe_or_make
from millpond.transports.http.s2.codecs import columns as columns_codec
from millpond.transports.http.s2.codecs import protobuf as protobuf_codec
from millpond.transports.http.s2.codecs import s2s as frames
from millpond.transports.http.s2.codecs import sse as events
from millpond.transports.http.s2.codecs.compression import Compression, accepted
from millpond.transports.http.s2.codecs.json import Format, format_of
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import S2Context, S2Target
from millpond.transports.http.s2.encryption import RecordCipher
from millpond.transports.http.s2.errors import CodedError, ErrorCode, S2Error, StreamPosition
from millpond.transports.http.s2.model import METERED_MAX, READ_VIEW, RecordBatch
from millpond.transports.http.s2.read import read_memory, records_from, tail_of
from millpond.transports.http.s2.read_limits import ReadBudget
from millpond.transports.http.s2.read_query import ReadQuery, begin, read_query

HEARTBEAT_S_MIN, HEARTBEAT_S_MAX = 5.0, 15.0
S2S = b"s2s/proto"
NO_CACHE = (b"cache-control", b"no-cache, no-transform")


class SessionEncoder(Protocol):
    """The encoder of a read session: S2S frames or server-sent events. `measure`: it writes records
    as chunks keep them, where this can measure them."""

    @property
    def measure(self) -> m.MeasureBodies | None: ...

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """The headers of the response."""

    def batch(self, batch: RecordBatch, budget: ReadBudget) -> bytes:
        """Records."""

    def heartbeat(self, tail: StreamPosition, *, is_last: bool) -> bytes:
        """A heartbeat at the tail. `is_last`: the node stops."""

    def error(self, error: S2Error) -> bytes:
        """The session fails."""

    def done(self) -> bytes:
        """The regular end."""


class S2sEncoder:
    """S2S: messages of protobuf in frames."""

    measure = protobuf_codec.MEASURE
    headers = ((b"content-type", S2S), NO_CACHE)

    def __init__(self, compression: Compression) -> None:
        self._compression = compression

    def batch(self, batch: RecordBatch, budget: ReadBudget) -> bytes:
        return frames.encode(protobuf_codec.batch_pieces(batch), self._compression)

    def heartbeat(self, tail: StreamPosition, *, is_last: bool) -> bytes:
        pieces = protobuf_codec.batch_pieces(RecordBatch(tail=tail))
        return frames.encode(pieces, advises_reconnect=is_last)

    def error(self, error: S2Error) -> bytes:
        return frames.encode_terminal(error)

    def done(self) -> bytes:
        return b""


class ColumnEncoder(S2sEncoder):
    """Frames with the records by columns; a heartbeat has none."""

    measure = None
    headers = ((b"content-type", columns_codec.MEDIA_TYPE), NO_CACHE)

    def batch(self, batch: RecordBatch, budget: ReadBudget) -> bytes:
        if columns_codec.is_large(batch.spans[0]):
            blocks = columns_codec.pieces_of(batch.spans[0])
            return b"".join(frames.encode(each, self._compression) for each in blocks)
        pieces = list(chain.from_iterable(map(columns_codec.block, batch.spans)))
        return frames.encode(pieces, self._compression)

    def heartbeat(self, tail: StreamPosition, *, is_last: bool) -> bytes:
        return frames.encode((), advises_reconnect=is_last)


class SseEncoder:
    """Server-sent events, with JSON in them. `now_ms`: of the heartbeats."""

    measure = None
    headers = ((b"content-type", events.MEDIA_TYPE), NO_CACHE)

    def __init__(self, encoding: Format, context: S2Context) -> None:
        self._encoding = encoding
        self._now = context.services.now

    def batch(self, batch: RecordBatch, budget: ReadBudget) -> bytes:
        return events.encode_batch_event(batch, self._encoding, budget.event_id)

    def heartbeat(self, tail: StreamPosition, *, is_last: bool) -> bytes:
        return events.encode_ping(int(self._now() * 1000), tail)

    def error(self, error: S2Error) -> bytes:
        return events.encode_error(error)

    def done(self) -> bytes:
        return events.DONE


async def read_frames(context: S2Context, target: S2Target) -> None:
    """GET /v1/streams/{stream}/records as an S2S session."""
    query, compression = (
        read_query(context.request.query),
        accepted(context.header(b"accept-encoding")),
    )
    wanted = (context.header(b"accept") or "").encode()
    if wanted in (columns_codec.MEDIA_TYPE, columns_codec.LARGE):
        budget = query.session_budget(columns_codec.RECORDS_MAX)
        view = ALL_RECORDS if wanted == columns_codec.LARGE else READ_VIEW
        await _serve(context, target, query, ColumnEncoder(compression), budget, view)
    else:
        await _serve(context, target, query, S2sEncoder(compression))


async def read_events(context: S2Context, target: S2Target) -> None:
    """GET /v1/streams/{stream}/records as server-sent events."""
    encoder = SseEncoder(format_of(context.header(b"s2-format")), context)
    query, resumed = read_query(context.request.query), context.header(b"last-event-id")
    budget = query.session_budget()
    if resumed is not None:
        event_id = events.read_id(resumed)
        query = query.after(event_id)
        budget.resume(event_id)
    await _serve(context, target, query, encoder, budget)


async def _serve(
    context: S2Context,
    target: S2Target,
    query: ReadQuery,
    encoder: SessionEncoder,
    budget: ReadBudget | None = None,
    view: m.RecordFilter = READ_VIEW,
) -> None:
    key = context.encryption_key()
    context.require(Operation.READ, target)
    context.usage.of(target.basin).streaming_reads += 1
    context.request.active.keep_requiring(lambda: context.may(Operation.READ, target))
    with context.cell_client() as cells:
        found = await describe_or_make(context, cells, target, key)
        cipher = key.for_stream(target.cell, found)
        start = begin(query, tail_of(found), may_follow=query.session_may_begin_at_tail)
        budget = budget or query.session_budget()
        session = _Session(context, cells, target, query, encoder, budget, found, view, cipher)
        await context.writer.start(
            200, encoder.headers, lambda reason: encoder.error(cut_short(reason))
        )
        await context.request.run_until_disconnect(lambda: session.run(start))


def cut_short(reason: Rejection) -> CodedError:
    """The error of a session that the application aborts."""
    match reason:
        case Rejection.DRAINING:
            return CodedError(ErrorCode.SERVER_DRAINING, reason.message)
        case Rejection.NOT_ALLOWED:
            return CodedError(ErrorCode.PERMISSION_DENIED, reason.message)
        case _:
            return CodedError(ErrorCode.OTHER, reason.message)


class _Session:
    """Reads on from where the last batch ended, and waits at the tail."""

    __slots__ = (
        "_budget",
        "_cells",
        "_cipher",
        "_context",
        "_encoder",
        "_found",
        "_is_at_tail",
        "_query",
        "_target",
        "_view",
    )

    def __init__(
        self,
        context: S2Context,
        cells: CellClient,
        target: S2Target,
        query: ReadQuery,
        encoder: SessionEncoder,
        budget: ReadBudget,
        found: m.StreamDescription,
        view: m.RecordFilter,
        cipher: RecordCipher | None,
    ) -> None:
        self._view = view
        self._cipher = cipher
        self._context = context
        self._found = found
        self._cells = cells
        self._target = target
        self._query = query
        self._encoder = encoder
        self._budget = budget
        self._is_at_tail = False

    async def run(self, start: Seek) -> None:
        """Send everything, up to the end or the error."""
        writer = self._context.writer
        try:
            await self._follow(start)
            last = self._encoder.done()
        except S2Error as error:
            last = self._encoder.error(error)
        await writer.write(last)
        await writer.end()

    async def _follow(self, seek: Seek) -> None:
        budget, query, now = self._budget, self._query, self._context.services.now
        gives_up_at = inf if query.wait_s is None else now() + query.wait_s
        wait_until = 0.0
        hold_answer, found = self._context.request.hold_answer, self._found
        while not budget.is_over:
            if not wait_until:
                await hold_answer(read_memory(found, seek, budget))
            records = await records_from(
                self._cells,
                self._target,
                seek,
                budget,
                wait_until,
                found.incarnation,
                self._cipher,
                self._view,
                self._encoder.measure,
            )
            if wait_until or records.size_bytes > METERED_MAX:
                await hold_answer(2 * records.size_bytes)
            seek = Seek(SeekBy.SEQUENCE, sequence=records.next)
            has_records = bool(records.spans or records.packed)
            if has_records:
                await self._show(records)
                if query.wait_s:
                    gives_up_at = now() + query.wait_s
            if self._context.request.active.is_draining:
                await self._write_heartbeat(StreamPosition(records.tail, records.last_timestamp))
            if has_records and records.next < records.tail:
                wait_until = 0.0
                continue
            if not query.session_may_follow or (not has_records and now() >= gives_up_at):
                return
            if not has_records or not self._is_at_tail:
                await self._write_heartbeat(StreamPosition(records.tail, records.last_timestamp))
            wait_until = min(now() + self._pause_s(), gives_up_at)

    async def _show(self, records: m.Records) -> None:
        """Send what was found, as far as the budget goes."""
        end = None
        if records.next >= records.tail:
            end = StreamPosition(records.tail, records.last_timestamp)
        budget, before = self._budget, self._budget.metered
        batches: Iterable[RecordBatch]
        if records.packed:
            batches = (budget.packed_batch(records.packed, end),)
        else:
            batches = budget.batches(records.spans, records.slices, end)
        for batch in batches:
            await self._context.writer.write(self._encoder.batch(batch, budget))
        self._context.usage.of(self._target.basin).read_bytes += budget.metered - before

    async def _write_heartbeat(self, tail: StreamPosition) -> None:
        """Say that there is nothing more for now. Raises CodedError when the node stops."""
        self._is_at_tail = True
        is_draining = self._context.request.active.is_draining
        await self._context.writer.write(self._encoder.heartbeat(tail, is_last=is_draining))
        if is_draining:
            raise CodedError(
                ErrorCode.SERVER_DRAINING, "the node is stopping; retry later or at another node"
            )

    def _pause_s(self) -> float:
        return (
            HEARTBEAT_S_MIN + (HEARTBEAT_S_MAX - HEARTBEAT_S_MIN) * self._context.services.random()
        )
