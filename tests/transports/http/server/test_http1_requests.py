"""HTTP/1.1 as it is read: any split, framing that is in doubt, limits of heads and chunks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.transports.http.asgi import Receive, Scope, Send
from millpond.transports.http.server.http1 import InputBuffer
from tests.transports.http.server.rig import Echo, answers, body_of, respond, serving

HOST = b"host: a\r\n"
NEXT = b"GET /next HTTP/1.1\r\nhost: a\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
UPGRADE = b"connection: upgrade\r\nupgrade: "

GET = b"GET /a?b=c HTTP/1.1\r\nHost: a\r\nx:\r\ny: z \t\r\n\r\n"
POST = b"POST /p HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello"
PIECES = (
    b"POST /c HTTP/1.1\r\nhost: a\r\nTransfer-Encoding: Chunked\r\n\r\n"
    b'3;a=b;c="d"\r\nhel\r\n2\r\nlo\r\n0\r\nx: y\r\n\r\n'
)
H2C = b"GET /u HTTP/1.1\r\nhost: a\r\n" + UPGRADE + b"h2c\r\nhttp2-settings: AAMAAABk\r\n\r\n"
SOCKET = b"POST /w HTTP/1.1\r\nhost: a\r\n" + UPGRADE + b"websocket\r\ncontent-length: 2\r\n\r\nhi"
CUT = (
    b"POST /x HTTP/1.1\r\nhost: a\r\n"
    + UPGRADE
    + b"other\r\n"
    + CHUNKED
    + b"\r\n1\r\n!\r\n0\r\n\r\n"
)
OLD = b"GET /o HTTP/1.0\r\nconnection: Keep-Alive\r\n\r\n"
LAST = b"GET /l HTTP/1.1\r\nhost: a\r\nconnection: x, Close\r\n\r\n"
ELSE = b"GET http://b/e?f HTTP/1.1\r\nhost: a\r\n\r\n"
BAD = b"GET /b HTTP/1.1\r\nhost: a\r\nx : y\r\n\r\n"
ASKED = {
    GET: ("GET", b"/a?b=c", b""),
    POST: ("POST", b"/p", b"hello"),
    PIECES: ("POST", b"/c", b"hello"),
    H2C: ("GET", b"/u", b""),
    SOCKET: ("POST", b"/w", b"hi"),
    CUT: ("POST", b"/x", b"!"),
    OLD: ("GET", b"/o", b""),
    LAST: ("GET", b"/l", b""),
    ELSE: ("GET", b"/e?f", b""),
}
ENDS = (LAST, BAD)
STEPS = (1, 2**16)


@settings(max_examples=40, deadline=None)
@given(requests=st.lists(st.sampled_from([*ASKED, BAD]), min_size=1, max_size=6), data=st.data())
def test_any_split_gives_the_same_answers(requests: list[bytes], data: st.DataObject) -> None:
    """Also behind requests that would rather speak something else; nothing behind the last one."""
    wire = b"".join(requests)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=40)))
    ending = next((at for at, each in enumerate(requests) if each in ENDS), len(requests))
    asked = [ASKED[each] for each in requests[: ending + 1] if each is not BAD]
    is_bad = ending < len(requests) and requests[ending] is BAD

    async def run() -> None:
        echo = Echo()
        async with serving(echo) as rig:
            line, received = rig.connect(), b""
            for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
                if start < end:
                    received += await line.ask(wire[start:end])
            assert echo.asked == asked
            got = answers(received)
            said = [b"%b %b %b" % (how.encode(), what, body) for how, what, body in asked]
            assert [each.body for each in got][: len(said)] == said
            assert [each.status for each in got] == [200] * len(said) + [400] * is_bad
            assert line.wire.is_closed == (ending < len(requests))

    anyio.run(run)


@pytest.mark.parametrize(
    ("head", "body", "status"),
    [
        (b"content-length: 5\r\ncontent-length: 6\r\n", b"hello", 400),
        (b"content-length: 5\r\ncontent-length: 5\r\n", b"hello", 400),
        (b"content-length: 5, 5\r\n", b"hello", 400),
        (b"content-length: +5\r\n", b"hello", 400),
        (b"content-length: -5\r\n", b"hello", 400),
        (b"content-length: 5 5\r\n", b"hello", 400),
        (b"content-length:\x0b5\r\n", b"hello", 400),
        (b"content-length:\r\n", b"hello", 400),
        (b"content-length: 99999999999999999999\r\n", b"hello", 400),
        (b"content-length: 5\r\n" + CHUNKED, b"0\r\n\r\n", 400),
        (CHUNKED + b"content-length: 5\r\n", b"0\r\n\r\n", 400),
        (CHUNKED + b"transfer-encoding: identity\r\n", b"0\r\n\r\n", 400),
        (CHUNKED + CHUNKED, b"0\r\n\r\n", 400),
        (b"transfer-encoding: identity\r\n" + CHUNKED, b"0\r\n\r\n", 501),
        (b"transfer-encoding: xchunked\r\n", b"0\r\n\r\n", 501),
        (b"transfer-encoding: chunkedx\r\n", b"0\r\n\r\n", 501),
        (b"transfer-encoding: identity\r\n", b"", 501),
        (b"transfer-encoding: gzip, chunked\r\n", b"0\r\n\r\n", 501),
        (b"transfer-encoding: chunked;q=1\r\n", b"0\r\n\r\n", 501),
        (b"transfer-encoding:\r\n chunked\r\n", b"0\r\n\r\n", 400),
        (b"transfer-encoding : chunked\r\n", b"0\r\n\r\n", 400),
        (b"transfer-encoding\t: chunked\r\n", b"0\r\n\r\n", 400),
        (b"x: a\r\n folded\r\n", b"", 400),
        (b"x: a\ny: b\r\n", b"", 400),
        (b"x: a\rb\r\n", b"", 400),
        (b"x: a\0b\r\n", b"", 400),
        (b"\xff: a\r\n", b"", 400),
        (b"no colon\r\n", b"", 400),
        (HOST, b"", 400),
        (UPGRADE + b"h2c\r\ncontent-length: 5\r\n" + CHUNKED, b"0\r\n\r\n", 400),
        (UPGRADE + b"h2c\r\ntransfer-encoding: gzip\r\n", b"0\r\n\r\n", 501),
        (UPGRADE + b"h2c\r\ncontent-length: 5\r\ncontent-length: 6\r\n", b"hello", 400),
        (UPGRADE + b"h2c\r\n" + HOST, b"", 400),
    ],
)
async def test_who_leaves_the_end_of_a_request_in_doubt_is_not_served(
    head: bytes, body: bytes, status: int
) -> None:
    """RFC 9112, 5, 6: refused, and nothing behind it is taken for a request."""
    echo = Echo()
    wire = b"POST /a HTTP/1.1\r\n" + HOST + head + b"\r\n" + body + NEXT
    async with serving(echo) as rig:
        for step in STEPS:
            line = rig.connect()
            for at in range(0, len(wire), step):
                line.say(wire[at : at + step])
            (answer,) = answers(await line.read())
            assert (answer.status, answer.headers["connection"]) == (status, "close")
            assert line.wire.is_closed and echo.asked == echo.gone == []


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /a HTTP/1.1\nhost: a\n\n", 400),
        (b"GET /a HTTP/1.1\r\n\r\n", 400),
        (b"GET ftp://b/a HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET http:///a HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET http://u@b/a HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nhost: a b\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nhost: a/b\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nhost: a, b\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nhost: a:b\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nhost: http://a\r\n\r\n", 400),
        (b'GET /a HTTP/1.1\r\nhost: "a"\r\n\r\n', 400),
        (b"CONNECT b:80 HTTP/1.1\r\nhost: a\r\n\r\n", 405),
        (b"GET /a HTTP/2.0\r\nhost: a\r\n\r\n", 505),
        (b"GET /a\r\n\r\n", 505),
        (b"get /a HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET  /a HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET /a  HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET  /a\r\n\r\n", 400),
        (b"GET /a HTTP/1.1 \r\nhost: a\r\n\r\n", 400),
        (b" GET /a HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET\t/a HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET /a HTTP/1.2\r\nhost: a\r\n\r\n", 505),
        (b"GET /a HTTP/1.9\r\nhost: a\r\n\r\n", 505),
        (b"GET /a HTTP/1.12\r\nhost: a\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", 400),
        (b"POST /a HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    ],
)
async def test_what_is_no_request_is_answered_once_and_closed(
    request_line: bytes, status: int
) -> None:
    echo, wire = Echo(), request_line + NEXT
    async with serving(echo) as rig:
        for step in range(1, len(wire) + 1):
            line = rig.connect()
            for at in range(0, len(wire), step):
                line.say(wire[at : at + step])
            (answer,) = answers(await line.read())
            assert answer.status == status and line.wire.is_closed and echo.asked == [], step


@pytest.mark.parametrize(
    "first",
    [
        b"INVALID CONNECTION PREFACE\r\n\r\n",
        b"USER a b c\r\n",
        b"GET /a SPDY/3\r\n\r\n",
        b"GET /a HTTPS/1.1\r\n",
    ],
)
async def test_who_does_not_begin_with_http_is_closed_without_a_byte(first: bytes) -> None:
    """HX-01: an answer in HTTP/1.1 would be a broken frame to a client of HTTP/2."""
    echo = Echo()
    async with serving(echo) as rig:
        for step in range(1, len(first) + 1):
            line = rig.connect()
            for at in range(0, len(first), step):
                line.say(first[at : at + step])
            assert await line.read() == b"" and line.wire.is_closed, step
            # Behind a request of HTTP it is a bad request.
            line = rig.connect()
            line.say(NEXT)
            for at in range(0, len(first), step):
                line.say(first[at : at + step])
            got = answers(await line.read())
            assert [each.status for each in got] == [200, 400] and line.wire.is_closed


@pytest.mark.parametrize("before", [b"", b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n"])
async def test_a_line_of_another_protocol_that_does_not_end(before: bytes) -> None:
    """It may name HTTP yet. Its end, or too much of it, is a bad request; bytes that are no text
    are one at once."""
    async with serving(Echo()) as rig:
        line = rig.connect()
        answered = len(answers(await line.ask(before + b"INVALID CONN")))
        assert not line.wire.is_closed and answered == bool(before)
        line.session.eof()
        (answer,) = answers(await line.read())
        assert answer.status == 400 and line.wire.is_closed
        line = rig.connect()
        assert len(answers(await line.ask(before + b"INVALID "))) == bool(before)
        (answer,) = answers(await line.ask(b"x" * 20_000))
        assert answer.status == 400 and line.wire.is_closed
        line = rig.connect()
        assert answers(await line.ask(before + b"\x16\x03\x01"))[-1].status == 400
        assert line.wire.is_closed


BEFORE = {
    "nothing": b"",
    "no body": b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n",
    "empty lines": b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n\r\n\r\n\r\n",
    "a body": b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 14\r\n\r\n\r\n\r\nGET  /x H\n",
    "chunks": b"POST /a HTTP/1.1\r\nhost: a\r\n"
    + CHUNKED
    + b"\r\n8\r\n\r\n\r\n0\r\n \r\nc\r\nA  B  C  D \n\r\n0\r\nx: y  z\r\n\r\n",
    "an upgrade": SOCKET,
    "an upgrade with chunks": CUT,
}
LINES = {
    b"GET /b HTTP/1.1\r\n": 200,
    b"GET  /b HTTP/1.1\r\n": 400,
    b"GET /b  HTTP/1.1\r\n": 400,
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("request_line", LINES, ids=["one blank", "two before", "two behind"])
async def test_one_blank_is_between_the_parts_of_a_request_line(
    before: bytes, request_line: bytes
) -> None:
    """HX-04: of any request, behind any other, in any split; other lines may have more blanks."""
    status, data = LINES[request_line], before + request_line + b"host: a\r\nx:  y  z\r\n\r\n"
    expected = ([200] if before else []) + [status]
    async with serving(Echo()) as rig:
        for step in range(1, len(data) + 1):
            line = rig.connect()
            for at in range(0, len(data), step):
                line.say(data[at : at + step])
            got = answers(await line.read())
            assert [each.status for each in got] == expected, step
            assert line.wire.is_closed == (status == 400)


@contextmanager
def counted_pieces() -> Iterator[list[int]]:
    """The sizes of the pieces that connections take of their input."""
    pieces: list[int] = []

    def trace(frame: FrameType, event: str, arg: object) -> None:
        if event == "return" and frame.f_code is InputBuffer.take.__code__:
            pieces.append(len(arg) if isinstance(arg, bytes) else 0)

    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        yield pieces
    finally:
        sys.setprofile(before)


async def test_a_refusal_waits_for_the_answers_before_it() -> None:
    async with serving(Echo()) as rig:
        line = rig.connect()
        one, two, refused = answers(await line.ask(GET + POST + BAD))
        assert (one.body, two.body, refused.status) == (b"GET /a?b=c ", b"POST /p hello", 400)
        assert "connection" not in two.headers and refused.headers["connection"] == "close"
        assert line.wire.is_closed


@pytest.mark.parametrize(
    "broken",
    [
        b"zz\r\n",
        b"-5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"5 \r\nhello\r\n",
        b"5\nhello\r\n",
        b"5;a\nhello\r\n",
        b"5\r\nhelloworld\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"fffffffffffffffff\r\nhello\r\n",
        b"5\r\nhello\r\n0\r\nbad trailer\r\n\r\n",
        b"5\r\nhello\r\n0\r\ncontent-length: 5\r\n\r\n",
        b"5\r\nhello\r\n0\r\nx: y\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"5\r\nhello\r\n0\r\nTransfer-Encoding: gzip\r\n\r\n",
    ],
)
async def test_a_body_whose_chunks_are_broken_has_no_end(broken: bytes) -> None:
    """The application sees its client leave; what it says then is heard, and nothing behind it."""

    async def say_so(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] == "http.request":
            assert message["more_body"]
        await respond(send, 400, b"broken")

    wire = b"POST /a HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n" + broken + NEXT
    async with serving(say_so) as rig:
        for step in STEPS:
            line = rig.connect()
            for at in range(0, len(wire), step):
                line.say(wire[at : at + step])
            (answer,) = answers(await line.read())
            assert (answer.body, answer.headers["connection"]) == (b"broken", "close")
            assert line.wire.is_closed


@pytest.mark.parametrize(
    "trailer",
    [
        b"x: y",
        b"Host: b",
        b"host: b\r\nhost: c",
        b"connection: close",
        b"Connection: upgrade\r\nupgrade: h2c",
        b"upgrade: websocket",
        b"expect: 100-continue",
        b"authorization: Bearer x",
    ],
)
async def test_a_trailer_is_dropped(trailer: bytes) -> None:
    """HX-04: of all fields but those that would tell another length."""
    heads: list[list[tuple[bytes, bytes]]] = []

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        body = await body_of(receive)
        heads.append(scope["headers"])
        await respond(send, 200, b"%b %b" % (scope["raw_path"], body))

    wire = b"POST /a HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n5\r\nhello\r\n0\r\n"
    wire += trailer + b"\r\n\r\n" + NEXT
    async with serving(note) as rig:
        for step in range(1, len(wire) + 1):
            line = rig.connect()
            for at in range(0, len(wire), step):
                line.say(wire[at : at + step])
            one, two = answers(await line.read())
            assert (one.status, one.body, two.status, two.body) == (
                200,
                b"/a hello",
                200,
                b"/next ",
            )
            assert "connection" not in two.headers and not line.wire.is_closed
            host = (b"host", b"a")
            assert heads == [[host, (b"transfer-encoding", b"chunked")], [host]], step
            heads.clear()
            line.end()


@pytest.mark.parametrize(
    ("begun", "more", "status"),
    [
        (b"GET /", b"x" * 4096, 414),
        (b"GET / HTTP/1.1\r\n" + HOST + b"x: ", b"y" * 4096, 431),
        (b"GET / HTTP/1.1\r\n" + HOST, b"x: y\r\n" * 500, 431),
    ],
    ids=["url", "header", "headers"],
)
async def test_a_head_without_an_end_is_refused_while_it_comes(
    begun: bytes, more: bytes, status: int
) -> None:
    async with serving(Echo()) as rig:
        line = rig.connect()
        line.say(begun)
        said = 0
        while not line.wire.is_closed:
            line.say(more)
            said += len(more)
            assert said < 2**18
        (answer,) = answers(await line.read())
        assert answer.status == status


async def test_one_header_too_many_is_refused() -> None:
    async with serving(Echo(), headers_max=10) as rig:
        for count, status in ((9, 200), (10, 431)):
            line = rig.connect()
            head = b"GET / HTTP/1.1\r\n" + HOST + b"x: y\r\n" * count + b"\r\n"
            (answer,) = answers(await line.ask(head))
            assert answer.status == status


@pytest.mark.parametrize(
    "flood", [b"1;" + b"x" * 4000 + b"\r\ny\r\n", b"0\r\n" + b"x: y\r\n" * 800], ids=["ext", "end"]
)
async def test_chunks_that_are_all_framing_end_the_request(flood: bytes) -> None:
    echo = Echo()
    async with serving(echo) as rig:
        line = rig.connect()
        line.say(b"POST /a HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n")
        said = 0
        while not line.wire.is_closed:
            line.say(flood)
            said += len(flood)
            assert said < 2**18
            await line.read()
        assert echo.gone == [b"/a"] and not echo.asked


async def test_bytes_that_look_like_ends_are_read_in_few_pieces() -> None:
    """A chunk full of line ends, and empty lines before a request, are no work for each of them."""
    echo, size = Echo(), 2**18
    async with serving(echo) as rig:
        line = rig.connect()
        body = b"%x\r\n" % size + b"\r\n" * (size // 2) + b"\r\n0\r\n\r\n"
        with counted_pieces() as pieces:
            line.say(b"POST /a HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n" + body)
            line.say(b"\r\n" * size + NEXT)
        one, two = answers(await line.read())
        assert one.body == b"POST /a " + b"\r\n" * (size // 2) and two.body == b"GET /next "
        assert len(pieces) < 20


async def test_small_chunks_are_taken_and_kept_in_few_pieces() -> None:
    """One byte a chunk, as who flushes each of them does."""
    echo = Echo()
    async with serving(echo) as rig:
        line = rig.connect()
        line.say(b"POST /a HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n")
        for _ in range(20):
            line.say(b"1\r\ny\r\n" * 5000)
        line.say(b"0\r\n\r\n")
        (answer,) = answers(await line.read())
        assert answer.body == b"POST /a " + b"y" * 100_000
