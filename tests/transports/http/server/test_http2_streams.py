"""HTTP/2: streams beside one another, windows both ways, resets, early answers, goodbyes."""

from __future__ import annotations

import anyio
import pytest
from h2.errors import ErrorCodes
from h2.events import InformationalResponseReceived
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.transports.http.asgi import Receive, Scope, Send
from tests.transports.http.server.http2_client import Client
from tests.transports.http.server.rig import Echo, body_of, respond, serving
from tests.transports.http.server.test_http1_responses import Gated


async def test_many_streams_at_once_are_answered_each_by_itself() -> None:
    gated = Gated()
    async with serving(gated) as rig:
        client = Client(rig.connect())
        asked = {client.ask("POST", f"/{at}", b"%d" % at): at for at in range(150)}
        await client.read()
        assert len(gated.began) == 150
        for at in reversed(range(150)):
            gated.open(b"/%d" % at)
        await client.read()
        for number, at in asked.items():
            assert client.body(number) == b"/%d %d" % (at, at) and client.is_whole(number)


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=5), data=st.data())
def test_any_split_gives_the_same_answers(sizes: list[int], data: st.DataObject) -> None:
    async def run() -> None:
        echo = Echo()
        bodies = [bytes(range(251)) * (size // 251) + bytes(size % 251) for size in sizes]
        async with serving(echo) as rig:
            client = Client(rig.connect())
            await client.read()
            for at, size in enumerate(sizes):
                number = client.ask("POST", f"/{at}", flushes=False, ends=False)
                body = bodies[at]
                for start in range(0, size, 10_000):
                    padding = data.draw(st.none() | st.integers(0, 255))
                    client.h2.send_data(number, body[start : start + 10_000], pad_length=padding)
                client.h2.end_stream(number)
            wire = client.h2.data_to_send()
            cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=20)))
            for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
                if start < end:
                    client.line.say(wire[start:end])
            await client.read()
            assert sorted(echo.asked) == [
                ("POST", b"/%d" % at, body) for at, body in enumerate(bodies)
            ]
            assert all(client.is_whole(2 * at + 1) for at in range(len(sizes)))

    anyio.run(run)


async def test_a_stream_that_nobody_reads_holds_no_other_up() -> None:
    gate = anyio.Event()

    async def some_read(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["raw_path"] == b"/slow":
            await gate.wait()
        body = await body_of(receive)
        assert body is not None
        await respond(send, 200, b"%d" % len(body))

    async with serving(some_read, window_bytes=50_000, connection_window_bytes=200_000) as rig:
        client = Client(rig.connect())
        await client.read()
        slow = client.ask("POST", "/slow", ends=False)
        while room := min(client.h2.local_flow_control_window(slow), 10_000):
            client.say(slow, bytes(room))
            await client.read()
        for _ in range(20):
            quick = client.ask("POST", "/quick", ends=False)
            for _ in range(5):
                client.say(quick, bytes(10_000))
                await client.read()
            client.say(quick, b"", ends=True)
            await client.read()
            assert client.body(quick) == b"50000"
        gate.set()
        await client.read()
        client.say(slow, b"end", ends=True)
        await client.read()
        assert client.body(slow) == b"50003"


async def test_the_window_is_given_back_for_what_nobody_will_read() -> None:
    """Of streams that were reset, refused, or answered early."""
    gate = anyio.Event()

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["raw_path"] == b"/wait":
            await gate.wait()
        await respond(send, 413, b"no")

    async with serving(refuse, window_bytes=60_000, connection_window_bytes=100_000) as rig:
        client = Client(rig.connect())
        await client.read()
        for _ in range(15):
            number = client.ask("POST", "/wait", ends=False)
            client.say(number, bytes(15_000))
            client.reset(number)
            early = client.ask("POST", "/early", ends=False)
            for _ in range(2):
                client.say(early, bytes(15_000), padding=100)
            await client.read()
            assert client.status(early) == 413 and client.is_whole(early)
            assert client.reset_by(early) == ErrorCodes.NO_ERROR
        assert client.h2.outbound_flow_control_window > 50_000
        gate.set()


@pytest.mark.parametrize("window", [0, 1, 1000])
@pytest.mark.parametrize("frame", [16_384, 2**20])
async def test_large_answers_wait_for_small_windows(window: int, frame: int) -> None:
    body = bytes(range(256)) * 400

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, body)

    told = {SettingCodes.INITIAL_WINDOW_SIZE: window, SettingCodes.MAX_FRAME_SIZE: frame}
    async with serving(large) as rig:
        client = Client(rig.connect(), settings=told)
        client.gives_back = False
        numbers = [client.ask("GET", f"/{at}") for at in range(3)]
        await client.read()
        assert [len(client.body(number)) for number in numbers] == [window] * 3
        client.h2.increment_flow_control_window(1_000_000)
        client.flush()
        for number in numbers:
            while not client.is_whole(number):
                client.h2.increment_flow_control_window(9_999, number)
                client.flush()
                await client.read()
            assert client.body(number) == body


async def test_a_larger_initial_window_wakes_who_waits() -> None:
    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, bytes(5000))

    async with serving(large) as rig:
        client = Client(rig.connect(), settings={SettingCodes.INITIAL_WINDOW_SIZE: 10})
        client.gives_back = False
        number = client.ask("GET", "/")
        await client.read()
        assert len(client.body(number)) == 10
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10_000})
        client.flush()
        await client.read()
        assert client.is_whole(number)


async def test_a_congested_wire_makes_streams_wait() -> None:
    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, bytes(50_000))

    async with serving(large) as rig:
        client = Client(rig.connect())
        await client.read()
        client.line.congest()
        number = client.ask("GET", "/")
        await client.read()
        assert client.status(number) == 200 and not client.body(number)
        client.line.relieve()
        await client.read()
        assert len(client.body(number)) == 50_000 and client.is_whole(number)


@pytest.mark.parametrize("how", ["reset", "end", "break"])
async def test_half_a_body_is_a_client_that_left(how: str) -> None:
    echo = Echo()
    async with serving(echo) as rig:
        client = Client(rig.connect())
        number = client.ask("POST", "/p", b"hel", ends=False)
        await client.read()
        match how:
            case "reset":
                client.reset(number)
            case "end":
                client.line.session.eof()
            case _:
                client.line.end()
        await client.read()
        assert echo.gone == [b"/p"] and not echo.asked
        assert client.line.wire.is_closed == (how != "reset")


async def test_a_request_and_its_reset_at_once() -> None:
    echo = Echo()
    async with serving(echo, streams_max=2) as rig:
        client = Client(rig.connect())
        for at in range(6):
            number = client.ask("POST", f"/{at}", b"hel", ends=False, flushes=False)
            client.h2.reset_stream(number)
        number = client.ask("GET", "no-path", flushes=False)
        client.h2.reset_stream(number)
        client.flush()
        await client.read()
        last = client.ask("GET", "/last")
        await client.read()
        assert client.status(last) == 200 and client.ended_by is None
        assert [what for _, what, _ in echo.asked] == [b"/last"]


async def test_what_comes_late_for_streams_that_are_over_is_borne() -> None:
    """Frames that crossed our answer, or our reset, on their way."""

    async def early(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, b"early")

    async with serving(early) as rig:
        client = Client(rig.connect())
        number = client.ask("POST", "/", b"hel", ends=False)
        whole = client.ask("GET", "/")
        client.say(number, b"lo")
        await client.line.read()
        for _ in range(3):
            client.line.say(frame(0, 0, number, bytes(1000)))
            client.line.say(frame(8, 0, number, b"\0\0\0\1"))
            client.line.say(frame(8, 0, whole, b"\0\0\0\1"))
            client.line.say(frame(3, 0, number, b"\0\0\0\x08"))
            client.line.say(frame(3, 0, whole, b"\0\0\0\x08"))
        assert not client.line.wire.is_closed
        client.ask("GET", "/again")
        assert b"early" in await client.line.read()


def frame(kind: int, flags: int, number: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + number.to_bytes(4, "big") + body


async def test_trailers_are_the_end_of_a_body() -> None:
    async with serving(Echo()) as rig:
        client = Client(rig.connect())
        number = client.ask("POST", "/", b"hello", ends=False)
        client.h2.send_headers(number, [("x", "y")], end_stream=True)
        client.flush()
        await client.read()
        assert client.body(number) == b"POST / hello"


async def test_a_stream_too_many_is_refused_and_no_other_disturbed() -> None:
    gated = Gated()
    async with serving(gated, streams_max=3) as rig:
        line = rig.connect()
        client = Client(line)
        client.h2.remote_settings.max_concurrent_streams = 100  # what an eager client assumes
        numbers = [client.ask("GET", f"/{at}") for at in range(5)]
        await client.read()
        assert [client.reset_by(each) for each in numbers] == [None] * 3 + [
            ErrorCodes.REFUSED_STREAM
        ] * 2
        for at in range(3):
            gated.open(b"/%d" % at)
        await client.read()
        assert all(client.is_whole(each) for each in numbers[:3])
        again = client.ask("GET", "/again")
        await client.read()
        gated.open(b"/again")
        await client.read()
        assert client.is_whole(again)


@pytest.mark.parametrize("when", ["at once", "in the body"])
async def test_a_crash_costs_its_stream_alone(when: str, caplog: pytest.LogCaptureFixture) -> None:
    async def crash(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["raw_path"] == b"/well":
            return await respond(send, 200, b"well")
        if when == "in the body":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
        raise RuntimeError("boom")

    async with serving(crash) as rig:
        client = Client(rig.connect())
        broken, well = client.ask("GET", "/"), client.ask("GET", "/well")
        await client.read()
        assert client.reset_by(broken) == ErrorCodes.INTERNAL_ERROR
        assert client.body(well) == b"well" and client.is_whole(well)
    assert caplog.text.count("Traceback") == 1


async def test_a_client_that_says_goodbye_hears_what_it_asked_for() -> None:
    """Also with frames behind its GOAWAY; then the connection is closed."""
    gated = Gated()
    async with serving(gated) as rig:
        client = Client(rig.connect())
        whole, half = client.ask("GET", "/whole"), client.ask("POST", "/half", b"he", ends=False)
        await client.read()
        goodbye = frame(7, 0, 0, bytes(8))
        client.h2.send_data(half, b"llo", end_stream=True)
        client.line.say(goodbye + client.h2.data_to_send())
        await client.read()
        gated.open(b"/half")
        await client.read()
        assert client.body(half) == b"/half hello" and not client.line.wire.is_closed
        gated.open(b"/whole")
        await client.read()
        assert client.is_whole(whole) and client.line.wire.is_closed
        idle = Client(rig.connect())
        await idle.read()
        idle.line.say(goodbye)
        assert idle.line.wire.is_closed


async def test_a_server_that_stops_says_goodbye_behind_the_last_answer() -> None:
    gated = Gated()
    async with serving(gated) as rig:
        idle, busy = Client(rig.connect()), Client(rig.connect())
        number = busy.ask("POST", "/busy", b"he", ends=False)
        await idle.read()
        await busy.read()
        rig.server.start_drain()
        await idle.read()
        await busy.read()
        assert idle.ended_by == ErrorCodes.NO_ERROR and idle.line.wire.is_closed
        assert busy.ended_by is None and not busy.line.wire.is_closed
        busy.say(number, b"llo", ends=True)
        await busy.read()
        gated.open(b"/busy")
        await busy.read()
        assert busy.body(number) == b"/busy hello" and busy.line.wire.is_closed
        assert busy.ended_by == ErrorCodes.NO_ERROR
        assert busy.frames.index("GOAWAY") == len(busy.frames) - 1


async def test_silence_is_asked_whether_it_is_there() -> None:
    gated = Gated()
    async with serving(gated, ping_s=10, ping_wait_s=5, idle_s=1000) as rig:
        here, gone = Client(rig.connect()), Client(rig.connect())
        for client in (here, gone):
            client.ask("GET", "/")
            await client.read()
        for _ in range(60):
            await rig.pass_s(1)
            await here.read()
        assert here.frames.count("PING") > 3 and not here.line.wire.is_closed
        assert gone.line.wire.is_aborted
        silent = Client(rig.connect())
        await silent.read()
        await rig.pass_s(14)
        assert not silent.line.wire.is_closed
        await rig.pass_s(3)
        assert silent.line.wire.is_aborted
        gated.open(b"/")


async def test_a_connection_without_a_request_is_told_goodbye_in_time() -> None:
    """Also when it is there, and answers pings."""
    async with serving(Echo(), idle_s=60, ping_s=10) as rig:
        client = Client(rig.connect())
        client.ask("GET", "/")
        await client.read()
        for second in range(62):
            assert client.line.wire.is_closed == (second >= 60)
            await rig.pass_s(1, step_s=1)
            await client.read()
        assert "PING" in client.frames
        assert client.ended_by == ErrorCodes.NO_ERROR and client.line.wire.is_closed


async def test_who_expects_to_be_told_is_told_when_its_body_is_wanted() -> None:
    """RFC 9110, 10.1.1 holds for HTTP/2 as well: a client may wait for that word."""
    expecting = [("expect", "100-continue"), ("content-length", "5")]
    async with serving(Echo()) as rig:
        client = Client(rig.connect())
        number = client.ask("POST", "/p", ends=False, headers=expecting)
        await client.read()
        (told,) = client.events[number]
        assert isinstance(told, InformationalResponseReceived)
        assert told.headers == [(b":status", b"100")]
        client.say(number, b"hel")
        await client.read()
        client.say(number, b"lo", ends=True)
        await client.read()
        assert client.body(number) == b"POST /p hello" and client.is_whole(number)


async def test_a_host_that_is_none_costs_its_stream_alone() -> None:
    async with serving(Echo()) as rig:
        client = Client(rig.connect())
        bad = client.h2.get_next_available_stream_id()
        head = [(":method", "GET"), (":scheme", "http"), (":authority", "a b"), (":path", "/a")]
        client.h2.send_headers(bad, head, end_stream=True)
        good = client.ask("GET", "/b")
        await client.read()
        assert client.reset_by(bad) == ErrorCodes.PROTOCOL_ERROR
        assert client.body(good) == b"GET /b " and client.is_whole(good)


@pytest.mark.parametrize("kind", ["stream", "connection", "settings"])
async def test_room_for_a_stream_that_is_reset_along_with_it(kind: str) -> None:
    """In one piece: room for an answer that waits for it, its reset, and the next request."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, bytes(100_000) if scope["raw_path"] == b"/large" else b"small")

    async with serving(answer) as rig:
        client = Client(rig.connect(), settings={SettingCodes.INITIAL_WINDOW_SIZE: 1000})
        client.gives_back = False
        number = client.ask("GET", "/large")
        await client.read()
        match kind:
            case "stream":
                client.h2.increment_flow_control_window(10, number)
            case "connection":
                client.h2.increment_flow_control_window(10)
            case _:
                client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2000})
        client.h2.reset_stream(number, 8)
        other = client.ask("GET", "/small")
        await client.read()
        assert client.body(other) == b"small" and client.is_whole(other)
        assert not rig.lines[0].wire.is_closed
