"""Unary reads and the tail (A.5)."""

from __future__ import annotations

from millpond.actors.messages import Failed
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.streams import messages as m
from millpond.transports.http.cell_client import CellClient
from millpond.transports.http.response import Response
from millpond.transports.http.s2.append import compressed
from millpond.transports.http.s2.auto_create import describe_or_make, failure
from millpond.transports.http.s2.codecs import json as json_codec
from millpond.transports.http.s2.codecs import protobuf as protobuf_codec
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import S2Context, S2Target
from millpond.transports.http.s2.encryption import EncryptionKey, RecordCipher
from millpond.transports.http.s2.errors import StreamPosition
from millpond.transports.http.s2.model import READ_VIEW, RecordBatch
from millpond.transports.http.s2.read_limits import ReadBudget
from millpond.transports.http.s2.read_query import ReadQuery, begin, read_query


async def tail(context: S2Context, target: S2Target) -> Response:
    """GET /v1/streams/{stream}/records/tail."""
    context.require(Operation.CHECK_TAIL, target)
    with context.cell_client() as cells:
        found = await describe_or_make(context, cells, target, None)
    body = json_codec.encode_tail(tail_of(found))
    return Response(200, ((b"content-type", json_codec.MEDIA_TYPE),), body)


def tail_of(found: m.StreamDescription) -> StreamPosition:
    """The tail of a stream, with the timestamp of its last record."""
    return StreamPosition(found.info.tail, found.info.last_timestamp)


async def read(context: S2Context, target: S2Target) -> Response:
    """GET /v1/streams/{stream}/records, answered with one batch."""
    query, key = read_query(context.request.query), context.encryption_key()
    encoding = json_codec.format_of(context.header(b"s2-format"))
    context.require(Operation.READ, target)
    context.usage.of(target.basin).unary_reads += 1

    async def run() -> RecordBatch:
        with context.cell_client() as cells:
            return await _read(context, cells, target, query, key)

    batch = await (context.request.run_until_disconnect(run) if query.unary_may_follow else run())
    return _response(context, batch, encoding)


async def _read(
    context: S2Context, cells: CellClient, target: S2Target, query: ReadQuery, key: EncryptionKey
) -> RecordBatch:
    found = await describe_or_make(context, cells, target, key)
    cipher = key.for_stream(target.cell, found)
    start = begin(query, tail_of(found), may_follow=query.unary_may_follow)
    budget = query.unary_budget()
    if budget.is_over:
        return RecordBatch()
    wait_until = context.services.now() + query.unary_wait_s if query.unary_may_follow else 0.0
    await context.request.hold_answer(read_memory(found, start, budget))
    records = await records_from(
        cells, target, start, budget, wait_until, found.incarnation, cipher
    )
    end = (
        StreamPosition(records.tail, records.last_timestamp)
        if records.next >= records.tail
        else None
    )
    batches = budget.batches(records.spans, records.slices, end)
    batch = next(batches, RecordBatch(tail=end))
    context.usage.of(target.basin).read_bytes += budget.metered
    return batch


def read_memory(found: m.StreamDescription, start: Seek, budget: ReadBudget) -> int:
    """The bytes that the next records may take in memory: as they are read, and once more as they
    are written. A read at the tail takes none before there is a record."""
    is_at_tail = start.by is SeekBy.SEQUENCE and start.sequence >= found.info.tail
    return 0 if is_at_tail else 2 * min(found.info.bytes_kept, max(budget.bytes_left, 0))


async def records_from(
    cells: CellClient,
    target: S2Target,
    start: Seek,
    budget: ReadBudget,
    wait_until: float,
    incarnation: int,
    cipher: RecordCipher | None,
    view: m.RecordFilter = READ_VIEW,
    measure: m.MeasureBodies | None = None,
) -> m.Records:
    """The next records that the budget may show, in clear; packed where `measure` can. Raises
    S2Error: 404 once the stream is gone, even if there is another of its name; decryption_failed.
    """
    kind, bytes_max = m.Read, max(budget.bytes_left, 1)
    if not budget.takes_packed:
        measure = None
    if cipher is not None:
        measure = None
        kind, view = m.EncryptedRead, m.ALL_RECORDS
        bytes_max = cipher.stored_bytes(budget.count_left, bytes_max)

    def make(number: int) -> m.Read:
        return kind(
            number,
            start,
            budget.count_left,
            bytes_max,
            wait_until,
            view,
            incarnation=incarnation,
            by_chunk=budget.is_bulk,
            measure=measure,
        )

    reply = await cells.request(target.cell, make)
    match reply:
        case m.Records():
            return reply if cipher is None else await cipher.decrypted(reply, budget)
        case m.StreamFailed() | Failed():
            raise failure(reply, target)
        case _:
            raise AssertionError(f"{reply} answers no read")


def _response(context: S2Context, batch: RecordBatch, encoding: json_codec.Format) -> Response:
    if protobuf_codec.is_protobuf(context.header(b"accept")):
        return compressed(context, protobuf_codec.MEDIA_TYPE, protobuf_codec.encode_batch(batch))
    return compressed(context, json_codec.MEDIA_TYPE, json_codec.encode_batch(batch, encoding))
