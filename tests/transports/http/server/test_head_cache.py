"""Heads that come again: what is kept of them changes no answer, and has a limit."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import anyio
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millpond.transports.http.asgi import (
    DirectConnection,
    EncodedResponse,
    Receive,
    Scope,
    Send,
    server_extension,
)
from millpond.transports.http.request import request_head, split_path
from millpond.transports.http.server.head_cache import HEAD_BYTES_MAX, HEADS_MAX, HeadCache
from millpond.transports.http.server.heads import request_scope
from tests.transports.http.server.rig import (
    Echo,
    Line,
    RecordingWire,
    Rig,
    answers,
    respond,
    serving,
)
from tests.transports.http.server.test_http1_requests import (
    BAD,
    CUT,
    H2C,
    LAST,
    OLD,
    PIECES,
    SOCKET,
)
from tests.transports.http.server.test_http1_responses import get, post

GET = get(b"/a?b=c")
POST = post(b"/p", b"hello")
INNER = b"content-length: 5\r\n\r\n"
REQUESTS = (
    GET,
    POST,
    post(b"/p", b"olleh"),
    post(b"/now", b"abc"),
    post(b"/later", b"abc"),
    post(b"/later", b""),
    post(b"/p", POST),
    post(b"/p", b"\r\n\r\n" + GET),
    post(b"/p", b"hello", b"expect: 100-continue"),
    post(b"/p", b"hello", b"connection: keep-alive"),
    get(b"/a", method=b"HEAD"),
    b"\r\n" + POST,
    POST + b"\r\n",
    GET + b"\r\n\r\n",
    post(b"/p", b"hello").replace(b"HTTP/1.1", b"HTTP/1.0"),
    POST.replace(INNER, b"content-length: 5\n\n"),
    POST.replace(INNER, b"content-length: 5\n\r\n"),
    post(b"/p", b"\r\n\r\nx").replace(b"\r\n\r\n", b"\n\n", 1) + b"\r\n\r\n",
    POST[:-1],
    *(PIECES, H2C, SOCKET, CUT, OLD, LAST, BAD),
)


class Said(msgspec.Struct, frozen=True):
    """A request on one of the lines, in pieces; `waits`: each is heard before the next is said."""

    line: int
    data: bytes
    cuts: Sequence[float]
    waits: bool

    def pieces(self) -> list[bytes]:
        at = sorted(int(each * len(self.data)) for each in self.cuts)
        found = [self.data[a:b] for a, b in zip([0, *at], [*at, None], strict=True)]
        return [each for each in found if each]


class Forgetful(HeadCache):
    """Keeps nothing."""

    __slots__ = ()

    def keep(self, head: bytes, length: int, scope: Scope) -> None:
        pass


class Prompted(Echo):
    """Answers as `Echo` does; some requests without a task, at once or later."""

    def __init__(self) -> None:
        super().__init__()
        self._later: list[tuple[DirectConnection, EncodedResponse]] = []

    def prompt(self, connection: DirectConnection) -> _PromptedConnection:
        return _PromptedConnection(self, connection)

    def begin(self, connection: DirectConnection, scope: Scope, body: bytes) -> bool:
        match scope["raw_path"]:
            case b"/now":
                connection.respond(self._answer(scope, body))
            case b"/later":
                self._later.append((connection, self._answer(scope, body)))
            case _:
                return False
        return True

    def answer_all(self) -> bool:
        """Whom it kept waiting. False: nobody."""
        later, self._later = self._later, []
        for connection, answer in later:
            connection.respond(answer)
        return bool(later)

    def _answer(self, scope: Scope, body: bytes) -> EncodedResponse:
        method, target = scope["method"], scope["raw_path"]
        self.asked.append((method, target, body))
        answer = b"%b %b %b" % (method.encode(), target, body)
        return EncodedResponse(200, b"content-length: %d\r\n" % len(answer), answer)


class _PromptedConnection:
    """Implements `asgi.DirectRequests`."""

    def __init__(self, application: Prompted, connection: DirectConnection) -> None:
        self._application = application
        self._connection = connection

    def begin(self, scope: Scope, body: bytes, now: float) -> bool:
        return self._application.begin(self._connection, scope, body)


def _pieces(said: Sequence[Said]) -> list[Said]:
    """One said piece each; those in a row that wait for nothing are one."""
    found: list[Said] = []
    for each in said:
        for piece in each.pieces():
            last = found[-1] if found else None
            if last is not None and not last.waits and last.line == each.line and not each.cuts:
                found[-1] = Said(each.line, last.data + piece, (), each.waits)
            else:
                found.append(Said(each.line, piece, (), each.waits))
    return found


async def _read(line: Line, application: Prompted) -> bytes:
    received = await line.read()
    while application.answer_all():
        received += await line.read()
    return received


async def _converse(rig: Rig, application: Prompted, said: Sequence[Said]) -> list[bytes]:
    lines = [rig.connect() for _ in range(2)]
    received = [b"", b""]
    for each in _pieces(said):
        lines[each.line].say(each.data)
        if each.waits:
            received[each.line] += await _read(lines[each.line], application)
    for number, line in enumerate(lines):
        received[number] += await _read(line, application)
        received[number] += b"closed" if line.wire.is_closed else b"open"
    return received


async def _compare(said: Sequence[Said]) -> None:
    plain, quick = Prompted(), Prompted()
    async with serving(plain) as rig:
        rig.server.head_cache = Forgetful()
        expected = await _converse(rig, plain, said)
    async with serving(quick, quick.prompt) as rig:
        assert await _converse(rig, quick, said) == expected
    assert sorted(quick.asked) == sorted(plain.asked)


SAID = st.builds(
    Said,
    line=st.integers(0, 1),
    data=st.sampled_from(REQUESTS),
    cuts=st.lists(st.floats(0, 1), max_size=2),
    waits=st.booleans(),
)
AGAIN = st.tuples(SAID, st.integers(1, 4)).map(lambda each: [each[0]] * each[1])


@settings(max_examples=50, deadline=None)
@given(st.lists(AGAIN, max_size=6).map(lambda runs: [each for run in runs for each in run]))
@example([Said(0, each, (), True) for each in REQUESTS[:14] for _ in range(3)])
@example([Said(n % 2, each, (), False) for each in REQUESTS[:14] for n in range(6)])
def test_any_requests_are_answered_as_if_nothing_were_kept(said: list[Said]) -> None:
    """The same after any input, on any connection, in any pieces."""
    anyio.run(_compare, said)


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_is_answered_alike_each_time(request_: bytes) -> None:
    anyio.run(_compare, [Said(0, request_, (), True)] * 4 + [Said(1, request_, (), True)] * 2)


async def test_each_connection_is_told_for_itself() -> None:
    """The client's identity is no part of a head."""
    asked: list[tuple[object, bytes | None]] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        told = server_extension(scope)
        assert told is not None
        asked.append((scope["client"], told.certificate))
        await respond(send, 200, b"")

    async with serving(application) as rig:
        lines = [Line(rig.server, host) for host in ("10.0.0.1", "10.0.0.2")]
        rig.lines += lines
        lines[1].wire.peer_certificate_hash = b"shown"
        for line in lines * 3:
            await line.ask(GET)
    first, second = (("10.0.0.1", 5000), None), (("10.0.0.2", 5000), b"shown")
    assert asked == [first, second] * 3


async def test_a_repeated_head_is_not_served_behind_the_last_request() -> None:
    async with serving(Echo()) as rig:
        line, other = rig.connect(), rig.connect()
        for _ in range(3):
            await line.ask(GET)
        await line.ask(LAST)
        assert await line.ask(GET) == b""
        for _ in range(3):
            await other.ask(GET)
        rig.server.start_drain()
        assert other.wire.is_closed


async def test_who_is_in_the_middle_of_something_says_no_head() -> None:
    """A body may look like one."""
    async with serving(Echo()) as rig:
        line = rig.connect()
        for _ in range(3):
            await line.ask(GET)
        line.say(post(b"/p", b"", length=len(GET)))
        (answer,) = answers(await line.ask(GET))
        assert answer.body == b"POST /p " + GET


@pytest.mark.parametrize("kind", range(5))
def test_heads_that_are_kept_have_a_limit(kind: int) -> None:
    """With all that is found out from them; whoever makes them up may be nobody that we know."""
    repeats, wire, count = HeadCache(), RecordingWire(), 8
    tracemalloc.start()
    try:
        for number in range(count):
            head = _largest(b"/a?%d" % number)[kind]
            scope = _scope(wire, head)
            told = server_extension(scope)
            assert told is not None
            told.cache["route"] = request_head(scope, split_path(scope))
            repeats.keep(head, 0, scope)
        del head, scope, told
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / count * HEADS_MAX < 16 * 2**20


def test_the_head_that_was_kept_first_makes_room() -> None:
    repeats, wire = HeadCache(), RecordingWire()
    heads = [get(b"/%d" % number) for number in range(HEADS_MAX + 1)]
    for head in heads:
        repeats.keep(head, 0, _scope(wire, head))
    assert [repeats.find(each) is None for each in heads] == [True] + [False] * HEADS_MAX
    assert repeats.find(heads[-1] + b"x") is None


def _largest(target: bytes) -> tuple[bytes, ...]:
    """Heads as large as are kept, of as many parts as can be."""
    room = HEAD_BYTES_MAX - len(get(target))
    lines = [b"%x:%x" % (number, number) for number in range(room // 9)]
    query, path = b"&a" * (room // 2), b"/a" * (room // 2)
    few = [b"%x:%b" % (number, b"y" * 60) for number in range(room // 70)]
    long = get(target + b"x" * room)
    return get(target + query), get(path + target), get(target, *lines), long, get(target, *few)


def _scope(wire: RecordingWire, head: bytes) -> Scope:
    first, *lines = head.split(b"\r\n")[:-2]
    headers = [(name, value.strip()) for name, _, value in (each.partition(b":") for each in lines)]
    return request_scope(wire, "1.1", b"GET", first.split(b" ")[1], headers, False)
