"""The application: prefixes, limits, drain, rights that end, and mistakes of an API."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import anyio
import pytest

from millpond.transports.http.app import ResponseAborted
from millpond.transports.http.asgi import Message
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import HttpLimits, Request
from millpond.transports.http.response import Response, ResponseWriter
from tests.transports.http.client import Client
from tests.transports.http.running_app import Does, running_app


def _named(name: str) -> Does:
    async def tell(request: Request, writer: ResponseWriter) -> None:
        await writer.respond(Response(200, ((b"x-api", name.encode()),)))

    return Does(tell)


async def test_the_longest_prefix_wins() -> None:
    apis = {
        (b"v1", b"stream"): _named("durable"),
        (b"v1",): _named("s2"),
        (b"v1", b"stream", b"__ds"): _named("reserved"),
    }
    async with running_app(apis) as application:
        client = Client(application)
        for path, name in (
            ("/v1/streams/a", b"s2"),
            ("/v1/stream/a", b"durable"),
            ("/v1/stream/__ds/x", b"reserved"),
            ("/v1/stream%2F__ds", b"s2"),
            ("/v1", b"s2"),
        ):
            assert (await client.request("GET", path)).headers[b"x-api"] == name
        got = await client.request("GET", "/v2")
        assert (got.status, got.json()["code"]) == (404, "not_found")
        mounted = Client(application, root_path="/pond")
        assert (await mounted.request("GET", "/pond/v1/x")).headers[b"x-api"] == b"s2"


async def test_http_0_7_headers_leave_as_they_are() -> None:
    async def tell(request: Request, writer: ResponseWriter) -> None:
        head = ((b"content-type", b"text/event-stream"), (b"x", b"\xff "))
        if request.method == "DELETE":
            await writer.respond(Response(202))
        elif request.method == "PUT":
            await writer.respond(Response(304, ((b"etag", b'"a"'),)))
        else:
            await writer.respond(Response(200, head, b"body"))

    async with running_app(tell) as application:
        client, server = Client(application), (b"server", b"millpond")
        length = (b"content-length", b"4")
        head = [(b"content-type", b"text/event-stream"), (b"x", b"\xff "), length, server]
        got = await client.request("GET", "/do")
        assert (got.pairs, got.body) == (head, b"body")
        got = await client.request("HEAD", "/do")
        assert (got.pairs, got.body) == (head, b"")
        got = await client.request("DELETE", "/do")
        assert (got.status, got.pairs) == (202, [(b"content-length", b"0"), server])
        assert (await client.request("PUT", "/do")).pairs == [(b"etag", b'"a"'), server]


async def test_a_mistake_is_500_for_this_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(request: Request, writer: ResponseWriter) -> None:
        if request.segments[1:] == (b"boom",):
            raise ZeroDivisionError("a mistake")
        if request.segments[1:] == (b"nothing",):
            return
        await writer.respond(Response(200))

    async with running_app(fail) as application:
        client = Client(application)
        for path in ("/do/boom", "/do/nothing"):
            got = await client.request("POST", path)
            assert (got.status, got.json()["code"]) == (500, "other")
        assert (await client.request("GET", "/do")).status == 200
        assert application.services.http.crashed == 2
        assert application.services.http.answers == {("test", 500): 2, ("test", 200): 1}
    (record,) = (each for each in caplog.records if each.levelno >= logging.ERROR)
    assert record.exc_info is not None and "request/http" in record.getMessage()


async def test_a_stream_that_crashes_never_looks_complete() -> None:
    async def fail(request: Request, writer: ResponseWriter) -> None:
        has_words = request.segments[1:] == (b"words",)
        await writer.start(200, (), (lambda reason: reason.code.encode()) if has_words else None)
        await writer.write(b"one")
        raise ZeroDivisionError("a mistake")

    async with running_app(fail) as application:
        got = await Client(application).request("GET", "/do/words")
        assert got.body == b"oneother"
        with pytest.raises(ExceptionGroup) as raised:
            async with Client(application).open("GET", "/do") as exchange:
                await exchange.head()
                assert await exchange.piece() == b"one"
                with pytest.raises(anyio.EndOfStream):
                    await exchange.piece()
        assert raised.group_contains(ResponseAborted)


@pytest.mark.parametrize(
    ("url", "headers", "status"),
    [
        ("/do/" + "x" * 100, [], 414),
        ("/do?" + "x" * 100, [], 414),
        ("/do", [(b"x", b"y" * 100)], 431),
        ("/do", [(b"x", b"y")] * 11, 431),
        ("/do/%zz", [], 400),
        ("/do?%zz", [], 400),
    ],
)
async def test_what_is_too_long_or_broken_is_refused(
    url: str, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    limits = HttpLimits(url_bytes_max=100, header_bytes_max=100, headers_max=10)
    async with running_app({(b"do",): _named("do")}, limits=limits) as application:
        assert (await Client(application).request("GET", url, headers)).status == status
        assert (await Client(application).request("GET", "/do")).status == 200


async def test_an_early_answer_reads_on_for_a_little(anyio_backend: str) -> None:
    """docs/reference/http-apis.md: the client that still sends hears the answer."""

    async def refuse(request: Request, writer: ResponseWriter) -> None:
        await writer.respond(Response(401))

    async with running_app(refuse, limits=HttpLimits(linger_s=30)) as application:
        start = anyio.current_time()
        async with Client(application).open("POST", "/do", [(b"content-length", b"9")]) as exchange:
            assert await exchange.head() == 401
            await exchange.say(b"123")
            await exchange.say(b"456789", is_last=True)
            assert await exchange.piece() is None
        assert anyio.current_time() - start < 30
    async with running_app(refuse) as application:
        start = anyio.current_time()
        async with Client(application).open("POST", "/do", [(b"content-length", b"9")]) as exchange:
            assert (await exchange.got()).status == 401
        assert 0.09 < anyio.current_time() - start


async def _hold(request: Request, writer: ResponseWriter) -> None:
    await writer.start(200, (), lambda reason: b"last: " + reason.code.encode())
    await request.run_until_disconnect(anyio.sleep_forever)


async def test_only_so_many_requests_at_once() -> None:
    async with running_app(_hold, connections_max=3, connections_per_address_max=2) as application:
        far, near = Client(application, host="192.0.2.1"), Client(application)
        async with far.open("GET", "/do") as one, far.open("GET", "/do") as two:
            for each in (one, two):
                assert await each.head() == 200
            got = await far.request("GET", "/do")
            assert (got.status, got.json()["code"]) == (503, "unavailable")
            async with near.open("GET", "/do") as three:
                assert await three.head() == 200
                assert (await near.request("GET", "/do")).status == 503
        assert not application.services.registry.connections
        async with far.open("GET", "/do") as again:
            assert await again.head() == 200


async def test_a_peer_that_asks_too_fast_is_told_when_to_come_again() -> None:
    delays: list[int | None] = []

    class Telling(Does):
        def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
            delays.append(delay_ms)
            return super().reject(reason, delay_ms)

    async def ok(request: Request, writer: ResponseWriter) -> None:
        await writer.respond(Response(200))

    async with running_app({(b"do",): Telling(ok)}, requests_per_s_per_peer_max=2) as application:
        far = Client(application, host="192.0.2.1")
        statuses = [(await far.request("GET", "/do")).status for _ in range(4)]
        assert statuses == [200, 200, 429, 429]
        assert all(delay is not None and 0 < delay <= 500 for delay in delays)
        assert (await Client(application).request("GET", "/do")).status == 200


async def test_a_drain_tells_sessions_and_cuts_off_who_stays() -> None:
    async def leave(request: Request, writer: ResponseWriter) -> None:
        await writer.start(200, ())
        await request.active.draining.wait()
        await writer.write(b"bye")
        await writer.end()

    apis = {(b"leave",): Does(leave), (b"hold",): Does(_hold)}
    apis[(b"health",)] = Does(_named("health"), serves_draining=True)
    async with (
        running_app(apis, drain_timeout_s=0.1) as application,
        anyio.create_task_group() as tasks,
    ):
        client = Client(application)
        async with client.open("GET", "/leave") as polite, client.open("GET", "/hold") as stubborn:
            assert (await polite.head(), await stubborn.head()) == (200, 200)
            tasks.start_soon(application.node.drain)
            assert await polite.piece() == b"bye" and await polite.piece() is None
            got = await client.request("GET", "/leave")
            assert (got.status, got.json()["code"]) == (503, "server_draining")
            assert (await client.request("GET", "/health")).status == 200
            assert await stubborn.piece() == b"last: other"
            assert await stubborn.piece() is None


async def test_a_session_whose_right_is_gone_is_cut_off(tmp_path: Path) -> None:
    async def guarded(request: Request, writer: ResponseWriter) -> None:
        request.active.keep_requiring(
            lambda: bool(application.services.authorize_stream(request.principal, b""))
        )
        await _hold(request, writer)

    tokens = tmp_path / "tokens"
    tokens.write_text("secret all stream:*\n")
    tokens.chmod(0o600)
    async with running_app(guarded, token_file=str(tokens)) as application:
        bearer = [(b"authorization", b"Bearer secret")]
        async with Client(application).open("GET", "/do", bearer) as exchange:
            assert await exchange.head() == 200
            application.node.reload()
            await anyio.lowlevel.checkpoint()
            tokens.write_text("other all stream:*\n")
            application.node.reload()
            assert await exchange.piece() == b"last: permission_denied"


async def test_the_client_that_does_not_read_is_waited_for() -> None:
    sent = 0

    async def flood(request: Request, writer: ResponseWriter) -> None:
        nonlocal sent
        await writer.start(200, ())
        while True:
            await writer.write(b"x")
            sent += 1

    async with running_app(flood) as application:
        with pytest.raises(ExceptionGroup):
            async with Client(application, window=4).open("GET", "/do") as exchange:
                with anyio.move_on_after(0.05):
                    await anyio.sleep_forever()
                assert sent <= 4
                await exchange.head()
                raise LookupError
    assert sent < 100


async def test_lifespan_is_answered() -> None:
    async with running_app({}) as application:
        said = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
        received: list[Message] = []

        async def receive() -> Message:
            return said.pop(0)

        async def send(message: Message) -> None:
            received.append(message)

        scope: dict[str, Any] = {"type": "lifespan", "asgi": {"version": "3.0"}}
        await application(scope, receive, send)
        kinds = [each["type"] for each in received]
        assert kinds == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
