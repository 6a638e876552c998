"""A byte-level client of a node: over TCP, over WebSocket, or over the network in memory.

It judges the node by bytes: framing is written here anew, or is the `websockets` library's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Protocol
from urllib.parse import quote

import anyio
from anyio.abc import ByteStream, TaskGroup
from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from millpond.transports.io.interface import Wire
from millpond.transports.io.memory import Network
from tests.conformance import packets as p

PATIENCE_S = 60.0
_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class Ended(Exception):
    """The node closed the connection."""


class Pipe(Protocol):
    """Bytes both ways; `receive` gives b"" at the end."""

    async def send(self, data: bytes) -> None: ...
    async def receive(self) -> bytes: ...
    async def send_eof(self) -> None: ...
    async def aclose(self) -> None: ...


class SocketPipe:
    """A TCP socket."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream

    async def send(self, data: bytes) -> None:
        try:
            await self.stream.send(data)
        except _GONE:
            raise Ended from None

    async def receive(self) -> bytes:
        try:
            return await self.stream.receive()
        except (anyio.EndOfStream, *_GONE):
            return b""

    async def send_eof(self) -> None:
        await self.stream.send_eof()

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(self.stream)


class MemoryPipe:
    """One end of a connection on the network in memory: a session that keeps what comes."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._over = False
        self._changed = anyio.Event()
        self._wire: Wire

    def opened(self, wire: Wire) -> None:
        self._wire = wire

    def received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._changed.set()

    def uncongested(self) -> None:
        pass

    def eof(self) -> None:
        self.ended()

    def ended(self) -> None:
        self._over = True
        self._changed.set()

    async def send(self, data: bytes) -> None:
        self._wire.write(data)
        await anyio.lowlevel.checkpoint()

    async def receive(self) -> bytes:
        while not self._chunks and not self._over:
            self._changed = anyio.Event()
            await self._changed.wait()
        await anyio.lowlevel.checkpoint()
        return self._chunks.popleft() if self._chunks else b""

    async def send_eof(self) -> None:
        self._wire.close()

    async def aclose(self) -> None:
        self._wire.abort()


class LengthPrefixed:
    """Packets behind a u32 length (3a)."""

    def __init__(self) -> None:
        self._tail = b""

    def encode(self, packets: Iterable[bytes]) -> bytes:
        return p.framed(*packets)

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Packets, and what the framing itself wants to answer."""
        data = self._tail + data
        found = []
        at = 0
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if len(data) < end:
                break
            found.append(data[at + 4 : end])
            at = end
        self._tail = data[at:]
        return found, b""


class Upgraded:
    """Packets as binary messages of a WebSocket that is open."""

    def __init__(self, core: ClientProtocol, response: Response) -> None:
        self.core = core
        self.response = response

    def encode(self, packets: Iterable[bytes]) -> bytes:
        for packet in packets:
            self.core.send_binary(packet)
        return b"".join(self.core.data_to_send())

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        if data:
            self.core.receive_data(data)
        else:
            self.core.receive_eof()
        found = []
        for event in self.core.events_received():
            assert isinstance(event, Frame)
            if event.opcode is Opcode.BINARY:
                found.append(bytes(event.data))
        return found, b"".join(self.core.data_to_send())


class Peer:
    """One connection. Every wait is bounded, so that a silent node fails a test at once."""

    def __init__(self, pipe: Pipe, framing: LengthPrefixed | Upgraded) -> None:
        self.pipe = pipe
        self.framing = framing
        self._packets: deque[bytes] = deque()
        self._over = False

    async def send(self, *packets: bytes) -> None:
        """All in one write."""
        await self.pipe.send(self.framing.encode(packets))

    async def packet(self, within_s: float = PATIENCE_S) -> bytes:
        """The next packet. Raises Ended."""
        with anyio.fail_after(within_s):
            while not self._packets:
                if self._over:
                    raise Ended
                await self._receive()
        return self._packets.popleft()

    async def packets(self, count: int) -> list[bytes]:
        return [await self.packet() for _ in range(count)]

    async def expect(self, *packets: bytes, within_s: float = PATIENCE_S) -> None:
        """These packets come next, in this order."""
        got = [await self.packet(within_s) for _ in packets]
        assert [each.hex() for each in got] == [each.hex() for each in packets]

    async def ask(self, *packets: bytes) -> bytes:
        """Send, and give the next packet."""
        await self.send(*packets)
        return await self.packet()

    async def put(self, key: int, data: bytes, ttl: int = 60) -> int:
        """PUT, and give the message's id."""
        answer = await self.ask(p.put(key, data, ttl))
        while answer == b"\x00":  # the node asks whether it is still there: the network is slow
            answer = await self.packet()
        assert answer[:5] == b"\x07" + p.u32(key) and len(answer) == 17, answer.hex()
        return int.from_bytes(answer[9:], "big")

    async def ids(self, request: bytes | None = None) -> list[int]:
        """LIST, and give the ids; everything by default."""
        answer = await self.ask(p.list_() if request is None else request)
        assert answer[0] == 9 and len(answer) % 8 == 1, answer.hex()
        return [int.from_bytes(answer[at : at + 8], "big") for at in range(1, len(answer), 8)]

    async def quiet(self) -> None:
        """Nothing came, and nothing is in flight.

        Two round trips: what one read causes in the channel may leave behind the first PONG.
        """
        for _ in range(2):
            await self.send(p.PING)
            await self.expect(p.PONG)

    async def silent_for(self, seconds: float) -> None:
        """Nothing comes for so long."""
        with anyio.move_on_after(seconds):
            raise AssertionError((await self.packet(seconds + 1)).hex())

    async def rest(self, within_s: float = PATIENCE_S) -> list[bytes]:
        """Everything up to the end of the connection, which must come."""
        with anyio.fail_after(within_s):
            while not self._over:
                await self._receive()
        rest = list(self._packets)
        self._packets.clear()
        return rest

    async def ends_with(self, *packets: bytes, within_s: float = PATIENCE_S) -> None:
        """Exactly these packets, and then the end of the connection."""
        rest = await self.rest(within_s)
        assert [each.hex() for each in rest] == [each.hex() for each in packets]

    @property
    def close_code(self) -> int | None:
        """The code of the WebSocket's close frame."""
        assert isinstance(self.framing, Upgraded)
        return self.framing.core.close_code

    async def _receive(self) -> None:
        data = await self.pipe.receive()
        self._over = not data
        found, answer = self.framing.feed(data)
        self._packets += found
        if answer and data:
            try:
                await self.pipe.send(answer)
            except Ended:
                return

    async def aclose(self) -> None:
        await self.pipe.aclose()

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()


async def connect_tcp(address: str) -> SocketPipe:
    host, _, port = address.rpartition(":")
    return SocketPipe(await anyio.connect_tcp(host.strip("[]"), int(port)))


async def connect_memory(
    tasks: TaskGroup, network: Network, address: str, source: str = "somebody"
) -> MemoryPipe:
    pipe = MemoryPipe()
    await network.connect(tasks, address, pipe, source=source)
    return pipe


class Refused(Exception):
    """The upgrade was answered with another status than 101."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"{response.status_code} {response.reason_phrase}")
        self.status = response.status_code
        self.response = response


async def upgrade(
    pipe: Pipe,
    channel: bytes,
    *subprotocols: str,
    headers: dict[str, str] | None = None,
    path: str | None = None,
) -> Upgraded:
    """Make a WebSocket of a pipe, offering `subprotocols`. Raises Refused."""
    path = "/v1/channels/" + quote(channel, safe="") if path is None else path
    core = ClientProtocol(
        parse_uri("ws://127.0.0.1:7401" + path),
        subprotocols=[Subprotocol(each) for each in subprotocols],
        max_size=None,
    )
    request = core.connect()
    request.headers.update(Headers(headers or {}))
    core.send_request(request)
    await pipe.send(b"".join(core.data_to_send()))
    with anyio.fail_after(PATIENCE_S):
        while not (events := core.events_received()):
            data = await pipe.receive()
            if data:
                core.receive_data(data)
            else:
                core.receive_eof()
    (response,) = events
    assert isinstance(response, Response)
    if core.handshake_exc is not None:
        raise Refused(response)
    return Upgraded(core, response)
