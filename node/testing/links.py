"""The network of a world: every two names have a link of their own, which can be disturbed.

A link is a `transports.memory.Network`, so the real codecs and connections run on it. What arrives
is counted, for `World.settled`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Protocol

import msgspec
from anyio.abc import TaskGroup

from actors.supervisor import contain
from transports.memory import Network
from transports.seam import Listener, Session, SessionFactory, Wire

PORTS = {7400: "p2p", 7402: "s3p", 7403: "rustlog"}
"""What is spoken where in a world, as on a node with the default settings."""


class WorldDialer(Protocol):
    """Opens a wire to a node for any session; a `node.client.Dialer`, among others."""

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
        self.arrivals = 0
        """How often bytes came in anywhere."""
        self._seed = seed
        self._latency_s = 0.0
        self._split = False
        self._houses: dict[str, _House] = {}
        self._networks: dict[frozenset[str], Network] = {}
        self._listeners: dict[str, list[Listener]] = {}
        self._cut_off: set[str] = set()
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
                latency_s=self._latency_s,
                split=self._split,
                guard=partial(contain, f"connection/{'-'.join(sorted(key))}"),
            )
            self._networks[key] = network
            for name in key:
                self._listen(name, network)
                if name in self._stalled:
                    _each(network.stall, name)
                if name in self._cut_off:
                    _partition(network.partition, *_ends(key))
        return network

    @property
    def latency_s(self) -> float:
        """The longest of any link."""
        return max((each.latency_s for each in self._networks.values()), default=self._latency_s)

    # Nodes and programs.

    def open_house(self, name: str, factories: dict[str, SessionFactory], tasks: TaskGroup) -> None:
        """A node listens: `factories` by protocol."""
        counted = {protocol: self._counted(make) for protocol, make in factories.items()}
        self._houses[name] = _House(counted, tasks)
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
            network = self.between(source, host)
            counted = _Counted(session, self)
            await network.connect(tasks, _address(host, protocol), counted, source=source)

        return dial

    # Faults.

    def partition(self, a: str, b: str) -> None:
        """Hold everything between two names, until `heal`."""
        _partition(self.between(a, b).partition, a, b)

    def heal(self, a: str, b: str) -> None:
        """What was held goes on."""
        _partition(self.between(a, b).heal, a, b)

    def cut_off(self, name: str) -> None:
        """Partition a name from everybody, also from those that come later."""
        self._cut_off.add(name)
        for key, network in self._of(name):
            _partition(network.partition, *_ends(key))

    def rejoin(self, name: str) -> None:
        """The reverse, but for those who are cut off themselves."""
        self._cut_off.discard(name)
        for key, network in self._of(name):
            if not key & self._cut_off:
                _partition(network.heal, *_ends(key))

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
        """How long bytes take from now on: between two names, or everywhere."""
        if a is not None and b is not None:
            self.between(a, b).latency_s = seconds
            return
        self._latency_s = seconds
        for network in self._networks.values():
            network.latency_s = seconds

    def set_split(self, split: bool) -> None:
        """Whether what is written arrives cut at random bytes."""
        self._split = split
        for network in self._networks.values():
            network.split = split

    def _of(self, name: str) -> list[tuple[frozenset[str], Network]]:
        return [(key, network) for key, network in self._networks.items() if name in key]

    def _listen(self, name: str, network: Network) -> None:
        house = self._houses.get(name)
        if house is not None:
            listeners = self._listeners.setdefault(name, [])
            for protocol, factory in house.factories.items():
                address = _address(name, protocol)
                listeners.append(network.listen(address, factory, house.tasks))

    def _counted(self, make: SessionFactory) -> SessionFactory:
        return lambda: _Counted(make(), self)


class _Counted:
    """A session, and a count of what it hears."""

    def __init__(self, session: Session, links: Links) -> None:
        self._session = session
        self._links = links

    def opened(self, wire: Wire) -> None:
        self._links.arrivals += 1
        self._session.opened(wire)

    def received(self, data: bytes) -> None:
        self._links.arrivals += 1
        self._session.received(data)

    def uncongested(self) -> None:
        self._session.uncongested()

    def eof(self) -> None:
        self._links.arrivals += 1
        self._session.eof()

    def ended(self) -> None:
        self._links.arrivals += 1
        self._session.ended()


def _address(name: str, protocol: str) -> str:
    """Where a name is reached; that of the node's own protocol is its name."""
    return name if protocol == "p2p" else f"{name}:{protocol}"


def _each(do: Callable[[str], None], name: str) -> None:
    for protocol in PORTS.values():
        do(_address(name, protocol))


def _partition(do: Callable[[str, str], None], a: str, b: str) -> None:
    for source, target in ((a, b), (b, a)):
        for protocol in PORTS.values():
            do(source, _address(target, protocol))


def _ends(key: frozenset[str]) -> tuple[str, str]:
    names = sorted(key)
    return names[0], names[-1]
