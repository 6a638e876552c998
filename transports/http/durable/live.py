"""Live reads: long-poll, which is answered once, and server-sent events (B.4 22 to 29)."""

from __future__ import annotations

import msgspec

from millpond.actors.messages import Rights
from millpond.actors.streams.messages import Records
from millpond.transports.http.cell_client import CellClient
from millpond.transports.http.durable import headers as asked
from millpond.transports.http.durable import protocol as w
from millpond.transports.http.durable import sse as events
from millpond.transports.http.durable.context import Call, Target
from millpond.transports.http.durable.errors import DurableError
from millpond.transports.http.durable.read_page import Page, page_headers, read_from

EPOCH_S = 1_728_432_000
"""2024-10-09T00:00:00Z."""
INTERVAL_S = 20
JITTER_S_MAX = 3600
CURSOR_MAX = 2**53 - 1


def next_cursor(now: float, given: str | None, dice: float) -> bytes:
    """The number of the interval, or more than the client's own. `dice`: at least 0, below 1."""
    current = int(now - EPOCH_S) // INTERVAL_S
    if given is not None and given.isascii() and given.isdigit():
        theirs = int(given[:20])
        if current <= theirs <= CURSOR_MAX - JITTER_S_MAX:
            jitter_s = 1 + int(dice * JITTER_S_MAX)
            return b"%d" % (theirs + -(-jitter_s // INTERVAL_S))
    return b"%d" % current


NO_CACHE = (b"cache-control", b"no-cache, no-transform")


async def poll(
    call: Call, inquiry: CellClient, target: Target, page: Page, query: asked.ReadQuery
) -> None:
    """Answer with what is there, or with the first that comes; or that nothing came."""
    call.keep_requiring(target, Rights.GET)
    if not page.records.spans and not page.is_end:
        wait_until = call.host.now() + call.settings.long_poll_s
        start, described = page.start, page.described

        async def wait() -> Page:
            records = await read_from(inquiry, target, described, start, wait_until)
            return Page(start, described, records)

        page = await call.request.run_until_disconnect(wait)
    headers = page_headers(page)
    if not page.is_end:
        headers.append((w.CURSOR, _cursor(call, query)))
    headers.append(w.NO_STORE)
    if page.records.spans:
        await call.say(200, headers, page.content)
    else:
        await call.say(204, headers[1:])


def _cursor(call: Call, query: asked.ReadQuery) -> bytes:
    return next_cursor(call.host.now(), query.cursor, call.host.random())


async def stream_events(
    call: Call, inquiry: CellClient, target: Target, page: Page, query: asked.ReadQuery
) -> None:
    """Send what is there and what comes, until the time is up or the stream is closed."""
    call.keep_requiring(target, Rights.GET)
    headers = [(b"content-type", events.MEDIA_TYPE), NO_CACHE]
    if not w.is_text(page.described.settings.content_type):
        headers.append((w.ENCODING, b"base64"))
    call.answer.last_words = lambda why: b""
    await call.answer.start(200, (*headers, *call.shared))
    session = _Events(call, inquiry, target, query)
    await call.request.run_until_disconnect(lambda: session.run(page))


class _Events:
    """The events of one request."""

    __slots__ = ("_call", "_inquiry", "_query", "_target")

    def __init__(
        self, call: Call, inquiry: CellClient, target: Target, query: asked.ReadQuery
    ) -> None:
        self._call = call
        self._inquiry = inquiry
        self._target = target
        self._query = query

    async def run(self, page: Page) -> None:
        """Send one page after the other, and say where each ends."""
        call = self._call
        ends_at = call.host.now() + call.settings.events_s
        await call.answer.send(self._piece(page))
        is_quiet = False
        while not page.is_end and call.host.now() < ends_at:
            if call.request.visit.is_draining and page.is_at_tail:
                break
            if is_quiet:
                await call.answer.send(events.HEARTBEAT)
            following = await self._next(page, ends_at)
            if following is None:
                break
            page = following
            is_quiet = not page.records.spans and not page.is_end
            if not is_quiet:
                await call.answer.send(self._piece(page))
        await call.answer.end()

    async def _next(self, page: Page, ends_at: float) -> Page | None:
        """What comes behind a page; None: the stream is gone."""
        start, described, is_waiting = page.following, page.described, page.is_at_tail
        # Followers wait for so long together, then each looks at its own clock.
        soon = min(self._call.host.now() + self._call.settings.heartbeat_s, ends_at)
        wait_until = soon if is_waiting else 0.0

        async def read() -> Records:
            return await read_from(self._inquiry, self._target, described, start, wait_until)

        key = (self._target.cell, described.incarnation, start)
        try:
            records = await (self._call.followers.wait(key, read) if is_waiting else read())
        except DurableError:
            return None
        return msgspec.structs.replace(page, start=start, records=records)

    def _piece(self, page: Page) -> bytes:
        cursor = b"" if page.is_end else _cursor(self._call, self._query)
        spans, followers = page.records.spans, self._call.followers
        if not spans:
            return _ending(page, cursor)
        found = followers.written(spans, cursor)
        if found is not None:
            return found
        is_text = w.is_text(page.described.settings.content_type)
        data = events.data_event(page.content, is_text=is_text)
        return followers.keep(spans, cursor, data + _ending(page, cursor))


def _ending(page: Page, cursor: bytes) -> bytes:
    following = page.following
    if page.is_end:
        return events.closed_event(following)
    return events.control_event(following, cursor, is_at_tail=page.is_at_tail)
