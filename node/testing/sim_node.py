"""A node of a world, across its stops, crashes and restarts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import anyio
from anyio.abc import TaskGroup, TaskStatus

from millpond.actors.messages import Durability
from millpond.node.client.channel import Channel
from millpond.node.client.connect import connect
from millpond.node.client.settings import (
    DEFAULT_SETTINGS,
    ConnectSettings,
    SimulatedSettings,
    simulated,
)
from millpond.node.config import LISTENERS, OFF, Config
from millpond.node.error_groups import single_errors
from millpond.node.outbox.outbox import QueuedMessage
from millpond.node.peers.address_book import Peer, Trust
from millpond.node.testing import sealed_messages as mail
from millpond.node.testing.disk.real import RealDisk
from millpond.node.testing.disk.simulated import SimulatedDisk
from millpond.node.testing.failures import Failures
from millpond.node.testing.inline_threads import mark_as_node
from millpond.node.testing.network import P2P_PORT, Links, WorldDialer
from millpond.node.testing.task_dump import waiting_locations
from millpond.node.testing.time.world_clock import WorldClock
from millpond.node.testing.timeouts import TookTooLong
from millpond.node.testing.world_node import WorldNode

if TYPE_CHECKING:
    from millpond.node.client.rustlog.client import Rustlog
    from millpond.node.client.s3p.client import S3p
    from millpond.node.client.streams.streams import Streams

Storage = Literal["simulated", "real", "memory"]
"""The storage of a node: a simulated disk, the real one, or memory alone."""
WHO = "client"
ENDS_WITHIN_S = 60.0
"""Time limit of a killed node's clean-up, in the world's time."""
SETTINGS = {"segment_bytes": 2**18, "drain_timeout_s": 0.2, "peer_channels": ("*",)}
"""Segments of 256 KiB are allocated faster than those of 16 MiB. Linked nodes may send to each
other's channels, which other nodes have to be told with `--peer-channel`."""


class NotRunning(Exception):
    """The node was stopped, or crashed."""


@dataclass(frozen=True, slots=True)
class WorldContext:
    """The parts of a world that its nodes share; its methods are those of `World`."""

    tasks: TaskGroup
    clock: WorldClock
    links: Links
    failures: Failures
    rng: Callable[[str], Random]
    entropy: Callable[[str], Callable[[int], bytes]]
    idle: Callable[[], Awaitable[None]]


class SimNode:
    """A node made by `World.node`. Its name is its host name, and that of its clock and disk."""

    def __init__(
        self,
        world: WorldContext,
        name: str,
        folder: Path,
        storage: Storage,
        settings: Mapping[str, object],
    ) -> None:
        self.name = name
        self.url = f"tcp://{name}:{P2P_PORT}"
        self.folder = folder
        self.config = _config(folder, storage, settings)
        self.disk: SimulatedDisk | None = None
        if storage == "simulated":
            self.disk = SimulatedDisk(world.rng(f"disk {name}"), folder.with_name(f"{name}.gone"))
            self.disk.on_resume = self._wake
        self._real = RealDisk() if storage == "real" else None
        self._world = world
        self._node: WorldNode | None = None
        self._scope = anyio.CancelScope()
        self._stopping = anyio.Event()
        self._ended = anyio.Event()

    def __repr__(self) -> str:
        return f"SimNode({self.name!r})"

    @property
    def is_running(self) -> bool:
        return self._node is not None

    @property
    def node(self) -> WorldNode:
        """The running `Node`. Raises NotRunning."""
        if self._node is None:
            raise NotRunning(f"{self.name} does not run: await {self.name}.start()")
        return self._node

    @property
    def public(self) -> bytes:
        """The public key of the running node. Raises NotRunning."""
        return self.node.peer_services.keyring.identity.public

    # Start and end.

    async def start(self) -> None:
        """Start the node on its disk. Raises ConfigError and OSError."""
        if self._node is None:
            await self._world.tasks.start(self._run_once)

    async def stop(self) -> None:
        """Stop the node as a signal does: it drains, says goodbye and closes its store."""
        if self._node is not None:
            self._stopping.set()
            await self._ended.wait()

    async def crash(self, *, power: bool = False) -> None:
        """End the node as kill -9 does: its written data is on the disk, its memory is lost.

        `power`: the machine stops as well, and chance decides which data without a sync is kept.
        """
        if self._node is not None:
            self._node.kill()
            await self._world.links.stop_listening(self.name)
            self._world.links.reset(self.name)
            self._scope.cancel()
            await self._end()
        if self._real is not None:
            self._real.close_all()
        if power:
            self._world.clock.reboot(self.name)
        if self.disk is not None:
            if power:
                self.disk.lose_power()
            else:
                self.disk.end_process()

    async def _end(self) -> None:
        """Wait for the end of its tasks. Raises TookTooLong if their clean-up hangs."""
        with anyio.move_on_after(ENDS_WITHIN_S):
            await self._ended.wait()
            return
        places = "\n".join(f"  {place}" for place in waiting_locations())
        raise TookTooLong(
            f"{self.name} was killed, and still cleans up after {ENDS_WITHIN_S:g} s; "
            f"its tasks wait at:\n{places}"
        )

    async def restart(self, *, power: bool = False) -> None:
        """`crash` the node if it runs, then `start` it."""
        if self._node is not None:
            await self.crash(power=power)
        await self.start()

    async def _run_once(self, *, task_status: TaskStatus[None]) -> None:
        """One run of the node. `start` raises errors before it is ready."""
        mark_as_node()
        self._stopping, self._ended = anyio.Event(), anyio.Event()
        node = self._make()
        try:
            with anyio.CancelScope() as self._scope, single_errors():
                await self._run(node, task_status)
        except Exception as error:
            if self._node is None:
                raise
            self._world.failures.add(error)  # the test fails, not the world's tasks
        finally:
            if self._node is not None and not self._stopping.is_set():
                self._world.links.reset(self.name)  # the node ended by itself
            self._node = None
            with anyio.CancelScope(shield=True):
                await self._world.links.stop_listening(self.name)
            self._ended.set()

    async def _run(self, node: WorldNode, task_status: TaskStatus[None]) -> None:
        links = self._world.links
        async with anyio.create_task_group() as tasks:
            if node.runtime is not None:
                tasks.start_soon(node.runtime.run)
            async with node:
                self._node = node
                links.listen(self.name, node.factories, tasks)
                task_status.started()
                await self._stopping.wait()
                await links.stop_listening(self.name)
            tasks.cancel_scope.cancel()

    def _make(self) -> WorldNode:
        world = self._world
        return WorldNode(
            self.config,
            rng=world.rng(f"node {self.name}"),
            entropy=world.entropy(f"node {self.name}"),
            clock=world.clock.of(self.name),
            dialer=world.links.dialer(self.name),
            disk=self.disk or self._real,
            is_held=lambda: self.disk is not None and self.disk.is_hanging,
        )

    def _wake(self) -> None:
        if self._node is not None and self._node.runtime is not None:
            self._node.runtime.wake()

    async def idle(self) -> None:
        """See `World.idle`."""
        await self._world.idle()

    # Clients, each of which has its own name on the network.

    def dialer(self, who: str = WHO) -> WorldDialer:
        """A dialer that connects to nodes of the world under the name `who`."""
        return self._world.links.dialer(who)

    def connect(
        self, channel: str | bytes | None = None, *, who: str = WHO, **options: object
    ) -> AbstractAsyncContextManager[Channel]:
        """Connect to a channel as the program `who`; options as of `millpond.connect`."""
        given = options.pop("settings", DEFAULT_SETTINGS)
        assert isinstance(given, ConnectSettings)
        settings = replace(simulated(given), **self._sources(who))
        return connect(self.url, channel, settings=settings, **options)  # type: ignore[arg-type]  # as it is called

    def settings(self, who: str = WHO) -> SimulatedSettings:
        """The settings of any client that connects to the node as the program `who`."""
        return SimulatedSettings(**self._sources(who))

    def streams(self, *, who: str = WHO) -> AbstractAsyncContextManager[Streams]:
        """A client of the node's streams; see `millpond.connect_streams`."""
        from millpond.node.client.streams.connect import (
            connect_streams,  # here and below: few tests need these clients
        )

        return connect_streams(self.url, settings=self.settings(who))

    def s3p(self, *, who: str = WHO) -> AbstractAsyncContextManager[S3p]:
        """A client of S3P; see `millpond.connect_s3p`."""
        from millpond.node.testing.clients import s3p_over

        return s3p_over(self.dialer(who), self.name, self._rng(who))

    def rustlog(self, *, who: str = WHO) -> AbstractAsyncContextManager[Rustlog]:
        """A client of RustLog; see `millpond.connect_rustlog`."""
        from millpond.node.testing.clients import rustlog_over

        return rustlog_over(self.dialer(who), self.name, self._rng(who))

    def _sources(self, who: str) -> dict[str, Any]:
        world = self._world
        return {
            "dialer": self.dialer(who),
            "rng": self._rng(who),
            "now": world.clock.elapsed,
            "entropy": world.entropy(f"{who} at {self.name}"),
        }

    def _rng(self, who: str) -> Any:
        return self._world.rng(f"{who} at {self.name}")

    # Other nodes.

    def add_peer(
        self, other: SimNode, *, dials: bool = True, relays: Sequence[SimNode] = ()
    ) -> None:
        """Add a contact or a relay to the address book, with its prekey. Both nodes run."""
        keyring = self.node.peer_services.keyring
        peer = Peer(
            name=other.name,
            public=other.public,
            trust=Trust.RELAY if other.node.config.relay else Trust.ADDED,
            addresses=(other.url,) if dials else (),
            relays=tuple(f"{_id(relay)}@{relay.url}" for relay in relays),
            added_at=self._world.clock.now(),
        )
        if keyring.book.by_name(other.name) is None:
            keyring.book.add(peer)
        else:
            keyring.book.replace(other.name, peer)
        keyring.prekey_cache.learn(other.public, other.node.peer_services.keyring.prekeys.current())

    async def send(
        self, peer: SimNode | str, channel: str, data: bytes, *, ttl: float = 0.0
    ) -> QueuedMessage:
        """Seal a message for a peer, and store it until it is delivered.

        Raises LookupError for a peer that is not linked, and the errors of `Outbox.send`.
        """
        name = peer if isinstance(peer, str) else peer.name
        return await mail.send(self.node, name, channel, data, ttl)

    async def read(self, channel: str, *, timeout_s: float = 600.0) -> mail.SealedMessage:
        """The next sealed message in a channel of this node, opened and acknowledged.

        Raises TimeoutError, and CannotOpen for a message that was sealed for another peer.
        """
        relayed = await mail.read(self.node, channel, timeout_s)
        await self.idle()  # an ack has no answer that tells when it is stored
        return relayed


def _config(folder: Path, storage: Storage, settings: Mapping[str, Any]) -> Config:
    base = Config(data=str(folder))
    if storage == "memory":
        base = replace(base, durability=Durability.MEMORY)
    closed: dict[str, Any] = dict.fromkeys(LISTENERS, OFF)
    return replace(base, **{**closed, **SETTINGS, **settings})


def _id(node: SimNode) -> str:
    return node.node.peer_services.keyring.identity.id
