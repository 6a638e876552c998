"""GET: what is there, at once (B.4 17 to 21)."""

from __future__ import annotations

from millpond.actors.messages import Rights
from millpond.transports.http.durable import headers as asked
from millpond.transports.http.durable import live as following
from millpond.transports.http.durable import protocol as w
from millpond.transports.http.durable.context import Call, Target
from millpond.transports.http.durable.errors import Pairs
from millpond.transports.http.durable.read_page import Page, first_page, page_headers

CACHED = (b"cache-control", b"private, max-age=0, must-revalidate")
"""The tag tells whether it is still so; tokens decide who may see it."""


async def get(call: Call, target: Target) -> None:
    """GET /v1/stream/{name}."""
    call.require(target, Rights.GET)
    query = asked.read_query(call.request)
    with call.inquiry() as inquiry:
        page = await first_page(call, inquiry, target, query.start)
        match query.live:
            case asked.Live.NO:
                await _show(call, page, query)
            case asked.Live.LONG_POLL:
                await following.poll(call, inquiry, target, page, query)
            case asked.Live.EVENTS:
                await following.stream_events(call, inquiry, target, page, query)


async def _show(call: Call, page: Page, query: asked.ReadQuery) -> None:
    headers: Pairs = page_headers(page)
    if query.start == "now":
        await call.say(200, (*headers, w.NO_STORE), page.content)
        return
    headers = (*headers, (b"etag", page.tag), CACHED)
    if _matches(call.request.header(b"if-none-match"), page.tag):
        await call.say(304, headers)
    else:
        await call.say(200, headers, page.content)


def _matches(given: bytes | None, tag: bytes) -> bool:
    """Does the client have this already?"""
    if given is None:
        return False
    known = [each.strip().removeprefix(b"W/") for each in given.split(b",")]
    return tag in known or b"*" in known
