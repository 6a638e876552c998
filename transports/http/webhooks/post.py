"""One outgoing POST over HTTP/1.1, to an address that was checked.

The name is looked up once, every address of it is checked, and the connection goes to one of these,
so a name cannot mean another host a moment later. Redirects are an answer like any other. At most
64 KiB of the answer are read, heads included.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence

import anyio
import httptools
import msgspec

from millpond.transports.http.webhooks.destination import Destination, may_connect

ANSWER_BYTES_MAX = 64 * 1024
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host."""


class DeliveryFailed(Exception):
    """No answer came; the text says why."""


class Answer(msgspec.Struct, frozen=True):
    """The answer of a receiver; the body is cut where it is too long."""

    status: int
    body: bytes


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a host, by the system. Raises OSError."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def post(
    destination: Destination,
    headers: Sequence[tuple[bytes, bytes]],
    body: bytes,
    *,
    timeout_s: float,
    tls: Callable[[], ssl.SSLContext],
    resolve_name: Resolve = resolve,
) -> Answer:
    """The answer to one request. Raises DeliveryFailed."""
    try:
        with anyio.fail_after(timeout_s):
            return await _exchange(destination, headers, body, tls, resolve_name)
    except TimeoutError:
        raise DeliveryFailed(f"no answer within {timeout_s:g} s") from None
    except (OSError, ssl.SSLError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
        raise DeliveryFailed(str(error) or type(error).__name__) from error
    except httptools.HttpParserError as error:
        raise DeliveryFailed("the answer is not HTTP/1.1") from error


async def _exchange(
    destination: Destination,
    headers: Sequence[tuple[bytes, bytes]],
    body: bytes,
    tls: Callable[[], ssl.SSLContext],
    resolve_name: Resolve,
) -> Answer:
    stream = await _connect(destination, tls, resolve_name)
    try:
        lines = (
            (b"host", destination.authority.encode()),
            *headers,
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        )
        head = b"".join(b"%b: %b\r\n" % each for each in lines)
        await stream.send(b"POST %b HTTP/1.1\r\n%b\r\n" % (destination.target.encode(), head))
        await stream.send(body)
        return await _read(stream)
    finally:
        # Not a closing handshake: the receiver may be slow at that, too.
        await anyio.aclose_forcefully(stream)


async def _connect(
    destination: Destination, tls: Callable[[], ssl.SSLContext], resolve_name: Resolve
) -> anyio.abc.ByteStream:
    host, port = destination.host, destination.port
    addresses = await resolve_name(host, port)
    if not addresses:
        raise DeliveryFailed(f"{host} has no address")
    for each in addresses:
        if not may_connect(each, destination.network):
            raise DeliveryFailed(f"{host} has the address {each}, which is not called")
    for each in addresses[:-1]:
        try:
            return await _open(each, destination, tls)
        except OSError:
            continue
    return await _open(addresses[-1], destination, tls)


async def _open(
    address: str, destination: Destination, tls: Callable[[], ssl.SSLContext]
) -> anyio.abc.ByteStream:
    if not destination.is_secure:
        return await anyio.connect_tcp(address, destination.port)
    return await anyio.connect_tcp(
        address,
        destination.port,
        ssl_context=tls(),
        tls_hostname=destination.host,
        tls_standard_compatible=False,
    )


async def _read(stream: anyio.abc.ByteStream) -> Answer:
    reader = _AnswerReader()
    left = ANSWER_BYTES_MAX
    while not reader.is_complete and left > 0:
        try:
            data = await stream.receive(left)
        except anyio.EndOfStream:
            break
        left -= len(data)
        reader.feed(data)
    if not reader.status:
        raise DeliveryFailed("the answer has no complete head")
    return Answer(reader.status, b"".join(reader.pieces))


class _AnswerReader:
    """The callbacks of a parser of one answer; interim answers (1xx) are passed over."""

    def __init__(self) -> None:
        self.status = 0
        self.is_complete = False
        self.pieces: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Raises HttpParserError."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise DeliveryFailed("the answer is an upgrade") from None
        except httptools.HttpParserError:
            if not self.is_complete:
                raise  # else it is what follows the answer

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and not self.status:
            self.status = status

    def on_body(self, body: bytes) -> None:
        if not self.is_complete:
            self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = bool(self.status)
