"""Clients of each listener that send one request in parts, and a node whose time a test moves.

Requests are bytes that are made here, so that a test chooses where they are cut.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from random import Random
from typing import Any

import anyio
import h2.events
from h2.config import H2Configuration
from h2.connection import H2Connection

from millpond.node.clock import Clock
from millpond.node.config import Config
from millpond.node.node import Node
from tests.conformance import packets as p
from tests.conformance.peer import SocketPipe, connect_tcp

KIB, MIB = 2**10, 2**20
ANY = "127.0.0.1:0"
ANSWER_S = 30.0
"""More than any answer takes on a busy machine."""
START_S = 1_763_683_200.0
STEP_S = 0.25
SETTLE_PASSES = 5
OUTCOME_STEPS = 40
STREAM = "small"
UPGRADE = (
    b"GET /v1/channels/chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: p2pbuf.v1.hello\r\n\r\n"
)
NAMES = {
    "tcp": "p2p",
    "ws": "ws",
    "s3p": "s3p",
    "rustlog": "rustlog",
    "http1": "http",
    "http2": "http",
}
"""The columns of the table, and the listeners that they are of."""


def framed(payload: bytes) -> bytes:
    """A packet of P2P over TCP, or a frame of RustLog."""
    return len(payload).to_bytes(4, "big") + payload


def message(packet: bytes) -> bytes:
    """A packet in a message of a WebSocket, with a mask of zeros."""
    size = len(packet)
    if size < 126:
        return bytes((0x82, 0x80 | size)) + bytes(4) + packet
    if size < 2**16:
        return b"\x82\xfe" + p.u16(size) + bytes(4) + packet
    return b"\x82\xff" + p.u64(size) + bytes(4) + packet


_KEYS = count(1)
"""Idempotency keys: each PUT is a new one."""


# One request to store `size` bytes, as each protocol has it.


def _append(size: int) -> bytes:
    head = b"*4\r\n$6\r\nAPPEND\r\n$5\r\nsmall\r\n*0\r\n*1\r\n"
    return head + b"$%d\r\n%b\r\n" % (size, bytes(size))


def _produce(size: int) -> bytes:
    record = base64.b64encode(bytes(size * 3 // 4)).decode()
    fields = f'{{"type":"Produce","topic":"{STREAM}","partition":0,"records":["{record}"]}}'
    return framed(fields.encode())


def _post(size: int) -> bytes:
    head = f"POST /v1/stream/{STREAM} HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % size + bytes(size)


class Client:
    """One connection. `begin` sends a part of a request, `finish` the rest of it."""

    def __init__(self, column: str, pipe: SocketPipe) -> None:
        self.column = column
        self.pipe = pipe
        self.received = b""
        self._rest = b""
        self._key = 0
        self._h2 = H2Connection(H2Configuration(client_side=True))
        self._events: list[h2.events.Event] = []

    async def begin(self, size: int, part: int) -> None:
        """Send the first `part` bytes of a request to store `size` bytes."""
        data = self._request(size)
        self._rest = data[part:]
        await self.pipe.send(data[:part])

    async def send_on(self, part: int) -> None:
        """Send so many bytes more."""
        data, self._rest = self._rest[:part], self._rest[part:]
        await self.pipe.send(data)

    async def finish(self) -> None:
        """Send the rest."""
        await self.send_on(len(self._rest))

    async def outcome(self) -> str:
        """`accepted`, `refused`, or `ended` where the connection ends before an answer."""
        with anyio.fail_after(ANSWER_S):
            while (found := self._outcome()) is None:
                if not await self._receive():
                    return "ended"
        self.received = b""
        return found

    async def ends(self) -> None:
        """Wait until the node ends the connection."""
        with anyio.fail_after(ANSWER_S):
            while await self._receive():
                pass

    async def aclose(self) -> None:
        await self.pipe.aclose()

    async def log_in(self) -> None:
        """Do what comes before the first request."""
        if self.column == "ws":
            await self.pipe.send(UPGRADE)
            await self._until(b"\r\n\r\n")
        match self.column:
            case "tcp" | "ws":
                hello = p.hello(b"chat", {p.ROLE: p.PRODUCER})
                await self.pipe.send(framed(hello) if self.column == "tcp" else message(hello))
                await self._until(b"\x83\x01")
            case "http2":
                self._h2.initiate_connection()
                await self.pipe.send(self._h2.data_to_send())

    async def _until(self, found: bytes) -> None:
        with anyio.fail_after(ANSWER_S):
            while found not in self.received:
                assert await self._receive(), self.received
        self.received = b""

    async def _receive(self) -> bytes:
        data = await self.pipe.receive()
        if self.column == "http2":
            self._events += self._h2.receive_data(data)
            await self.pipe.send(self._h2.data_to_send())
        else:
            self.received += data
        return data

    def _put(self, size: int) -> bytes:
        self._key = next(_KEYS)
        return p.put(self._key, bytes(size))

    def _request(self, size: int) -> bytes:
        match self.column:
            case "tcp":
                return framed(self._put(size))
            case "ws":
                return message(self._put(size))
            case "s3p":
                return _append(size)
            case "rustlog":
                return _produce(size)
            case "http1":
                return _post(size)
            case _:
                return self._post_2(size)

    def _post_2(self, size: int) -> bytes:
        number = self._h2.get_next_available_stream_id()
        head = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost")]
        head += [(":path", f"/v1/stream/{STREAM}"), ("content-type", "text/plain")]
        self._h2.send_headers(number, head)
        sent = [self._h2.data_to_send()]
        for start in range(0, size, 2**14):
            piece = bytes(min(2**14, size - start))
            flags = b"\x01" if start + 2**14 >= size else b"\0"
            sent.append(len(piece).to_bytes(3, "big") + b"\0" + flags + p.u32(number) + piece)
        return b"".join(sent)

    def _outcome(self) -> str | None:
        if self.column == "http2":
            for event in self._events:
                if isinstance(event, h2.events.ResponseReceived):
                    self._events.clear()
                    status = dict(event.headers)[b":status"]
                    return "accepted" if status.startswith(b"2") else "refused"
            return None
        accepted, refused = _ANSWERS[self.column]
        if self.column in ("tcp", "ws"):
            accepted += p.u32(self._key)
        if accepted in self.received:
            return "accepted"
        return "refused" if refused in self.received else None


_ANSWERS = {
    "tcp": (b"\x07", b"\xff\x06"),
    "ws": (b"\x07", b"\xff\x06"),
    "s3p": (b"$", b"-ERR"),
    "rustlog": (b'"ProduceResponse"', b'"Error"'),
    "http1": (b"HTTP/1.1 2", b"HTTP/1.1 "),
}
"""The bytes that tell that a request was accepted, or refused."""


class Running:
    """A node whose time stands still, but for `pass_time`."""

    def __init__(self, node: Node, column: str, advance: Callable[[float], None]) -> None:
        self.node = node
        self.column = column
        self.memory = node.services.memory
        self.peak_bytes = 0
        self._advance = advance
        self._clients: list[Client] = []

    async def client(self) -> Client:
        """A connection that is logged in."""
        client = Client(self.column, await connect_tcp(self.node.listeners[NAMES[self.column]]))
        self._clients.append(client)
        await client.log_in()
        return client

    async def clients(self, count: int) -> list[Client]:
        return [await self.client() for _ in range(count)]

    async def accepts(self, size: int = 100) -> bool:
        """Does another client store something?"""
        client = await self.client()
        await client.begin(size, 0)
        await client.finish()
        is_accepted = await self.outcome(client) == "accepted"
        await client.aclose()
        return is_accepted

    async def outcome(self, client: Client) -> str:
        """The outcome of a request, while time passes."""
        found = ""

        async def read() -> None:
            nonlocal found
            found = await client.outcome()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await self.settle()
            for _ in range(OUTCOME_STEPS):
                if not found:
                    await self.pass_time(STEP_S)
        return found

    async def pass_time(self, seconds: float) -> None:
        """Let time pass in steps; what each leads to happens before the next one."""
        for _ in range(round(seconds / STEP_S)):
            self._advance(STEP_S)
            self.node.scheduler.turn(self.node.clock.now())
            await self.settle()

    async def settle(self) -> None:
        """Wait until nothing moves any more: what a client has sent is read, or waits."""
        before = None
        while before != (before := self._moved_bytes()):
            for _ in range(SETTLE_PASSES):
                await anyio.sleep(0.001)
                self.peak_bytes = max(self.peak_bytes, self.memory.used_bytes)

    def _moved_bytes(self) -> tuple[int, int]:
        stats = self.node.services.protocol_stats.values()
        accounts = self.memory._accounts
        return sum(each.bytes_in for each in stats), sum(
            each.holder.moved_bytes for each in accounts
        )

    @property
    def taken_bytes(self) -> int:
        """The bytes that count, and those that are set apart."""
        return self.memory.used_bytes + self.memory.promised_bytes

    @property
    def waiting_connections(self) -> int:
        """Connections that wait for memory, for whatever they need it."""
        return len({each.account for each in self.memory._waiters})

    def leave_free(self, size_bytes: int) -> int:
        """Set memory apart as an answer in progress does, so that so much is free. Gives the bytes
        that were set apart."""
        memory = self.memory
        free = memory.settings.bytes_max - memory.connections_bytes - self.taken_bytes
        assert memory.promise(free - size_bytes)
        return free - size_bytes

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait until something holds, which takes a few passes of the loop."""
        with anyio.fail_after(ANSWER_S):
            while not is_so():  # noqa: ASYNC110
                await anyio.sleep(0.002)

    async def aclose(self) -> None:
        for each in self._clients:
            await each.aclose()


@asynccontextmanager
async def running(column: str, memory_bytes: int, message_bytes: int) -> AsyncIterator[Running]:
    """Run a node with so much memory for connections, and messages of this size at most."""
    settings: dict[str, Any] = {
        **dict.fromkeys(("p2p", "ws", "s3p", "rustlog", "http"), ANY),
        "packet_bytes_max": message_bytes,
        "s3p_append_bytes_max": message_bytes,
        "s3p_record_bytes_max": message_bytes,
        "rustlog_frame_bytes_max": message_bytes,
        "http_body_bytes_max": message_bytes,
        "memory_bytes_max": memory_bytes,
        "drain_timeout_s": 0.1,
    }
    elapsed_s = 0.0

    def advance(seconds: float) -> None:
        nonlocal elapsed_s
        elapsed_s += seconds

    clock = Clock(monotonic=lambda: elapsed_s, wall=lambda: START_S + elapsed_s)
    async with Node(Config(**settings), rng=Random(7), clock=clock) as node:
        served = Running(node, column, advance)
        try:
            maker = Client("http1", await connect_tcp(node.listeners["http"]))
            head = f"PUT /v1/stream/{STREAM} HTTP/1.1\r\nhost: localhost\r\n"
            await maker.pipe.send(
                head.encode() + b"content-type: text/plain\r\ncontent-length: 0\r\n\r\n"
            )
            assert await maker.outcome() == "accepted"
            await maker.aclose()
            await served.until(lambda: not served.memory.connections_bytes)
            yield served
        finally:
            await served.aclose()
