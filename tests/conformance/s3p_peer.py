"""A byte-level client of S3P, and a node to talk to.

Commands are written here by hand from the specification and replies read by it, so that the node's
own codec is not its judge.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream

from millpond.actors.store.filesystem import Disk
from millpond.node.clock import Clock
from millpond.node.config import OFF, Config
from millpond.node.node import Node

PATIENCE_S = 60.0
U64_MAX = 2**64 - 1
MIB = 2**20

over_sockets = pytest.mark.parametrize("wiring", ["tcp-uvloop", "tcp-trio"])
"""Every row is shown over real sockets, on both libraries."""

one_library = pytest.mark.parametrize("wiring", ["tcp-uvloop"])
"""For what takes long, and is the same on both."""

Id = tuple[int, int]
Element = bytes | Sequence[bytes]


def array(*elements: Element) -> bytes:
    """An array; sequences among its elements are arrays within it."""
    parts = (bulk(each) if isinstance(each, bytes) else array(*each) for each in elements)
    return b"*%d\r\n" % len(elements) + b"".join(parts)


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _options(options: dict[str, object]) -> list[bytes]:
    pairs: list[bytes] = []
    for key, value in options.items():
        pairs += [key.encode(), value if isinstance(value, bytes) else str(value).encode()]
    return pairs


def create(name: bytes = b"orders", **options: object) -> bytes:
    return array(b"CREATE", name, _options(options))


def append(*records: bytes, name: bytes = b"orders", **options: object) -> bytes:
    return array(b"APPEND", name, _options(options), records)


def read(name: bytes = b"orders", **options: object) -> bytes:
    return array(b"READ", name, _options(options))


def trim(name: bytes = b"orders", **options: object) -> bytes:
    return array(b"TRIM", name, _options(options))


def delete(name: bytes = b"orders", **options: object) -> bytes:
    return array(b"DELETE", name, _options(options))


def pairs(*found: tuple[str, bytes]) -> bytes:
    """A reply to READ."""
    elements = [element for at, body in found for element in (at.encode(), body)]
    return array(*elements)


OK = b"+OK\r\n"
NOTHING = b"*0\r\n"
EXISTS, UNKNOWN, TOO_LOW = "ERR_STREAM_EXISTS", "ERR_UNKNOWN_STREAM", "ERR_NON_MONOTONIC_ID"
BAD_FORMAT, LIMITS = "ERR_BAD_FORMAT", "ERR_LIMITS"


def id_of(reply: bytes) -> Id:
    """The id in a reply to APPEND."""
    header, text, rest = reply.split(b"\r\n")
    assert header == b"$%d" % len(text) and rest == b"", reply
    ms, seq = text.split(b"-")
    assert ms.isdigit() and seq.isdigit(), reply
    assert text == b"%d-%d" % (int(ms), int(seq)), "no leading zeros"
    return int(ms), int(seq)


def is_error(reply: bytes, code: str) -> bool:
    """An error line of that code, printable ASCII and nothing else (S3P-02, S3P-43)."""
    text = reply[1:-2]
    return (
        reply.startswith(b"-" + code.encode() + b" ")
        and reply.endswith(b"\r\n")
        and len(text) > len(code) + 1
        and all(0x20 <= each <= 0x7E for each in text)
    )


class Client:
    """One connection. Every wait is bounded, so that a silent node fails a test at once."""

    def __init__(self, stream: SocketStream) -> None:
        self.stream = stream
        self._rest = b""
        self._is_over = False

    async def send(self, *commands: bytes) -> None:
        """All in one write."""
        await self.stream.send(b"".join(commands))

    async def _receive(self) -> None:
        with anyio.fail_after(PATIENCE_S):
            try:
                self._rest += await self.stream.receive()
            except anyio.EndOfStream:
                self._is_over = True

    async def _line(self) -> bytes:
        while b"\r\n" not in self._rest:
            assert not self._is_over, f"the node closed the connection: {self._rest!r}"
            await self._receive()
        line, _, self._rest = self._rest.partition(b"\r\n")
        assert b"\n" not in line and b"\r" not in line, line
        return line

    async def _bulk(self) -> tuple[bytes, bytes]:
        line = await self._line()
        assert line[:1] == b"$" and line[1:].isdigit() and line[1:2] != b"0", line
        size = int(line[1:])
        while len(self._rest) < size + 2:
            assert not self._is_over
            await self._receive()
        data, end, self._rest = (
            self._rest[:size],
            self._rest[size : size + 2],
            self._rest[size + 2 :],
        )
        assert end == b"\r\n"
        return line, data

    async def reply(self) -> bytes:
        """The next reply, as it came."""
        while not self._rest:
            assert not self._is_over, "the node closed the connection"
            await self._receive()
        kind = self._rest[:1]
        if kind == b"$":
            return bulk((await self._bulk())[1])
        line = await self._line()
        if kind in b"+-":
            return line + b"\r\n"
        assert kind == b"*" and line[1:].isdigit() and int(line[1:]) % 2 == 0, line
        return array(*[(await self._bulk())[1] for _ in range(int(line[1:]))])

    async def ask(self, command: bytes) -> bytes:
        await self.send(command)
        return await self.reply()

    async def expect(self, *replies: bytes) -> None:
        """These come next, to the byte."""
        for each in replies:
            assert await self.reply() == each

    async def append(self, *records: bytes, name: bytes = b"orders", **options: object) -> Id:
        return id_of(await self.ask(append(*records, name=name, **options)))

    async def records(self, name: bytes = b"orders", **options: object) -> list[tuple[Id, bytes]]:
        """The records of a READ, strictly increasing (S3P-32)."""
        await self.send(read(name, **options))
        return await self.found()

    async def found(self) -> list[tuple[Id, bytes]]:
        line = await self._line()
        assert line[:1] == b"*", line
        elements = [(await self._bulk())[1] for _ in range(int(line[1:]))]
        found = [
            (id_of(bulk(at)), body) for at, body in zip(elements[::2], elements[1::2], strict=True)
        ]
        ids = [at for at, _ in found]
        assert all(a < b for a, b in pairwise(ids)), ids
        return found

    async def all(self, name: bytes = b"orders") -> list[tuple[Id, bytes]]:
        """Every record of a stream, page by page."""
        found = await self.records(name)
        while page := await self.records(name, MIN_ID=after(found[-1][0])) if found else []:
            found += page
        return found

    async def refused(self, command: bytes, code: str) -> None:
        """A soft error, and the connection goes on (S3P-45)."""
        reply = await self.ask(command)
        assert is_error(reply, code), reply

    async def rest(self) -> bytes:
        """Everything up to the end, which must be an orderly one."""
        while not self._is_over:
            await self._receive()
        rest, self._rest = self._rest, b""
        return rest

    async def ends(self, code: str, *before: bytes) -> None:
        """These replies, an error of this code, and the end of the connection."""
        await self.expect(*before)
        reply = await self.reply()
        assert is_error(reply, code), reply
        assert await self.rest() == b""

    async def silent_for(self, seconds: float) -> None:
        """Nothing comes for so long, and the connection stays."""
        assert self._rest == b""
        with anyio.move_on_after(seconds):
            await self._receive()
        assert self._rest == b"" and not self._is_over

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(self.stream)


def after(at: Id) -> str:
    """The id that follows."""
    ms, seq = at
    return f"{ms}-{seq + 1}" if seq < U64_MAX else f"{ms + 1}-0"


class S3pServer:
    """A running node that serves S3P."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._clients: list[Client] = []

    async def dial(self) -> Client:
        host, _, port = self.node.listeners["s3p"].rpartition(":")
        client = Client(await anyio.connect_tcp(host, int(port)))
        self._clients.append(client)
        return client

    async def with_stream(self, *records: bytes, name: bytes = b"orders", ms: int = 5) -> Client:
        """A client, and a stream with these records: one APPEND, one millisecond."""
        client = await self.dial()
        await client.send(create(name))
        await client.expect(OK)
        if records:
            assert await client.append(*records, name=name, ID=ms) == (ms, len(records) - 1)
        return client

    async def refuses(self, code: str, *hostile: bytes) -> None:
        """Each ends a connection with an error of that code: what came before it is executed,
        neither it nor what comes after it is (S3P-44)."""
        for each in hostile:
            client = await self.dial()
            name = b"before %d" % len(self._clients)
            await client.send(create(name), each, append(b"after it"), create(b"after it"))
            await client.ends(code, OK)
            await client.aclose()
        witness = await self.dial()
        await witness.refused(read(b"after it"), UNKNOWN)
        await witness.aclose()

    async def aclose(self) -> None:
        for client in self._clients:
            await client.aclose()


@asynccontextmanager
async def s3p_server(
    data: Path | None = None,
    *,
    now: Callable[[], float] | None = None,
    disk: Disk | None = None,
    **settings: Any,
) -> AsyncIterator[S3pServer]:
    """Run a node: in memory, unless it has a folder; by its own clock, unless one is given."""
    ports = {"p2p": OFF, "ws": OFF, "s3p": "127.0.0.1:0", "rustlog": OFF, "http": OFF}
    config = Config(data=str(data or ""), **(ports | settings))
    clock = Clock(monotonic=now, wall=now) if now is not None else None
    async with Node(config, rng=Random(7), clock=clock, disk=disk) as node:
        server = S3pServer(node)
        try:
            yield server
        finally:
            await server.aclose()
