"""Clients of HTTP on real sockets: HTTP/1.1 by hand, HTTP/2 by prior knowledge or ALPN."""

from __future__ import annotations

import ssl
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple

import anyio
import h2.config
import h2.connection
import h2.errors
import h2.events
from anyio.abc import ByteStream

LIMIT_S = 60.0
Headers = Sequence[tuple[str, str]]


async def dial(address: str, tls: ssl.SSLContext | None = None) -> ByteStream:
    host, _, port = address.rpartition(":")
    if tls is None:
        return await anyio.connect_tcp(host, int(port))
    return await anyio.connect_tcp(
        host, int(port), tls=True, ssl_context=tls, tls_standard_compatible=False
    )


async def rest(stream: ByteStream) -> bytes:
    """Everything up to the end, or to a reset."""
    data = b""
    with anyio.fail_after(LIMIT_S):
        try:
            while True:
                data += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return data


async def get(
    address: str,
    path: str,
    headers: Sequence[str] = (),
    *,
    method: str = "GET",
    tls: ssl.SSLContext | None = None,
) -> tuple[int, bytes]:
    """One request on a connection of its own: status and body."""
    async with await dial(address, tls) as stream:
        lines = (
            f"{method} {path} HTTP/1.1",
            "host: [::1]",
            "connection: close",
            *headers,
            "",
            "",
        )
        await stream.send("\r\n".join(lines).encode())
        data = await rest(stream)
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), body


class Reply(NamedTuple):
    """A whole response; the headers by name, in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Http1:
    """HTTP/1.1; a connection for each request."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def send(self, method: str, path: str, host: str, headers: Headers, body: bytes) -> Reply:
        pairs = [("host", host), ("connection", "close"), *headers]
        if body:
            pairs.append(("content-length", str(len(body))))
        lines = [
            f"{method} {path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in pairs),
            "",
            "",
        ]
        async with await dial(self._address) as stream:
            await stream.send("\r\n".join(lines).encode() + body)
            data = await rest(stream)
        head, _, found = data.partition(b"\r\n\r\n")
        first, *others = head.decode().split("\r\n")
        named = dict(each.lower().split(": ", 1) for each in others)
        return Reply(int(first.split(" ")[1]), named, found)


class Http2:
    """One connection. Frames are read when somebody waits for something."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        config = h2.config.H2Configuration(client_side=True, header_encoding=None)
        self.state = h2.connection.H2Connection(config=config)
        self.events: dict[int, list[h2.events.Event]] = defaultdict(list)
        self.is_over = False

    async def __aenter__(self) -> Http2:
        self.state.initiate_connection()
        await self.flush()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await anyio.aclose_forcefully(self._stream)

    async def flush(self) -> None:
        data = self.state.data_to_send()
        if data:
            await self._stream.send(data)

    async def send_raw(self, data: bytes) -> None:
        """Send bytes beside those that `state` makes."""
        await self._stream.send(data)

    async def ask(
        self,
        method: str,
        path: str,
        *headers: tuple[str, str],
        ends: bool = True,
        length: int | None = None,
        host: str = "[::1]",
    ) -> int:
        """Begin a request; gives the number of its stream."""
        number = self.state.get_next_available_stream_id()
        head = [
            (":method", method),
            (":scheme", "http"),
            (":authority", host),
            (":path", path),
            *headers,
        ]
        if length is not None:
            head.append(("content-length", str(length)))
        self.state.send_headers(number, head, end_stream=ends)
        await self.flush()
        return number

    async def reset(self, number: int, code: int = h2.errors.ErrorCodes.CANCEL) -> None:
        self.state.reset_stream(number, code)
        await self.flush()

    async def say(self, number: int, data: bytes, *, ends: bool = False) -> None:
        self.state.send_data(number, data, end_stream=ends)
        await self.flush()

    async def pump(self) -> None:
        """Take in what one read brings."""
        try:
            data = await self._stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            self.is_over = True
            return
        for event in self.state.receive_data(data):
            number = getattr(event, "stream_id", 0) or 0
            self.events[number].append(event)
            if isinstance(event, h2.events.DataReceived):
                self.state.acknowledge_received_data(event.flow_controlled_length, number)
        await self.flush()

    async def until(self, number: int, kind: type[h2.events.Event]) -> h2.events.Event:
        """Wait for an event of a stream; 0: of the connection."""
        with anyio.fail_after(LIMIT_S):
            while True:
                for event in self.events[number]:
                    if isinstance(event, kind):
                        return event
                assert not self.is_over, f"the connection ended; {self.events[number]}"
                await self.pump()

    async def status(self, number: int) -> int:
        event = await self.until(number, h2.events.ResponseReceived)
        assert isinstance(event, h2.events.ResponseReceived)
        return int(dict(event.headers)[b":status"])

    def data(self, number: int) -> bytes:
        return b"".join(
            each.data for each in self.events[number] if isinstance(each, h2.events.DataReceived)
        )


async def eventually(is_so: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Wait for what other threads bring about."""
    with anyio.fail_after(limit_s):
        while not is_so():  # noqa: ASYNC110
            await anyio.sleep(0.01)
