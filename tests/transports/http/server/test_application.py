"""The application behind the server: what a client hears of a request that came to nothing."""

from __future__ import annotations

import anyio
import pytest

from millpond.transports.http.request import Request
from millpond.transports.http.response import Response, ResponseWriter
from tests.transports.http.running_app import running_app
from tests.transports.http.server.http2_client import Client
from tests.transports.http.server.rig import ParsedResponse, answers, serving
from tests.transports.http.server.test_http1_responses import get, post


async def _of(said: bytes, *, is_ended: bool = False) -> tuple[list[ParsedResponse], bool]:
    """The response of an API, and whether the connection was closed after it."""

    async def run(request: Request, writer: ResponseWriter) -> None:
        match request.segments[-1]:
            case b"wait":
                await request.run_until_disconnect(anyio.sleep_forever)
            case b"stream":
                await writer.start(200, ())
                await request.wait_for_disconnect()
            case _:
                await writer.respond(Response(200, (), await request.body()))

    async with running_app(run) as application, serving(application) as rig:
        line = rig.connect()
        line.say(said)
        if is_ended:
            await line.read()
            line.session.eof()
        return answers(await line.read()), line.wire.is_closed


@pytest.mark.parametrize(
    "half", [post(b"/do/x", b"hel", length=5), get(b"/do/x", b"transfer-encoding: chunked")]
)
async def test_who_half_closes_in_mid_body_hears_that_it_was_broken(half: bytes) -> None:
    (answer,), is_closed = await _of(half, is_ended=True)
    assert answer.status == 400 and b"body_broken" in answer.body and is_closed


async def test_who_half_closes_and_waits_is_not_told_of_a_body() -> None:
    assert await _of(get(b"/do/wait"), is_ended=True) == ([], True)


async def test_the_head_of_a_stream_leaves_before_there_is_any_piece() -> None:
    ((answer,), is_closed) = await _of(get(b"/do/stream"))
    assert answer.status == 200 and not answer.is_whole and not is_closed


@pytest.mark.parametrize("length", [None, 5])
async def test_a_reset_of_http_2_is_not_the_end_of_a_body(length: int | None) -> None:
    bodies = []

    async def run(request: Request, writer: ResponseWriter) -> None:
        bodies.append(await request.body())

    async with running_app(run) as application, serving(application) as rig:
        client = Client(rig.connect())
        headers = () if length is None else (("content-length", str(length)),)
        number = client.ask("POST", "/do", b"hel", ends=False, headers=headers)
        await client.read()
        client.reset(number)
        await client.read()
        assert bodies == [] and application.services.http.gone == 1
