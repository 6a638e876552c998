"""A node under test, and clients of it, over one of the wirings that every row is run over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any

import anyio
import pytest
import trio.testing
from anyio.abc import TaskGroup

from millpond.actors.store.filesystem import Disk
from millpond.node.clock import Clock
from millpond.node.config import OFF, Config
from millpond.node.node import Node
from millpond.transports.io.memory import Network
from tests.conformance import packets as p
from tests.conformance.peer import (
    LengthPrefixed,
    Peer,
    SocketPipe,
    connect_memory,
    connect_tcp,
    upgrade,
)

WIRINGS = ("memory", "tcp-uvloop", "tcp-trio", "ws-asyncio", "ws-trio")
LOBBY = b"lobby"
START_S = 1_763_683_200.0
SEED_OF_NODE_5 = 364
"""A node takes its 10 bits of id from its rng: this seed makes it node 5, as in
docs/reference/wire-protocol.md."""

_ANY_PORT = "127.0.0.1:0"

virtual_time = pytest.mark.parametrize("wiring", ["memory"])
"""For what takes seconds: in memory they pass at once."""


def backend(wiring: str) -> tuple[str, dict[str, Any]]:
    """The event loop of a wiring; in memory, time is virtual."""
    match wiring:
        case "memory":
            return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}
        case "tcp-uvloop":
            return "asyncio", {"use_uvloop": True}
        case "ws-asyncio":
            return "asyncio", {"use_uvloop": False}
        case _:
            return "trio", {}


Serve = Callable[..., AbstractAsyncContextManager["Served"]]
"""The fixture `serve`: runs a node over the wiring of the test."""


class Served:
    """A running node. Bare clients of it are in the channel `lobby`."""

    def __init__(self, node: Node, wiring: str, network: Network, tasks: TaskGroup) -> None:
        self.node = node
        self.network = network
        self.is_websocket = wiring.startswith("ws")
        self._is_memory = wiring == "memory"
        self._tasks = tasks
        self._peers: list[Peer] = []

    async def dial(
        self, channel: bytes = LOBBY, *, bare: bool = False, source: str = "somebody"
    ) -> Peer:
        """A new connection."""
        if self._is_memory:
            pipe = await connect_memory(self._tasks, self.network, "node", source)
            peer = Peer(pipe, LengthPrefixed())
        elif self.is_websocket:
            socket = await connect_tcp(self.node.listeners["ws"])
            subprotocol = "p2pbuf.v1" if bare else "p2pbuf.v1.hello"
            peer = Peer(socket, await upgrade(socket, channel, subprotocol))
        else:
            peer = Peer(await connect_tcp(self.node.listeners["p2p"]), LengthPrefixed())
        self._peers.append(peer)
        return peer

    async def bare(self, *, push_starts: bool = True) -> Peer:
        """A client that sends no HELLO; `push_starts`: it has sent its first packet."""
        peer = await self.dial(LOBBY, bare=True)
        if push_starts:
            await peer.send(p.PING)
            await peer.expect(p.PONG)
        return peer

    async def greet(self, channel: bytes, tags: p.Tags | None = None, **how: Any) -> Peer:
        """A client that has sent its HELLO, and read no answer yet."""
        peer = await self.dial(channel)
        await peer.send(p.hello(channel, tags, **how))
        return peer

    async def hello(
        self, channel: bytes = b"chat/1", tags: p.Tags | None = None, **how: Any
    ) -> Peer:
        """A client that is past its READY."""
        peer = await self.greet(channel, tags, **how)
        p.read_ready(await peer.packet())
        return peer

    async def raw(self) -> SocketPipe:
        """A new socket."""
        return await connect_tcp(self.node.listeners["ws" if self.is_websocket else "p2p"])

    async def close_peers(self) -> None:
        for peer in self._peers:
            await peer.aclose()
        self._peers.clear()


@asynccontextmanager
async def serve(
    wiring: str, *, seed: int = SEED_OF_NODE_5, disk: Disk | None = None, **settings: Any
) -> AsyncIterator[Served]:
    """Run a node; `settings` are fields of its configuration."""
    settings = {"default_channel": LOBBY.decode(), "p2p": OFF, "ws": OFF} | settings
    settings = {"s3p": OFF, "rustlog": OFF, "http": OFF} | settings
    clock = None
    if wiring == "memory":
        clock = Clock(monotonic=anyio.current_time, wall=lambda: START_S)
    else:
        settings["ws" if wiring.startswith("ws") else "p2p"] = _ANY_PORT
    network = Network(Random(seed))
    async with (
        anyio.create_task_group() as tasks,
        Node(Config(**settings), rng=Random(seed), clock=clock, disk=disk) as node,
    ):
        if wiring == "memory":
            node.listen_in(network, "node")
        served = Served(node, wiring, network, tasks)
        try:
            yield served
        finally:
            await served.close_peers()
