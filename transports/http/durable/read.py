"""GET: what is there, at once (B.4 17 to 21)."""

from __future__ import annotations

from millpond.actors.messages import Rights
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.streams import messages as m
from millpond.transports.http.cell_client import CellReply
from millpond.transports.http.direct import DirectClient, DirectRequest
from millpond.transports.http.durable import live, protocol, request_headers
from millpond.transports.http.durable.context import (
    SECURITY_HEADERS,
    DurableContext,
    DurableTarget,
    described,
    require,
    target_at,
)
from millpond.transports.http.durable.errors import DurableError, stream_not_found
from millpond.transports.http.durable.read_page import (
    Page,
    first_page,
    page_begin,
    page_headers,
    read_request,
    records_in,
)
from millpond.transports.http.interface import HttpNodeServices
from millpond.transports.http.paths import DURABLE
from millpond.transports.http.request import HasHeaders, RequestHead
from millpond.transports.http.response import Pairs, Response
from millpond.transports.http.small_reads import (
    ANSWER_BYTES,
    READ_BYTES,
    may_be_small,
    shows_all,
)

CACHED = (b"cache-control", b"private, max-age=0, must-revalidate")
"""Clients revalidate by the tag; responses depend on the token."""


async def get(context: DurableContext, target: DurableTarget) -> Response | None:
    """GET /v1/stream/{name}."""
    context.require(target, Rights.GET)
    query = request_headers.read_query(context.request.query)
    with context.cell_client() as cells:
        page = await first_page(context, cells, target, query.start)
        match query.live:
            case request_headers.Live.NO:
                return _show(context.request, page, query)
            case request_headers.Live.LONG_POLL:
                return await live.poll(context, cells, target, page, query)
            case request_headers.Live.EVENTS:
                await live.stream_events(context, cells, target, page, query)
                return None


class SentRead(DirectRequest, frozen=True, gc=False):
    """A read on its way to a stream, of the page that begins at a sequence of it."""

    described: m.StreamDescription
    begin: int


class DirectReads:
    """The reads with one head that do not wait for records. Implements
    `transports.http.direct.DirectOperation`."""

    __slots__ = ("_head", "_query", "_services")

    def __init__(
        self, services: HttpNodeServices, head: RequestHead, query: request_headers.ReadQuery
    ) -> None:
        self._services = services
        self._head = head
        self._query = query

    def message(self, number: int, client: DirectClient, body: bytes) -> DirectRequest | Response:
        """The question for the stream's description."""
        try:
            target = target_at(self._head.segments[len(DURABLE) :])
            require(self._services, client.principal, target, Rights.GET)
        except DurableError as error:
            return error.response(SECURITY_HEADERS)
        return DirectRequest(target.cell, m.Describe(number), 0)

    def response(self, sent: DirectRequest, reply: CellReply) -> DirectRequest | Response | None:
        """The read of a small page, then the response with it; None: the page is not small."""
        try:
            if isinstance(sent, SentRead):
                page = Page(sent.begin, sent.described, records_in(reply))
                is_whole = shows_all(page.records, protocol.PAGE_RECORDS, protocol.PAGE_BYTES)
                response = _show(self._head, page, self._query) if is_whole else None
                return response if response and len(response.body) <= ANSWER_BYTES else None
            found = described(reply)
            if found is None:
                raise stream_not_found()
            begin = page_begin(found, self._query.start)
        except DurableError as error:
            return error.response(SECURITY_HEADERS)
        start = Seek(SeekBy.SEQUENCE, begin)
        if not may_be_small(found.info, start, protocol.PAGE_RECORDS):
            return None
        make = read_request(found.incarnation, begin, 0.0, READ_BYTES)
        return SentRead(sent.cell, make(sent.request.number), 0, found, begin)


def direct_reads(services: HttpNodeServices, head: RequestHead) -> DirectReads | None:
    """The reads with this head; None: they are live, or cannot be read, which a task tells."""
    try:
        query = request_headers.read_query(head.query)
    except DurableError:
        return None
    return DirectReads(services, head, query) if query.live is request_headers.Live.NO else None


def _show(request: HasHeaders, page: Page, query: request_headers.ReadQuery) -> Response:
    headers: Pairs = (*page_headers(page), *SECURITY_HEADERS)
    if query.start == "now":
        return Response(200, (*headers, protocol.NO_STORE), page.content)
    headers = (*headers, (b"etag", page.tag), CACHED)
    if _matches(request.header(b"if-none-match"), page.tag):
        return Response(304, headers)
    return Response(200, headers, page.content)


def _matches(given: bytes | None, tag: bytes) -> bool:
    """True if the client has this version already."""
    if given is None:
        return False
    known = [each.strip().removeprefix(b"W/") for each in given.split(b",")]
    return tag in known or b"*" in known
