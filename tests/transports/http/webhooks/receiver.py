"""Receivers of webhooks that do what a test says, on real sockets."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener

Act = Callable[[ByteStream, bytes], Awaitable[None]]


class Receiver:
    """Reads a request and acts. `requests` are all that came."""

    def __init__(self, act: Act) -> None:
        self._act = act
        self.port = 0
        self.requests: list[bytes] = []
        self.connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def serve(self, stream: ByteStream) -> None:
        self.connections += 1
        data = b""
        try:
            while b"\r\n\r\n" not in data:
                data += await stream.receive()
            head, _, body = data.partition(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            length = next(int(each[15:]) for each in lines if each.startswith(b"content-length:"))
            while len(body) < length:
                body += await stream.receive()
            self.requests.append(head + b"\r\n\r\n" + body)
            await self._act(stream, body)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            await anyio.aclose_forcefully(stream)


@asynccontextmanager
async def receiving(act: Act, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """A receiver on the loopback."""
    receiver = Receiver(act)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    receiver.port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        serving = listener if tls is None else TLSListener(listener, tls)
        tasks.start_soon(serving.serve, receiver.serve)
        yield receiver
        tasks.cancel_scope.cancel()


def answering(*pieces: bytes) -> Act:
    """Answer with these bytes."""

    async def act(stream: ByteStream, body: bytes) -> None:
        for each in pieces:
            await stream.send(each)

    return act
