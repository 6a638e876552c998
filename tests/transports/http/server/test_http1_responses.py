"""HTTP/1.1 as it is answered: order, ends of connections, framing of answers, backpressure."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from millpond.transports.http.asgi import Headers, Receive, Scope, Send
from tests.transports.http.server.rig import (
    Echo,
    ParsedResponse,
    answers,
    body_of,
    respond,
    serving,
)

HOST = b"host: [::1]\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"


def get(path: bytes, *headers: bytes, version: bytes = b"1.1", method: bytes = b"GET") -> bytes:
    lines = b"".join(each + b"\r\n" for each in headers)
    return b"%b %b HTTP/%b\r\n%b%b\r\n" % (method, path, version, HOST, lines)


def post(path: bytes, body: bytes, *headers: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return get(path, b"content-length: %d" % size, *headers, method=b"POST") + body


class Gated:
    """Answers like `Echo` once it is let; keeps the order in which requests began."""

    def __init__(self) -> None:
        self.began: list[bytes] = []
        self.left: list[bytes] = []
        self._gates: dict[bytes, list[anyio.Event]] = {}

    def open(self, path: bytes) -> None:
        """Let go on who waits there."""
        for gate in self._gates.pop(path):
            gate.set()

    def open_all(self) -> None:
        for path in tuple(self._gates):
            self.open(path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["raw_path"]
        self.began.append(path)
        gate = anyio.Event()
        self._gates.setdefault(path, []).append(gate)
        body = await body_of(receive)
        if body is None:
            self.left.append(path)
            return
        await gate.wait()
        await respond(send, 200, path + b" " + body)


def sending(*pieces: bytes, status: int = 200, length: int | None = None, ends: bool = True):  # type: ignore[no-untyped-def]
    """An application that answers in pieces."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await body_of(receive)
        headers: Headers = []
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if ends:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return application


async def test_requests_ahead_are_answered_in_their_order_and_one_at_a_time() -> None:
    gated = Gated()
    paths = [b"/%d" % number for number in range(40)]
    async with serving(gated) as rig:
        line = rig.connect()
        line.say(b"".join(map(get, paths)))
        await line.read()
        assert gated.began == paths[:1]
        received = b""
        for number, path in enumerate(paths):
            assert gated.began == paths[: number + 1]
            gated.open(path)
            received += await line.read()
        assert [each.body for each in answers(received)] == [path + b" " for path in paths]


async def test_who_asks_far_ahead_is_not_read_on_and_not_blamed_for_it() -> None:
    """Half a head lies there for longer than a head may take: it is we who do not read."""
    gated = Gated()
    paths = [b"/%d" % number for number in range(150)]
    async with serving(gated, head_s=5, idle_s=100) as rig:
        line = rig.connect()
        line.say(b"".join(get(path, b"x: " + b"y" * 100) for path in paths))
        await line.read()
        assert line.wire.is_paused
        assert len(line.session._protocol._queue) < 60
        await rig.pass_s(60, step_s=5)
        received = b""
        for path in paths:
            gated.open(path)
            received += await line.read()
        assert not line.wire.is_paused
        assert [each.body for each in answers(received)] == [path + b" " for path in paths]


async def test_who_does_not_read_its_answers_is_not_read_on() -> None:
    echo = Echo()
    async with serving(echo) as rig:
        line = rig.connect()
        await line.ask(get(b"/first"))
        line.congest()
        for _ in range(10):
            line.say(get(b"/more") * 50)
            await line.read()
        assert line.wire.is_paused and len(echo.asked) == 1
        line.relieve()
        while line.wire.is_paused:
            await line.read()
        assert len(echo.asked) == 501


@pytest.mark.parametrize(
    ("request_", "connection", "is_closed"),
    [
        (get(b"/"), None, False),
        (get(b"/", b"connection: close"), "close", True),
        (get(b"/", b"connection: foo,  CLOSE"), "close", True),
        (get(b"/", b"connection: close", b"connection: keep-alive"), "close", True),
        (get(b"/", b"connection: keep-alive"), None, False),
        (get(b"/", version=b"1.0"), "close", True),
        (get(b"/", b"connection: keep-alive", version=b"1.0"), "keep-alive", False),
    ],
)
async def test_a_connection_goes_on_as_it_was_asked_to(
    request_: bytes, connection: str | None, is_closed: bool
) -> None:
    async with serving(Echo()) as rig:
        line = rig.connect()
        (answer,) = answers(await line.ask(request_))
        assert answer.headers.get("connection") == connection
        assert line.wire.is_closed is is_closed


async def test_an_answer_to_http_1_0_is_told_by_its_end() -> None:
    async with serving(sending(b"one", b"two")) as rig:
        line = rig.connect()
        (answer,) = answers(await line.ask(get(b"/", b"connection: keep-alive", version=b"1.0")))
        assert answer.body == b"onetwo" and answer.headers["connection"] == "close"
        assert line.wire.is_closed and not line.wire.is_aborted
    async with serving(sending(b"one", ends=False)) as rig:
        line = rig.connect()
        await line.ask(get(b"/", version=b"1.0"))
        assert line.wire.is_aborted


@pytest.mark.parametrize(
    ("method", "status", "length"),
    [(b"HEAD", 200, 6), (b"HEAD", 200, None), (b"GET", 204, None), (b"GET", 304, 6)],
)
async def test_what_has_no_body_is_sent_without_one(
    method: bytes, status: int, length: int | None
) -> None:
    application = sending(b"one", b"two", status=status, length=length)
    async with serving(application) as rig:
        line = rig.connect()
        received = await line.ask(get(b"/", method=method) * 2)
        one, two = answers(received, methods=f"{method.decode()} " * 2)
        assert one == two and one.status == status and b"one" not in received
        assert "transfer-encoding" not in one.headers


async def test_a_stream_is_chunked_and_empty_pieces_are_not_its_end() -> None:
    async with serving(sending(b"", b"one", b"", b"two")) as rig:
        line = rig.connect()
        one, two = answers(await line.ask(get(b"/") * 2))
        assert one == two and one.body == b"onetwo" and one.is_whole


@pytest.mark.parametrize(
    ("application", "body"),
    [
        (sending(b"hello", length=6), b"hello"),
        (sending(b"hello", length=5, ends=False), b"hello"),
        (sending(b"hello", b" world", length=7), b"hello w"),
        (sending(b"hello", length=3), b"hel"),
        (sending(b"hello", ends=False), b"hello"),
    ],
    ids=["short", "no-end", "long", "long-piece", "no-end-of-chunks"],
)
async def test_an_answer_that_is_not_what_its_head_says_ends_the_connection(
    application: Callable[..., object], body: bytes
) -> None:
    """And nothing of it can pass for the answer to the next request."""
    async with serving(application) as rig:  # type: ignore[arg-type]
        line = rig.connect()
        (answer,) = answers(await line.ask(get(b"/") * 2))
        assert answer.body == body and line.wire.is_closed


@pytest.mark.parametrize("when", ["at once", "behind the head", "in the body"])
async def test_a_crash_breaks_its_connection_off(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def crash(scope: Scope, receive: Receive, send: Send) -> None:
        if when != "at once":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        if when == "in the body":
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
        raise RuntimeError("boom")

    async with serving(crash) as rig:
        line, other = rig.connect(), rig.connect()
        found = answers(await line.ask(get(b"/") * 2))
        assert not [each for each in found if each.is_whole]
        assert line.wire.is_closed and not other.wire.is_closed
    assert "boom" in caplog.text and caplog.text.count("Traceback") == 1


async def test_who_expects_to_be_told_is_told_when_its_body_is_wanted() -> None:
    gated = Gated()
    expecting = post(b"/p", b"", b"expect: 100-continue", length=5)
    async with serving(gated) as rig:
        line = rig.connect()
        assert await line.ask(get(b"/first") + expecting) == b""
        gated.open(b"/first")
        _, told = answers(await line.read())
        assert told.status == 100
        gated.open(b"/p")
        (answer,) = answers(await line.ask(b"hello"))
        assert answer.body == b"/p hello" and not line.wire.is_closed


async def test_who_expects_to_be_told_and_is_not_finds_the_connection_closed() -> None:
    """It may send the body all the same, or not: nobody could tell."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 403, b"no")

    async with serving(refuse) as rig:
        line = rig.connect()
        (answer,) = answers(await line.ask(post(b"/", b"", b"expect: 100-continue", length=5)))
        assert (answer.status, answer.headers["connection"]) == (403, "close")
        assert line.wire.is_closed


async def test_an_early_answer_ends_the_connection_unless_the_body_comes() -> None:
    async def answer_first(scope: Scope, receive: Receive, send: Send) -> None:
        length = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 413, "headers": length})
        await send({"type": "http.response.body", "body": b"no", "more_body": True})
        await body_of(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer_only(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 413, b"no")

    async with serving(answer_first) as rig:
        line = rig.connect()
        (early,) = answers(await line.ask(post(b"/", b"he", length=5)))
        assert early.body == b"no"
        (answer,) = answers(await line.ask(b"llo" + get(b"/")))
        assert answer == early and not line.wire.is_closed
    async with serving(answer_only) as rig:
        line = rig.connect()
        (early,) = answers(await line.ask(post(b"/", b"he", length=5)))
        assert early.body == b"no" and line.wire.is_closed


async def test_half_a_body_and_an_end_is_a_client_that_left() -> None:
    echo = Echo()
    async with serving(echo) as rig:
        for half in (post(b"/p", b"hel", length=5), get(b"/c", CHUNKED[:-2]) + b"5\r\nhel"):
            line = rig.connect()
            await line.ask(half)
            line.session.eof()
            assert await line.read() == b"" and line.wire.is_closed
        assert echo.gone == [b"/p", b"/c"] and not echo.asked


async def test_half_a_body_and_a_break_is_a_client_that_left() -> None:
    echo = Echo()
    async with serving(echo) as rig:
        line = rig.connect()
        await line.ask(post(b"/p", b"hel", length=5))
        line.end()
        await line.read()
        assert echo.gone == [b"/p"] and not echo.asked


@pytest.mark.parametrize("count", [1, 3, 60])
async def test_who_half_closes_hears_all_that_it_asked_for(count: int) -> None:
    """Also what was still to be read, since it asked far ahead."""
    gated = Gated()
    paths = [b"/%d" % number for number in range(count)]
    async with serving(gated) as rig:
        line = rig.connect()
        line.say(b"".join(get(path, b"x: " + b"y" * 500) for path in paths))
        line.session.eof()
        received = b""
        for path in paths:
            received += await line.read()
            gated.open(path)
        received += await line.read()
        assert [each.body for each in answers(received)] == [path + b" " for path in paths]
        assert line.wire.is_closed


async def test_who_waits_for_long_is_told_of_an_end_behind_the_request() -> None:
    seen = []

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend([(await receive())["type"], (await receive())["type"]])
        await respond(send, 200, b"late")

    async with serving(wait) as rig:
        line = rig.connect()
        await line.ask(get(b"/"))
        assert not seen
        line.session.eof()
        (answer,) = answers(await line.read())
        assert seen == ["http.request", "http.disconnect"] and answer.body == b"late"


async def test_a_body_that_nobody_takes_pauses_its_connection() -> None:
    gate = anyio.Event()
    sizes: list[int] = []

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await gate.wait()
        while (message := await receive())["more_body"]:
            sizes.append(len(message["body"]))
        await respond(send, 200, b"%d" % (sum(sizes) + len(message["body"])))

    async with serving(slow, unread_bytes_max=50_000) as rig:
        line = rig.connect()
        line.say(post(b"/", b"", length=300_000))
        said = 0
        while not line.wire.is_paused:
            line.say(bytes(10_000))
            said += 10_000
        assert said <= 80_000
        gate.set()
        while said < 300_000:
            await line.read()
            assert not line.wire.is_paused
            line.say(bytes(min(20_000, 300_000 - said)))
            said += 20_000
        (answer,) = answers(await line.read())
        assert answer.body == b"300000" and max(sizes) < 100_000


async def test_a_body_that_comes_faster_than_it_is_taken_is_told_to_its_end() -> None:
    """Taking a piece lets the next one in."""
    echo = Echo()
    body = bytes(range(256)) * 2000
    async with serving(echo, unread_bytes_max=50_000) as rig:
        line = rig.connect()
        line.say(post(b"/one", body) + post(b"/two", body))
        await line.read()
    assert [each for _, _, each in echo.asked] == [body, body]


async def test_bodies_ahead_count_together() -> None:
    gated = Gated()
    paths = [b"/%d" % number for number in range(10)]
    async with serving(gated, unread_bytes_max=50_000) as rig:
        line, received = rig.connect(), b""
        for path in paths:
            line.say(post(path, bytes(20_000)))
        await line.read()
        assert line.wire.is_paused and len(line.session._protocol._queue) < 6
        for path in paths:
            gated.open(path)
            received += await line.read()
        assert len(answers(received)) == 10 and not line.wire.is_paused


@pytest.mark.parametrize("how", ["relieved", "ended"])
async def test_who_sends_waits_while_the_other_end_does_not_read(how: str) -> None:
    sent: list[int] = []
    gate = anyio.Event()

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await gate.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(3):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            sent.append(number)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with serving(stream) as rig:
        line = rig.connect()
        await line.ask(get(b"/"))
        line.congest()
        gate.set()
        received = await line.read()
        assert received and sent == []
        if how == "ended":
            line.end()
            await line.read()
            assert sent == [0, 1, 2]
            return
        line.relieve()
        (answer,) = answers(received + await line.read())
        assert answer.body == b"xxx" and sent == [0, 1, 2]


async def test_targets_are_told_as_they_came() -> None:
    seen: list[tuple[bytes, str, bytes]] = []

    async def look(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope["raw_path"], scope["path"], scope["query_string"]))
        await respond(send, 200, b"")

    targets = (
        b"/a%2Fb/%C3%A9?x=%20&y",
        b"http://b",
        b"HTTP://b/c?d?e",
        b"https://b?q",
        b"*",
        b"//x",
    )
    async with serving(look) as rig:
        line = rig.connect()
        assert len(answers(await line.ask(b"".join(map(get, targets))))) == len(targets)
    assert seen == [
        (b"/a%2Fb/%C3%A9", "/a/b/é", b"x=%20&y"),
        (b"/", "/", b""),
        (b"/c", "/c", b"d?e"),
        (b"/", "/", b"q"),
        (b"*", "*", b""),
        (b"//x", "//x", b""),
    ]


async def test_a_target_names_its_host_itself() -> None:
    """RFC 9112, 3.2.2; hosts of all kinds are told as they came."""
    seen: list[list[bytes]] = []

    async def look(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append([value for name, value in scope["headers"] if name == b"host"])
        await respond(send, 200, b"")

    hosts = (b"", b"a.b_c:80", b"127.0.0.1:7404", b"[::1]:7404", b"[fe80::1%25eth0]", b"a:", b"%41")
    async with serving(look) as rig:
        line = rig.connect()
        for host in hosts:
            (answer,) = answers(await line.ask(b"GET /a HTTP/1.1\r\nhost: %b\r\n\r\n" % host))
            assert answer.status == 200
        await line.ask(b"GET http://b:1/a HTTP/1.1\r\nhost: a\r\nx: y\r\n\r\n")
    assert seen == [*([host] for host in hosts), [b"b:1"]]


def test_answers_are_read_as_they_are_written() -> None:
    """The rig's own reading: a body by its length, by chunks, cut short."""
    head = b"HTTP/1.1 200 OK\r\n"
    assert answers(head + b"content-length: 5\r\n\r\nhel") == [
        ParsedResponse(200, {"content-length": "5"}, b"hel", is_whole=False)
    ]
    chunked = {"transfer-encoding": "chunked"}
    assert answers(head + CHUNKED + b"\r\n2\r\nhe\r\n") == [
        ParsedResponse(200, chunked, b"he", is_whole=False)
    ]
