"""The HTTP listener on real sockets: both protocols on one port, ports, TLS, limits, its end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import h2.events
import pytest

from millpond.node.config import OFF, Config, ConfigError
from millpond.node.http.listener import HttpListener, listen
from millpond.node.node import Node
from millpond.transports.http.request import HttpLimits, Request
from millpond.transports.http.response import Response, ResponseWriter
from tests.node.http.clients import Http2, dial, eventually, get, rest
from tests.transports.http.running_app import CLOSED, Does, Run, RunningApp, running_app

ANY = "127.0.0.1:0"
ALONE = Config(**{**CLOSED, "http": ANY, "drain_timeout_s": 0.3})
on_trio = pytest.mark.parametrize("anyio_backend", ["trio"])


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@asynccontextmanager
async def _listening(run: Run, **settings: object) -> AsyncIterator[tuple[str, RunningApp]]:
    """An API at `/do` behind a listener of its own."""
    apis = {(b"do",): Does(run)}
    limits = HttpLimits(body_s=5, linger_s=0.5)
    async with running_app(apis, limits=limits, **settings) as application:
        async with anyio.create_task_group() as tasks:

            def cut() -> None:
                for connection in list(application.services.registry.connections):
                    connection.close()

            config = application.node.config
            host = application.services
            listener = await listen(tasks, "127.0.0.1", 0, lambda: application, config, host, cut)
            assert isinstance(listener, HttpListener)
            try:
                yield listener.address, application
            finally:
                await listener.aclose()
            tasks.cancel_scope.cancel()


async def _ok(request: Request, writer: ResponseWriter) -> None:
    await writer.respond(Response(200, (), b"%d" % len(await request.body())))


async def test_http_0_1_both_protocols_on_one_port() -> None:
    async with Node(ALONE) as node:
        address = node.listeners["http"]
        assert await get(address, "/health") == (200, b"OK\n")
        async with Http2(await dial(address)) as client:
            number = await client.ask("GET", "/health")
            assert await client.status(number) == 200
            await client.until(number, h2.events.StreamEnded)
            assert client.data(number) == b"OK\n"


async def test_a_listener_that_is_off_is_absent() -> None:
    async with Node(replace(ALONE, http=OFF)) as node:
        assert "http" not in node.listeners


async def test_two_nodes_never_share_a_port() -> None:
    """docs/internals/architecture.md, HTTP: SO_REUSEPORT would let the second one take part of the
    traffic."""
    async with Node(ALONE) as first:
        taken = first.listeners["http"]
        with pytest.raises(OSError):
            async with Node(replace(ALONE, http=taken)):
                raise AssertionError("started on a taken port")
        for _ in range(20):
            assert (await get(taken, "/health"))[0] == 200
    async with Node(replace(ALONE, http=taken)) as again:
        assert (await get(again.listeners["http"], "/health"))[0] == 200


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
async def test_it_is_not_exposed_without_access_control(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--token-file"):
        async with Node(replace(ALONE, http=address)):
            raise AssertionError("started")
    tokens = tmp_path / "tokens"
    tokens.write_text("secret all\n")
    tokens.chmod(0o600)
    async with Node(replace(ALONE, http="0.0.0.0:0", token_file=str(tokens))) as node:
        port = node.listeners["http"].rpartition(":")[2]
        assert (await get(f"127.0.0.1:{port}", "/health"))[0] == 200


@on_trio
async def test_it_serves_on_trio_as_well() -> None:
    async with Node(ALONE) as node:
        address = node.listeners["http"]
        assert await get(address, "/health") == (200, b"OK\n")
        async with Http2(await dial(address)) as client:
            assert await client.status(await client.ask("GET", "/health")) == 200


def _threads_of_others() -> int:
    """Those that are none of Python's; who runs the tests may have some."""
    return len(list(Path("/proc/self/task").iterdir())) - threading.active_count()


def _files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_nothing_is_left_behind() -> None:
    async def hold(request: Request, writer: ResponseWriter) -> None:
        await writer.start(200, ())
        await request.run_until_disconnect(anyio.sleep_forever)

    async def once() -> None:
        async with _listening(hold) as (address, _):
            async with await dial(address) as idle, await dial(address) as session:
                await idle.send(b"GET /none HTTP/1.1\r\nhost: [::1]\r\n\r\n")
                await session.send(b"GET /do HTTP/1.1\r\nhost: [::1]\r\n\r\n")
                assert (await idle.receive()).startswith(b"HTTP/1.1 404 ")
                assert (await session.receive()).startswith(b"HTTP/1.1 200 ")

    threads = _threads_of_others()
    await once()
    await anyio.sleep(0.05)
    files, tasks = _files(), len(asyncio.all_tasks())
    for _ in range(5):
        await once()
    await eventually(lambda: _files() <= files and _threads_of_others() <= threads)
    assert len(asyncio.all_tasks()) <= tasks


async def test_whoever_does_not_read_holds_nobody_up() -> None:
    """Neither the flood nor the end of the node; what waits for them is bounded."""
    threads, sent = _threads_of_others(), 0

    async def flood(request: Request, writer: ResponseWriter) -> None:
        nonlocal sent
        await writer.start(200, ())

        async def send() -> None:
            nonlocal sent
            while True:
                await writer.write(bytes(65536))
                sent += 65536

        await request.run_until_disconnect(send)

    async with _listening(flood) as (address, _):
        stream = await dial(address)
        await stream.send(b"GET /do HTTP/1.1\r\nhost: [::1]\r\n\r\n")
        before = -1
        while sent != before:
            before = sent
            await anyio.sleep(0.1)
        assert 0 < sent < 32 * 2**20
        start = anyio.current_time()
    assert anyio.current_time() - start < 4
    await eventually(lambda: _threads_of_others() <= threads)
    await anyio.aclose_forcefully(stream)


async def test_a_node_that_ends_tells_sessions_and_waits_for_them() -> None:
    async def polite(request: Request, writer: ResponseWriter) -> None:
        await writer.start(200, ())
        await request.active.draining.wait()
        await writer.write(b"bye")
        await writer.end()

    async with _listening(polite, drain_timeout_s=5) as (address, application):
        async with await dial(address) as stream:
            await stream.send(b"GET /do HTTP/1.1\r\nhost: [::1]\r\nconnection: close\r\n\r\n")
            assert b" 200 " in await stream.receive()
            await application.node.drain()
            assert b"bye" in await rest(stream)


async def test_http_0_8_an_upload_that_is_cut_off_reaches_nobody() -> None:
    bodies: list[bytes] = []

    async def keep(request: Request, writer: ResponseWriter) -> None:
        bodies.append(await request.body())
        await writer.respond(Response(200))

    async with _listening(keep) as (address, application):
        sized, chunked = b"content-length: 9\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n4\r\n"
        for gone, head in enumerate((sized, chunked)):
            async with await dial(address) as stream:
                await stream.send(b"POST /do HTTP/1.1\r\nhost: [::1]\r\n" + head + b"half")
                await eventually(lambda: len(application.services.registry.connections) == 1)
            await eventually(lambda gone=gone: application.services.http.gone == gone + 1)
        async with Http2(await dial(address)) as client:
            for gone, length in enumerate((None, 9, None, 9), 3):
                number = await client.ask("POST", "/do", ends=False, length=length)
                await client.say(number, b"half")
                await eventually(lambda: len(application.services.registry.connections) == 1)
                # Some servers take a reset without an error for the end of the body.
                await client.reset(number, 0 if gone > 4 else 8)
                await eventually(lambda gone=gone: application.services.http.gone == gone)
            whole = await client.ask("POST", "/do", ends=False)
            await client.say(whole, b"whole", ends=True)
            assert await client.status(whole) == 200
    assert bodies == [b"whole"]


async def test_http_0_2_data_behind_an_early_answer_harms_nobody() -> None:
    async def refuse(request: Request, writer: ResponseWriter) -> None:
        if request.segments[1:] == (b"slow",):
            await anyio.sleep(0.2)
        await writer.respond(Response(404, (), b"no"))

    async with _listening(refuse) as (address, _), Http2(await dial(address)) as client:
        slow = await client.ask("GET", "/do/slow")
        early = [await client.ask("POST", "/do", ends=False) for _ in range(5)]
        for number in early:
            assert await client.status(number) == 404
        for number in early:
            await client.say(number, b"late")
        for number in early[:2]:
            await client.say(number, b"", ends=True)
        await client.reset(early[2])
        assert await client.status(slow) == 404
        assert await client.status(await client.ask("GET", "/do")) == 404


async def test_http_0_2_an_early_answer_reaches_who_still_sends() -> None:
    async def refuse(request: Request, writer: ResponseWriter) -> None:
        await writer.respond(Response(401, (), b"who are you"))

    async with _listening(refuse) as (address, _), await dial(address) as stream:
        size = 2**21
        await stream.send(b"POST /do HTTP/1.1\r\nhost: [::1]\r\ncontent-length: %d\r\n\r\n" % size)
        for _ in range(8):
            await stream.send(bytes(size // 8))
        received = b""
        with anyio.fail_after(60):
            while not received.endswith(b"who are you"):
                received += await stream.receive()
        assert received.startswith(b"HTTP/1.1 401 ")


async def test_a_head_is_answered_at_once() -> None:
    """docs/reference/s2.md: the status of a session is due before there is anything to send."""

    async def wait(request: Request, writer: ResponseWriter) -> None:
        await writer.start(200, ())
        await request.run_until_disconnect(anyio.sleep_forever)

    async with _listening(wait) as (address, application):
        async with await dial(address) as stream, Http2(await dial(address)) as client:
            await stream.send(b"GET /do HTTP/1.1\r\nhost: [::1]\r\n\r\n")
            with anyio.fail_after(60):
                assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")
                number = await client.ask("POST", "/do", ends=False)
                assert await client.status(number) == 200
        await eventually(lambda: not application.services.registry.connections)


async def test_a_stream_that_crashes_is_broken_off() -> None:
    async def fail(request: Request, writer: ResponseWriter) -> None:
        await writer.start(200, ())
        await writer.write(b"part")
        raise ZeroDivisionError

    async with _listening(fail) as (address, _), Http2(await dial(address)) as client:
        number = await client.ask("GET", "/do")
        await client.until(number, h2.events.StreamReset)
        async with await dial(address) as stream:
            await stream.send(b"GET /do HTTP/1.1\r\nhost: [::1]\r\n\r\n")
            assert not (await rest(stream)).endswith(b"0\r\n\r\n")


async def test_slow_and_idle_connections_are_closed() -> None:
    async with _listening(_ok, http_head_s=0.2, http_idle_s=0.2, http_ping_s=0.2) as (address, _):
        async with await dial(address) as slow, await dial(address) as idle:
            async with await dial(address) as silent:
                await slow.send(b"GET /do HTTP/1.1\r\nhost:")
                await idle.send(b"GET /do HTTP/1.1\r\nhost: [::1]\r\n\r\n")
                assert b" 200 " in await idle.receive()
                for each in (slow, idle, silent):
                    assert await rest(each) == b""


async def test_heads_are_limited() -> None:
    async with _listening(_ok, http_header_bytes_max=2000) as (address, _):
        status, _ = await get(address, "/do", ["x: " + "y" * 40_000])
        assert status == 431
        assert (await get(address, "/do/" + "x" * 70_000))[0] == 414
        assert (await get(address, "/do"))[0] == 200


async def test_a_head_above_the_limit_harms_no_other_stream() -> None:
    """HX-03: in HTTP/2, up to twice the limit, which is 32 KiB."""
    async with _listening(_ok) as (address, _):
        async with Http2(await dial(address)) as client:
            for size in (33_000, 60_000):
                number = await client.ask("GET", "/do", ("x", "y" * size))
                assert await client.status(number) == 431
            assert await client.status(await client.ask("GET", "/do")) == 200


async def test_everybody_elses_logging_stays_as_it_is(tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "log", mode="w")
    logger = logging.getLogger("of.somebody.else")
    logger.addHandler(handler)
    try:
        async with Node(ALONE):
            logger.warning("still here")
    finally:
        logger.removeHandler(handler)
        handler.close()
    assert (tmp_path / "log").read_text() == "still here\n"
