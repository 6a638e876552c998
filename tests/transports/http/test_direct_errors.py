"""Errors of our own code in requests: they are answered, logged, and affect no other request."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from millpond.actors.streams import messages as m
from millpond.actors.streams.names import stream_cell
from millpond.transports.http.cell_client import CellReply
from millpond.transports.http.direct import DirectClient, DirectOperation, DirectRequest
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import Request, RequestHead
from millpond.transports.http.response import Pairs, Response, ResponseWriter, json_response
from tests.transports.http.direct_server import direct_server, said


class _Broken:
    """An API with a mistake of ours, at some point of a request, and its operation."""

    name = "test"

    def __init__(
        self, message: Callable[[int], DirectRequest], response: Callable[[], Response]
    ) -> None:
        self._message = message
        self._response = response

    async def __call__(self, request: Request, writer: ResponseWriter) -> None:
        await writer.respond(Response(204))

    def direct_operation(self, head: RequestHead, cors: Pairs) -> DirectOperation | None:
        return self if head.method == "POST" else None

    def message(self, number: int, client: DirectClient, body: bytes) -> DirectRequest:
        return self._message(number)

    def response(self, sent: DirectRequest, reply: CellReply) -> Response:
        return self._response()

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        return json_response(reason.status, {"test": reason.code})


def _describe(number: int) -> DirectRequest:
    return DirectRequest(stream_cell(b"none"), m.Describe(number), 0)


def _no_message(number: int) -> DirectRequest:
    raise ZeroDivisionError("a mistake")


def _no_response() -> Response:
    raise ZeroDivisionError("a mistake")


_MISTAKES = {
    "asking": _Broken(_no_message, lambda: Response(204)),
    "telling": _Broken(_describe, _no_response),
}


@pytest.mark.parametrize("where", list(_MISTAKES))
async def test_a_mistake_of_ours_is_told_and_logged(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with direct_server({(b"do",): _MISTAKES[where]}) as server:
        line = server.connect()
        asked = [said(b"POST", b"/do"), said(b"GET", b"/do"), said(b"POST", b"/do")]
        first, second, third = await server.ask(*asked, line=line)
        assert [first.status, second.status, third.status] == [500, 204, 500]
        assert first.body == third.body == b'{"test":"other"}'
        assert not line.wire.is_closed and not server.services.registry.connections
        assert server.services.http.crashed == 2
    assert [each.levelno for each in caplog.records] == [logging.ERROR] * 2
    assert all("request/http" in each.message for each in caplog.records)


async def test_an_answer_that_cannot_be_written_ends_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody waits for what never comes."""
    broken = Response(200, ((b"a", b"b\nc"),))
    api = _Broken(_describe, lambda: broken)
    async with direct_server({(b"do",): api}) as server:
        line, other = server.connect(), server.connect()
        line.say(said(b"POST", b"/do") * 2)
        assert await line.read() == b"" and line.wire.is_closed
        line.end()
        (answer,) = await server.ask(said(b"GET", b"/do"), line=other)
        assert answer.status == 204
        assert not server.services.registry.connections
    assert len(caplog.records) == 1
