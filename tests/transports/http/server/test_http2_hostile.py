"""HTTP/2 as no decent client speaks it: floods, bombs, frames without an end."""

from __future__ import annotations

from collections.abc import Callable

import anyio.lowlevel
import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from millpond.transports.http.asgi import Receive, Scope, Send
from millpond.transports.http.server.connection import PREFACE
from millpond.transports.http.server.http2 import FRAMES_PER_S, OVERSIZED_HEADS_MAX
from tests.transports.http.server.http2_client import Client
from tests.transports.http.server.rig import Echo, Rig, body_of, respond, serving, settle
from tests.transports.http.server.test_http1_responses import Gated
from tests.transports.http.server.test_http2_streams import frame

SETTINGS = frame(4, 0, 0, b"")
HEAD = b"\x82\x86\x84\x41\x01a"  # GET, http, /, authority a
NO_END, END_HEADERS, END = 0, 4, 5


async def _begun(rig: Rig) -> Client:
    client = Client(rig.connect())
    await client.read()
    return client


FLOODS: dict[str, Callable[[int], bytes]] = {
    "ping": lambda at: frame(6, 0, 0, bytes(8)),
    "pong": lambda at: frame(6, 1, 0, bytes(8)),
    "settings": lambda at: SETTINGS,
    "window": lambda at: frame(8, 0, 0, b"\0\0\0\1"),
    "window-of-old": lambda at: frame(8, 0, 1, b"\0\0\0\1"),
    "reset-of-old": lambda at: frame(3, 0, 1, b"\0\0\0\x08"),
    "priority": lambda at: frame(2, 0, 1, b"\0\0\0\0\1"),
    "unknown": lambda at: frame(0xFE, 0, 0, b""),
    "empty-data": lambda at: frame(0, 0, 3, b""),
    "padded-data": lambda at: frame(0, 8, 3, b"\0"),
    "rapid-reset": lambda at: (
        frame(1, END, 2 * at + 5, HEAD) + frame(3, 0, 2 * at + 5, b"\0\0\0\x08")
    ),
    "refused": lambda at: frame(1, END, 2 * at + 5, HEAD),
    "bad-target": lambda at: frame(1, END, 2 * at + 5, b"\x82\x86\x44\x01a\x41\x01a"),
}

TOO_MANY_AT_ONCE = ("refused", "bad-target")
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@pytest.mark.parametrize("flood", FLOODS)
@on_asyncio
async def test_floods_of_frames_are_told_to_calm_down(flood: str) -> None:
    """With few tasks and few bytes kept meanwhile."""
    gated = Gated()
    async with serving(gated, streams_max=20) as rig:
        client = await _begun(rig)
        one = client.ask("GET", "/one")
        await client.read()
        gated.open(b"/one")
        await client.read()
        assert client.is_whole(one)
        client.ask("POST", "/two", ends=False)
        await client.read()
        said = 0
        while not client.line.wire.is_closed:
            client.line.say(b"".join(FLOODS[flood](at) for at in range(said, said + 500)))
            said += 500
            assert said <= 12_000
            assert len(client.line.session._protocol._exchanges) <= 20
            await anyio.lowlevel.checkpoint()
            while client.line.wire.is_paused:
                await anyio.lowlevel.checkpoint()
        await client.read()
        at_once = (ErrorCodes.PROTOCOL_ERROR,) if flood in TOO_MANY_AT_ONCE else ()
        assert client.ended_by in (ErrorCodes.ENHANCE_YOUR_CALM, *at_once)
        assert b"/two" in gated.left
        assert len(gated.began) <= 2 + FRAMES_PER_S // 20
        gated.open_all()


@on_asyncio
async def test_a_busy_client_is_not_taken_for_a_flood() -> None:
    """A window update for each 2 KiB that it hears, and an empty frame behind each body."""

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, bytes(200_000))

    async with serving(large) as rig:
        client = await _begun(rig)
        for _ in range(60):
            number = client.ask("POST", "/", b"x", ends=False)
            client.say(number, b"", ends=True)
            more = frame(8, 0, 0, b"\0\0\x08\0") + frame(8, 0, number, b"\0\0\x08\0")
            received = b""
            for _ in range(5):
                received += await client.line.ask(more * 20)
            assert len(received) > 200_000
        assert not client.line.wire.is_closed


@on_asyncio
async def test_who_floods_and_does_not_read_is_cut_off() -> None:
    """Slowly enough to be borne, for as long as it likes."""
    async with serving(Echo()) as rig:
        client = await _begun(rig)
        client.line.congest()
        said = 0
        while not client.line.wire.is_closed:
            client.line.say(frame(6, 0, 0, bytes(8)) * 500)
            said += 500
            rig.time += 1
            assert said < 20_000
        assert client.line.wire.is_aborted and len(client.line.wire.written) < 2**19


async def test_a_stream_whose_window_stays_shut_is_given_up() -> None:
    """Its connection answers pings, and other streams go on."""
    cut = []

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(1000), "more_body": True})
        cut.append((await receive())["type"])

    async with serving(stream, idle_s=60, ping_s=10) as rig:
        client = Client(rig.connect(), settings={SettingCodes.INITIAL_WINDOW_SIZE: 0})
        client.gives_back = False
        shut, moving = client.ask("GET", "/"), client.ask("GET", "/")
        for _ in range(15):
            client.h2.increment_flow_control_window(1, moving)
            client.flush()
            await rig.pass_s(5, step_s=5)
            await client.read()
        assert client.reset_by(shut) == ErrorCodes.CANCEL and cut == ["http.disconnect"]
        assert client.reset_by(moving) is None and len(client.body(moving)) == 15
        assert not client.line.wire.is_closed


@pytest.mark.parametrize("size", [0, 1, 100])
async def test_a_head_in_endless_pieces_is_given_up(size: int) -> None:
    async with serving(Echo()) as rig:
        client = await _begun(rig)
        client.line.say(frame(1, NO_END, 1, HEAD))
        said = 0
        while not client.line.wire.is_closed:
            client.line.say(frame(9, 0, 1, bytes(size)))
            said += size + 9
            assert said < 2**20
        await client.read()
        assert client.ended_by is not None


@pytest.mark.parametrize("kind", [0, 1, 6, 9, 0xFE])
async def test_a_frame_that_is_too_long_is_refused_before_it_comes(kind: int) -> None:
    async with serving(Echo()) as rig:
        client = await _begun(rig)
        client.line.say(frame(kind, 0, 1, bytes(2**14 + 1))[:9])
        await client.read()
        assert client.ended_by == ErrorCodes.FRAME_SIZE_ERROR and client.line.wire.is_closed


async def test_a_header_bomb_is_refused() -> None:
    """One large entry in the table, named a thousand times by a byte each."""
    async with serving(Echo()) as rig:
        client = await _begun(rig)
        entry = b"\x40\x01x\x7f\x81\x1f" + b"y" * 4000
        client.line.say(frame(1, END, 1, HEAD + entry + b"\xbe" * 1000))
        await client.read()
        assert client.ended_by is not None and client.line.wire.is_closed


@on_asyncio
async def test_the_table_that_a_client_wants_us_to_keep_stays_small() -> None:
    async def differently(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, b"", [(b"x-" + scope["raw_path"][1:], b"y" * 100)])

    told = {SettingCodes.HEADER_TABLE_SIZE: 2**31 - 1}
    async with serving(differently) as rig:
        client = Client(rig.connect(), settings=told)
        client.h2.decoder.max_allowed_table_size = 2**31 - 1
        for at in range(100):
            number = client.ask("GET", f"/{at}")
            await client.read()
            assert client.status(number) == 200
        table = client.line.session._protocol._h2.encoder.header_table
        assert len(table.dynamic_entries) < 50


@pytest.mark.parametrize(
    "begun",
    [PREFACE + SETTINGS[:5], PREFACE + SETTINGS + frame(1, NO_END, 1, HEAD)],
    ids=["frame", "head"],
)
async def test_what_has_begun_has_to_end(begun: bytes) -> None:
    async with serving(Echo(), head_s=10) as rig:
        line = rig.connect()
        line.say(begun)
        await rig.pass_s(9)
        assert not line.wire.is_closed
        await rig.pass_s(2)
        assert line.wire.is_closed


@pytest.mark.parametrize(
    "said",
    [
        frame(1, END, 2, HEAD),
        frame(0, 1, 1, b"x"),
        frame(9, 4, 1, HEAD),
        frame(5, 4, 1, b"\0\0\0\2" + HEAD),
        frame(8, 0, 0, b"\0\0\0\0"),
        frame(8, 0, 0, b"\x7f\xff\xff\xff") * 2,
        frame(4, 1, 0, b"x" * 6),
        frame(4, 0, 0, b"x"),
        frame(4, 0, 0, b"\0\4\xff\xff\xff\xff"),
        frame(6, 0, 0, b"x"),
        frame(6, 0, 1, bytes(8)),
        frame(3, 0, 0, bytes(4)),
        frame(3, 0, 1, bytes(4)),
        frame(1, END, 1, b"\xff" * 20),
        frame(1, END, 1, b"\x82\x86\x84"),
        frame(1, END, 1, HEAD + b"\x40\x01X\x01y"),
        frame(1, END, 1, HEAD + b"\x40\x0aconnection\x01y"),
        frame(1, END | 8, 1, b"\xff" + HEAD),
        bytes(100),
        b"\xff" * 100,
    ],
)
async def test_what_is_no_http_2_ends_the_connection_and_logs_nothing(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Echo()) as rig:
        client = await _begun(rig)
        client.line.say(said)
        await client.read()
        other = await _begun(rig)
        number = other.ask("GET", "/")
        await other.read()
        assert other.status(number) == 200
        assert client.line.wire.is_closed
    assert not caplog.records


def _head_of(size: int) -> bytes:
    """A head whose block has so many bytes: the last header is not in a table, nor compressed."""
    value_bytes = size - len(HEAD) - 8
    rest = value_bytes - 127
    length = bytes((0x7F, *(rest >> shift & 127 | 0x80 for shift in (0, 7, 14)), 0))
    return HEAD + b"\0\x01x" + length + b"y" * value_bytes


def _frames(data: bytes) -> list[tuple[int, bytes]]:
    """Type and payload of each frame."""
    found = []
    while data:
        end = 9 + int.from_bytes(data[:3], "big")
        found.append((data[3], data[9:end]))
        data = data[end:]
    return found


def _status(data: bytes) -> bytes:
    """The status of the only answer; GOAWAY and resets are none."""
    frames = _frames(data)
    assert {kind for kind, _ in frames} <= {0, 1, 8}, frames
    (head,) = [payload for kind, payload in frames if kind == 1]
    return head[:1]


OK = b"\x88"


@pytest.mark.parametrize("header_bytes_max", [100, 32 * 2**10])
@pytest.mark.parametrize("size", [2**14 - 1, 2**14])
async def test_a_head_that_fills_its_frame_is_read(size: int, header_bytes_max: int) -> None:
    """HX-03: the application answers a head above its limit, and the connection goes on."""
    async with serving(Echo(), header_bytes_max=header_bytes_max) as rig:
        client = await _begun(rig)
        head = _head_of(size)
        assert len(head) == size
        for number in (1, 3):
            assert _status(await client.line.ask(frame(1, END, number, head))) == OK


@pytest.mark.parametrize("size", [2**14 + 1, 40_000, 65_000])
async def test_a_head_in_several_frames_is_read_up_to_twice_the_limit(size: int) -> None:
    async with serving(Echo()) as rig:
        client = await _begun(rig)
        head = _head_of(size)
        parts = [head[at : at + 2**14] for at in range(0, size, 2**14)]
        data = frame(1, NO_END | 1, 1, parts[0])
        for part in parts[1:]:
            data += frame(9, END_HEADERS * (part is parts[-1]), 1, part)
        assert _status(await client.line.ask(data)) == OK


def _long_heads(count: int, size: int) -> bytes:
    heads = [frame(1, END, 2 * at + 1, _head_of(size)) for at in range(count)]
    return b"".join(heads)


@on_asyncio
async def test_heads_of_others_are_decoded_between_long_ones() -> None:
    """Three clients send two hundred long heads at once; a small one is next all the same."""
    app = Echo()
    async with serving(app, streams_max=200) as rig:
        hostile = [await _begun(rig) for _ in range(3)]
        other = await _begun(rig)
        for client in hostile:
            client.line.say(_long_heads(200, 15_000))
        assert all(client.line.wire.is_paused for client in hostile)
        number = other.ask("GET", "/small")
        for _ in range(4):
            await anyio.lowlevel.checkpoint()
        assert len(app.asked) < 20 and ("GET", b"/small", b"") in app.asked
        for client in hostile:
            while client.line.wire.is_paused:
                await anyio.lowlevel.checkpoint()
        await other.read()
        assert other.status(number) == 200
        assert len(app.asked) == 601


async def test_every_head_that_waits_is_read() -> None:
    """In its order, with what comes while it waits, on each event loop."""
    app = Echo()
    async with serving(app) as rig:
        client = await _begun(rig)
        client.line.say(_long_heads(20, 15_000))
        assert client.line.wire.is_paused
        client.line.say(frame(1, END, 41, b"\x82\x86\x44\x05/last\x41\x01a"))
        assert len(app.asked) < 20
        while client.line.wire.is_paused:
            await settle()
        await settle()
        assert len(app.asked) == 21 and app.asked[-1] == ("GET", b"/last", b"")


async def test_heads_that_wait_are_counted_as_memory_and_end_with_their_connection() -> None:
    app = Echo()
    async with serving(app) as rig:
        client = await _begun(rig)
        client.line.say(_long_heads(50, 15_000))
        assert client.line.session.held_bytes > 48 * 15_000
        asked = len(app.asked)
        client.line.end()
        await settle()
        assert len(app.asked) == asked


async def test_a_client_whose_heads_wait_is_not_pinged_in_vain() -> None:
    """Its answer would wait behind them."""
    async with serving(Echo(), ping_s=10) as rig:
        client = await _begun(rig)
        client.line.say(_long_heads(50, 15_000))
        rig.time += 60
        client.line.session.wake(rig.time)
        assert not client.line.wire.is_closed
        kinds = [kind for kind, _ in _frames(await client.line.read())]
        assert kinds.count(1) == 50 and 6 not in kinds


async def test_heads_that_wait_are_answered_before_a_stop() -> None:
    app = Echo()
    async with serving(app) as rig:
        client = await _begun(rig)
        client.line.say(_long_heads(20, 15_000))
        rig.server.start_drain()
        assert not client.line.wire.is_closed
        await client.line.read()
        assert len(app.asked) == 20 and client.line.wire.is_closed


@pytest.mark.parametrize(
    "headers", [[("x", "y" * 1001)], [("x", "y")] * 10], ids=["bytes", "headers"]
)
async def test_a_client_that_sends_only_oversized_heads_is_closed(
    headers: list[tuple[str, str]],
) -> None:
    """HX-03: four are answered, by the application; a small one in between counts them anew."""
    app = Echo()
    async with serving(app, header_bytes_max=1000, headers_max=10) as rig:
        client = await _begun(rig)
        for _ in range(2):
            for _ in range(OVERSIZED_HEADS_MAX):
                client.ask("GET", "/", headers=headers)
            client.ask("GET", "/", headers=headers[1:])
        await client.read()
        assert len(app.asked) == 2 * OVERSIZED_HEADS_MAX + 2
        for _ in range(OVERSIZED_HEADS_MAX + 1):
            client.ask("GET", "/", headers=headers)
        await client.read()
        assert client.ended_by == ErrorCodes.ENHANCE_YOUR_CALM and client.line.wire.is_closed


async def test_a_head_that_is_too_long_to_decode_ends_the_connection() -> None:
    async with serving(Echo()) as rig:
        client = await _begun(rig)
        head = _head_of(2**16)
        parts = [head[at : at + 2**14] for at in range(0, len(head), 2**14)]
        client.line.say(frame(1, NO_END, 1, parts[0]))
        for part in parts[1:]:
            client.line.say(frame(9, END_HEADERS * (part is parts[-1]), 1, part))
        await client.read()
        assert client.ended_by == ErrorCodes.ENHANCE_YOUR_CALM and client.line.wire.is_closed


class Unread:
    """An application that reads no body before it is told to."""

    def __init__(self) -> None:
        self.gate = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.gate.wait()
        await body_of(receive)
        await respond(send, 200, b"")


DATA_FLAGS = pytest.mark.parametrize("flags", [0, 8], ids=["plain", "padded"])


@DATA_FLAGS
@pytest.mark.parametrize("window", ["stream", "connection"])
async def test_more_data_than_a_window_ends_the_connection(flags: int, window: str) -> None:
    unread = Unread()
    sizes = {"window_bytes": 40_000, "connection_window_bytes": 200_000}
    if window == "connection":
        sizes = {"window_bytes": 200_000, "connection_window_bytes": 70_000}
    async with serving(unread, **sizes) as rig:
        client = await _begun(rig)
        number = client.ask("POST", "/", ends=False)
        other = client.ask("POST", "/other", ends=False)
        await client.read()
        for _ in range(3):
            for each in (number, other) if window == "connection" else (number,):
                client.line.say(frame(0, flags, each, bytes(11_000)))
            await client.read()
            assert client.ended_by is None
        for each in (number, other):
            client.line.say(frame(0, flags, each, bytes(11_000)))
        await client.read()
        assert client.ended_by == ErrorCodes.FLOW_CONTROL_ERROR
        unread.gate.set()


@DATA_FLAGS
async def test_more_data_than_a_head_promised_ends_the_connection(flags: int) -> None:
    async with serving(Echo()) as rig:
        client = await _begun(rig)
        number = client.ask("POST", "/", ends=False, headers=[("content-length", "20")])
        await client.read()
        client.line.say(2 * frame(0, flags, number, bytes(19)))
        await client.read()
        assert client.ended_by == ErrorCodes.PROTOCOL_ERROR


@DATA_FLAGS
async def test_data_for_a_stream_that_never_began_ends_the_connection(flags: int) -> None:
    async with serving(Echo()) as rig:
        client = await _begun(rig)
        number = client.ask("POST", "/", ends=True)
        client.line.say(frame(0, flags, number + 2, bytes(19)))
        await client.read()
        assert client.ended_by == ErrorCodes.PROTOCOL_ERROR


@DATA_FLAGS
async def test_data_for_a_stream_that_was_reset_goes_nowhere(flags: int) -> None:
    async with serving(Echo()) as rig:
        client = await _begun(rig)
        number = client.ask("POST", "/", ends=False)
        client.line.say(frame(3, 0, number, b"\0\0\0\x08") + frame(0, flags, number, bytes(19)))
        other = client.ask("POST", "/other", b"hello")
        await client.read()
        assert client.ended_by is None and client.body(other) == b"POST /other hello"


@DATA_FLAGS
async def test_data_behind_the_end_of_a_body_resets_the_stream_alone(flags: int) -> None:
    """Also where one read brings the rest of the last frame, and the frame behind it."""
    async with serving(Echo()) as rig:
        client = await _begun(rig)
        number = client.ask("POST", "/", ends=False)
        last = frame(0, 1, number, b"hello")
        client.line.say(last[:11])
        client.line.say(last[11:] + frame(0, flags, number, bytes(19)))
        other = client.ask("POST", "/other", b"hello")
        await client.read()
        assert client.ended_by is None and client.body(other) == b"POST /other hello"
        assert client.reset_by(number) == ErrorCodes.STREAM_CLOSED
