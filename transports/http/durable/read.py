"""GET: what is there, at once (B.4 17 to 21)."""

from __future__ import annotations

from millpond.actors.messages import Rights
from millpond.transports.http.durable import live, protocol, request_headers
from millpond.transports.http.durable.context import DurableContext, DurableTarget
from millpond.transports.http.durable.errors import Pairs
from millpond.transports.http.durable.read_page import Page, first_page, page_headers
from millpond.transports.http.response import Response

CACHED = (b"cache-control", b"private, max-age=0, must-revalidate")
"""Clients revalidate by the tag; responses depend on the token."""


async def get(context: DurableContext, target: DurableTarget) -> Response | None:
    """GET /v1/stream/{name}."""
    context.require(target, Rights.GET)
    query = request_headers.read_query(context.request)
    with context.cell_client() as cells:
        page = await first_page(context, cells, target, query.start)
        match query.live:
            case request_headers.Live.NO:
                return _show(context, page, query)
            case request_headers.Live.LONG_POLL:
                return await live.poll(context, cells, target, page, query)
            case request_headers.Live.EVENTS:
                await live.stream_events(context, cells, target, page, query)
                return None


def _show(context: DurableContext, page: Page, query: request_headers.ReadQuery) -> Response:
    headers: Pairs = page_headers(page)
    if query.start == "now":
        return context.response(200, (*headers, protocol.NO_STORE), page.content)
    headers = (*headers, (b"etag", page.tag), CACHED)
    if _matches(context.request.header(b"if-none-match"), page.tag):
        return context.response(304, headers)
    return context.response(200, headers, page.content)


def _matches(given: bytes | None, tag: bytes) -> bool:
    """True if the client has this version already."""
    if given is None:
        return False
    known = [each.strip().removeprefix(b"W/") for each in given.split(b",")]
    return tag in known or b"*" in known
