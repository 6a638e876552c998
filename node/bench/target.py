"""The node under load: its address, and new connections to it."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import msgspec
from anyio.abc import TaskGroup

from millpond.node.bench.drivers.p2p import P2pConnection
from millpond.node.bench.verify import Faults
from millpond.node.client.connect import connect
from millpond.node.client.errors import ConnectionLost
from millpond.node.client.probe import PROBE
from millpond.node.client.url import Address
from millpond.transports.io import tcp
from millpond.transports.p2p.framing import Framing, LengthPrefixed
from millpond.transports.p2p.handshake import Hello
from millpond.transports.websocket.framing import ClientFraming

PACKET_MAX = 2**20
INFO = 1
"""The operation of packet 90; docs/reference/wire-protocol.md has the table."""


class BenchTarget(msgspec.Struct, frozen=True):
    """A node at `url`. `prefix` begins the names of the channels that are used there."""

    url: str
    address: Address
    prefix: bytes
    token: bytes | None = None
    tls: ssl.SSLContext | None = None

    def channel(self, number: int) -> bytes:
        """The name of a channel that only this run uses."""
        return b"%s/%d" % (self.prefix, number)

    def framing(self, channel: bytes) -> Framing:
        """The framing of packets on a new connection."""
        if self.address.websocket:
            return ClientFraming(str(self.address), channel, True, self.token, PACKET_MAX)
        return LengthPrefixed(PACKET_MAX)

    def connection(self, hello: Hello, faults: Faults, on_end: Callable[[], None]) -> P2pConnection:
        """A connection to be dialled; its HELLO carries the token."""
        hello = msgspec.structs.replace(hello, token=self.token)
        return P2pConnection(self.framing(hello.channel or b""), hello, faults, on_end)

    async def dial(self, tasks: TaskGroup, connection: P2pConnection) -> None:
        """Connect, and wait until the node is ready. Raises ConnectionLost."""
        try:
            await tcp.dial(tasks, self.address.host, self.address.port, connection, tls=self.tls)
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        await connection.settled.wait()
        if connection.failure is not None:
            raise connection.failure

    async def info(self) -> dict[str, int]:
        """The node's `rss_bytes` and number of `channels`; needs the right `admin`."""
        async with connect(
            self.url,
            PROBE,
            role="consumer",
            window=0,
            token=self.token,
            allow_plain=True,  # the command has checked it
            reconnect=False,
        ) as channel:
            answer: dict[str, Any] = await channel.admin(INFO, {"limit": 1})
        return {name: answer[name] for name in ("rss_bytes", "channels")}
