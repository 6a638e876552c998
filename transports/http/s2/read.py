"""Unary reads and the tail (A.5)."""

from __future__ import annotations

from millpond.actors.messages import Failed
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.streams import messages as m
from millpond.transports.http.cell_client import CellClient, CellReply
from millpond.transports.http.direct import DirectClient, DirectRequest
from millpond.transports.http.request import RequestHead
from millpond.transports.http.response import Response
from millpond.transports.http.s2.append import compressed
from millpond.transports.http.s2.auto_create import (
    describe_or_make,
    described,
    failure,
    is_unknown,
)
from millpond.transports.http.s2.codecs import json as json_codec
from millpond.transports.http.s2.codecs import protobuf as protobuf_codec
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import S2Context, S2Target
from millpond.transports.http.s2.encryption import EncryptionKey, RecordCipher
from millpond.transports.http.s2.errors import S2Error, StreamPosition
from millpond.transports.http.s2.interface import S2NodeServices
from millpond.transports.http.s2.metadata import stream_metadata
from millpond.transports.http.s2.model import READ_VIEW, RecordBatch
from millpond.transports.http.s2.read_limits import ReadBudget
from millpond.transports.http.s2.read_query import ReadQuery, begin, read_query
from millpond.transports.http.s2.usage import S2Usage
from millpond.transports.http.small_reads import (
    ANSWER_BYTES,
    READ_BYTES,
    may_be_small,
    shows_all,
)


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


class SentRead(DirectRequest, frozen=True, gc=False):
    """A read on its way to a stream. `budget` None: the stream's description is asked for."""

    context: S2Context
    target: S2Target
    budget: ReadBudget | None = None


class DirectReads:
    """The reads with one head that do not wait for records. Implements
    `transports.http.direct.DirectOperation`."""

    __slots__ = ("_encoding", "_head", "_query", "_services", "_usage")

    def __init__(
        self,
        services: S2NodeServices,
        usage: S2Usage,
        head: RequestHead,
        query: ReadQuery,
        encoding: json_codec.Format,
    ) -> None:
        self._services = services
        self._usage = usage
        self._head = head
        self._query = query
        self._encoding = encoding

    def message(self, number: int, client: DirectClient, body: bytes) -> DirectRequest | Response:
        """The question for the stream's description."""
        context = S2Context(self._services, client.request(), self._usage)
        try:
            target = context.target(self._head.segments[2])
            context.check(Operation.READ, target)
            context.require_basin(target.basin)
        except S2Error as error:
            return error.response
        return SentRead(target.cell, m.Describe(number), 0, context, target)

    def response(self, sent: DirectRequest, reply: CellReply) -> DirectRequest | Response | None:
        """The read of a few records, then the response with them; None: there are many, or the
        stream is encrypted, or does not exist and may be created now."""
        assert isinstance(sent, SentRead), "a read was sent"
        if is_unknown(reply):
            return None
        try:
            if sent.budget is None:
                found = described(reply, sent.target)
                response = self._read(sent, found)
            else:
                response = self._found(sent, sent.budget, records_in(reply, sent.target))
        except S2Error as error:
            response = error.response
        if isinstance(response, Response):
            self._usage.count(Operation.READ, sent.target.basin)
            self._usage.of(sent.target.basin).unary_reads += 1
        return response

    def _read(self, sent: SentRead, found: m.StreamDescription) -> DirectRequest | Response | None:
        if stream_metadata(found.settings).cipher is not None:
            return None
        start = begin(self._query, tail_of(found), may_follow=False)
        budget = self._query.unary_budget()
        if budget.is_over:
            return _response(sent.context, RecordBatch(), self._encoding)
        if not may_be_small(found.info, start, budget.count_left):
            return None
        read = m.Read(
            sent.request.number,
            start,
            budget.count_left,
            min(max(budget.bytes_left, 1), READ_BYTES),
            record_filter=READ_VIEW,
            incarnation=found.incarnation,
        )
        return SentRead(sent.cell, read, 0, sent.context, sent.target, budget)

    def _found(self, sent: SentRead, budget: ReadBudget, records: m.Records) -> Response | None:
        if not shows_all(records, budget.count_left, budget.bytes_left):
            return None
        response = _response(sent.context, batch_of(records, budget), self._encoding)
        if len(response.body) > ANSWER_BYTES:
            return None
        self._usage.of(sent.target.basin).read_bytes += budget.metered
        return response


def direct_reads(services: S2NodeServices, usage: S2Usage, head: RequestHead) -> DirectReads | None:
    """The reads with this head; None: they wait for records, or cannot be read, which a task
    tells."""
    try:
        query = read_query(head.query)
        form = head.header(b"s2-format")
        encoding = json_codec.format_of(None if form is None else form.decode())
    except (S2Error, UnicodeDecodeError):
        return None
    return None if query.unary_may_follow else DirectReads(services, usage, head, query, encoding)


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
    batch = batch_of(records, budget)
    context.usage.of(target.basin).read_bytes += budget.metered
    return batch


def batch_of(records: m.Records, budget: ReadBudget) -> RecordBatch:
    """The batch of a unary read, with the tail if it reaches it."""
    is_at_tail = records.next >= records.tail
    end = StreamPosition(records.tail, records.last_timestamp) if is_at_tail else None
    return next(budget.batches(records.spans, records.slices, end), RecordBatch(tail=end))


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

    records = records_in(await cells.request(target.cell, make), target)
    return records if cipher is None else await cipher.decrypted(records, budget)


def records_in(reply: CellReply, target: S2Target) -> m.Records:
    """The records in a reply. Raises S2Error."""
    match reply:
        case m.Records():
            return reply
        case m.StreamFailed() | Failed():
            raise failure(reply, target)
        case _:
            raise AssertionError(f"{reply} answers no read")


def _response(context: S2Context, batch: RecordBatch, encoding: json_codec.Format) -> Response:
    if protobuf_codec.is_protobuf(context.header(b"accept")):
        return compressed(context, protobuf_codec.MEDIA_TYPE, protobuf_codec.encode_batch(batch))
    return compressed(context, json_codec.MEDIA_TYPE, json_codec.encode_batch(batch, encoding))
