"""HEAD, DELETE, and what browsers ask before they ask (B.5)."""

from __future__ import annotations

from millpond.actors.messages import Failed, Rights
from millpond.actors.streams import messages as m
from millpond.transports.http.durable import protocol as w
from millpond.transports.http.durable.context import Call, Target
from millpond.transports.http.durable.errors import error_of, stream_not_found
from millpond.transports.http.durable.offsets import offset_of

METHODS = b"GET, HEAD, PUT, POST, DELETE, OPTIONS"


async def head(call: Call, target: Target) -> None:
    """HEAD /v1/stream/{name}."""
    call.require(target, Rights.GET | Rights.LIST)
    with call.inquiry() as inquiry:
        found = await call.describe(inquiry, target)
    if found is None:
        raise stream_not_found()
    headers = [
        (b"content-type", w.shown_type(found.settings.content_type)),
        (w.NEXT_OFFSET, offset_of(found.tail)),
        w.NO_STORE,
    ]
    if found.lifetime.ttl_s is not None:
        headers.append((w.TTL, b"%d" % found.lifetime.ttl_s))
    if found.lifetime.expires_ms is not None:
        headers.append((w.EXPIRES_AT, found.lifetime.expires))
    if found.is_closed:
        headers.append((w.CLOSED, w.TRUE))
    # Nobody says how long it is: a length here would be that of what GET shows (RFC 9110, 8.6).
    await call.answer.start(200, (*headers, *call.shared))
    await call.answer.end()


async def delete(call: Call, target: Target) -> None:
    """DELETE /v1/stream/{name}."""
    call.require(target, Rights.ADMIN)
    with call.inquiry() as inquiry:
        answer = await inquiry.ask(target.cell, m.Delete)
    if isinstance(answer, m.StreamFailed | Failed):
        raise error_of(answer)
    await call.say(204, ())


async def options(call: Call) -> None:
    """OPTIONS of any path: what a page of an allowed origin may ask."""
    headers = (
        (b"allow", METHODS),
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", b", ".join(w.ALLOWED_HEADERS)),
        (b"access-control-max-age", b"600"),
    )
    await call.say(204, headers)
