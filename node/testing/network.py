"""The network of a world: every two names have a link of their own, which can be disturbed.

A link is a `millpond.transports.io.memory.Network`, so the real codecs and connections run on it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from math import inf
from random import Random
from typing import Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup

from millpond.actors.runtime.supervisor import contain
from millpond.node.testing.disturbances import LinkFaults, links_meant
from millpond.node.testing.trace import Trace
from millpond.transports.io.interface import Listener, Session, SessionFactory, Wire
from millpond.transports.io.memory import Network

P2P_PORT, S3P_PORT, RUSTLOG_PORT = 7400, 7402, 7403
PORTS = {P2P_PORT: "p2p", S3P_PORT: "s3p", RUSTLOG_PORT: "rustlog"}
"""What is spoken where in a world, as on a node with the default settings."""


class WorldDialer(Protocol):
    """Opens a wire to a node for any session; a `node.client.connect.Dialer`, among others."""

    async def __call__(
        self, tasks: TaskGroup, host: str, port: int, session: Session, /
    ) -> None: ...


class _House(msgspec.Struct):
    """A node that listens, and the task group in which its connections run."""

    factories: dict[str, SessionFactory]
    tasks: TaskGroup


class Links:
    """Names are those of nodes and of programs; a link is there as soon as somebody asks for it."""

    def __init__(self, seed: int) -> None:
        self.trace: Trace | None = None
        self._seed = seed
        self._told = LinkFaults()
        self._healed = anyio.Event()
        self._dialling: list[float] = []
        self._split = False
        self._houses: dict[str, _House] = {}
        self._networks: dict[frozenset[str], Network] = {}
        self._listeners: dict[str, list[Listener]] = {}
        self._stalled: set[str] = set()

    def between(self, a: str, b: str) -> Network:
        """The link of two names."""
        key = frozenset((a, b))
        network = self._networks.get(key)
        if network is None:
            # Its chances depend on the names alone, not on which link was used first.
            rng = Random(f"{self._seed} {' '.join(sorted(key))}")
            network = Network(
                rng,
                latency_s=self._told.latency_s(key),
                split=self._split,
                guard=partial(contain, f"connection/{'-'.join(sorted(key))}"),
            )
            self._networks[key] = network
            for name in sorted(key):
                self._listen(name, network)
                if name in self._stalled:
                    _each(network.stall, name)
            self._part(key, network)
        return network

    def next_due(self) -> float:
        """When the next bytes that are under way arrive, by the loop's clock; inf: none are. Those
        that a partition holds are not under way."""
        now = anyio.current_time()
        dues = [due for due in self._dialling if due > now]
        return min(dues + [each.next_due() for each in self._networks.values()], default=inf)

    # Nodes and programs.

    def open_house(self, name: str, factories: dict[str, SessionFactory], tasks: TaskGroup) -> None:
        """A node listens: `factories` by protocol."""
        traced = {protocol: self._traced(make, name) for protocol, make in factories.items()}
        self._houses[name] = _House(traced, tasks)
        for key, network in self._networks.items():
            if name in key:
                self._listen(name, network)

    async def close_house(self, name: str) -> None:
        """It listens no more; its connections stay."""
        self._houses.pop(name, None)
        for listener in self._listeners.pop(name, []):
            await listener.aclose()

    def dialer(self, source: str) -> WorldDialer:
        """Dials from a name; the host is a node's name, and the port says the protocol."""

        async def dial(tasks: TaskGroup, host: str, port: int, session: Session) -> None:
            protocol = PORTS.get(port)
            if protocol is None:
                raise ConnectionRefusedError(f"port {port}: in a world there are {[*PORTS]}")
            await self._connect(tasks, source, host, protocol, session)

        return dial

    async def _connect(
        self, tasks: TaskGroup, source: str, host: str, protocol: str, session: Session
    ) -> None:
        """Raises ConnectionRefusedError. Across a partition it waits, as who dials does whose
        packets get lost, for as long as the caller lets it."""
        network, address = self.between(source, host), _address(host, protocol)
        if self.trace is not None:
            self.trace.note(f"{source} > {address}: dials")
        traced = _Traced(session, self, source)
        while True:
            while self._told.is_parted(frozenset((source, host))):
                await self._healed.wait()
            if self._told.is_refused(host, source):
                raise ConnectionRefusedError(f"{host} refuses connections from {source}")
            due = anyio.current_time() + network.latency_s
            self._dialling.append(due)
            try:
                return await network.connect(tasks, address, traced, source=source)
            except OSError as exc:
                if exc.errno != errno.EHOSTUNREACH:  # else the partition came just now
                    raise
            finally:
                self._dialling.remove(due)

    # Faults.

    def partition(self, a: str, b: str | None = None) -> None:
        """Hold everything between two names, or between one and all others, also later ones."""
        self._told.part(links_meant(a, b))
        self._part_all()

    def heal(self, a: str, b: str | None = None) -> None:
        """End the partition of these very names: what it held goes on unless another does, too."""
        self._told.heal(links_meant(a, b))
        self._part_all()
        self._healed.set()
        self._healed = anyio.Event()

    def refuse(self, host: str, source: str | None = None, *, on: bool) -> None:
        """Whether a node refuses new connections, from one name or from all."""
        self._told.refuse(host, source, on=on)

    def reset(self, a: str, b: str | None = None) -> None:
        """Break the connections of a name, or between two names, at both ends."""
        for _, network in self._of(a) if b is None else [(None, self.between(a, b))]:
            _each(network.reset, a)

    def stall(self, name: str) -> None:
        """Let a name read nothing more."""
        self._stalled.add(name)
        for _, network in self._of(name):
            _each(network.stall, name)

    def unstall(self, name: str) -> None:
        """Let it read again."""
        self._stalled.discard(name)
        for _, network in self._of(name):
            _each(network.unstall, name)

    def set_latency(self, seconds: float, a: str | None = None, b: str | None = None) -> None:
        """How long bytes take from now on: on one link, on those of a name, or everywhere."""
        self._told.delay(links_meant(a, b), seconds)
        for key, network in self._networks.items():
            network.latency_s = self._told.latency_s(key)

    def set_split(self, split: bool) -> None:
        """Whether what is written arrives cut at random bytes."""
        self._split = split
        for network in self._networks.values():
            network.split = split

    def _part_all(self) -> None:
        for key, network in self._networks.items():
            self._part(key, network)

    def _part(self, key: frozenset[str], network: Network) -> None:
        do = network.partition if self._told.is_parted(key) else network.heal
        names = sorted(key)
        for source, target in ((names[0], names[-1]), (names[-1], names[0])):
            for protocol in PORTS.values():
                do(source, _address(target, protocol))

    def _of(self, name: str) -> list[tuple[frozenset[str], Network]]:
        return [(key, network) for key, network in self._networks.items() if name in key]

    def _listen(self, name: str, network: Network) -> None:
        keyring = self._houses.get(name)
        if keyring is not None:
            listeners = self._listeners.setdefault(name, [])
            for protocol, factory in keyring.factories.items():
                address = _address(name, protocol)
                listeners.append(network.listen(address, factory, keyring.tasks))

    def _traced(self, make: SessionFactory, name: str) -> SessionFactory:
        return lambda: _Traced(make(), self, name)


class _Traced:
    """A session at `name`'s end, whose trace has what it hears."""

    def __init__(self, session: Session, links: Links, name: str) -> None:
        self._session = session
        self._links = links
        self._place = name

    def opened(self, wire: Wire) -> None:
        self._place = f"{self._place} < {wire.peer}"
        self._hear("opened")
        self._session.opened(wire)

    def received(self, data: bytes) -> None:
        if self._links.trace is not None:
            self._links.trace.note_bytes(self._place, data)
        self._session.received(data)

    def uncongested(self) -> None:
        self._session.uncongested()

    def eof(self) -> None:
        self._hear("eof")
        self._session.eof()

    def ended(self) -> None:
        self._hear("ended")
        self._session.ended()

    def _hear(self, what: str) -> None:
        if self._links.trace is not None:
            self._links.trace.note(f"{self._place}: {what}")


def _address(name: str, protocol: str) -> str:
    """Where a name is reached; that of the node's own protocol is its name."""
    return name if protocol == "p2p" else f"{name}:{protocol}"


def _each(do: Callable[[str], None], name: str) -> None:
    for protocol in PORTS.values():
        do(_address(name, protocol))
