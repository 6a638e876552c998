"""An HTTP server without sockets: wires that record, a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.lowlevel
import msgspec

from millpond.actors.runtime.supervisor import contain
from millpond.actors.runtime.timers import Timers
from millpond.transports.http.asgi import DirectHandler, Message, Receive, Scope, Send
from millpond.transports.http.server.connection import HttpConnection
from millpond.transports.http.server.interface import TrackedConnection
from millpond.transports.http.server.server import HttpServer
from millpond.transports.http.server.settings import ServerSettings
from millpond.transports.server.memory_budget import MemoryBudget

Application = Callable[[Scope, Receive, Send], Awaitable[None]]
DATE = b"Thu, 01 Jan 1970 00:00:00 GMT"


async def settle() -> None:
    """Let every task go on as far as it can. Nobody waits for anything but the test."""
    for _ in range(12):
        await anyio.lowlevel.checkpoint()


class RecordingWire:
    """A Wire whose other end is the test."""

    secure = False
    peer_certificate_hash: bytes | None = None
    failure: OSError | None = None

    def __init__(self, host: str = "10.0.0.1") -> None:
        self.host, self.peer = host, f"{host}:5000"
        self.congested = False
        self.unsent_bytes = 0
        self.written = bytearray()
        self.is_paused = self.is_closed = self.is_aborted = False

    def write(self, data: bytes) -> None:
        assert data, "a write of nothing"
        if not self.is_closed:
            self.written += data

    def soon(self, callback: Callable[[], None]) -> None:
        callback()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def close(self) -> None:
        self.is_closed = True
        self.is_paused = False

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True


class Line:
    """One connection to a server: what the test says, and what it hears."""

    def __init__(self, server: HttpServer, host: str = "10.0.0.1") -> None:
        self.wire = RecordingWire(host)
        self._is_over = False
        self.session: HttpConnection = server.new_connection()
        self.session.opened(self.wire)

    def say(self, data: bytes) -> None:
        """Say it at once, whether or not anybody wants to read."""
        if not self.wire.is_closed:
            self.session.received(data)

    async def read(self) -> bytes:
        """The responses until nothing more happens."""
        before = -1
        while before != len(self.wire.written):
            before = len(self.wire.written)
            await settle()
        output = bytes(self.wire.written)
        self.wire.written.clear()
        return output

    async def ask(self, data: bytes) -> bytes:
        self.say(data)
        return await self.read()

    def congest(self, unsent_bytes: int = 2**18) -> None:
        self.wire.congested, self.wire.unsent_bytes = True, unsent_bytes

    def relieve(self) -> None:
        self.wire.congested, self.wire.unsent_bytes = False, 0
        self.session.uncongested()

    def end(self) -> None:
        """The connection is gone."""
        self.wire.abort()
        if not self._is_over:
            self._is_over = True
            self.session.ended()


class Rig:
    """A server whose time stands still until it is moved. Implements `server.Clock`."""

    def __init__(
        self,
        application: Application,
        settings: ServerSettings,
        prompt: DirectHandler | None = None,
        memory: MemoryBudget | None = None,
        principal_key: Callable[[str], Hashable] = lambda host: None,
    ) -> None:
        self.time = 1000.0
        self.timers = Timers(lambda when: None)
        guard = partial(contain, "request/http")
        self.server = HttpServer(
            application,
            settings,
            self,
            guard,
            lambda now: DATE,
            prompt,
            memory=memory,
            principal_key=principal_key,
        )
        self.lines: list[Line] = []

    def now(self) -> float:
        return self.time

    def arm(self, owner: TrackedConnection, when: float) -> None:
        self.timers.arm(owner, when)

    def disarm(self, owner: TrackedConnection) -> None:
        self.timers.disarm(owner)

    def connect(self, host: str = "10.0.0.1") -> Line:
        line = Line(self.server, host)
        self.lines.append(line)
        return line

    async def pass_s(self, seconds: float, step_s: float = 0.5) -> None:
        """Let time pass, and whoever is woken by it do something."""
        until = self.time + seconds
        while self.time < until:
            self.time = min(until, self.time + step_s)
            while (owner := self.timers.take_due(self.time)) is not None:
                owner.wake(self.time)
            await settle()

    def assert_nothing_is_left(self) -> None:
        assert not self.server._connections
        assert not self.server._tasks_in_flight
        tasks = self.server._tasks
        assert tasks is not None
        assert all(line.session.deadline == float("inf") for line in self.lines)


@asynccontextmanager
async def serving(
    application: Application,
    prompt: DirectHandler | None = None,
    memory: MemoryBudget | None = None,
    principal_key: Callable[[str], Hashable] = lambda host: None,
    **settings: float,
) -> AsyncIterator[Rig]:
    """A server that is checked, once all connections have ended, to hold nothing any more."""
    rig = Rig(application, ServerSettings(**settings), prompt, memory, principal_key)  # type: ignore[arg-type]
    async with anyio.create_task_group() as tasks:
        await tasks.start(rig.server.run)
        try:
            yield rig
            for line in rig.lines:
                line.end()
            await settle()
            rig.assert_nothing_is_left()
        finally:
            rig.server.stop()


class ParsedResponse(msgspec.Struct, frozen=True):
    """One answer of HTTP/1.1. `is_whole`: its end was told."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool = True


def answers(data: bytes, *, methods: str = "") -> list[ParsedResponse]:
    """The responses on a connection of HTTP/1.1; `methods`: of the requests, where one is HEAD.

    A 100 Continue counts as an answer."""
    found: list[ParsedResponse] = []
    asked = methods.split()
    while data:
        answer, data = _one(data, asked.pop(0) if asked else "GET")
        found.append(answer)
    return found


def _one(data: bytes, method: str) -> tuple[ParsedResponse, bytes]:
    head, mark, rest = data.partition(b"\r\n\r\n")
    assert mark, data
    first, *lines = head.decode("latin-1").split("\r\n")
    version, status, _ = first.split(" ", 2)
    assert version == "HTTP/1.1"
    headers = dict(line.split(": ", 1) for line in lines)
    if method == "HEAD" or int(status) < 200 or int(status) in (204, 304):
        return ParsedResponse(int(status), headers, b""), rest
    if "content-length" in headers:
        size = int(headers["content-length"])
        return ParsedResponse(int(status), headers, rest[:size], len(rest) >= size), rest[size:]
    if headers.get("transfer-encoding") != "chunked":
        return ParsedResponse(int(status), headers, rest), b""
    body = b""
    while rest:
        length, _, rest = rest.partition(b"\r\n")
        size = int(length, 16)
        body += rest[:size]
        assert rest[size : size + 2] == b"\r\n"
        rest = rest[size + 2 :]
        if not size:
            return ParsedResponse(int(status), headers, body), rest
    return ParsedResponse(int(status), headers, body, is_whole=False), b""


async def body_of(receive: Receive) -> bytes | None:
    """The whole body; None: its client left before that."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message["body"]
        if not message["more_body"]:
            return body


async def respond(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    """A whole answer that says its length."""
    length = (b"content-length", b"%d" % len(body))
    start: Message = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [*(headers or []), length]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class Echo:
    """Answers with method, target and body; keeps what it was asked, and who left in mid-body."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes, bytes]] = []
        self.gone: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await body_of(receive)
        target = scope["raw_path"]
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        if body is None:
            self.gone.append(target)
            return
        self.asked.append((scope["method"], target, body))
        said = b"%b %b %b" % (scope["method"].encode(), target, body)
        await respond(send, 200, b"" if scope["method"] == "HEAD" else said)
