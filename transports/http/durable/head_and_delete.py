"""HEAD, DELETE and OPTIONS (B.5)."""

from __future__ import annotations

from millpond.actors.messages import Failed, Rights
from millpond.actors.streams import messages as m
from millpond.transports.http.durable import protocol
from millpond.transports.http.durable.context import DurableContext, DurableTarget
from millpond.transports.http.durable.errors import error_of, stream_not_found
from millpond.transports.http.durable.offsets import offset_of
from millpond.transports.http.response import Response

METHODS = b"GET, HEAD, PUT, POST, DELETE, OPTIONS"


async def head(context: DurableContext, target: DurableTarget) -> None:
    """HEAD /v1/stream/{name}."""
    context.require(target, Rights.GET | Rights.LIST)
    with context.cell_client() as cells:
        found = await context.describe(cells, target)
    if found is None:
        raise stream_not_found()
    headers = [
        (b"content-type", protocol.shown_type(found.settings.content_type)),
        (protocol.NEXT_OFFSET, offset_of(found.info.tail)),
        protocol.NO_STORE,
    ]
    if found.lifetime.ttl_s is not None:
        headers.append((protocol.TTL, b"%d" % found.lifetime.ttl_s))
    if found.lifetime.expires_ms is not None:
        headers.append((protocol.EXPIRES_AT, found.lifetime.expires))
    if found.is_closed:
        headers.append((protocol.CLOSED, protocol.TRUE))
    # No content-length: it would have to be that of the response to GET (RFC 9110, 8.6).
    await context.writer.start(200, (*headers, *context.common_headers))
    await context.writer.end()


async def delete(context: DurableContext, target: DurableTarget) -> Response:
    """DELETE /v1/stream/{name}."""
    context.require(target, Rights.ADMIN)
    with context.cell_client() as cells:
        reply = await cells.request(target.cell, m.Delete)
    if isinstance(reply, m.StreamFailed | Failed):
        raise error_of(reply)
    return context.response(204, ())


def options(context: DurableContext) -> Response:
    """OPTIONS of any path that is no preflight."""
    headers = (
        (b"allow", METHODS),
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", b", ".join(protocol.ALLOWED_HEADERS)),
        (b"access-control-max-age", b"600"),
    )
    return context.response(204, headers)
