"""PUT: have a stream like this, perhaps as a fork of another (B.1, B.6)."""

from __future__ import annotations

from millpond.actors.messages import Failed, Rights
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.streams import messages as m
from millpond.actors.streams.durable import messages as d
from millpond.transports.http.cell_client import CellClient, CellReply
from millpond.transports.http.durable import protocol, request_headers
from millpond.transports.http.durable.context import DurableContext, DurableTarget, target_of
from millpond.transports.http.durable.errors import (
    bad_request,
    error_of,
    refusal_error,
    too_many_messages,
)
from millpond.transports.http.durable.json_mode import (
    NotJson,
    is_message,
    messages_of,
)
from millpond.transports.http.durable.offsets import offset_of
from millpond.transports.http.json_arrays import ArrayTooLong
from millpond.transports.http.paths import DURABLE
from millpond.transports.http.request import BadPath, percent_decoded
from millpond.transports.http.response import Response


async def put(context: DurableContext, target: DurableTarget) -> Response:
    """PUT /v1/stream/{name}."""
    context.require(target, Rights.PUT)
    request = context.request
    kind = protocol.content_type_of(request.header(b"content-type"))
    lifetime, closes = request_headers.lifetime(request), request_headers.is_closing(request)
    fork = request_headers.fork(request)
    body = await request.body()
    with context.cell_client() as cells:
        if fork is None:
            kind = kind or d.OCTET_STREAM
            bodies = bodies_of(body, kind, context.settings.messages_max)
            spec = d.CreateSpec(kind, lifetime, closes, bodies)
            reply = await cells.request(
                target.cell,
                lambda number: d.DurableCreate(number, spec),
                len(body),
                gather=True,
            )
        else:
            spec = d.CreateSpec(kind, lifetime, closes, [])
            reply = await _fork(context, cells, target, spec, fork, body)
    return _response(context, target, reply)


def bodies_of(body: bytes, content_type: bytes | None, messages_max: int) -> list[bytes]:
    """The records that a body is. Raises DurableError (400, 413)."""
    if not body:
        return []
    if not protocol.is_json(content_type):
        return [body]
    try:
        return messages_of(body, messages_max)
    except ArrayTooLong:
        raise too_many_messages(messages_max) from None
    except NotJson as error:
        raise bad_request(f"the body is not JSON: {error}") from None


def _response(context: DurableContext, target: DurableTarget, reply: CellReply) -> Response:
    match reply:
        case d.DurableCreated():
            headers = [
                (b"content-type", protocol.shown_type(reply.content_type)),
                (protocol.NEXT_OFFSET, offset_of(reply.tail)),
            ]
            if reply.is_closed:
                headers.append((protocol.CLOSED, protocol.TRUE))
            if reply.is_new:
                headers.append((b"location", context.location(target)))
            return context.response(201 if reply.is_new else 200, headers)
        case d.DurableRefused():
            raise refusal_error(reply)
        case m.StreamFailed() | Failed():
            raise error_of(reply)
        case _:
            raise AssertionError(f"{reply} answers no creation")


async def _fork(
    context: DurableContext,
    cells: CellClient,
    target: DurableTarget,
    spec: d.CreateSpec,
    fork_headers: request_headers.ForkHeaders,
    body: bytes,
) -> CellReply:
    source = _source(fork_headers.path)
    context.require(source, Rights.GET)
    fork = d.ForkSource(source.name, fork_headers.at, fork_headers.sub)
    spec = d.CreateSpec(spec.content_type, spec.lifetime, spec.closes, [], fork)
    reply = await cells.request(target.cell, lambda number: d.DurableCreate(number, spec))
    if not isinstance(reply, d.DurableRefused) or reply.reason is not d.RefusalReason.MISSING:
        return reply
    found = await cells.request(source.cell, m.Describe)
    if not isinstance(found, m.StreamDescription):
        return _no_source(found)
    kind = spec.content_type or found.settings.content_type
    bodies = bodies_of(body, kind, context.settings.messages_max)
    spec = d.CreateSpec(spec.content_type, spec.lifetime, spec.closes, bodies, fork)
    point, prefix = fork_headers.at, list[bytes]()
    if fork_headers.at is not None and fork_headers.at > found.info.tail:
        return d.DurableRefused(0, d.RefusalReason.BEYOND_SOURCE)
    if fork_headers.at is not None and fork_headers.sub:
        is_json = protocol.is_json(found.settings.content_type)
        point, prefix = await _behind(
            cells, source, fork_headers.at, fork_headers.sub, is_json=is_json
        )

    def make(number: int) -> d.Fork:
        return d.Fork(number, target.cell, spec, point, prefix, found.incarnation)

    return await cells.request(source.cell, make, len(body) + sum(map(len, prefix)))


def _source(path: bytes) -> DurableTarget:
    """The stream at a path like those of requests. Raises DurableError (400)."""
    try:
        segments = tuple(percent_decoded(each) for each in path.partition(b"?")[0].split(b"/")[1:])
    except BadPath:
        raise bad_request("Stream-Forked-From: the path cannot be decoded") from None
    if segments[: len(DURABLE)] != DURABLE:
        raise bad_request("Stream-Forked-From: expected a path like /v1/stream/NAME")
    return target_of(b"/".join(segments[len(DURABLE) :]))


def _no_source(found: CellReply) -> CellReply:
    """The reason that a source cannot be forked: a deleted one is a conflict, not gone."""
    if isinstance(found, m.StreamFailed) and found.is_tombstone:
        return d.DurableRefused(0, d.RefusalReason.SOURCE_DELETED)
    return found


async def _behind(
    cells: CellClient, source: DurableTarget, at: int, sub: int, *, is_json: bool
) -> tuple[int, list[bytes]]:
    """The sequence so many messages behind another; or the record there, and so many bytes of it.

    Raises DurableError (400) where the append there has not so many.
    """
    start = Seek(SeekBy.SEQUENCE, at)
    count = protocol.PAGE_RECORDS if is_json else 1

    def make(number: int) -> m.Read:
        return m.Read(
            number,
            start,
            count,
            protocol.PAGE_BYTES,
            record_filter=protocol.VIEW,
            one_append=is_json,
        )

    found = await cells.request(source.cell, make)
    if isinstance(found, m.StreamFailed | Failed):
        raise error_of(found)
    assert isinstance(found, m.Records), f"{found} answers no read"
    if not is_json and found.spans:
        body = found.spans[0].bodies[0]
        if sub <= len(body):
            return found.spans[0].first, [body[:sub]]
    for span in found.spans if is_json else ():
        for sequence, message in enumerate(span.bodies, span.first):
            sub -= is_message(message)
            if not sub:
                return sequence + 1, []
    raise bad_request("Stream-Fork-Sub-Offset: beyond the append at the offset")
