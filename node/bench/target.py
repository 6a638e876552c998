"""The node that is measured: where it is, and how a connection of the load gets there."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence

import anyio
import msgspec
from anyio.abc import TaskGroup

from millpond.node.bench.drivers.p2p import Peer
from millpond.node.bench.verify import Faults
from millpond.node.client.connect import connect
from millpond.node.client.errors import ConnectionLost
from millpond.node.client.url import Address
from millpond.transports.io import tcp
from millpond.transports.p2p.framing import Framing, LengthPrefixed
from millpond.transports.p2p.handshake import Hello
from millpond.transports.websocket.framing import ClientFraming

PACKET_MAX = 2**20
DIALLED_MAX = 64
"""So many connections are made at once: well below what a node has before it is ready."""
LEAVE_S = 2.0
INFO = 1
"""The operation of packet 90; docs/reference/wire-protocol.md has the table."""
PROBE = b"millpond!probe"


class Target(msgspec.Struct, frozen=True):
    """A node at `url`. `prefix` begins the names of the channels that are used there."""

    url: str
    address: Address
    prefix: bytes
    token: bytes | None = None
    tls: ssl.SSLContext | None = None

    def channel(self, number: int) -> bytes:
        """The name of a channel of this run alone."""
        return b"%s/%d" % (self.prefix, number)

    def framing(self, channel: bytes) -> Framing:
        """How packets lie in the byte stream there."""
        if self.address.websocket:
            return ClientFraming(str(self.address), channel, True, self.token, PACKET_MAX)
        return LengthPrefixed(PACKET_MAX)

    def peer(self, hello: Hello, faults: Faults, on_end: Callable[[], None]) -> Peer:
        """A connection that is not made yet; the token goes with its HELLO."""
        hello = msgspec.structs.replace(hello, token=self.token)
        return Peer(self.framing(hello.channel or b""), hello, faults, on_end)

    async def dial(self, tasks: TaskGroup, peer: Peer) -> None:
        """Connect, and wait until the node is ready. Raises ConnectionLost."""
        try:
            await tcp.dial(tasks, self.address.host, self.address.port, peer, tls=self.tls)
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        await peer.settled.wait()
        if peer.failure is not None:
            raise peer.failure

    async def dial_all(self, tasks: TaskGroup, peers: Sequence[Peer]) -> None:
        """Connect them, a bounded number at a time."""
        for start in range(0, len(peers), DIALLED_MAX):
            async with anyio.create_task_group() as dials:
                for peer in peers[start : start + DIALLED_MAX]:
                    dials.start_soon(self.dial, tasks, peer)

    async def info(self) -> dict[str, int]:
        """The node's `rss_bytes` and its number of `channels`; needs the right `admin`."""
        async with connect(
            self.url, PROBE, role="consumer", window=0, token=self.token, reconnect=False
        ) as channel:
            answer = await channel.admin(INFO, {"limit": 1})
        return {name: answer[name] for name in ("rss_bytes", "channels")}


async def leave_all(peers: Sequence[Peer]) -> None:
    """Say goodbye on every connection, and wait shortly until they are gone."""
    for peer in peers:
        peer.leave()
    with anyio.move_on_after(LEAVE_S):
        for peer in peers:
            await peer.gone.wait()
