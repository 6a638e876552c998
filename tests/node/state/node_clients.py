"""A node whose streams are reached through every protocol, HTTP's in memory."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from typing import Any

import anyio

from millpond import connect
from millpond.node.client.rustlog.client import Rustlog, connect_rustlog
from millpond.node.client.s3p.client import S3p, connect_s3p
from millpond.node.client.streams.connect import connect_streams
from millpond.node.client.streams.streams import Streams
from millpond.node.node import Node
from millpond.transports.http import paths
from millpond.transports.http.response import Response
from millpond.transports.http.s2.app import S2Api
from millpond.transports.http.state.app import StateApi
from tests.transports.http.client import Client, Got
from tests.transports.http.running_app import running_app

ANY = "127.0.0.1:0"
SOON_S = 20
FRONT = Response(200, ((b"content-type", b"text/html"),), b"<p>states</p>")
BASIN = ((b"s2-basin", b"millpond"), (b"content-type", b"application/json"))
JSON = ((b"content-type", b"application/json"),)
EVENTS = ((b"accept", b"text/event-stream"),)


class NodeClients:
    """Clients of one node."""

    def __init__(self, node: Node, http: Client, streams: Streams, s3p: S3p, log: Rustlog) -> None:
        self.node = node
        self.http = http
        self.streams = streams
        self.s3p = s3p
        self.rustlog = log

    async def by_p2p(self, name: str, bodies: Sequence[bytes]) -> None:
        await self.streams.stream(name).append(bodies)

    async def by_s3p(self, name: str, bodies: Sequence[bytes]) -> None:
        await self.s3p.append(name, list(bodies))

    async def by_rustlog(self, name: str, bodies: Sequence[bytes]) -> None:
        await self.rustlog.produce(name, list(bodies))

    async def by_s2(self, name: str, bodies: Sequence[bytes]) -> None:
        records = [{"body": base64.b64encode(body).decode()} for body in bodies]
        headers = (*BASIN, (b"s2-format", b"base64"))
        data = json.dumps({"records": records}).encode()
        got = await self.http.request("POST", f"/v1/streams/{name}/records", headers, data)
        assert got.status == 200, got

    async def by_tee(self, name: str, bodies: Sequence[bytes]) -> None:
        """Through a channel that a rule lets feed the stream."""
        url = f"tcp://{self.node.listeners['p2p']}"
        async with connect(url, f"in/{name}", role="producer") as channel:
            for body in bodies:
                await channel.put(body)

    async def by_http(self, name: str, bodies: Sequence[bytes]) -> None:
        """Through `/millpond/state` itself, which takes events alone."""
        got = await self.post(name, b"[" + b",".join(bodies) + b"]")
        assert got.status == 200, got

    @property
    def ways(self) -> list[Callable[[str, Sequence[bytes]], Awaitable[None]]]:
        """All that take any bytes."""
        return [self.by_p2p, self.by_s3p, self.by_rustlog, self.by_s2]

    async def get(self, path: str, **headers: str) -> Got:
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        return await self.http.request("GET", f"/millpond/state/{path}", pairs)

    async def post(
        self, path: str, body: bytes, headers: Sequence[tuple[bytes, bytes]] = JSON
    ) -> Got:
        return await self.http.request("POST", f"/millpond/state/{path}", headers, body)

    async def state(self, name: str) -> dict[str, dict[str, Any]]:
        """All of a state, as the node's own client tells it."""
        found: dict[str, dict[str, Any]] = {}
        async for row in self.streams.stream(name).state.rows():
            found.setdefault(row.type, {})[row.key] = row.value
        return found


@asynccontextmanager
async def node_clients(window: float = inf, **settings: Any) -> AsyncIterator[NodeClients]:
    """`window`: so many messages of an answer over HTTP may wait unread."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        inside = await enter(running_app({}, p2p=ANY, s3p=ANY, rustlog=ANY, **settings))
        node = inside.node
        api = StateApi(inside.services, FRONT)
        s2 = dict.fromkeys(paths.S2, S2Api(inside.services))
        inside.application._apis.update({paths.STATE: api, **s2})
        inside.application._lengths = [2]
        streams = await enter(connect_streams(f"tcp://{node.listeners['p2p']}"))
        s3p = await enter(connect_s3p(node.listeners["s3p"]))
        log = await enter(connect_rustlog(node.listeners["rustlog"]))
        with anyio.fail_after(SOON_S):
            http = Client(inside.application, window=window)
            yield NodeClients(node, http, streams, s3p, log)


def put(key: str, value: Any, kind: str = "user", operation: str = "insert") -> bytes:
    event = {"type": kind, "key": key, "value": value, "headers": {"operation": operation}}
    return json.dumps(event).encode()


RESET = b'{"headers":{"control":"reset"}}'
