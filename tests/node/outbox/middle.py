"""Somebody in between two nodes, on a real socket: passes on, strips TLS, ends TLS, and forges."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from anyio.streams.tls import TLSStream

from millpond.transports.io.address import parse_address
from tests.conformance import packets as p
from tests.conformance.peer import LengthPrefixed
from tests.node.tls.certificate_files import files_of

GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
TLS_HANDSHAKE, PUT, NOT_TLS = 0x16, 0x06, b"\xff\xff\xff"
FORGED_ID = 7


class Middle:
    """Carries the connections to `target`. The bytes that it reads of clients are in `heard`.

    `forges`: it keeps PUTs, and says that they are stored. `strips_tls`: it answers a ClientHello
    as a node without TLS does. `ends_tls`: it speaks TLS with both, by a certificate of its own.
    """

    def __init__(self, target: str, tls: ssl.SSLContext) -> None:
        self.forges = self.strips_tls = self.ends_tls = False
        self.heard = bytearray()
        self.swallowed: list[bytes] = []
        self.connections = 0
        self.port = 0
        self._target = parse_address(target)
        self._tls = tls

    async def carry(self, client: SocketStream) -> None:
        self.connections += 1
        async with client:
            try:
                await self._carry(client)
            except (*GONE, ssl.SSLError):
                pass

    async def _carry(self, client: SocketStream) -> None:
        first = b"" if self.ends_tls else await client.receive()
        self.heard += first
        if self.strips_tls and first[0] == TLS_HANDSHAKE:
            await client.send(p.framed(NOT_TLS))
            return
        here: ByteStream = client
        async with await anyio.connect_tcp(*self._target) as server:
            there: ByteStream = server
            if self.ends_tls:
                here = await TLSStream.wrap(client, server_side=True, ssl_context=self._tls)
                there = await TLSStream.wrap(server, ssl_context=_trusting(), hostname="bob")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._down, there, here, tasks.cancel_scope)
                tasks.start_soon(self._up, first, here, there, tasks.cancel_scope)

    async def _up(
        self, data: bytes, client: ByteStream, server: ByteStream, scope: anyio.CancelScope
    ) -> None:
        framing = LengthPrefixed()
        is_unread = data[:1] == bytes((TLS_HANDSHAKE,))
        try:
            while True:
                if (is_unread or not self.forges) and data:
                    await server.send(data)
                else:
                    for packet in framing.feed(data)[0]:
                        await self._forge(packet, client, server)
                data = await client.receive()
                self.heard += data
        except GONE:
            scope.cancel()

    async def _forge(self, packet: bytes, client: ByteStream, server: ByteStream) -> None:
        if packet[0] != PUT:
            await server.send(p.framed(packet))
            return
        self.swallowed.append(packet)
        key = int.from_bytes(packet[1:5], "big")
        await client.send(p.framed(p.put_ack(key, FORGED_ID)))

    async def _down(self, server: ByteStream, client: ByteStream, scope: anyio.CancelScope) -> None:
        try:
            while True:
                await client.send(await server.receive())
        except GONE:
            scope.cancel()


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@asynccontextmanager
async def middle(target: str, folder: Path) -> AsyncIterator[Middle]:
    """One that listens on this machine until the block ends. Its certificate is in `folder`."""
    found = Middle(target, files_of(folder, name="mallory").server())
    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
        async with anyio.create_task_group() as tasks:
            found.port = listener.extra(SocketAttribute.local_port)
            tasks.start_soon(listener.serve, found.carry)
            yield found
            tasks.cancel_scope.cancel()
