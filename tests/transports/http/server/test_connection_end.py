"""Deadlines, limits and ends of connections, in virtual time; nothing is left behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.lowlevel
import pytest

from millpond.transports.http.asgi import Receive, Scope, Send
from millpond.transports.http.server.connection import PREFACE
from tests.transports.http.server.http2_client import Client
from tests.transports.http.server.rig import Echo, answers, body_of, respond, serving
from tests.transports.http.server.test_http1_responses import Gated, get, post


@pytest.mark.parametrize("said", [b"", b"P", PREFACE[:-1], b"GET / HTTP/1.1\r\n", b"GET / HT"])
async def test_who_does_not_come_to_the_end_of_its_first_head_is_closed(said: bytes) -> None:
    async with serving(Echo(), head_s=10) as rig:
        line = rig.connect()
        if said:
            line.say(said)
        await rig.pass_s(9)
        assert not line.wire.is_closed
        await rig.pass_s(2)
        assert line.wire.is_closed


async def test_a_head_that_trickles_is_late_all_the_same() -> None:
    async with serving(Echo(), head_s=10) as rig:
        line = rig.connect()
        await line.ask(get(b"/"))
        await rig.pass_s(20)
        for each in get(b"/slow")[:10]:
            line.say(bytes([each]))
            await rig.pass_s(1)
        assert line.wire.is_closed


async def test_a_body_may_come_slowly_and_an_answer_take_its_time() -> None:
    """Limits of bodies are the application's."""
    gated = Gated()
    async with serving(gated, head_s=5, idle_s=10) as rig:
        line = rig.connect()
        line.say(post(b"/p", b"", length=5))
        for each in b"hello":
            await rig.pass_s(30, step_s=5)
            line.say(bytes([each]))
        await rig.pass_s(300, step_s=5)
        assert not line.wire.is_closed
        gated.open(b"/p")
        (answer,) = answers(await line.read())
        assert answer.body == b"/p hello"


async def test_a_connection_without_a_request_is_closed_in_time() -> None:
    async with serving(Echo(), idle_s=60, ping_s=25) as rig:
        line = rig.connect()
        await line.ask(get(b"/"))
        await rig.pass_s(50)
        await line.ask(get(b"/"))
        await rig.pass_s(59)
        assert not line.wire.is_closed
        await rig.pass_s(2)
        assert line.wire.is_closed


async def test_who_takes_nothing_of_an_answer_is_not_there() -> None:
    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": bytes(1000), "more_body": True})
            await anyio.lowlevel.checkpoint()
            if line.wire.is_closed:
                return

    async with serving(endless, idle_s=60, ping_s=10) as rig:
        line = rig.connect()
        line.congest()
        line.say(get(b"/"))
        for left in range(3):  # a little is taken now and then
            await rig.pass_s(50)
            line.congest(100_000 - left)
        assert not line.wire.is_closed
        await rig.pass_s(80)
        assert line.wire.is_aborted
        line.end()


async def test_silence_keeps_nobody_out() -> None:
    """The oldest idle connection goes for each one too many; those with requests stay."""
    gated = Gated()
    async with serving(gated, connections_max=4) as rig:
        busy, *idle = [rig.connect() for _ in range(4)]
        await busy.ask(get(b"/"))
        newer = [rig.connect() for _ in range(3)]
        assert all(line.wire.is_closed for line in idle)
        assert not any(line.wire.is_closed for line in (busy, *newer))
        for number, line in enumerate(newer):
            await line.ask(get(b"/%d" % number))
        assert rig.connect().wire.is_closed
        assert not any(line.wire.is_closed for line in (busy, *newer))
        for path in (b"/", b"/0", b"/1", b"/2"):
            gated.open(path)


async def test_a_server_that_stops_answers_what_was_asked_and_closes() -> None:
    gated = Gated()
    async with serving(gated) as rig:
        silent, idle, busy, ahead, uploading, half = [rig.connect() for _ in range(6)]
        idle.say(get(b"/idle"))
        await idle.read()
        gated.open(b"/idle")
        await idle.read()
        await busy.ask(get(b"/busy"))
        await ahead.ask(get(b"/1") + get(b"/2") + get(b"/3")[:-2])
        await uploading.ask(post(b"/up", b"hel", length=5))
        await half.ask(get(b"/half")[:-2])
        rig.server.start_drain()
        assert silent.wire.is_closed and idle.wire.is_closed and half.wire.is_closed
        assert not (busy.wire.is_closed or ahead.wire.is_closed or uploading.wire.is_closed)
        uploading.say(b"lo" + get(b"/late"))
        ahead.say(b"\r\n")
        received = {}
        for line, paths in ((busy, [b"/busy"]), (ahead, [b"/1", b"/2"]), (uploading, [b"/up"])):
            received[line] = b""
            for path in paths:
                received[line] += await line.read()
                gated.open(path)
            received[line] += await line.read()
            assert line.wire.is_closed and not line.wire.is_aborted
        (one,), (first, second), (upload,) = (answers(each) for each in received.values())
        assert upload.body == b"/up hello" and second.body == b"/2 "
        assert "connection" not in first.headers
        assert all(each.headers["connection"] == "close" for each in (one, second, upload))
        assert rig.connect().wire.is_closed


@contextmanager
def _no_collector() -> Iterator[None]:
    gc.freeze()  # what is there already is neither collected nor counted
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("how", ["idle", "in mid-body", "in mid-answer", "upgraded", "pipelined"])
async def test_a_connection_that_ended_is_freed_without_the_collector(how: str) -> None:
    gated = Gated()
    said = {
        "idle": b"",
        "in mid-body": post(b"/p", b"hel", length=5),
        "in mid-answer": get(b"/"),
        "upgraded": get(b"/", b"connection: upgrade", b"upgrade: h2c"),
        "pipelined": get(b"/") * 3,
    }
    async with serving(gated) as rig:
        with _no_collector():
            line = rig.connect()
            speaker = weakref.ref(await _speaker_after(line, said[how]))
            gated.open_all()
            line.end()
            await line.read()
            await anyio.lowlevel.checkpoint()
            assert speaker() is None


async def _speaker_after(line, said: bytes):  # type: ignore[no-untyped-def]
    await line.ask(said or b"\r\n")
    return line.session._protocol


async def test_a_connection_of_http_2_is_freed_without_the_collector() -> None:
    async with serving(Echo()) as rig:
        with _no_collector():
            client = Client(rig.connect())
            client.ask("GET", "/one")
            client.ask("POST", "/two", b"half", ends=False)
            await client.read()
            speaker = weakref.ref(client.line.session._protocol)
            speech = weakref.ref(speaker()._h2)
            client.line.end()
            await client.line.read()
            await anyio.lowlevel.checkpoint()
            assert speaker() is None and speech() is None


async def test_stop_ends_requests_under_way() -> None:
    gated = Gated()
    async with serving(gated) as rig:
        line = rig.connect()
        await line.ask(get(b"/"))
        rig.server.stop()
        await line.read()
        assert line.wire.is_closed


async def test_an_application_may_answer_without_reading_and_read_behind_it() -> None:
    seen = []

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, b"done")
        seen.append(await body_of(receive))

    async with serving(late) as rig:
        line = rig.connect()
        one, two = answers(await line.ask(get(b"/") + post(b"/", b"hello")))
        assert one == two and seen == [b"", b"hello"] and not line.wire.is_closed
