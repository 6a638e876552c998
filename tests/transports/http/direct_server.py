"""Real APIs on real cells behind the HTTP server, over recording wires: direct requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.lowlevel

from millpond.actors.runtime.supervisor import contain, contain_call
from millpond.actors.store.filesystem import Disk
from millpond.node.clock import Clock
from millpond.transports.http import paths
from millpond.transports.http.app import Api, Application
from millpond.transports.http.durable.app import DurableApi
from millpond.transports.http.durable.interface import DurableSettings
from millpond.transports.http.request import HttpLimits
from millpond.transports.http.s2.app import S2Api
from millpond.transports.http.server.server import HttpServer
from millpond.transports.http.server.settings import ServerSettings
from tests.transports.http.running_app import QUICK, RunningApp, running_app
from tests.transports.http.server.rig import DATE, Line, ParsedResponse, answers

LIMIT_S = 60.0
STREAM = b"/v1/stream/a"
OCTETS = b"content-type: application/octet-stream"
JSON = b"content-type: application/json"


def said(method: bytes, path: bytes, body: bytes = b"", *headers: bytes) -> bytes:
    """A request of HTTP/1.1."""
    lines = [b"%b %b HTTP/1.1" % (method, path), b"host: localhost", *headers]
    return b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", body])


def append(body: bytes, *headers: bytes, path: bytes = STREAM) -> bytes:
    """An append by Durable Streams."""
    return said(b"POST", path, body, OCTETS, *headers)


def s2_append(basin: bytes, stream: bytes, body: bytes, *headers: bytes) -> bytes:
    """The same by S2."""
    path = b"/v1/streams/%b/records" % stream
    return said(b"POST", path, body, b"s2-basin: " + basin, JSON, *headers)


class DirectServer:
    """A node and its server."""

    def __init__(
        self, running: RunningApp, apis: Mapping[tuple[bytes, ...], Api], limits: HttpLimits
    ):
        self.running = running
        self.services = running.services
        self.apis = apis
        guard = partial(contain, "request/http")
        call_guard = partial(contain_call, "request/http")
        self.application = Application(running.services, apis, guard, limits, call_guard)
        self.server = HttpServer(
            self.application,
            ServerSettings(),
            running.services,
            guard,
            lambda now: DATE,
            self.application.direct_requests,
        )

    def connect(self, host: str = "127.0.0.1") -> Line:
        return Line(self.server, host)

    async def ask(self, *requests: bytes, line: Line | None = None) -> list[ParsedResponse]:
        """Say these in one piece, and wait for their answers."""
        line = line or self.connect()
        line.say(b"".join(requests))
        return await self.received(line, len(requests))

    async def received(self, line: Line, count: int = 1) -> list[ParsedResponse]:
        """So many answers, whole ones."""
        with anyio.fail_after(LIMIT_S):
            while True:
                found = answers(bytes(line.wire.written)) if line.wire.written else []
                if len(found) >= count and all(each.is_whole for each in found):
                    line.wire.written.clear()
                    return found
                await anyio.sleep(0.001)

    async def contents(self, path: bytes = STREAM) -> bytes:
        """The content of a stream of Durable Streams."""
        (answer,) = await self.ask(said(b"GET", path + b"?offset=-1"))
        assert answer.status == 200, answer
        return answer.body


@asynccontextmanager
async def direct_server(
    apis: Mapping[tuple[bytes, ...], Api] | None = None,
    *,
    limits: HttpLimits = QUICK,
    clock: Clock | None = None,
    disk: Disk | None = None,
    **settings: object,
) -> AsyncIterator[DirectServer]:
    """A node without listeners whose server a test says things to; a stream is there."""
    async with running_app({}, clock=clock, disk=disk, **settings) as running:
        durable = DurableSettings(long_poll_s=1.0, is_secure=False)
        given = apis or {
            **dict.fromkeys(paths.S2, S2Api(running.services)),
            paths.DURABLE: DurableApi(running.services, durable),
        }
        found = DirectServer(running, given, limits)
        async with anyio.create_task_group() as tasks:
            await tasks.start(found.server.run)
            try:
                if apis is None:
                    (made,) = await found.ask(said(b"PUT", STREAM, b"", OCTETS))
                    assert made.status == 201, made
                yield found
            finally:
                found.server.stop()
