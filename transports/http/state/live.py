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
from millpond.transports.http.state import json_codec as form
from millpond.transports.http.state.context import Call
from millpond.transports.http.state.errors import StateError, error_of

READ_COUNT, READ_BYTES = 1000, 256 * 1024
HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
)
EVENTS = m.RecordFilter(empty=False, commands=False)

_ID = re.compile(rb"(\d{1,20})\.(\d{1,20})")


async def follow(call: Call, heartbeat_s: float) -> None:
    """GET with `accept: text/event-stream`."""
    call.require(Rights.GET)
    call.request.visit.may_go_on = lambda: call.may(Rights.GET)
    with call.inquiry() as inquiry:
        found = await call.ask_stream(inquiry, m.Describe)
        assert isinstance(found, m.StreamDescription)
        session = _Session(call, inquiry, found.incarnation, heartbeat_s)
        position = _resumed(call.request.header(b"last-event-id"), found)
        if position is None:
            # Refusals are told with their status while nothing was sent yet.
            await call.ask_state(inquiry, s.DescribeState)
        call.answer.last_words = lambda why: _error(why.code, why.message)
        await call.answer.start(200, HEADERS)
        await call.request.run_until_disconnect(lambda: session.run(position))


def _resumed(last: bytes | None, found: m.StreamDescription) -> int | None:
    """Where a client was, if the stream still has everything behind it."""
    told = _ID.fullmatch(last or b"")
    if told is None or int(told[1]) != found.incarnation:
        return None
    position = int(told[2])
    return position if found.trim_point <= position <= found.tail else None


class _Session:
    """Sends the state where it has to, and then what comes."""

    def __init__(
        self, call: Call, inquiry: CellClient, incarnation: int, heartbeat_s: float
    ) -> None:
        self._call = call
        self._inquiry = inquiry
        self._incarnation = incarnation
        self._heartbeat_s = heartbeat_s
        self._position = 0
        self._whole_at = 0
        self._is_live = False

    async def run(self, position: int | None) -> None:
        """Until the client or the node leaves, or the stream is deleted."""
        answer = self._call.answer
        try:
            if position is None:
                await self._show_all()
            else:
                self._position = self._whole_at = position
            while not self._call.request.visit.is_draining:
                await self._go_on()
            last = _error(http.Rejection.DRAINING.code, http.Rejection.DRAINING.message)
        except StateError as error:
            last = _error(error.code, str(error))
        await answer.send(last)
        await answer.end()

    async def _show_all(self) -> None:
        after: tuple[str, str] | None = None
        is_first = more = True
        self._is_live = False
        while more:
            fields = (None, after, READ_COUNT, READ_BYTES)
            page = await self._call.ask_state(self._inquiry, s.ListValues, *fields)
            assert isinstance(page, s.Values)
            if is_first:
                self._position = page.position
            self._whole_at = page.position
            data = form.rows(page, is_first=is_first)
            await self._call.answer.send(b"event: state\ndata: %b\n\n" % data)
            is_first, more = False, page.more and bool(page.rows)
            after = page.rows[-1][:2] if page.rows else None

    async def _go_on(self) -> None:
        if not self._is_live and self._position >= self._whole_at:
            self._is_live = True
            await self._send("live", b'{"position":"%d"}' % self._position)
        now = self._call.host.now()
        wait_until = now + self._heartbeat_s if self._is_live else 0.0
        found = await self._read(wait_until)
        if found is None:
            await self._show_all()
        elif found.spans:
            await self._show(found)
        elif self._call.host.now() < wait_until:
            await self._check_same()
        elif self._is_live:
            await self._call.answer.send(b": \n\n")
        else:
            self._position = self._whole_at  # what is left in between is no event

    async def _read(self, wait_until: float) -> m.Records | None:
        """None: what comes next was trimmed before it was read."""
        number = self._inquiry.take_number()
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
        await self._inquiry.submit(stream_cell(self._call.stream), (read,))
        found = await self._inquiry.answer(number)
        if isinstance(found, m.StreamFailed) and found.code is Code.TRIMMED:
            return None
        if isinstance(found, m.StreamFailed | Failed):
            raise error_of(found)
        assert isinstance(found, m.Records)
        return found

    async def _show(self, found: m.Records) -> None:
        bodies = [
            body
            for span in found.spans
            for body in span.bodies
            if not isinstance(decode_raw(body), InvalidRecord)
        ]
        self._position = found.next
        if bodies:
            await self._send("change", form.events(bodies, found.next))

    async def _send(self, name: str, data: bytes) -> None:
        place = b"%d.%d" % (self._incarnation, self._position)
        await self._call.answer.send(
            b"event: %b\nid: %b\ndata: %b\n\n" % (name.encode(), place, data)
        )

    async def _check_same(self) -> None:
        """A wait ended early: perhaps the stream was deleted. Raises StateError."""
        found = await self._call.ask_stream(self._inquiry, m.Describe)
        assert isinstance(found, m.StreamDescription)
        if found.incarnation != self._incarnation:
            raise StateError(404, "unknown_stream", "the stream was deleted, and made anew")


def _error(code: str, text: str) -> bytes:
    return b"event: error\ndata: %b\n\n" % form.response({"code": code, "message": text}).body
