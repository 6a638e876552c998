"""Drives an ASGI application in memory, on asyncio and on trio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any
from urllib.parse import unquote

import anyio
import msgspec
from anyio.abc import ObjectReceiveStream, ObjectSendStream

from millpond.transports.http.asgi import AsgiApplication, Message

Pairs = Sequence[tuple[bytes, bytes]]


class Got(msgspec.Struct, frozen=True):
    """A whole answer. `headers` by name, the last value of each; `pairs` all of them."""

    status: int
    pairs: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.pairs)

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Exchange:
    """A request under way. Say more of its body, read its answer in pieces, or leave."""

    def __init__(
        self, said: ObjectSendStream[Message], received: ObjectReceiveStream[Message]
    ) -> None:
        self._said = said
        self._received = received
        self.status = 0
        self.pairs: list[tuple[bytes, bytes]] = []
        self._is_complete = False

    async def say(self, body: bytes, *, is_last: bool = False) -> None:
        await self._said.send({"type": "http.request", "body": body, "more_body": not is_last})

    async def leave(self) -> None:
        await self._said.send({"type": "http.disconnect"})

    async def head(self) -> int:
        """Wait for the status."""
        message = await self._received.receive()
        assert message["type"] == "http.response.start"
        self.status, self.pairs = message["status"], list(message["headers"])
        return self.status

    async def piece(self) -> bytes | None:
        """The next piece that is not empty; None: the answer is complete."""
        while not self._is_complete:
            message = await self._received.receive()
            assert message["type"] == "http.response.body"
            self._is_complete = not message.get("more_body", False)
            if message["body"]:
                return bytes(message["body"])
        return None

    async def got(self) -> Got:
        """The whole answer."""
        await self.head()
        body = b""
        while (piece := await self.piece()) is not None:
            body += piece
        return Got(self.status, self.pairs, body)


class Client:
    """One client of an application, at an address. `window`: so many messages of an answer wait
    unread before the application has to."""

    def __init__(
        self,
        application: AsgiApplication,
        *,
        host: str = "127.0.0.1",
        http_version: str = "1.1",
        root_path: str = "",
        window: float = inf,
    ) -> None:
        self._application = application
        self._scope = {"client": (host, 50_000), "http_version": http_version}
        self._root_path = root_path
        self._window = window

    async def request(
        self,
        method: str,
        url: str,
        headers: Pairs = (),
        body: bytes | AsyncIterator[bytes] = b"",
    ) -> Got:
        """Send a request with its whole body, and give the whole answer."""
        async with self.open(method, url, headers) as exchange:
            if isinstance(body, bytes):
                await exchange.say(body, is_last=True)
            else:
                async for each in body:
                    await exchange.say(each)
                await exchange.say(b"", is_last=True)
            return await exchange.got()

    @asynccontextmanager
    async def open(self, method: str, url: str, headers: Pairs = ()) -> AsyncIterator[Exchange]:
        """Begin a request; leaving the block is leaving the server. Raises what the application
        raises."""
        said, to_app = anyio.create_memory_object_stream[Message](inf)
        from_app, received = anyio.create_memory_object_stream[Message](self._window)
        exchange = Exchange(said, received)

        async def receive() -> Message:
            try:
                return await to_app.receive()
            except anyio.EndOfStream:
                return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            try:
                await from_app.send(message)
            except anyio.BrokenResourceError:
                return  # as servers do when the client is gone

        async def run() -> None:
            with from_app:
                await self._application(self._scope_of(method, url, headers), receive, send)

        with to_app, received:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                with said:
                    yield exchange

    def _scope_of(self, method: str, url: str, headers: Pairs) -> dict[str, Any]:
        path, _, query = url.partition("?")
        return {
            **self._scope,
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode("latin-1"),
            "query_string": query.encode("latin-1"),
            "root_path": self._root_path,
            "headers": [(name.lower(), value) for name, value in headers],
            "server": ("127.0.0.1", 80),
        }
