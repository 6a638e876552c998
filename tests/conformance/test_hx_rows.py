"""The rows of HTTP and WebSocket that public suites look at (HX of interop.md), byte by byte.
tests/transports/http/server and tests/transports/websocket have more of each."""

from __future__ import annotations

from itertools import product

import pytest
from websockets.frames import Frame, Opcode

from millpond.transports.browser_policy import BrowserPolicy
from millpond.transports.errors import WireError
from millpond.transports.http.server.connection import PREFACE
from millpond.transports.websocket.framing import ServerFraming
from tests.transports.http.server.rig import Echo, answers, serving
from tests.transports.http.server.test_http2_hostile import END, HEAD
from tests.transports.http.server.test_http2_streams import frame
from tests.transports.websocket.test_framing import (
    close_code,
    from_client,
    request_of,
    upgraded_server,
)

GET = b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n"
FRAME_BYTES_MAX = 2**14
MAX_FRAME_SIZE, FRAME_SIZE_ERROR = 5, 6
"""A setting and an error code of HTTP/2."""


@pytest.fixture
def wiring() -> str:
    """Nothing here depends on the event loop."""
    return "tcp-uvloop"


def _frames(data: bytes) -> list[tuple[int, int, bytes]]:
    """Type, stream and payload of each frame."""
    found = []
    while data:
        end = 9 + int.from_bytes(data[:3], "big")
        found.append((data[3], int.from_bytes(data[5:9], "big"), data[9:end]))
        data = data[end:]
    return found


def _statuses(data: bytes) -> list[bytes]:
    """The first byte of each head: its status, in the static table."""
    return [payload[:1] for kind, _, payload in _frames(data) if kind == 1]


def _goaway(data: bytes) -> int | None:
    """The error code of GOAWAY."""
    codes = [int.from_bytes(payload[4:8], "big") for kind, _, payload in _frames(data) if kind == 7]
    return codes[0] if codes else None


def _head(size: int) -> bytes:
    """A head of so many bytes, the last header of which is a literal."""
    value = size - len(HEAD) - 8
    rest = value - 127
    length = bytes((0x7F, *(rest >> shift & 127 | 0x80 for shift in (0, 7, 14)), 0))
    return HEAD + b"\0\x01x" + length + b"y" * value


@pytest.mark.parametrize(
    "first", [b"INVALID CONNECTION PREFACE\r\n\r\n", b"USER a b c\r\n", b"GET / SPDY/3\r\n\r\n"]
)
async def test_hx_01_what_is_not_http_is_closed_without_a_byte(first: bytes) -> None:
    async with serving(Echo()) as rig:
        line = rig.connect()
        assert (await line.ask(first), line.wire.is_closed) == (b"", True)


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (b"GET / HTTP/2.0\r\nhost: a\r\n\r\n", 505),
        (b"GET / HTTP/1.2\r\nhost: a\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 505),
        (b"GET / HTTP/x\r\nhost: a\r\n\r\n", 400),
    ],
)
async def test_hx_01_hx_04_what_names_http_is_answered(first: bytes, status: int) -> None:
    async with serving(Echo()) as rig:
        line = rig.connect()
        (got,) = answers(await line.ask(first))
        assert (got.status, line.wire.is_closed) == (status, True)


async def test_hx_02_larger_frames_than_the_default_are_a_frame_size_error() -> None:
    """The size that h2spec sends, whatever the settings say; they say the default."""
    async with serving(Echo()) as rig:
        line = rig.connect()
        told = await line.ask(PREFACE + frame(4, 0, 0, b""))
        (settings,) = [payload for kind, _, payload in _frames(told) if kind == 4 and payload]
        pairs = [settings[at : at + 6] for at in range(0, len(settings), 6)]
        sizes = [int.from_bytes(pair[2:], "big") for pair in pairs if pair[1] == MAX_FRAME_SIZE]
        assert sizes in ([FRAME_BYTES_MAX], [])
        got = await line.ask(frame(1, END, 1, _head(17_576)))
        assert (_goaway(got), line.wire.is_closed) == (FRAME_SIZE_ERROR, True)


@pytest.mark.parametrize("header_bytes_max", [1000, 2**15])
async def test_hx_03_a_head_that_fills_its_frame_is_legal(header_bytes_max: int) -> None:
    """One above the limit of headers is answered on its stream, and the connection goes on."""
    async with serving(Echo(), header_bytes_max=header_bytes_max) as rig:
        line = rig.connect()
        await line.ask(PREFACE + frame(4, 0, 0, b""))
        for number, size in ((1, FRAME_BYTES_MAX), (3, FRAME_BYTES_MAX - 1), (5, 2000)):
            got = await line.ask(frame(1, END, number, _head(size)))
            assert _statuses(got) == [b"\x88"] and _goaway(got) is None
        assert not line.wire.is_closed


@pytest.mark.parametrize("blank", [b"  ", b"   ", b" \t"])
@pytest.mark.parametrize("at", [1, 2])
async def test_hx_04_one_blank_is_between_the_parts(blank: bytes, at: int) -> None:
    parts = [b"GET", b"/a", b"HTTP/1.1"]
    line_of = b" ".join(parts[:at]) + blank + b" ".join(parts[at:])
    async with serving(Echo()) as rig:
        line = rig.connect()
        (got,) = answers(await line.ask(line_of + b"\r\nhost: a\r\n\r\n"))
        assert got.status == 400


@pytest.mark.parametrize(
    "name", [b"Content-Length", b"Transfer-Encoding", b"Host", b"X-Other", b"content-length"]
)
async def test_hx_04_trailers_change_no_request(name: bytes) -> None:
    """They are dropped, or the body is broken; the request behind it stays the same."""
    trailer = name + b": 3\r\n"
    wire = b"POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n"
    echo = Echo()
    async with serving(echo) as rig:
        line = rig.connect()
        await line.ask(wire + trailer + b"\r\n" + GET)
        whole = [("POST", b"/a", b"hi"), ("GET", b"/a", b"")]
        if name in (b"Host", b"X-Other"):
            assert (echo.asked, echo.gone) == (whole, [])
        else:
            assert (echo.asked, echo.gone) == ([], [b"/a"]) and line.wire.is_closed


LENGTHS = [
    b"\xfe" + (125).to_bytes(2, "big"),
    b"\xfe" + bytes(2),
    b"\xff" + (125).to_bytes(8, "big"),
    b"\xff" + (65_535).to_bytes(8, "big"),
    b"\xff" + (2**63).to_bytes(8, "big"),
    b"\xff" + (2**63 + 5).to_bytes(8, "big"),
]


@pytest.mark.parametrize(("length", "first"), [*product(LENGTHS, (b"\x82", b"\x89", b"\x80"))])
def test_hx_05_a_length_in_another_form_than_its_shortest_is_1002(
    length: bytes, first: bytes
) -> None:
    server = upgraded_server()
    assert server.feed(first + length + bytes(4)) == []
    assert isinstance(server.error, WireError)
    assert close_code(server.close_frame(1000)) == 1002


@pytest.mark.parametrize(
    ("version", "status"), [("12", 426), ("14", 426), ("8", 426), ("x", 426), (None, 400)]
)
def test_hx_06_other_versions_are_told_which_it_is(version: str | None, status: int) -> None:
    framing = ServerFraming(2**16, BrowserPolicy())
    framing.feed(request_of(sec_websocket_version=version))
    head = framing.take_output().partition(b"\r\n\r\n")[0].decode().split("\r\n")
    assert head[0].startswith(f"HTTP/1.1 {status} ")
    fields = dict(each.lower().split(": ", 1) for each in head[1:])
    if status == 426:
        assert fields["sec-websocket-version"] == "13"
        assert fields["upgrade"] == "websocket"
        assert "upgrade" in fields["connection"].split(", ")


def test_hx_07_many_pings_at_once_leave_the_connection_open() -> None:
    server = upgraded_server()
    pings = [b"%d" % each for each in range(500)]
    server.feed(b"".join(from_client(Opcode.PING, each) for each in pings))
    assert server.error is None and not server.closed
    pong = Frame(Opcode.PONG, pings[-1]).serialize(mask=False)
    assert server.take_output().endswith(pong)
    assert server.feed(from_client(Opcode.BINARY, b"after")) == [b"after"]
