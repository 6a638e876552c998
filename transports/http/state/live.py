"""A state and what becomes of it, as server-sent events.

`state` has a part of all there is, `live` says that it is whole, `change` has events as they come;
`: ` now and then says that the connection stands. An id says how far that is, and of which stream.
"""

from __future__ import annotations

import re

from millpond.actors.errors import Code
from millpond.actors.messages import Failed, Rights
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.state import messages as s
from millpond.actors.state.events import InvalidRecord, decode_raw
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import stream_cell
from millpond.transports.http import rejections as http
from millpond.transports.http.cell_client import CellClient
from millpond.transports.http.state import json_codec
from millpond.transports.http.state.context import StateContext
from millpond.transports.http.state.errors import StateError, error_of

READ_COUNT, READ_BYTES = 1000, 256 * 1024
HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
)
EVENTS = m.RecordFilter(empty=False, commands=False)

_ID = re.compile(rb"(\d{1,20})\.(\d{1,20})")


async def stream_state(context: StateContext, heartbeat_s: float) -> None:
    """GET with `accept: text/event-stream`."""
    context.require(Rights.GET)
    context.request.active.keep_requiring(
        lambda: bool(context.rights_in(context.stream) & Rights.GET)
    )
    with context.cell_client() as cells:
        found = await context.ask_stream(cells, m.Describe)
        assert isinstance(found, m.StreamDescription)
        session = _Session(context, cells, found.incarnation, heartbeat_s)
        position = _resumed(context.request.header(b"last-event-id"), found)
        if position is None:
            # Errors have their own status while nothing was sent yet.
            await context.ask_state(cells, s.DescribeState)
        await context.writer.start(200, HEADERS, lambda reason: _error(reason.code, reason.message))
        await context.request.run_until_disconnect(lambda: session.run(position))


def _resumed(last: bytes | None, found: m.StreamDescription) -> int | None:
    """The position of a client that reconnects, if the stream still has everything after it."""
    match = _ID.fullmatch(last or b"")
    if match is None or int(match[1]) != found.incarnation:
        return None
    position = int(match[2])
    return position if found.info.trim_point <= position <= found.info.tail else None


class _Session:
    """Sends the state where it has to, and then what comes."""

    def __init__(
        self, context: StateContext, cells: CellClient, incarnation: int, heartbeat_s: float
    ) -> None:
        self._context = context
        self._cells = cells
        self._incarnation = incarnation
        self._heartbeat_s = heartbeat_s
        self._position = 0
        self._whole_at = 0
        self._is_live = False

    async def run(self, position: int | None) -> None:
        """Until the client or the node leaves, or the stream is deleted."""
        writer = self._context.writer
        try:
            if position is None:
                await self._show_all()
            else:
                self._position = self._whole_at = position
            while not self._context.request.active.is_draining:
                await self._go_on()
            last = _error(http.Rejection.DRAINING.code, http.Rejection.DRAINING.message)
        except StateError as error:
            last = _error(error.code, str(error))
        await writer.write(last)
        await writer.end()

    async def _show_all(self) -> None:
        after: tuple[str, str] | None = None
        is_first = more = True
        self._is_live = False
        while more:
            await self._context.hold(READ_BYTES)
            fields = (None, after, READ_COUNT, READ_BYTES)
            page = await self._context.ask_state(self._cells, s.ListValues, *fields)
            assert isinstance(page, s.Values)
            if is_first:
                self._position = page.position
            self._whole_at = page.position
            await self._context.hold(s.size_of(page.rows))
            data = json_codec.rows(page, is_first=is_first)
            await self._context.writer.write(b"event: state\ndata: %b\n\n" % data)
            is_first, more = False, page.more and bool(page.rows)
            after = page.rows[-1][:2] if page.rows else None

    async def _go_on(self) -> None:
        if not self._is_live and self._position >= self._whole_at:
            self._is_live = True
            await self._send("live", b'{"position":"%d"}' % self._position)
        now = self._context.services.now()
        wait_until = now + self._heartbeat_s if self._is_live else 0.0
        found = await self._read(wait_until)
        if found is None:
            await self._show_all()
        elif found.spans:
            await self._show(found)
        elif self._context.services.now() < wait_until:
            await self._check_same()
        elif self._is_live:
            await self._context.writer.write(b": \n\n")
        else:
            self._position = self._whole_at  # what is left in between is no event

    async def _read(self, wait_until: float) -> m.Records | None:
        """The next records; None: they were trimmed before they were read."""
        number = self._cells.next_number()
        seek = Seek(SeekBy.SEQUENCE, self._position)
        read = m.Read(
            number,
            seek,
            READ_COUNT,
            READ_BYTES,
            wait_until,
            EVENTS,
            from_start=True,
            incarnation=self._incarnation,
        )
        if not wait_until:
            await self._context.hold(READ_BYTES)
        await self._cells.submit(stream_cell(self._context.stream), (read,))
        found = await self._cells.reply(number)
        if isinstance(found, m.StreamFailed) and found.code is Code.TRIMMED:
            return None
        if isinstance(found, m.StreamFailed | Failed):
            raise error_of(found)
        assert isinstance(found, m.Records)
        return found

    async def _show(self, found: m.Records) -> None:
        # A read that waited held nothing meanwhile, and a record may be larger than a page.
        await self._context.hold(found.size_bytes)
        bodies = [
            body
            for span in found.spans
            for body in span.bodies
            if not isinstance(decode_raw(body), InvalidRecord)
        ]
        self._position = found.next
        if bodies:
            await self._send("change", json_codec.events(bodies, found.next))

    async def _send(self, name: str, data: bytes) -> None:
        place = b"%d.%d" % (self._incarnation, self._position)
        await self._context.writer.write(
            b"event: %b\nid: %b\ndata: %b\n\n" % (name.encode(), place, data)
        )

    async def _check_same(self) -> None:
        """A wait ended early: perhaps the stream was deleted. Raises StateError."""
        found = await self._context.ask_stream(self._cells, m.Describe)
        assert isinstance(found, m.StreamDescription)
        if found.incarnation != self._incarnation:
            raise StateError(404, "unknown_stream", "the stream was deleted and created again")


def _error(code: str, text: str) -> bytes:
    return b"event: error\ndata: %b\n\n" % json_codec.response({"code": code, "message": text}).body
