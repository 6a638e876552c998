"""POST: append, close, or both (B.2, B.3)."""

from __future__ import annotations

from functools import partial

from millpond.actors.messages import Failed, Rights
from millpond.actors.streams import messages as m
from millpond.actors.streams.durable import messages as d
from millpond.transports.http.cell_client import CellReply
from millpond.transports.http.direct import DirectRequest
from millpond.transports.http.durable import protocol, request_headers
from millpond.transports.http.durable.context import DurableContext, Target
from millpond.transports.http.durable.create import bodies_of
from millpond.transports.http.durable.errors import bad_request, declined_error, error_of
from millpond.transports.http.durable.offsets import offset_of
from millpond.transports.http.response import Response

_APPEND_HEADERS = "durable append headers"
AppendHeaders = tuple[bool, d.Producer | None, bytes | None, bytes | None]
"""Closes the stream; the producer; `Stream-Seq`; the content type."""


async def post(context: DurableContext, target: Target) -> Response:
    """POST /v1/stream/{name}."""
    context.require(target, Rights.PUT)
    append = direct_append(context, target, await context.request.body())
    with context.cell_client() as cells:
        reply = await cells.request(
            append.cell, lambda _: append.request, append.size_bytes, gather=True
        )
    response = append.to_response(reply)
    assert response is not None, "an append is answered with one reply"
    return response


def direct_append(context: DurableContext, target: Target, body: bytes) -> DirectRequest:
    """The append that a body is, for a client that may append. Raises DurableError."""
    request = context.request
    found: AppendHeaders | None = request.cache.get(_APPEND_HEADERS)
    if found is None:
        closing, producer = request_headers.is_closing(request), request_headers.producer(request)
        found = (
            closing,
            producer,
            request_headers.stream_seq(request),
            request.header(b"content-type"),
        )
        request.cache[_APPEND_HEADERS] = found
    closes, producer, order, content_type = found
    bodies: list[bytes] = []
    if body:
        if content_type is None or not content_type.strip():
            raise bad_request("content-type: an append needs one")
        messages_max = context.settings.messages_max
        bodies = (
            bodies_of(body, content_type, messages_max)
            if protocol.is_json(content_type)
            else [body]
        )
    if not bodies and (body or not closes):
        raise bad_request("the append is empty")
    append = d.DurableAppend(0, bodies, content_type, order, producer, closes)
    return DirectRequest(target.cell, append, len(body), partial(_response, context, append))


def _response(context: DurableContext, append: d.DurableAppend, reply: CellReply) -> Response:
    match reply:
        case d.DurableAppended():
            response_headers = [(protocol.NEXT_OFFSET, offset_of(reply.tail))]
            if append.producer is not None:
                response_headers.append((protocol.PRODUCER_EPOCH, b"%d" % reply.epoch))
                response_headers.append((protocol.PRODUCER_SEQ, b"%d" % reply.seq))
            if reply.is_closed:
                response_headers.append((protocol.CLOSED, protocol.TRUE))
            is_new = append.producer is not None and reply.is_new and bool(append.bodies)
            return Response(200 if is_new else 204, (*response_headers, *context.common_headers))
        case d.DurableRefused():
            error = declined_error(reply, 0 if append.producer is None else append.producer.seq)
        case m.StreamFailed() | Failed():
            error = error_of(reply)
        case _:
            raise AssertionError(f"{reply} answers no append")
    return error.response(context.common_headers)
