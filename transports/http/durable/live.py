"""Live reads: long-poll, which is answered once, and server-sent events (B.4 22 to 29)."""

from __future__ import annotations

import msgspec

from millpond.actors.messages import Rights
from millpond.actors.streams.messages import Records
from millpond.transports.http.cell_client import CellClient
from millpond.transports.http.durable import protocol, request_headers
from millpond.transports.http.durable import sse as events
from millpond.transports.http.durable.context import DurableContext, DurableTarget
from millpond.transports.http.durable.errors import DurableError
from millpond.transports.http.durable.read_page import (
    Page,
    page_headers,
    page_memory,
    read_from,
)
from millpond.transports.http.response import Response

EPOCH_S = 1_728_432_000
"""2024-10-09T00:00:00Z."""
INTERVAL_S = 20
JITTER_S_MAX = 3600
CURSOR_MAX = 2**53 - 1


def next_cursor(now: float, given: str | None, chance: float) -> bytes:
    """The number of the interval, or more than the client's own. `chance`: at least 0, below 1."""
    current = int(now - EPOCH_S) // INTERVAL_S
    if given is not None and given.isascii() and given.isdigit():
        client_cursor = int(given[:20])
        if current <= client_cursor <= CURSOR_MAX - JITTER_S_MAX:
            jitter_s = 1 + int(chance * JITTER_S_MAX)
            return b"%d" % (client_cursor + -(-jitter_s // INTERVAL_S))
    return b"%d" % current


NO_CACHE = (b"cache-control", b"no-cache, no-transform")


async def poll(
    context: DurableContext,
    cells: CellClient,
    target: DurableTarget,
    page: Page,
    query: request_headers.ReadQuery,
) -> Response:
    """Answer with the present records, or with the first new ones, or with 204 after the time."""
    context.request.active.keep_requiring(lambda: bool(context.rights_in(target.name) & Rights.GET))
    if not page.records.spans and not page.is_end:
        wait_until = context.services.now() + context.settings.long_poll_s
        start, described = page.start, page.described

        async def wait() -> Page:
            records = await read_from(cells, target, described, start, wait_until)
            return Page(start, described, records)

        page = await context.request.run_until_disconnect(wait)
        await context.request.hold_answer(2 * page.records.size_bytes)
    headers = page_headers(page)
    if not page.is_end:
        headers.append((protocol.CURSOR, _cursor(context, query)))
    headers.append(protocol.NO_STORE)
    if page.records.spans:
        return context.response(200, headers, page.content)
    else:
        return context.response(204, headers[1:])


def _cursor(context: DurableContext, query: request_headers.ReadQuery) -> bytes:
    return next_cursor(context.services.now(), query.cursor, context.services.random())


async def stream_events(
    context: DurableContext,
    cells: CellClient,
    target: DurableTarget,
    page: Page,
    query: request_headers.ReadQuery,
) -> None:
    """Send present and new records, until the time is over or the stream is closed."""
    context.request.active.keep_requiring(lambda: bool(context.rights_in(target.name) & Rights.GET))
    headers = [(b"content-type", events.MEDIA_TYPE), NO_CACHE]
    if not protocol.is_text(page.described.settings.content_type):
        headers.append((protocol.ENCODING, b"base64"))
    await context.writer.start(200, (*headers, *context.common_headers), lambda reason: b"")
    session = _Events(context, cells, target, query)
    await context.request.run_until_disconnect(lambda: session.run(page))


class _Events:
    """The events of one request."""

    __slots__ = ("_cells", "_context", "_query", "_target")

    def __init__(
        self,
        context: DurableContext,
        cells: CellClient,
        target: DurableTarget,
        query: request_headers.ReadQuery,
    ) -> None:
        self._context = context
        self._cells = cells
        self._target = target
        self._query = query

    async def run(self, page: Page) -> None:
        """Send one page after the other, and say where each ends."""
        context = self._context
        ends_at = context.services.now() + context.settings.events_s
        await context.writer.write(self._piece(page))
        is_quiet = False
        while not page.is_end and context.services.now() < ends_at:
            if context.request.active.is_draining and page.is_at_tail:
                break
            if is_quiet:
                await context.writer.write(events.HEARTBEAT)
            following = await self._next(page, ends_at)
            if following is None:
                break
            page = following
            is_quiet = not page.records.spans and not page.is_end
            if not is_quiet:
                await context.request.hold_answer(2 * page.records.size_bytes)
                await context.writer.write(self._piece(page))
        await context.writer.end()

    async def _next(self, page: Page, ends_at: float) -> Page | None:
        """The page after `page`; None: the stream is gone."""
        start, described, is_waiting = page.following, page.described, page.is_at_tail
        # Waiting requests share one read for this time, then each checks its own end.
        soon = min(self._context.services.now() + self._context.settings.heartbeat_s, ends_at)
        wait_until = soon if is_waiting else 0.0
        if not is_waiting:
            await self._context.request.hold_answer(page_memory(described, start))

        async def read() -> Records:
            return await read_from(self._cells, self._target, described, start, wait_until)

        key = (self._target.cell, described.incarnation, start)
        try:
            records = await (self._context.live_waiters.wait(key, read) if is_waiting else read())
        except DurableError:
            return None
        return msgspec.structs.replace(page, start=start, records=records)

    def _piece(self, page: Page) -> bytes:
        cursor = b"" if page.is_end else _cursor(self._context, self._query)
        spans, waiters = page.records.spans, self._context.live_waiters
        if not spans:
            return _control_bytes(page, cursor)
        found = waiters.written(spans, cursor)
        if found is not None:
            return found
        is_text = protocol.is_text(page.described.settings.content_type)
        data = events.data_event(page.content, is_text=is_text)
        return waiters.keep(spans, cursor, data + _control_bytes(page, cursor))


def _control_bytes(page: Page, cursor: bytes) -> bytes:
    following = page.following
    if page.is_end:
        return events.closed_event(following)
    return events.control_event(following, cursor, is_at_tail=page.is_at_tail)
