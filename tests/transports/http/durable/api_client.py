"""A client of Durable Streams, byte by byte, of an API on a node in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio.testing

from millpond.actors.messages import Batch, Reply, StreamRequest
from millpond.actors.runtime.supervisor import contain
from millpond.actors.streams.names import stream_cell
from millpond.transports.http import paths
from millpond.transports.http.app import Application
from millpond.transports.http.cors import CrossOrigin
from millpond.transports.http.durable.app import DurableApi
from millpond.transports.http.durable.interface import DurableSettings
from tests.actors.recording_port import RecordingPort
from tests.transports.http.client import Client, Exchange, Got
from tests.transports.http.running_app import QUICK, RunningApp, running_app

JSON, TEXT = "application/json", "text/plain"
CLOCKED = pytest.mark.parametrize(
    "anyio_backend",
    [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})],
    ids=["mock"],
)
"""In virtual time: a sleep costs none."""


class ApiClient:
    """One client. Headers are keywords."""

    def __init__(self, node: RunningApp, settings: DurableSettings, **options: Any) -> None:
        self.served = node
        self.node = node.node
        guard = partial(contain, "request/http")
        api = DurableApi(node.services, settings)
        cross_origin = CrossOrigin(node.node.browser_policy)
        self.application = Application(
            node.services, {paths.DURABLE: api}, guard, QUICK, cross_origin=cross_origin
        )
        self.client = Client(self.application, **options)

    async def ask(self, method: str, name: str, body: bytes = b"", **headers: str | None) -> Got:
        """A whole request and its whole answer. `name` may have a query."""
        headers.setdefault("host", "127.0.0.1:7404")
        return await self.client.request(method, f"/v1/stream/{name}", pairs(headers), body)

    @asynccontextmanager
    async def open(self, method: str, name: str, **headers: str) -> AsyncIterator[Exchange]:
        async with self.client.open(method, f"/v1/stream/{name}", pairs(headers)) as exchange:
            yield exchange

    def otherwise(self, name: bytes, *requests: StreamRequest) -> Reply:
        """The last reply to another view's requests to the stream; the store is
        memory."""
        port = RecordingPort(9, self.served.services.now())
        batch = Batch(port, list(requests))
        self.served.services.submit(stream_cell(name), batch, self.served.services.now())
        return port.take()[-1]


def pairs(headers: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    return [
        (name.replace("_", "-").encode(), value.encode("utf-8", "surrogateescape"))
        for name, value in headers.items()
        if value is not None
    ]


def header_of(got: Got, name: str) -> str | None:
    value = got.headers.get(name.encode())
    return None if value is None else value.decode()


@asynccontextmanager
async def api_client(
    settings: DurableSettings | None = None, *, host: str = "127.0.0.1", **config: Any
) -> AsyncIterator[ApiClient]:
    """A client of a node in memory."""
    async with running_app({}, **config) as node:
        yield ApiClient(node, settings or DurableSettings(long_poll_s=0.1), host=host)
